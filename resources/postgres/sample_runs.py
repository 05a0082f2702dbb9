"""Windows as `eai.gpu_sample_runs` holds them: a row for up to sixty windows of a device and holder, not one for each.

A hundred times fewer rows to write; the view `eai.gpu_samples` shows the windows. Measures travel as whole numbers,
for which a database never rounds.

Belongs here: the packing. Does not: writing (`client`), and the windows themselves (accounting.usage.samples).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from finops_pipeline.accounting.arrays import Ints, bools, changes, ints, whole
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.contracts.lake import INSTANT

OF_A_RUN = ("cluster", "node", "gpu_uuid", "mig_instance", "model", "namespace", "pod", "tenant_id", "deployment_id")
WINDOWS_OF_A_RUN = 60
"""As many as fit into 2 kB: beyond that Postgres would compress each row, slowly and without gain."""
MEASURES = {"utilization": ("utilization_millionths", 1e6), "memory_used_gb": ("memory_kib", 1024.0**2),
            "power_w": ("power_mw", 1e3)}  # fmt: skip


def sample_runs(samples: pa.Table) -> pa.Table:
    """GPU_SAMPLES, ascending by device and window -> rows of `eai.gpu_sample_runs`."""
    codes = {name: _code(samples[name]) for name in OF_A_RUN}
    at, seconds = ints(samples["window_start"]), ints(samples["window_seconds"])
    follows = np.zeros(len(at), dtype=bool)
    follows[1:] = at[1:] - at[:-1] == 1000 * seconds[:-1]
    first = np.flatnonzero(
        changes(*codes.values(), seconds, at // HOUR_MS, at // (1000 * WINDOWS_OF_A_RUN * seconds)) | ~follows
    )
    offsets = pa.array(np.append(first, len(at)), pa.int32())
    begins = samples.take(pa.array(first, pa.int64()))
    columns: dict[str, Any] = {name: begins[name].cast(pa.string()) for name in OF_A_RUN}
    columns["hour"] = pa.array(at[first] // HOUR_MS * HOUR_MS, INSTANT)
    columns |= {"first_window": begins["window_start"], "window_seconds": begins["window_seconds"]}
    for name, (stored, scale) in MEASURES.items():
        columns[stored] = pa.ListArray.from_arrays(offsets, _whole_numbers(samples[name], scale))
    kind, methods, estimates = _kinds(samples)
    columns["kind"] = pa.ListArray.from_arrays(offsets, pa.array(kind + 1))
    columns["methods"] = pa.array([methods] * len(first), pa.list_(pa.string()))
    columns["estimates"] = pa.array([estimates] * len(first), pa.list_(pa.bool_()))
    return pa.table(columns)


def _code(column: pa.ChunkedArray[Any]) -> Ints:
    """Equal numbers for equal values; null is -1."""
    coded: Any = whole(column)
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    return ints(coded.indices, default=-1)


def _whole_numbers(column: pa.ChunkedArray[Any], scale: float) -> pa.Array[Any]:
    """The integers that were divided by `scale`."""
    value: npt.NDArray[np.float64] = column.to_numpy()
    known = ~np.isnan(value)
    return pa.array(np.rint(np.where(known, value, 0.0) * scale).astype(np.int64), pa.int64(), mask=~known)


def _kinds(samples: pa.Table) -> tuple[Ints, list[str], list[bool]]:
    """Pairs of method and estimated that occur: which one each window has, and what they are."""
    method: Any = whole(samples["method"])
    if not pa.types.is_dictionary(method.type):
        method = method.dictionary_encode()
    estimated = bools(samples["estimated"])
    pairs, kind = np.unique(ints(method.indices) * 2 + estimated, return_inverse=True)
    names = method.dictionary.to_pylist()
    return kind, [names[pair // 2] for pair in pairs.tolist()], [pair % 2 == 1 for pair in pairs.tolist()]
