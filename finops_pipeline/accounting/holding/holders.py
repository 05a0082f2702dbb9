"""Who holds a device, at every moment of an hour (A17): its steps in their order.

What belongs here: the sequence, and its outcome. What does not: the steps (`labelled`, `carried`, `gaps`, `dropped`,
`nearby`, `states`), and what was used meanwhile (`usage`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finops_pipeline.accounting.arrays import Bools, Ints
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.carried import claims_carried, waits_for_workload
from finops_pipeline.accounting.holding.cells import Cells, Claims, cut, joined_claims, taken
from finops_pipeline.accounting.holding.dropped import claims_over_drops, waits_for_pod
from finops_pipeline.accounting.holding.gaps import claims_through_gaps
from finops_pipeline.accounting.holding.labelled import (
    claims_of_pods,
    claims_of_workloads,
    devices_lacking,
    labelled_spans,
)
from finops_pipeline.accounting.holding.lifecycle import Intervals, Parties
from finops_pipeline.accounting.holding.nearby import claims_nearby
from finops_pipeline.accounting.holding.states import states
from finops_pipeline.accounting.holding.uninvited import Taken, taken_of_devices, uninvited
from finops_pipeline.accounting.holding.units import matched_units
from finops_pipeline.accounting.holding.view import Instants, view_of
from finops_pipeline.accounting.telemetry.cards import Slices
from finops_pipeline.accounting.telemetry.summaries import Timeline


@dataclass(frozen=True)
class Holding:
    """The outcome of A17 for one hour."""

    intervals: Intervals
    """those that run in the hour"""
    parties: Parties
    """for whom they run"""
    pods: tuple[str, ...]
    """labels of the pods without events, by number"""
    cells: Cells
    claims: Claims
    """ascending"""
    units: Ints
    """billionths of a unit of `gpu_count` that each claim takes; 0 for pods without events"""
    taken: Taken
    """what the workloads' units take of the device in each cell"""
    uninvited: Claims
    """of pods without events on devices that running workloads take whole: they hold nothing"""
    state: npt.NDArray[np.int8]
    """State of each cell"""
    silent: Bools
    """devices x windows: no sample, and not bridged (A11)"""
    window_set: Ints
    """devices x windows: label set"""
    open_hole: bool
    """a label is missing, and no later reading has shown yet whether it comes back (A16)"""

    def holder_numbers(self) -> Ints:
        """Claims name intervals or pods; of each, its party, or `len(parties)` + pod."""
        return np.concatenate([self.parties.of_interval, len(self.parties) + np.arange(len(self.pods))])


def hold(
    timeline: Timeline,
    instants: Instants,
    intervals: Intervals,
    replaced: Bools,
    slices: Slices,
    config: AccountingConfig,
) -> Holding:
    """Apply A17 to the hour of `timeline`; only intervals that run in it can hold something then.

    `replaced` (devices x windows) is where a device is not there any more (A21).
    """
    running = intervals.running_in(timeline.start, timeline.start + HOUR_MS)
    view = view_of(timeline, instants, running, replaced, config)
    spans = labelled_spans(view)
    lacking = devices_lacking(view, spans)
    cells = cut(view, spans, lacking)
    by_label, pods = claims_of_workloads(view, cells, spans), claims_of_pods(view, cells)
    carried = claims_carried(view, cells, spans, lacking, [by_label, pods])
    through_gaps = claims_through_gaps(view, cells)
    over_drops = claims_over_drops(view, cells)
    free = ~taken(len(cells), [by_label, pods, carried, through_gaps])
    nearby = claims_nearby(view, cells, spans, lacking, [by_label, carried])
    asked = joined_claims([by_label, pods, carried, through_gaps, over_drops.take(free[over_drops.cell]), nearby])
    units = matched_units(cells, asked, running, config)
    by_units = taken_of_devices(cells, asked, units, running, config)
    unwelcome = uninvited(cells, asked, by_units, slices, len(running))
    claims = asked.take(~unwelcome)
    return Holding(
        intervals=running,
        parties=running.parties(),
        pods=view.pods,
        cells=cells,
        claims=claims,
        units=units[~unwelcome],
        taken=by_units,
        uninvited=asked.take(unwelcome),
        state=states(view, cells, claims),
        silent=view.silent,
        window_set=view.window_set,
        open_hole=waits_for_workload(spans, cells, carried, len(running)) or waits_for_pod(view),
    )
