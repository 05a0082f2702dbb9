"""The lake in a bucket of a real S3 server (moto's): what is published when a writer dies, what a query reads, what
a failure says, and a whole case with every table in the bucket.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finops_pipeline import doctor
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.assets.hours import failing_clearly
from finops_pipeline.contracts.lake import TABLES
from finops_pipeline.errors import FinopsError, SourceError, UsageError
from finops_pipeline.resources.failpoints import VARIABLE
from finops_pipeline.resources.lake import bucket as lake_bucket
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch
from tests.databases import Databases
from tests.services.conftest import Finops
from tests.services.s3_server import KEY, SECRET, S3Server
from tests.services.test_cli import FILES, one_line

BUCKET = "lakes"
CASE = "01-shared-server-70-30"
H10 = 1_790_848_800_000  # 2026-10-01T10:00:00Z
HOUR_10 = "fleet_hours/cluster=dc1/hour=2026-10-01T10Z/data.parquet"
FLEET = TABLES["fleet_hours"]
MANY = 1100
"""Objects; a listing returns 1000 at a time."""

Use = Callable[[Lake], object]
USES: dict[str, Use] = {
    "write": lambda lake: lake.write("fleet_hours", "dc1", H10, fleet()),
    "read": lambda lake: lake.read("fleet_hours", "dc1", H10),
    "hours": lambda lake: lake.hours("fleet_hours", "dc1"),
    "clusters": lambda lake: lake.clusters("fleet_hours"),
    "drop": lambda lake: lake.drop("fleet_hours", "dc1", H10),
    "connect": lambda lake: lake.connect(),
}


def fleet(hour_ms: int = H10, visible: str = "3600.000") -> pa.Table:
    row = dict.fromkeys(FLEET.names, Decimal(visible)) | {"cluster": "dc1", "hour": hour_ms, "gpu_model": "H100"}
    return pa.Table.from_pylist([row], schema=FLEET)


def big_series() -> pa.Table:
    """Rows of 24 MB that do not compress: three parts."""
    values = np.random.default_rng(1).integers(0, 0x7FE << 52, 3_000_000).view(np.float64)
    return pa.table(
        {"metric": ["M"], "labels": [[("UUID", "GPU-1")]], "timestamps": [[H10]], "values": [values]},
        schema=TABLES["dcgm_series"],
    )


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def prefixes() -> Iterator[str]:
    return (f"s3://{BUCKET}/of {number}" for number in count())


@pytest.fixture
def url(prefixes: Iterator[str]) -> str:
    return next(prefixes)


@pytest.fixture
def lake(store: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    use(monkeypatch, store.environment())
    store.seen()
    return Lake(url)


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def objects(store: S3Server, lake: Lake) -> list[str]:
    prefix = lake.where.removeprefix(f"s3://{BUCKET}/")
    return [key.removeprefix(f"{prefix}/") for key in store.keys(BUCKET) if key.startswith(f"{prefix}/")]


def visible(lake: Lake) -> Decimal:
    rows = lake.require("fleet_hours", "dc1", H10)
    return Decimal(rows["visible"][0].as_py())


# Publication


def test_a_small_hour_is_one_request_and_a_big_one_is_whole(store: S3Server, lake: Lake) -> None:
    lake.write("fleet_hours", "dc1", H10, fleet())
    assert [request.method for request in store.seen()] == ["PUT"]
    rows = big_series()
    lake.write("dcgm_series", "dc1", H10, rows)
    assert [request.method for request in store.seen()] == ["POST", "PUT", "PUT", "PUT", "POST"]
    back = lake.read("dcgm_series", "dc1", H10)
    assert back is not None
    assert back.equals(rows)
    assert objects(store, lake) == [HOUR_10.replace("fleet_hours", "dcgm_series"), HOUR_10]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_part_that_fails_publishes_nothing(part: int, store: S3Server, lake: Lake) -> None:
    """pyarrow's foreground writes would publish an empty object here."""
    store.fault("PUT", f"partNumber={part}&", "403")
    with pytest.raises(SourceError, match="cannot be written"):
        lake.write("dcgm_series", "dc1", H10, big_series())
    assert objects(store, lake) == []
    assert lake.read("dcgm_series", "dc1", H10) is None


def test_a_write_that_fails_leaves_the_old_hour(store: S3Server, lake: Lake) -> None:
    lake.write("fleet_hours", "dc1", H10, fleet())
    store.fault("PUT", "fleet_hours", "403")
    with pytest.raises(SourceError, match=re.escape(f"{lake.where}/{HOUR_10} cannot be written")):
        lake.write("fleet_hours", "dc1", H10, fleet(visible="1.000"))
    assert visible(lake) == 3600


