from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.contracts.lake import TABLES
from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.lake.folder import LEFTOVER_SECONDS
from finops_pipeline.resources.lake.store import Lake
from tests.services.s3_server import S3Server

H10 = 1_790_848_800_000  # 2026-10-01T10:00:00Z
FLEET = TABLES["fleet_hours"]


def fleet(cluster: str = "dc1", hour_ms: int = H10, visible: str = "3600.000") -> pa.Table:
    row = dict.fromkeys(FLEET.names, Decimal(visible)) | {"cluster": cluster, "hour": hour_ms, "gpu_model": "H100"}
    return pa.Table.from_pylist([row], schema=FLEET)


def series(values: list[float]) -> pa.Table:
    instants = [H10 + 15_000 * i for i in range(len(values))]
    return pa.table(
        {"metric": ["M"], "labels": [[("UUID", "GPU-1")]], "timestamps": [instants], "values": [values]},
        schema=TABLES["dcgm_series"],
    )


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket("lakes")
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "it's [a] *lake?"


@pytest.fixture
def in_folder(folder: Path) -> Lake:
    return Lake(folder)


@pytest.fixture
def in_bucket(store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, text in store.environment().items():
        monkeypatch.setenv(name, text)
    return Lake(f"s3://lakes/{tmp_path.name}/it's [a] *lake?")


@pytest.fixture(params=["in_folder", "in_bucket"])
def lake(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue(request.param)
    return found


def test_what_is_written_is_read_back_with_units_and_documentation(lake: Lake) -> None:
    lake.write("dcgm_series", "dc1", H10, series([1.0, float("nan"), 3.5]))
    back = lake.read("dcgm_series", "dc1", H10)
    assert back is not None
    assert back.schema.equals(TABLES["dcgm_series"], check_metadata=True)
    assert str(back["values"].to_pylist()) == "[[1.0, nan, 3.5]]"
    assert back["labels"].to_pylist() == [[("UUID", "GPU-1")]]


def test_not_landed_is_none_and_no_rows_is_a_table(lake: Lake) -> None:
    assert lake.read("fleet_hours", "dc1", H10) is None
    lake.write("fleet_hours", "dc1", H10, FLEET.empty_table())
    back = lake.read("fleet_hours", "dc1", H10)
    assert back is not None
    assert back.num_rows == 0


def test_a_second_write_replaces_the_whole_hour(lake: Lake) -> None:
    lake.write("fleet_hours", "dc1", H10, pa.concat_tables([fleet(), fleet(visible="1.000")]))
    lake.write("fleet_hours", "dc1", H10, fleet(visible="7200.000"))
    back = lake.read("fleet_hours", "dc1", H10, columns=["visible", "gpu_model"])
    assert back is not None
    assert back.to_pylist() == [{"visible": Decimal("7200.000"), "gpu_model": "H100"}]


def test_the_same_rows_give_the_same_bytes(lake: Lake) -> None:
    def written() -> bytes:
        lake.write("fleet_hours", "dc1", H10, fleet())
        with lake._files.open("fleet_hours/cluster=dc1/hour=2026-10-01T10Z/data.parquet") as file:
            return bytes(file.read())

    assert written() == written()


def test_hours_and_clusters_are_what_landed(lake: Lake) -> None:
    odd = "eu/west 1=é%2F"
    for cluster, hour in (("dc1", H10 + HOUR_MS), ("dc1", H10), (odd, H10)):
        lake.write("fleet_hours", cluster, hour, fleet(cluster, hour))
    lake.write("fleet_hours", "gone", H10, fleet("gone"))
    lake.drop("fleet_hours", "gone", H10)
    assert lake.hours("fleet_hours", "dc1") == [H10, H10 + HOUR_MS]
    assert lake.hours("fleet_hours", "nowhere") == []
    assert lake.clusters("fleet_hours") == ["dc1", odd]
    assert lake.clusters("gpu_usage") == []
    back = lake.read("fleet_hours", odd, H10)
    assert back is not None
    assert back["cluster"].to_pylist() == [odd]


def test_folders_without_a_file_are_not_there(in_folder: Lake, folder: Path) -> None:
    in_folder.write("fleet_hours", "dc1", H10, fleet())
    (folder / "fleet_hours" / "cluster=dc1" / "hour=2026-10-01T09Z").mkdir()
    (folder / "fleet_hours" / "cluster=empty").mkdir()
    assert in_folder.hours("fleet_hours", "dc1") == [H10]
    assert in_folder.clusters("fleet_hours") == ["dc1"]


def test_drop_forgets_one_hour(lake: Lake) -> None:
    lake.write("fleet_hours", "dc1", H10, fleet())
    lake.write("fleet_hours", "dc1", H10 + HOUR_MS, fleet(hour_ms=H10 + HOUR_MS))
    lake.drop("fleet_hours", "dc1", H10)
    lake.drop("fleet_hours", "dc1", H10)
    assert lake.hours("fleet_hours", "dc1") == [H10 + HOUR_MS]
    assert lake.read("fleet_hours", "dc1", H10) is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.drop_columns(["idle"]), "missing: ['idle']"),
        (lambda t: t.append_column("extra", [["x"]]), "not those of the contract"),
        (lambda t: t.set_column(4, "held", [[1.5]]), "fleet_hours.held: double"),
        (lambda t: t.set_column(4, "held", [[Decimal("0.0001")]]), "fleet_hours.held"),
        (lambda t: t.set_column(2, "gpu_model", pa.array([None], pa.string())), "fleet_hours.gpu_model: 1 nulls"),
        (lambda t: t.set_column(1, "hour", pa.array([H10 * 1000 + 1], pa.timestamp("us", "UTC"))), "fleet_hours.hour"),
    ],
)
def test_rows_that_do_not_fit_the_contract_are_refused_and_change_nothing(
    lake: Lake, spoil: Callable[[pa.Table], pa.Table], message: str
) -> None:
    lake.write("fleet_hours", "dc1", H10, fleet())
    with pytest.raises(ValueError, match="fleet_hours") as caught:
        lake.write("fleet_hours", "dc1", H10, spoil(fleet(visible="1.000")))
    assert message in str(caught.value)
    back = lake.read("fleet_hours", "dc1", H10)
    assert back is not None
    assert back["visible"].to_pylist() == [Decimal("3600.000")]


