"""What is published, as people and programs ask for it: a month's statement, and how far the hours are.

What belongs here: questions to the results of several hours, without Dagster, so that they are answered at once.
What does not: computing or storing any of it (`assets`), and how it looks (`finops_pipeline.show`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from psycopg import sql

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.exact import decimal_of, hour_text, ms_of, plain, units_of
from finops_pipeline.accounting.money.allocation import PLACES
from finops_pipeline.accounting.money.policies import minor_digits
from finops_pipeline.accounting.money.statement import CORRECTIONS, UNITS, statement
from finops_pipeline.contracts import lake
from finops_pipeline.resources.postgres.client import Database, sql_file
from finops_pipeline.resources.postgres.copy import Connection

STATEMENT_TABLES = {"items": "gpu_allocation", "totals": "gpu_allocation_totals", "corrections": "gpu_corrections"}
"""Where the lines of a statement are stored."""
UNLISTED = CORRECTIONS.insert(0, lake.text("event_id", "usage event", nullable=False))


def month_bounds(period: str) -> tuple[datetime, datetime]:
    """First instant of a month like `2026-10`, and of the next."""
    year, month = map(int, period.split("-"))
    return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def read_statement(database: Database, period: str, connection: Connection | None = None) -> dict[str, Any]:
    """The statement of a month (A30, A33): a final one as it was closed, an open one as it would be now.

    An open one is computed from the published allocation of all clusters, and from the events of final months before
    it that no final statement lists.
    """
    if connection is None:
        with database.transaction(snapshot=True) as own:
            return read_statement(database, period, own)
    if period in final_months(database, connection):
        return stored_statement(database, period, connection)
    return open_statement(database, period, unlisted_events(database, period, connection), connection)


def open_statement(database: Database, period: str, unlisted: pa.Table, connection: Connection) -> dict[str, Any]:
    """An open month's statement from the published allocation and these `unlisted_events`."""
    first, past = month_bounds(period)
    rows = database.read_hours("gpu_cost_allocation", None, first, past, connection=connection)
    return statement(period, "open", rows, unlisted)


def stored_statement(database: Database, period: str, connection: Connection) -> dict[str, Any]:
    """A month's statement as its tables have it; without lines if it was never published."""
    status = database.query(
        "SELECT status FROM eai.gpu_statements WHERE period = %s", (period,), connection=connection
    ).to_pylist()
    lines = {
        name: [_line(row) for row in _rows(database, table, period, connection)]
        for name, table in STATEMENT_TABLES.items()
    }
    for row in (*lines["items"], *lines["corrections"]):
        row["allocated"] = {"amount": row.pop("amount"), "currency": row.pop("currency")}
    lines["items"].sort(key=_item_key)
    lines["corrections"].sort(key=lambda row: (row["hour"], *_item_key(row)))
    lines["totals"].sort(key=lambda row: row["currency"] or "")
    if not lines["corrections"]:
        del lines["corrections"]
    return {"period": period, "status": status[0]["status"] if status else "open", **lines}


def _rows(database: Database, table: str, period: str, connection: Connection) -> list[dict[str, Any]]:
    query = sql.SQL("SELECT * FROM eai.{} WHERE period = %s").format(sql.Identifier(table))
    return list(database.query(query, (period,), connection=connection).to_pylist())


def final_months(database: Database, connection: Connection) -> frozenset[str]:
    """The months whose statements are final."""
    found = database.query("SELECT period FROM eai.gpu_statements WHERE status = 'final'", connection=connection)
    return frozenset(texts(found["period"]).tolist())


def first_open_month(database: Database, period: str) -> str:
    """The first month after the final month `period` that is open: it lists what is booked late in it (A33)."""
    with database.transaction(snapshot=True) as connection:
        final = final_months(database, connection)
    while period in final:
        period = f"{month_bounds(period)[1]:%Y-%m}"
    return period


def unlisted_events(database: Database, period: str, connection: Connection) -> pa.Table:
    """CORRECTIONS, with `event_id`, that the open month `period` lists, in order of booking (A33).

    They are what was booked late in the final months right before it and is in no final statement, and its own credits.
    """
    return database.query(
        sql_file("unlisted_events"),
        (final_months_before(period, final_months(database, connection)), *month_bounds(period)),
        schema=UNLISTED,
        connection=connection,
    )


