"""Units of `gpu_count` on the devices that a workload holds (A17, A21).

What belongs here: how many units each claim of a workload takes. What does not: which devices it holds.
"""

from __future__ import annotations

import numpy as np

from finops_pipeline.accounting.arrays import Ints, changes, group_bounds, position_in_group
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.holding.cells import Cells, Claims
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals


def matched_units(cells: Cells, claims: Claims, intervals: Intervals, config: AccountingConfig) -> Ints:
    """Billionths of a unit that each claim matches; 0 for pods without events (A17, A21).

    Each device that a workload holds matches up to one unit of its `gpu_count`, in order of the devices; where a
    unit is less than a GPU, the last device takes all that are left.
    """
    units = np.zeros(len(claims.cell), dtype=np.int64)
    claim = np.flatnonzero(claims.holder < len(intervals))
    interval = claims.holder[claim]
    count = intervals.gpu_count[interval]
    units[claim] = np.minimum(count, NANO)
    fractional = intervals.is_fractional(config)[interval] if len(interval) else np.zeros(0, dtype=bool)
    several = (count > NANO) & ((count % NANO != 0) | fractional)
    claim, interval, count, fractional = claim[several], interval[several], count[several], fractional[several]
    device, begin = cells.device[claims.cell[claim]], cells.begin[claims.cell[claim]]
    order = np.lexsort((device, begin, interval))
    left = count[order] - position_in_group(interval[order], begin[order]) * NANO
    last = np.zeros(len(order), dtype=bool)
    last[group_bounds(changes(interval[order], begin[order]))[1]] = True
    units[claim[order]] = np.where(fractional[order] & last, left, np.minimum(left, NANO))
    return units
