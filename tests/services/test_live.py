"""The live path: a real Prometheus and a real Postgres give the same bytes as the files they were loaded from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import with_constant
from finops_pipeline.resources.prometheus.client import PrometheusDoor
from finops_pipeline.resources.site import Site, open_site
from finops_pipeline.resources.source import LiveSource
from finops_pipeline.settings import load_settings
from tests.databases import Databases
from tests.services.conftest import Run
from tests.services.prometheus_server import (
    Answer,
    FaultProxy,
    PrometheusServer,
    Request,
    failure,
    free_port,
    load_blocks,
)

CASES = (
    "01-shared-server-70-30",
    "03-ten-minute-gap",
    "04-gap-across-the-hour",
    "06-honor-labels-false",
    "07-duplicates-and-the-edge",
    "08-blanks-and-garbage",
    "10-time-slicing",
    "16-counter-reset",
    "21-three-hour-outage",
)
FILES = ("gpu_usage.csv", "allocation.csv", "fleet.csv", "gpu_allocation.json", "quarantine.csv", "usage_events.jsonl")
EXACT = FILES[:4]
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
HOUR = timedelta(hours=1)
WRITTEN = ("gpu_samples", "gpu_usage", "fleet_hours", "gpu_cost_allocation", "usage_events", "hour_runs")
"""Tables that a run writes."""


@dataclass(frozen=True)
class Live:
    """A case's bundle, and the services that were loaded with it."""

    bundle: Bundle
    home: Path
    database_url: str
    prometheus: PrometheusServer

    @contextmanager
    def site(self, now: datetime | None = None, url: str | None = None, attempts: int = 5) -> Iterator[Site]:
        """The installation that the environment describes, at `now` (the bundle's by default)."""
        tables = self.home / "accounting.toml"
        text = (self.bundle.folder / "bundle.toml").read_text()
        tables.write_text(text[text.index("\n[") :])
        settings = load_settings(
            {
                "FINOPS_HOME": str(self.home),
                "EAI_DATABASE_URL": self.database_url,
                "FINOPS_PROMETHEUS_URLS": f"{self.bundle.cluster}={url or self.prometheus.url}",
                "FINOPS_PLATFORM_TENANT": PLATFORM,
                "FINOPS_PROMETHEUS_PATIENCE_SECONDS": "0",
                "FINOPS_WINDOW_SECONDS": str(self.bundle.window_seconds),
                "FINOPS_CONFIG": str(tables),
            }
        )
        at = now or self.bundle.now
        assert at is not None
        stopped = round(at.timestamp() * 1000)
        with open_site(settings) as site:
            doors = {}
            assert isinstance(site.source, LiveSource)
            for name, door in site.source.doors.items():
                assert isinstance(door, PrometheusDoor)
                doors[name] = replace(door, attempts=attempts, backoff=0.01)
            yield replace(site, source=replace(site.source, clock=lambda: stopped, doors=doors))


@contextmanager
def loaded(case: Path, databases: Databases, folder: Path) -> Iterator[Live]:
    """A Prometheus and a database as the platform would have filled them: rows without a cluster."""
    bundle, url = Bundle.open(case), databases.fresh()
    database = Database(url)
    with database.transaction() as connection:
        for name, rows in bundle.platform().items():
            match name:
                case "allocation_policies":
                    database.add_policies(connection, rows.to_pylist(), name)
                case "token_usage":
                    events = with_constant(with_constant(rows, "usage_type", "llm"), "source", "gateway")
                    database.copy(connection, "usage_events", events)
                case "gpu_inventory":
                    database.copy(connection, name, with_constant(rows, "cluster", bundle.cluster))
                case _:
                    database.copy(connection, name, rows)
    database.close()
    (folder / "home").mkdir()
    load_blocks(case / "dcgm.om.gz", folder / "prometheus")
    with PrometheusServer(folder / "prometheus") as prometheus:
        yield Live(bundle, folder / "home", url, prometheus)


@pytest.fixture
def live(request: pytest.FixtureRequest, cases: Path, databases: Databases, tmp_path: Path) -> Iterator[Live]:
    """The services of the case that the test asks for by its parameter."""
    with loaded(cases / request.param, databases, tmp_path) as found:
        yield found


