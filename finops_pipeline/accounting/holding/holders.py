"""Who holds a device, at every moment of an hour (A14, A17, A18).

The moments are *cells*: windows of a device, cut where a workload that may hold it starts or stops. A *claim*
says that a holder has a cell. Claims come from joins of short tables (runs of labels, running intervals),
never from single samples.

What belongs here: the order of A17's rules. What does not: what was used meanwhile (`usage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from finops_pipeline.accounting.arrays import Bools, Ints, changes, group_bounds, position_in_group, spread
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.telemetry.readings import NO_LABELS
from finops_pipeline.accounting.telemetry.summaries import Runs, Timeline

NEAR_MS = 10 * 60 * 1000
"""How long a label may be missing (A17 c), and how far away a sharing workload may have been seen (A17 d)."""
FAR = 1 << 40
NOBODY = -1
WIDE = 1 << 20
"""more windows than there are within reach"""


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


@dataclass(frozen=True)
class Instants:
    """The hour's instants with a sample, in the timeline's numbers, ascending by (device, at)."""

    device: Ints
    at: Ints
    label_set: Ints


@dataclass(frozen=True)
class Cells:
    """Pieces of windows, ascending by (device, begin); `begin` and `end` are ms from the hour's start."""

    device: Ints
    window: Ints
    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.device)

    def take(self, index: Ints | Bools) -> Cells:
        return Cells(self.device[index], self.window[index], self.begin[index], self.end[index])


@dataclass(frozen=True)
class Claims:
    """Who has which cell, one element a (cell, holder), ascending."""

    cell: Ints
    holder: Ints
    """an interval of `Holding.intervals`, or that many plus the number of a pod without events"""


@dataclass(frozen=True)
class Holding:
    """The outcome of A17 for one hour."""

    intervals: Intervals
    """those that run in the hour"""
    pods: tuple[str, ...]
    """labels of the pods without events, by number"""
    cells: Cells
    claims: Claims
    state: npt.NDArray[np.int8]
    """State of each cell"""
    silent: Bools
    """devices x windows: no sample, and not bridged (A11)"""
    window_set: Ints
    """devices x windows: label set"""
    open_hole: bool
    """a label is missing, and no later reading has shown yet whether it comes back (A16)"""

    def holder_numbers(self) -> Ints:
        """Claims name intervals or pods; of each, the workload, or `len(workloads)` + pod."""
        return np.concatenate([self.intervals.workload, len(self.intervals.workloads) + np.arange(len(self.pods))])


@dataclass(frozen=True)
class _Spans:
    """Windows in which an interval has a device by A17 (a); disjoint, ascending by (device, interval, first)."""

    device: Ints
    interval: Ints
    first: Ints
    last: Ints

    def take(self, index: Ints | Bools) -> _Spans:
        return _Spans(self.device[index], self.interval[index], self.first[index], self.last[index])


def hold(
    timeline: Timeline, instants: Instants, intervals: Intervals, replaced: Bools, config: AccountingConfig
) -> Holding:
    """Apply A17 to the hour of `timeline`; only intervals that run in it can hold something then.

    `replaced` (devices x windows) is where a device is not there any more (A21).
    """
    running = intervals.running_in(timeline.start, timeline.start + HOUR_MS)
    hour = _Hour(timeline, instants, running, replaced, config)
    by_label = [hour.claims_of_spans(), hour.claims_of_labelled_pods()]
    carried = hour.claims_carried(by_label)
    through_gaps = hour.claims_of_pods_between(silent=True)
    sofar = [*by_label, carried, through_gaps]
    dropped = hour.free_of(sofar, hour.claims_of_pods_between(silent=False))
    nearby = hour.claims_shared_nearby([by_label[0], carried])
    claims = hour.ordered([*sofar, dropped, nearby])
    return Holding(
        intervals=hour.intervals,
        pods=hour.pods,
        cells=hour.cells,
        claims=claims,
        state=hour.states(claims),
        silent=hour.silent,
        window_set=hour.window_set,
        open_hole=hour.waits_for_label(carried),
    )


