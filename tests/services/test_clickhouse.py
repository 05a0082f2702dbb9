"""The ClickHouse replica: the real engine (chDB) in process, and behind the real HTTP client."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import dagster as dg
import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr

from finops_pipeline.assets.replica import AGREES
from finops_pipeline.commands.runner import run_hours, run_replica
from finops_pipeline.contracts.clickhouse import COLUMNS, EVENTS, NOTES, SUMMED, VIEWS, Kind
from finops_pipeline.definitions import definitions, replica_sensor
from finops_pipeline.errors import FinopsError, SourceError, UsageError
from finops_pipeline.resources.clickhouse import client as clickhouse
from finops_pipeline.resources.clickhouse import ledger_source, replication
from finops_pipeline.resources.clickhouse.client import ClickHouse, Replica
from finops_pipeline.resources.clickhouse.ledger_source import Day
from finops_pipeline.resources.clickhouse.replication import NOTHING, rebuild, status, sync
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases
from tests.services.clickhouse_front import ClickHouseFront
from tests.services.prometheus_server import own_certificate

ALICE = "a0000000-0000-4000-8000-00000000000a"
BOB = "b0000000-0000-4000-8000-00000000000b"
CAROL = "c0000000-0000-4000-8000-00000000000c"
STRANGER = "d0000000-0000-4000-8000-00000000000d"
PASSWORD = "hunter2/%@:"
CHDB = pytest.mark.parametrize("place", ["chdb"], indirect=True)
"""For a test in which the way to the engine does not matter."""
TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVENT_COLUMNS = {
    **{name: pa.string() for name, kind in COLUMNS.items() if kind in {Kind.TEXT, Kind.UUID}},
    **{name: pa.timestamp("us", tz="UTC") for name, kind in COLUMNS.items() if kind is Kind.INSTANT},
    **{name: pa.string() for name, kind in COLUMNS.items() if kind is Kind.DECIMAL},
    **{name: pa.int64() for name, kind in COLUMNS.items() if kind is Kind.WHOLE},
    "estimated": pa.bool_(),
    "document": pa.string(),
}


def gpu(tenant: str = ALICE, hour: datetime = TEN, **given: Any) -> dict[str, Any]:
    """An event of an hour; its id and document follow from the rest."""
    event = {
        "schema_version": "1.0",
        "occurred_at": hour,
        "period_start": hour,
        "period_end": hour + HOUR,
        "tenant_id": tenant,
        "usage_type": "gpu_local",
        "source": "finops_pipeline",
        "cluster": "prod",
        "workload_id": "w1",
        "deployment_id": "d1",
        "gpu_model": "H100-80GB",
        "basis": "lifecycle",
        "gpu_seconds": "3600.000",
        "gpu_memory_gb_seconds": "1234567.891",
        "energy_wh": "350.123456",
        "cost_amount": "2.123456789",
        "cost_currency": "EUR",
        "allocation_policy_id": "p1",
        "estimated": False,
        "measured_seconds": "3600.000",
        "estimated_seconds": "0.000",
        "missing_seconds": "0",
        "methods": "",
        "revision": 1,
        **given,
    }
    key = [
        str(event[name]) for name in ("cluster", "period_start", "workload_id", "gpu_model", "tenant_id", "revision")
    ]
    event["event_id"] = str(uuid5(NAMESPACE_URL, "|".join(key)))
    event["document"] = json.dumps({name: str(value) for name, value in event.items()}, sort_keys=True)
    event["content_sha256"] = hashlib.sha256(event["document"].encode()).hexdigest()
    return event


def llm(
    event_id: str, tenant: str = BOB, at: datetime = TEN + timedelta(microseconds=1), **given: Any
) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "occurred_at": at,
        "tenant_id": tenant,
        "usage_type": "llm",
        "source": "gateway",
        "input_tokens": 10,
        "output_tokens": 20,
        "cached_tokens": 0,
        **given,
    }


def book(database: Database, events: Sequence[dict[str, Any]], connection: Any = None) -> None:
    names = [name for name in EVENT_COLUMNS if any(name in event for event in events)]
    table = pa.table({name: pa.array([event.get(name) for event in events], EVENT_COLUMNS[name]) for name in names})
    if connection is not None:
        database.copy(connection, "usage_events", table)
        return
    with database.transaction() as own:
        database.copy(own, "usage_events", table)


ODD = [
    gpu(),
    gpu(hour=TEN + 14 * HOUR, tenant=BOB, cost_amount="-0.000000001", revision=2, corrects="x", estimated=True),
    gpu(workload_id="storage:d1", gpu_model=None, storage_gb_hours="100.5", gpu_seconds=None, energy_wh=None),
    gpu(workload_id="unpriced", cost_amount=None, cost_currency=None, allocation_policy_id=None),
    gpu(workload_id="idle:H100", usage_type="gpu_idle", deployment_id="idle", gpu_seconds="0.001", methods="gap=1.500"),
    gpu(workload_id="huge", gpu_memory_gb_seconds="9999999999999999999999999.999999999999", cost_amount="-1e15"),
    gpu(workload_id="w\t'\"\\\n\x1f{x}", deployment_id="Straße ≠ 東京", cost_currency="USD", cost_amount="0.5"),
    gpu(hour=datetime(2026, 12, 31, 23, tzinfo=UTC), tenant=CAROL),
    gpu(hour=datetime(2027, 1, 1, 0, tzinfo=UTC), tenant=CAROL),
    llm("same"),
    llm("same", output_tokens=21, deployment_id=""),
    llm("same", output_tokens=21, deployment_id=None, model_name="m", model_provider="p"),
    llm("late", at=datetime(2026, 9, 30, 23, 59, 59, 999999, tzinfo=UTC), input_tokens=2**62),
]
"""What a copy can get wrong: nulls beside empty texts, signs, digits, month ends, ids that are not unique."""


def quarter(count: int, tenants: Sequence[str] = (ALICE, BOB, CAROL)) -> list[dict[str, Any]]:
    """Events over three months, in the order of their hours, each with its own odd amount."""
    return [
        gpu(
            tenants[n % len(tenants)],
            datetime(2026, 1, 1, tzinfo=UTC) + HOUR * (n * 2160 // count),
            workload_id=f"w{n}",
            deployment_id=f"d{n % 5}",
            cost_amount=f"{n}.{n * 7919 % 10**9:09d}",
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def ledger_url(databases: Databases) -> str:
    return databases.fresh()


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    found = Database(ledger_url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseFront]:
    with ClickHouseFront(tmp_path_factory.mktemp("front"), PASSWORD) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(clickhouse, "WAIT_SECONDS", 0.01)
    if "front" in request.fixturenames:
        request.getfixturevalue("front").faults()


@pytest.fixture
def server(front: ClickHouseFront, ledger_url: str) -> Replica:
    """A database of its own behind HTTP."""
    return Replica("auto", SecretStr(front.url(ledger_url.rpartition("/")[2].partition("?")[0])))


@pytest.fixture(params=["chdb", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Replica:
    if request.param == "http":
        found: Replica = request.getfixturevalue("server")
        return found
    return Replica("auto", folder=tmp_path / "clickhouse")


@pytest.fixture
def replica(place: Replica) -> Iterator[ClickHouse]:
    with place.open() as found:
        yield found


def by_hand(replica: ClickHouse, command: str) -> None:
    replica._command(command, {"mutations_sync": 2})


def forge(replica: ClickHouse, event: dict[str, Any], copied_at: datetime | None = None, seq: int = 999) -> None:
    """Insert a row that the pipeline has not written."""
    row: dict[str, Any] = {"booked_at": TEN, "seq": seq, **{name: event.get(name) for name in COLUMNS if name in event}}
    schema = pa.schema([field for field in ledger_source.ROWS if row.get(field.name) is not None])
    values = {
        field.name: [Decimal(row[field.name]) if pa.types.is_decimal(field.type) else row[field.name]]
        for field in schema
    }
    table = pa.table({name: pa.array(value, schema.field(name).type) for name, value in values.items()})
    copied = pa.array([copied_at or datetime.now(UTC)], pa.timestamp("us", tz="UTC"))
    replica._insert(EVENTS, table.append_column("copied_at", copied))


def raw_count(replica: ClickHouse) -> int:
    return int(replica._rows(f"SELECT count() FROM {EVENTS}")[0][0])


def same_rows(database: Database, replica: ClickHouse) -> None:
    """Every column of every row, value by value."""
    ledger = ledger_source.read(database, 0, 2**62, 10**6).to_pylist()
    names = ", ".join(COLUMNS)
    found = replica._rows(f"SELECT {names} FROM usage_events_final ORDER BY seq")
    assert len(found) == len(ledger)
    for expected, values in zip(ledger, found, strict=True):
        for (name, kind), value in zip(COLUMNS.items(), values, strict=True):
            if kind is Kind.INSTANT and value is not None:
                assert value.replace(tzinfo=UTC) == expected[name], name
            else:
                assert (str(value) if kind is Kind.UUID else value) == expected[name], name


def same_sums(database: Database, replica: ClickHouse) -> None:
    """The views against Postgres' own sums, to the last digit."""
    sums = ", ".join(f"sum({name})" for name in SUMMED[:-3])
    month = "to_char(coalesce(period_start, occurred_at) AT TIME ZONE 'UTC', 'YYYY-MM')"
    day = "to_char(coalesce(period_start, occurred_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
    keys = "tenant_id::text, coalesce(deployment_id, '-'), usage_type, coalesce(cost_currency, '-')"
    ours = "toString(tenant_id), ifNull(deployment_id, '-'), usage_type, ifNull(cost_currency, '-')"
    units = ", ".join(SUMMED[:-3])
    for view, theirs, key in (("usage_by_day", day, "toString(day)"), ("usage_by_month", month, "period")):
        assert replica_rows(replica, f"SELECT {key}, {ours}, events, {units} FROM {view}") == ledger_rows(
            database, f"SELECT {theirs}, {keys}, count(*), {sums} FROM eai.usage_events GROUP BY 1, 2, 3, 4, 5"
        )
    assert replica_rows(
        replica,
        "SELECT period, toString(tenant_id), deployment_id, ifNull(currency, '-'), gpu_seconds, gpu_memory_gb_seconds,"
        " energy_wh, amount, toString(estimated) FROM allocation_by_month",
    ) == ledger_rows(
        database,
        f"SELECT {month}, tenant_id::text, deployment_id, coalesce(cost_currency, '-'), sum(gpu_seconds),"
        " sum(gpu_memory_gb_seconds), sum(energy_wh), sum(cost_amount), bool_or(estimated)::text"
        " FROM eai.usage_events WHERE usage_type <> 'llm' GROUP BY 1, 2, 3, 4",
    )


