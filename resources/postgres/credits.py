"""Credits in Postgres: proposals, decisions, and what the ledger must hold of them.

What belongs here: rows in and out, in the caller's transaction. What does not: when something is proposed and who may
decide (resources/credits.py), and the arithmetic (accounting/money/credits.py).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pyarrow as pa

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.exact import HOUR_MS, hour_text, ms_of, rows_of
from finops_pipeline.accounting.money.credits import (
    KINDS,
    Allocated,
    Charge,
    Proposal,
    credit_rows,
    evidence,
    grants,
)
from finops_pipeline.accounting.money.ledger import booked_sums, differences
from finops_pipeline.contracts import lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection

Account = tuple[str, str, str]
"""tenant, deployment, currency"""
PROPOSED = pa.schema(
    [pa.field(name, pa.string()) for name in ("id", "cluster", "workload_id", "tenant_id", "deployment_id", "currency")]
    + [pa.field(name, lake.INSTANT) for name in ("window_from", "window_to")]
    + [pa.field("gpu_seconds", lake.SECONDS), pa.field("amount", lake.AMOUNT)]
    + [pa.field(name, pa.string()) for name in ("reason", "shares", "evidence", "status")]
)
_CHARGES = pa.schema(
    [pa.field("hour", lake.INSTANT)]
    + [pa.field(name, pa.string()) for name in ("tenant_id", "deployment_id", "currency")]
    + [pa.field("gpu_seconds", lake.SECONDS), pa.field("amount", lake.AMOUNT), pa.field("estimated", pa.bool_())]
)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def suspects(database: Database, connection: Connection, cluster: str, first: int, past: int) -> list[str]:
    """Workloads whose proposals the hours of `[first, past)` may change."""
    found = database.query(
        "SELECT workload_id FROM eai.findings WHERE cluster = %s AND hour >= %s AND hour < %s"
        " AND kind IN ('no_sign_of_life', 'node_failure')"
        " UNION SELECT workload_id FROM eai.credit_proposals WHERE cluster = %s AND status = 'proposed'"
        " AND window_from < %s AND window_to >= %s ORDER BY 1",
        (cluster, at(first), at(past), cluster, at(past), at(first)),
        connection=connection,
    )
    return [str(workload) for workload in texts(found["workload_id"])]


def findings_of(database: Database, connection: Connection, cluster: str, workload_id: str) -> pa.Table:
    """FINDINGS of a workload that may lead to a credit, in their order."""
    return database.query(
        "SELECT cluster, hour, kind, subject, workload_id, tenant_id::text, first_at, last_at, seconds, detail"
        " FROM eai.findings WHERE cluster = %s AND workload_id = %s AND kind = ANY(%s) ORDER BY hour, first_at",
        (cluster, workload_id, list(KINDS)),
        schema=lake.FINDINGS,
        connection=connection,
    )


def events_of(
    database: Database, connection: Connection, cluster: str, workload_id: str, *, default_cluster: bool
) -> pa.Table:
    """WORKLOAD_EVENTS of one workload, in order of arrival."""
    return database.query(
        "SELECT event_id, occurred_at, workload_id, tenant_id::text, deployment_id, namespace, pod, from_state,"
        " to_state, gpu_count, placed_class, node, gpu_uuids, reason FROM eai.workload_events"
        " WHERE workload_id = %s AND (cluster = %s OR (cluster IS NULL AND %s)) ORDER BY seq",
        (workload_id, cluster, default_cluster),
        schema=lake.WORKLOAD_EVENTS,
        connection=connection,
    )


def charges_of(
    database: Database, connection: Connection, cluster: str, workload_id: str, hours: Iterable[int]
) -> list[Charge]:
    """What the ledger holds of a workload in these hours, by account; what is unpriced is no charge."""
    found = database.query(
        "SELECT hour, tenant_id, deployment_id, currency, coalesce(sum(gpu_seconds), 0) AS gpu_seconds,"
        " sum(amount) AS amount, coalesce(bool_or(estimated) FILTER (WHERE latest), false) AS estimated"
        " FROM (SELECT period_start AS hour, tenant_id::text, deployment_id, cost_currency AS currency, gpu_seconds,"
        "   cost_amount AS amount, estimated,"
        "   revision = max(revision) OVER (PARTITION BY period_start, gpu_model, tenant_id) AS latest"
        "   FROM eai.usage_events WHERE usage_type = 'gpu_local' AND cluster = %s AND workload_id = %s"
        "   AND period_start = ANY(%s)) AS events"
        " WHERE currency IS NOT NULL GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        (cluster, workload_id, [at(hour) for hour in hours]),
        schema=_CHARGES,
        connection=connection,
    )
    return [Charge(*row) for row in rows_of(found, *_CHARGES.names)]


def decided_windows(
    database: Database, connection: Connection, cluster: str, workload_id: str
) -> dict[Account, list[tuple[int, int]]]:
    """Windows of a workload that somebody decided about, by account; epoch ms."""
    found = database.query(
        "SELECT tenant_id::text, deployment_id, currency, window_from, window_to FROM eai.credit_proposals"
        " WHERE cluster = %s AND workload_id = %s AND status <> 'proposed'",
        (cluster, workload_id),
        schema=pa.schema([PROPOSED.field(name) for name in _DECIDED]),
        connection=connection,
    )
    windows: dict[Account, list[tuple[int, int]]] = defaultdict(list)
    for *account, begin, end in rows_of(found, *_DECIDED):
        windows[account[0], account[1], account[2]].append((begin, end))
    return windows


_DECIDED = ("tenant_id", "deployment_id", "currency", "window_from", "window_to")


def replace_proposals(
    database: Database,
    connection: Connection,
    cluster: str,
    workload_id: str,
    proposals: Iterable[Proposal],
    events: pa.Table,
) -> int:
    """Make these the undecided proposals of a workload; `events` is its WORKLOAD_EVENTS. Returns how many."""
    rows = [
        {
            **{name: getattr(proposal, name) for name in PROPOSED.names[:6]},
            "window_from": proposal.lost.begin,
            "window_to": proposal.lost.end,
            "gpu_seconds": proposal.gpu_seconds,
            "amount": proposal.amount,
            "reason": proposal.lost.reason,
            "shares": json.dumps({hour_text(hour): str(share) for hour, share in sorted(proposal.shares.items())}),
            "evidence": json.dumps(evidence(proposal.lost, events)),
            "status": "proposed",
        }
        for proposal in proposals
    ]
    return database.replace(
        connection,
        "credit_proposals",
        pa.Table.from_pylist(rows, PROPOSED),
        cluster=cluster,
        workload_id=workload_id,
        status="proposed",
    )


def credit_differences(
    database: Database,
    connection: Connection,
    cluster: str,
    hours: Collection[int],
    allocated_of: Callable[[str], Allocated] | None = None,
) -> list[dict[str, Any]]:
    """The events that bring the approved credits of these hours up to what is charged now (A32).

    The caller holds the hours' locks. `allocated_of` gives a workload's present allocated time, where its events may
    have changed; without it the shares that were approved count. Nothing new is no event.
    """
    span = (at(min(hours)), at(max(hours) + HOUR_MS))
    found = connection.execute(
        "SELECT id::text, workload_id, tenant_id::text, deployment_id, currency, window_from, window_to, shares"
        " FROM eai.credit_proposals WHERE status = 'approved' AND cluster = %s AND window_from < %s AND window_to > %s"
        " ORDER BY decided_at, id",
        (cluster, span[1], span[0]),
    ).fetchall()
    if not found:
        return []
    by_workload: dict[str, list[tuple[str, Account, dict[int, Fraction]]]] = defaultdict(list)
    for credit_id, workload, tenant, deployment, currency, begin, end, told in found:
        if allocated_of is None:
            shares = {ms_of(datetime.fromisoformat(hour)): Fraction(share) for hour, share in told.items()}
        else:
            shares = allocated_of(workload).shares(ms_of(begin), ms_of(end))
        here = {hour: share for hour, share in shares.items() if hour in hours}
        by_workload[workload].append((credit_id, (tenant, deployment, currency), here))
    parts = [
        part
        for workload, credits_ in by_workload.items()
        for part in grants(credits_, charges_of(database, connection, cluster, workload, hours))
    ]
    return differences(*credit_rows(cluster, parts), booked_sums(_booked(connection, cluster, hours)))


def _booked(connection: Connection, cluster: str, hours: Collection[int]) -> list[dict[str, Any]]:
    """The documents of the credits that the ledger holds of these hours."""
    rows = connection.execute(
        "SELECT document FROM eai.usage_events WHERE usage_type = 'gpu_local' AND cluster = %s"
        " AND period_start = ANY(%s) AND workload_id LIKE 'credit:%%'",
        (cluster, [at(hour) for hour in hours]),
    ).fetchall()
    return [msgspec.json.decode(document) for (document,) in rows]
