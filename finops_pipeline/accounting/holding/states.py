"""What a moment of a device is that nobody holds (A17, A21).

What belongs here: the states of cells. What does not: who holds them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from finops_pipeline.accounting.holding.cells import Cells, Claims, taken
from finops_pipeline.accounting.holding.gaps import between_pods
from finops_pipeline.accounting.holding.view import View
from finops_pipeline.accounting.telemetry.readings import NO_LABELS


class State(IntEnum):
    """What a moment of a device is (A17, A21); the names are those of the fleet table."""

    HELD = 0
    """somebody holds it"""
    STALE = 1
    """it carries the label of a workload that does not run, or that already holds its devices"""
    UNATTRIBUTED = 2
    """silent between two different pods without events, or held by a pod of no deployment"""
    IDLE = 3
    """read, and nobody's"""
    NO_DATA = 4
    """silent, and nobody's"""


def states(view: View, cells: Cells, claims: Claims) -> npt.NDArray[np.int8]:
    """State of each cell: `held` where claimed; else `stale` with the label of a workload that does not run or has its
    devices, `unattributed` in A14's case, `no_data` in a gap, else `idle`.
    """
    silent = view.silent.ravel()[cells.place]
    labelled = view.window_set.ravel()[cells.place] != NO_LABELS
    between = between_pods(view).ravel()[cells.place]
    return np.select(
        [taken(len(cells), [claims]), silent & between, silent, labelled],
        [State.HELD, State.UNATTRIBUTED, State.NO_DATA, State.STALE],
        State.IDLE,
    ).astype(np.int8)