@pytest.mark.parametrize(("table", "text"), [("fleet_hours", "fleet_hours"), ("dcgm_series", "partNumber=2&")])
def test_a_writer_killed_in_its_upload_leaves_the_old_hour(table: str, text: str, store: S3Server, lake: Lake) -> None:
    rows = fleet() if table == "fleet_hours" else big_series()
    lake.write(table, "dc1", H10, rows.slice(0, 0))
    store.fault("PUT", text, "hang")
    script = textwrap.dedent(
        f"""
        from finops_pipeline.resources.lake.store import Lake
        from tests.services import test_lake_s3 as tests
        rows = tests.fleet() if {table!r} == "fleet_hours" else tests.big_series()
        Lake({lake.where!r}).write({table!r}, "dc1", {H10}, rows)
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    store.wait_for_faults()
    writer.kill()
    assert writer.wait(10) == -signal.SIGKILL
    assert lake.require(table, "dc1", H10).num_rows == 0
    assert lake.connect([table]).sql(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    lake.write(table, "dc1", H10, rows)
    assert lake.require(table, "dc1", H10).equals(rows)
    assert objects(store, lake) == [HOUR_10.replace("fleet_hours", table)]


def test_an_hour_that_is_replaced_while_it_is_read_is_the_old_or_the_new_one(lake: Lake) -> None:
    short, long = fleet(), pa.concat_tables([fleet(visible=f"{number}.001") for number in range(500)])
    lake.write("fleet_hours", "dc1", H10, short)
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for rows in (long, short):
                lake.write("fleet_hours", "dc1", H10, rows)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen = {lake.require("fleet_hours", "dc1", H10).num_rows for _ in range(300)}
    finally:
        stop.set()
        writer.join()
    assert seen == {1, 500}


def test_an_object_that_is_no_parquet_file_is_named(store: S3Server, lake: Lake) -> None:
    for content in (b"", b"PAR", b"no Parquet file"):
        with store.files().open_output_stream(f"{lake.where.removeprefix('s3://')}/{HOUR_10}") as stream:
            stream.write(content)
        with pytest.raises(FinopsError, match=re.escape(f"{HOUR_10} cannot be read")):
            lake.read("fleet_hours", "dc1", H10)


# What is asked for


@pytest.fixture(scope="module")
def many(store: S3Server, prefixes: Iterator[str]) -> str:
    """A lake of 1,100 hours of fleets."""
    url = next(prefixes)
    files = store.files()
    for number in range(MANY):
        start = datetime.fromtimestamp(H10 // 1000 + 3600 * number, UTC)
        content = io.BytesIO()
        pq.write_table(fleet(H10 + HOUR_MS * number), content, compression="zstd")
        key = f"{url.removeprefix('s3://')}/fleet_hours/cluster=dc1/hour={start:%Y-%m-%dT%HZ}/data.parquet"
        with files.open_output_stream(key) as stream:
            stream.write(content.getvalue())
    return url


def test_all_hours_are_listed(many: str, store: S3Server, lake: Lake) -> None:
    full = Lake(many)
    store.seen()
    assert full.hours("fleet_hours", "dc1") == [H10 + HOUR_MS * number for number in range(MANY)]
    assert len(store.seen()) == 2
    assert full.clusters("fleet_hours") == ["dc1"]


@pytest.mark.parametrize(
    ("condition", "first", "objects"),
    [
        ("hour = '2026-10-03 10:00:00Z'", 48, 1),
        ("hour >= '2026-10-03' AND hour < '2026-10-03 03:00:00Z' AND cluster = 'dc1'", 38, 3),
        ("hour IN ('2026-10-03 10:00:00Z', '2026-10-03 12:00:00Z')", 48, 2),
        ("hour > timestamptz '2026-10-03 10:00:00Z' - interval 1 hour AND hour < '2026-10-03 12:00:00Z'", 48, 2),
        ("cluster = 'dc2'", 0, 0),
    ],
)
def test_a_filter_on_hour_or_cluster_opens_only_the_objects_it_needs(
    condition: str, first: int, objects: int, many: str, store: S3Server, lake: Lake
) -> None:
    store.seen()
    connection = Lake(many).connect(["fleet_hours"])
    assert [request.method for request in store.seen()] == ["GET", "GET"], "the listing, no object"
    found = connection.sql(
        f"SELECT epoch_ms(hour), visible FROM fleet_hours WHERE {condition} ORDER BY hour"
    ).fetchall()
    assert len(found) == objects
    assert all(row[1] == 3600 for row in found)
    assert not found or found[0][0] == H10 + HOUR_MS * first
    assert len({request.path for request in store.seen()}) == objects


def test_a_read_is_two_requests_and_a_missing_hour_is_told_by_a_listing(store: S3Server, lake: Lake) -> None:
    lake.write("fleet_hours", "dc1", H10, fleet())
    store.seen()
    assert visible(lake) == 3600
    assert [request.method for request in store.seen()] == ["HEAD", "GET"]
    assert lake.read("fleet_hours", "dc1", H10 + HOUR_MS) is None
    assert [request.method for request in store.seen()] == ["HEAD", "GET"]


def test_a_store_that_forbids_to_look_at_what_is_not_there(store: S3Server, lake: Lake) -> None:
    """So does AWS, to those who may list a prefix only."""
    lake.write("fleet_hours", "dc1", H10, fleet())
    store.fault("HEAD", "T11Z", "403", times=2)
    assert lake.read("fleet_hours", "dc1", H10 + HOUR_MS) is None
    lake.drop("fleet_hours", "dc1", H10 + HOUR_MS)
    store.fault("HEAD", "T10Z", "403")
    with pytest.raises(SourceError, match="denies access"):
        lake.read("fleet_hours", "dc1", H10)


# Failures


def failure(work: Use, lake: Lake) -> SourceError:
    """What a use of the lake fails with: one line, without a key."""
    with pytest.raises(SourceError) as caught:
        work(lake)
    said = str(caught.value)
    assert said.startswith(f"lake: {lake.where}")
    assert "\n" not in said
    assert KEY not in said
    assert SECRET not in said
    return caught.value


@pytest.mark.parametrize("used", USES)
def test_a_bucket_that_is_not_there(used: str, lake: Lake) -> None:
    error = failure(USES[used], Lake("s3://nowhere/lake"))
    assert "has no bucket nowhere: make it, or correct FINOPS_LAKE_URL" in str(error)
    assert not error.transient


@pytest.mark.parametrize("used", USES)
def test_a_store_that_is_not_there(used: str, store: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as other:
        variables = other.environment()
    use(monkeypatch, variables)
    began = time.monotonic()
    error = failure(USES[used], Lake(url))
    assert f"{variables['AWS_ENDPOINT_URL']} does not answer" in str(error)
    assert "check AWS_ENDPOINT_URL" in str(error)
    assert error.transient
    assert time.monotonic() - began < 20


def test_a_store_that_never_answers(store: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_bucket, "SILENT_SECONDS", 1)
    monkeypatch.setattr(lake_bucket, "TRIES", 1)
    use(monkeypatch, store.environment())
    store.fault("PUT", "fleet_hours", "hang")
    began = time.monotonic()
    error = failure(USES["write"], Lake(url))
    assert "Operation too slow" in str(error)
    assert error.transient
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("fault", "times"), [("503", 2), ("500", 2), ("drop", 1)])
def test_a_passing_fault_is_not_seen(fault: str, times: int, store: S3Server, lake: Lake) -> None:
    store.fault("PUT", "fleet_hours", fault, times)
    lake.write("fleet_hours", "dc1", H10, fleet())
    assert visible(lake) == 3600
    assert store.left() == 0


@pytest.mark.parametrize(
    ("fault", "told", "transient"),
    [("503", "is not able to now (503): try again later", True), ("301", "set AWS_REGION", False)],
)
def test_a_lasting_fault(fault: str, told: str, transient: bool, store: S3Server, lake: Lake) -> None:
    store.fault("PUT", "fleet_hours", fault, times=lake_bucket.TRIES if transient else 1)
    error = failure(USES["write"], lake)
    assert told in str(error)
    assert error.transient is transient


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://user:s3cret@127.0.0.1:9000", "AWS_ENDPOINT_URL holds a user or password"),
        ("127.0.0.1:9000", "AWS_ENDPOINT_URL is '127.0.0.1:9000': expected an address like"),
    ],
)
def test_a_wrong_endpoint(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"AWS_ENDPOINT_URL": text})
    with pytest.raises(UsageError, match=re.escape(told)) as caught:
        Lake(f"s3://{BUCKET}/lake")
    assert "s3cret" not in str(caught.value)


def test_the_endpoint_of_s3_goes_before_the_general_one(
    store: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, store.environment(url="http://127.0.0.1:1") | {"AWS_ENDPOINT_URL_S3": f"{store.url}/"})
    assert Lake(url).clusters("fleet_hours") == []


# Keys and policies


@pytest.fixture(scope="module")
def guarded(repository: Path) -> Iterator[tuple[S3Server, dict[str, dict[str, str]]]]:
    """A server that checks keys, with a user who has the policy of docs/lake.md and one who has none.

    moto does not know the condition `s3:prefix`: it is left out here.
    """
    page = (repository / "docs" / "lake.md").read_text()
    policy = json.loads(page.partition("```json\n")[2].partition("```")[0])
    for statement in policy["Statement"]:
        statement.pop("Condition", None)
    with S3Server() as server:
        server.make_bucket("finops")
        users = {"lake": server.user("lake", policy), "nobody": server.user("nobody")}
        server.check_keys()
        yield server, users


def test_the_documented_policy_is_enough(
    guarded: tuple[S3Server, dict[str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = guarded[1]
    use(monkeypatch, users["lake"])
    lake = Lake("s3://finops/lake")
    for work in USES.values():
        work(lake)
    lake.write("dcgm_series", "dc1", H10, big_series())
    assert lake.require("dcgm_series", "dc1", H10).num_rows == 1
    lake_bucket.Bucket("s3://finops/lake").try_out()
    with pytest.raises(SourceError, match="denies access to bucket finops"):
        Lake("s3://finops/other").write("fleet_hours", "dc1", H10, fleet())


@pytest.mark.parametrize("used", USES)
def test_keys_that_may_not(
    used: str, guarded: tuple[S3Server, dict[str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, guarded[1]["nobody"])
    error = failure(USES[used], Lake("s3://finops/lake"))
    assert "denies access to bucket finops: check the AWS variables" in str(error)
    assert not error.transient


@pytest.mark.parametrize("used", USES)
@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_keys(
    used: str,
    variable: str,
    guarded: tuple[S3Server, dict[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, guarded[1]["lake"] | {variable: "A0WRONGKEY"})
    error = failure(USES[used], Lake("s3://finops/lake"))
    assert "AWS_ACCESS_KEY_ID" in str(error) or "check the AWS variables" in str(error)
    assert "A0WRONGKEY" not in str(error)
    assert guarded[1]["lake"]["AWS_SECRET_ACCESS_KEY"] not in str(error)
    assert not error.transient


def test_no_key_is_in_any_text_about_a_lake(lake: Lake) -> None:
    shown = f"{lake!r} {lake._files!r} {vars(lake)} {vars(lake._files)}"
    assert KEY not in shown
    assert SECRET not in shown


# The whole


@pytest.fixture
def finops(store: S3Server, url: str, databases: Databases, tmp_path: Path) -> Finops:
    settings = {"EAI_DATABASE_URL": databases.fresh(), "FINOPS_LAKE_URL": url, **store.environment()}
    return Finops(tmp_path / "home", settings)


def run(finops: Finops, case: Path, out: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return finops("run", "--bundle", case, "--out", out, "--json", **settings)


def assert_expected(case: Path, out: Path) -> None:
    for file in FILES:
        assert (out / file).read_bytes() == (case / "expected" / file).read_bytes(), file


def booked(finops: Finops) -> int:
    database = Database(finops.settings["EAI_DATABASE_URL"])
    found = len(database.query("SELECT 1 AS one FROM eai.usage_events WHERE usage_type <> 'llm'"))
    database.close()
    return found


def test_a_case_gives_the_same_files_and_a_second_run_books_nothing(
    cases: Path, finops: Finops, store: S3Server, tmp_path: Path
) -> None:
    for number in (1, 2):
        done = run(finops, cases / CASE, tmp_path / f"out{number}")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert_expected(cases / CASE, tmp_path / f"out{number}")
        new = (tmp_path / f"out{number}" / "usage_events.jsonl").read_text().splitlines()
        assert (len(new) > 0) is (number == 1)
    assert not (finops.home / "lake").exists()
    assert any("gpu_samples/cluster=dc1-gpu/" in key for key in store.keys(BUCKET))
    asked = finops("sql", "--json", "SELECT hour, sum(gpu_seconds) AS s FROM gpu_usage GROUP BY 1 ORDER BY 1")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert [row["hour"] for row in json.loads(asked.stdout)] == ["2026-10-01T10:00:00Z", "2026-10-01T11:00:00Z"]
    one_tenant = "SELECT count(*) AS n FROM gpu_samples WHERE tenant_id = (SELECT min(tenant_id) FROM gpu_samples)"
    assert json.loads(finops("sql", "--json", one_tenant).stdout)[0]["n"] > 0
    explained = finops("status", "--json")
    assert explained.returncode == 0, explained.stderr


def test_views_say_the_same_of_a_folder_and_of_a_bucket(
    cases: Path,
    finops: Finops,
    store: S3Server,
    databases: Databases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = Finops(tmp_path / "local", {"EAI_DATABASE_URL": databases.fresh()})
    for each in (finops, local):
        done = run(each, cases / CASE, tmp_path / f"out-{each.home.name}")
        assert done.returncode == 0, done.stderr
    use(monkeypatch, store.environment())
    connections = [Lake(place).connect() for place in (finops.settings["FINOPS_LAKE_URL"], local.home / "lake")]
    for table in TABLES:
        rows = [connection.sql(f"SELECT * FROM {table} ORDER BY ALL") for connection in connections]
        assert [each.columns for each in rows] == [rows[0].columns] * 2
        assert rows[0].fetchall() == rows[1].fetchall(), table


@pytest.mark.parametrize("point", ["records half landed", "gpu_usage replaced"])
def test_a_killed_run_is_repaired_by_the_next(point: str, cases: Path, finops: Finops, tmp_path: Path) -> None:
    assert run(finops, cases / CASE, tmp_path / "out", **{VARIABLE: point}).returncode == -signal.SIGKILL
    done = run(finops, cases / CASE, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert_expected(cases / CASE, tmp_path / "out")


def test_a_run_killed_in_an_upload_is_repaired_by_the_next(
    cases: Path, finops: Finops, store: S3Server, tmp_path: Path
) -> None:
    store.fault("PUT", "gpu_holdings", "hang")
    running = finops.start("run", "--bundle", cases / CASE, "--out", tmp_path / "out")
    store.wait_for_faults()
    running.kill()
    running.communicate(timeout=30)
    assert booked(finops) == 0
    done = run(finops, cases / CASE, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert_expected(cases / CASE, tmp_path / "out")


def test_a_fault_that_outlasts_the_tries_of_a_request_ends_the_run_and_the_next_repairs_it(
    cases: Path, finops: Finops, store: S3Server, tmp_path: Path
) -> None:
    store.fault("PUT", "gpu_usage/", "503", lake_bucket.TRIES)
    said = one_line(finops("run", "--bundle", cases / CASE), 1)
    assert "gpu_usage/cluster=dc1-gpu/hour=2026-10-01T10Z/data.parquet cannot be written" in said
    assert said.endswith("(503): try again later")
    assert run(finops, cases / CASE, tmp_path / "out").returncode == 0
    assert_expected(cases / CASE, tmp_path / "out")


def test_dagster_is_asked_for_another_try_of_what_may_pass(store: S3Server, lake: Lake) -> None:
    store.fault("PUT", "fleet_hours", "503", lake_bucket.TRIES)
    with pytest.raises(dg.RetryRequested), failing_clearly(Watch()):
        lake.write("fleet_hours", "dc1", H10, fleet())
    store.fault("PUT", "fleet_hours", "403")
    with pytest.raises(dg.Failure, match="denies access"), failing_clearly(Watch()):
        lake.write("fleet_hours", "dc1", H10, fleet())


def test_a_store_that_stops_is_one_line(cases: Path, finops: Finops, tmp_path: Path) -> None:
    with S3Server() as other:
        other.make_bucket(BUCKET)
        gone = other.environment()
        assert finops("sql", "SELECT count(*) FROM gpu_usage", **gone).returncode == 0
    for arguments in (("sql", "SELECT 1"), ("run", "--bundle", str(cases / CASE))):
        said = one_line(finops(*arguments, **gone), 1)
        assert f"{gone['AWS_ENDPOINT_URL']} does not answer" in said
        assert SECRET not in said
    assert booked(finops) == 0


def test_the_doctor_writes_reads_and_removes(
    cases: Path, store: S3Server, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_lake(url: str) -> list[Any]:
        variables = {"FINOPS_HOME": str(tmp_path), "FINOPS_LAKE_URL": url}
        return [remark for remark in doctor.diagnose(variables, cases / CASE) if remark.where == "lake"]

    (remark,) = of_lake(lake.where)
    assert (remark.level, remark.subject) == ("ok", "bucket")
    assert objects(store, lake) == []
    lake.write("dcgm_series", "dc1", H10, TABLES["dcgm_series"].empty_table())
    assert [remark.subject for remark in of_lake(lake.where)] == ["bucket", "hours"]
    (missing,) = of_lake("s3://nowhere/lake")
    assert missing.level == "fail"
    assert "has no bucket nowhere" in missing.seen
    store.fault("DELETE", ".finops-", "403")
    (kept,) = of_lake(lake.where)
    assert "cannot be removed" in kept.seen
