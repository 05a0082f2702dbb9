"""Credits on the way: proposed after each hour, decided by a person, kept in step with the charge.

What belongs here: the order of things and the transactions. What does not: SQL (resources/postgres/credits.py), arithmetic
(accounting/money/credits.py), and how an hour is booked (`events`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, instant_of, ms_of, plain
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.credits import Allocated, hours_of, instant_text, lost_windows, proposals
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres import credits as stored
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.usage_rows import event_rows
from finops_pipeline.resources.source import Source

LOOK_BACK_HOURS = 48


def propose(database: Database, source: Source, rules: AccountingConfig, cluster: str, hours: Sequence[int]) -> int:
    """Bring the proposals up to date that these hours may change; how many there are of those workloads now.

    The days before are looked at too: a run that was killed between booking and proposing is caught up with.
    """
    first, past = min(hours) - LOOK_BACK_HOURS * HOUR_MS, max(hours) + HOUR_MS
    count = 0
    with database.transaction() as connection:
        database.credits_lock(connection, cluster)
        for workload in stored.suspects(database, connection, cluster, first, past):
            count += _propose(database, source, rules, connection, cluster, workload)
    return count


def _propose(
    database: Database, source: Source, rules: AccountingConfig, connection: Connection, cluster: str, workload: str
) -> int:
    events = stored.events_of(database, connection, cluster, workload, default_cluster=source.is_default(cluster))
    allocated = Allocated(running_intervals(events, source.now_ms(), rules), workload, rules)
    lost = lost_windows(stored.findings_of(database, connection, cluster, workload), allocated, rules)
    hours = sorted({hour for span in lost for hour in hours_of(span.begin, span.end)})
    charges = stored.charges_of(database, connection, cluster, workload, hours)
    decided = stored.decided_windows(database, connection, cluster, workload)
    found = [proposal for span in lost for proposal in proposals(cluster, workload, span, allocated, charges, decided)]
    return stored.replace_proposals(database, connection, cluster, workload, found, events)


@dataclass(frozen=True)
class Decision:
    """What came of a decision."""

    id: str
    status: str
    amount: Decimal
    """given back by its events so far; 0 for a rejected one"""
    currency: str
    booked: int
    """events that this call booked: none if it was decided before"""


def decide(
    database: Database, credit_id: str, *, approve: bool, reason: str, decided_by: str, now: datetime | None = None
) -> Decision:
    """Approve or reject a proposal, book what is approved, and say so in the audit log, in one transaction.

    The same decision again changes nothing. UsageError for an unknown id, another decision before, no reason, or
    nothing that is left to give back.
    """
    if not reason.strip() or not decided_by.strip():
        raise UsageError(f"credit {credit_id}: a decision needs a reason and somebody who decides")
    status = "approved" if approve else "rejected"
    with database.transaction() as connection:
        found = _locked(database, connection, credit_id)
        hours = list(hours_of(ms_of(found["window_from"]), ms_of(found["window_to"])))
        if found["status"] not in ("proposed", status):
            raise UsageError(
                f"credit {credit_id} was {found['status']} by {found['decided_by']}: {found['decision_reason']};"
                " what was decided stays"
            )
        new = found["status"] == "proposed"
        if new:
            connection.execute(
                "UPDATE eai.credit_proposals SET status = %s, decided_by = %s, decided_at = %s, decision_reason = %s"
                " WHERE id = %s",
                (status, decided_by.strip(), now or datetime.now(UTC), reason.strip(), credit_id),
            )
        events = _book(database, connection, found["cluster"], hours) if approve else []
        amount = _booked_amount(connection, credit_id)
        if new and approve and amount <= 0:
            raise UsageError(f"credit {credit_id}: nothing is charged for this time any more; reject it instead")
        at_time = now or datetime.now(UTC)
        for hour, some in groupby(events, key=itemgetter("period_start")):
            database.append_audit(
                connection, "credit.booked", _booking(credit_id, found["cluster"], hour, list(some)), at_time
            )
        if new:
            payload = {
                "credit_id": credit_id,
                **{name: found[name] for name in ("cluster", "workload_id", "tenant_id", "deployment_id", "currency")},
                "window_from": instant_text(ms_of(found["window_from"])),
                "window_to": instant_text(ms_of(found["window_to"])),
                "amount": plain(amount),
                "reason": reason.strip(),
                "decided_by": decided_by.strip(),
                "event_ids": [event["event_id"] for event in events],
            }
            database.append_audit(connection, f"credit.{status}", payload, at_time)
    return Decision(credit_id, status, amount, found["currency"], len(events))


def _locked(database: Database, connection: Connection, credit_id: str) -> dict[str, Any]:
    """The proposal, with nobody else at its hours or its workload's proposals."""
    names = (
        *("cluster", "workload_id", "tenant_id", "deployment_id", "currency", "window_from", "window_to"),
        *("status", "decided_by", "decision_reason"),
    )
    try:
        UUID(credit_id)
    except ValueError:
        raise UsageError(f"credit {credit_id}: not an id; `finops credits list` shows them") from None
    query = (
        "SELECT cluster, workload_id, tenant_id::text, deployment_id, currency, window_from, window_to, status,"
        " decided_by, decision_reason FROM eai.credit_proposals WHERE id = %s"
    )
    row = connection.execute(query, (credit_id,)).fetchone()
    if row is not None:
        for hour in hours_of(ms_of(row[5]), ms_of(row[6])):
            database.hour_lock(connection, row[0], instant_of(hour))
        database.credits_lock(connection, row[0])
        again = connection.execute(query, (credit_id,)).fetchone()
        if again is not None and again[5:7] != row[5:7]:
            raise UsageError(f"credit {credit_id} was computed anew just now: look at it again")
        row = again
    if row is None:
        raise UsageError(f"credit {credit_id}: there is none with this id; `finops credits list` shows all")
    return dict(zip(names, row, strict=True))


