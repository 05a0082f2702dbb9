"""Where workload labels and lifecycle events disagree (A17, A18).

What belongs here: labels that are stale, missing or on too many devices, and devices at work for nobody. What does
not: workloads that show no sign of life (`signs`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finops_pipeline.accounting.arrays import Ints, changes, spread
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.findings.context import Scene, listed, sums
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.holding.lifecycle import NANO
from finops_pipeline.accounting.holding.states import State
from finops_pipeline.accounting.holding.view import NOBODY

OF_NOBODY = {State.IDLE: "idle", State.STALE: "stale", State.UNATTRIBUTED: "unattributed"}


def stale_labels(scene: Scene) -> Iterator[Finding]:
    """A row for each device and label."""
    cells, label_set = scene.holding.cells, scene.holding.window_set
    at = np.flatnonzero(
        (scene.holding.state == State.STALE)
        & scene.found.visible.ravel()[cells.device * scene.config.windows + cells.window]
    )
    carried = label_set[cells.device[at], cells.window[at]]
    begin, end = cells.begin[at], cells.end[at]
    found = sums((cells.device[at], carried), begin, end, end - begin)
    owners = _owners_of(scene, {label for s in carried[found.member] for label in scene.timeline.sets.members[s]})
    running = {str(scene.holding.intervals.workloads[w]) for w in scene.holding.intervals.workload.tolist()}
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        device = str(scene.timeline.devices.key[cells.device[at[member]]])
        for label in sorted(scene.timeline.sets.members[carried[member]]):
            workload, tenant = owners.get(label, (None, None))
            why = "holds its devices already, or did not run then" if workload in running else "does not run"
            detail = f"carries {label}, the label of {workload or 'a workload'} that {why} by its events"
            yield Finding(Kind.STALE_LABEL, device, workload, tenant, first, last, ms, detail)


def _owners_of(scene: Scene, labels: set[str]) -> dict[str, tuple[str, str]]:
    """Workload and tenant of the last interval of each label that began before the hour's end, else of the first."""
    intervals, end = scene.intervals, scene.timeline.start + HOUR_MS
    best: dict[str, tuple[bool, int, int]] = {}
    for number, label in enumerate(intervals.label.tolist()):
        if label in labels:
            start = int(intervals.start[number])
            rank = (start < end, start if start < end else -start, number)
            best[label] = max(best.get(label, rank), rank)
    return {
        label: (str(intervals.workloads[intervals.workload[number]]), str(intervals.tenant[number]))
        for label, (_, _, number) in best.items()
    }


def label_drops(scene: Scene) -> Iterator[Finding]:
    """A row for each device and holder, over its pieces in windows that were read without the holder's label."""
    pieces, holding = scene.found.pieces, scene.holding
    held = np.flatnonzero((pieces.holder != NOBODY) & ~holding.silent.ravel()[pieces.cell])
    if not len(held):
        return
    device, holder, interval = pieces.device[held], pieces.holder[held], pieces.interval[held]
    carried = holding.window_set[device, pieces.window[held]]
    sets, labelled = scene.label_pairs
    count = len(holding.intervals)
    of_pods = {pod: count + place for place, pod in enumerate(holding.pods)}
    pods = [
        (place, of_pods[label])
        for place, members in enumerate(scene.timeline.sets.members)
        for label in members
        if label in of_pods
    ]
    width = count + len(holding.pods)
    shown = np.concatenate([sets * width + labelled, np.array([s * width + pod for s, pod in pods], dtype=np.int64)])
    claim = np.where(interval != NOBODY, interval, count + holder - len(holding.parties))
    named = np.isin(claim * len(scene.timeline.devices) + device, scene.named_pairs()) & (interval != NOBODY)
    without = ~np.isin(carried * width + claim, shown) & ~named
    held, device, holder = held[without], device[without], holder[without]
    begin, end = pieces.begin[held], pieces.end[held]
    found = sums((device, holder), begin, end, end - begin)
    shared = sums((device, holder), begin, end, (pieces.holders[held] > 1) * (end - begin)).total
    for member, first, last, ms, beside in zip(*(part.tolist() for part in (*found, shared)), strict=True):
        key = str(scene.timeline.devices.key[device[member]])
        workload, tenant = scene.holder(int(holder[member]))
        detail = f"read without the label of {workload}, who keeps it" + (" and shares it" if beside else "")
        yield Finding(Kind.LABEL_DROP, key, workload, tenant, first, last, ms, detail)


