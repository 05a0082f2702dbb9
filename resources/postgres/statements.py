"""A month's statement in Postgres: published while it is open, closed, and reopened (A30, A33, A34).

All three wait for each other, and the last two also for everybody who books into the month: what is booked after a
close is late, and listed elsewhere.

What belongs here: what they write, in one transaction each. What does not: whether a month may be closed (closing).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.money.statement import statement_sha256
from finops_pipeline.contracts import lake
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection, with_constant
from finops_pipeline.resources.postgres.published import (
    STATEMENT_TABLES,
    final_months,
    open_statement,
    stored_statement,
    unlisted_events,
)

_NUMBERS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "amount")
_COLUMNS = {
    "items": ("period", "tenant_id", "deployment_id", "currency", *_NUMBERS, "policy_id", "estimated"),
    "totals": ("period", "currency", *_NUMBERS),
    "corrections": ("period", "hour", "tenant_id", "deployment_id", "currency", *_NUMBERS, "policy_id", "estimated"),
}
_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(_NUMBERS, pa.decimal128(38, 9)),
    "hour": lake.INSTANT,
    "estimated": pa.bool_(),
}


def publish_statement(database: Database, period: str, now: datetime) -> dict[str, Any]:
    """Store the statement of a month as it is now, and return it; a final one stays as it is (A33)."""
    with database.transaction() as connection:
        database.statements_lock(connection)
        if period in final_months(database, connection):
            return stored_statement(database, period, connection)
        return _publish(database, connection, period, now)


def close(
    database: Database,
    connection: Connection,
    result: Mapping[str, Any],
    unlisted: pa.Table,
    now: datetime,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Make an open month's statement, which lists `unlisted`, final. `facts` go to the audit log.

    The caller holds the locks of statements and month, and has judged the month.
    """
    period = result["period"]
    final = {**result, "status": "final"}
    _store(database, connection, final, unlisted)
    reached("final statement stored")
    # What was late in an earlier life as a final month is in the month's own items now.
    connection.execute("DELETE FROM eai.late_events WHERE period = %s", (period,))
    connection.execute("UPDATE eai.gpu_statements SET status = 'final', final_at = %s WHERE period = %s", (now, period))
    database.append_audit(connection, "month.closed", {**audit_facts(final), **facts}, now)
    reached("month closed")
    return final


def reopen(database: Database, period: str, reason: str, now: datetime) -> None:
    """Make a final month open again, for a reason that the audit log keeps, and publish what it is now.

    UsageError if it is not final, or if another final statement lists corrections of it: they would be charged twice.
    """
    with database.transaction() as connection:
        database.statements_lock(connection)
        database.month_lock(connection, period)
        if period not in final_months(database, connection):
            raise UsageError(f"{period} is not final: there is nothing to reopen")
        listing = connection.execute(
            "SELECT min(s.period) FROM eai.late_events l JOIN eai.gpu_correction_events c USING (event_id)"
            " JOIN eai.gpu_statements s ON s.period = c.period AND s.status = 'final' WHERE l.period = %s",
            (period,),
        ).fetchone()
        if listing and listing[0]:
            raise UsageError(
                f"the final statement of {listing[0]} lists corrections of {period}: reopen that one first"
            )
        database.append_audit(connection, "month.reopened", {"period": period, "reason": reason}, now)
        connection.execute(
            "UPDATE eai.gpu_statements SET status = 'open', final_at = NULL WHERE period = %s", (period,)
        )
        others = connection.execute(
            "SELECT DISTINCT c.period FROM eai.gpu_corrections c JOIN eai.gpu_statements s USING (period)"
            " WHERE s.status = 'open' AND c.period <> %s ORDER BY 1",
            (period,),
        ).fetchall()
        for month in (period, *(row[0] for row in others)):
            _publish(database, connection, month, now)


def _publish(database: Database, connection: Connection, period: str, now: datetime) -> dict[str, Any]:
    unlisted = unlisted_events(database, period, connection)
    result = open_statement(database, period, unlisted, connection)
    if _store(database, connection, result, unlisted):
        reached("statement stored")
        database.append_audit(connection, "statement.published", audit_facts(result), now)
    return result


def audit_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """How the audit log names a statement."""
    return {
        "period": result["period"],
        "statement_sha256": statement_sha256(result),
        "items": len(result["items"]),
        "corrections": len(result.get("corrections", ())),
        "totals": [{name: total[name] for name in ("currency", "amount")} for total in result["totals"]],
    }


def _store(database: Database, connection: Connection, result: Mapping[str, Any], unlisted: pa.Table) -> bool:
    """Replace a month's lines by these; whether anything in them is new."""
    period, digest = result["period"], statement_sha256(result)
    known = connection.execute("SELECT content_sha256 FROM eai.gpu_statements WHERE period = %s", (period,)).fetchone()
    connection.execute(
        "INSERT INTO eai.gpu_statements (period, status, computed_at, content_sha256) VALUES (%s, 'open', now(), %s)"
        " ON CONFLICT (period) DO UPDATE SET computed_at = excluded.computed_at,"
        " content_sha256 = excluded.content_sha256",
        (period, digest),
    )
    listed = with_constant(unlisted.select(["event_id"]), "period", period)
    database.replace(connection, "gpu_correction_events", listed, period=period)
    if known == (digest,):
        return False
    for name, columns in _COLUMNS.items():
        schema = pa.schema([pa.field(column, _TYPES.get(column, pa.string())) for column in columns])
        rows = [_row(line, period, schema) for line in result.get(name, ())]
        database.replace(connection, STATEMENT_TABLES[name], pa.Table.from_pylist(rows, schema=schema), period=period)
    return True


def _row(line: Mapping[str, Any], period: str, schema: pa.Schema) -> dict[str, Any]:
    """A line of the statement's JSON as columns."""
    flat = {**line, "period": period, **line.get("allocated", {})}
    row = {name: flat[name] for name in schema.names}
    for name in _NUMBERS:
        row[name] = None if row[name] is None else Decimal(str(row[name]))
    if "hour" in row:
        row["hour"] = datetime.fromisoformat(row["hour"])
    return row