def _book(database: Database, connection: Connection, cluster: str, hours: Sequence[int]) -> list[dict[str, Any]]:
    events = stored.credit_differences(database, connection, cluster, hours)
    database.copy(connection, "usage_events", event_rows(events))
    return events


def _booking(credit_id: str, cluster: str, hour: str, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the audit log keeps of the events of one hour, as of any that are booked."""
    hashes = "".join(event["content_sha256"] for event in events)
    return {
        "credit_id": credit_id,
        "cluster": cluster,
        "hour": hour,
        "events": len(events),
        "events_sha256": hashlib.sha256(hashes.encode()).hexdigest(),
    }


def _booked_amount(connection: Connection, credit_id: str) -> Decimal:
    row = connection.execute(
        "SELECT coalesce(-sum(cost_amount), 0) FROM eai.usage_events WHERE workload_id = 'credit:' || %s", (credit_id,)
    ).fetchone()
    return Decimal(row[0]) if row else Decimal(0)


def listed(database: Database, status: str | None = None) -> list[dict[str, Any]]:
    """All proposals, or those of a status, the latest window last, with what their events gave back."""
    found = database.query(
        "SELECT p.id::text, p.status, p.reason, p.cluster, p.workload_id, p.tenant_id::text, p.deployment_id,"
        " p.window_from, p.window_to, p.gpu_seconds, p.amount, p.currency, p.decided_by, p.decided_at,"
        " p.decision_reason, p.evidence::text, (SELECT coalesce(-sum(e.cost_amount), 0) FROM eai.usage_events e"
        "   WHERE e.workload_id = 'credit:' || p.id) AS given_back"
        " FROM eai.credit_proposals p WHERE p.status = coalesce(%s, p.status) ORDER BY p.window_from, p.id",
        (status,),
    )
    return list(found.to_pylist())
