"""A17: pods without events on devices that running workloads take whole, and what workloads leave of the others (A18).

What belongs here: how much of a device the units of workloads take. What does not: which units they have (`units`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import AccountingError
from finops_pipeline.accounting.holding.cells import Cells, Claims
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.telemetry.cards import Slices

LARGEST = 1 << 56
"""Amounts up to this can be multiplied by the slices of a card, and by the instances among which what is left of it is
divided, without leaving 64 bits."""


@dataclass(frozen=True)
class Taken:
    """How much of its device the workloads' units take in each cell, in GPUs: `amount / whole`."""

    amount: Ints
    whole: int


def taken_of_devices(
    cells: Cells, claims: Claims, units: Ints, intervals: Intervals, config: AccountingConfig
) -> Taken:
    """The units of all workloads on the device at that moment, times their `class_fraction`."""
    fractions = intervals.fractions(config)
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    per_unit = [int(fraction * common) for fraction in fractions]
    everything = sum(count * each for count, each in zip(intervals.gpu_count.tolist(), per_unit, strict=True))
    if max(everything, common * NANO) > LARGEST:
        raise AccountingError(
            f"class_fraction: the fractions of this hour's classes have the common denominator {common}, which is too large"
            " to add up units exactly: write them with smaller denominators (A4)"
        )
    of_workload = claims.holder < len(intervals)
    amount = np.zeros(len(cells), dtype=np.int64)
    holder = claims.holder[of_workload]
    np.add.at(amount, claims.cell[of_workload], units[of_workload] * np.array(per_unit, dtype=np.int64)[holder])
    return Taken(amount, common * NANO)


def uninvited(cells: Cells, claims: Claims, taken: Taken, slices: Slices, intervals: int) -> Bools:
    """The claims of pods without events on a device, or instance, that running workloads take whole; in gaps too."""
    found = claims.holder >= intervals
    cell = claims.cell[found]
    numerator, denominator = slices.part(cells.device[cell], cells.window[cell])
    amount = taken.amount[cell]
    found[found] = (amount > 0) & (amount * denominator >= numerator * taken.whole)
    return found
