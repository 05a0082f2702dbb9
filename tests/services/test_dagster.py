"""Dagster itself: schedules, a backfill through the API of a real `dagster dev`, and ranges against single hours."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from finops_pipeline.assets.events import usage_events
from finops_pipeline.commands.runner import INSTANCE_SETTINGS
from finops_pipeline.definitions import HOURLY, KEY, definitions, hourly_schedule, monthly_schedule
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Site, open_site
from finops_pipeline.resources.source import BundleSource, LiveSource, Source
from finops_pipeline.settings import load_settings
from tests.databases import Databases
from tests.doors import FileDoor
from tests.services.conftest import Run
from tests.services.dagster_server import DagsterServer
from tests.services.small_day import DAY, HOUR, a_day

SIX_HOURS = [DAY + hour * HOUR for hour in range(11, 17)]
"""Of the demo: a price rises, a node's scrapes fail, a card fails and a job is placed again."""
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
LOCATION = {"repositoryName": "__repository__", "repositoryLocationName": "finops_pipeline.definitions"}
VOLATILE = {"seq", "booked_at", "published_at", "run_id", "computed_at", "recorded_at"}
RESULTS = ("gpu_samples", "gpu_usage", "fleet_hours", "gpu_cost_allocation", "hour_runs", "usage_events", "quarantine")


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.fresh()


@pytest.fixture(scope="module", autouse=True)
def server(demo: Path, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    """Started with the first test of this module, needed by the last: it is slow to get ready."""
    folder = tmp_path_factory.mktemp("dagster")
    home = folder / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_SETTINGS, home / "dagster.yaml")
    settings = {"FINOPS_HOME": str(folder), "FINOPS_BUNDLE": str(demo), "EAI_DATABASE_URL": database_url}
    with DagsterServer(home, settings) as started:
        yield started
    assert started.processes() == []


@pytest.fixture(scope="module")
def backfill(server: DagsterServer) -> str:
    """A backfill of six hours, launched; the daemon looks for new ones every 30 seconds."""
    server.wait()
    return launch(server, SIX_HOURS)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, as a daemon has: a schedule opens it again."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


def requests_of(
    schedule: dg.ScheduleDefinition, at: datetime, instance: dg.DagsterInstance
) -> dg.ScheduleExecutionData:
    context = dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, repository_def=definitions.get_repository_def()
    )
    return schedule.evaluate_tick(context)


def computed(instance: dg.DagsterInstance, hours: list[datetime]) -> None:
    for hour in hours:
        event = dg.AssetMaterialization(usage_events.key, partition=f"{hour:{KEY}}")
        instance.report_runless_asset_event(event)


def hours_before(tick: datetime, count: int = 48) -> list[datetime]:
    end = tick.replace(minute=0)
    return [end - back * HOUR for back in range(count, 0, -1)]


def spans(data: dg.ScheduleExecutionData) -> list[tuple[str, str]]:
    """First and last hour of each requested run."""
    assert data.run_requests is not None
    found = []
    for request in data.run_requests:
        if request.partition_key is not None:
            found.append((request.partition_key, request.partition_key))
        else:
            first, last = (request.tags[name] for name in RANGE_TAGS)
            found.append((first, last))
    return found


TICK = datetime(2026, 10, 3, 12, 10, tzinfo=UTC)


def test_the_first_tick_of_an_installation_asks_for_the_hour_that_has_ended(stored: dg.DagsterInstance) -> None:
    data = requests_of(hourly_schedule, TICK, stored)
    assert spans(data) == [("2026-10-03-11:00", "2026-10-03-11:00")]


def test_a_tick_after_long_downtime_looks_back_two_days(stored: dg.DagsterInstance) -> None:
    computed(stored, [DAY - 300 * HOUR])
    data = requests_of(hourly_schedule, TICK, stored)
    assert spans(data) == [
        ("2026-10-01-12:00", "2026-10-03-10:00"),
        ("2026-10-03-11:00", "2026-10-03-11:00"),
    ], "the newest hour does not wait for older ones, whose readings may be gone"


def test_a_tick_as_usual_asks_for_the_hour_that_has_ended(stored: dg.DagsterInstance) -> None:
    computed(stored, hours_before(TICK)[:-1])
    data = requests_of(hourly_schedule, TICK, stored)
    assert spans(data) == [("2026-10-03-11:00", "2026-10-03-11:00")]
    assert data.run_requests is not None
    assert data.run_requests[0].run_key is not None


