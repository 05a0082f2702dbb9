"""What tenants used of which class, and how much of their quotas that is (A6, A25-A27).

What belongs here: allocated time by tenant and class. What does not: money (`allocation`), and who is served next
(`fairshare`). Idle capacity that is spread over tenants is not their usage, and a disk uses no GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.exact import AccountingError, decimal_of, round_half_even, units_of
from finops_pipeline.accounting.money.queries import conformed, queries
from finops_pipeline.contracts.lake import TENANT_HOURS

ALL = None
"""The class of a quota that is for all classes together."""


def tenant_hours(allocation: pa.Table, usage: pa.Table) -> pa.Table:
    """TENANT_HOURS of any hours from their GPU_COST_ALLOCATION and GPU_USAGE, by tenant and class.

    A row without a class (a pod without events) counts for its model.
    """
    with queries(allocation=allocation, usage=usage) as run:
        return conformed(run.table("tenant_hours"), TENANT_HOURS)


def gpu_hours(seconds: Decimal) -> Decimal:
    """GPU-seconds as GPU-hours, rounded half-even to 3 places."""
    return decimal_of(round_half_even(units_of(seconds, 3), 3600), 3)


def quota_used(seconds: Decimal, quota_gpu_hours: Decimal) -> Decimal | None:
    """The part of a quota that is used, to 4 places; None for a quota of nothing."""
    if quota_gpu_hours < 0:
        raise AccountingError(f"a quota of {quota_gpu_hours} GPU-hours is below nothing")
    if not quota_gpu_hours:
        return None
    whole = units_of(quota_gpu_hours, 9) * 3600
    return decimal_of(round_half_even(units_of(seconds, 3) * 10**10, whole), 4)


def against_quotas(
    used: Iterable[Mapping[str, Any]], quotas: Iterable[Mapping[str, Any]], period: str
) -> list[dict[str, Any]]:
    """A row for each tenant, period and class, and one for all classes where a quota is for all together.

    `used` rows have `tenant_id`, `period` (a day or a month), `placed_class` and `gpu_seconds`; `quotas` rows
    `tenant_id`, `placed_class`, `period` (`day` or `month`, of which `period` count) and `gpu_hours`.
    """
    limits = {(q["tenant_id"], q["placed_class"]): q["gpu_hours"] for q in quotas if q["period"] == period}
    seconds: dict[tuple[str, str, str | None], Decimal] = defaultdict(Decimal)
    for row in used:
        tenant, when = row["tenant_id"], row["period"]
        seconds[tenant, when, row["placed_class"]] += row["gpu_seconds"]
        if (tenant, ALL) in limits:
            seconds[tenant, when, ALL] += row["gpu_seconds"]
    rows = []
    for (tenant, when, placed), amount in sorted(seconds.items(), key=lambda item: [part or "" for part in item[0]]):
        quota = limits.get((tenant, placed))
        rows.append(
            {
                "tenant_id": tenant,
                "period": when,
                "placed_class": placed,
                "gpu_seconds": amount,
                "gpu_hours": gpu_hours(amount),
                "quota_gpu_hours": quota,
                "quota_used": None if quota is None else quota_used(amount, quota),
            }
        )
    return rows
