"""Idioms on sorted integer columns: groups of equal neighbours, and joins by repetition.

What belongs here: array work without any meaning of its own. What does not: anything that knows a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = Any
"""An Arrow array or chunked array; the library's stubs know less than the library accepts."""
Result = TypeVar("Result")
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]


def changes(*keys: npt.NDArray[np.generic]) -> Bools:
    """Where a group of equal neighbours begins; the keys are columns of one sorted table."""
    fresh = np.ones(len(keys[0]), dtype=bool)
    if len(fresh):
        fresh[1:] = False
        for key in keys:
            fresh[1:] |= key[1:] != key[:-1]
    return fresh


def group_bounds(fresh: Bools) -> tuple[Ints, Ints]:
    """First and last position of each group."""
    first = np.flatnonzero(fresh)
    last = np.append(first, len(fresh))[1:] - 1
    return first, last


def firsts(values: Ints) -> Ints:
    """Where each distinct value stands first, in order of the values; ascending ones take one look."""
    if (values[1:] >= values[:-1]).all():
        return np.flatnonzero(changes(values))
    return np.unique(values, return_index=True)[1]


def position_in_group(*keys: npt.NDArray[np.generic]) -> Ints:
    """Position of each element among its equals; the keys are columns of one sorted table."""
    fresh = changes(*keys)
    return np.asarray(np.arange(len(fresh)) - np.flatnonzero(fresh)[np.cumsum(fresh) - 1], dtype=np.int64)


def grouped(*keys: Ints) -> tuple[Ints, Ints]:
    """An order that brings equal keys together, and where each group begins in it."""
    order = sorting(*keys)
    return order, np.flatnonzero(changes(*(key[order] for key in keys)))


def sorting(*keys: Ints) -> Ints:
    """The stable order by these keys, the first one first; rows that are in order already take one look."""
    ordered = np.ones(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in reversed(keys):
        ordered = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & ordered)
    return np.arange(len(keys[0])) if ordered.all() else np.lexsort(keys[::-1])


def scrambled(values: Ints) -> npt.NDArray[np.uint64]:
    """Numbers whose sums distinguish sets of `values` (splitmix64)."""
    x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """For groups of these sizes: the group of each member, and its position in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)


def whole(column: Column) -> Column:
    """A column as one contiguous array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def mapped(function: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
    """`function` of each name, asked once for each different one."""
    names = list(names)
    known = {name: function(name) for name in set(names)}
    return [known[name] for name in names]


def texts(column: Column) -> Texts:
    """A string column as Python strings and None."""
    return (
        np.asarray(whole(column).to_numpy(zero_copy_only=False), dtype=object)
        if len(column)
        else np.zeros(0, dtype=object)
    )


def ints(column: Column, default: int = 0) -> Ints:
    """An integer or timestamp column; nulls become `default`."""
    return np.asarray(
        pc.fill_null(whole(column).cast(pa.int64()), default).to_numpy(zero_copy_only=False), dtype=np.int64
    )


def bools(column: Column) -> Bools:
    """A boolean column without nulls."""
    return (
        np.asarray(whole(column).to_numpy(zero_copy_only=False), dtype=bool) if len(column) else np.zeros(0, dtype=bool)
    )
