"""Last hourly stage: what is new against the ledger is booked, once and for ever (A31, A32, A34)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import dagster as dg
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import hour_text, instant_of
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.credits import Allocated
from finops_pipeline.accounting.money.ledger import booked_sums, differences
from finops_pipeline.assets.allocation import unpriced_rows
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, span_text, stage_of
from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.credits import propose
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.credits import credit_differences
from finops_pipeline.resources.postgres.usage_rows import QUALITY, event_rows
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

COVERED = "little_is_estimated"
ESTIMATED_LIMIT = Decimal("0.10")


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"postgres"},
    deps=["gpu_cost_allocation", "gpu_usage"],
    check_specs=[
        dg.AssetCheckSpec(
            COVERED, asset="usage_events", description="At most 10 % of device time is not measured (A15)."
        )
    ],
)
def usage_events(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> dg.MaterializeResult:
    """One row per immutable usage event: the difference between an hour's result and what is booked of it."""
    booked = identical = 0
    highest = Decimal(0)
    with stage_of(context, source, watch) as stage:
        stage.begin(ledger)
        for done in stage.each(
            lambda cluster, hour: book(lake, ledger, rules, cluster, hour, source.now_ms(), stage.run_id),
            line=lambda done: f"{done.events} events booked for {done.rows} rows",
        ):
            booked += done.events
            identical += done.rows - min(done.events, done.rows)
            highest = max(highest, done.estimated_share or Decimal(0))
        proposed = sum(propose(ledger, source, rules, cluster, stage.hours) for cluster in stage.clusters)
    return dg.MaterializeResult(
        metadata={
            "hours": span_text(stage.hours),
            "booked": booked,
            "unchanged": identical,
            "credits_proposed": proposed,
            "highest_estimated_share": float(round(highest, 6)),
        },
        check_results=[
            dg.AssetCheckResult(
                passed=highest <= ESTIMATED_LIMIT,
                check_name=COVERED,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"highest_estimated_share": float(round(highest, 6))},
            )
        ],
    )


@dataclass(frozen=True)
class Booked:
    """What came of booking an hour."""

    events: int
    rows: int
    """of its allocation"""
    estimated_share: Decimal | None
    """part of its device time that was not measured; None without device time"""


def book(
    lake: Lake, ledger: Database, rules: AccountingConfig, cluster: str, hour: int, now_ms: int, run_id: str
) -> Booked:
    """Book one hour's differences in one transaction."""
    allocation = lake.require("gpu_cost_allocation", cluster, hour)
    usage = lake.require("gpu_usage", cluster, hour)
    with ledger.transaction() as connection:
        ledger.hour_lock(connection, cluster, instant_of(hour))
        events = differences(allocation, usage, booked_sums(booked_events(ledger, connection, cluster, hour)))
        refuse_conflicts(ledger, connection, events)
        ledger.copy(connection, "usage_events", event_rows(events))
        reached("events booked")
        events += follow_with_credits(lake, ledger, rules, connection, cluster, hour, now_ms)
        changed = _mark(lake, connection, cluster, hour, usage, allocation, unpriced_rows(allocation, rules), run_id)
        ledger.settle_hour(connection, cluster, instant_of(hour), run_id)
        if events or changed:
            payload = {
                "cluster": cluster,
                "hour": hour_text(hour),
                "events": len(events),
                "events_sha256": hashlib.sha256("".join(e["content_sha256"] for e in events).encode()).hexdigest(),
            }
            ledger.append_audit(connection, "hour.published", payload, instant_of(now_ms))
        reached("hour audited")
    reached("hour published")
    return Booked(len(events), len(allocation), estimated_share(usage))


def refuse_conflicts(ledger: Database, connection: Connection, events: Sequence[dict[str, Any]]) -> None:
    """Stops with nothing changed if the ledger holds other content under the id of a new event (A31)."""
    new = {event["event_id"]: event["content_sha256"] for event in events}
    found = ledger.query(
        "SELECT event_id, content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' AND event_id = ANY(%s)",
        (list(new),),
        connection=connection,
    )
    for event_id, booked in zip(texts(found["event_id"]), texts(found["content_sha256"]), strict=True):
        raise FinopsError(
            f"usage event {event_id} is booked with content {booked}, this run has {new[event_id]} for it (A31): "
            "nothing was booked; `finops explain` shows the booked one, `finops audit verify` whether it was tampered with"
        )


def booked_events(ledger: Database, connection: Connection, cluster: str, hour: int) -> list[dict[str, Any]]:
    """The documents that the ledger holds of one hour, without credits, which follow what is charged."""
    found = ledger.query(
        "SELECT event_id, content_sha256, document FROM eai.usage_events"
        " WHERE usage_type <> 'llm' AND cluster = %s AND period_start = %s AND workload_id NOT LIKE 'credit:%%'",
        (cluster, instant_of(hour)),
        connection=connection,
    )
    return [msgspec.json.decode(document) for document in texts(found["document"])]


def follow_with_credits(
    lake: Lake,
    ledger: Database,
    rules: AccountingConfig,
    connection: Connection,
    cluster: str,
    hour: int,
    now_ms: int,
) -> list[dict[str, Any]]:
    """Book what the approved credits of the hour have to change by, now that its charges are booked."""

    def allocated(workload: str) -> Allocated:
        events = lake.require("workload_events", cluster, hour)
        return Allocated(running_intervals(events, now_ms, rules), workload, rules)

    events = credit_differences(ledger, connection, cluster, [hour], allocated)
    ledger.copy(connection, "usage_events", event_rows(events))
    return events


def estimated_share(usage: pa.Table) -> Decimal | None:
    """Part of the device time that was not measured; None without device time."""
    known = {name: pc.sum(usage[name]).as_py() or Decimal(0) for name in QUALITY}
    whole = sum(known.values(), Decimal(0))
    return None if not whole else 1 - known["measured_seconds"] / whole


def _mark(
    lake: Lake,
    connection: Connection,
    cluster: str,
    hour: int,
    usage: pa.Table,
    allocation: pa.Table,
    unpriced: int,
    run_id: str,
) -> bool:
    """Write the hour's marker; whether the hour is new or its result has changed since it was last published."""
    facts = lake.require("hour_facts", cluster, hour).to_pylist()[0]
    share = estimated_share(usage)
    digest = fingerprint(allocation)
    row = connection.execute(
        "SELECT input_fingerprint FROM eai.hour_runs WHERE cluster = %s AND hour = %s", (cluster, instant_of(hour))
    ).fetchone()
    connection.execute(
        "INSERT INTO eai.hour_runs (cluster, hour, published_at, provisional, estimated_share, unpriced, quarantined,"
        " input_fingerprint, run_id) VALUES (%s, %s, now(), %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (cluster, hour) DO UPDATE SET published_at = excluded.published_at,"
        " provisional = excluded.provisional, estimated_share = excluded.estimated_share,"
        " unpriced = excluded.unpriced, quarantined = excluded.quarantined,"
        " input_fingerprint = excluded.input_fingerprint, run_id = excluded.run_id",
        (
            cluster,
            instant_of(hour),
            facts["provisional"],
            None if share is None else round(share, 9),
            unpriced,
            len(lake.set_aside(cluster, hour)),
            digest,
            run_id,
        ),
    )
    return row is None or row[0] != digest


def fingerprint(table: pa.Table) -> str:
    """A digest of a table's rows, whatever its chunks."""
    digest = hashlib.sha256()
    for row in table.to_pylist():
        digest.update(repr(sorted(row.items())).encode())
    return digest.hexdigest()
