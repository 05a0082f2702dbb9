"""Which deployment a pod without events belongs to, and who owns a deployment (A18, A25).

What belongs here: matching by namespace and pod pattern, mode and owner. What does not: prices (`policies`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa

from finops_pipeline.accounting.exact import AccountingError, rows_of


@dataclass(frozen=True)
class PodOwner:
    deployment_id: str
    tenant_id: str


def pod_owners(pods: Iterable[str], deployments: pa.Table) -> dict[str, PodOwner | None]:
    """`namespace/pod` -> the deployment that matches best (exact, longest literal prefix, id), or None."""
    by_namespace: dict[str, list[dict[str, str]]] = {}
    for row in deployments.to_pylist():
        if row["namespace"] is not None and row["pod_pattern"] is not None:
            by_namespace.setdefault(row["namespace"], []).append(row)
    return {pod: _owner(pod, by_namespace) for pod in pods}


def _owner(label: str, by_namespace: dict[str, list[dict[str, str]]]) -> PodOwner | None:
    namespace, pod = label.split("/", 1)
    matching = [row for row in by_namespace.get(namespace, ()) if fnmatchcase(pod, row["pod_pattern"])]
    if not matching:
        return None
    best = min(matching, key=lambda row: (*_looseness(row["pod_pattern"]), row["deployment_id"]))
    return PodOwner(best["deployment_id"], best["owner_tenant_id"])


def _looseness(pattern: str) -> tuple[bool, int]:
    literal = re.match(r"[^*?\[]*", pattern)
    prefix = literal.end() if literal else 0
    return prefix < len(pattern), -prefix


def dedicated_owners(deployments: pa.Table) -> dict[str, str]:
    """The owner of each dedicated deployment, who pays for all of it (A25)."""
    return {
        deployment_id: owner
        for deployment_id, (mode, owner) in deployment_modes(deployments).items()
        if mode == "dedicated"
    }


def deployment_modes(deployments: pa.Table) -> dict[str, tuple[str, str]]:
    """Mode and owner of each deployment."""
    columns = rows_of(deployments, "deployment_id", "mode", "owner_tenant_id")
    modes = {deployment_id: (mode, owner) for deployment_id, mode, owner in columns}
    for deployment_id, (mode, _) in modes.items():
        if mode not in ("dedicated", "shared"):
            raise AccountingError(f"deployment {deployment_id}: mode must be dedicated or shared, not {mode!r} (A25)")
    return modes
