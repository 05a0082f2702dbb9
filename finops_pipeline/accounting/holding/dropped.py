"""A17 (c): a pod without events whose label drops for a while.

What belongs here: short runs of measured windows without any label. What does not: gaps (`gaps`).
"""

from __future__ import annotations

import numpy as np

from finops_pipeline.accounting.arrays import Ints, changes
from finops_pipeline.accounting.holding.cells import Cells, Claims
from finops_pipeline.accounting.holding.gaps import claims_of_both
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.accounting.telemetry.summaries import Runs

NEAR_MS = 10 * 60 * 1000
"""How long a label may be missing (A17 c), and how far away a sharing workload may have been seen (A17 d)."""


def claims_over_drops(view: View, cells: Cells) -> Claims:
    """A pod without events keeps a device over a run of measured windows without any label, at most 10 minutes long,
    directly between two windows with its label.
    """
    runs = view.timeline.runs
    middle, first, last = drops(runs, view.windows, view.width)
    sides = (runs.label_set[middle - 1], runs.label_set[middle + 1])
    return claims_of_both(view, cells, (runs.device[middle], first, last), sides)


def drops(runs: Runs, windows: int, width: int) -> tuple[Ints, Ints, Ints]:
    """Runs without a label, at most 10 minutes long, directly between two others: which, first and last window in
    the hour.

    >>> runs = Runs(*(np.array(column) for column in ([0, 0, 0], [0, 4, 6], [3, 5, 9], [1, NO_LABELS, 1])))
    >>> [column.tolist() for column in drops(runs, 240, 15_000)]
    [[1], [4], [5]]
    """
    middle = np.arange(1, max(len(runs.device) - 1, 1))
    short = (runs.last[middle] - runs.first[middle] + 1) * width <= NEAR_MS
    drop = (runs.label_set[middle] == NO_LABELS) & short
    for beside in (middle - 1, middle + 1):
        drop &= runs.device[beside] == runs.device[middle]
    drop &= (runs.last[middle - 1] + 1 == runs.first[middle]) & (runs.last[middle] + 1 == runs.first[middle + 1])
    first, last = np.maximum(runs.first[middle], 0), np.minimum(runs.last[middle], windows - 1)
    index = np.flatnonzero(drop & (first <= last))
    return middle[index], first[index], last[index]


def waits_for_pod(view: View) -> bool:
    """Whether the label of a pod without events has just gone, and no later reading shows if it comes back (A16)."""
    runs = view.timeline.runs
    if len(runs.device) < 2:
        return False
    final = np.flatnonzero(np.append(changes(runs.device)[1:], True))
    final = final[(final > 0) & (runs.label_set[final] == NO_LABELS) & (runs.last[final] >= 0)]
    gone = (runs.device[final - 1] == runs.device[final]) & view.has_pods[runs.label_set[final - 1]]
    gone &= runs.last[final - 1] + 1 == runs.first[final]
    gone &= runs.first[final] < view.windows
    gone &= (runs.last[final] - runs.first[final] + 1) * view.width <= NEAR_MS
    return bool(gone.any())