def busy_for_nobody(scene: Scene) -> Iterator[Finding]:
    """A row for each device."""
    pieces = scene.found.pieces
    pays = np.array([owner is not None for owner in map(scene.owners.get, scene.holding.pods)], dtype=bool)
    parties = len(scene.holding.parties)
    paid = pieces.holder != NOBODY
    of_pod = pieces.holder >= parties
    paid[of_pod] = pays[pieces.holder[of_pod] - parties]
    once = np.flatnonzero(changes(pieces.device, pieces.begin))
    if not len(once):
        return
    rows = once[~np.logical_or.reduceat(paid, once) & scene.busy.ravel()[pieces.cell[once]]]
    begin, end = pieces.begin[rows], pieces.end[rows]
    state = np.where(pieces.holder[rows] == NOBODY, pieces.state[rows], State.UNATTRIBUTED).astype(np.int64)
    found = sums((pieces.device[rows],), begin, end, end - begin)
    by_state = sums((pieces.device[rows], state), begin, end, end - begin)
    parts: dict[int, list[str]] = {}
    for member, ms in zip(by_state.member.tolist(), by_state.total.tolist(), strict=True):
        told = f"{OF_NOBODY[State(state[member])]} {ms / 1000:g} s"
        parts.setdefault(int(pieces.device[rows[member]]), []).append(told)
    for member, begun, ended, ms in zip(*(part.tolist() for part in found), strict=True):
        device = int(pieces.device[rows[member]])
        key = str(scene.timeline.devices.key[device])
        detail = f"works, and nobody pays: {', '.join(parts[device])}"
        yield Finding(Kind.UNATTRIBUTED_BUSY, key, None, None, begun, ended, ms, detail)


def too_many_devices(scene: Scene) -> Iterator[Finding]:
    """A row for each workload whose label or name is on more devices at once than it may hold."""
    intervals, windows = scene.holding.intervals, scene.config.windows
    interval, device, window = _windows_of(scene, *_crowded_claims(scene))
    moment, count = np.unique(interval * windows + window, return_counts=True)
    which, at = np.divmod(moment, windows)
    cap = -(-intervals.gpu_count // NANO)
    over = np.flatnonzero(count > cap[which])
    which, at, beyond = which[over], at[over], (count - cap[which])[over]
    begin = np.maximum(intervals.start[which] - scene.timeline.start, at * scene.width)
    end = np.minimum(intervals.end[which] - scene.timeline.start, (at + 1) * scene.width)
    found = sums((intervals.workload[which],), begin, end, beyond * (end - begin))
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        workload, tenant = scene.workload_of(int(which[member]))
        mine = intervals.workload[interval] == intervals.workload[which[member]]
        names = scene.timeline.devices.key[np.unique(device[mine])]
        detail = f"asked for {intervals.gpu_count[which[member]] / NANO:g}, seen on {listed(names)}"
        yield Finding(Kind.MORE_DEVICES_THAN_ASKED, workload, workload, tenant, first, last, ms, detail)


def _crowded_claims(scene: Scene) -> tuple[Ints, Ints, Ints, Ints]:
    """Interval, device, first and last window of the hour, wherever windows carry its label or the interval names it.

    Only of workloads with an interval that is on more devices in the hour than it may hold.
    """
    runs, intervals, windows = scene.timeline.runs, scene.holding.intervals, scene.config.windows
    here = runs.take((runs.last >= 0) & (runs.first < windows))
    sets, labelled = scene.label_pairs
    begin = np.searchsorted(sets, here.label_set, "left")
    run, position = spread(np.searchsorted(sets, here.label_set, "right") - begin)
    interval, device = labelled[begin[run] + position], here.device[run]
    first, last = np.maximum(here.first[run], 0), np.minimum(here.last[run], windows - 1)
    named = scene.named_pairs()
    by_name, of_name = np.divmod(named, max(len(scene.timeline.devices), 1))
    interval = np.concatenate([interval, by_name])
    device = np.concatenate([device, of_name])
    first = np.concatenate([first, np.zeros(len(named), dtype=np.int64)])
    last = np.concatenate([last, np.full(len(named), windows - 1)])
    on = np.unique(interval * len(scene.timeline.devices) + device) // max(len(scene.timeline.devices), 1)
    crowded = np.bincount(on, minlength=len(intervals)) > -(-intervals.gpu_count // NANO)
    some = np.isin(intervals.workload, intervals.workload[crowded])[interval]
    return interval[some], device[some], first[some], last[some]


def _windows_of(scene: Scene, interval: Ints, device: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """Interval, device and each window in which the interval runs; once."""
    intervals, windows = scene.holding.intervals, scene.config.windows
    first = np.maximum(first, (intervals.start[interval] - scene.timeline.start) // scene.width)
    last = np.minimum(last, -(-(intervals.end[interval] - scene.timeline.start) // scene.width) - 1)
    row, offset = spread(np.maximum(last - first + 1, 0))
    devices = max(len(scene.timeline.devices), 1)
    key = np.unique((interval[row] * devices + device[row]) * windows + first[row] + offset)
    rest, window = np.divmod(key, windows)
    interval, device = np.divmod(rest, devices)
    return interval, device, window