def test_lossless_types_are_taken(lake: Lake) -> None:
    rows = fleet().select(list(reversed(FLEET.names)))
    rows = rows.set_column(rows.column_names.index("held"), "held", pa.array([3600], pa.int64()))
    rows = rows.set_column(rows.column_names.index("gpu_model"), "gpu_model", pa.array(["H100"]).dictionary_encode())
    lake.write("fleet_hours", "dc1", H10, rows)
    back = lake.read("fleet_hours", "dc1", H10)
    assert back is not None
    assert back.equals(fleet())


def test_unknown_tables_and_odd_hours_are_defects(lake: Lake) -> None:
    with pytest.raises(KeyError, match="no_table"):
        lake.read("no_table", "dc1", H10)
    with pytest.raises(ValueError, match="not the start of an hour"):
        lake.read("fleet_hours", "dc1", H10 + 1)


def test_a_writer_killed_in_the_middle_leaves_the_old_hour(in_folder: Lake, folder: Path) -> None:
    """SIGKILL between the bytes and the rename: the worst moment."""
    lake = in_folder
    lake.write("fleet_hours", "dc1", H10, fleet())
    script = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from tests_lake_rows import rows
        from finops_pipeline.resources.lake.store import Lake
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Lake({lake.where!r}).write("fleet_hours", "dc1", {H10}, rows)
        """
    )
    module = folder.parent / "tests_lake_rows.py"
    module.write_text(
        "import pyarrow as pa\nfrom contracts.lake import TABLES\nrows = TABLES['fleet_hours'].empty_table()\n"
    )
    repository = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": f"{module.parent}:{repository}"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    hour = folder / "fleet_hours" / "cluster=dc1" / "hour=2026-10-01T10Z"
    (leftover,) = hour.glob("*.tmp")
    back = lake.read("fleet_hours", "dc1", H10)
    assert back is not None
    assert back.num_rows == 1
    assert lake.connect().sql("SELECT count(*) FROM fleet_hours").fetchall() == [(1,)]

    lake.write("fleet_hours", "dc1", H10, fleet())
    assert leftover.exists(), "it could belong to a writer at work"
    old = time.time() - LEFTOVER_SECONDS - 1
    os.utime(leftover, (old, old))
    lake.write("fleet_hours", "dc1", H10, fleet())
    assert [path.name for path in hour.iterdir()] == ["data.parquet"]


def test_a_broken_file_is_named(in_folder: Lake, folder: Path) -> None:
    lake = in_folder
    lake.write("fleet_hours", "dc1", H10, fleet())
    path = folder / "fleet_hours" / "cluster=dc1" / "hour=2026-10-01T10Z" / "data.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FinopsError, match=r"hour=2026-10-01T10Z/data\.parquet cannot be read"):
        lake.read("fleet_hours", "dc1", H10)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        FinopsError,
        match=r"fleet_hours/cluster=dc1/hour=2026-10-01T10Z/data\.parquet cannot be written: Not a directory",
    ):
        Lake(tmp_path / "file").write("fleet_hours", "dc1", H10, fleet())


def test_views_have_cluster_and_hour(lake: Lake) -> None:
    for hour in range(5):
        start = H10 + hour * HOUR_MS
        lake.write("fleet_hours", "a b/c", start, fleet("a b/c", start))
        lake.write("dcgm_series", "a b/c", start, series([1.0, 2.0]))
    connection = lake.connect()
    query = (
        "SELECT cluster, epoch_ms(hour), metric, len(\"values\") FROM dcgm_series WHERE hour = '2026-10-01 11:00:00Z'"
    )
    assert connection.sql(query).fetchall() == [("a b/c", H10 + HOUR_MS, "M", 2)]
    money = connection.sql("SELECT hour, visible FROM fleet_hours ORDER BY hour").to_arrow_table()
    assert money["visible"].to_pylist() == [Decimal("3600.000")] * 5
    assert str(money["hour"].type) == "timestamp[us, tz=UTC]"


def test_a_filter_on_the_hour_opens_only_the_files_it_needs(in_folder: Lake) -> None:
    for hour in range(5):
        in_folder.write("dcgm_series", "dc1", H10 + hour * HOUR_MS, series([1.0]))
    query = "EXPLAIN ANALYZE SELECT * FROM dcgm_series WHERE hour = '2026-10-01 11:00:00Z'"
    assert "Scanning Files: 1/5" in in_folder.connect().sql(query).fetchall()[0][1]


def test_a_view_has_the_same_columns_with_and_without_files_in_a_folder_and_in_a_bucket(
    in_folder: Lake, in_bucket: Lake, tmp_path: Path
) -> None:
    without = [Lake(tmp_path / "empty"), Lake(f"s3://lakes/{tmp_path.name}/empty")]
    for table, schema in TABLES.items():
        for lake in (in_folder, in_bucket):
            lake.write(table, "dc1", H10, schema.empty_table())
    connections = [lake.connect() for lake in (in_folder, in_bucket, *without)]
    for table in TABLES:
        described = [connection.sql(f"DESCRIBE {table}").fetchall() for connection in connections]
        assert described == [described[0]] * 4, table
        assert [connection.sql(f"SELECT * FROM {table}").fetchall() for connection in connections] == [[]] * 4


def test_duckdb_loads_nothing_from_outside(lake: Lake) -> None:
    with pytest.raises(duckdb.Error):
        lake.connect().sql("SELECT * FROM read_parquet('https://localhost:1/x.parquet')")
