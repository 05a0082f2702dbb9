"""A run killed at any point, or robbed of its database, is repaired by the next one: the results are the same bytes.

Each run is a process of its own, forked from this one, so that SIGKILL is a real one and the imports are paid once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from finops_pipeline.accounting.money.closing import Life
from finops_pipeline.assets.events import refuse_conflicts
from finops_pipeline.commands.closing import Request, close_month
from finops_pipeline.commands.export import export
from finops_pipeline.commands.runner import booked_since, run_hours
from finops_pipeline.errors import FinopsError, UsageError
from finops_pipeline.resources.failpoints import VARIABLE
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.database import open_database
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.site import open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases

CASE = "24-idle-policies-and-weights"
POINTS = (
    "series landed",
    "records half landed",
    "gpu_samples landed",
    "fleet_states landed",
    "gpu_sample_runs replaced",
    "usage landed",
    "gpu_usage replaced",
    "allocation landed",
    "allocation replaced",
    "events booked",
    "hour audited",
    "hour published",
    "statement stored",
)
"""Every kind of place between two writes of a run: before, in and after each of its transactions."""
FORK = multiprocessing.get_context("fork")


def compute(bundle: Path, home: Path, url: str, out: Path) -> None:
    """Run the bundle in this process and write its files; the events are all that are booked."""
    settings = load_settings({"FINOPS_HOME": str(home), "EAI_DATABASE_URL": url})
    with open_site(settings, bundle) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        span = site.source.span
        outcome = run_hours(site, instance, *span)
        export(site, *span, outcome.months, booked_since(site, 0), out)


def in_a_process(work: Callable[..., None], *given: Any, point: str = "") -> int:
    """Exit code of `work` in a forked process that dies at `point`; below 0 is a signal."""

    def run() -> None:
        os.environ[VARIABLE] = point
        work(*given)

    process = FORK.Process(target=run)
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
        pytest.fail("the run did not end within two minutes")
    return int(process.exitcode)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture(scope="module")
def undisturbed(cases: Path, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert in_a_process(compute, cases / CASE, folder / "home", databases.fresh(), folder / "out") == 0
    found = files(folder / "out")
    assert found["usage_events.jsonl"]
    return found


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_is_repaired_by_the_next(
    point: str, cases: Path, databases: Databases, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    given = (cases / CASE, tmp_path / "home", databases.fresh(), tmp_path / "out")
    assert in_a_process(compute, *given, point=point) == -signal.SIGKILL, f"nothing died at {point!r}"
    assert not (tmp_path / "out").exists()
    assert in_a_process(compute, *given) == 0
    assert files(tmp_path / "out") == undisturbed


def test_two_processes_on_one_hour_book_it_once(
    cases: Path, databases: Databases, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    url = databases.fresh()
    runs = [
        FORK.Process(target=compute, args=(cases / CASE, tmp_path / "home", url, tmp_path / f"out{number}"))
        for number in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(120)
    assert [run.exitcode for run in runs] == [0, 0]
    assert files(tmp_path / "out0") == undisturbed
    assert files(tmp_path / "out1") == undisturbed


def test_a_connection_cut_while_events_are_booked_is_a_failed_run_that_the_next_repairs(
    cases: Path, databases: Databases, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    url = databases.fresh()
    given = (cases / CASE, tmp_path / "home", url, tmp_path / "out")
    admin = databases.admin(url)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(CUT)
    assert in_a_process(compute, *given) != 0
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("DROP FUNCTION cut() CASCADE")
    assert in_a_process(compute, *given) == 0
    assert files(tmp_path / "out") == undisturbed


CUT = """
    CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
    CREATE TRIGGER cut AFTER INSERT ON eai.usage_events EXECUTE FUNCTION cut()
