"""The hour as the steps of A17 see it: who runs, what each window carries, which pods have no events.

What belongs here: tables that several steps read. What does not: any step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, spread
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.spans import FAR
from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.accounting.telemetry.summaries import Timeline

NOBODY = -1


@dataclass(frozen=True)
class Instants:
    """The hour's instants with a sample, in the timeline's numbers, ascending by (device, at)."""

    device: Ints
    at: Ints
    label_set: Ints


@dataclass(frozen=True)
class View:
    """One hour before A17; tables of devices x windows are two-dimensional."""

    timeline: Timeline
    instants: Instants
    intervals: Intervals
    """those that run in the hour"""
    begin: Ints
    end: Ints
    """of each interval, in ms from the hour's start"""
    most: Ints
    """how many devices each interval may hold: `ceil(gpu_count)`"""
    silent: Bools
    """devices x windows: no sample, and not bridged (A11)"""
    window_set: Ints
    """devices x windows: label set"""
    replaced: Bools
    """devices x windows: the device is not there any more (A21)"""
    pods: tuple[str, ...]
    """labels of the pods without events (A18), by number"""
    pods_of_set: list[list[int]]
    """of each label set, its pods without events"""
    config: AccountingConfig

    @property
    def windows(self) -> int:
        return self.config.windows

    @property
    def width(self) -> int:
        return self.config.window_ms

    @property
    def devices(self) -> int:
        return len(self.timeline.devices)

    @property
    def has_pods(self) -> Bools:
        """Of each label set, whether a pod without events is in it."""
        return np.array([len(pods) > 0 for pods in self.pods_of_set], dtype=bool)


def view_of(
    timeline: Timeline, instants: Instants, intervals: Intervals, replaced: Bools, config: AccountingConfig
) -> View:
    """`intervals` are those that run in the hour."""
    silent, window_set = gap_windows(timeline, config.windows), _label_sets(timeline, config.windows)
    labels = {label for members in timeline.sets.members for label in members}
    pods = tuple(sorted(labels - intervals.known_labels))
    number = {pod: index for index, pod in enumerate(pods)}
    return View(
        timeline=timeline,
        instants=instants,
        intervals=intervals,
        begin=np.clip(intervals.start - timeline.start, -FAR, FAR),
        end=np.clip(intervals.end - timeline.start, -FAR, FAR),
        most=-(-intervals.gpu_count // NANO),
        silent=silent,
        window_set=window_set,
        replaced=replaced,
        pods=pods,
        pods_of_set=[sorted(number[label] for label in s if label in number) for s in timeline.sets.members],
        config=config,
    )


def gap_windows(timeline: Timeline, windows: int) -> Bools:
    """Devices x windows of the hour: no sample, and not bridged (A11)."""
    silent = np.ones((len(timeline.devices), windows), dtype=bool)
    device, window, _ = _measured(timeline, windows)
    silent[device, window] = False
    return silent


def _label_sets(timeline: Timeline, windows: int) -> Ints:
    """Devices x windows of the hour: the labels that a measured window carries (A11)."""
    found = np.full((len(timeline.devices), windows), NO_LABELS, dtype=np.int64)
    device, window, label_set = _measured(timeline, windows)
    found[device, window] = label_set
    return found


def _measured(timeline: Timeline, windows: int) -> tuple[Ints, Ints, Ints]:
    """Device, window and labels of the measured windows of the hour."""
    runs = timeline.runs
    here = runs.take((runs.last >= 0) & (runs.first < windows))
    first, last = np.maximum(here.first, 0), np.minimum(here.last, windows - 1)
    run, offset = spread(last - first + 1)
    return here.device[run], first[run] + offset, here.label_set[run]


def members_of(sets: Ints, members: list[list[int]]) -> tuple[Ints, Ints]:
    """Each element of `sets` with each member of its set: which element, and the member.

    >>> row, member = members_of(np.array([1, 0, 1]), [[], [4, 5]])
    >>> row.tolist(), member.tolist()
    ([0, 0, 2, 2], [4, 5, 4, 5])
    """
    sizes = np.array([len(each) for each in members], dtype=np.int64)
    flat = np.array([one for each in members for one in each], dtype=np.int64)
    row, position = spread(sizes[sets])
    return row, flat[(np.cumsum(sizes) - sizes)[sets[row]] + position]
