"""Window values and the estimation ladder (A11, A13, A15).

What belongs here: the value of each quantity in each window of an hour, and the rung it came from.
What does not: energy from the counter (`energy`), and who holds a device (`holding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from finops_pipeline.accounting.arrays import Bools, Ints, changes, group_bounds
from finops_pipeline.accounting.config import FINE, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, half_even_div
from finops_pipeline.accounting.telemetry.readings import Readings
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, NEVER_BEFORE, Edge

LINEAR_REACH_MS = 2 * HOUR_MS


class Method(IntEnum):
    """How a value was found: the rungs of A13, whose names are published, between measured and missing."""

    MEASURED = 0
    """readings in the window, or a straight line between readings at most 2.5 scrape intervals apart (A11)"""
    COUNTER = 1
    """the energy counter's own difference over the gap"""
    LINEAR = 2
    """a straight line between readings at most 2 h apart"""
    PROFILE = 3
    """the mean of two readings more than 2 h apart"""
    HELD = 4
    """the one reading there is, on one side only, while a workload with events runs"""
    MODELLED = 5
    """the class's watts, for there is no reading at all"""
    MISSING = 6
    """nothing is known: null, never zero"""


RUNGS = (Method.COUNTER, Method.LINEAR, Method.PROFILE, Method.HELD, Method.MODELLED)


@dataclass(frozen=True)
class Filled:
    """One quantity in every window: owners x windows."""

    value: Ints
    """whole units (A28); 0 where missing"""
    method: npt.NDArray[np.int8]
    """HELD wherever there is a reading on one side only: whether it may be used is the holder's affair"""
    known: Bools
    """owners: there is some reading within reach (A15)"""
    open_ended: Bools
    """owners x windows: no later reading has closed the gap yet (A16)"""


def line_at(value: Ints, rise: Ints, part: Ints, whole: Ints) -> tuple[Ints, Ints]:
    """`value + rise x part / whole` as whole units and a remainder over `whole`; exact where the result fits."""
    quotient, remainder = np.divmod(rise, whole)
    carried, rest = np.divmod(remainder * part, whole)
    return np.asarray(value + quotient * part + carried, dtype=np.int64), np.asarray(rest, dtype=np.int64)


def rounded(units: Ints, rest: Ints, scale: int) -> Ints:
    """`(units + rest / n) / scale` half-even, where `0 <= rest < n` and only `rest > 0` matters."""
    quotient, remainder = np.divmod(units, scale)
    twice = 2 * remainder
    up = (twice > scale) | ((twice == scale) & ((rest > 0) | (quotient & 1 == 1)))
    return np.asarray(quotient + up, dtype=np.int64)


def fill(
    readings: Readings, before: Edge, after: Edge, start: int, scrape_ms: Ints, config: AccountingConfig
) -> Filled:
    """Readings of an hour and the nearest ones beyond it -> every window's value (A11, A13 rungs 2 to 4)."""
    owners, windows, width = len(scrape_ms), config.windows, config.window_ms
    cell = readings.owner * windows + (readings.at - start) // width
    begins, _ = group_bounds(changes(cell))
    value = np.zeros(owners * windows, dtype=np.int64)
    method = np.zeros(owners * windows, dtype=np.int8)
    open_ended = np.zeros(owners * windows, dtype=bool)
    empty = np.ones(owners * windows, dtype=bool)
    if len(cell):
        counts = np.diff(np.append(begins, len(cell)))
        value[cell[begins]] = half_even_div(np.add.reduceat(readings.value, begins), counts * FINE)
        empty[cell[begins]] = False
    hollow = np.flatnonzero(empty)
    owner = hollow // windows
    follower = np.searchsorted(cell, hollow)
    (p, p_value), (n, n_value) = _neighbours(readings, before, after, owner, follower)
    middle = start + (hollow % windows) * width + width // 2
    has_p, has_n = p != NEVER_BEFORE, n != NEVER_AFTER
    both = has_p & has_n
    span = np.where(both, n - p, 1)
    jitter = both & (2 * span <= 5 * scrape_ms[owner])
    straight = both & (jitter | (span <= LINEAR_REACH_MS))
    units, rest = line_at(p_value, np.where(straight, n_value - p_value, 0), np.where(straight, middle - p, 0), span)
    found = rounded(units, rest, FINE)
    found = np.where(both & ~straight, half_even_div(p_value + n_value, 2 * FINE), found)
    one = has_p ^ has_n
    found = np.where(one, half_even_div(np.where(has_p, p_value, n_value), FINE), found)
    value[hollow] = np.where(both | one, found, 0)
    method[hollow] = np.select(
        [jitter, straight, both, one],
        [Method.MEASURED, Method.LINEAR, Method.PROFILE, Method.HELD],
        Method.MISSING,
    )
    open_ended[hollow] = has_p & ~has_n
    shape = (owners, windows)
    known = np.bincount(readings.owner, minlength=owners) > 0 if owners else np.zeros(0, bool)
    known |= (before.at != NEVER_BEFORE) | (after.at != NEVER_AFTER)
    return Filled(value.reshape(shape), method.reshape(shape), known, open_ended.reshape(shape))


def gap_windows(
    readings: Readings, before: Edge, after: Edge, start: int, scrape_ms: Ints, config: AccountingConfig
) -> Bools:
    """Windows without a reading whose neighbours are more than 2.5 scrape intervals apart (A11): owners x windows."""
    owners, windows = len(scrape_ms), config.windows
    cell = readings.owner * windows + (readings.at - start) // config.window_ms
    empty = np.ones(owners * windows, dtype=bool)
    empty[cell] = False
    hollow = np.flatnonzero(empty)
    owner = hollow // windows
    (p, _), (n, _) = _neighbours(readings, before, after, owner, np.searchsorted(cell, hollow))
    gaps = np.zeros(owners * windows, dtype=bool)
    gaps[hollow] = 2 * (n - p) > 5 * scrape_ms[owner]
    return gaps.reshape(owners, windows)


def _neighbours(
    readings: Readings, before: Edge, after: Edge, owner: Ints, follower: Ints
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """The reading before and after each cell, `follower` being the first reading that is not before it."""
    total = len(readings.owner)
    if not total:
        return (before.at[owner], before.value[owner]), (after.at[owner], after.value[owner])
    left, right = np.maximum(follower - 1, 0), np.minimum(follower, total - 1)
    in_p = (follower > 0) & (readings.owner[left] == owner)
    in_n = (follower < total) & (readings.owner[right] == owner)
    return (
        (
            np.where(in_p, readings.at[left], before.at[owner]),
            np.where(in_p, readings.value[left], before.value[owner]),
        ),
        (
            np.where(in_n, readings.at[right], after.at[owner]),
            np.where(in_n, readings.value[right], after.value[owner]),
        ),
    )
