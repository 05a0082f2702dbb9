"""Spans of windows, and pairs of numbers packed into one: how A17 asks about whole runs instead of single windows.

What belongs here: interval arithmetic on windows and the keys that it searches by. What does not: any rule.

Why packed: numpy sorts, searches and compares columns of single numbers, not of pairs, and does so about twenty times
faster than Python goes over tuples. A pair `(high, low)` with `0 <= low < size` is `high * size + low`: it sorts like
the pair, and the largest here (devices x `WIDE`) stays far below 2^63. Why spans: a label that stays for a day is one
element instead of 5,760 windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, changes, group_bounds, spread

FAR = 1 << 40
"""A distance beyond any window or millisecond within reach; its double still fits beside other numbers."""
WIDE = 1 << 20
"""More windows than there are within reach (49 h of seconds are 176,400), both sides of the hour's start."""


def packed(high: Ints, low: Ints, size: int) -> Ints:
    """Pairs as single numbers that sort alike; `0 <= low < size`.

    >>> packed(np.array([0, 2]), np.array([7, 1]), 10).tolist()
    [7, 21]
    """
    return np.asarray(high * size + low, dtype=np.int64)


@dataclass(frozen=True)
class Spans:
    """Windows `first` to `last` (closed) in which an interval has a device, counted from the hour's start."""

    device: Ints
    interval: Ints
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.device)

    def take(self, index: Ints | Bools) -> Spans:
        return Spans(self.device[index], self.interval[index], self.first[index], self.last[index])

    def within(self, first: Ints | int, last: Ints | int) -> Spans:
        """The parts of the spans between two windows (closed).

        >>> spans = Spans(*(np.array([number]) for number in (0, 0, -5, 3)))
        >>> spans.within(0, 239).first.tolist(), len(spans.within(4, 239))
        ([0], 0)
        """
        cut = Spans(self.device, self.interval, np.maximum(self.first, first), np.minimum(self.last, last))
        return cut.take(cut.first <= cut.last)

    def windows(self) -> tuple[Ints, Ints]:
        """Window by window: of which span each is, and the window."""
        span, offset = spread(self.last - self.first + 1)
        return span, self.first[span] + offset

    @property
    def pair(self) -> Ints:
        """The number of each span's (device, interval), the spans being in order of these."""
        return np.asarray(np.cumsum(changes(self.device, self.interval)) - 1, dtype=np.int64)


def joined(parts: Sequence[Spans]) -> Spans:
    """Several tables of spans as one."""
    return Spans(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.interval for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.last for part in parts]),
    )


def union(spans: Spans) -> Spans:
    """Overlapping and adjoining spans of a (device, interval) as one; ascending by device, interval and window.

    >>> one = union(Spans(*(np.array(column) for column in ([0, 0, 0], [0, 0, 0], [8, 0, 4], [9, 3, 5]))))
    >>> one.first.tolist(), one.last.tolist()
    ([0, 8], [5, 9])
    """
    spans = spans.take(np.lexsort((spans.first, spans.interval, spans.device)))
    fresh = changes(spans.device, spans.interval)
    group = np.cumsum(fresh) - 1
    # the running maximum of all groups at once: a later group's numbers lie WIDE above those of the one before
    reach = np.maximum.accumulate(packed(group, spans.last, WIDE)) - group * WIDE
    fresh[1:] |= spans.first[1:] > reach[:-1] + 1
    begins, ends = group_bounds(fresh)
    return Spans(spans.device[begins], spans.interval[begins], spans.first[begins], reach[ends])


def nearest_sides(spans: Spans, pair: Ints, window: Ints) -> tuple[Ints, Ints]:
    """Of each pair and window: the nearest window at or before it in a span of the pair, and the nearest after it.

    `-FAR` and `FAR` stand for none. `spans` are disjoint and in order, `pair` numbers them as `Spans.pair` does.

    >>> spans = Spans(*(np.array(column) for column in ([0, 0], [0, 0], [0, 20], [3, 29])))
    >>> before, after = nearest_sides(spans, np.array([0, 0]), np.array([7, 25]))
    >>> before.tolist(), (after - np.array([20, FAR])).tolist()
    ([3, 25], [0, 0])
    """
    of_span = spans.pair
    keys = packed(of_span, spans.first + WIDE // 2, WIDE)
    index = np.searchsorted(keys, packed(pair, window + WIDE // 2, WIDE), "right") - 1
    here, following = np.maximum(index, 0), np.minimum(index + 1, len(keys) - 1)
    before = (index >= 0) & (of_span[here] == pair)
    after = (index + 1 < len(keys)) & (of_span[following] == pair)
    return (
        np.where(before, np.minimum(spans.last[here], window), -FAR),
        np.where(after, spans.first[following], FAR),
    )
