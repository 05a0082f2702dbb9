"""Closing a month, and reopening it (A33): one transaction each, audited, and the same once or twice.

What belongs here: the order of locks, reading, judging and writing, and the report for a person. What does not: the
conditions (`accounting.money.closing`), the SQL (`resources.postgres`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.exact import hour_text, ms_of
from finops_pipeline.accounting.money.closing import Condition, Gate, Life, coverage, gate
from finops_pipeline.accounting.money.statement import statement
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.month_facts import month_facts
from finops_pipeline.resources.postgres.published import final_months, month_bounds, stored_statement, unlisted_events
from finops_pipeline.resources.postgres.statements import close

SHOWN = 12
"""Rows of a condition that a person sees; the JSON has them all."""


@dataclass(frozen=True)
class Request:
    """What is asked for: the month, the rules of this installation, and what somebody says about exceptions."""

    period: str
    clusters: Collection[str] = ()
    """configured"""
    min_coverage: Decimal = Decimal("0.99")
    priced: bool = True
    """whether usage is priced at all"""
    lives: Mapping[str, Life] | None = None
    accepted: Collection[str] = ()
    """keys of conflicts that somebody accepts"""
    reason: str | None = None
    """why; needed with `accepted`"""


@dataclass(frozen=True)
class Closing:
    """What came of it."""

    period: str
    status: str
    """of the month afterwards: open or final"""
    closed_now: bool
    gate: Gate
    coverage: Decimal | None
    statement: Mapping[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """For a program."""
        return {
            "period": self.period,
            "status": self.status,
            "closed_now": self.closed_now,
            "coverage": None if self.coverage is None else f"{self.coverage:.6f}",
            "conditions": [
                {"name": c.name, "says": c.says, "holds": c.holds, "missing": [dict(row) for row in c.missing]}
                for c in self.gate.conditions
            ],
            "totals": self.statement["totals"],
            "items": len(self.statement["items"]),
            "corrections": len(self.statement.get("corrections", ())),
        }

    @property
    def text(self) -> str:
        """For a person: what holds, what is missing, and what it came to."""
        lines = [line for condition in self.gate.conditions for line in _told(condition)]
        totals = ", ".join(f"{t['amount']} {t['currency']}" for t in self.statement["totals"] if t["currency"])
        if self.status == "final":
            done = f"{self.period} is final{'' if self.closed_now else ' already'}: {totals or 'nothing to charge'}"
        elif self.gate.open:
            done = f"{self.period} can be closed: {totals or 'nothing to charge'}"
        else:
            done = f"{self.period} cannot be closed yet"
        return "\n".join([*lines, done]) + "\n"


def lives_of(began: Mapping[str, datetime], ended: Mapping[str, datetime]) -> dict[str, Life]:
    """Clusters that began or ended, by name; UsageError for an instant that is no whole hour."""
    for cluster, at in (*began.items(), *ended.items()):
        if (at.minute, at.second, at.microsecond) != (0, 0, 0):
            raise UsageError(f"cluster {cluster}: {at:%Y-%m-%dT%H:%M:%SZ} is not a whole hour (A1)")
    return {
        cluster: Life(*(ms_of(at) if at else None for at in (began.get(cluster), ended.get(cluster))))
        for cluster in began.keys() | ended.keys()
    }


def lives_of_bundle(database: Database, bundle: Bundle) -> dict[str, Life]:
    """A bundle's cluster begins and ends with its hours, or with those that are published of it besides."""
    row = database.query(
        "SELECT least(min(hour), %s) AS began, greatest(max(hour) + interval '1 hour', %s) AS ended"
        " FROM eai.hour_runs WHERE cluster = %s",
        (bundle.start, bundle.end, bundle.cluster),
    ).to_pylist()[0]
    return {bundle.cluster: Life(ms_of(row["began"]), ms_of(row["ended"]))}


def close_month(database: Database, asked: Request, now: datetime, *, dry_run: bool = False) -> Closing:
    """Make the month final if the gate is open; a month that is final already stays as it was closed.

    With `dry_run` only the gate is judged. UsageError for an exception without a reason.
    """
    if asked.accepted and not asked.reason:
        raise UsageError("a conflict can be accepted only with a --reason: the audit log keeps it")
    if dry_run:
        with database.transaction() as connection:
            database.fold_changes(connection)
    with database.transaction(snapshot=dry_run) as connection:
        if not dry_run:
            database.statements_lock(connection)
            database.month_lock(connection, asked.period)
            database.fold_changes(connection)
        if asked.period in final_months(database, connection):
            final = stored_statement(database, asked.period, connection)
            return Closing(asked.period, "final", closed_now=False, gate=Gate(), coverage=None, statement=final)
        return _close(database, connection, asked, now, dry_run=dry_run)


def _close(database: Database, connection: Connection, asked: Request, now: datetime, *, dry_run: bool) -> Closing:
    period = asked.period
    allocation = database.read_hours("gpu_cost_allocation", None, *month_bounds(period), connection=connection)
    unlisted = unlisted_events(database, period, connection)
    result = statement(period, "open", allocation, unlisted)
    corrections: Sequence[Mapping[str, Any]] = result.get("corrections", ())
    facts = month_facts(database, connection, period, allocation, corrections, asked.clusters, now)
    judged = gate(facts, asked.min_coverage, lives=asked.lives, accepted=asked.accepted, priced=asked.priced)
    share = coverage(facts)
    if judged.open and not dry_run:
        said = {
            "clusters": sorted(facts.hours),
            "coverage": None if share is None else f"{share:.6f}",
            "exceptions": _exceptions(asked),
        }
        result = close(database, connection, result, unlisted, now, said)
        return Closing(period, "final", closed_now=True, gate=judged, coverage=share, statement=result)
    return Closing(period, "open", closed_now=False, gate=judged, coverage=share, statement=result)


def _exceptions(asked: Request) -> dict[str, Any]:
    """What somebody said, for the audit log; empty if nobody said anything."""
    said: dict[str, Any] = {}
    for cluster, life in sorted((asked.lives or {}).items()):
        said[f"life of {cluster}"] = {
            name: hour_text(at) for name, at in (("began", life.began), ("ended", life.ended)) if at is not None
        }
    if not asked.priced:
        said["pricing"] = "off"
    if asked.accepted:
        said["accepted conflicts"] = sorted(asked.accepted)
    return said | {"reason": asked.reason} if asked.reason else said


def _told(condition: Condition) -> list[str]:
    lines = [f"{'ok     ' if condition.holds else 'MISSING'}  {condition.says}"]
    lines += [
        "           " + ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)
        for row in condition.missing[:SHOWN]
    ]
    if len(condition.missing) > SHOWN:
        lines.append(f"           and {len(condition.missing) - SHOWN} more (--json shows all)")
    return lines