def test_a_tick_with_all_computed_skips(stored: dg.DagsterInstance) -> None:
    computed(stored, hours_before(TICK))
    data = requests_of(hourly_schedule, TICK, stored)
    assert not data.run_requests
    assert data.skip_message is not None
    assert "2026-10-03-12:00" in data.skip_message


def test_a_tick_after_downtime_asks_for_each_hole(stored: dg.DagsterInstance) -> None:
    hours = hours_before(TICK)
    computed(stored, [hour for index, hour in enumerate(hours) if index not in {0, 20, 21, 22, 46, 47}])
    assert spans(requests_of(hourly_schedule, TICK, stored)) == [
        ("2026-10-02-08:00", "2026-10-02-10:00"),
        ("2026-10-03-10:00", "2026-10-03-10:00"),
        ("2026-10-03-11:00", "2026-10-03-11:00"),
    ], "what is before the first computed hour is for a backfill"


def test_the_same_tick_twice_asks_for_the_same_runs_and_the_next_for_others(stored: dg.DagsterInstance) -> None:
    def keys(at: datetime) -> list[str | None]:
        return [request.run_key for request in requests_of(hourly_schedule, at, stored).run_requests or []]

    assert keys(TICK) == keys(TICK)
    assert not set(keys(TICK)) & set(keys(TICK + HOUR)), "a failed hour is tried again at the next tick"


def test_a_tick_around_the_change_of_month_and_year(stored: dg.DagsterInstance) -> None:
    tick = datetime(2027, 1, 1, 0, 10, tzinfo=UTC)
    computed(stored, hours_before(tick)[:-2])
    assert spans(requests_of(hourly_schedule, tick, stored)) == [
        ("2026-12-31-22:00", "2026-12-31-22:00"),
        ("2026-12-31-23:00", "2026-12-31-23:00"),
    ]


@pytest.mark.parametrize(
    ("tick", "month"),
    [
        (datetime(2026, 11, 2, 3, tzinfo=UTC), "2026-10-01"),
        (datetime(2027, 1, 2, 3, tzinfo=UTC), "2026-12-01"),
        (datetime(2028, 3, 2, 3, tzinfo=UTC), "2028-02-01"),
    ],
)
def test_the_monthly_tick_asks_for_the_month_before(tick: datetime, month: str, stored: dg.DagsterInstance) -> None:
    assert spans(requests_of(monthly_schedule, tick, stored)) == [(month, month)]


def test_a_day_in_one_run_is_what_24_runs_of_an_hour_are(
    databases: Databases, run_into: Run, tmp_path: Path, backfill: str
) -> None:
    """`backfill` is here because it takes as long as this test, in other processes."""
    bundle = a_day(tmp_path / "bundle")
    whole, parts = databases.fresh(), databases.fresh()
    with live_site_of(bundle, whole, tmp_path / "whole") as site:
        outcome = run_into(site, DAY, DAY + 24 * HOUR, tmp_path / "out" / "whole")
        assert outcome.cluster_hours == 24
        assert outcome.estimated_share > 0
    with live_site_of(bundle, parts, tmp_path / "parts") as site:
        booked = sum(run_into(site, hour, hour + HOUR).booked for hour in (DAY + n * HOUR for n in range(24)))
        assert booked == outcome.booked
        assert run_into(site, DAY, DAY + 24 * HOUR, tmp_path / "out" / "parts").booked == 0
    assert published(parts) == published(whole)
    for name in ("gpu_usage.csv", "allocation.csv", "fleet.csv", "gpu_allocation.json", "quarantine.csv"):
        assert (tmp_path / "out" / "parts" / name).read_text() == (tmp_path / "out" / "whole" / name).read_text(), name


def test_a_backfill_through_the_api_is_one_run_and_equals_runs_in_process(
    server: DagsterServer,
    backfill: str,
    demo: Path,
    databases: Databases,
    database_url: str,
    run_into: Run,
    tmp_path: Path,
) -> None:
    in_process = databases.fresh()
    with site_of(demo, in_process, tmp_path / "home") as site:
        for hour in SIX_HOURS:
            run_into(site, hour, hour + HOUR)
    status, runs = finished(server, backfill)
    assert status == "COMPLETED_SUCCESS", server.log.read_text()[-3000:]
    assert [run["status"] for run in runs] == ["SUCCESS"], "six hours are one run"
    tags = {tag["key"]: tag["value"] for tag in runs[0]["tags"]}
    assert [tags[name] for name in RANGE_TAGS] == ["2026-10-01-11:00", "2026-10-01-16:00"]
    assert published(database_url) == published(in_process)


