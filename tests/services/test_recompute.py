"""Which published hours may be out of date: each reason on a database of its own (A16, A32)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from finops_pipeline.resources.postgres.client import Database
from tests.databases import Databases

TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PUBLISHED = TEN + 80 * MINUTE
ALICE = "a0000000-0000-4000-8000-00000000000a"
BOB = "b0000000-0000-4000-8000-00000000000b"
HOURS = [TEN - HOUR, TEN, TEN + HOUR]


class Fleet:
    """A database in which 09:00 to 11:00 of one cluster are to be published; what the platform writes goes by one connection."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.platform = psycopg.connect(url, autocommit=True)

    def publish(self, *hours: datetime, run: str = "r1") -> None:
        self.database.begin_reading("c1", hours, run)
        self.book(*hours, run=run)

    def book(self, *hours: datetime, run: str) -> None:
        with self.database.transaction() as connection:
            for hour in hours:
                connection.execute(
                    "INSERT INTO eai.hour_runs VALUES ('c1', %s, %s, false, null, 0, 0, '', %s)"
                    " ON CONFLICT (cluster, hour) DO UPDATE SET run_id = excluded.run_id",
                    (hour, PUBLISHED, run),
                )
                self.database.settle_hour(connection, "c1", hour, run)

    def stale(self) -> list[tuple[int, str]]:
        return [(row["hour"].hour, row["reason"]) for row in self.database.hours_to_recompute()]

    def event(
        self,
        state: str,
        at: datetime,
        *,
        pod: str | None = None,
        by: psycopg.Connection[tuple[object, ...]] | None = None,
    ) -> None:
        (by or self.platform).execute(
            "INSERT INTO eai.workload_events (cluster, event_id, occurred_at, workload_id, tenant_id, to_state, gpu_count, pod)"
            " VALUES ('c1', %s, %s, 'w', %s, %s, 1, %s)",
            (f"{state} {at}", at, ALICE, state, pod),
        )

    def usage(self, hour: datetime, workload: str, deployment: str, basis: str) -> None:
        self.platform.execute(
            "INSERT INTO eai.gpu_usage (cluster, hour, workload_id, gpu_model, tenant_id, attributed, deployment_id, basis,"
            " methods, estimated) VALUES ('c1', %s, %s, 'H100', %s, true, %s, %s, '', false)",
            (hour, workload, ALICE, deployment, basis),
        )

    def deploy(self, owner: str = ALICE, **columns: object) -> None:
        names = ["cluster", "deployment_id", "mode", "owner_tenant_id", *columns]
        self.platform.execute(
            f"INSERT INTO eai.deployments ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
            ["c1", "d", "shared", owner, *columns.values()],
        )

    def disk(self, first: datetime, past: datetime | None) -> None:
        self.platform.execute("INSERT INTO eai.deployment_storage VALUES ('c1', 'd', 10, %s, %s)", (first, past))


@pytest.fixture
def fleet(databases: Databases) -> Iterator[Fleet]:
    fleet = Fleet(databases.admin(databases.fresh()))
    yield fleet
    fleet.platform.close()
    fleet.database.close()


LATE_EVENT = "a lifecycle event was recorded late"
RUNS = "its stages are not all of one run"


def test_what_was_written_before_the_records_were_read(fleet: Fleet) -> None:
    fleet.event("running", TEN + MINUTE, pod="p")
    fleet.event("stopped", TEN + 30 * MINUTE)
    fleet.deploy()
    fleet.disk(TEN, None)
    fleet.publish(*HOURS)
    assert fleet.stale() == []


def test_an_event_that_arrives_after_the_records_were_read(fleet: Fleet) -> None:
    fleet.event("running", TEN + MINUTE)
    fleet.database.begin_reading("c1", HOURS, "r1")
    fleet.event("stopped", TEN + 30 * MINUTE)
    fleet.book(*HOURS, run="r1")
    assert fleet.stale() == [(10, LATE_EVENT), (11, LATE_EVENT)]


def test_a_transaction_that_was_open_while_the_records_were_read(fleet: Fleet) -> None:
    """Its clock says that it was written before; nobody could read it."""
    with psycopg.connect(fleet.platform.info.dsn, password=fleet.platform.info.password) as late:
        fleet.event("running", TEN - MINUTE, by=late)
        fleet.publish(*HOURS)
        assert fleet.stale() == []
    assert fleet.stale() == [(9, LATE_EVENT), (10, LATE_EVENT), (11, LATE_EVENT)]


def test_a_start_touches_the_hours_up_to_the_next_event(fleet: Fleet) -> None:
    fleet.event("stopped", TEN + 30 * MINUTE)
    fleet.publish(*HOURS)
    fleet.event("running", TEN - 30 * MINUTE)
    assert fleet.stale() == [(9, LATE_EVENT), (10, LATE_EVENT)]


