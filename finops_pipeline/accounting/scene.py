"""What the search for findings looks at, and what a finding is (`findings`).

What belongs here: the kinds, the hour as all searches see it, and the sums that they share. What does not: any
search. No finding changes an amount; every time is in whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from finops_pipeline.accounting.around import Timeline
from finops_pipeline.accounting.arrays import Bools, Ints, Texts, changes, grouped, sorting
from finops_pipeline.accounting.config import RATIO, AccountingConfig
from finops_pipeline.accounting.deployments import PodOwner
from finops_pipeline.accounting.exact import hour_text
from finops_pipeline.accounting.holding import NOBODY, Holding
from finops_pipeline.accounting.lifecycle import Intervals
from finops_pipeline.accounting.pieces import HourPieces
from finops_pipeline.accounting.readings import HourReadings
from finops_pipeline.accounting.windows import Method


class Kind(Enum):
    """What can be found in an hour. The published code is the name in lower case, the text its documentation."""

    HELD_BUT_IDLE = (
        "A device is held, and its utilization, measured or on a straight line between readings, is below "
        "`idle_utilization` for `idle_minutes` without a break. Seconds: of such stretches."
    )
    STALE_LABEL = (
        "A device carries the label of a workload that does not run by its events, or that holds its devices already; "
        "nobody holds the device (A17). Seconds: device time."
    )
    LABEL_DROP = (
        "A device was read without the label of its holder, who keeps it by A17 (b), (c) or (d). Seconds: device time."
    )
    UNMATCHED = (
        "A workload has a label or names devices, and still has units without a visible device (A21). Seconds: "
        "GPU-seconds."
    )
    UNATTRIBUTED_BUSY = (
        "Nobody pays for a device (idle, stale or unattributed) that is measured at `idle_utilization` or above. "
        "Seconds: device time."
    )
    MORE_DEVICES_THAN_ASKED = (
        "More devices carry a workload's label, or are named by it, than its `gpu_count` allows it to hold (A17). "
        "Seconds: device time of those beyond."
    )
    UNSOLD_PART = (
        "Workloads with a fractional `gpu_count` or a `class_fraction` below 1 hold a whole device, and a part of it is "
        "in nobody's units. Seconds: GPU-seconds of that part."
    )
    OVERSOLD = "Units x `class_fraction` of the workloads on one card sum to more than the card. Seconds: device time."
    STRANDED_SLICES = (
        "A card runs as MIG, and its visible instances do not cover all its slices. Seconds: GPU-seconds of the slices "
        "left over."
    )
    FOREIGN_TENANT = (
        "A workload of a dedicated deployment runs for another tenant than the owner, who pays (A25). Seconds: "
        "GPU-seconds."
    )
    NO_SIGN_OF_LIFE = (
        "A workload runs by its events, but since a moment of the hour its label is on no device, and the devices that "
        "it was on last are read below `idle_utilization`, or with somebody else's label: it probably died while the "
        "controller was down. At least `silent_minutes` in all. Seconds: from then to its end, or the hour's."
    )
    NODE_FAILURE = (
        "A workload ended as `failed` with one of `failure_words` in the reason, some time after the last window that "
        "carries its label. Seconds: of this hour, between the two."
    )
    FROZEN_SERIES = (
        "Power and energy counter of a held board both stay the same for more than `frozen_intervals` collection "
        "intervals: the exporter repeats old values. Seconds: held time meanwhile."
    )
    COUNTER_DISAGREES = (
        "The energy of a board by its counter and that by its power differ by more than `counter_tolerance`, over the "
        "windows in which both are measured. Seconds: of these windows."
    )

    @property
    def code(self) -> str:
        return self.name.lower()


class Finding(NamedTuple):
    """One row to be; `first` and `last` are ms from the hour's start."""

    kind: Kind
    subject: str
    workload_id: str | None
    tenant_id: str | None
    first: int
    last: int
    ms: int | Fraction
    detail: str


@dataclass(frozen=True)
class Scene:
    """One hour as it was read and held."""

    hour: HourReadings
    timeline: Timeline
    holding: Holding
    found: HourPieces
    intervals: Intervals
    """of all time, not only those of `holding`"""
    owners: Mapping[str, PodOwner | None]
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
        return np.asarray(self.found.utilization.method == Method.MEASURED)

    @cached_property
    def busy(self) -> Bools:
        """Devices x windows: measured, and not idle."""
        return np.asarray(self.measured & (self.found.utilization.value >= self.threshold))

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
        intervals = self.holding.intervals
        tenants: list[str | None] = [None] * len(intervals.workloads)
        for workload, tenant in zip(intervals.workload.tolist(), intervals.tenant.tolist(), strict=True):
            tenants[workload] = tenant
        owners = (self.owners[pod] for pod in self.holding.pods)
        return [*tenants, *(owner.tenant_id if owner else None for owner in owners)]

    def holder(self, number: int) -> tuple[str | None, str | None]:
        """Workload (or `namespace/pod`) and tenant of a holder as pieces number them; nobody is (None, None)."""
        if number == NOBODY:
            return None, None
        workloads = self.holding.intervals.workloads
        name = workloads[number] if number < len(workloads) else self.holding.pods[number - len(workloads)]
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