def replica_rows(replica: ClickHouse, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in replica._rows(query)), key=repr_key)


def ledger_rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.transaction() as connection:
        return sorted(connection.execute(query).fetchall(), key=repr_key)


def repr_key(row: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in row if isinstance(value, str)]


# The copy


def test_the_replica_holds_what_the_ledger_holds(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    synced = sync(database, replica)
    assert (synced.copied, synced.compared, synced.differences) == (len(ODD), len(ODD), ())
    same_rows(database, replica)
    same_sums(database, replica)
    assert status(database, replica).agrees


def test_an_empty_ledger_has_an_empty_replica(database: Database, replica: ClickHouse) -> None:
    assert sync(database, replica) == replication.Synced(0, 0, None, ())
    found = status(database, replica)
    assert (found.ledger_rows, found.replica_rows, found.written_at, found.differences) == (0, 0, None, ())
    assert rebuild(database, replica) == replication.Synced(0, 0, None, ())


def test_a_second_sync_copies_nothing_and_copies_of_copies_count_once(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    parts = raw_count(replica)
    assert sync(database, replica).copied == 0
    assert raw_count(replica) == parts == len(ODD)
    replication.copy(database, replica, 0, 2**62)
    replication.copy(database, replica, 3, 2**62)
    assert raw_count(replica) > len(ODD), "duplicates are there before they are merged"
    same_rows(database, replica)
    same_sums(database, replica)
    assert sync(database, replica).differences == ()
    by_hand(replica, f"OPTIMIZE TABLE {EVENTS} FINAL")
    assert raw_count(replica) == len(ODD)
    same_sums(database, replica)


def test_late_revisions_are_copied_alone_and_move_the_sums_of_their_month(
    database: Database, replica: ClickHouse
) -> None:
    events = quarter(60)
    book(database, events)
    assert sync(database, replica).copied == 60
    late = [
        gpu(
            event["tenant_id"],
            event["period_start"],
            workload_id=event["workload_id"],
            deployment_id=event["deployment_id"],
            revision=2,
            corrects=event["event_id"],
            gpu_seconds="-12.345",
            cost_amount="-0.000000007",
        )
        for event in events[::4]
    ]
    book(database, late)
    assert sync(database, replica).copied == len(late)
    same_sums(database, replica)
    january = replica._rows("SELECT sum(amount) FROM allocation_by_month WHERE period = '2026-01'")[0][0]
    first = [event for event in [*events, *late] if event["period_start"].month == 1]
    assert january == sum(Decimal(event["cost_amount"]) for event in first)


def test_batches_are_read_in_order_of_arrival_and_noted(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "BATCH_ROWS", 7)
    book(database, quarter(30))
    told: list[tuple[int, int]] = []
    sync(database, replica, lambda done, of: told.append((done, of)))
    assert told == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]
    assert replica._rows(f"SELECT step, seq, event, rows FROM {NOTES} ORDER BY step") == [
        [1, 7, "copied", 7],
        [2, 14, "copied", 7],
        [3, 21, "copied", 7],
        [4, 28, "copied", 7],
        [5, 30, "copied", 2],
        [6, 30, "compared", 30],
    ]
    same_rows(database, replica)


KILLED = """
import os, signal, sys
from pathlib import Path
from pydantic import SecretStr
from finops_pipeline.resources.clickhouse import replication
from finops_pipeline.resources.clickhouse.client import ClickHouse, Replica
from finops_pipeline.resources.postgres.client import Database
where, url, folder, ledger = sys.argv[1:]
replication.BATCH_ROWS = 11
name, calls = ("_insert", 4) if where == "inside a batch" else ("note", 2)
method = getattr(ClickHouse, name)
left = [calls]
def dying(self, *arguments):
    left[0] -= 1
    if not left[0] and where != "after the note":
        os.kill(os.getpid(), signal.SIGKILL)
    method(self, *arguments)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
setattr(ClickHouse, name, dying)
with Replica("auto", SecretStr(url) if url else None, folder=Path(folder)).open() as replica:
    replication.sync(Database(ledger), replica)
"""


@pytest.mark.parametrize("where", ["inside a batch", "before the note", "after the note"])
def test_killed_between_batches_it_goes_on_and_ends_the_same(
    where: str, place: Replica, database: Database, ledger_url: str
) -> None:
    book(database, quarter(40))
    url = place.url.get_secret_value() if place.url else ""
    script = [sys.executable, "-c", KILLED, where, url, str(place.folder), ledger_url]
    killed = subprocess.run(script, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    with place.open() as replica:
        assert raw_count(replica) == {"inside a batch": 14, "before the note": 22, "after the note": 22}[where]
        mark = replica.mark()
        assert mark == {"inside a batch": 11, "before the note": 11, "after the note": 22}[where]
        synced = sync(database, replica)
        assert (synced.copied, synced.differences) == (40 - mark, ())
        same_rows(database, replica)
        same_sums(database, replica)


def test_a_killed_server_is_a_transient_failure_and_the_next_sync_completes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "BATCH_ROWS", 11)
    book(database, quarter(40))
    with ClickHouseFront(tmp_path / "front", PASSWORD) as front:
        place = Replica("auto", SecretStr(front.url("ledger")))
        note = ClickHouse.note

        def killing(self: ClickHouse, event: str, mark: int, rows: int, copied_at: datetime) -> None:
            note(self, event, mark, rows, copied_at)
            if mark == 22:
                front.kill()

        monkeypatch.setattr(ClickHouse, "note", killing)
        with place.open() as replica, pytest.raises(SourceError, match="connection refused") as caught:
            sync(database, replica)
        assert caught.value.transient
        monkeypatch.setattr(ClickHouse, "note", note)
        front.start()
        with place.open() as replica:
            assert sync(database, replica).copied == 18
            same_rows(database, replica)


# Order of arrival


@CHDB
def test_an_arrival_that_commits_late_is_waited_for(database: Database, ledger_url: str, replica: ClickHouse) -> None:
    slow = Database(ledger_url)
    with slow.transaction() as connection:
        book(slow, [gpu(workload_id="slow")], connection)
        book(database, [gpu(workload_id="quick")])
        release = threading.Timer(1.0, connection.commit)
        release.start()
        synced = sync(database, replica)
        release.join()
    slow.close()
    assert (synced.copied, synced.differences) == (2, ())


@CHDB
def test_an_arrival_that_commits_too_late_is_found_by_the_comparison(
    database: Database, ledger_url: str, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, wait = Database(ledger_url), ledger_source.settled
    monkeypatch.setattr(ledger_source, "settled", lambda database: wait(database, 0.0))
    with slow.transaction() as connection:
        book(slow, [gpu(workload_id="slow")], connection)
        book(database, [gpu(workload_id="quick")])
        assert sync(database, replica).copied == 1
    slow.close()
    (difference,) = status(database, replica).differences
    assert (difference.day, difference.ledger.rows, difference.replica.rows) == (Day(ALICE, "2026-10-01"), 2, 1)
    synced = sync(database, replica)
    assert (synced.copied, len(synced.differences)) == (0, 1)
    assert sync(database, replica).differences == ()
    same_rows(database, replica)


@CHDB
def test_a_ledger_restored_from_a_backup_takes_the_replica_back(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    forge(replica, gpu(CAROL, workload_id="lost"), seq=500)
    replica.note("copied", 500, 1, replica.next_copied_at())
    synced = sync(database, replica)
    assert [difference.day for difference in synced.differences] == [Day(CAROL, "2026-10-01")]
    assert replica.mark() == len(ODD)
    book(database, [gpu(workload_id="new")])
    assert sync(database, replica).copied == 1
    same_rows(database, replica)


# Comparing and repairing

BY_HAND = {
    "a changed text": f"ALTER TABLE {EVENTS} UPDATE deployment_id = 'other' WHERE workload_id = 'w1' AND seq = 1",
    "a null for an empty text": f"ALTER TABLE {EVENTS} UPDATE deployment_id = NULL WHERE deployment_id = ''",
    "a price taken away": f"ALTER TABLE {EVENTS} UPDATE cost_amount = NULL WHERE seq = 1",
    "amounts swapped": f"ALTER TABLE {EVENTS} UPDATE estimated_seconds = measured_seconds,"
    " measured_seconds = estimated_seconds WHERE seq = 1",
    "an instant a microsecond off": f"ALTER TABLE {EVENTS} UPDATE booked_at = booked_at + INTERVAL 1 MICROSECOND"
    " WHERE seq = 4",
    "a flag": f"ALTER TABLE {EVENTS} UPDATE estimated = NOT estimated WHERE seq = 1",
    "a removed row": f"ALTER TABLE {EVENTS} DELETE WHERE seq = 10",
    "a row removed lightly": f"DELETE FROM {EVENTS} WHERE seq = 10",
    "all rows of a tenant": f"ALTER TABLE {EVENTS} DELETE WHERE tenant_id = '{CAROL}'",
    "an empty table": f"TRUNCATE TABLE {EVENTS}",
    "a dropped month": f"ALTER TABLE {EVENTS} DROP PARTITION 202610",
}


@CHDB
@pytest.mark.parametrize("damage", BY_HAND)
def test_what_was_changed_by_hand_is_found_and_repaired(damage: str, database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    by_hand(replica, BY_HAND[damage])
    found = status(database, replica)
    assert found.differences, "found"
    assert not found.agrees
    assert status(database, replica).differences == found.differences, "looking changes nothing"
    assert sync(database, replica).differences == found.differences
    assert status(database, replica).agrees, "repaired"
    same_rows(database, replica)
    same_sums(database, replica)


FORGED = {
    "a row of a known day": (gpu(workload_id="forged"), None, Day(ALICE, "2026-10-01")),
    "a row of an unknown tenant": (gpu(STRANGER), None, None),
    "a newer copy with another amount": ({**ODD[0], "seq": 1, "cost_amount": "0.01"}, None, Day(ALICE, "2026-10-01")),
    "a copy from the future": (
        {**ODD[0], "seq": 1, "cost_amount": "0.01"},
        datetime(2200, 1, 1, tzinfo=UTC),
        Day(ALICE, "2026-10-01"),
    ),
}


@CHDB
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("forged", FORGED)
def test_what_was_added_by_hand_is_found_and_removed(
    forged: str, merged: bool, database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, copied_at, day = FORGED[forged]
    book(database, ODD)
    sync(database, replica)
    forge(replica, event, copied_at)
    if merged:  # at the worst moments: the background does it when it likes
        remove = ClickHouse.remove

        def merging(self: ClickHouse, days: Sequence[Day], keep: datetime) -> None:
            by_hand(self, f"OPTIMIZE TABLE {EVENTS} FINAL")
            remove(self, days, keep)

        monkeypatch.setattr(ClickHouse, "remove", merging)
        by_hand(replica, f"OPTIMIZE TABLE {EVENTS} FINAL")
    synced = sync(database, replica)
    assert len(synced.differences) == 1
    assert day is None or synced.differences[0].day == day
    assert status(database, replica).agrees
    same_rows(database, replica)
    same_sums(database, replica)


def test_all_kinds_of_damage_at_once_are_repaired(database: Database, replica: ClickHouse) -> None:
    book(database, [*ODD, *quarter(24)])
    sync(database, replica)
    by_hand(replica, f"ALTER TABLE {EVENTS} UPDATE methods = 'x' WHERE seq % 3 = 0")
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE seq % 5 = 0")
    by_hand(replica, f"ALTER TABLE {EVENTS} DROP PARTITION 202602")
    forge(replica, gpu(workload_id="forged"))
    assert len(status(database, replica).differences) == 18
    sync(database, replica)
    assert status(database, replica).agrees
    same_rows(database, replica)
    same_sums(database, replica)


@CHDB
def test_by_itself_it_compares_what_is_new_and_everything_once_a_day(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, quarter(60))
    assert sync(database, replica, everything=False).since is None, "the first time"
    nothing = sync(database, replica, everything=False)
    assert (nothing.copied, nothing.compared, nothing.differences) == (0, 0, ())
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE seq IN (5, 55)")
    march = datetime(2026, 3, 20, tzinfo=UTC)
    book(database, [gpu(hour=march + 5 * HOUR)])
    recent = sync(database, replica, everything=False)
    assert (recent.copied, recent.since) == (1, march)
    assert [difference.day.day[:7] for difference in recent.differences] == ["2026-03"], "seq 55; not the old seq 5"
    assert recent.compared == 1 + sum(event["period_start"] >= march for event in quarter(60))
    monkeypatch.setattr(replication, "WHOLE_EVERY", timedelta(0))
    whole = sync(database, replica, everything=False)
    assert whole.since is None
    assert [difference.day.day[:7] for difference in whole.differences] == ["2026-01"]
    same_rows(database, replica)


@CHDB
def test_what_a_kill_left_uncompared_is_compared_the_next_time(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, quarter(60))
    sync(database, replica)
    book(database, [gpu(), gpu(BOB)])
    monkeypatch.setattr(replication, "repaired", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        sync(database, replica, everything=False)
    monkeypatch.undo()
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE seq = 61")
    again = sync(database, replica, everything=False)
    assert (again.copied, again.since, len(again.differences)) == (0, TEN.replace(hour=0), 1)


@CHDB
def test_a_difference_names_tenant_day_rows_and_cost(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE tenant_id = '{BOB}' AND cost_amount IS NOT NULL")
    differences = status(database, replica).differences
    assert [replication.flat(difference) for difference in differences] == [
        (BOB, "2026-10-02", 1, 0, "-0.000000001", NOTHING.cost)
    ]
    assert replication.summary(differences) == (
        f"tenant {BOB} on 2026-10-02 has 0 rows, cost -, and in the ledger 1 rows, cost -0.000000001"
    )


def test_many_days_are_repaired_in_parts(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, quarter(60))
    sync(database, replica)
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE seq % 2 = 0")
    by_hand(replica, f"ALTER TABLE {EVENTS} UPDATE methods = 'x' WHERE seq % 3 = 0")
    monkeypatch.setattr(replication, "REMOVED_DAYS", 17)
    monkeypatch.setattr(replication, "BATCH_ROWS", 10)
    assert len(sync(database, replica).differences) == 40
    same_rows(database, replica)
    same_sums(database, replica)


@CHDB
def test_a_difference_that_outlives_the_repair_is_an_error(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, ODD)
    sync(database, replica)
    forge(replica, gpu(workload_id="forged"))
    monkeypatch.setattr(ClickHouse, "remove", lambda *_, **__: None)
    with pytest.raises(
        SourceError, match=r"still differs .* after 3 repairs: tenant a0.* finops replica rebuild"
    ) as error:
        sync(database, replica)
    assert not error.value.transient


# Rebuilding


def test_a_rebuild_makes_the_replica_again(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, [*ODD, *quarter(40)])
    sync(database, replica)
    by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE seq < 9")
    forge(replica, gpu(workload_id="forged"))
    monkeypatch.setattr(replication, "BATCH_ROWS", 11)
    seen = []
    write = ClickHouse.write

    def looking(self: ClickHouse, rows: pa.Table, copied_at: datetime) -> None:
        write(self, rows, copied_at)
        seen.append(replica.count())

    monkeypatch.setattr(ClickHouse, "write", looking)
    assert rebuild(database, replica) == replication.Synced(len(ODD) + 40, len(ODD) + 40, None, ())
    assert replica._rows(f"SELECT event, seq FROM {NOTES} ORDER BY step DESC LIMIT 1") == [["rebuilt", len(ODD) + 40]]
    assert set(seen) == {len(ODD) + 40 - 8 + 1}, "readers see the old rows until all of the new ones are there"
    same_rows(database, replica)
    same_sums(database, replica)
    assert sync(database, replica).copied == 0


@CHDB
def test_a_rebuild_that_does_not_agree_leaves_the_replica_as_it_was(
    database: Database, replica: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    book(database, ODD)
    sync(database, replica)
    write = ClickHouse.write
    monkeypatch.setattr(ClickHouse, "write", lambda self, rows, at: write(self, rows.slice(1), at))
    with pytest.raises(SourceError, match=r"rebuilt table differs .* stays as it was"):
        rebuild(database, replica)
    same_rows(database, replica)
    monkeypatch.undo()
    assert rebuild(database, replica).compared == len(ODD), "what a failed rebuild left is cleared away"


def test_a_table_of_another_version_is_refused_until_it_is_rebuilt(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    for damage in (
        f"ALTER TABLE {EVENTS} DROP COLUMN methods",
        f"ALTER TABLE {EVENTS} MODIFY COLUMN source LowCardinality(String)",
    ):
        for view in VIEWS:
            by_hand(replica, f"DROP VIEW IF EXISTS {view}")
        by_hand(replica, f"TRUNCATE TABLE {EVENTS}")
        by_hand(replica, damage)
        with pytest.raises(UsageError, match=r"usage_events\.(methods|source) is .* finops replica rebuild"):
            sync(database, replica)
        with pytest.raises(UsageError, match="finops replica rebuild"):
            status(database, replica)
        rebuild(database, replica)
        same_rows(database, replica)
        same_sums(database, replica)


# What it cannot hold


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (gpu(cost_amount="0.0000000000001"), "seq 2: cost_amount 0.0000000000001 does not fit"),
        (gpu(energy_wh="100000000000000000000000000"), "seq 2: energy_wh 1000.* does not fit"),
        (gpu(gpu_seconds="NaN"), "seq 2: gpu_seconds NaN does not fit"),
        (llm("past", at=datetime(1899, 12, 31, tzinfo=UTC)), "seq 2: occurred_at is not within"),
        (llm("future", at=datetime(2299, 1, 1, tzinfo=UTC)), "seq 2: occurred_at is not within"),
    ],
)
def test_what_it_cannot_hold_exactly_stops_it(
    event: dict[str, Any], message: str, database: Database, tmp_path: Path
) -> None:
    book(database, [gpu(workload_id="before")])
    book(database, [event])
    with Replica("on", folder=tmp_path / "clickhouse").open() as replica:
        with pytest.raises(SourceError, match=message) as caught:
            sync(database, replica)
        assert not caught.value.transient
        assert raw_count(replica) == 0


def test_the_longest_numbers_fit(database: Database, tmp_path: Path) -> None:
    book(
        database,
        [
            gpu(cost_amount="-99999999999999999999999999.999999999999"),
            llm("far", at=datetime(2298, 12, 31, tzinfo=UTC)),
        ],
    )
    with Replica("on", folder=tmp_path / "clickhouse").open() as replica:
        sync(database, replica)
        same_rows(database, replica)


# The contract


@CHDB
def test_the_table_has_the_ledgers_columns_and_every_column_says_what_it_is(
    database: Database, replica: ClickHouse
) -> None:
    replica.require_current()
    columns = dict(
        ledger_rows(
            database,
            "SELECT column_name, col_description('eai.usage_events'::regclass, ordinal_position)"
            " FROM information_schema.columns WHERE table_schema = 'eai' AND table_name = 'usage_events'",
        )
    )
    assert columns.keys() - COLUMNS.keys() == {"document"}
    assert not COLUMNS.keys() - columns.keys()
    found = dict(
        replica._rows(
            "SELECT name, comment FROM system.columns WHERE database = currentDatabase() AND table = {table:String}",
            table=EVENTS,
        )
    )
    assert found.keys() == COLUMNS.keys() | {"day", "copied_at"}
    assert all(found.values())
    silent = replica._rows("SELECT name FROM system.tables WHERE database = currentDatabase() AND comment = ''")
    assert silent == []


@CHDB
def test_money_is_decimal_in_every_view(replica: ClickHouse) -> None:
    replica.require_current()
    types = replica._rows(
        "SELECT table, name, type FROM system.columns WHERE database = currentDatabase()"
        " AND name IN ('cost_amount', 'amount', 'gpu_seconds', 'energy_wh', 'gpu_memory_gb_seconds')"
    )
    assert {table for table, _, _ in types} == {EVENTS, *VIEWS}
    assert {type_ for _, _, type_ in types} == {"Nullable(Decimal(38, 12))"}, "avg(Decimal) would be a float"
    made = replica._rows("SELECT create_table_query FROM system.tables WHERE name = 'usage_events_final'")
    assert all("FINAL" in query for (query,) in made)


@CHDB
def test_a_filter_on_a_view_does_not_bring_a_superseded_row_back(database: Database, replica: ClickHouse) -> None:
    book(database, ODD)
    sync(database, replica)
    forge(replica, {**ODD[0], "seq": 1, "deployment_id": "moved", "usage_type": "llm"})
    for view in ("usage_by_day", "usage_by_month", "usage_events_final"):
        found = replica._rows(
            f"SELECT sum(cost_amount) FROM {view} WHERE deployment_id = 'd1' AND cost_currency = 'EUR'"
        )
        gone = replica._rows(f"SELECT sum(cost_amount) FROM {view} WHERE deployment_id = 'moved'")
        assert found[0][0] == sum(
            Decimal(event["cost_amount"])
            for event in ODD[1:]
            if event.get("deployment_id") == "d1" and event.get("cost_currency") == "EUR"
        )
        assert gone[0][0] == Decimal(ODD[0]["cost_amount"])


# Who may write


OTHER = """
import sys
from pathlib import Path
from finops_pipeline.resources.clickhouse.client import Replica
with Replica("on", folder=Path(sys.argv[1])).open():
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_chdb_folder_serves_one_process(tmp_path: Path, database: Database) -> None:
    place = Replica("on", folder=tmp_path / "clickhouse")
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(place.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with (
        pytest.raises(SourceError, match=f"in use by process {other.pid}, and serves one process") as caught,
        place.open(),
    ):
        pass
    assert caught.value.transient
    other.kill()
    other.communicate()
    with place.open() as replica:
        assert sync(database, replica).compared == 0
    assert (tmp_path / "clickhouse").stat().st_mode & 0o777 == 0o700


@CHDB
def test_only_one_process_writes_to_the_replica_of_a_ledger(database: Database, replica: ClickHouse) -> None:
    with ledger_source.only_copier(database), pytest.raises(SourceError, match="by another process") as caught:
        sync(database, replica)
    assert caught.value.transient
    assert sync(database, replica).compared == 0


# Over HTTP


def test_a_wrong_password_is_wrong_use_and_is_not_shown(
    front: ClickHouseFront, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    place = Replica("auto", SecretStr(front.url("ledger", "s3cret!word")))
    with pytest.raises(UsageError, match="wrong user or password: check EAI_CLICKHOUSE_URL") as caught, place.open():
        pass
    shown = f"{caught.value} {place!r} {caplog.text} {''.join(capfd.readouterr())}"
    assert "s3cret" not in shown
    assert "s3cret%21word" not in shown


def test_the_password_is_in_no_message_and_no_address(
    front: ClickHouseFront, server: Replica, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    book(database, ODD)
    with server.open() as replica:
        sync(database, replica)
        front.faults(("count()", "Code: 48. DB::Exception: Not implemented (NOT_IMPLEMENTED)"))
        with pytest.raises(
            SourceError, match=r"ClickHouse 127\.0\.0\.1:[0-9]+/fresh_[0-9]+: Not implemented"
        ) as caught:
            status(database, replica)
    asked = json.dumps(front.seen())
    for secret in (PASSWORD, "hunter2"):
        assert secret not in f"{asked} {caught.value} {server!r} {replica.where} {caplog.text}"


TRANSIENT = {
    "INSERT INTO": (
        *("503", "500", "drop", "drop after"),
        "Code: 252. DB::Exception: Too many parts (300). Merges are slower than inserts. (TOO_MANY_PARTS)",
        "Code: 241. DB::Exception: Memory limit exceeded (MEMORY_LIMIT_EXCEEDED)",
    ),
    "concatWithSeparator": ("cut", "502", "Code: 159. DB::Exception: Timeout exceeded (TIMEOUT_EXCEEDED)"),
    "ALTER TABLE": ("drop after",),
}


@pytest.mark.parametrize("text", TRANSIENT)
def test_a_transient_failure_is_tried_again_and_the_sums_stay(
    text: str, front: ClickHouseFront, server: Replica, database: Database
) -> None:
    book(database, ODD)
    with server.open() as replica:
        sync(database, replica)
        for number, fault in enumerate(TRANSIENT[text], 1):
            book(database, [gpu(workload_id=f"new {number}")])
            forge(replica, gpu(workload_id="forged"))
            front.faults((text, fault), (text, fault))
            assert sync(database, replica).compared == len(ODD) + number, fault
            assert front.left() == 0, "the faults were met"
        same_rows(database, replica)
        same_sums(database, replica)
        assert status(database, replica).agrees


@pytest.mark.parametrize("text", ["CREATE TABLE", "EXCHANGE TABLES", "DROP TABLE"])
def test_a_rebuild_whose_answers_are_lost_is_not_undone_by_trying_again(
    text: str, front: ClickHouseFront, server: Replica, database: Database
) -> None:
    book(database, ODD)
    with server.open() as replica:
        sync(database, replica)
        forge(replica, gpu(workload_id="forged"))
        front.faults((text, "drop after"), (text, "drop"))
        rebuild(database, replica)
        assert front.left() <= 1
        assert status(database, replica).agrees
        same_rows(database, replica)


def test_a_failure_that_stays_is_told_after_its_tries(
    front: ClickHouseFront, server: Replica, database: Database
) -> None:
    book(database, ODD)
    with server.open() as replica:
        front.faults(*[("INSERT INTO", "503")] * 20)
        with pytest.raises(SourceError, match="HTTP status 503") as caught:
            sync(database, replica)
        assert caught.value.transient
        inserts = [request for request in front.seen() if request["start"].startswith("INSERT")]
        front.faults(("INSERT INTO", "Code: 497. DB::Exception: finops: Not enough privileges. (ACCESS_DENIED)"))
        with pytest.raises(UsageError, match=r"Not enough privileges.*give the user SELECT, INSERT, ALTER DELETE"):
            sync(database, replica)
        again = [request for request in front.seen() if request["start"].startswith("INSERT")]
        assert len(again) == len(inserts) + 1, "a permanent failure is not tried again"


def test_inserts_wait_until_they_are_stored_and_refuse_nulls_where_none_may_be(
    front: ClickHouseFront, server: Replica, database: Database
) -> None:
    book(database, ODD)
    with server.open() as replica:
        sync(database, replica)
        rows = ledger_source.read(database, 0, 1, 1)
        holed = rows.set_column(rows.schema.get_field_index("source"), "source", pa.array([None], pa.string()))
        with pytest.raises(SourceError):
            replica.write(holed, replica.next_copied_at())
    inserts = [request for request in front.seen() if request["start"].startswith("INSERT")]
    assert inserts
    assert all(request["settings"]["async_insert"] == "0" for request in inserts)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://finops:s3cret@127.0.0.1:1/eai", "ClickHouse 127.0.0.1:1/eai: connection refused"),
        ("http://finops:s3cret@127.0.0.1:1/eai?verify=false", "nothing may follow the database"),
        ("http://finops:s3cret@127.0.0.1:1/e/ai", "letters, digits and _ only"),
        ("http://finops:s3cret@127.0.0.1:1/e`ai", "letters, digits and _ only"),
        ("http://finops:s3cret@no-such-host.invalid:8123/eai", "host name"),
    ],
)
def test_a_wrong_address_is_told_in_one_line(url: str, message: str) -> None:
    with pytest.raises(FinopsError, match=message) as caught, Replica("auto", SecretStr(url)).open():
        pass
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tls_needs_a_certificate_that_is_known(tmp_path: Path, database: Database) -> None:
    certificate = own_certificate(tmp_path)
    book(database, ODD)
    with ClickHouseFront(tmp_path / "front", PASSWORD, certificate) as front:
        url = SecretStr(front.url("ledger"))
        with (
            pytest.raises(UsageError, match="certificate is not accepted: EAI_CLICKHOUSE_CA_FILE"),
            Replica("on", url).open(),
        ):
            pass
        with Replica("on", url, certificate[0]).open() as replica:
            assert sync(database, replica).compared == len(ODD)
            same_rows(database, replica)


@pytest.mark.parametrize("timezone", ["America/St_Johns"])
def test_the_servers_time_zone_does_not_matter(timezone: str, database: Database, tmp_path: Path) -> None:
    book(database, [*ODD, *(gpu(hour=TEN.replace(hour=hour), workload_id=f"h{hour}") for hour in range(24))])
    with (
        ClickHouseFront(tmp_path / "front", PASSWORD, timezone=timezone) as front,
        Replica("on", SecretStr(front.url("ledger"))).open() as replica,
    ):
        assert replica._rows("SELECT timezone()") == [[timezone]]
        assert sync(database, replica).differences == ()
        same_rows(database, replica)
        same_sums(database, replica)
        forge(replica, gpu(workload_id="forged"))
        assert len(sync(database, replica).differences) == 1
        same_sums(database, replica)


# When it runs


@pytest.mark.parametrize(
    ("environment", "automatic"),
    [
        ({}, False),
        ({"FINOPS_REPLICA": "on"}, True),
        ({"EAI_CLICKHOUSE_URL": "http://clickhouse.example"}, True),
        ({"EAI_CLICKHOUSE_URL": "http://clickhouse.example", "FINOPS_REPLICA": "auto"}, True),
        ({"EAI_CLICKHOUSE_URL": "http://clickhouse.example", "FINOPS_REPLICA": "off"}, False),
    ],
)
def test_it_runs_by_itself_with_a_server_or_where_it_is_asked_for(
    environment: dict[str, str], automatic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Replica.of(load_settings(environment)).automatic is automatic
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("usage_events", partition="2026-10-01-10:00"))
        with dg.build_sensor_context(instance, definitions=definitions) as context:
            tick = replica_sensor.evaluate_tick(context)
    assert (len(tick.run_requests or []), bool(tick.skip_message)) == ((1, False) if automatic else (0, True))


def test_off_and_not_installed_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="set FINOPS_REPLICA to on or auto"), Replica("off").open():
        pass
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        UsageError, match=r"needs the package chdb: pip install 'finops-pipeline\[clickhouse\]', or set EAI"
    ):
        next(iter(open_once(Replica("auto", folder=tmp_path))))
    with pytest.raises(UsageError, match=r"needs the package clickhouse_connect: pip install"):
        next(iter(open_once(Replica("auto", SecretStr("http://clickhouse.example")))))


def open_once(place: Replica) -> Iterator[ClickHouse]:
    with place.open() as replica:
        yield replica


def test_the_asset_reports_what_it_repaired(
    cases: Path, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings({"FINOPS_HOME": str(tmp_path), "EAI_DATABASE_URL": ledger_url, "FINOPS_REPLICA": "on"})
    case = cases / "04-gap-across-the-hour"
    with open_site(settings, case) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        run_hours(site, instance, *site.source.span)
        run_replica(site, instance)
        with site.replica.open() as replica:
            same_rows(site.database, replica)
            same_sums(site.database, replica)
            forge(replica, gpu(STRANGER, workload_id="forged"))
        monkeypatch.setattr(replication, "WHOLE_EVERY", timedelta(0))
        run_replica(site, instance)
        run_replica(site, instance)
        key = dg.AssetKey("usage_events_replica")
        runs = [record.asset_materialization for record in instance.fetch_materializations(key, limit=3).records]
        assert [run.metadata["copied"].value for run in runs if run][:2] == [0, 0]
        history = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(key, AGREES), limit=3)
        checks = [
            check.event.dagster_event.asset_check_evaluation_data
            for check in history
            if check.event and check.event.dagster_event
        ]
        assert [check.passed for check in checks] == [True, False, True]
        assert checks[1].severity is dg.AssetCheckSeverity.WARN
        assert checks[1].metadata["differing_tenant_days"].value == 1
        repaired: Any = checks[1].metadata["repaired"]
        (row,) = repaired.records
        assert (row.data["tenant_id"], row.data["ledger_rows"], row.data["replica_rows"]) == (STRANGER, 0, 1)


def test_the_asset_fails_clearly_where_it_is_off(cases: Path, ledger_url: str, tmp_path: Path) -> None:
    settings = load_settings({"FINOPS_HOME": str(tmp_path), "EAI_DATABASE_URL": ledger_url, "FINOPS_REPLICA": "off"})
    with (
        open_site(settings, cases / "04-gap-across-the-hour") as site,
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(FinopsError, match="set FINOPS_REPLICA to on or auto"),
    ):
        run_replica(site, instance)


# The commands


@pytest.fixture
def finops(ledger_url: str, tmp_path: Path) -> Any:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"FINOPS_HOME": str(tmp_path), "EAI_DATABASE_URL": ledger_url, **environment}
        return subprocess.run(
            [sys.executable, "-c", "from finops_pipeline.cli import main; main()", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            env=os.environ | given,
        )

    return run


def test_status_sync_and_rebuild_by_hand(finops: Any, database: Database, tmp_path: Path) -> None:
    book(database, ODD)
    before = finops("replica", "status", "--json")
    assert (before.returncode, json.loads(before.stdout)["not_copied_yet"]) == (3, len(ODD)), before.stderr
    synced = finops("replica", "sync", "--json")
    assert (synced.returncode, json.loads(synced.stdout)["copied"], synced.stderr) == (0, len(ODD), "")
    with Replica("on", folder=tmp_path / "clickhouse").open() as replica:
        by_hand(replica, f"ALTER TABLE {EVENTS} DELETE WHERE tenant_id = '{CAROL}'")
    differs = finops("replica", "status")
    assert differs.returncode == 3
    assert "2 tenant's days differed" in differs.stdout
    assert CAROL in differs.stdout
    rebuilt = finops("replica", "rebuild")
    assert (rebuilt.returncode, rebuilt.stderr) == (0, "")
    assert f"{len(ODD)} events copied, {len(ODD)} compared" in rebuilt.stdout
    after = finops("replica", "status", "--json")
    assert after.returncode == 0
    assert json.loads(after.stdout)["agrees"] is True
    off = finops("replica", "status", FINOPS_REPLICA="off")
    assert (off.returncode, off.stderr) == (
        2,
        "finops: the ClickHouse replica is off: set FINOPS_REPLICA to on or auto\n",
    )


def test_run_keeps_the_replica_up_to_date_and_does_not_fail_with_it(finops: Any, cases: Path, tmp_path: Path) -> None:
    bundle = str(cases / "04-gap-across-the-hour")
    broken = finops("run", "--bundle", bundle, EAI_CLICKHOUSE_URL="http://finops:s3cret@127.0.0.1:1")
    assert broken.returncode in {0, 3}, broken.stderr
    assert "ClickHouse 127.0.0.1:1/eai: connection refused" in broken.stderr
    assert "finops replica sync" in broken.stderr
    assert "s3cret" not in broken.stderr + broken.stdout
    assert not (tmp_path / "clickhouse").exists()
    with_it = finops("run", "--bundle", bundle, FINOPS_REPLICA="on")
    assert with_it.returncode == broken.returncode
    assert "replica" not in with_it.stderr
    assert finops("replica", "status").returncode == 0


def test_the_pipelines_role_sees_who_writes(ledger_url: str) -> None:
    database = Database(ledger_url)
    book(database, ODD)
    with psycopg.connect(ledger_url) as other:
        other.execute("SET ROLE eai_pipeline")
        other.execute("LOCK TABLE eai.usage_events IN ROW EXCLUSIVE MODE")
        started = time.monotonic()
        assert ledger_source.settled(database, 0.5) == len(ODD)
        assert time.monotonic() - started >= 0.5
    started = time.monotonic()
    ledger_source.settled(database, 5)
    assert time.monotonic() - started < 2
    database.close()
