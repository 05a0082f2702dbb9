"""The kinds of finding and their published texts, and what one finding is.

What belongs here: names and their documentation. What does not: any search (the other modules of this folder).
No finding changes an amount; every time is in whole milliseconds.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from typing import NamedTuple


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

    TWO_PODS = (
        "Rows of a device name different pods in two groups of labels, neither the exporter's own (A8): a tenant may have "
        "labelled its pod as somebody else's. `honor_labels = true` lets only `namespace` and `pod` count. Seconds: device "
        "time of windows with such rows."
    )
    UNKNOWN_PROFILE = (
        "An instance's MIG profile gives no number of slices (A19): it takes an equal part of what the other instances "
        "leave of the card. Seconds: device time."
    )
    UNKNOWN_CARD = (
        "A card runs as MIG, and no table has the number of its slices: 7 are assumed (A19); `[mig_slices]` sets it. "
        "Seconds: device time of its instances."
    )
    UNINVITED_POD = (
        "A pod without lifecycle events is labelled on a device that running workloads take whole: it holds nothing there "
        "(A17). Seconds: device time."
    )
    DEVICE_GONE = (
        "A device was not read again while its node went on showing others for 10 minutes: it is not visible from its "
        "last reading on (A21). Seconds: device time that would have counted otherwise."
    )
    OTHER_MODEL = (
        "A workload holds a device of another model than its `placed_class` is the class of (A6, A7). Seconds: device "
        "time."
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