def test_what_an_event_says_of_its_pod_is_taken_on_until_one_says_it_too(fleet: Fleet) -> None:
    fleet.event("stopped", TEN - MINUTE)
    fleet.publish(*HOURS)
    fleet.event("running", TEN - 30 * MINUTE, pod="p")
    assert [hour for hour, _ in fleet.stale()] == [9, 10, 11]


def test_a_pod_that_was_accounted_by_its_samples_until_its_events_came(fleet: Fleet) -> None:
    fleet.usage(TEN - HOUR, "ns/p", "ns/p", "samples")
    fleet.publish(*HOURS)
    fleet.platform.execute(
        "INSERT INTO eai.workload_events (cluster, event_id, occurred_at, workload_id, tenant_id, to_state, namespace, pod)"
        " VALUES ('c1', 'e', %s, 'w', %s, 'stopped', 'ns', 'p')",
        (TEN + 130 * MINUTE, ALICE),
    )
    assert fleet.stale() == [(9, LATE_EVENT)]


def test_a_label_of_an_hour_that_is_being_computed_is_looked_for_when_it_is_published(fleet: Fleet) -> None:
    fleet.database.begin_reading("c1", HOURS[:1], "r1")
    fleet.event("running", TEN + 30 * MINUTE, pod="p")
    assert fleet.stale() == []
    fleet.usage(TEN - HOUR, "/p", "/p", "samples")
    fleet.book(*HOURS[:1], run="r1")
    assert fleet.stale() == [(9, LATE_EVENT)]


