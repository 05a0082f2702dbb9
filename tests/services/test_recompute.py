"""Which published hours may be out of date: each reason on a database of its own (A16, A32)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from finops_pipeline.resources.postgres.client import Database
from tests.databases import Databases

TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
READ, PUBLISHED = TEN + 70 * MINUTE, TEN + 80 * MINUTE
TENANT = "a0000000-0000-4000-8000-00000000000a"


@pytest.fixture
def url(databases: Databases) -> str:
    """A database in which 09:00 to 11:00 of one cluster are published; their records were read ten minutes before."""
    url = databases.fresh()
    with psycopg.connect(databases.admin(url)) as connection:
        for hour in (TEN - HOUR, TEN, TEN + HOUR):
            connection.execute("INSERT INTO eai.hour_reads VALUES ('c1', %s, %s)", (hour, READ))
            connection.execute(
                "INSERT INTO eai.hour_runs VALUES ('c1', %s, %s, false, null, 0, 0, '', null)", (hour, PUBLISHED)
            )
    return databases.admin(url)


def stale(url: str) -> list[tuple[int, str]]:
    database = Database(url)
    try:
        return [(row["hour"].hour, row["reason"]) for row in database.hours_to_recompute()]
    finally:
        database.close()


def event(url: str, state: str, occurred_at: datetime, received_at: datetime) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO eai.workload_events (cluster, event_id, occurred_at, workload_id, tenant_id, to_state, gpu_count,"
            " received_at) VALUES ('c1', %s, %s, 'w', %s, %s, 1, %s)",
            (f"{state} {occurred_at}", occurred_at, TENANT, state, received_at),
        )


LATE_EVENT = "a lifecycle event was recorded late"


def test_nothing_has_changed(url: str) -> None:
    event(url, "running", TEN + MINUTE, TEN + MINUTE)
    event(url, "stopped", TEN + 30 * MINUTE, READ - MINUTE)
    assert stale(url) == []


@pytest.mark.parametrize("received_at", [READ + MINUTE, PUBLISHED + MINUTE], ids=["before publication", "after it"])
def test_an_event_that_arrives_after_the_records_were_read(url: str, received_at: datetime) -> None:
    event(url, "running", TEN + MINUTE, TEN + MINUTE)
    event(url, "stopped", TEN + 30 * MINUTE, received_at)
    assert stale(url) == [(10, LATE_EVENT), (11, LATE_EVENT)]


def test_a_start_touches_the_hours_up_to_the_next_event(url: str) -> None:
    event(url, "stopped", TEN + 30 * MINUTE, TEN + 30 * MINUTE)
    event(url, "running", TEN - 30 * MINUTE, PUBLISHED + MINUTE)
    assert stale(url) == [(9, LATE_EVENT), (10, LATE_EVENT)]


def test_reading_the_hour_again_settles_it(url: str) -> None:
    event(url, "stopped", TEN + 30 * MINUTE, PUBLISHED + MINUTE)
    database = Database(url)
    database.note_read("c1", [TEN, TEN + HOUR], PUBLISHED + 2 * MINUTE)
    assert database.clock() > PUBLISHED
    database.close()
    assert [hour for hour, _ in stale(url)] == [10, 11], "its result is the published one until it is published again"
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE eai.hour_runs SET published_at = %s", (PUBLISHED + 3 * MINUTE,))
    assert stale(url) == []


def test_tokens(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO eai.usage_events (cluster, event_id, occurred_at, tenant_id, usage_type, deployment_id, input_tokens,"
            " output_tokens, cached_tokens, source, booked_at) VALUES ('c1', 't', %s, %s, 'llm', 'd', 1, 1, 0, 'gateway', %s)",
            (TEN + MINUTE, TENANT, READ + MINUTE),
        )
    assert stale(url) == [(10, "tokens were recorded late")]


def test_a_policy(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO eai.allocation_policies (id, name, deployment_pattern, currency, gpu_hourly_cost, overhead_pct,"
            " energy_kwh_price, pue, storage_gb_month_price, idle_policy, effective_from, status, created_at)"
            " VALUES ('p', 'p', '*', 'EUR', 1, 0, 0, 1, 0, 'owner', %s, 'active', %s)",
            (TEN, READ + MINUTE),
        )
    assert stale(url) == [(10, "a policy was added"), (11, "a policy was added")]


def test_later_readings(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE eai.hour_runs SET provisional = true WHERE hour = %s", (TEN,))
    assert stale(url) == []
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE eai.hour_runs SET published_at = %s WHERE hour = %s", (PUBLISHED + HOUR, TEN + HOUR))
    assert stale(url) == [(10, "later readings have arrived")]
