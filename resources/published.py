"""What is published, as people and programs ask for it: a month's statement, and how far the hours are.

What belongs here: questions to the results of several hours, without Dagster, so that they are answered at once.
What does not: computing or storing any of it (`assets`), and how it looks (`finops_pipeline.show`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.statement import UNITS, statement
from resources.postgres import Database
from resources.postgres_arrow import Connection


def month_bounds(period: str) -> tuple[datetime, datetime]:
    """First instant of a month like `2026-10`, and of the next."""
    year, month = map(int, period.split("-"))
    return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def read_statement(database: Database, period: str, connection: Connection | None = None) -> dict[str, Any]:
    """The statement of a month, computed from the published allocation of all clusters (A30)."""
    first, past = month_bounds(period)
    rows = database.read_hours("gpu_cost_allocation", None, first, past, connection=connection)
    final = database.query(
        "SELECT 1 AS one FROM eai.gpu_statements WHERE period = %s AND status = 'final'",
        (period,),
        connection=connection,
    )
    return statement(period, "final" if len(final) else "open", rows)


def of_tenant(result: dict[str, Any], tenant: str) -> dict[str, Any]:
    """The part of a statement that is one tenant's: its items, and what they sum to."""
    items = [item for item in result["items"] if item["tenant_id"] == tenant]
    by_currency: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_currency[item["allocated"]["currency"]].append(item)
    totals = [
        {
            "currency": currency,
            "amount": None if currency is None else f"{sum(Decimal(i['allocated']['amount']) for i in members):f}",
            **{name: _sum([item[name] for item in members]) for name in UNITS},
        }
        for currency, members in sorted(by_currency.items(), key=lambda entry: entry[0] or "")
    ]
    return {**result, "items": items, "totals": totals}


def _sum(values: list[Decimal | None]) -> Decimal | None:
    """Null only if none is known (A20)."""
    known = [value for value in values if value is not None]
    return sum(known, Decimal(0)) if known else None


def status(database: Database, live: Collection[str], now: datetime) -> list[dict[str, Any]]:
    """A row per cluster and UTC day: hours computed, missing, provisional, unpriced rows, inputs set aside.

    A cluster's hours count from the first that is published to the last one, or if it is `live` to the last that has
    ended at `now`.
    """
    found = database.query(
        "WITH spans AS (SELECT cluster, min(hour) AS first,"
        "   greatest(max(hour), CASE WHEN cluster = ANY(%s) THEN %s::timestamptz END) AS last"
        "   FROM eai.hour_runs GROUP BY cluster)"
        " SELECT s.cluster, to_char(h.hour, 'YYYY-MM-DD') AS day, count(r.hour) AS computed,"
        " count(*) - count(r.hour) AS missing, count(*) FILTER (WHERE r.provisional) AS provisional,"
        " coalesce(sum(r.unpriced), 0)::bigint AS unpriced, coalesce(sum(r.quarantined), 0)::bigint AS quarantined,"
        " max(r.estimated_share) AS highest_estimated_share, max(r.published_at) AS published_at"
        " FROM spans s CROSS JOIN LATERAL generate_series(s.first, s.last, interval '1 hour') AS h (hour)"
        " LEFT JOIN eai.hour_runs r ON r.cluster = s.cluster AND r.hour = h.hour"
        " GROUP BY 1, 2 ORDER BY 1, 2",
        (list(live), now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)),
    )
    return list(found.to_pylist())
