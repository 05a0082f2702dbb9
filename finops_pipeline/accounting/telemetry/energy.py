"""Energy of any stretch of time of a board: the counter where it can be believed, power elsewhere (A20).

What belongs here: the counter as a straight line between readings. What does not: sharing it out (`usage`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, changes, group_bounds
from finops_pipeline.accounting.telemetry.readings import Readings
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, NEVER_BEFORE, Edge, Standing
from finops_pipeline.accounting.telemetry.windows import line_at, rounded

LARGEST_RISE = 4 * 10**15
"""mJ between two readings; no card comes near it"""
STANDSTILL_MS = 120_000
"""A counter that reads the same for longer, while power is drawn, stands still."""


@dataclass(frozen=True)
class Counter:
    """The counters of all boards with their running totals.

    A span between two readings is `sound` unless the counter went back in it, rose faster than 1.5 x the card's power
    limit, or stood still; time outside sound spans is to be filled from power.
    """

    board: Ints
    at: Ints
    value: Ints
    sound: Bools
    """of the span that begins at the reading"""
    risen: Ints
    """mJ in sound spans before the reading, within its board"""
    unsound: Ints
    """ms outside sound spans before the reading, since the board's first"""

    def until(self, board: Ints, at: Ints) -> tuple[Ints, Ints]:
        """Running totals at any instants: risen mJ, rounded there half-even, and unsound ms.

        Only differences on one board mean anything.
        """
        if not len(self.board):
            return np.zeros(len(board), np.int64), at.copy()
        base = int(min(self.at.min(), at.min(initial=1 << 60)))
        width = int(max(self.at.max(), at.max(initial=0))) - base + 1
        index = np.searchsorted(self.board * width + self.at - base, board * width + at - base, "right") - 1
        return self._since(index, board, at)

    def at_edges(self, boards: int, start: int, windows: int, width: int) -> tuple[Ints, Ints]:
        """`until` at the edges of an hour's windows: boards x (windows + 1)."""
        edges = start + np.arange(windows + 1) * width
        board, at = np.repeat(np.arange(boards), windows + 1), np.tile(edges, boards)
        if not len(self.board):
            risen, unsound = self.until(board, at)
        else:
            # a reading counts from the first edge that is not before it; those after the hour come into no cell
            edge = np.clip(-((start - self.at) // width), 0, windows + 1)
            counts = np.bincount(self.board * (windows + 2) + edge, minlength=boards * (windows + 2))
            index = np.cumsum(counts).reshape(boards, windows + 2)[:, :-1].ravel() - 1
            risen, unsound = self._since(index, board, at)
        return risen.reshape(boards, windows + 1), unsound.reshape(boards, windows + 1)

    def _since(self, index: Ints, board: Ints, at: Ints) -> tuple[Ints, Ints]:
        """The totals of `until`, the last reading that is not after each instant being known."""
        total = len(self.board)
        here = np.maximum(index, 0)
        within = (index >= 0) & (self.board[here] == board)
        first_of = np.searchsorted(self.board, np.arange(int(board.max(initial=0)) + 1))
        first = np.minimum(first_of, total - 1)[board]
        present = self.board[first] == board
        sound = within & self.sound[here]
        following = np.minimum(here + 1, total - 1)
        rise = np.where(sound, self.value[following] - self.value[here], 0)
        span = np.where(sound, self.at[following] - self.at[here], 1)
        elapsed = np.where(within, at - self.at[here], 0)
        units, rest = line_at(self.value[here], rise, np.where(sound, elapsed, 0), span)
        units = _half_even(units, rest, span)
        risen = np.where(within, self.risen[here] + np.where(sound, units - self.value[here], 0), 0)
        unsound = np.where(within, self.unsound[here] + np.where(sound, 0, elapsed), at - self.at[first])
        return risen, np.where(present, unsound, at)


def _half_even(units: Ints, rest: Ints, whole: Ints) -> Ints:
    up = (2 * rest > whole) | ((2 * rest == whole) & (units & 1 == 1))
    return np.asarray(units + up, dtype=np.int64)


def counter_of(
    readings: Readings, before: Edge, after: Edge, limit_mw: Ints, power: Readings, standing: tuple[Standing, Standing]
) -> Counter:
    """The counter readings of an hour and the nearest beyond it.

    `limit_mw` is a board's power limit, 0 for none; `power` are the hour's readings of power, by board too; `standing`
    is how far the readings beyond the hour have been the same.
    """
    early, late = np.flatnonzero(before.at != NEVER_BEFORE), np.flatnonzero(after.at != NEVER_AFTER)
    board = np.concatenate([early, readings.owner, late])
    at = np.concatenate([before.at[early], readings.at, after.at[late]])
    value = np.concatenate([before.value[early], readings.value, after.value[late]])
    order = np.argsort(board, kind="stable")  # within a board the three parts follow each other
    board, at, value = board[order], at[order], value[order]
    if not len(board):
        return Counter(board, at, value, np.zeros(0, bool), at, at)
    still = _stood_still(board, at, value, power, before, after, standing)
    same = np.append(board[1:] == board[:-1], False)
    rise = np.where(same, np.append(value[1:], 0) - value, 0)
    span = np.where(same, np.append(at[1:], 0) - at, 1)
    limit = limit_mw[board]
    believable = (limit == 0) | (2000 * np.minimum(rise, LARGEST_RISE) <= 3 * limit * span)
    plausible = (rise <= LARGEST_RISE) & believable
    sound = same & (rise >= 0) & plausible & ~(still & (rise == 0))
    fresh = changes(board)
    first, group = np.flatnonzero(fresh), np.cumsum(fresh) - 1
    gained = np.cumsum(np.where(sound, rise, 0)) - np.where(sound, rise, 0)
    lost = np.cumsum(np.where(same & ~sound, span, 0)) - np.where(same & ~sound, span, 0)
    return Counter(board, at, value, sound, gained - gained[first][group], lost - lost[first][group])


def _stood_still(
    board: Ints,
    at: Ints,
    value: Ints,
    power: Readings,
    before: Edge,
    after: Edge,
    standing: tuple[Standing, Standing],
) -> Bools:
    """Readings in a run of equal ones over more than 120 s, with some reading of power above zero among them."""
    if not ((board[1:] == board[:-1]) & (value[1:] == value[:-1])).any():
        return np.zeros(len(board), dtype=bool)
    begins, ends = group_bounds(changes(board, value))
    of = board[begins]
    begin, end = at[begins], at[ends]
    from_before, into_after = begin == before.at[of], end == after.at[of]
    first = np.where(from_before, standing[0].at[of], begin)
    last = np.where(into_after, standing[1].at[of], end)
    long = np.flatnonzero(last - first > STANDSTILL_MS)
    drawn = (from_before & standing[0].drawn[of])[long] | (into_after & standing[1].drawn[of])[long]
    above = power.value > 0
    owner, instant = power.owner[above], power.at[above]
    if len(owner):
        low = min(int(instant.min()), int(begin.min()))
        wide = max(int(instant.max()), int(end.max())) - low + 1
        key = owner * wide + instant - low
        drawn |= np.searchsorted(key, of[long] * wide + begin[long] - low, "left") < np.searchsorted(
            key, of[long] * wide + end[long] - low, "right"
        )
    stood = np.zeros(len(begins), dtype=bool)
    stood[long] = drawn
    return np.repeat(stood, ends - begins + 1)


@dataclass(frozen=True)
class WindowCounter:
    """A counter's running totals at the edges of an hour's windows: boards x (windows + 1)."""

    counter: Counter
    start: int
    width: int
    risen: Ints
    unsound: Ints

    @staticmethod
    def of(counter: Counter, boards: int, start: int, windows: int, width: int) -> WindowCounter:
        return WindowCounter(counter, start, width, *counter.at_edges(boards, start, windows, width))

    def until(self, board: Ints, at: Ints) -> tuple[Ints, Ints]:
        """`Counter.until` at instants of the hour in ms from its start, most of them edges."""
        window, beyond = np.divmod(at, self.width)
        risen, unsound = self.risen[board, window], self.unsound[board, window]
        inside = np.flatnonzero(beyond)
        risen[inside], unsound[inside] = self.counter.until(board[inside], self.start + at[inside])
        return risen, unsound


def stretch_energy(
    counter: WindowCounter, board: Ints, begin: Ints, end: Ints, power_mw: Ints, power_known: Bools
) -> tuple[Ints, Bools]:
    """MJ of stretches of windows, from the hour's start, and whether it is known; without the counter by power (A20)."""
    risen_end, unsound_end = counter.until(board, end)
    risen_begin, unsound_begin = counter.until(board, begin)
    from_power = unsound_end - unsound_begin
    energy = risen_end - risen_begin + rounded(power_mw * from_power, np.zeros_like(from_power), 1000)
    known = (from_power == 0) | power_known
    return np.where(known, energy, 0), known
