"""What the search for findings looks at, and what a finding is (`findings`).

What belongs here: the kinds, the hour as all searches see it, and the sums that they share. What does not: any
search. No finding changes an amount; every time is in whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, Texts, changes, grouped, sorting
from finops_pipeline.accounting.config import RATIO, AccountingConfig
from finops_pipeline.accounting.exact import hour_text
from finops_pipeline.accounting.holding.deployments import PodOwner
from finops_pipeline.accounting.holding.holders import Holding
from finops_pipeline.accounting.holding.lifecycle import Intervals
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.telemetry.cards import Slices
from finops_pipeline.accounting.telemetry.readings import HourReadings
from finops_pipeline.accounting.telemetry.summaries import Timeline
from finops_pipeline.accounting.telemetry.windows import Method
from finops_pipeline.accounting.usage.pieces import HourPieces


@dataclass(frozen=True)
class Scene:
    """One hour as it was read and held."""

    hour: HourReadings
    timeline: Timeline
    holding: Holding
    found: HourPieces
    slices: Slices
    intervals: Intervals
    """of all time, not only those of `holding`"""
    owners: Mapping[str, PodOwner | None]
    gone: Bools
    """devices x windows: not visible any more, because its node no longer shows the device (A21)"""
    config: AccountingConfig

    @property
    def width(self) -> int:
        return self.config.window_ms

    @property
    def threshold(self) -> int:
        """Utilization below this is idle, in millionths."""
        return int(self.config.findings.idle_utilization * RATIO)

    @cached_property
    def measured(self) -> Bools:
        """Devices x windows: the utilization is measured."""
        return np.asarray(self.found.measures.utilization.method == Method.MEASURED)

    @cached_property
    def busy(self) -> Bools:
        """Devices x windows: measured, and not idle."""
        return np.asarray(self.measured & (self.found.measures.utilization.value >= self.threshold))

    @cached_property
    def fractions(self) -> tuple[Ints, int]:
        """`class_fraction` of each interval of the hour as a numerator over one common denominator (A4)."""
        exact = self.holding.intervals.fractions(self.config)
        common = int(np.lcm.reduce([fraction.denominator for fraction in exact] or [1]))
        return np.array([int(fraction * common) for fraction in exact], dtype=np.int64), common

    @cached_property
    def label_pairs(self) -> tuple[Ints, Ints]:
        """Which label sets have the label of which interval of the hour: pairs of set and interval."""
        by_label: dict[str, list[int]] = {}
        for number, label in enumerate(self.holding.intervals.label.tolist()):
            if label is not None:
                by_label.setdefault(label, []).append(number)
        pairs = [
            (place, interval)
            for place, members in enumerate(self.timeline.sets.members)
            for label in members
            for interval in by_label.get(label, ())
        ]
        table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def named_pairs(self) -> Ints:
        """Devices named by the intervals of the hour, as `interval x devices + device`."""
        index = {key: device for device, key in enumerate(self.timeline.devices.key.tolist())}
        intervals = self.holding.intervals
        device = np.array([index.get(key, -1) for key in intervals.named_device.tolist()], dtype=np.int64)
        return np.unique((intervals.named_interval * len(self.timeline.devices) + device)[device >= 0])

    def workload_of(self, interval: int) -> tuple[str, str]:
        """Workload and tenant of an interval of the hour."""
        intervals = self.holding.intervals
        return str(intervals.workloads[intervals.workload[interval]]), str(intervals.tenant[interval])

    @cached_property
    def _tenants(self) -> list[str | None]:
        owners = (self.owners[pod] for pod in self.holding.pods)
        return [*self.holding.parties.tenant.tolist(), *(owner.tenant_id if owner else None for owner in owners)]

    def holder(self, number: int) -> tuple[str | None, str | None]:
        """Workload (or `namespace/pod`) and tenant of a holder as pieces number them; nobody is (None, None)."""
        if number == NOBODY:
            return None, None
        parties = self.holding.parties
        name = parties.workload[number] if number < len(parties) else self.holding.pods[number - len(parties)]
        return str(name), self._tenants[number]

    def instant(self, ms: int) -> str:
        """An instant of the hour for a person."""
        return hour_text(self.timeline.start + ms)

    def share(self) -> str:
        """The idle threshold for a person."""
        return f"{float(self.config.findings.idle_utilization) * 100:.3g} %"


class Sums(NamedTuple):
    """Groups of equal keys: a member of each, its extent and its total."""

    member: Ints
    first: Ints
    last: Ints
    total: Ints


def sums(keys: tuple[Ints, ...], begin: Ints, end: Ints, amount: Ints) -> Sums:
    """Sum `amount` by `keys`; `begin` and `end` are the extents of the elements."""
    if not len(begin):
        nothing = np.zeros(0, dtype=np.int64)
        return Sums(nothing, nothing, nothing, nothing)
    order, first = grouped(*keys)
    return Sums(
        order[first],
        np.minimum.reduceat(begin[order], first),
        np.maximum.reduceat(end[order], first),
        np.add.reduceat(amount[order], first),
    )


def stretches(keys: tuple[Ints, ...], begin: Ints, end: Ints) -> Sums:
    """Elements of equal keys that follow each other without a break, as one; each element once."""
    order = sorting(*keys, begin)
    fresh = changes(*(key[order] for key in keys))
    fresh[1:] |= begin[order][1:] != end[order][:-1]
    number = np.zeros(len(order), dtype=np.int64)
    number[order] = np.cumsum(fresh) - 1
    return sums((number,), begin, end, end - begin)


def listed(names: Texts | list[str], most: int = 4) -> str:
    """Some names for a person."""
    shown = [str(name) for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