def test_reading_the_hour_again_settles_it_once_it_is_published(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.event("stopped", TEN + 30 * MINUTE)
    assert [hour for hour, _ in fleet.stale()] == [10, 11]
    fleet.database.begin_reading("c1", HOURS, "r2")
    assert [hour for hour, _ in fleet.stale()] == [9, 10, 11], "its result is the published one until then"
    fleet.book(*HOURS, run="r2")
    assert fleet.stale() == []


def test_a_run_settles_only_what_it_had_seen(fleet: Fleet) -> None:
    """What is written while it computes is not in its result; what another run has read is not either."""
    fleet.publish(*HOURS)
    fleet.database.begin_reading("c1", HOURS, "r2")
    fleet.event("stopped", TEN + 30 * MINUTE)
    fleet.book(*HOURS, run="r2")
    assert fleet.stale() == [(10, LATE_EVENT), (11, LATE_EVENT)]
    fleet.database.begin_reading("c1", HOURS, "r3")
    fleet.book(*HOURS, run="r2")
    assert [hour for hour, _ in fleet.stale()] == [9, 10, 11]


def test_a_run_that_began_a_stage_and_did_not_publish(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.database.begin_stage(["c1"], [TEN], "r2")
    assert fleet.stale() == [(10, RUNS)]
    fleet.book(TEN, run="r2")
    assert fleet.stale() == [(10, RUNS)], "it published what another run had read"
    fleet.publish(TEN, run="r3")
    assert fleet.stale() == []


def test_tokens(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.platform.execute(
        "INSERT INTO eai.usage_events (cluster, event_id, occurred_at, tenant_id, usage_type, deployment_id, input_tokens,"
        " output_tokens, cached_tokens, source, booked_at) VALUES ('c1', 't', %s, %s, 'llm', 'd', 1, 1, 0, 'gateway', %s)",
        (TEN + MINUTE, ALICE, TEN + MINUTE),
    )
    assert fleet.stale() == [(10, "tokens were recorded late")], "whatever the gateway's clock says"


def policy(fleet: Fleet, idle_policy: str) -> None:
    fleet.platform.execute(
        "INSERT INTO eai.allocation_policies (id, name, deployment_pattern, currency, gpu_hourly_cost, overhead_pct,"
        " energy_kwh_price, pue, storage_gb_month_price, idle_policy, effective_from, status)"
        " VALUES ('p', 'p', '*', 'EUR', 1, 0, 0, 1, 0, %s, %s, 'active')",
        (idle_policy, TEN),
    )


def test_tokens_that_later_hours_look_back_on(fleet: Fleet) -> None:
    policy(fleet, "proportional")
    fleet.publish(*HOURS)
    fleet.platform.execute(
        "INSERT INTO eai.usage_events (cluster, event_id, occurred_at, tenant_id, usage_type, deployment_id, input_tokens,"
        " output_tokens, cached_tokens, source) VALUES (NULL, 't', %s, %s, 'llm', 'd', 1, 1, 0, 'gateway')",
        (TEN + MINUTE, ALICE),
    )
    assert [hour for hour, _ in fleet.stale()] == [10, 11]


def test_a_policy(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    policy(fleet, "owner")
    assert fleet.stale() == [(10, "a policy was added or ended"), (11, "a policy was added or ended")]


def test_a_disk_and_its_end(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.disk(TEN + 30 * MINUTE, None)
    assert fleet.stale() == [(10, "a disk was recorded"), (11, "a disk was recorded")]
    fleet.publish(*HOURS, run="r2")
    fleet.platform.execute("UPDATE eai.deployment_storage SET valid_to = %s", (TEN + 90 * MINUTE,))
    assert fleet.stale() == [(11, "a disk was recorded")]


def test_the_inventory(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.platform.execute(
        "INSERT INTO eai.gpu_inventory VALUES ('c1', 'n', 'g', 'H100', %s, %s)", (TEN, TEN + 30 * MINUTE)
    )
    assert fleet.stale() == [(10, "the inventory was changed")]


def test_a_deployment_touches_the_hours_that_have_something_of_it(fleet: Fleet) -> None:
    fleet.usage(TEN, "w", "d", "lifecycle")
    fleet.publish(*HOURS)
    fleet.deploy()
    assert fleet.stale() == [(10, "a deployment was recorded")]


@pytest.mark.parametrize(
    "change", ["UPDATE eai.deployments SET owner_tenant_id = %s", "DELETE FROM eai.deployments WHERE %s <> ''"]
)
def test_what_a_deployment_was_stays_for_the_hours_that_had_begun(fleet: Fleet, change: str) -> None:
    fleet.deploy()
    fleet.usage(TEN, "w", "d", "lifecycle")
    fleet.publish(*HOURS)
    before = fleet.database.read_platform("c1", TEN, TEN + HOUR, default_cluster=True)["deployments"].to_pylist()
    fleet.platform.execute(change, (BOB,))
    assert fleet.stale() == []
    after = fleet.database.read_platform("c1", TEN, TEN + HOUR, default_cluster=True)["deployments"].to_pylist()
    [was] = [row for row in after if row["valid_to"] is not None]
    assert [was | {"valid_to": None}] == before
    assert was["valid_to"] > datetime.now(UTC)
    assert [(row["owner_tenant_id"], row["valid_from"]) for row in after if row["valid_to"] is None] == (
        [(BOB, was["valid_to"])] if "UPDATE" in change else []
    )


def test_a_table_that_is_loaded_anew_says_what_it_said(fleet: Fleet) -> None:
    """A platform that deletes all rows and inserts them again has changed nothing, and no disk counts twice."""
    fleet.deploy()
    fleet.disk(TEN, None)
    rows = fleet.platform.execute(
        "SELECT cluster, deployment_id, size_gb, valid_from, valid_to FROM eai.deployment_storage"
    )
    [disk] = rows.fetchall()
    fleet.platform.execute("DELETE FROM eai.deployments; DELETE FROM eai.deployment_storage")
    fleet.deploy()
    fleet.platform.execute("INSERT INTO eai.deployment_storage VALUES (%s, %s, %s, %s, %s)", disk)
    for table in ("deployments", "deployment_storage"):
        read = fleet.database.read_platform("c1", TEN, TEN + HOUR, default_cluster=True)[table].to_pylist()
        earlier, later = sorted(read, key=lambda row: row["valid_to"] is None)
        assert earlier["valid_to"] == later["valid_from"]


def test_a_row_that_says_itself_since_when_overrides_what_was(fleet: Fleet) -> None:
    fleet.deploy()
    fleet.platform.execute("UPDATE eai.deployments SET owner_tenant_id = %s, valid_from = %s", (BOB, TEN))
    read = fleet.database.read_platform("c1", TEN, TEN + HOUR, default_cluster=True)["deployments"].to_pylist()
    assert {(row["owner_tenant_id"], row["valid_from"], row["valid_to"]) for row in read} == {
        (ALICE, None, TEN),
        (BOB, TEN, None),
    }


def test_no_table_is_emptied_past_its_memory(fleet: Fleet) -> None:
    with pytest.raises(psycopg.errors.RestrictViolation, match="TRUNCATE refused"):
        fleet.platform.execute("TRUNCATE eai.deployments")


def test_later_readings(fleet: Fleet) -> None:
    fleet.publish(*HOURS)
    fleet.platform.execute("UPDATE eai.hour_runs SET provisional = true WHERE hour = %s", (TEN,))
    assert fleet.stale() == []
    fleet.platform.execute("UPDATE eai.hour_runs SET published_at = %s WHERE hour = %s", (PUBLISHED + HOUR, TEN + HOUR))
    assert fleet.stale() == [(10, "later readings have arrived")]
