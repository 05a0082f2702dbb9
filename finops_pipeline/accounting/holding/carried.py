"""A17 (b): a label that lags or drops costs nothing.

What belongs here: which running workloads keep a device that nobody has by (a). What does not: sharing a device that
somebody has (`nearby`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, changes, position_in_group, spread
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.cells import Cells, Claims, covers, taken, there
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.spans import FAR, Spans, nearest_sides, packed


def claims_carried(view: View, cells: Cells, spans: Spans, lacking: Ints, held: Sequence[Claims]) -> Claims:
    """The running workloads that hold fewer devices than they may, and held this one by (a) in the same interval:
    those of the nearest such window, together; on a tie the earlier window.
    """
    free = np.flatnonzero(~taken(len(cells), held) & there(view, cells, np.arange(len(cells))))
    cell, pair = candidates(cells, spans, free)
    interval = spans.interval[pair]
    room = lacking[interval, cells.window[cell]]
    able = (room > 0) & covers(view, cells, interval, cell)
    cell, pair, interval, room = cell[able], pair[able], interval[able], room[able]
    moment = packed(interval, cells.begin[cell], HOUR_MS)
    _, inverse, wanted = np.unique(moment, return_inverse=True, return_counts=True)
    contended = np.isin(interval, interval[wanted[inverse] > room])
    shared = np.isin(cell, cell[contended])
    chosen = np.zeros(len(cell), dtype=bool)
    chosen[~shared] = _nearest(cells, spans, cell[~shared], pair[~shared])
    left = np.full(len(wanted), FAR)
    np.minimum.at(left, inverse, room)
    for device in np.unique(cells.device[cell[shared]]).tolist():
        rows = np.flatnonzero(shared & (cells.device[cell] == device))
        rows = rows[left[inverse[rows]] > 0]
        chosen[rows] = _nearest(cells, spans, cell[rows], pair[rows])
        left[inverse[rows[chosen[rows]]]] -= 1
    return Claims(cell[chosen], interval[chosen])


def candidates(cells: Cells, spans: Spans, cell: Ints) -> tuple[Ints, Ints]:
    """Each cell with each interval that had its device by (a) within reach: the cell, and the first span of the two."""
    first_span = np.flatnonzero(changes(spans.device, spans.interval))
    device = spans.device[first_span]
    begin = np.searchsorted(device, cells.device[cell], "left")
    row, position = spread(np.searchsorted(device, cells.device[cell], "right") - begin)
    return cell[row], first_span[begin[row] + position]


def _nearest(cells: Cells, spans: Spans, cell: Ints, pair: Ints) -> Bools:
    """Of the candidates of each cell, those of the nearest window, together; on a tie of the earlier one."""
    if not len(cell):
        return np.zeros(0, bool)
    window = cells.window[cell]
    before, after = nearest_sides(spans, spans.pair[pair], window)
    best = np.where(window - before <= after - window, before, after)
    order = np.lexsort((best, np.abs(window - best), cell))
    leader = order[position_in_group(cell[order]) == 0]
    chosen = np.zeros(len(cells), dtype=np.int64)
    chosen[cell[leader]] = best[leader]
    return np.asarray((before == chosen[cell]) | (after == chosen[cell]))


def waits_for_workload(spans: Spans, cells: Cells, carried: Claims, intervals: int) -> bool:
    """Whether a workload is carried on a device on which it is not seen later (A16)."""
    known = packed(spans.device, spans.interval, intervals)
    index = np.searchsorted(known, packed(cells.device[carried.cell], carried.holder, intervals), "right") - 1
    return bool((spans.last[index] < cells.window[carried.cell]).any())
