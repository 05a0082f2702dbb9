"""Schema `eai` and its door, on real servers: the embedded one, and Debian's Postgres 15 where it is installed."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from finops_pipeline.contracts import lake, migrations
from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database, attributed
from finops_pipeline.resources.postgres.sample_runs import sample_runs

ALICE = "a0000000-0000-4000-8000-00000000000a"
BOB = "b0000000-0000-4000-8000-00000000000b"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def server(package: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedPostgres]:
    with embedded.start(tmp_path_factory.mktemp("postgres") / "server", package=package) as running:
        yield running


def in_database(server: embedded.EmbeddedPostgres, name: str) -> dict[str, str]:
    default = f"/{embedded.DATABASE}?"
    return {
        "url": server.url.replace(default, f"/{name}?"),
        "admin_url": server.admin_url.replace(default, f"/{name}?"),
    }


def create(server: embedded.EmbeddedPostgres, template: str = "template1") -> dict[str, str]:
    name = f"t{uuid4().hex}"
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return in_database(server, name)


def opened_as(urls: dict[str, str]) -> Database:
    return Database(urls["url"], admin_url=urls["admin_url"])


@pytest.fixture(scope="module")
def migrated(server: embedded.EmbeddedPostgres) -> str:
    """A database to copy from: a copy takes a tenth of a migration."""
    urls = create(server)
    opened_as(urls).migrate()
    return str(sa.make_url(urls["url"]).database)


@pytest.fixture
def empty(server: embedded.EmbeddedPostgres) -> dict[str, str]:
    return create(server)


@pytest.fixture
def urls(server: embedded.EmbeddedPostgres, migrated: str) -> dict[str, str]:
    return create(server, migrated)


@pytest.fixture
def database(urls: dict[str, str]) -> Iterator[Database]:
    opened = opened_as(urls)
    yield opened
    opened.close()


def catalogue(urls: dict[str, str], statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(urls["admin_url"]) as connection:
        return connection.execute(statement).fetchall()


def usage_row(**changes: object) -> dict[str, Any]:
    row = {
        "cluster": "c1", "hour": TEN, "workload_id": "wl", "gpu_model": "H100", "tenant_id": ALICE, "deployment_id": "d",
        "placed_class": None, "basis": "lifecycle", "gpu_seconds": Decimal("3600.000"), "gpu_active_seconds": None,
        "gpu_memory_gb_seconds": Decimal("0.001"), "energy_wh": Decimal("0.000001"), "measured_seconds": Decimal(3600),
        "estimated_seconds": Decimal(0), "missing_seconds": Decimal(0), "estimated": False, "methods": "",
    }  # fmt: skip
    return {**row, **changes}


def usage(*rows: dict[str, Any]) -> pa.Table:
    return attributed(pa.Table.from_pylist(list(rows), lake.GPU_USAGE), PLATFORM)


def event(event_id: str, at: datetime, **changes: object) -> dict[str, Any]:
    row = {"event_id": event_id, "occurred_at": at, "workload_id": "wl", "tenant_id": ALICE, "to_state": "running"}
    return {**row, "gpu_count": Decimal(1), **changes}


def events(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), lake.WORKLOAD_EVENTS)


def token(event_id: str, at: datetime, count: int) -> dict[str, Any]:
    counts = {"input_tokens": count, "output_tokens": 0, "cached_tokens": 0}
    return {"event_id": event_id, "occurred_at": at, "tenant_id": ALICE, "deployment_id": "d", **counts}


def policy(**changes: object) -> dict[str, Any]:
    document = {
        "id": "p1", "name": "p1", "deployment_pattern": "*", "gpu_model": None, "currency": "EUR",
        "gpu_hourly_cost": "2.10", "overhead_pct": "18", "energy_kwh_price": "0.21", "pue": "1.4",
        "storage_gb_month_price": "0.10", "idle_policy": "owner", "token_weights": {"output": "3", "input": "1"},
        "effective_from": "2026-01-01T00:00:00Z", "effective_to": None, "status": "active",
    }  # fmt: skip
    return {**document, **changes}


def add_usage_event(connection: Any, event_id: str, tenant: str = ALICE, hour: datetime = TEN) -> None:
    document = f'{{"event_id":"{event_id}"}}'
    connection.execute(
        "INSERT INTO eai.usage_events (event_id, schema_version, occurred_at, period_start, period_end, tenant_id,"
        " usage_type, source, cluster, workload_id, deployment_id, basis, estimated, methods, revision, document,"
        " content_sha256) VALUES (%s, '1.0', %s, %s, %s, %s, 'gpu_local', 'test', 'c1', 'wl', 'd', 'lifecycle', false,"
        " '', 0, %s, encode(sha256(convert_to(%s, 'UTF8')), 'hex'))",
        (event_id, hour + HOUR, hour, hour + HOUR, tenant, document, document),
    )


# Schema


def test_migrating_twice_changes_nothing(empty: dict[str, str]) -> None:
    listing = (
        "SELECT c.oid, relname, relrowsecurity, relacl::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = 'eai' ORDER BY relname"
    )
    opened_as(empty).migrate()
    first = catalogue(empty, listing)
    opened_as(empty).migrate()
    assert len(first) > 30
    assert catalogue(empty, listing) == first


def test_two_processes_may_migrate_at_once(empty: dict[str, str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: opened_as(empty).migrate(), range(4)))
    assert catalogue(empty, "SELECT version_num FROM eai.alembic_version") == [(migrations.HEAD,)]


def test_head_is_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", "finops_pipeline.contracts:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == migrations.HEAD


def test_a_newer_schema_is_refused(urls: dict[str, str], database: Database) -> None:
    with psycopg.connect(urls["admin_url"]) as connection:
        connection.execute("UPDATE eai.alembic_version SET version_num = '9999'")
    with pytest.raises(UsageError, match="version 9999, newer than this program's"):
        database.migrate()


def test_every_table_and_column_has_a_comment(urls: dict[str, str], database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("SELECT eai.create_gpu_sample_partitions(%s, %s)", (TEN, TEN + HOUR))
    assert catalogue(urls, "SELECT count(*) FROM pg_class WHERE relname = 'gpu_sample_runs_20261001'") == [(1,)]
    silent = catalogue(
        urls,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0"
        " AND NOT a.attisdropped WHERE c.relnamespace = 'eai'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')"
        " AND col_description(c.oid, a.attnum) IS NULL"
        " UNION ALL SELECT c.relname, '' FROM pg_class c WHERE c.relnamespace = 'eai'::regnamespace"
        " AND c.relkind IN ('r', 'p', 'v', 'm') AND obj_description(c.oid) IS NULL",
    )
    assert silent == []


def test_result_tables_have_the_lakes_columns(database: Database) -> None:
    for table in (
        "gpu_samples",
        "gpu_usage",
        "gpu_idle",
        "fleet_hours",
        "gpu_cost_allocation",
        "findings",
        "tenant_hours",
    ):
        columns = database.query(f"SELECT * FROM eai.{table}").schema.names
        assert [name for name in columns if name in lake.TABLES[table].names] == lake.TABLES[table].names
        assert {*columns} - {*lake.TABLES[table].names} <= {"attributed", "hour"}


# What nobody changes


def test_the_ledger_cannot_be_changed(urls: dict[str, str], database: Database) -> None:
    tables = {"usage_events": "source", "audit_events": "kind", "allocation_policies": "name", "workload_events": "pod"}
    refused = {
        "eai_pipeline": psycopg.errors.InsufficientPrivilege,
        "eai_reader": psycopg.errors.InsufficientPrivilege,
        "eai_owner": psycopg.errors.RestrictViolation,
        embedded.ADMINISTRATOR: psycopg.errors.RestrictViolation,
    }
    with database.transaction() as connection:
        database.add_policies(connection, [policy()], "test")
    with psycopg.connect(urls["admin_url"]) as connection:
        for (table, column), (role, error) in itertools.product(tables.items(), refused.items()):
            for change in ("UPDATE eai.{0} SET {1} = 'x'", "DELETE FROM eai.{0}", "TRUNCATE eai.{0}"):
                with pytest.raises(error), connection.transaction():
                    connection.execute(f"SET LOCAL ROLE {role}; {change.format(table, column)}")


def test_an_event_is_booked_once_and_carries_its_hash(database: Database) -> None:
    with database.transaction() as connection:
        add_usage_event(connection, "e1")
    with pytest.raises(psycopg.errors.UniqueViolation, match="usage_events_key"), database.transaction() as connection:
        add_usage_event(connection, "e2")
    with pytest.raises(psycopg.errors.CheckViolation, match="usage_events_hash"), database.transaction() as connection:
        connection.execute(
            "INSERT INTO eai.usage_events (event_id, occurred_at, tenant_id, usage_type, source, input_tokens,"
            " output_tokens, cached_tokens, document, content_sha256)"
            " VALUES ('x', now(), gen_random_uuid(), 'llm', 't', 1, 1, 1, '{}', 'forged')"
        )


def test_a_final_statement_stays(database: Database) -> None:
    item = {"period": "2026-10", "tenant_id": ALICE, "deployment_id": "d", "currency": "EUR", "amount": Decimal("1.00")}
    data = pa.Table.from_pylist([{**item, "estimated": False}])
    opened = {"period": "2026-10", "status": "open", "computed_at": TEN, "final_at": None, "content_sha256": "0" * 64}
    with database.transaction() as connection:
        for status in ({}, {"status": "final", "final_at": TEN}):
            database.replace(connection, "gpu_allocation", data, period="2026-10")
            statement = pa.Table.from_pylist([{**opened, **status}])
            database.replace(connection, "gpu_statements", statement, period="2026-10")
    for table in ("gpu_allocation", "gpu_statements"):
        with (
            pytest.raises(psycopg.errors.RestrictViolation, match="2026-10 is final"),
            database.transaction() as connection,
        ):
            connection.execute(f"DELETE FROM eai.{table}")


# Arrow to Postgres and back


def test_values_come_back_exactly(database: Database) -> None:
    text = "a \"quoted\", comma\n\\back\\ and 'single' {brace} é\\."
    rows = events(
        event("e1", TEN + timedelta(microseconds=1000), gpu_count=Decimal("0.142857143"), reason=text,
              gpu_uuids=["GPU-1/3", 'odd " \\ , {x}\nname', "", None]),
        event("e2", datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), gpu_count=None, reason="", gpu_uuids=[]),
        event("e3", TEN, gpu_count=Decimal("12345678901234567890.000000001"), pod=None, gpu_uuids=None),
    )  # fmt: skip
    with database.transaction() as connection:
        assert database.copy(connection, "workload_events", rows) == 3
    back = database.query(
        f"SELECT {', '.join(lake.WORKLOAD_EVENTS.names)} FROM eai.workload_events ORDER BY seq",
        schema=lake.WORKLOAD_EVENTS,
    )
    assert back.equals(rows)


def test_instants_are_rounded_half_even_to_milliseconds(database: Database) -> None:
    found = database.query(
        "SELECT '2026-10-01T10:00:00Z'::timestamptz + us * interval '1 us' AS t FROM unnest(%s::int[]) AS us",
        ([499, 500, 501, 1500, 2500, -500, -501, -1500],),
        schema=pa.schema([lake.instant("t", "")]),
    )
    offsets = [(row["t"] - TEN) // timedelta(milliseconds=1) for row in found.to_pylist()]
    assert offsets == [0, 0, 1, 2, 2, 0, -1, -2]


def test_types_without_a_schema(database: Database) -> None:
    found = database.query(
        "SELECT * FROM (VALUES (1.50::numeric, 'x', NULL, true, 1.5::float8, 2::int), (-0.001, '', NULL, NULL, 'NaN', 3))"
        " AS t (n, s, z, b, f, i)"
    )
    assert found["n"].to_pylist() == [Decimal("1.500"), Decimal("-0.001")]
    assert found["s"].to_pylist() == ["x", ""]
    assert found["z"].to_pylist() == [None, None]
    assert found["b"].to_pylist() == [True, None]
    assert found["i"].to_pylist() == [2, 3]
    assert str(found["f"].to_pylist()) == "[1.5, nan]"
    assert database.query("SELECT %s::text AS one WHERE false", ("%",)).num_rows == 0
    assert database.query("SELECT NULL::text AS one UNION ALL SELECT NULL").to_pylist() == [{"one": None}] * 2


def test_a_decimal_that_does_not_fit_is_an_error(database: Database) -> None:
    with pytest.raises(pa.ArrowInvalid):
        database.query("SELECT 0.0000000001 AS n", schema=pa.schema([pa.field("n", lake.AMOUNT)]))


def test_replacing_hours_is_exact(database: Database) -> None:
    hours = [TEN, TEN + HOUR]
    first = usage(usage_row(), usage_row(hour=TEN + HOUR), usage_row(hour=TEN + HOUR, gpu_model=None))
    with database.transaction() as connection:
        assert database.replace_hour(connection, "gpu_usage", "c1", hours, first) == 3
        database.replace_hour(connection, "gpu_usage", "c2", [TEN], usage(usage_row(cluster="c2")))
    with database.transaction() as connection:
        assert database.replace_hour(connection, "gpu_usage", "c1", [TEN + HOUR], first.slice(0, 0)) == 0
    assert database.read_hours("gpu_usage", "c1", TEN, TEN + 2 * HOUR).num_rows == 1
    assert database.read_hours("gpu_usage", "c2", TEN, TEN + 2 * HOUR).num_rows == 1
    assert database.read_hours("gpu_usage", None, TEN, TEN + 2 * HOUR)["cluster"].to_pylist() == ["c1", "c2"]
    with pytest.raises(ValueError, match="outside the hours"), database.transaction() as connection:
        database.replace_hour(connection, "gpu_usage", "c1", [TEN], first)
    with pytest.raises(ValueError, match="another cluster"), database.transaction() as connection:
        database.replace_hour(connection, "gpu_usage", "c2", hours, first)


def test_rows_of_nobody_come_back_without_a_tenant(urls: dict[str, str], database: Database) -> None:
    row = {"cluster": "c1", "node": "n", "gpu_uuid": "GPU-1", "mig_instance": "", "model": "H100", "window_seconds": 15}
    rows = [
        {**row, "window_start": TEN, "tenant_id": None, "utilization": 0.1, "estimated": False, "method": "measured"},
        {
            **row,
            "window_start": TEN + 14 * HOUR,
            "tenant_id": BOB,
            "power_w": 0.001,
            "estimated": True,
            "method": "linear",
        },
    ]
    samples = pa.Table.from_pylist(rows, lake.GPU_SAMPLES)
    with database.transaction() as connection:
        hours = [TEN, TEN + 14 * HOUR]
        for _ in range(2):
            database.replace_hour(
                connection, "gpu_sample_runs", "c1", hours, attributed(sample_runs(samples), PLATFORM)
            )
    assert database.read_hours("gpu_samples", "c1", TEN, TEN + 15 * HOUR).equals(samples)
    parts = (
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'eai.gpu_sample_runs'::regclass ORDER BY 1"
    )
    assert catalogue(urls, parts) == [("eai.gpu_sample_runs_20261001",), ("eai.gpu_sample_runs_20261002",)]
    assert database.drop_samples(TEN + 20 * HOUR) == 1
    assert database.read_hours("gpu_samples", "c1", TEN, TEN + 15 * HOUR).num_rows == 1


def test_quarantine_needs_no_hour_of_its_own(database: Database) -> None:
    found = pa.Table.from_pylist(
        [{"source": "dcgm", "key": "GPU-1:POWER", "reason": "nan", "detail": "3 readings"}], lake.QUARANTINE
    )
    for _ in range(2):
        with database.transaction() as connection:
            database.replace_hour(connection, "quarantine", "c1", [TEN], found)
    assert database.query("SELECT cluster, hour, key FROM eai.quarantine").to_pylist() == [
        {"cluster": "c1", "hour": TEN, "key": "GPU-1:POWER"}
    ]


def test_an_error_leaves_nothing_half_written(database: Database) -> None:
    def write_and_fail() -> None:
        with database.transaction() as connection:
            database.replace_hour(connection, "gpu_usage", "c1", [TEN], usage(usage_row()))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert database.read_hours("gpu_usage", "c1", TEN, TEN + HOUR).num_rows == 0


def test_one_writer_per_hour(database: Database) -> None:
    with database.transaction() as first:
        database.hour_lock(first, "c1", TEN)
        with database.transaction() as other:
            database.hour_lock(other, "c1", TEN + HOUR)
            database.hour_lock(other, "c2", TEN)
            other.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                database.hour_lock(other, "c1", TEN)


# Platform records


def test_loading_twice_adds_nothing_and_keeps_conflicts_in_order(database: Database) -> None:
    tables = {
        "workload_events": events(
            event("e1", TEN, gpu_uuids=["GPU-1"]),
            event("e1", TEN, gpu_uuids=["GPU-1"]),
            event("e1", TEN, gpu_count=Decimal(4)),
            event("e0", TEN - 100 * HOUR, namespace=None),
        ),
        "token_usage": pa.Table.from_pylist([token("t1", TEN, 10), token("t1", TEN, 11), token("t0", TEN, -1)]),
        "deployments": pa.Table.from_pylist(
            [{"deployment_id": "d", "mode": "shared", "owner_tenant_id": BOB}], lake.DEPLOYMENTS
        ),
        "deployment_storage": pa.Table.from_pylist(
            2 * [{"deployment_id": "d", "size_gb": Decimal("0.5"), "valid_from": TEN}], lake.DEPLOYMENT_STORAGE
        ),
        "gpu_inventory": pa.Table.from_pylist(
            [{"node": "n", "gpu_uuid": "GPU-1", "model": "H100", "valid_from": TEN}], lake.GPU_INVENTORY
        ),
        "allocation_policies": pa.Table.from_pylist(
            [{**policy(), "token_weights": '{"input":"1"}', "effective_from": TEN, "effective_to": None}],
            lake.ALLOCATION_POLICIES,
        ),
    }
    assert database.load_platform("c1", tables) == {
        "workload_events": 3, "token_usage": 3, "deployments": 1, "deployment_storage": 2, "gpu_inventory": 1,
        "allocation_policies": 1,
    }  # fmt: skip
    first = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)
    assert set(database.load_platform("c1", tables).values()) == {0}
    again = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)
    assert {name: table.schema for name, table in again.items()} == {name: lake.TABLES[name] for name in tables}
    assert all(again[name].equals(first[name]) for name in tables)
    assert [(row["event_id"], row["gpu_count"]) for row in again["workload_events"].to_pylist()] == [
        ("e1", 1), ("e1", 4), ("e0", 1)
    ]  # fmt: skip
    assert again["token_usage"]["input_tokens"].to_pylist() == [10, 11, -1]
    assert again["allocation_policies"].equals(tables["allocation_policies"])


DAY = 24 * HOUR
REMEMBERED: dict[str, tuple[list[tuple[float, str, str]], str, bool]] = {
    # workload, its events as (days before TEN, state, event_id), label, whether the hour of TEN needs them
    "long over": ([(30, "running", "a1"), (20, "stopped", "a2")], "a", False),
    "still running": ([(30, "running", "b1")], "b", True),
    "just over": ([(30, "running", "c1"), (0.5, "stopped", "c2")], "c", True),
    "runs across": ([(30, "running", "d1"), (-30, "stopped", "d2")], "d", True),
    "not yet": ([(-2, "running", "e1")], "e", False),
    "label still read": ([(30, "running", "f1"), (20, "stopped", "f2")], "read", True),
    "stopped by a copy": ([(30, "running", "g1"), (20, "stopped", "b1")], "g", True),
    "told twice": ([(30, "running", "h1"), (20, "stopped", "h2"), (20, "stopped", "h2")], "h", False),
    "told late": ([(20, "stopped", "i2"), (30, "running", "i1")], "i", False),
    "two states at once": ([(20, "running", "j1"), (20, "stopped", "j2")], "j", True),
    "two in a millisecond": ([(20, "running", "k1"), (20 - 2e-9, "stopped", "k2")], "k", True),
}


def test_workloads_that_are_long_over_are_not_read(database: Database) -> None:
    """What an hour reads does not grow with the past, and lacks nothing that can matter to it."""
    for workload, (events, label, _) in REMEMBERED.items():
        for days, state, event_id in events:
            row = {
                "event_id": event_id,
                "occurred_at": TEN - days * DAY,
                "workload_id": workload,
                "tenant_id": ALICE,
                "namespace": "ns",
                "pod": label,
                "to_state": state,
                "gpu_count": Decimal(1),
            }
            with database.transaction() as connection:
                database.copy(
                    connection,
                    "workload_events",
                    pa.Table.from_pylist([row], lake.WORKLOAD_EVENTS).append_column("cluster", pa.array(["c1"])),
                )
    found = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False, labels=["ns/read", "ns/none"])
    assert set(found["workload_events"]["workload_id"].to_pylist()) == {
        workload for workload, (_, _, needed) in REMEMBERED.items() if needed
    }
    past = [days * DAY for workload, (events, _, needed) in REMEMBERED.items() if needed for days, _, _ in events]
    assert found["workload_events"].num_rows == sum(ago > -DAY - HOUR for ago in past)


def lifecycle(workload: str, event_id: str, state: str, at: datetime) -> pa.Table:
    row = {"event_id": event_id, "occurred_at": at, "workload_id": workload, "tenant_id": ALICE, "to_state": state}
    table = pa.Table.from_pylist([{**row, "gpu_count": Decimal(1)}], lake.WORKLOAD_EVENTS)
    return table.append_column("cluster", pa.array(["c1"]))


def test_writers_of_events_never_wait_for_each_other(database: Database) -> None:
    """Two open transactions write the same workloads in opposite order, and one id twice: neither waits, all is seen."""
    old = TEN - 30 * DAY
    with database.transaction() as one, database.transaction() as two:
        for connection in (one, two):
            connection.execute("SET LOCAL lock_timeout = '2s'")
        database.copy(one, "workload_events", lifecycle("A", "a1", "running", old))
        database.copy(two, "workload_events", lifecycle("B", "b1", "running", old))
        database.copy(one, "workload_events", lifecycle("B", "same", "stopped", old + DAY))
        database.copy(two, "workload_events", lifecycle("A", "same", "stopped", old + DAY))
    found = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)["workload_events"]
    assert found["event_id"].to_pylist() == ["a1", "b1", "same", "same"], "one of the stops is a conflict (A5)"
    with database.transaction() as connection:
        database.copy(connection, "workload_events", lifecycle("A", "a2", "stopped", old + 2 * DAY))
        database.copy(connection, "workload_events", lifecycle("C", "c1", "running", old))
    found = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)["workload_events"]
    assert found["event_id"].to_pylist() == ["a1", "b1", "same", "same", "a2", "c1"]


def test_many_events_that_repeat_ids_are_folded_in_bulk(database: Database) -> None:
    """Twenty thousand workloads, each with an id that is there again with other content."""
    with database.transaction() as connection:
        connection.execute(
            "INSERT INTO eai.workload_events (cluster, event_id, occurred_at, workload_id, tenant_id, to_state, gpu_count, reason)"
            " SELECT 'c1', 'e' || n %% 20000, %s, 'w' || n %% 20000, %s, 'stopped', 1, n FROM generate_series(1, 40000) AS n",
            (TEN - 30 * DAY, ALICE),
        )
    found = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)["workload_events"]
    assert found.num_rows == 40_000


def test_a_disk_that_ended_is_the_same_disk(database: Database) -> None:
    disk = {"deployment_id": "d", "size_gb": Decimal(1), "valid_from": TEN, "valid_to": None}
    for end in (None, TEN + HOUR):
        exported = pa.Table.from_pylist([{**disk, "valid_to": end}], lake.DEPLOYMENT_STORAGE)
        database.load_platform("c1", {"deployment_storage": exported})
    found = database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)["deployment_storage"].to_pylist()
    assert [row["valid_to"] for row in found] == [TEN + HOUR]


def test_what_an_hour_reads(database: Database) -> None:
    end, ms = TEN + HOUR, timedelta(milliseconds=1)
    day = timedelta(hours=24)
    database.load_platform(
        "c1",
        {
            "workload_events": events(
                event("old", TEN - 1000 * HOUR), event("in", end + day - ms), event("late", end + day),
                event("twice", end + 3 * day), event("twice", TEN),
            ),
            "token_usage": pa.Table.from_pylist([
                token("old", TEN - day - ms, 1), token("first", TEN - day, 1), token("future", end + day - ms, 1),
                token("late", end + day, 1), token("twice", TEN - 9 * day, 1), token("twice", TEN, 2),
            ]),
        },
    )  # fmt: skip
    with database.transaction() as connection:
        near = end + day - timedelta(microseconds=400)
        connection.execute(
            "INSERT INTO eai.workload_events (event_id, occurred_at, workload_id, tenant_id, to_state) VALUES"
            " ('unclustered', %s, 'w', %s, 'running'), ('rounds up', %s, 'w', %s, 'running')",
            (TEN, ALICE, near, ALICE),
        )
    found = database.read_platform("c1", TEN, end, default_cluster=False)
    assert found["workload_events"]["event_id"].to_pylist() == ["old", "in", "twice", "twice"]
    assert found["token_usage"]["event_id"].to_pylist() == ["first", "future", "twice", "twice"]
    default = database.read_platform("c1", TEN, end, default_cluster=True)
    assert default["workload_events"]["event_id"].to_pylist() == ["old", "in", "twice", "twice", "unclustered"]
    assert database.read_platform("c2", TEN, end, default_cluster=False)["workload_events"].num_rows == 0


def test_a_bad_row_is_named_and_nothing_is_loaded(database: Database) -> None:
    tables = {"workload_events": events(event("e1", TEN), event("e2", TEN, tenant_id="acme"))}
    with pytest.raises(UsageError, match=r'workload_events: row 2: tenant_id: invalid .*"acme"'):
        database.load_platform("c1", tables)
    twice = 2 * [{"deployment_id": "d", "mode": "shared", "owner_tenant_id": BOB}]
    with pytest.raises(UsageError, match="deployments: row 2: deployment_id d is there twice"):
        database.load_platform(
            "c1",
            {"workload_events": events(event("e1", TEN)), "deployments": pa.Table.from_pylist(twice, lake.DEPLOYMENTS)},
        )
    odd = [{"deployment_id": "d", "mode": "rented", "owner_tenant_id": BOB}]
    with pytest.raises(UsageError, match=r"deployments: .*deployments_mode"):
        database.load_platform("c1", {"deployments": pa.Table.from_pylist(odd, lake.DEPLOYMENTS)})
    assert database.read_platform("c1", TEN, TEN + HOUR, default_cluster=False)["workload_events"].num_rows == 0


def test_policies_are_immutable(database: Database) -> None:
    def add(*documents: dict[str, Any]) -> int:
        with database.transaction() as connection:
            return len(database.add_policies(connection, documents, "allocation_policies.json"))

    assert add(policy(), policy(id="p2")) == 2
    assert add(policy(gpu_hourly_cost="2.1"), policy(id="p3")) == 1
    with pytest.raises(
        UsageError, match=r"allocation_policies.json: policy p1: pue is 1.5, but .* with 1.4; .*immutable"
    ):
        add(policy(id="p4"), policy(pue="1.5"))
    with pytest.raises(UsageError, match="policy p5: pue is 9, but"):
        add(policy(id="p5"), policy(id="p5", pue="9"))
    with pytest.raises(UsageError, match=r"allocation_policies.json: policy p6: gpu_hourly_cost must not be negative"):
        add(policy(id="p6", gpu_hourly_cost="-1"))
    assert database.query("SELECT count(*) AS n FROM eai.allocation_policies")["n"].to_pylist() == [3]


def test_the_audit_chain_does_not_fork(database: Database) -> None:
    def append(number: int) -> None:
        with database.transaction() as connection:
            database.append_audit(connection, "hour.published", {"n": number, "rows": [1.5, None, "é"]}, TEN)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(20)))
    chain = database.query(
        "SELECT seq, previous_sha256, entry_sha256, payload ->> 'n' AS n FROM eai.audit_events ORDER BY seq"
    )
    rows = chain.to_pylist()
    assert [row["seq"] for row in rows] == list(range(1, 21))
    assert sorted(int(row["n"]) for row in rows) == list(range(20))
    assert [row["previous_sha256"] for row in rows] == ["0" * 64, *(row["entry_sha256"] for row in rows[:-1])]


# What can go wrong with the connection


def test_wrong_connections_are_one_line(empty: dict[str, str]) -> None:
    good = sa.make_url(empty["url"])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = unused.getsockname()[1]
    cases = [
        (good.set(password="s3cret"), UsageError, "wrong user or password"),
        (good.set(database="nowhere"), UsageError, "no such database"),
        (good.set(host="nowhere.invalid"), SourceError, "host name"),
        (good.set(port=closed), SourceError, "connection refused"),
        (good, UsageError, "schema eai is not installed|not a member|permission denied"),
    ]
    for url, kind, message in cases:
        database = Database(url.render_as_string(hide_password=False))
        assert str(url.password) not in repr(database)
        with pytest.raises(kind, match=message) as caught:
            database.query("SELECT 1 FROM eai.hour_runs")
        database.close()
        assert str(url.password) not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert url.username is not None
        assert url.username in str(caught.value)
        if "refused" in message:
            assert isinstance(caught.value, SourceError)
            assert caught.value.transient
    with pytest.raises(UsageError, match="EAI_DATABASE_URL is not a Postgres URL") as caught:
        Database("mysql://user:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_a_login_outside_the_role_is_told_what_to_grant(urls: dict[str, str], database: Database) -> None:
    with psycopg.connect(urls["admin_url"], autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'pw'")
    url = sa.make_url(urls["url"]).set(username="stranger", password="pw").render_as_string(hide_password=False)
    refused = Database(url)
    with pytest.raises(UsageError, match="GRANT eai_pipeline TO stranger"):
        refused.query("SELECT 1")
    with pytest.raises(UsageError, match=r"stranger@.*administrator"):
        refused.migrate()
    refused.close()


def test_a_login_with_createrole_installs_a_new_server(package: Path | None, tmp_path: Path) -> None:
    with embedded.start(tmp_path / "server", package=package) as server:
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            connection.execute("CREATE ROLE installer LOGIN PASSWORD 'pw' CREATEROLE")
            connection.execute(f"GRANT CREATE ON DATABASE {embedded.DATABASE} TO installer")
        url = sa.make_url(server.url).set(username="installer", password="pw").render_as_string(hide_password=False)
        database = Database(url)
        database.migrate()
        database.migrate()
        found = database.query("SELECT current_user::text AS role, tableowner::text AS owner FROM pg_tables"
                               " WHERE schemaname = 'eai' GROUP BY tableowner")  # fmt: skip
        database.close()
    assert found.to_pylist() == [{"role": "eai_pipeline", "owner": "eai_owner"}]


def test_an_administrator_prepares_the_roles_for_a_plain_login(package: Path | None, tmp_path: Path) -> None:
    with embedded.start(tmp_path / "server", package=package) as server:
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            connection.execute("CREATE ROLE plain LOGIN PASSWORD 'pw'")
            connection.execute(f"GRANT CREATE ON DATABASE {embedded.DATABASE} TO plain")
            connection.execute(
                files("finops_pipeline.contracts.migrations").joinpath("roles.sql").read_text(encoding="utf-8")
            )
            connection.execute("GRANT eai_owner, eai_pipeline TO plain")
        url = sa.make_url(server.url).set(username="plain", password="pw").render_as_string(hide_password=False)
        database = Database(url)
        database.migrate()
        found = database.query("SELECT count(*) AS n FROM eai.hour_runs")
        database.close()
    assert found.to_pylist() == [{"n": 0}]


def test_a_lost_connection_is_transient_and_the_next_use_works(urls: dict[str, str], database: Database) -> None:
    def lose() -> None:
        with psycopg.connect(urls["admin_url"], autocommit=True) as admin, database.transaction() as connection:
            admin.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
            connection.execute("SELECT 1")

    with pytest.raises(SourceError) as caught:
        lose()
    assert caught.value.transient
    assert database.query("SELECT 1 AS one")["one"].to_pylist() == [1]
