"""Quotas, as people read and set them: `finops quotas`.

What belongs here: the question to Postgres, the small change with its audit entry, and how the answer looks. What
does not: how much of a quota is used (`accounting.money.quotas`), and arguments (`cli`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.exact import plain
from finops_pipeline.commands.show import table_text
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.client import Database


def quotas(database: Database) -> list[dict[str, Any]]:
    """All quotas, by tenant, class and period."""
    return database.rows(
        "SELECT tenant_id::text, placed_class, period, gpu_hours FROM eai.quotas"
        ' ORDER BY tenant_id, placed_class COLLATE "C" NULLS FIRST, period'
    )


def set_quota(database: Database, tenant: str, placed_class: str | None, period: str, hours: Decimal | None) -> None:
    """Set a quota, or with None take it away; the audit log keeps it."""
    if hours is not None and (not hours.is_finite() or hours < 0 or hours != round(hours, 9)):
        raise UsageError(f"{hours}: a quota is a number of GPU-hours that is not negative, with at most 9 decimals")
    with database.transaction() as connection:
        connection.execute(
            "DELETE FROM eai.quotas WHERE tenant_id = %s AND placed_class IS NOT DISTINCT FROM %s AND period = %s",
            (tenant, placed_class, period),
        )
        if hours is not None:
            connection.execute(
                "INSERT INTO eai.quotas (tenant_id, placed_class, period, gpu_hours) VALUES (%s, %s, %s, %s)",
                (tenant, placed_class, period, hours),
            )
        payload = {"tenant_id": tenant, "placed_class": placed_class, "period": period}
        payload["gpu_hours"] = None if hours is None else plain(hours)
        database.append_audit(connection, "quota.set", payload, datetime.now(UTC))


def quotas_text(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no tenant has a quota: finops quotas set TENANT GPU-HOURS\n"
    return table_text(
        ("tenant", "class", "period", "GPU-hours"),
        [
            (row["tenant_id"], row["placed_class"] or "all together", row["period"], row["gpu_hours"].normalize())
            for row in rows
        ],
    )
