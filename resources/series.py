"""Assembles readings into the table `contracts.lake.DCGM_SERIES`, whichever door they came through.

What belongs here: putting (series, instant, value) columns into one row per series, in an order that does not
depend on how they arrived, and cutting such a table to a half-open span (A1). What does not: parsing text or JSON
(`resources.openmetrics`, `resources.prometheus`) and any meaning of a metric or label (`finops_pipeline.accounting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from finops_pipeline.contracts.lake import DCGM_SERIES, INSTANT

Ids: TypeAlias = npt.NDArray[np.int64]
Millis: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[np.float64]
Column: TypeAlias = Any
"""An Arrow array: the type stubs of pyarrow know too little of nested ones."""


class SeriesBuilder:
    """Collects samples of many series, in any order and any number of parts.

    A sample that comes twice (same series, instant and value bits) counts once. Different values of one series at
    one millisecond are all kept: which of them counts is a rule (A7), not this module's business.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._parts: list[tuple[Ids, Millis, Values]] = []

    def series(self, metric: str, labels: Mapping[str, str]) -> int:
        """The id of a series; the same metric and label set always have the same one. An empty label is no label."""
        key = (metric, tuple(sorted((name, value) for name, value in labels.items() if value)))
        return self._ids.setdefault(key, len(self._ids))

    def add(self, ids: Ids, instants: Millis, values: Values) -> None:
        """Adds one sample per position: series id, instant (UTC milliseconds), value."""
        if not len(ids) == len(instants) == len(values):
            raise ValueError(f"columns differ in length: {len(ids)}, {len(instants)}, {len(values)}")
        if len(ids):
            self._parts.append((ids, instants, values))

    def table(self) -> pa.Table:
        """One row per series that has a sample, ordered by metric and labels, instants ascending."""
        if not self._parts:
            return DCGM_SERIES.empty_table()
        keys = sorted(self._ids)
        rank = np.empty(len(keys), dtype=np.int64)
        rank[[self._ids[key] for key in keys]] = np.arange(len(keys))
        rows = rank[np.concatenate([part[0] for part in self._parts])]
        instants = np.concatenate([part[1] for part in self._parts])
        values = np.concatenate([part[2] for part in self._parts])
        order = np.argsort(rows, kind="stable")
        rows, instants, values = _sorted_once(rows[order], instants[order], values[order])
        present, first = np.unique(rows, return_index=True)
        return _table([keys[row] for row in present.tolist()], np.append(first, len(rows)), instants, values)


def window(table: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """The samples of a DCGM_SERIES table with `start <= t < end` (UTC milliseconds). A series left without one is gone."""
    if table.num_rows == 0:
        return table
    column: Column = table["timestamps"].combine_chunks()
    numbers: Column = table["values"].combine_chunks()
    counts = np.asarray(column.value_lengths(), dtype=np.int64)
    instants = np.asarray(column.flatten().cast(pa.int64()))
    values = np.asarray(numbers.flatten())
    kept = (instants >= start_ms) & (instants < end_ms)
    counts_kept = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
    rows = np.flatnonzero(counts_kept)
    offsets = np.concatenate([[0], np.cumsum(counts_kept[rows])])
    names = table.select(["metric", "labels"]).take(rows)
    return pa.table([*names.columns, *_lists(offsets, instants[kept], values[kept])], schema=DCGM_SERIES)


def _sorted_once(rows: Ids, instants: Millis, values: Values) -> tuple[Ids, Millis, Values]:
    """Ordered by series and instant, each sample once; `rows` ascend already."""
    bits = values.view(np.int64)
    same_row = rows[1:] == rows[:-1]
    if not np.all((rows[1:] > rows[:-1]) | (same_row & (instants[1:] > instants[:-1]))):
        order = np.lexsort((bits, instants, rows))
        rows, instants, bits = rows[order], instants[order], bits[order]
        same = (rows[1:] == rows[:-1]) & (instants[1:] == instants[:-1]) & (bits[1:] == bits[:-1])
        first = np.concatenate([[True], ~same])
        rows, instants, bits = rows[first], instants[first], bits[first]
    return rows, instants, bits.view(np.float64)


def _table(
    keys: list[tuple[str, tuple[tuple[str, str], ...]]], offsets: Ids, instants: Millis, values: Values
) -> pa.Table:
    labels = pa.array([key[1] for key in keys], type=pa.map_(pa.string(), pa.string()))
    metrics = pa.array([key[0] for key in keys], type=pa.string())
    return pa.table([metrics, labels, *_lists(offsets, instants, values)], schema=DCGM_SERIES)


def _lists(offsets: Ids, instants: Millis, values: Values) -> tuple[Column, Column]:
    starts = pa.array(offsets, type=pa.int32())
    return (
        pa.ListArray.from_arrays(starts, pa.array(instants, type=pa.int64()).cast(INSTANT)),
        pa.ListArray.from_arrays(starts, pa.array(values, type=pa.float64())),
    )
