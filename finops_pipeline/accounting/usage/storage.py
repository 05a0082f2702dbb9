"""Disks of deployments: how much was held in an hour, and the usage rows that show it (A24).

What belongs here: GB-hours, exact, and their rows of GPU_USAGE.
What does not: their price (policies.py) or who pays for them (allocation.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction

import pyarrow as pa

from finops_pipeline.accounting.exact import HOUR_MS, rows_of
from finops_pipeline.contracts import lake

PREFIX = "storage:"


def gb_hours(storage: pa.Table, hour_ms: int) -> dict[str, Fraction]:
    """GB-hours of each deployment's disks in the hour, exact; several disks add up, parts of an hour by the ms.

    `storage` is a DEPLOYMENT_STORAGE table; a deployment without a disk in the hour has no entry.
    """
    held: dict[str, Fraction] = defaultdict(Fraction)
    end = hour_ms + HOUR_MS
    for deployment_id, size, valid_from, valid_to in rows_of(
        storage, "deployment_id", "size_gb", "valid_from", "valid_to"
    ):
        overlap = min(end, end if valid_to is None else valid_to) - max(hour_ms, valid_from)
        if overlap > 0:
            held[deployment_id] += Fraction(size) * overlap / HOUR_MS
    return dict(held)


def storage_usage(hour_ms: int, cluster: str, storage: pa.Table, deployments: pa.Table) -> pa.Table:
    """GPU_USAGE rows `storage:<deployment_id>` of the hour, one a deployment, sorted; every unit is null.

    The tenant is the deployment's owner; null if the deployment is unknown.
    """
    owners = dict(rows_of(deployments, "deployment_id", "owner_tenant_id"))
    return _rows(hour_ms, cluster, ((held, owners.get(held)) for held in sorted(gb_hours(storage, hour_ms))))


def _rows(hour_ms: int, cluster: str, held: Iterable[tuple[str, str | None]]) -> pa.Table:
    rows = [
        {
            "cluster": cluster,
            "hour": hour_ms,
            "workload_id": PREFIX + deployment_id,
            "tenant_id": tenant_id,
            "deployment_id": deployment_id,
            "basis": "storage",
            "estimated": False,
            "methods": "",
        }
        for deployment_id, tenant_id in held
    ]
    return pa.Table.from_pylist(rows, schema=lake.GPU_USAGE)
