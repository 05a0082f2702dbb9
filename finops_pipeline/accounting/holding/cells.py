"""Moments of devices, and claims on them.

A *cell* is a window of a device, or a part of one: windows are cut where a workload that may hold the device starts or
stops. A *claim* says that a holder has a cell.
What belongs here: cutting the hour into cells, and tables of claims. What does not: who may claim what (the steps of A17).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, changes, spread
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.lifecycle import NANO
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.spans import Spans, packed


@dataclass(frozen=True)
class Cells:
    """Pieces of windows, ascending by (device, begin); `begin` and `end` are ms from the hour's start."""

    device: Ints
    window: Ints
    begin: Ints
    end: Ints
    windows: int
    """how many an hour has"""

    def __len__(self) -> int:
        return len(self.device)

    def take(self, index: Ints | Bools) -> Cells:
        return Cells(self.device[index], self.window[index], self.begin[index], self.end[index], self.windows)

    @cached_property
    def place(self) -> Ints:
        """Where each cell's window is in a table of devices x windows laid flat."""
        return packed(self.device, self.window, self.windows)

    def of_windows(self, device: Ints, window: Ints) -> tuple[Ints, Ints]:
        """The cells of each (device, window): which of them, and the cell."""
        flat = packed(device, window, self.windows)
        first = np.searchsorted(self.place, flat, "left")
        source, position = spread(np.searchsorted(self.place, flat, "right") - first)
        return source, first[source] + position


@dataclass(frozen=True)
class Claims:
    """Who has which cell, one element a (cell, holder)."""

    cell: Ints
    holder: Ints
    """an interval, or the number of intervals plus the number of a pod without events"""

    def take(self, index: Ints | Bools) -> Claims:
        return Claims(self.cell[index], self.holder[index])


def joined_claims(parts: Sequence[Claims]) -> Claims:
    """Several tables of claims as one, each claim once, ascending.

    >>> joined_claims([Claims(np.array([3, 1]), np.array([0, 2])), Claims(np.array([3]), np.array([0]))]).cell.tolist()
    [1, 3]
    """
    cell = np.concatenate([part.cell for part in parts])
    holder = np.concatenate([part.holder for part in parts])
    size = int(holder.max(initial=0)) + 1
    pairs = np.sort(packed(cell, holder, size), kind="stable")
    return Claims(*np.divmod(pairs[changes(pairs)], size))


def taken(cells: int, parts: Sequence[Claims]) -> Bools:
    """Of each cell, whether somebody claims it.

    >>> taken(3, [Claims(np.array([2]), np.array([0]))]).tolist()
    [False, False, True]
    """
    found = np.zeros(cells, dtype=bool)
    for part in parts:
        found[part.cell] = True
    return found


def there(view: View, cells: Cells, cell: Ints) -> Bools:
    """Whether the device is still there in each of the cells (A21)."""
    return np.asarray(~view.replaced.ravel()[cells.place[cell]])


def covers(view: View, cells: Cells, interval: Ints, cell: Ints) -> Bools:
    """Whether each interval runs through the whole cell."""
    return np.asarray((view.begin[interval] <= cells.begin[cell]) & (view.end[interval] >= cells.end[cell]))


def cut(view: View, spans: Spans, lacking: Ints) -> Cells:
    """Windows, cut at the edges of every interval that may hold a device of the board.

    `spans` are those of A17 (a), `lacking` (intervals x windows) the devices that an interval then still lacks.
    """
    board, interval = np.unique(np.stack([view.timeline.board[spans.device], spans.interval]), axis=1)
    group = _cut_alike(view, board, interval, lacking)
    edges = np.concatenate([view.begin[interval], view.end[interval]])
    whose = np.tile(group[board], 2)
    inside = (edges > 0) & (edges < HOUR_MS) & (edges % view.width != 0)
    cut_group, cut_at = np.divmod(np.unique(packed(whose[inside], edges[inside], HOUR_MS)), HOUR_MS)
    device_group = group[view.timeline.board]
    begin_of = np.searchsorted(cut_group, device_group, "left")
    device, position = spread(np.searchsorted(cut_group, device_group, "right") - begin_of)
    extra = packed(device, cut_at[begin_of[device] + position], HOUR_MS)
    whole = packed(np.arange(view.devices)[:, None], np.arange(view.windows) * view.width, HOUR_MS).ravel()
    device, begin = np.divmod(np.insert(whole, np.searchsorted(whole, extra), extra), HOUR_MS)
    end = np.append(begin, 0)[1:]
    return Cells(device, begin // view.width, begin, np.where(end == 0, HOUR_MS, end), view.windows)


def _cut_alike(view: View, board: Ints, interval: Ints, lacking: Ints) -> Ints:
    """A group for each board. Boards are cut alike where the devices of one interval must be counted
    against each other at each moment: it holds fewer than it may, or parts of a device.
    """
    several = view.most > 1
    counted = (lacking > 0).any(axis=1) if view.windows else np.zeros(len(view.most), bool)
    counted |= several & (view.intervals.gpu_count % NANO != 0)
    counted |= several & view.intervals.is_fractional(view.config)
    linked = counted[interval]
    board, interval = board[linked], interval[linked]
    group = np.arange(len(view.timeline.boards))
    while len(board):
        lowest = np.full(len(view.most), len(group))
        np.minimum.at(lowest, interval, group[board])
        lower = group.copy()
        np.minimum.at(lower, board, lowest[interval])
        lower = lower[lower]
        if (lower == group).all():
            break
        group = lower
    return group
