"""A17 (b): a label that lags or drops costs nothing.

What belongs here: which running workloads keep a device that nobody has by (a). What does not: sharing a device that
somebody has (`nearby`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, changes, spread
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.cells import Cells, Claims, covers, taken, there
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.spans import FAR, Spans, nearest_sides, packed


def claims_carried(view: View, cells: Cells, spans: Spans, lacking: Ints, held: Sequence[Claims]) -> Claims:
    """The running workloads that hold fewer devices than they may then, and held this one by (a) in the same interval:
    those of the nearest such window, together; on a tie the earlier window. Where more devices offer themselves than a
    workload lacks: those of the nearest window, on a tie of the earlier one, then in the order of (a).
    """
    free = np.flatnonzero(~taken(len(cells), held) & there(view, cells, np.arange(len(cells))))
    cell, pair = candidates(cells, spans, free)
    interval = spans.interval[pair]
    room = lacking[interval, cells.window[cell]]
    able = (room > 0) & covers(view, cells, interval, cell)
    cell, pair, interval, room = cell[able], pair[able], interval[able], room[able]
    moment = packed(interval, cells.begin[cell], HOUR_MS)
    _, wanting, offers = np.unique(moment, return_inverse=True, return_counts=True)
    left = np.zeros(len(offers), dtype=np.int64)
    left[wanting] = room
    chosen = taken_offers(_offers(cells, spans, cell, pair, wanting), left)
    return Claims(cell[chosen], interval[chosen])


@dataclass(frozen=True)
class Offers:
    """Free devices offer themselves to workloads that lack some, an element a (cell, interval)."""

    cell: Ints
    wanting: Ints
    """number of the interval at the cell's moment"""
    rank: Ints
    """by the nearest window in which the interval had the device, an earlier one first, then by device: smaller is first"""
    before: Ints
    after: Ints
    """the nearest windows on both sides in which the interval had the device"""
    window: Ints
    """the nearer of the two, on a tie the earlier"""

    def take(self, index: Ints | Bools) -> Offers:
        return Offers(
            *(getattr(self, name)[index] for name in ("cell", "wanting", "rank", "before", "after", "window"))
        )


def _offers(cells: Cells, spans: Spans, cell: Ints, pair: Ints, wanting: Ints) -> Offers:
    at = cells.window[cell]
    before, after = nearest_sides(spans, spans.pair[pair], at)
    window = np.where(at - before <= after - at, before, after)
    order = np.lexsort((cells.device[cell], window, np.abs(at - window)))
    rank = np.empty(len(cell), dtype=np.int64)
    rank[order] = np.arange(len(cell))
    return Offers(cell, wanting, rank, before, after, window)


def taken_offers(offers: Offers, left: Ints) -> Ints:
    """The places of the offers that are taken; `left` is how many devices each `wanting` lacks.

    In rounds: a device whose best offer is the best of everybody who wants it goes to all that had it in that window.
    What a workload took counts in the next round, so this gives what going through the offers one by one would give.

    >>> column = lambda *numbers: np.array(numbers)
    >>> two = Offers(column(0, 1), column(0, 0), column(1, 0), column(2, 4), column(FAR, FAR), column(2, 4))
    >>> taken_offers(two, np.array([1])).tolist(), taken_offers(two, np.array([2])).tolist()
    ([1], [0, 1])
    """
    left, open_ = left.copy(), np.arange(len(offers.cell))
    found: list[Ints] = []
    while len(open_):
        here = offers.take(open_)
        _, cell = np.unique(here.cell, return_inverse=True)
        best = np.full(int(cell.max()) + 1, FAR)
        np.minimum.at(best, cell, here.rank)
        first = np.full(len(left), FAR)
        np.minimum.at(first, here.wanting, best[cell])
        plenty = np.bincount(here.wanting, minlength=len(left)) <= left
        settled = np.ones(len(best), dtype=bool)
        settled[cell[~plenty[here.wanting] & (first[here.wanting] < best[cell])]] = False
        leader = np.zeros(len(best), dtype=np.int64)
        top = here.rank == best[cell]
        leader[cell[top]] = here.window[top]
        takes = settled[cell] & ((here.before == leader[cell]) | (here.after == leader[cell]))
        found.append(open_[takes])
        np.subtract.at(left, here.wanting[takes], 1)
        open_ = open_[~settled[cell] & (left[here.wanting] > 0)]
    return np.sort(np.concatenate(found)) if found else open_


def candidates(cells: Cells, spans: Spans, cell: Ints) -> tuple[Ints, Ints]:
    """Each cell with each interval that had its device by (a) within reach: the cell, and the first span of the two."""
    first_span = np.flatnonzero(changes(spans.device, spans.interval))
    device = spans.device[first_span]
    begin = np.searchsorted(device, cells.device[cell], "left")
    row, position = spread(np.searchsorted(device, cells.device[cell], "right") - begin)
    return cell[row], first_span[begin[row] + position]


def waits_for_workload(spans: Spans, cells: Cells, carried: Claims, intervals: int) -> bool:
    """Whether a workload is carried on a device on which it is not seen later (A16)."""
    known = packed(spans.device, spans.interval, intervals)
    index = np.searchsorted(known, packed(cells.device[carried.cell], carried.holder, intervals), "right") - 1
    return bool((spans.last[index] < cells.window[carried.cell]).any())