"""
"""Ends every connection as soon as it has written events, whatever else the machine does."""


def test_a_server_stopped_at_once_in_the_middle_loses_nothing_that_was_published(
    cases: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """The embedded server dies without a checkpoint while a run is in it, and recovers when the next run starts it."""
    home, out = tmp_path / "home", tmp_path / "out"
    run = FORK.Process(target=_compute_embedded, args=(cases / CASE, home, out))
    run.start()
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    _wait_for((home / "lake" / "gpu_usage").exists)
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)
    run.join(120)
    assert run.exitcode != 0
    assert in_a_process(_compute_embedded, cases / CASE, home, out) == 0
    assert files(out) == undisturbed


def _compute_embedded(bundle: Path, home: Path, out: Path) -> None:
    settings = load_settings({"FINOPS_HOME": str(home)})
    with open_site(settings, bundle) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        span = site.source.span
        outcome = run_hours(replace(site), instance, *span)
        export(site, *span, outcome.months, booked_since(site, 0), out)


def _wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "what was waited for did not happen"
        time.sleep(0.005)


def test_other_content_under_a_known_id_stops_the_run_and_shows_both_hashes(
    cases: Path, databases: Databases, tmp_path: Path
) -> None:
    """The same id and another hash: nothing is booked (A31)."""
    url = databases.fresh()
    settings = load_settings({"FINOPS_HOME": str(tmp_path / "home"), "EAI_DATABASE_URL": url})
    with open_site(settings, cases / CASE) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        span = site.source.span
        run_hours(site, instance, *span)
        booked = site.database.query(
            "SELECT event_id, content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' ORDER BY seq LIMIT 1"
        ).to_pylist()[0]
        other = {"event_id": booked["event_id"], "content_sha256": "f" * 64}
        with (
            pytest.raises(FinopsError) as error,
            site.database.transaction() as connection,
        ):
            refuse_conflicts(site.database, connection, [other])
    assert booked["content_sha256"] in str(error.value)
    assert "f" * 64 in str(error.value)


def test_production_refuses_a_login_that_row_level_security_does_not_bind(databases: Databases) -> None:
    url = databases.fresh()
    with open_database(load_settings({"FINOPS_PRODUCTION": "true", "EAI_DATABASE_URL": url})) as database:
        assert database.query("SELECT 1 AS one")["one"].to_pylist() == [1]
    privileged = {"FINOPS_PRODUCTION": "true", "EAI_DATABASE_URL": databases.admin(url)}
    with pytest.raises(UsageError, match="is a superuser"), open_database(load_settings(privileged)):
        pass


CLOSED = "01-shared-server-70-30"
MONTH = "2026-10"


def close(bundle: Path, home: Path, url: str) -> None:
    """Close the month of a bundle whose hours are computed, in this process."""
    settings = load_settings({"FINOPS_HOME": str(home), "EAI_DATABASE_URL": url})
    with open_site(settings, bundle) as site:
        assert site.source.span is not None
        began, ended = (int(instant.timestamp()) * 1000 for instant in site.source.span)
        asked = Request(MONTH, clusters=site.source.clusters, lives={site.source.clusters[0]: Life(began, ended)})
        closing = close_month(site.database, asked, datetime(2026, 11, 2, tzinfo=UTC))
        assert closing.status == "final", closing.text


def statement_of(url: str) -> dict[str, Any]:
    database = Database(url)
    try:
        return read_statement(database, MONTH)
    finally:
        database.close()


@pytest.mark.parametrize("point", ["final statement stored", "month closed"])
def test_a_month_whose_close_was_killed_is_open_and_closes_to_the_same_statement(
    point: str, cases: Path, databases: Databases, tmp_path: Path
) -> None:
    given = (cases / CLOSED, tmp_path / "home", databases.fresh())
    assert in_a_process(compute, *given, tmp_path / "out") == 0
    computed = statement_of(given[2])
    assert computed["status"] == "open"
    assert in_a_process(close, *given, point=point) == -signal.SIGKILL
    assert statement_of(given[2]) == computed
    assert in_a_process(close, *given) == 0
    assert statement_of(given[2]) == computed | {"status": "final"}
    assert in_a_process(close, *given) == 0, "closing a final month again changes nothing"


def test_a_full_disk_is_one_clear_line_and_the_next_run_repairs_it(
    cases: Path, databases: Databases, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """FINOPS_HOME lies on a file system of a quarter of a megabyte, in a mount namespace of the run's own."""
    home, url = tmp_path / "home", databases.fresh()
    home.mkdir()
    finops = Path(sys.executable).with_name("finops")
    command = f'mount -t tmpfs -o size=256k tmpfs "{home}" && exec "{finops}" run --bundle "{cases / CASE}"'
    alone = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*alone, "sh", "-c", command],
        env=os.environ | {"FINOPS_HOME": str(home), "EAI_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("finops: ")
    assert "No space left on device" in said or "make room" in said
    assert "Traceback" not in done.stderr
    assert in_a_process(compute, cases / CASE, home, url, tmp_path / "out") == 0
    assert files(tmp_path / "out") == undisturbed


def write_entries(url: str, writer: int) -> None:
    database = Database(url)
    for number in range(20):
        with database.transaction() as connection:
            database.append_audit(connection, "test.entry", {"writer": writer, "number": number}, datetime.now(UTC))
    database.close()


def test_eight_writers_leave_one_unbroken_chain(databases: Databases) -> None:
    url = databases.fresh()
    writers = [FORK.Process(target=write_entries, args=(url, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 8
    database = Database(url)
    chain = database.query("SELECT seq, previous_sha256, entry_sha256 FROM eai.audit_events ORDER BY seq").to_pylist()
    database.close()
    assert [entry["seq"] for entry in chain] == list(range(1, 161))
    assert [entry["previous_sha256"] for entry in chain[1:]] == [entry["entry_sha256"] for entry in chain[:-1]]
