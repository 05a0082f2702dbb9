"""A14: pods without events in gaps.

What belongs here: who keeps a silent device without lifecycle events. What does not: windows that were read (`dropped`).
"""

from __future__ import annotations

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, spread
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.cells import Cells, Claims, there
from finops_pipeline.accounting.holding.view import NOBODY, View, members_of
from finops_pipeline.accounting.spans import packed
from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.accounting.telemetry.summaries import Runs


def claims_through_gaps(view: View, cells: Cells) -> Claims:
    """A pod holds a device through a gap only if the readings on both sides carry its label."""
    device, first, last = silences(view.timeline.runs, view.windows)
    return claims_of_both(view, cells, (device, first, last), _sides(view, device, first, last))


def claims_of_both(view: View, cells: Cells, stretches: tuple[Ints, Ints, Ints], sides: tuple[Ints, Ints]) -> Claims:
    """The pods that are in the label sets of both sides, in each stretch (device, first and last window)."""
    device, first, last = stretches
    pairs, kind = np.unique(np.stack(sides), axis=1, return_inverse=True)
    common = [sorted({*view.pods_of_set[a]} & {*view.pods_of_set[b]}) for a, b in pairs.T.tolist()]
    row, pod = members_of(kind.reshape(-1), common)
    window_row, offset = spread(last[row] - first[row] + 1)
    source, cell = cells.of_windows(device[row][window_row], first[row][window_row] + offset)
    claims = Claims(cell, len(view.most) + pod[window_row][source])
    return claims.take(there(view, cells, claims.cell))


def between_pods(view: View) -> Bools:
    """Devices x windows: silent between readings of two pods without events; without a holder `unattributed`."""
    device, first, last = silences(view.timeline.runs, view.windows)
    before, after = _sides(view, device, first, last)
    both = view.has_pods[before] & view.has_pods[after]
    row, offset = spread((last - first + 1)[both])
    between = np.zeros((view.devices, view.windows), dtype=bool)
    between[device[both][row], first[both][row] + offset] = True
    return between


def silences(runs: Runs, windows: int) -> tuple[Ints, Ints, Ints]:
    """Holes between two runs of a device that reach into the hour: device, first and last window in it.

    >>> runs = Runs(*(np.array(column) for column in ([0, 0], [-9, 5], [-3, 7], [0, 0])))
    >>> [column.tolist() for column in silences(runs, 240)]
    [[0], [0], [4]]
    """
    same = runs.device[1:] == runs.device[:-1]
    first, last = np.maximum(runs.last[:-1] + 1, 0), np.minimum(runs.first[1:] - 1, windows - 1)
    index = np.flatnonzero(same & (first <= last))
    return runs.device[index], first[index], last[index]


def _sides(view: View, device: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Labels of the readings before and after silent windows of the hour, wherever they were read."""
    known, timeline = view.instants, view.timeline
    key = packed(known.device, known.at - timeline.start, 2 * HOUR_MS)
    before = np.searchsorted(key, packed(device, first * view.width, 2 * HOUR_MS)) - 1
    after = np.searchsorted(key, packed(device, (last + 1) * view.width, 2 * HOUR_MS))
    devices, sets = np.append(known.device, NOBODY), np.append(known.label_set, NO_LABELS)
    return (
        np.where(devices[before] == device, sets[before], timeline.last_before.value[device]),
        np.where(devices[after] == device, sets[after], timeline.first_after.value[device]),
    )
