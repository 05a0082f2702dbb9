"""The windows of the contract: one row a window and visible device (A8, A11, A15).

What belongs here: publishing windows. What does not: computing them (`windows`, `pieces`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import Column, Ints, Texts, changes
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.holding.deployments import PodOwner
from finops_pipeline.accounting.holding.holders import Holding
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.telemetry.summaries import Timeline
from finops_pipeline.accounting.telemetry.windows import RUNGS
from finops_pipeline.accounting.usage.pieces import HourPieces, Measure
from finops_pipeline.contracts.lake import GPU_SAMPLES

MISSING_BIT = 1 << len(RUNGS)


def samples_table(
    cluster: str,
    timeline: Timeline,
    holding: Holding,
    found: HourPieces,
    owners: Mapping[str, PodOwner | None],
    config: AccountingConfig,
) -> pa.Table:
    """GPU_SAMPLES, ascending by device and window. Of several holders the first by name stands in the row."""
    at = np.flatnonzero(found.visible)
    device, window = np.divmod(at, config.windows)
    devices, label = timeline.devices, holding.window_set.ravel()[at]
    first = [min(members).split("/", 1) if members else [None, None] for members in timeline.sets.members]
    holder = _first_holders(found)[at]
    tenants, deployments = _holder_facts(holding, owners)
    rows = len(device)
    return pa.table(
        {
            "cluster": _coded(np.array([cluster], dtype=object), np.zeros(rows, dtype=np.int64)),
            "window_start": pa.array(
                timeline.start + window * config.window_ms, GPU_SAMPLES.field("window_start").type
            ),
            "node": _coded(devices.node, device),
            "gpu_uuid": _coded(devices.uuid, device),
            "mig_instance": _coded(devices.instance, device),
            "model": _coded(devices.model, device),
            "namespace": _coded(np.array([f[0] for f in first], dtype=object), label),
            "pod": _coded(np.array([f[1] for f in first], dtype=object), label),
            "tenant_id": _coded(tenants, holder),
            "deployment_id": _coded(deployments, holder),
            "window_seconds": pa.array(np.full(rows, config.window_seconds, dtype=np.int32)),
            "utilization": _number(found.measures.utilization, at, 1e6),
            "memory_used_gb": _number(found.measures.memory, at, 1024.0 * 1024.0),
            "power_w": _number(found.measures.power, at, 1e3),
            "estimated": pa.array((found.status.estimated | found.status.missing).ravel()[at]),
            "method": _methods(found, at),
        },
        schema=GPU_SAMPLES,
    )


def _coded(texts: Texts, index: Ints) -> Column:
    """Few texts, many rows; index -1 is the last text, and no text is null."""
    values, code = np.unique(np.array([text or "" for text in texts.tolist()], dtype=object), return_inverse=True)
    absent = np.array([text is None for text in texts.tolist()], dtype=bool)
    which = np.where(index < 0, len(texts) - 1, index)
    indices = pa.array(code[which].astype(np.int32), pa.int32(), mask=absent[which])
    return pa.DictionaryArray.from_arrays(indices, pa.array(values.tolist(), pa.string()))


def _number(measure: Measure, at: Ints, scale: float) -> Column:
    return pa.array(measure.value.ravel()[at] / scale, pa.float64(), mask=~measure.known.ravel()[at])


def _methods(found: HourPieces, at: Ints) -> Column:
    code = np.where(found.status.missing, MISSING_BIT, 0)
    for bit, rung in enumerate(RUNGS):
        code[found.status.rungs[rung]] += 1 << bit
    texts = [
        "+".join([rung.name.lower() for bit, rung in enumerate(RUNGS) if number >> bit & 1])
        for number in range(MISSING_BIT)
    ]
    texts[0] = "measured"
    names = np.array([*texts, *["missing"] * MISSING_BIT], dtype=object)
    return _coded(names, code.ravel()[at])


def _first_holders(found: HourPieces) -> Ints:
    """The first holder in each window: devices x windows laid flat, NOBODY where there is none."""
    holders = np.full(found.visible.size, NOBODY, dtype=np.int64)
    held = np.flatnonzero(found.pieces.holder != NOBODY)
    first = held[changes(found.pieces.cell[held])]
    holders[found.pieces.cell[first]] = found.pieces.holder[first]
    return holders


def _holder_facts(holding: Holding, owners: Mapping[str, PodOwner | None]) -> tuple[Texts, Texts]:
    """Tenant and deployment of each holder; the last element is nobody's."""
    tenants: list[str | None] = holding.parties.tenant.tolist()
    deployments: list[str | None] = holding.parties.deployment.tolist()
    for pod in holding.pods:
        owner = owners[pod]
        tenants.append(owner.tenant_id if owner else None)
        deployments.append(owner.deployment_id if owner else pod)
    return np.array([*tenants, None], dtype=object), np.array([*deployments, None], dtype=object)