def final_months_before(period: str, final: Collection[str]) -> list[str]:
    """The unbroken run of final months that ends right before `period`: what is late in them belongs into it."""
    run: list[str] = []
    while (before := f"{month_bounds(run[-1] if run else period)[0] - timedelta(days=1):%Y-%m}") in final:
        run.append(before)
    return run


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """A stored line as the statement's JSON has it: units with their places, the amount in minor units."""
    line = {name: value for name, value in row.items() if name != "period"}
    for name in UNITS:
        line[name] = None if line[name] is None else decimal_of(units_of(line[name], PLACES[name]), PLACES[name])
    if line["amount"] is not None:
        digits = minor_digits(line["currency"])
        line["amount"] = plain(decimal_of(units_of(line["amount"], digits), digits))
    if "hour" in line:
        line["hour"] = hour_text(ms_of(line["hour"]))
    return line


def _item_key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["tenant_id"], row["deployment_id"], row["allocated"]["currency"] or ""


def of_tenant(result: dict[str, Any], tenant: str) -> dict[str, Any]:
    """The part of a statement that is one tenant's: its lines, and what they sum to."""
    lines: dict[str, list[dict[str, Any]]] = {
        name: [line for line in result[name] if line["tenant_id"] == tenant]
        for name in ("items", "corrections")
        if name in result
    }
    by_currency: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for line in (line for some in lines.values() for line in some):
        by_currency[line["allocated"]["currency"]].append(line)
    totals = [
        {
            "currency": currency,
            "amount": None
            if currency is None
            else plain(sum((Decimal(i["allocated"]["amount"]) for i in members), Decimal(0))),
            **{name: _sum([item[name] for item in members]) for name in UNITS},
        }
        for currency, members in sorted(by_currency.items(), key=lambda entry: entry[0] or "")
    ]
    return result | lines | {"totals": totals}


def _sum(values: list[Decimal | None]) -> Decimal | None:
    """Null only if none is known (A20)."""
    known = [value for value in values if value is not None]
    return sum(known, Decimal(0)) if known else None


def status(database: Database, live: Collection[str], now: datetime) -> list[dict[str, Any]]:
    """A row per cluster and UTC day: hours computed, missing, provisional, unpriced rows, inputs set aside (each once).

    `out_of_date` counts the hours that a recomputation may change (A16, A32), `reasons` says why.

    A cluster's hours count from the first that is published to the last one, or if it is `live` to the last that has
    ended at `now`.
    """
    days = database.rows(
        "WITH spans AS (SELECT cluster, min(hour) AS first,"
        "   greatest(max(hour), CASE WHEN cluster = ANY(%s) THEN %s::timestamptz END) AS last"
        "   FROM eai.hour_runs GROUP BY cluster)"
        " SELECT s.cluster, to_char(h.hour, 'YYYY-MM-DD') AS day, count(r.hour) AS computed,"
        " count(*) - count(r.hour) AS missing, count(*) FILTER (WHERE r.provisional) AS provisional,"
        " coalesce(sum(r.unpriced), 0)::bigint AS unpriced, coalesce(min(q.inputs), 0)::bigint AS quarantined,"
        " max(r.estimated_share) AS highest_estimated_share, max(r.published_at) AS published_at"
        " FROM spans s CROSS JOIN LATERAL generate_series(s.first, s.last, interval '1 hour') AS h (hour)"
        " LEFT JOIN eai.hour_runs r ON r.cluster = s.cluster AND r.hour = h.hour"
        " LEFT JOIN (SELECT cluster, (hour AT TIME ZONE 'UTC')::date AS day, count(DISTINCT (source, key)) AS inputs"
        "   FROM eai.quarantine GROUP BY 1, 2) q"
        "   ON q.cluster = s.cluster AND q.day = (h.hour AT TIME ZONE 'UTC')::date"
        " GROUP BY 1, 2 ORDER BY 1, 2",
        (list(live), now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)),
    )
    stale: dict[tuple[str, str], list[str]] = {}
    for hour in database.hours_to_recompute():
        stale.setdefault((hour["cluster"], f"{hour['hour']:%Y-%m-%d}"), []).append(hour["reason"])
    return [
        {**day, "out_of_date": len(reasons), "reasons": sorted(set(reasons))}
        for day in days
        for reasons in [stale.get((day["cluster"], day["day"]), [])]
    ]
