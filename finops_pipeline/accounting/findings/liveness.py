"""Signs of life of running workloads: at work, idle, or gone without a word.

What belongs here: what telemetry says about a workload that its events say is running. What does not: credits for
the time after the last sign (`credits`), which a person decides.

A workload's last sign of life is the end of the last window that carries its label or, for a workload of whole GPUs, in
which a device that it was on last works without any label. Its devices are those that carried the label within ten
minutes before that; they must have been read since, or nothing is known. Where the label comes back later, the
workload lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Bools, Ints, ints, spread, texts
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.findings.context import Scene, listed, stretches, sums
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.holding.dropped import NEAR_MS
from finops_pipeline.accounting.holding.lifecycle import NANO
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.spans import FAR, WIDE
from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.accounting.telemetry.summaries import Runs
from finops_pipeline.accounting.telemetry.windows import Method

FAILED = "failed"
"""the state of a workload that ended by itself"""
MINUTE_MS = 60_000


def held_but_idle(scene: Scene) -> Iterator[Finding]:
    """One row per device and holder with long idle stretches."""
    pieces, utilization = scene.found.pieces, scene.found.measures.utilization
    method = utilization.method.ravel()[pieces.cell]
    known = (method == Method.MEASURED) | (method == Method.LINEAR)
    idle = utilization.value.ravel()[pieces.cell] < scene.threshold
    rows = np.flatnonzero((pieces.holder != NOBODY) & known & idle)
    device, holder = pieces.device[rows], pieces.holder[rows]
    runs = stretches((holder, device), pieces.begin[rows], pieces.end[rows])
    long = runs.total >= scene.config.findings.idle_minutes * MINUTE_MS
    member, begin, end, ms = (part[long] for part in runs)
    found = sums((device[member], holder[member]), begin, end, ms)
    for row, first, last, total in zip(*(part.tolist() for part in found), strict=True):
        key = str(scene.timeline.devices.key[device[member[row]]])
        workload, tenant = scene.holder(int(holder[member[row]]))
        detail = f"utilization below {scene.share()} for {total / MINUTE_MS:.1f} minutes while held by {workload}"
        yield Finding(Kind.HELD_BUT_IDLE, key, workload, tenant, first, last, total, detail)


@dataclass(frozen=True)
class _Sightings:
    """Runs of windows in which an interval's label is on a device, clipped to the interval; one element each."""

    interval: Ints
    device: Ints
    first: Ints
    last: Ints

    def seen(self, intervals: int, before: int) -> Ints:
        """Of each interval, the last window before `before`; -FAR if there is none."""
        last = np.full(intervals, -FAR)
        here = self.first < before
        np.maximum.at(last, self.interval[here], np.minimum(self.last[here], before - 1))
        return last

    def again(self, intervals: int, since: int) -> Bools:
        """Of each interval, whether there is a window from `since` on."""
        found = np.zeros(intervals, dtype=bool)
        found[self.interval[self.last >= since]] = True
        return found


def _sightings(scene: Scene) -> _Sightings:
    runs = scene.timeline.runs
    sets, labelled = scene.label_pairs
    begin = np.searchsorted(sets, runs.label_set, "left")
    run, position = spread(np.searchsorted(sets, runs.label_set, "right") - begin)
    interval = labelled[begin[run] + position]
    first_window, last_window = _windows(scene)
    first = np.maximum(runs.first[run], first_window[interval])
    last = np.minimum(runs.last[run], last_window[interval])
    some = first <= last
    return _Sightings(interval[some], runs.device[run][some], first[some], last[some])


def _windows(scene: Scene) -> tuple[Ints, Ints]:
    """First and last window of each interval of the hour, counted from the hour's start."""
    intervals, start = scene.holding.intervals, scene.timeline.start
    begin = np.clip(intervals.start - start, -FAR, FAR)
    end = np.clip(intervals.end - start, -FAR, FAR)
    return begin // scene.width, -(-end // scene.width) - 1