def matched_units(holding: Holding, config: AccountingConfig) -> Ints:
    """Billionths of a unit that each claim matches; 0 for pods without events (A17, A21).

    Each device that a workload holds matches up to one unit of its `gpu_count`, in order of the devices; where a
    unit is less than a GPU, the last device takes all that are left.
    """
    intervals, cells, claims = holding.intervals, holding.cells, holding.claims
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


class _Hour:
    """The tables that A17's steps share: label runs, spans of intervals, cells."""

    def __init__(
        self,
        timeline: Timeline,
        instants: Instants,
        intervals: Intervals,
        replaced: Bools,
        config: AccountingConfig,
    ) -> None:
        self.instants = instants
        self.timeline, self.intervals, self.replaced, self.config = timeline, intervals, replaced, config
        self.devices, self.windows, self.width = len(timeline.devices), config.windows, config.window_ms
        self.begin = np.clip(intervals.start - timeline.start, -FAR, FAR)
        self.end = np.clip(intervals.end - timeline.start, -FAR, FAR)
        self.cap: Ints = -(-intervals.gpu_count // NANO)
        self.silent, self.window_set = self._paint()
        labels = {label for members in timeline.sets.members for label in members}
        self.pods = tuple(sorted(labels - intervals.known_labels))
        self.pods_of_set = self._pods_of_sets()
        self.spans = self._spans()
        self.pair = np.cumsum(changes(self.spans.device, self.spans.interval)) - 1
        self.short = self.cap[:, None] - self._devices_by_window()
        self.cells = self._cut()
        self.place = self.cells.device * self.windows + self.cells.window
        self.first_cell = np.searchsorted(self.place, np.arange(self.devices * self.windows + 1))

    # --- what the windows carry ---

    def _paint(self) -> tuple[Bools, Ints]:
        runs = self.timeline.runs
        silent = np.ones((self.devices, self.windows), dtype=bool)
        label_set = np.full((self.devices, self.windows), NO_LABELS, dtype=np.int64)
        here = runs.take((runs.last >= 0) & (runs.first < self.windows))
        first, last = np.maximum(here.first, 0), np.minimum(here.last, self.windows - 1)
        run, offset = spread(last - first + 1)
        silent[here.device[run], first[run] + offset] = False
        label_set[here.device[run], first[run] + offset] = here.label_set[run]
        return silent, label_set

    def _pods_of_sets(self) -> list[list[int]]:
        number = {pod: index for index, pod in enumerate(self.pods)}
        return [sorted(number[label] for label in s if label in number) for s in self.timeline.sets.members]

    # --- A17 (a): spans of intervals ---

    def _spans(self) -> _Spans:
        """In which windows within reach each interval has a device by its label or by name, up to its cap."""
        by_label: dict[str, list[int]] = {}
        for number, label in enumerate(self.intervals.label.tolist()):
            if label is not None:
                by_label.setdefault(label, []).append(number)
        members = [[i for label in s for i in by_label.get(label, ())] for s in self.timeline.sets.members]
        sizes = np.array([len(m) for m in members], dtype=np.int64)
        flat = np.array([i for m in members for i in m], dtype=np.int64)
        runs = self.timeline.runs
        run, position = spread(sizes[runs.label_set])
        named = self._named_spans()
        interval = np.concatenate([flat[(np.cumsum(sizes) - sizes)[runs.label_set[run]] + position], named.interval])
        device = np.concatenate([runs.device[run], named.device])
        first, last = np.concatenate([runs.first[run], named.first]), np.concatenate([runs.last[run], named.last])
        first = np.maximum(first, self.begin[interval] // self.width)
        last = np.minimum(last, -(-self.end[interval] // self.width) - 1)
        some = first <= last
        spans = _union(_Spans(device[some], interval[some], first[some], last[some]))
        return self._capped(self._while_there(spans))

    def _while_there(self, spans: _Spans) -> _Spans:
        """The spans without the hour's windows in which the device is replaced."""
        touched = np.any(self.replaced, axis=1)[spans.device]
        if not touched.any():
            return spans
        part, rest = spans.take(touched), spans.take(~touched)
        first, last = np.maximum(part.first, 0), np.minimum(part.last, self.windows - 1)
        span, offset = spread(np.maximum(last - first + 1, 0))
        window = first[span] + offset
        there = ~self.replaced[part.device[span], window]
        span, window = span[there], window[there]
        before = _Spans(part.device, part.interval, part.first, np.minimum(part.last, -1))
        after = _Spans(part.device, part.interval, np.maximum(part.first, self.windows), part.last)
        inside = _Spans(part.device[span], part.interval[span], window, window)
        return _union(_joined([rest, inside, *(side.take(side.first <= side.last) for side in (before, after))]))

    def _named_spans(self) -> _Spans:
        """Where the devices of `gpu_uuids` count as named: anywhere within reach. Beyond the hour, an instance or a
        board that has several must have been read there, for it may have been taken away meanwhile (A21).
        """
        interval, device = self._named()
        reach = REACH_HOURS * self.windows
        crowded = np.bincount(self.timeline.board, minlength=1)[self.timeline.board[device]] > 1
        first = np.where(crowded, 0, -reach)
        last = np.where(crowded, 0, reach) + self.windows - 1
        runs = self.timeline.runs
        begin = np.searchsorted(runs.device, device[crowded], "left")
        pair, position = spread(np.searchsorted(runs.device, device[crowded], "right") - begin)
        run = begin[pair] + position
        seen = _Spans(runs.device[run], interval[crowded][pair], runs.first[run], runs.last[run])
        return _joined([_Spans(device, interval, first, last), seen])

    def _named(self) -> tuple[Ints, Ints]:
        """Pairs of interval and device of `gpu_uuids`, as far as the device exists."""
        index = {key: device for device, key in enumerate(self.timeline.devices.key.tolist())}
        device = np.array([index.get(key, -1) for key in self.intervals.named_device.tolist()], dtype=np.int64)
        return self.intervals.named_interval[device >= 0], device[device >= 0]

    def _capped(self, spans: _Spans) -> _Spans:
        """A workload holds at most `ceil(gpu_count)` devices, in order of uuid and instance (A17)."""
        over = np.isin(spans.interval, self._above_cap(spans))
        if not over.any():
            return spans
        crowded = spans.take(over)
        span, offset = spread(crowded.last - crowded.first + 1)
        device, interval, window = crowded.device[span], crowded.interval[span], crowded.first[span] + offset
        order = np.lexsort((device, window, interval))
        device, interval, window = device[order], interval[order], window[order]
        kept = position_in_group(interval, window) < self.cap[interval]
        single = _Spans(device[kept], interval[kept], window[kept], window[kept])
        return _union(_joined([spans.take(~over), single]))

    def _above_cap(self, spans: _Spans) -> Ints:
        """Intervals seen on more devices at once than they may hold."""
        interval = np.concatenate([spans.interval, spans.interval])
        at = np.concatenate([spans.first, spans.last + 1])
        step = np.repeat(np.array([1, -1]), len(spans.first))
        order = np.lexsort((step, at, interval))
        level = np.cumsum(step[order])
        return np.unique(interval[order][level > self.cap[interval[order]]])

    def _devices_by_window(self) -> Ints:
        """How many devices each interval has by A17 (a): intervals x windows."""
        counts = np.zeros((len(self.begin), self.windows), dtype=np.int64)
        here = self.spans.take((self.spans.last >= 0) & (self.spans.first < self.windows))
        np.add.at(counts, (here.interval, np.maximum(here.first, 0)), 1)
        ends = here.last + 1 < self.windows
        np.add.at(counts, (here.interval[ends], here.last[ends] + 1), -1)
        return np.cumsum(counts, axis=1)

    # --- cells ---

    def _cut(self) -> Cells:
        """Windows, cut at the edges of every interval that may hold a device of the board."""
        pairs = np.unique(np.stack([self.timeline.board[self.spans.device], self.spans.interval]), axis=1)
        board, interval = pairs
        group = self._alike(board, interval)
        edges = np.concatenate([self.begin[interval], self.end[interval]])
        whose = np.tile(group[board], 2)
        inside = (edges > 0) & (edges < HOUR_MS) & (edges % self.width != 0)
        cut_group, cut_at = np.divmod(np.unique(whose[inside] * HOUR_MS + edges[inside]), HOUR_MS)
        device_group = group[self.timeline.board]
        begin_of = np.searchsorted(cut_group, device_group, "left")
        device, position = spread(np.searchsorted(cut_group, device_group, "right") - begin_of)
        extra = device * HOUR_MS + cut_at[begin_of[device] + position]
        whole = (np.arange(self.devices)[:, None] * HOUR_MS + np.arange(self.windows) * self.width).ravel()
        starts = np.insert(whole, np.searchsorted(whole, extra), extra)
        device, begin = np.divmod(starts, HOUR_MS)
        end = np.append(begin, 0)[1:]
        return Cells(device, begin // self.width, begin, np.where(end == 0, HOUR_MS, end))

    def _alike(self, board: Ints, interval: Ints) -> Ints:
        """A group for each board. Boards are cut alike where the devices of one interval must be counted
        against each other at each moment: it holds fewer than it may, or parts of a device.
        """
        counted = (self.short > 0).any(axis=1) if self.windows else np.zeros(len(self.cap), bool)
        counted |= (self.cap > 1) & (self.intervals.gpu_count % NANO != 0)
        counted |= (self.cap > 1) & self.intervals.is_fractional(self.config)
        linked = counted[interval]
        board, interval = board[linked], interval[linked]
        group = np.arange(len(self.timeline.boards))
        while len(board):
            lowest = np.full(len(self.cap), len(group))
            np.minimum.at(lowest, interval, group[board])
            lower = group.copy()
            np.minimum.at(lower, board, lowest[interval])
            lower = lower[lower]
            if (lower == group).all():
                break
            group = lower
        return group

    def _cells_of_windows(self, device: Ints, window: Ints) -> tuple[Ints, Ints]:
        """The cells of each (device, window): which of them, and the cell."""
        flat = device * self.windows + window
        source, position = spread(self.first_cell[flat + 1] - self.first_cell[flat])
        return source, self.first_cell[flat[source]] + position

    def _covers(self, interval: Ints, cell: Ints) -> Bools:
        return np.asarray(
            (self.begin[interval] <= self.cells.begin[cell]) & (self.end[interval] >= self.cells.end[cell])
        )

    # --- the steps of A17 ---

    def claims_of_spans(self) -> Claims:
        """(a) for workloads with events."""
        here = self.spans.take((self.spans.last >= 0) & (self.spans.first < self.windows))
        first, last = np.maximum(here.first, 0), np.minimum(here.last, self.windows - 1)
        span, offset = spread(last - first + 1)
        source, cell = self._cells_of_windows(here.device[span], first[span] + offset)
        interval = here.interval[span][source]
        covered = self._covers(interval, cell)
        return Claims(cell[covered], interval[covered])

    def claims_of_labelled_pods(self) -> Claims:
        """(a) for pods without events."""
        sizes = np.array([len(pods) for pods in self.pods_of_set], dtype=np.int64)
        flat = np.array([pod for pods in self.pods_of_set for pod in pods], dtype=np.int64)
        sets = self.window_set.ravel()
        labelled = np.flatnonzero(sizes[sets])
        row, position = spread(sizes[sets[labelled]])
        pod = flat[(np.cumsum(sizes) - sizes)[sets[labelled[row]]] + position]
        source, cell = self._cells_of_windows(labelled[row] // self.windows, labelled[row] % self.windows)
        return self._there(Claims(cell, len(self.cap) + pod[source]))

    def claims_carried(self, claims: Sequence[Claims]) -> Claims:
        """(b): running workloads that hold fewer devices than they may keep one that they had, nearest first."""
        free = np.flatnonzero(~self._taken(claims) & ~self._gone(np.arange(len(self.cells))))
        cell, span_pair = self._pairs_of_cells(free)
        interval = self.spans.interval[span_pair]
        lacking = self.short[interval, self.cells.window[cell]]
        able = (lacking > 0) & self._covers(interval, cell)
        cell, span_pair, interval, lacking = cell[able], span_pair[able], interval[able], lacking[able]
        moment = interval * HOUR_MS + self.cells.begin[cell]
        _, inverse, wanted = np.unique(moment, return_inverse=True, return_counts=True)
        contended = np.isin(interval, interval[wanted[inverse] > lacking])
        shared = np.isin(cell, cell[contended])
        chosen = np.zeros(len(cell), dtype=bool)
        chosen[~shared] = self._nearest(cell[~shared], span_pair[~shared])
        left = np.full(len(wanted), FAR)
        np.minimum.at(left, inverse, lacking)
        for device in np.unique(self.cells.device[cell[shared]]).tolist():
            rows = np.flatnonzero(shared & (self.cells.device[cell] == device))
            rows = rows[left[inverse[rows]] > 0]
            chosen[rows] = self._nearest(cell[rows], span_pair[rows])
            left[inverse[rows[chosen[rows]]]] -= 1
        return Claims(cell[chosen], interval[chosen])

    def _pairs_of_cells(self, cells: Ints) -> tuple[Ints, Ints]:
        """Each cell with each interval that had its device within reach: the cell, and the first span of that pair."""
        first_span = np.flatnonzero(changes(self.spans.device, self.spans.interval))
        device = self.spans.device[first_span]
        begin = np.searchsorted(device, self.cells.device[cells], "left")
        row, position = spread(np.searchsorted(device, self.cells.device[cells], "right") - begin)
        return cells[row], first_span[begin[row] + position]

    def _window_distances(self, cell: Ints, span_pair: Ints) -> tuple[Ints, Ints]:
        """The nearest window at or before, and the nearest after each cell's, in which the pair's interval had it."""
        window, pair = self.cells.window[cell], self.pair[span_pair]
        wide = 4 * REACH_HOURS * self.windows
        keys = self.pair * wide + self.spans.first + 2 * REACH_HOURS * self.windows
        index = np.searchsorted(keys, pair * wide + window + 2 * REACH_HOURS * self.windows, "right") - 1
        here, following = np.maximum(index, 0), np.minimum(index + 1, len(keys) - 1)
        before = (index >= 0) & (self.pair[here] == pair)
        after = (index + 1 < len(keys)) & (self.pair[following] == pair)
        return (
            np.where(before, np.minimum(self.spans.last[here], window), -FAR),
            np.where(after, self.spans.first[following], FAR),
        )

    def _nearest(self, cell: Ints, span_pair: Ints) -> Bools:
        """Of the candidates of each cell, those of the nearest window, together; on a tie of the earlier one."""
        if not len(cell):
            return np.zeros(0, bool)
        before, after = self._window_distances(cell, span_pair)
        window = self.cells.window[cell]
        best = np.where(window - before <= after - window, before, after)
        order = np.lexsort((best, np.abs(window - best), cell))
        leader = order[position_in_group(cell[order]) == 0]
        chosen = np.zeros(len(self.cells), dtype=np.int64)
        chosen[cell[leader]] = best[leader]
        return np.asarray((before == chosen[cell]) | (after == chosen[cell]))

    def claims_of_pods_between(self, *, silent: bool) -> Claims:
        """Pods without events on both sides of a silent stretch (A14), or of a short one without any label (A17 c)."""
        runs = self.timeline.runs
        left, right, first, last = self._silences(runs) if silent else self._drops(runs)
        device = runs.device[left]
        sides = self._sides(device, first, last) if silent else (runs.label_set[left], runs.label_set[right])
        pairs, inverse = np.unique(np.stack(sides), axis=1, return_inverse=True)
        common = [sorted({*self.pods_of_set[a]} & {*self.pods_of_set[b]}) for a, b in pairs.T.tolist()]
        sizes = np.array([len(pods) for pods in common], dtype=np.int64)
        flat = np.array([pod for pods in common for pod in pods], dtype=np.int64)
        kind = inverse.reshape(-1)
        row, position = spread(sizes[kind])
        pod = flat[(np.cumsum(sizes) - sizes)[kind[row]] + position]
        window_row, offset = spread(last[row] - first[row] + 1)
        source, cell = self._cells_of_windows(device[row][window_row], first[row][window_row] + offset)
        return self._there(Claims(cell, len(self.cap) + pod[window_row][source]))

    def _silences(self, runs: Runs) -> tuple[Ints, Ints, Ints, Ints]:
        """Holes between two runs of a device that reach into the hour: both runs, first and last window in it."""
        same = runs.device[1:] == runs.device[:-1]
        first, last = np.maximum(runs.last[:-1] + 1, 0), np.minimum(runs.first[1:] - 1, self.windows - 1)
        index = np.flatnonzero(same & (first <= last))
        return index, index + 1, first[index], last[index]

    def _sides(self, device: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Labels of the readings before and after silent windows of the hour, wherever they were read (A14)."""
        known, start = self.instants, self.timeline.start
        key = known.device * (2 * HOUR_MS) + known.at - start
        before = np.searchsorted(key, device * (2 * HOUR_MS) + first * self.width) - 1
        after = np.searchsorted(key, device * (2 * HOUR_MS) + (last + 1) * self.width)
        devices = np.append(known.device, NOBODY)
        sets = np.append(known.label_set, NO_LABELS)
        return (
            np.where(devices[before] == device, sets[before], self.timeline.last_before.value[device]),
            np.where(devices[after] == device, sets[after], self.timeline.first_after.value[device]),
        )

    def _drops(self, runs: Runs) -> tuple[Ints, Ints, Ints, Ints]:
        """Runs without a label, at most 10 minutes long, directly between two others."""
        if len(runs.device) < 3:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing, nothing
        middle = np.arange(1, len(runs.device) - 1)
        drop = (runs.label_set[middle] == NO_LABELS) & (
            (runs.last[middle] - runs.first[middle] + 1) * self.width <= NEAR_MS
        )
        for beside in (middle - 1, middle + 1):
            drop &= runs.device[beside] == runs.device[middle]
        drop &= (runs.last[middle - 1] + 1 == runs.first[middle]) & (runs.last[middle] + 1 == runs.first[middle + 1])
        first, last = np.maximum(runs.first[middle], 0), np.minimum(runs.last[middle], self.windows - 1)
        index = np.flatnonzero(drop & (first <= last))
        return middle[index] - 1, middle[index] + 1, first[index], last[index]

    def claims_shared_nearby(self, claims: Sequence[Claims]) -> Claims:
        """(d): in measured windows, a workload that still holds too few shares a device that it had within 10 minutes."""
        lacking_at = np.any(self.short > 0, axis=1)
        devices = np.unique(self.spans.device[lacking_at[self.spans.interval]])
        _, cell = self._cells_of_windows(
            np.repeat(devices, self.windows), np.tile(np.arange(self.windows), len(devices))
        )
        cell = cell[~self.silent.ravel()[self.place[cell]] & ~self._gone(cell)]
        cell, span_pair = self._pairs_of_cells(cell)
        interval = self.spans.interval[span_pair]
        claims = [Claims(c.cell[lacking_at[c.holder]], c.holder[lacking_at[c.holder]]) for c in claims]
        held = np.concatenate([c.cell * len(self.cap) + c.holder for c in claims])
        able = (self.short[interval, self.cells.window[cell]] > 0) & self._covers(interval, cell)
        cell, span_pair, interval = cell[able], span_pair[able], interval[able]
        able = ~np.isin(cell * len(self.cap) + interval, held)
        cell, span_pair, interval = cell[able], span_pair[able], interval[able]
        before, after = self._window_distances(cell, span_pair)
        window = self.cells.window[cell]
        distance = np.minimum(window - before, after - window)
        lacking = self.cap[interval] - self._devices_at(claims, interval * HOUR_MS + self.cells.begin[cell])
        able = (distance * self.width <= NEAR_MS) & (lacking > 0)
        cell, interval, distance, lacking = cell[able], interval[able], distance[able], lacking[able]
        order = np.lexsort((self.cells.device[cell], distance, self.cells.begin[cell], interval))
        place = position_in_group(interval[order], self.cells.begin[cell[order]])
        chosen = order[place < lacking[order]]
        return Claims(cell[chosen], interval[chosen])

    def _devices_at(self, claims: Sequence[Claims], moment: Ints) -> Ints:
        """How many devices the claims give an interval at a moment (`interval x HOUR_MS + begin`)."""
        held = np.sort(np.concatenate([c.holder * HOUR_MS + self.cells.begin[c.cell] for c in claims]))
        return np.searchsorted(held, moment, "right") - np.searchsorted(held, moment, "left")

    def waits_for_label(self, carried: Claims) -> bool:
        """Whether a workload is carried on a device on which it is not seen later, or a pod's label has just gone."""
        pair = self.cells.device[carried.cell] * len(self.cap) + carried.holder
        known = self.spans.device * len(self.cap) + self.spans.interval
        index = np.searchsorted(known, pair, "right") - 1
        if (self.spans.last[index] < self.cells.window[carried.cell]).any():
            return True
        runs = self.timeline.runs
        if len(runs.device) < 2:
            return False
        final = np.flatnonzero(np.append(changes(runs.device)[1:], True))
        final = final[(final > 0) & (runs.label_set[final] == NO_LABELS) & (runs.last[final] >= 0)]
        has_pods = np.array([len(pods) > 0 for pods in self.pods_of_set], dtype=bool)
        just_gone = (runs.device[final - 1] == runs.device[final]) & has_pods[runs.label_set[final - 1]]
        just_gone &= runs.last[final - 1] + 1 == runs.first[final]
        just_gone &= (runs.first[final] < self.windows) & (
            (runs.last[final] - runs.first[final] + 1) * self.width <= NEAR_MS
        )
        return bool(just_gone.any())

    # --- bookkeeping ---

    def _gone(self, cell: Ints) -> Bools:
        return np.asarray(self.replaced.ravel()[self.place[cell]])

    def _there(self, claims: Claims) -> Claims:
        there = ~self._gone(claims.cell)
        return Claims(claims.cell[there], claims.holder[there])

    def _taken(self, claims: Sequence[Claims]) -> Bools:
        taken = np.zeros(len(self.cells), dtype=bool)
        for claim in claims:
            taken[claim.cell] = True
        return taken

    def free_of(self, sofar: Sequence[Claims], claims: Claims) -> Claims:
        """The claims on cells that nobody has so far."""
        free = ~self._taken(sofar)[claims.cell]
        return Claims(claims.cell[free], claims.holder[free])

    def ordered(self, claims: Sequence[Claims]) -> Claims:
        holders = len(self.cap) + len(self.pods) + 1
        pairs = np.sort(np.concatenate([claim.cell * holders + claim.holder for claim in claims]), kind="stable")
        return Claims(*np.divmod(pairs[changes(pairs)], holders))

    def states(self, claims: Claims) -> npt.NDArray[np.int8]:
        """What each cell is, claimed ones being held."""
        taken = self._taken([claims])
        silent = self.silent.ravel()[self.place]
        labelled = self.window_set.ravel()[self.place] != NO_LABELS
        between = self._between_pods().ravel()[self.place]
        return np.select(
            [taken, silent & between, silent, labelled],
            [State.HELD, State.UNATTRIBUTED, State.NO_DATA, State.STALE],
            State.IDLE,
        ).astype(np.int8)

    def _between_pods(self) -> Bools:
        """Silent windows between readings of two different pods without events (A14)."""
        runs = self.timeline.runs
        left, _, first, last = self._silences(runs)
        has_pods = np.array([len(pods) > 0 for pods in self.pods_of_set], dtype=bool)
        before, after = self._sides(runs.device[left], first, last)
        both = has_pods[before] & has_pods[after]
        row, offset = spread((last - first + 1)[both])
        between = np.zeros((self.devices, self.windows), dtype=bool)
        between[runs.device[left][both][row], first[both][row] + offset] = True
        return between


def _joined(parts: Sequence[_Spans]) -> _Spans:
    return _Spans(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.interval for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.last for part in parts]),
    )


def _union(spans: _Spans) -> _Spans:
    """Overlapping and adjoining spans of a (device, interval) as one; ascending."""
    order = np.lexsort((spans.first, spans.interval, spans.device))
    spans = spans.take(order)
    fresh = changes(spans.device, spans.interval)
    group = np.cumsum(fresh) - 1
    reach = np.maximum.accumulate(group * WIDE + spans.last) - group * WIDE
    fresh[1:] |= spans.first[1:] > reach[:-1] + 1
    begins, ends = group_bounds(fresh)
    return _Spans(spans.device[begins], spans.interval[begins], spans.first[begins], reach[ends])
