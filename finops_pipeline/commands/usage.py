"""What tenants used of their quotas, as people and programs ask for it: `finops usage`.

What belongs here: the question to Postgres, and how the answer looks. What does not: how much of a quota is used
(`accounting.money.quotas`), and arguments (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from finops_pipeline.accounting.money.quotas import against_quotas
from finops_pipeline.commands.quotas import quotas
from finops_pipeline.resources.postgres.client import Database


def usage(
    database: Database, by: str, tenant: str | None, first: date | None, past: date | None
) -> list[dict[str, Any]]:
    """Each tenant's GPU-hours by day or month and class, against its quotas; all days by default."""
    used = database.query(
        "SELECT tenant_id::text, CASE WHEN %(by)s = 'day' THEN day::text ELSE month END AS period, placed_class,"
        " sum(gpu_seconds) AS gpu_seconds FROM eai.tenant_usage"
        " WHERE tenant_id = coalesce(%(tenant)s::uuid, tenant_id) AND day >= coalesce(%(first)s::date, '-infinity')"
        " AND day < coalesce(%(past)s::date, 'infinity') GROUP BY 1, 2, 3",
        {"by": by, "tenant": tenant, "first": first, "past": past},
    )
    return against_quotas(used.to_pylist(), quotas(database), by)


def usage_text(rows: Sequence[Mapping[str, Any]], layout: str = "table") -> str:
    from finops_pipeline.commands.tables import written

    if not rows:
        return "no usage is computed yet: finops run, or finops backfill --from HOUR\n"
    return written(
        layout,
        ("tenant", "period", "class", "GPU-hours", "quota", "used"),
        [
            (
                row["tenant_id"],
                row["period"],
                row["placed_class"] or "all together",
                row["gpu_hours"],
                None if row["quota_gpu_hours"] is None else row["quota_gpu_hours"].normalize(),
                None if row["quota_used"] is None else f"{row['quota_used']:.1%}",
            )
            for row in rows
        ],
    )
