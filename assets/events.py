"""Last hourly stage: what is new against the ledger is booked, once and for ever (A31, A32, A34)."""

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import dagster as dg
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.exact import hour_text, instant_of
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.credits import Allocated
from finops_pipeline.accounting.money.ledger import booked_sums, differences
from finops_pipeline.assets.allocation import quarantine
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, failing_clearly, hours_of, span_text
from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.credits import propose
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.credits import credit_differences
from finops_pipeline.resources.postgres.usage_rows import QUALITY, event_rows
from finops_pipeline.resources.site import Site

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
def usage_events(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One row per immutable usage event: the difference between an hour's result and what is booked of it."""
    booked = identical = proposed = 0
    shares: list[Decimal] = []
    with failing_clearly(site):
        hours = hours_of(context, site)
        for cluster in site.doors:
            for hour in hours:
                events, rows = book(site, cluster, hour, context.run.run_id)
                booked += events
                identical += rows - min(events, rows)
                share = estimated_share(site.lake.require("gpu_usage", cluster, hour))
                shares += [share] if share is not None else []
                site.progress("usage_events", hour)
            proposed += propose(site, cluster, hours)
    highest = max(shares, default=Decimal(0))
    return dg.MaterializeResult(
        metadata={
            "hours": span_text(hours),
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


def book(site: Site, cluster: str, hour: int, run_id: str) -> tuple[int, int]:
    """Book one hour's differences in one transaction; how many events, and how many allocation rows there are."""
    allocation = site.lake.require("gpu_cost_allocation", cluster, hour)
    usage = site.lake.require("gpu_usage", cluster, hour)
    with site.database.transaction() as connection:
        site.database.hour_lock(connection, cluster, instant_of(hour))
        events = differences(allocation, usage, booked_sums(booked_events(site, connection, cluster, hour)))
        refuse_conflicts(site, connection, events)
        site.database.copy(connection, "usage_events", event_rows(events))
        reached("events booked")
        events += follow_with_credits(site, connection, cluster, hour)
        changed = _mark(site, connection, cluster, hour, usage, allocation, run_id)
        if events or changed:
            payload = {
                "cluster": cluster,
                "hour": hour_text(hour),
                "events": len(events),
                "events_sha256": hashlib.sha256("".join(e["content_sha256"] for e in events).encode()).hexdigest(),
            }
            site.database.append_audit(connection, "hour.published", payload, instant_of(site.now_ms()))
        reached("hour audited")
    reached("hour published")
    return len(events), len(allocation)


def refuse_conflicts(site: Site, connection: Connection, events: Sequence[dict[str, Any]]) -> None:
    """Stops with nothing changed if the ledger holds other content under the id of a new event (A31)."""
    new = {event["event_id"]: event["content_sha256"] for event in events}
    found = site.database.query(
        "SELECT event_id, content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' AND event_id = ANY(%s)",
        (list(new),),
        connection=connection,
    )
    for event_id, booked in zip(texts(found["event_id"]), texts(found["content_sha256"]), strict=True):
        raise FinopsError(
            f"usage event {event_id} is booked with content {booked}, this run has {new[event_id]} for it (A31): "
            "nothing was booked; `finops explain` shows the booked one, `finops audit verify` whether it was tampered with"
        )


def booked_events(site: Site, connection: Connection, cluster: str, hour: int) -> list[dict[str, Any]]:
    """The documents that the ledger holds of one hour, without credits, which follow what is charged."""
    found = site.database.query(
        "SELECT event_id, content_sha256, document FROM eai.usage_events"
        " WHERE usage_type <> 'llm' AND cluster = %s AND period_start = %s AND workload_id NOT LIKE 'credit:%%'",
        (cluster, instant_of(hour)),
        connection=connection,
    )
    return [msgspec.json.decode(document) for document in texts(found["document"])]


def follow_with_credits(site: Site, connection: Connection, cluster: str, hour: int) -> list[dict[str, Any]]:
    """Book what the approved credits of the hour have to change by, now that its charges are booked."""

    def allocated(workload: str) -> Allocated:
        events = site.lake.require("workload_events", cluster, hour)
        return Allocated(running_intervals(events, site.now_ms(), site.config), workload, site.config)

    events = credit_differences(site.database, connection, cluster, [hour], allocated)
    site.database.copy(connection, "usage_events", event_rows(events))
    return events


def estimated_share(usage: pa.Table) -> Decimal | None:
    """Part of the device time that was not measured; None without device time."""
    known = {name: pc.sum(usage[name]).as_py() or Decimal(0) for name in QUALITY}
    whole = sum(known.values(), Decimal(0))
    return None if not whole else 1 - known["measured_seconds"] / whole


def _mark(
    site: Site, connection: Connection, cluster: str, hour: int, usage: pa.Table, allocation: pa.Table, run_id: str
) -> bool:
    """Write the hour's marker; whether the hour is new or its result has changed since it was last published."""
    facts = site.lake.require("hour_facts", cluster, hour).to_pylist()[0]
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
            allocation["amount"].null_count,
            len(quarantine(site, cluster, hour)),
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