def test_schedules_are_loaded_running_and_ask_for_what_is_left(server: DagsterServer, backfill: str) -> None:
    finished(server, backfill)
    found = server.ask(
        """query($of: RepositorySelector!) { schedulesOrError(repositorySelector: $of) {
            ... on Schedules { results { name cronSchedule executionTimezone scheduleState { status } } } } }""",
        of=LOCATION,
    )["schedulesOrError"]["results"]
    assert {(s["name"], s["cronSchedule"], s["executionTimezone"], s["scheduleState"]["status"]) for s in found} == {
        ("hourly_schedule", "10 * * * *", "UTC", "RUNNING"),
        ("monthly_schedule", "0 3 2 * *", "UTC", "RUNNING"),
    }
    tick = server.ask(
        """mutation($of: ScheduleSelector!, $at: Float) { scheduleDryRun(selectorData: $of, timestamp: $at) {
            ... on DryRunInstigationTick { evaluationResult { skipReason error { message }
              runRequests { tags { key value } } } } } }""",
        of={**LOCATION, "scheduleName": "hourly_schedule"},
        at=(DAY + 1000 * HOUR + timedelta(minutes=10)).timestamp(),
    )["scheduleDryRun"]["evaluationResult"]
    assert tick["error"] is None
    earlier, newest = ({tag["key"]: tag["value"] for tag in asked["tags"]} for asked in tick["runRequests"])
    assert [earlier[name] for name in RANGE_TAGS] == ["2026-10-01-17:00", "2026-10-01-22:00"], "after the backfill"
    assert newest["dagster/partition"] == "2026-10-01-23:00"


def test_an_interrupt_in_a_statement_is_not_hidden_by_the_rollback(databases: Databases) -> None:
    """Dagster's interrupt is no KeyboardInterrupt, on which psycopg would cancel the statement."""
    database = Database(databases.fresh())

    def interrupt(_signal: int, _frame: object) -> None:
        raise DagsterExecutionInterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(DagsterExecutionInterruptedError), database.transaction() as connection:
            connection.execute("SELECT pg_sleep(20)")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert database.query("SELECT 1 AS one")["one"].to_pylist() == [1]
    database.close()


def launch(server: DagsterServer, hours: list[datetime]) -> str:
    assets = [{"path": list(asset.key.path)} for asset in HOURLY]
    answer = server.ask(
        """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
            __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
        params={"assetSelection": assets, "partitionNames": [f"{hour:{KEY}}" for hour in hours]},
    )["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return str(answer["backfillId"])


def finished(server: DagsterServer, backfill: str, seconds: float = 200) -> tuple[str, list[dict[str, Any]]]:
    """Status of a backfill once it is over, and its runs."""
    deadline = time.monotonic() + seconds
    while True:
        found = server.ask(
            """query($id: String!) {
              partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
              runsOrError(filter: {tags: [{key: "dagster/backfill", value: $id}]}) {
                ... on Runs { results { status tags { key value } } } } }""",
            id=backfill,
        )
        status = found["partitionBackfillOrError"]["status"]
        if status != "REQUESTED" or time.monotonic() > deadline:
            return status, found["runsOrError"]["results"]
        time.sleep(1)


def site_of(bundle: Path, database_url: str, home: Path) -> AbstractContextManager[Site]:
    settings = load_settings({"FINOPS_HOME": str(home), "EAI_DATABASE_URL": database_url})
    return open_site(settings, bundle)


def live_source(source: Source) -> LiveSource:
    """A bundle's inputs, whose readings are asked for as a Prometheus is."""
    assert isinstance(source, BundleSource)
    return LiveSource({source.bundle.cluster: FileDoor(source.readings)}, source.database, source.clock)


@contextmanager
def live_site_of(bundle: Path, database_url: str, home: Path) -> Iterator[Site]:
    """A site that treats the bundle's files as it would a Prometheus: what has landed is not asked for again."""
    with site_of(bundle, database_url, home) as site:
        yield replace(site, source=live_source(site.source))


def published(database_url: str) -> dict[str, list[str]]:
    """All rows that runs have written, without what differs from run to run."""
    database = Database(database_url)
    found = {}
    for table in RESULTS:
        where = " WHERE usage_type <> 'llm'" if table == "usage_events" else ""
        rows = database.query(f"SELECT * FROM eai.{table}{where}").to_pylist()
        found[table] = sorted(
            repr(sorted((name, value) for name, value in row.items() if name not in VOLATILE)) for row in rows
        )
    database.close()
    assert all(found[table] for table in RESULTS if table != "quarantine")
    return found
