"""What the stored tables say of a month that is to be closed (A33).

What belongs here: reading. What does not: judging (`accounting.money.closing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.exact import hour_text, ms_of, rows_of
from finops_pipeline.accounting.money.closing import MonthFacts
from finops_pipeline.accounting.money.statement import UNITS, account_sums
from finops_pipeline.resources.postgres.client import Database, sql_file
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.published import month_bounds


def month_facts(
    database: Database,
    connection: Connection,
    period: str,
    allocation: pa.Table,
    corrections: Collection[Mapping[str, Any]],
    clusters: Collection[str],
    now: datetime,
) -> MonthFacts:
    """The facts about `period`, whose `allocation` (GPU_COST_ALLOCATION) and `corrections` the statement is made of.

    `clusters` are those that are configured.
    """
    first, past = month_bounds(period)
    span = {"first": first, "past": past}

    def rows(name: str) -> list[dict[str, Any]]:
        return list(database.query(sql_file(name), span, connection=connection).to_pylist())

    times = database.query(
        "SELECT coalesce(sum(measured_seconds), 0) AS measured, coalesce(sum(estimated_seconds), 0) AS estimated,"
        " coalesce(sum(missing_seconds), 0) AS missing FROM eai.gpu_usage"
        " WHERE basis <> 'storage' AND hour >= %(first)s AND hour < %(past)s",
        span,
        connection=connection,
    ).to_pylist()[0]
    booked: dict[tuple[str, str, str | None], tuple[Decimal | None, ...]] = {
        (row["tenant_id"], row["deployment_id"], row["currency"]): tuple(row[name] for name in (*UNITS, "amount"))
        for row in rows("month_booked")
    }
    return MonthFacts(
        first=ms_of(first),
        past=ms_of(past),
        now=ms_of(now),
        hours=_hours(database, connection, span, clusters),
        **times,
        unpriced=rows("month_unpriced"),
        conflicts=rows("month_conflicts"),
        identities=rows("month_identities"),
        parts=rows("month_parts"),
        allocated=account_sums(allocation),
        booked=booked,
        unpriced_corrections=[
            {name: line[name] for name in ("hour", "tenant_id", "deployment_id")} | {"what": "unpriced correction"}
            for line in corrections
            if line["allocated"]["currency"] is None
        ],
        changed=_changed(database, connection, first, past),
    )


def _hours(
    database: Database, connection: Connection, span: Mapping[str, datetime], clusters: Collection[str]
) -> dict[str, dict[int, bool]]:
    """Published hours by cluster, and whether they are provisional; every cluster that should have some."""
    published = database.query(
        "SELECT cluster, hour, provisional FROM eai.hour_runs WHERE hour >= %(first)s AND hour < %(past)s",
        span,
        connection=connection,
    )
    booked = database.query(
        "SELECT DISTINCT cluster FROM eai.usage_events WHERE usage_type <> 'llm'"
        " AND period_start >= %(first)s AND period_start < %(past)s",
        span,
        connection=connection,
    )
    hours: dict[str, dict[int, bool]] = defaultdict(dict)
    for cluster in (*clusters, *booked["cluster"].to_pylist()):
        hours[str(cluster)] = {}
    for cluster, hour, provisional in rows_of(published, "cluster", "hour", "provisional"):
        hours[cluster][hour // 1000] = provisional
    return dict(hours)


def _changed(database: Database, connection: Connection, first: datetime, past: datetime) -> list[dict[str, Any]]:
    found = database.query(sql_file("hours_to_recompute"), connection=connection)
    return [
        {"cluster": row["cluster"], "hour": hour_text(ms_of(row["hour"])), "what": row["reason"]}
        for row in found.to_pylist()
        if first <= row["hour"] < past
    ]
