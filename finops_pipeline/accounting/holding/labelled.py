"""A17 (a): who holds a device by its labels, or by name.

What belongs here: the windows in which an interval has a device by the label that they carry or by `gpu_uuids`, up to
as many devices as it may hold; and pods without events by their labels. What does not: holes in labels.
"""

from __future__ import annotations

import numpy as np

from finops_pipeline.accounting.arrays import Ints, position_in_group, spread
from finops_pipeline.accounting.config import REACH_HOURS
from finops_pipeline.accounting.holding.cells import Cells, Claims, covers, there
from finops_pipeline.accounting.holding.view import View, members_of
from finops_pipeline.accounting.spans import Spans, joined, union


def labelled_spans(view: View) -> Spans:
    """In which windows within reach each interval has a device by (a)."""
    spans = joined([_by_label(view), _by_name(view)])
    first = view.begin[spans.interval] // view.width
    last = -(-view.end[spans.interval] // view.width) - 1
    return at_most(_while_there(union(spans.within(first, last)), view), view.most)


def _by_label(view: View) -> Spans:
    """Where windows carry an interval's label."""
    by_label: dict[str, list[int]] = {}
    for number, label in enumerate(view.intervals.label.tolist()):
        if label is not None:
            by_label.setdefault(label, []).append(number)
    runs = view.timeline.runs
    members = [[i for label in s for i in by_label.get(label, ())] for s in view.timeline.sets.members]
    run, interval = members_of(runs.label_set, members)
    return Spans(runs.device[run], interval, runs.first[run], runs.last[run])


def _by_name(view: View) -> Spans:
    """Where the devices of `gpu_uuids` count as named: anywhere within reach. Beyond the hour, an instance or a
    board that has several must have been read there, for it may have been taken away meanwhile (A21).
    """
    interval, device = _named(view)
    board = view.timeline.board
    reach = REACH_HOURS * view.windows
    crowded = np.bincount(board, minlength=1)[board[device]] > 1
    first = np.where(crowded, 0, -reach)
    last = np.where(crowded, 0, reach) + view.windows - 1
    runs = view.timeline.runs
    begin = np.searchsorted(runs.device, device[crowded], "left")
    pair, position = spread(np.searchsorted(runs.device, device[crowded], "right") - begin)
    run = begin[pair] + position
    seen = Spans(runs.device[run], interval[crowded][pair], runs.first[run], runs.last[run])
    return joined([Spans(device, interval, first, last), seen])


def _named(view: View) -> tuple[Ints, Ints]:
    """Pairs of interval and device of `gpu_uuids`, as far as the device exists."""
    index = {key: device for device, key in enumerate(view.timeline.devices.key.tolist())}
    device = np.array([index.get(key, -1) for key in view.intervals.named_device.tolist()], dtype=np.int64)
    return view.intervals.named_interval[device >= 0], device[device >= 0]


def _while_there(spans: Spans, view: View) -> Spans:
    """The spans without the hour's windows in which the device is replaced (A21)."""
    touched = np.any(view.replaced, axis=1)[spans.device]
    if not touched.any():
        return spans
    part, rest = spans.take(touched), spans.take(~touched)
    inside = part.within(0, view.windows - 1)
    span, window = inside.windows()
    present = ~view.replaced[inside.device[span], window]
    span, window = span[present], window[present]
    single = Spans(inside.device[span], inside.interval[span], window, window)
    far = 2 * REACH_HOURS * view.windows
    return union(joined([rest, single, part.within(-far, -1), part.within(view.windows, far)]))


def at_most(spans: Spans, most: Ints) -> Spans:
    """At any time an interval has at most `most` devices, the first in order of uuid and instance.

    >>> spans = Spans(*(np.array(column) for column in ([0, 1], [0, 0], [0, 0], [9, 14])))
    >>> one = at_most(spans, np.array([1]))
    >>> one.device.tolist(), one.first.tolist(), one.last.tolist()
    ([0, 1], [0, 10], [9, 14])
    """
    over = np.isin(spans.interval, _above(spans, most))
    if not over.any():
        return spans
    crowded = spans.take(over)
    span, window = crowded.windows()
    device, interval = crowded.device[span], crowded.interval[span]
    order = np.lexsort((device, window, interval))
    device, interval, window = device[order], interval[order], window[order]
    kept = position_in_group(interval, window) < most[interval]
    single = Spans(device[kept], interval[kept], window[kept], window[kept])
    return union(joined([spans.take(~over), single]))


def _above(spans: Spans, most: Ints) -> Ints:
    """Intervals that are on more devices at once than they may hold."""
    interval = np.concatenate([spans.interval, spans.interval])
    at = np.concatenate([spans.first, spans.last + 1])
    step = np.repeat(np.array([1, -1]), len(spans))
    order = np.lexsort((step, at, interval))
    level = np.cumsum(step[order])
    return np.unique(interval[order][level > most[interval[order]]])


def devices_lacking(view: View, spans: Spans) -> Ints:
    """Intervals x windows: how many more devices than by (a) the interval may hold."""
    counts = np.zeros((len(view.begin), view.windows), dtype=np.int64)
    here = spans.take((spans.last >= 0) & (spans.first < view.windows))
    np.add.at(counts, (here.interval, np.maximum(here.first, 0)), 1)
    ends = here.last + 1 < view.windows
    np.add.at(counts, (here.interval[ends], here.last[ends] + 1), -1)
    return np.asarray(view.most[:, None] - np.cumsum(counts, axis=1), dtype=np.int64)


def claims_of_workloads(view: View, cells: Cells, spans: Spans) -> Claims:
    """(a) Each workload whose label the window carries, or that names the device, if it is running then."""
    here = spans.within(0, view.windows - 1)
    span, window = here.windows()
    source, cell = cells.of_windows(here.device[span], window)
    claims = Claims(cell, here.interval[span][source])
    return claims.take(covers(view, cells, claims.holder, claims.cell))


def claims_of_pods(view: View, cells: Cells) -> Claims:
    """(a) Each pod without events whose label the window carries."""
    sets = view.window_set.ravel()
    labelled = np.flatnonzero(view.has_pods[sets])
    row, pod = members_of(sets[labelled], view.pods_of_set)
    device, window = np.divmod(labelled[row], view.windows)
    source, cell = cells.of_windows(device, window)
    claims = Claims(cell, len(view.most) + pod[source])
    return claims.take(there(view, cells, claims.cell))