def of_case(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("live", [name], indirect=True)


@pytest.mark.parametrize("live", CASES, indirect=True)
def test_same_bytes_as_from_files(live: Live, cases: Path, databases: Databases, run_into: Run, tmp_path: Path) -> None:
    span = live.bundle.start, live.bundle.end
    with live.site() as site:
        outcome = run_into(site, *span, tmp_path / "live")
        assert run_into(site, *span).booked == 0, "the same inputs book nothing twice (A32)"
    settings = load_settings({"FINOPS_HOME": str(tmp_path / "files"), "EAI_DATABASE_URL": databases.fresh()})
    with open_site(settings, live.bundle.folder) as site:
        assert run_into(site, *span, tmp_path / "from_files") == outcome
    for name in FILES:
        assert (tmp_path / "live" / name).read_bytes() == (tmp_path / "from_files" / name).read_bytes(), name
    for name in EXACT:
        expected = live.bundle.folder / "expected" / name
        assert (tmp_path / "live" / name).read_bytes() == expected.read_bytes(), name


@of_case("04-gap-across-the-hour")
def test_hour_by_hour_as_time_passes_the_ledger_comes_to_the_same(live: Live, run_into: Run, tmp_path: Path) -> None:
    first, past = live.bundle.start, live.bundle.end
    for hour in hours(first, past):
        with live.site(now=hour + HOUR + timedelta(minutes=2)) as site:
            outcome = run_into(site, hour, hour + HOUR)
            assert outcome.booked > 0
            if hour == first:
                assert outcome.provisional == 1, "no later reading has closed the gap yet (A16)"
    with live.site() as site:
        outcome = run_into(site, first, past, tmp_path / "out")
        assert outcome.provisional == 0
        assert outcome.booked > 0, "closing the gap changed the first hour"
        for name in EXACT:
            assert (tmp_path / "out" / name).read_bytes() == (live.bundle.folder / "expected" / name).read_bytes(), name
        assert ledger_sums(site.database) == allocation_sums(site.database)


@of_case("03-ten-minute-gap")
def test_prometheus_down_is_one_line_and_leaves_nothing(live: Live, run_into: Run) -> None:
    live.prometheus.stop()
    with live.site(attempts=2) as site:
        with pytest.raises(FinopsError) as error:
            run_into(site, live.bundle.start, live.bundle.end)
        assert counts(site.database) == dict.fromkeys(WRITTEN, 0)
    message = str(error.value)
    assert message.startswith(f"cluster {live.bundle.cluster}: Prometheus at {live.prometheus.url}: ")
    assert "refused" in message
    assert "\n" not in message
    assert error.value.exit_code == 1


@of_case("01-shared-server-70-30")
def test_a_run_that_fails_halfway_publishes_nothing_and_can_be_repeated(
    live: Live, run_into: Run, tmp_path: Path
) -> None:
    span = live.bundle.start, live.bundle.end
    assert len(hours(*span)) == 2
    second = (live.bundle.start + HOUR).timestamp()

    def fault(request: Request, real: Callable[[], Answer]) -> Answer:
        asked = parse_qs(urlsplit(request.path).query).get("time", ["0"])[0]
        return failure(503, "unavailable", "the disk is full") if float(asked) > second else real()

    with FaultProxy(live.prometheus.url, fault) as proxy, live.site(url=proxy.url, attempts=2) as site:
        with pytest.raises(FinopsError, match=r"503 .*disk is full"):
            run_into(site, *span)
        assert site.lake.hours("dcgm_series", live.bundle.cluster), "the first hour has landed"
        assert counts(site.database) == dict.fromkeys(WRITTEN, 0)
    with live.site() as site:
        run_into(site, *span, tmp_path / "out")
    for name in EXACT:
        assert (tmp_path / "out" / name).read_bytes() == (live.bundle.folder / "expected" / name).read_bytes(), name


@of_case("03-ten-minute-gap")
def test_an_hour_beyond_retention_is_an_error_also_after_its_neighbours_were_computed(
    live: Live, run_into: Run
) -> None:
    gone = live.bundle.start - 3 * HOUR
    with live.site() as site:
        for _ in range(2):
            with pytest.raises(FinopsError, match="older than its retention") as error:
                run_into(site, gone, gone + HOUR)
            assert error.value.exit_code == 1
            assert live.bundle.cluster in str(error.value)
            run_into(site, live.bundle.start, live.bundle.end)
        assert counts(site.database)["hour_runs"] == 1


@of_case("03-ten-minute-gap")
def test_what_has_landed_is_recomputed_after_prometheus_has_forgotten_it(
    live: Live, run_into: Run, tmp_path: Path
) -> None:
    span = live.bundle.start, live.bundle.end
    with live.site() as site:
        run_into(site, *span)
    with PrometheusServer(tmp_path / "empty") as empty, live.site(url=empty.url) as site:
        assert run_into(site, *span, tmp_path / "out").booked == 0
    for name in EXACT:
        assert (tmp_path / "out" / name).read_bytes() == (live.bundle.folder / "expected" / name).read_bytes(), name


@of_case("03-ten-minute-gap")
def test_an_unreachable_cluster_stops_the_others(live: Live, run_into: Run) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with live.site(url=f"{live.prometheus.url},edge={dead}", attempts=1) as site:
        with pytest.raises(FinopsError, match=f"cluster edge: Prometheus at {dead}"):
            run_into(site, live.bundle.start, live.bundle.end)
        assert counts(site.database) == dict.fromkeys(WRITTEN, 0)


def hours(first: datetime, past: datetime) -> list[datetime]:
    return [first + index * HOUR for index in range((past - first) // HOUR)]


def counts(database: Database) -> dict[str, int]:
    """Rows of the tables that a run writes; the gateway's events are not among them."""
    return {
        table: int(
            database.query(
                f"SELECT count(*) AS n FROM eai.{table}"
                + (" WHERE usage_type <> 'llm'" if table == "usage_events" else "")
            )["n"][0].as_py()
        )
        for table in WRITTEN
    }


Sums = dict[tuple[str, ...], tuple[Decimal, ...]]
KEY = "period_start, workload_id, coalesce(gpu_model, ''), deployment_id, tenant_id::text, usage_type"
UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")


def ledger_sums(database: Database) -> Sums:
    """Units and cost by key, over all revisions (A32)."""
    return sums(database, f"SELECT {KEY}, {summed('cost_amount')} FROM eai.usage_events WHERE usage_type <> 'llm'")


def allocation_sums(database: Database) -> Sums:
    key = KEY.replace("period_start", "hour")
    return sums(database, f"SELECT {key}, {summed('amount')} FROM eai.gpu_cost_allocation")


def summed(amount: str) -> str:
    return ", ".join(f"coalesce(sum({name}), 0)" for name in (*UNITS, amount))


def sums(database: Database, statement: str) -> Sums:
    with database.transaction(snapshot=True) as connection:
        rows = connection.execute(statement + " GROUP BY 1, 2, 3, 4, 5, 6").fetchall()
    assert rows
    return {
        tuple(str(value.astimezone(UTC) if isinstance(value, datetime) else value) for value in row[:6]): tuple(row[6:])
        for row in rows
    }