def no_sign_of_life(scene: Scene) -> Iterator[Finding]:
    """One row per interval that is silent until its end, or the hour's."""
    intervals, windows = scene.holding.intervals, scene.config.windows
    if not len(intervals):
        return
    sightings = _sightings(scene)
    seen = sightings.seen(len(intervals), windows)
    _, last_window = _windows(scene)
    begin = np.maximum(intervals.start - scene.timeline.start, 0)
    end = np.minimum(intervals.end - scene.timeline.start, HOUR_MS)
    quiet = np.where(seen > -FAR, np.maximum((seen + 1) * scene.width, begin), FAR)
    quiet[sightings.again(len(intervals), windows)] = FAR
    recent = (quiet < end)[sightings.interval]
    recent &= (seen[sightings.interval] - sightings.last) * scene.width < NEAR_MS
    interval, device = np.unique(np.stack([sightings.interval[recent], sightings.device[recent]]), axis=1)
    quiet = np.maximum(quiet, _last_work(scene, interval, device, quiet))
    read_until = (_last_read(scene.timeline.runs, device, last_window[interval]) + 1) * scene.width
    until = np.full(len(intervals), FAR)
    np.minimum.at(until, interval, np.minimum(read_until, intervals.end[interval] - scene.timeline.start))
    asked = scene.config.findings.silent_minutes * MINUTE_MS
    for number in np.flatnonzero((quiet < end) & (until < FAR) & (until - quiet >= asked)).tolist():
        workload, tenant = scene.workload_of(number)
        keys = scene.timeline.devices.key[device[interval == number]]
        first, last = int(quiet[number]), int(end[number])
        detail = f"no sign of life since {scene.instant(first)}: {intervals.label[number]} was last on {listed(keys)}"
        yield Finding(Kind.NO_SIGN_OF_LIFE, workload, workload, tenant, first, last, last - first, detail)


def _last_work(scene: Scene, interval: Ints, device: Ints, quiet: Ints) -> Ints:
    """Of each interval, the end of the last window after `quiet` in which one of its devices works for it.

    A device works for it if it is busy without any label; where parts of GPUs are sold, whatever the label.
    """
    intervals, windows = scene.holding.intervals, scene.config.windows
    last_window = _windows(scene)[1]
    first = np.clip(quiet[interval] // scene.width, 0, windows)
    last = np.clip(last_window[interval], -1, windows - 1)
    row, offset = spread(np.maximum(last - first + 1, 0))
    window, where = first[row] + offset, device[row]
    parts = intervals.is_fractional(scene.config) | (intervals.gpu_count % NANO != 0)
    alone = scene.holding.window_set[where, window] == NO_LABELS
    works = scene.busy[where, window] & ~scene.holding.silent[where, window] & (alone | parts[interval[row]])
    until = np.full(len(intervals), -FAR)
    np.maximum.at(until, interval[row[works]], (window[works] + 1) * scene.width)
    return until


def _last_read(runs: Runs, device: Ints, before: Ints) -> Ints:
    """The last measured window of each device that is not after `before`; -FAR if there is none."""
    if not len(runs.device):
        return np.full(len(device), -FAR)
    offset = WIDE // 2
    keys = runs.device * WIDE + runs.first + offset
    limit = np.clip(before, -offset, offset - 1)
    place = np.searchsorted(keys, device * WIDE + limit + offset, "right") - 1
    at = np.maximum(place, 0)
    there = (place >= 0) & (runs.device[at] == device)
    return np.where(there, np.minimum(runs.last[at], limit), -FAR)


def node_failures(scene: Scene, events: pa.Table) -> Iterator[Finding]:
    """One row per interval that a failure of its node or GPU ended in the hour; `events` is WORKLOAD_EVENTS."""
    intervals, start = scene.holding.intervals, scene.timeline.start
    failures = _failures(events, start, scene.config.findings.failure_words)
    if not failures:
        return
    seen = _sightings(scene).seen(len(intervals), scene.config.windows)
    for number in np.flatnonzero(seen > -FAR).tolist():
        workload, tenant = scene.workload_of(number)
        end = int(intervals.end[number]) - start
        reason = failures.get((workload, start + end))
        quiet = max(int(seen[number] + 1) * scene.width, int(intervals.start[number]) - start)
        if reason is None or quiet >= end:
            continue
        detail = f"{FAILED}: {reason}; its label was last on a device before {scene.instant(quiet)}"
        yield Finding(Kind.NODE_FAILURE, workload, workload, tenant, quiet, end, end - max(quiet, 0), detail)


def _failures(events: pa.Table, start: int, words: tuple[str, ...]) -> dict[tuple[str, int], str]:
    """Reasons of the failures of a node or a GPU that end something in the hour, by workload and instant."""
    failed = events.filter(pc.equal(events["to_state"], pa.scalar(FAILED)))
    rows = zip(texts(failed["workload_id"]), ints(failed["occurred_at"]).tolist(), texts(failed["reason"]), strict=True)
    return {
        (workload, at): reason
        for workload, at, reason in rows
        if reason and start < at <= start + HOUR_MS and tells_failure(reason, words)
    }


def tells_failure(reason: str, words: tuple[str, ...]) -> bool:
    """Whether one of `words` (lower case) is a word of `reason`; `NodeLost` and `Xid79` are two words each."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", reason)
    return not set(words).isdisjoint(re.findall(r"[a-z]+", apart.lower()))
