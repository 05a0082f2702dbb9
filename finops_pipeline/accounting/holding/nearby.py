"""A17 (d): exporters without per-pod rows show one of the sharing pods at a time.

What belongs here: running workloads that share a device which they had a moment ago. What does not: devices that nobody
has (`carried`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finops_pipeline.accounting.arrays import Ints, position_in_group
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.carried import candidates
from finops_pipeline.accounting.holding.cells import Cells, Claims, covers, there
from finops_pipeline.accounting.holding.dropped import NEAR_MS
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.spans import Spans, nearest_sides, packed


def claims_nearby(view: View, cells: Cells, spans: Spans, lacking: Ints, held: Sequence[Claims]) -> Claims:
    """In measured windows, a running workload that holds fewer than its devices by (a) or (b) (`held`), but held one by
    (a) within 10 minutes before or after (between window starts) in the same interval, shares that one with whoever
    holds it: nearest first, on a tie of the earlier window, then in the order of (a).
    """
    ever_lacking = np.any(lacking > 0, axis=1)
    devices = np.unique(spans.device[ever_lacking[spans.interval]])
    _, cell = cells.of_windows(np.repeat(devices, view.windows), np.tile(np.arange(view.windows), len(devices)))
    cell = cell[~view.silent.ravel()[cells.place[cell]] & there(view, cells, cell)]
    cell, pair = candidates(cells, spans, cell)
    interval = spans.interval[pair]
    able = (lacking[interval, cells.window[cell]] > 0) & covers(view, cells, interval, cell)
    cell, pair, interval = cell[able], pair[able], interval[able]
    held = [claims.take(ever_lacking[claims.holder]) for claims in held]
    intervals = len(view.most)
    known = np.concatenate([packed(claims.cell, claims.holder, intervals) for claims in held])
    able = ~np.isin(packed(cell, interval, intervals), known)
    cell, pair, interval = cell[able], pair[able], interval[able]
    window = cells.window[cell]
    before, after = nearest_sides(spans, spans.pair[pair], window)
    near = np.where(window - before <= after - window, before, after)
    distance = np.abs(window - near)
    room = view.most[interval] - _devices_at(cells, held, packed(interval, cells.begin[cell], HOUR_MS))
    able = (distance * view.width <= NEAR_MS) & (room > 0)
    cell, interval, near, distance, room = cell[able], interval[able], near[able], distance[able], room[able]
    order = np.lexsort((cells.device[cell], near, distance, cells.begin[cell], interval))
    chosen = order[position_in_group(interval[order], cells.begin[cell[order]]) < room[order]]
    return Claims(cell[chosen], interval[chosen])


def _devices_at(cells: Cells, held: Sequence[Claims], moment: Ints) -> Ints:
    """How many devices the claims give an interval at a moment (packed interval and begin)."""
    known = np.sort(np.concatenate([packed(claims.holder, cells.begin[claims.cell], HOUR_MS) for claims in held]))
    return np.searchsorted(known, moment, "right") - np.searchsorted(known, moment, "left")
