"""The accounting rules a second time: slow, plain, and written from their text alone.

One hour of usage, idle lines before pricing, fleet identity and quarantine (A1-A21, A28, A29), from plain Python data:
numbers are `Fraction`, times are integer milliseconds, and every rule is one function with its number. Nothing here is
shared with the pipeline, so that the two agree only where both follow the text; where the text left a choice open, the
pipeline's own was taken over if it is one of the possible readings, and is listed here. What does NOT belong here: prices,
tokens, the ledger (A22-A35), files, and anything that is fast and therefore hard to read.

AMBIGUITIES (the text allows more than one reading; the choice taken here)

1.  A7/A10: copies of a reading are rejected one by one, and the highest *valid* one is the reading.
2.  A9/A11: utilization between windows runs through the readings of the source that each window chose.
3.  A11: a window is a gap *of the device* by its instants of any kind (rejected ones count); `silent`, `no_data`, A14
    and "measured" in A17 (c) and (d) mean this gap. Gaps of a quantity are found by its own valid readings.
4.  A13/A19: a board's power and counter are judged with the scrape interval of the device that is looked at.
5.  A13 rung 5: the class's watts are taken for a whole device with one holder over the window, times the units of
    `gpu_count` that it has there at the window's first moment of being held.
    Power is one value a board: a holder of any of its instances lets rungs 4 and 5 apply to it (BOARD_HOLDERS).
6.  A14: "the readings on both sides" are the device's nearest instants with their own labels.
7.  A17: pods that A14 keeps in a gap also share with a workload that holds the silent device by name.
8.  A17 (b), (d): devices are looked at in order of uuid and instance, and what a workload took counts for the next.
    (d) takes the device with the nearest window first, of equally near ones the lower device.
9.  A17/A21: a device that is neither read within reach nor in the inventory does not exist, named or not.
10. A18: of equally specific deployments the lowest id wins.
11. A20: a piece whose energy is unknown in any part is unknown; the window's status looks at the whole window.
12. A21: "never read together with them" is asked of each other device of the board by itself, and a device read in a
    window is visible in it. Time shared by an attributed holder and an unattributed pod is `held`.
13. A21: a device is in the inventory of a window if its validity overlaps the window.
14. A19: an instance whose profile nobody told (it is only in the inventory) is one slice.
15. A19: per-process rows of the utilization metric that has them are used, also where the device's value is of the
    other one; they count beside a *valid* row without a pod; a workload's pod is that of the piece's first moment.
16. A20: all milliseconds of a piece that power decides are rounded to mJ once, together.
17. A20: the modelled energy of time without a device is rounded once per running interval and hour.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

HOUR = 3_600_000
DAY = 24 * HOUR
TEN_MINUTES = 600_000

PROF = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
MEMORY = "DCGM_FI_DEV_FB_USED"
POWER = "DCGM_FI_DEV_POWER_USAGE"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
# What one exported unit is in millionths, KiB, mW or mJ (A9, A28).
SCALE = {PROF: 1_000_000, UTIL: 10_000, MEMORY: 1024, POWER: 1000, ENERGY: 1}
# Names of old exporters (A9).
NAMES = {
    "dcgm_gr_engine_active": PROF,
    "dcgm_gpu_utilization": UTIL,
    "dcgm_fb_used": MEMORY,
    "dcgm_power_usage": POWER,
    "dcgm_total_energy_consumption": ENERGY,
    **{name: name for name in SCALE},
}
CARD_SLICES = {"A100": 7, "H100": 7, "H200": 7, "B200": 7, "A30": 4}

BOARD_HOLDERS = False

T = TypeVar("T")
Device = tuple[str, str]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Sample:
    """One value of one series at one instant (ms)."""

    metric: str
    labels: dict[str, str]
    at: int
    value: float


@dataclass(frozen=True)
class Event:
    """A lifecycle event; `at` in ms."""

    event_id: str
    at: int
    workload_id: str
    tenant_id: str
    to_state: str
    from_state: str | None = None
    gpu_count: Fraction | None = Fraction(1)
    placed_class: str | None = None
    deployment_id: str | None = None
    namespace: str | None = None
    pod: str | None = None
    node: str | None = None
    gpu_uuids: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Deployment:
    """A deployment, as far as A18 needs it."""

    deployment_id: str
    owner_tenant_id: str
    namespace: str | None = None
    pod_pattern: str | None = None


@dataclass(frozen=True)
class InventoryEntry:
    """A device that is known to be there from `start` to `end` (ms; None is open)."""

    gpu_uuid: str
    model: str
    start: int
    end: int | None = None


@dataclass(frozen=True)
class Settings:
    """The tables of the rules' section 2; `card_limits` is model -> (W, GB)."""

    window_seconds: int = 15
    models: dict[str, str] = field(default_factory=dict)
    card_limits: dict[str, tuple[Fraction | None, Fraction | None]] = field(default_factory=dict)
    class_watts: dict[str, Fraction] = field(default_factory=dict)
    class_fraction: dict[str, Fraction] = field(default_factory=dict)

    def of_model(self, table: dict[str, T], raw: str) -> T | None:
        """A table's entry for a model, by DCGM's name or the platform's."""
        names = {raw, self.models.get(raw, raw)} | {dcgm for dcgm, name in self.models.items() if name == raw}
        return next((table[name] for name in sorted(names) if name in table), None)


@dataclass(frozen=True)
class Interval:
    """A running interval (A3); `end` is None while it is open."""

    workload_id: str
    start: int
    end: int | None
    gpu_count: Fraction
    placed_class: str
    fraction: Fraction
    tenant_id: str
    deployment_id: str | None
    pair: Pair | None
    named: frozenset[Device]

    @property
    def most_devices(self) -> int:
        """How many devices it may hold (A17)."""
        return math.ceil(self.gpu_count)

    def covers(self, start: int, end: int) -> bool:
        return self.start <= start and (self.end is None or end <= self.end)


def half_even(value: Fraction) -> int:
    """A28: a whole number, rounded half-even."""
    return round(value)


def published(value: Fraction, places: int) -> Decimal:
    """A28: a decimal of so many places, rounded half-even once."""
    return Decimal(half_even(value * 10**places)).scaleb(-places)


def hour_text(at: int) -> str:
    """An hour as A29 writes it."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def split(total: int, weights: dict[str, Fraction], hour: int) -> dict[str, int]:
    """A29: the largest-remainder method on whole units."""
    whole = sum(weights.values())
    if whole == 0:
        return dict.fromkeys(weights, 0)
    exact = {name: total * weight / whole for name, weight in weights.items()}
    parts = {name: math.floor(value) for name, value in exact.items()}

    def order(name: str) -> tuple[Fraction, str]:
        digest = hashlib.sha256(f"{name}|{hour_text(hour)}".encode()).hexdigest()
        return (-(exact[name] - parts[name]), digest)

    for name in sorted(exact, key=order)[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


# Lifecycle events -----------------------------------------------------------------------------------------------------


def screened(events: list[Event], now: int) -> tuple[list[Event], set[tuple[str, str, str]]]:
    """A5: the events that count, ordered by A3, and (source, key, reason) of the others."""
    quarantine: set[tuple[str, str, str]] = set()
    first: dict[str, Event] = {}
    for event in events:
        if event.event_id not in first:
            first[event.event_id] = event
        elif event != first[event.event_id]:
            quarantine.add(("workload_events", event.event_id, "conflict"))
    good = []
    open_interval: dict[str, bool] = defaultdict(bool)
    for event in sorted(first.values(), key=lambda e: (e.at, e.event_id)):
        billable = event.to_state == "running"
        if event.at > now + 300_000:
            quarantine.add(("workload_events", event.event_id, "future"))
        elif billable and (event.gpu_count is None or event.gpu_count <= 0):
            quarantine.add(("workload_events", event.event_id, "gpu_count"))
        elif event.from_state == "running" and not billable and not open_interval[event.workload_id]:
            quarantine.add(("workload_events", event.event_id, "no_start"))
        else:
            open_interval[event.workload_id] = billable
            good.append(event)
    return good, quarantine


def device_of_name(name: str) -> Device:
    """`uuid` of a whole device, or `uuid/instance` (A17)."""
    uuid, _, instance = name.partition("/")
    return uuid, instance


def intervals_of(events: list[Event], settings: Settings) -> list[Interval]:
    """A3: running intervals of screened events."""
    found = []
    by_workload: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_workload[event.workload_id].append(event)
    for workload_id, own in by_workload.items():
        pair: Pair | None = None
        for event, after in zip(own, [*own[1:], None], strict=True):
            if event.namespace and event.pod:
                pair = (event.namespace, event.pod)
            if event.to_state != "running" or event.gpu_count is None:
                continue
            klass = event.placed_class or ""
            found.append(
                Interval(
                    workload_id=workload_id,
                    start=event.at,
                    end=None if after is None else after.at,
                    gpu_count=event.gpu_count,
                    placed_class=klass,
                    fraction=settings.class_fraction.get(klass, Fraction(1)),
                    tenant_id=event.tenant_id,
                    deployment_id=event.deployment_id,
                    pair=pair,
                    named=frozenset(device_of_name(name) for name in event.gpu_uuids or ()),
                )
            )
    return found


# Device samples -------------------------------------------------------------------------------------------------------


def label_pair(labels: dict[str, str]) -> Pair | None:
    """A8: namespace and pod of the workload, or None."""
    for namespace, pod, container in (
        ("exported_namespace", "exported_pod", "exported_container"),
        ("namespace", "pod", "container"),
        ("pod_namespace", "pod_name", "container_name"),
    ):
        name, box = labels.get(pod, ""), labels.get(container, "")
        if not name or "dcgm-exporter" in name or "dcgm-exporter" in box or box == "exporter":
            continue
        return labels.get(namespace, ""), name
    return None


def rejection(metric: str, value: float, model: str, settings: Settings) -> str | None:
    """A10: why a value is no reading, or None."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf"
    exact = Fraction(Decimal(repr(value)))
    if exact < 0:
        return "negative"
    if metric == ENERGY:
        return "blank" if exact >= Fraction("9.2e18") else None
    if exact >= 140737488355328 or 2147483632 <= exact <= 2147483647:
        return "blank"
    if metric in {PROF, UTIL} and exact * SCALE[metric] > 1_000_000:
        return "above_one"
    if metric not in {POWER, MEMORY}:
        return None
    watts, gigabytes = settings.of_model(settings.card_limits, model) or (None, None)
    if metric == POWER and watts is not None and exact > Fraction(3, 2) * watts:
        return "above_limit"
    if metric == MEMORY and gigabytes is not None and exact > 1024 * gigabytes:
        return "above_limit"
    return None


def slices_of_card(model: str) -> int:
    """A19: MIG slices of a whole card."""
    return next((n for name, n in CARD_SLICES.items() if re.search(rf"\b{name}\b", model)), 7)


def order_of(device: Device) -> tuple[str, int]:
    """A17: by uuid, the whole device first, instances by number."""
    return device[0], int(device[1]) if device[1] else -1


class Telemetry:
    """All readings that count for one hour (A7-A12), stitched per device."""

    def __init__(self, samples: list[Sample], hour: int, settings: Settings) -> None:
        self.hour, self.settings = hour, settings
        self.quarantine: set[tuple[str, str, str]] = set()
        self.model: dict[Device, str] = {}
        self.profile: dict[Device, str] = {}
        self.labels: dict[Device, dict[int, set[Pair]]] = defaultdict(lambda: defaultdict(set))
        self.values: dict[tuple[Device, str], dict[int, Fraction]] = defaultdict(dict)
        self.board: dict[tuple[str, str], dict[int, Fraction]] = defaultdict(dict)
        rows: dict[tuple[Device, str, int], list[tuple[Pair | None, Fraction]]] = defaultdict(list)
        bare: set[tuple[Device, str, int]] = set()
        for sample in samples:
            uuid = sample.labels.get("UUID") or sample.labels.get("uuid")
            metric = NAMES.get(sample.metric)
            if not uuid or metric is None or not hour - DAY <= sample.at < hour + HOUR + DAY:
                continue
            device = (uuid, sample.labels.get("GPU_I_ID", ""))
            raw = sample.labels.get("modelName", "")
            self.model[device] = settings.models.get(raw, raw)
            self.profile[device] = sample.labels.get("GPU_I_PROFILE", "")
            pair = label_pair(sample.labels)
            self.labels[device][sample.at] |= {pair} if pair else set()
            reason = rejection(metric, sample.value, raw, settings)
            if reason is None:
                scaled = Fraction(Decimal(repr(sample.value))) * SCALE[metric]
                rows[device, metric, sample.at].append((pair, scaled))
                if pair is None:
                    bare.add((device, metric, sample.at))
            elif hour <= sample.at < hour + HOUR:
                self.quarantine.add(("dcgm", f"{'/'.join(filter(None, device))}:{sample.metric}", reason))
        self.process: dict[tuple[Device, str], dict[int, dict[Pair, Fraction]]] = defaultdict(dict)
        for (device, metric, at), values in rows.items():
            highest = max(value for _, value in values)
            self.values[device, metric][at] = highest
            if metric in {POWER, ENERGY}:
                seen = self.board[device[0], metric]
                seen[at] = max(highest, seen.get(at, highest))
            elif (device, metric, at) in bare and any(pair for pair, _ in values):
                self.process[device, metric][at] = {
                    pod: max(value for pair, value in values if pair == pod) for pod, _ in values if pod
                }
        self.instants = {device: sorted(at) for device, at in self.labels.items()}
        self.window_ms = settings.window_seconds * 1000

    @cached_property
    def devices(self) -> list[Device]:
        return sorted(self.instants, key=order_of)

    def slices(self, device: Device) -> int:
        """A19: slices of an instance, or of the whole card."""
        if not device[1]:
            return slices_of_card(self.model[device])
        found = re.match(r"(\d+)g", self.profile.get(device, ""))
        return int(found[1]) if found else 1

    @cached_property
    def utilization(self) -> dict[Device, dict[int, Fraction]]:
        """A9: in each window the readings of the first source with a valid one."""
        chosen: dict[Device, dict[int, Fraction]] = {}
        for device in self.devices:
            prof, util = self.values[device, PROF], self.values[device, UTIL]
            taken = {at // self.window_ms for at in prof}
            chosen[device] = {**{at: v for at, v in util.items() if at // self.window_ms not in taken}, **prof}
        return chosen

    def readings(self, device: Device, quantity: str) -> list[tuple[int, Fraction]]:
        """Valid readings of a device and quantity, in order; power and energy are the board's (A19)."""
        if (device, quantity) not in self._readings:
            found = {
                "utilization": self.utilization.get(device, {}),
                "memory": self.values[device, MEMORY],
                "power": self.board[device[0], POWER],
                "energy": self.board[device[0], ENERGY],
            }[quantity]
            self._readings[device, quantity] = sorted(found.items())
        return self._readings[device, quantity]

    @cached_property
    def _readings(self) -> dict[tuple[Device, str], list[tuple[int, Fraction]]]:
        return {}

    @cached_property
    def _scrape(self) -> dict[tuple[Device, int], int]:
        return {}

    def scrape_interval(self, device: Device, at: int) -> int:
        """A11: the device's scrape interval in the hour of `at`, in ms."""
        start = at // HOUR * HOUR
        if (device, start) not in self._scrape:
            instants = [t for t in self.instants.get(device, []) if start <= t < start + HOUR]
            distances = Counter(half_even(Fraction(b - a, 1000)) for a, b in itertools.pairwise(instants))
            seconds = self.settings.window_seconds
            if sum(distances.values()) >= 10:
                commonest = min(distances, key=lambda d: (-distances[d], d))
                seconds = min(max(commonest, seconds), 300)
            self._scrape[device, start] = seconds * 1000
        return self._scrape[device, start]

    def around(self, moments: list[Any], window: int) -> tuple[int | None, range, int | None]:
        """Of instants, or of readings: the last before a window, those in it, the first after it (indexes)."""
        edges = (window, window + self.window_ms)
        key = None if moments and isinstance(moments[0], int) else lambda reading: reading[0]
        low, high = (bisect.bisect_left(moments, edge, key=key) for edge in edges)
        return low - 1 if low else None, range(low, high), high if high < len(moments) else None

    def is_gap(self, device: Device, window: int) -> bool:
        """A11: no sample of any kind, and the instants around are too far apart (choice 3)."""
        instants = self.instants.get(device, [])
        before, inside, after = self.around(instants, window)
        if inside:
            return False
        if before is None or after is None:
            return True
        return 2 * (instants[after] - instants[before]) > 5 * self.scrape_interval(device, window)

    def window_labels(self, device: Device, window: int) -> set[Pair]:
        """A11: the labels that a window carries."""
        instants = self.instants.get(device, [])
        before, inside, after = self.around(instants, window)
        if inside:
            return next((self.labels[device][instants[i]] for i in inside if self.labels[device][instants[i]]), set())
        if before is None or after is None or self.is_gap(device, window):
            return set()
        twice_the_middle = 2 * window + self.window_ms
        nearer = before if twice_the_middle <= instants[before] + instants[after] else after
        return self.labels[device][instants[nearer]]

    def sides(self, device: Device, window: int) -> tuple[set[Pair], set[Pair]]:
        """A14: the labels of the readings on both sides of a window (choice 6)."""
        instants = self.instants.get(device, [])
        before, _, after = self.around(instants, window)
        return (
            set() if before is None else self.labels[device][instants[before]],
            set() if after is None else self.labels[device][instants[after]],
        )

    def gone(self, device: Device, window: int) -> bool:
        """A21: its board is read under other instances, and this one is not read again or never was with them."""
        own = self.instants.get(device, [])
        before, inside, after = self.around(own, window)
        if inside:
            return False
        last = own[before] if before is not None else -(10**18)
        for other in self.devices:
            if other[0] != device[0] or other == device:
                continue
            if any(last < at < window + self.window_ms for at in self.instants[other]) and (
                after is None or not set(own) & set(self.instants[other])
            ):
                return True
        return False

    def read_recently(self, device: Device, window: int) -> bool:
        """A21: read in the window or in the 24 hours before it."""
        return any(window - DAY <= at < window + self.window_ms for at in self.instants.get(device, []))

    def value(self, device: Device, quantity: str, window: int) -> tuple[str, Fraction | None]:
        """A11 and A13 rungs 2 and 3: (`measured`, `linear`, `profile`, `one_side`, `never`) and the value."""
        readings = self.readings(device, quantity)
        before, inside, after = self.around(readings, window)
        if inside:
            return "measured", Fraction(sum(readings[i][1] for i in inside), 1) / len(inside)
        if before is None and after is None:
            return "never", None
        if before is None:
            return "one_side", readings[after][1]  # type: ignore[index]
        if after is None:
            return "one_side", readings[before][1]
        (left, low), (right, high) = readings[before], readings[after]
        line = low + (high - low) * (window + Fraction(self.window_ms, 2) - left) / (right - left)
        if 2 * (right - left) <= 5 * self.scrape_interval(device, window):
            return "measured", line
        if right - left <= 2 * HOUR:
            return "linear", line
        return "profile", (low + high) / 2

    def counter_spans(self, device: Device, start: int, end: int) -> list[tuple[int, int, int | None]]:
        """A20: [start, end) in spans (from, to, rise in mJ, or None where power decides)."""
        limits = self.settings.of_model(self.settings.card_limits, self.model[device]) or (None, None)
        readings = self.readings(device, "energy")
        if not readings:
            return [(start, end, None)]
        near = max(bisect.bisect_right(readings, start, key=lambda reading: reading[0]) - 1, 0)
        spans: list[tuple[int, int, int | None]] = []
        if start < readings[0][0]:
            spans.append((start, min(end, readings[0][0]), None))
        for (left, low), (right, high) in itertools.pairwise(readings[near:]):
            if left >= end:
                break
            a, b = max(left, start), min(right, end)
            bad = high < low or (limits[0] is not None and high - low > Fraction(3, 2) * limits[0] * (right - left))
            slope = (high - low) / (right - left)
            rise = half_even(low + slope * (b - left)) - half_even(low + slope * (a - left))
            spans.append((a, b, None if bad else rise))
        if end > readings[-1][0]:
            spans.append((max(start, readings[-1][0]), end, None))
        return spans


# Holders --------------------------------------------------------------------------------------------------------------


@dataclass
class Moment:
    """Who holds what from `start` to `end`, within one window: device -> workload ids (pods as namespace/pod)."""

    window: int
    start: int
    end: int
    holders: dict[Device, list[str]]
    state: dict[Device, str]
    running: list[tuple[Interval, list[Device]]]


class Holding:
    """A17: the holders of every device, moment by moment."""

    def __init__(
        self,
        telemetry: Telemetry,
        events: list[Event],
        intervals: list[Interval],
        inventory: list[InventoryEntry],
    ) -> None:
        self.telemetry, self.intervals, self.inventory = telemetry, intervals, inventory
        self.step = telemetry.window_ms
        self.with_events = {(e.namespace, e.pod) for e in events if e.namespace and e.pod}
        listed = [device_of_name(entry.gpu_uuid) for entry in inventory]
        self.devices = sorted({*telemetry.devices, *listed}, key=order_of)
        self._by_a: dict[tuple[int, int], list[Device]] = {}
        self._label_windows: dict[tuple[int, Device], list[int]] = {}
        self._labels: dict[tuple[Device, int], set[Pair]] = {}
        self._gone: dict[tuple[Device, int], bool] = {}

    def labels(self, device: Device, window: int) -> set[Pair]:
        if (device, window) not in self._labels:
            self._labels[device, window] = self.telemetry.window_labels(device, window)
        return self._labels[device, window]

    def gone(self, device: Device, window: int) -> bool:
        if (device, window) not in self._gone:
            self._gone[device, window] = self.telemetry.gone(device, window)
        return self._gone[device, window]

    def by_a(self, interval: Interval, window: int) -> list[Device]:
        """A17 (a): the devices that a running interval holds in a window, at most so many, in order."""
        key = (id(interval), window)
        if key not in self._by_a:
            found = [
                device
                for device in self.devices
                if (interval.pair in self.labels(device, window) or device in interval.named)
                and not self.gone(device, window)
            ]
            self._by_a[key] = found[: interval.most_devices]
        return self._by_a[key]

    def windows_by_a(self, interval: Interval, device: Device) -> list[int]:
        """The windows within reach (A12) in which the interval holds the device by (a)."""
        key = (id(interval), device)
        if key not in self._label_windows:
            start, end = self.telemetry.hour - DAY, self.telemetry.hour + HOUR + DAY
            if device not in interval.named:
                instants = self.telemetry.instants.get(device, [])
                if not instants:
                    return []
                start, end = max(start, instants[0]), min(end, instants[-1] + 1)
            start = max(start, interval.start) // self.step * self.step
            end = end if interval.end is None else min(end, interval.end)
            self._label_windows[key] = [w for w in range(start, end, self.step) if device in self.by_a(interval, w)]
        return self._label_windows[key]

    def nearest(self, interval: Interval, device: Device, window: int) -> int | None:
        """The nearest window in which the interval holds the device by (a); on a tie the earlier."""
        return min(self.windows_by_a(interval, device), key=lambda w: (abs(w - window), w), default=None)

    def pods(self, labels: set[Pair]) -> set[Pair]:
        """A18: the labelled pods that have no lifecycle events at all."""
        return labels - self.with_events

    def kept(self, device: Device, window: int) -> set[Pair]:
        """A14: the pods without events that keep a device through a gap."""
        before, after = self.telemetry.sides(device, window)
        return self.pods(before) & self.pods(after)

    def between_labels(self, device: Device, window: int) -> bool:
        """A14: the gap lies between two different labels of pods without events."""
        before, after = self.telemetry.sides(device, window)
        return bool(self.pods(before)) and bool(self.pods(after))

    def over_a_hole(self, device: Device, window: int) -> set[Pair]:
        """A17 (c): pods without events over at most 10 minutes of measured windows without any label."""
        telemetry = self.telemetry

        def blank(w: int) -> bool:
            return not telemetry.is_gap(device, w) and not self.labels(device, w)

        if device not in telemetry.instants or not blank(window):
            return set()
        left = right = window
        while blank(left - self.step) and right - left < TEN_MINUTES:
            left -= self.step
        while blank(right + self.step) and right - left < TEN_MINUTES:
            right += self.step
        if right + self.step - left > TEN_MINUTES:
            return set()
        return self.pods(self.labels(device, left - self.step)) & self.pods(self.labels(device, right + self.step))

    def moment(self, window: int, start: int, end: int) -> Moment:
        """A17: the first that applies, device by device."""
        telemetry = self.telemetry
        running = [i for i in self.intervals if i.covers(start, end)]
        holds: dict[int, list[Device]] = {id(i): list(self.by_a(i, window)) for i in running}
        pods: dict[Device, set[Pair]] = {d: set() for d in self.devices}
        for device in self.devices:
            if self.gone(device, window):
                continue
            gap = telemetry.is_gap(device, window)
            pods[device] = self.kept(device, window) if gap else self.pods(self.labels(device, window))
            if any(device in holds[id(i)] for i in running) or (pods[device] and not gap):
                continue
            candidates = []
            for interval in running:
                near = self.nearest(interval, device, window)
                if near is not None and len(holds[id(interval)]) < interval.most_devices:
                    candidates.append((abs(near - window), near, interval))
            if candidates:
                nearest = min((distance, near) for distance, near, _ in candidates)[1]
                for _, _, interval in candidates:
                    if nearest in self.windows_by_a(interval, device):
                        holds[id(interval)].append(device)
            elif not gap:
                pods[device] = self.over_a_hole(device, window)
        for interval in running:
            near_devices = []
            for device in self.devices:
                if device in holds[id(interval)] or telemetry.is_gap(device, window) or self.gone(device, window):
                    continue
                near = self.nearest(interval, device, window)
                if near is not None and abs(near - window) <= TEN_MINUTES:
                    near_devices.append((abs(near - window), order_of(device), device))
            room = interval.most_devices - len(holds[id(interval)])
            holds[id(interval)].extend(device for *_, device in sorted(near_devices)[: max(room, 0)])
        holders = {
            d: sorted({i.workload_id for i in running if d in holds[id(i)]} | {f"{n}/{p}" for n, p in pods[d]})
            for d in self.devices
        }
        return Moment(
            window,
            start,
            end,
            holders,
            {d: "held" if holders[d] else self.nobody(d, window) for d in self.devices},
            [(i, sorted(holds[id(i)], key=order_of)) for i in running],
        )

    def nobody(self, device: Device, window: int) -> str:
        """A17, last sentence but one: what a moment is that nobody holds."""
        if self.labels(device, window) & self.with_events:
            return "stale"
        if not self.telemetry.is_gap(device, window):
            return "idle"
        return "unattributed" if self.between_labels(device, window) else "no_data"

    def visible(self, device: Device, window: int, held: bool) -> bool:
        """A21: whether a device is visible in a window."""
        if self.gone(device, window):
            return False
        listed = any(
            device_of_name(entry.gpu_uuid) == device
            and entry.start < window + self.step
            and (entry.end is None or window < entry.end)
            for entry in self.inventory
        )
        return held or listed or self.telemetry.read_recently(device, window)

    def moments(self, window: int) -> list[Moment]:
        """A window cut where some workload starts or stops."""
        cuts = {window, window + self.step}
        for interval in self.intervals:
            cuts |= {t for t in (interval.start, interval.end) if t and window < t < window + self.step}
        edges = sorted(cuts)
        return [self.moment(window, a, b) for a, b in itertools.pairwise(edges)]


# The hour -------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A usage row before rounding (A20)."""

    gpu_ms: Fraction = Fraction(0)
    units: dict[str, int] = field(default_factory=dict)
    status: dict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    methods: dict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    modelled: dict[Interval, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    last: Interval | None = None


@dataclass
class Hour:
    """The result: rows as dictionaries with the columns of the published tables."""

    usage: list[dict[str, Any]]
    fleet: list[dict[str, Any]]
    idle: list[dict[str, Any]]
    quarantine: set[tuple[str, str, str]]


def deployment_of(name: str, deployments: list[Deployment]) -> Deployment | None:
    """A18: the deployment of a pod without events, `namespace/pod`."""
    namespace, _, pod = name.partition("/")
    fitting = [d for d in deployments if d.namespace == namespace and fnmatchcase(pod, d.pod_pattern or "")]

    def rank(deployment: Deployment) -> tuple[bool, int, str]:
        literal = re.split(r"[*?\[]", deployment.pod_pattern or "")[0]
        return deployment.pod_pattern != pod, -len(literal), deployment.deployment_id

    return min(fitting, key=rank, default=None)


class Accounting:
    """One hour of one cluster."""

    def __init__(
        self,
        cluster: str,
        hour: int,
        samples: list[Sample],
        events: list[Event],
        deployments: list[Deployment],
        inventory: list[InventoryEntry],
        now: int,
        settings: Settings,
    ) -> None:
        self.cluster, self.hour, self.settings, self.deployments = cluster, hour, settings, deployments
        good, self.quarantine = screened(events, now)
        self.intervals = intervals_of(good, settings)
        self.telemetry = Telemetry(samples, hour, settings)
        for entry in inventory:
            device = device_of_name(entry.gpu_uuid)
            self.telemetry.model.setdefault(device, settings.models.get(entry.model, entry.model))
        self.quarantine |= self.telemetry.quarantine
        self.holding = Holding(self.telemetry, good, self.intervals, inventory)
        self.lifecycle = {i.workload_id for i in self.intervals}
        self.rows: dict[tuple[str, str], Row] = defaultdict(Row)
        self.fleet: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        self.idle: dict[str, Row] = defaultdict(Row)
        self.step = settings.window_seconds * 1000

    def run(self) -> Hour:
        windows = range(self.hour, self.hour + HOUR, self.step)
        timeline = {window: self.holding.moments(window) for window in windows}
        for moments in timeline.values():
            for moment in moments:
                self.allocate(moment)
        for uuid in sorted({uuid for uuid, _ in self.holding.devices}):
            self.use_of_board(uuid, timeline)
        for row in self.rows.values():
            for energy in row.modelled.values():
                row.units["energy"] = row.units.get("energy", 0) + half_even(energy)
        return Hour(self.usage_rows(), self.fleet_rows(), self.idle_rows(), self.quarantine)

    def allocate(self, moment: Moment) -> None:
        """A4 and the second half of A21: GPU-seconds of running workloads, matched with devices or not."""
        span = moment.end - moment.start
        for interval, devices in moment.running:
            left = interval.gpu_count
            self.row(interval.workload_id, None, interval)
            for device, units in self.units_on(interval, devices):
                left -= units
                model = self.telemetry.model[device]
                row = self.row(interval.workload_id, model, interval)
                row.gpu_ms += units * interval.fraction * span
                self.fleet[model]["matched"] += units * interval.fraction * span
                self.fleet[model]["lifecycle"] += units * interval.fraction * span
            if left > 0:
                model = interval.placed_class
                row = self.row(interval.workload_id, model, interval)
                row.gpu_ms += left * interval.fraction * span
                self.fleet[model]["unmatched"] += left * interval.fraction * span
                self.fleet[model]["lifecycle"] += left * interval.fraction * span
                self.without_device(row, interval, left, span)

    def row(self, workload_id: str, model: str | None, interval: Interval) -> Row:
        """The row of a workload and model, with the last interval that it took part in."""
        if model is None:
            return Row()
        row = self.rows[workload_id, model]
        if row.last is None or interval.start >= row.last.start:
            row.last = interval
        return row

    def units_on(self, interval: Interval, devices: list[Device]) -> list[tuple[Device, Fraction]]:
        """A17, A21: the units of `gpu_count` that each held device takes, in order."""
        left, taken = interval.gpu_count, []
        for position, device in enumerate(devices):
            last = position == len(devices) - 1
            units = left if last and interval.fraction < 1 else min(left, Fraction(1))
            taken.append((device, units))
            left -= units
        return taken

    def without_device(self, row: Row, interval: Interval, units: Fraction, span: int) -> None:
        """A20: a running workload's time with no visible device."""
        watts = self.settings.of_model(self.settings.class_watts, interval.placed_class)
        if watts is None:
            row.status["missing"] += units * span
            return
        row.status["estimated"] += units * span
        row.methods["modelled"] += units * span
        row.modelled[interval] += watts * units * span

    def use_of_board(self, uuid: str, timeline: dict[int, list[Moment]]) -> None:
        """A15, A19, A20, A28: what was used on a board, shared out to its holders."""
        devices = [d for d in self.holding.devices if d[0] == uuid]
        shares: dict[str, dict[tuple[str, str], Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        divided = False
        for window, moments in timeline.items():
            held = {d: any(m.holders[d] for m in moments) for d in devices}
            visible = [d for d in devices if self.holding.visible(d, window, held[d])]
            divided |= any(instance for _, instance in visible)
            slices = sum(self.telemetry.slices(d) for d in visible)
            pieces: list[tuple[int, int, Moment]] = []
            for moment in moments:
                same = pieces and all(pieces[-1][2].holders[d] == moment.holders[d] for d in devices)
                if same:
                    start, _, first = pieces.pop()
                    pieces.append((start, moment.end, first))
                else:
                    pieces.append((moment.start, moment.end, moment))
            for device in visible:
                model = self.telemetry.model[device]
                card = slices_of_card(model)
                part = Fraction(self.telemetry.slices(device), card) if device[1] else Fraction(1)
                of_board = Fraction(self.telemetry.slices(device), slices)
                look = Look(self, device, window, moments)
                for start, end, moment in pieces:
                    span = end - start
                    holders = moment.holders[device]
                    divided |= len(holders) > 1
                    self.fleet[model]["visible"] += span
                    self.fleet[model][self.state(moment, device)] += span
                    energy = look.energy(start, end)
                    for name in holders or [f"idle:{model}"]:
                        k = max(len(holders), 1)
                        key = (name, model)
                        row = self.rows[key] if holders else self.idle[model]
                        row.status[look.status] += span
                        for rung in look.rungs:
                            row.methods[rung] += span
                        if name not in self.lifecycle:
                            shares["time"][key] += part * span / k
                        if energy is not None:
                            shares["energy"][key] += energy * of_board / k
                        memory = look.shared("memory", name, moment)
                        if memory is not None:
                            shares["memory"][key] += memory * span
                        activity = look.shared("utilization", name, moment)
                        if activity is not None:
                            shares["activity"][key] += activity * part * span
        for unit, exact in shares.items():
            total = half_even(sum(exact.values(), Fraction(0)))
            names = {name: value for (name, _), value in exact.items()}
            parts = split(total, names, self.hour) if divided else {n: half_even(v) for n, v in names.items()}
            for name, model in exact:
                row = self.idle[model] if name == f"idle:{model}" else self.rows[name, model]
                if unit == "time":
                    row.gpu_ms += parts[name]
                else:
                    row.units[unit] = row.units.get(unit, 0) + parts[name]

    def state(self, moment: Moment, device: Device) -> str:
        """A18, A21: `unattributed` also where all holders are pods that belong to no deployment."""
        holders = moment.holders[device]
        if holders and all(self.unattributed(name) for name in holders):
            return "unattributed"
        return moment.state[device]

    def unattributed(self, name: str) -> bool:
        return name not in self.lifecycle and deployment_of(name, self.deployments) is None

    def usage_rows(self) -> list[dict[str, Any]]:
        found = []
        tenant: str | None
        for (name, model), row in sorted(self.rows.items()):
            if name in self.lifecycle:
                last = row.last
                assert last is not None
                tenant, deployment = last.tenant_id, last.deployment_id or name
                basis, klass = "lifecycle", last.placed_class
            else:
                own = deployment_of(name, self.deployments)
                tenant = own.owner_tenant_id if own else None
                deployment = own.deployment_id if own else name
                basis, klass = "samples", None
            found.append(
                {
                    "cluster": self.cluster,
                    "hour": self.hour,
                    "workload_id": name,
                    "gpu_model": model,
                    "tenant_id": tenant,
                    "deployment_id": deployment,
                    "placed_class": klass,
                    "basis": basis,
                    "gpu_seconds": published(row.gpu_ms / 1000, 3),
                    **units_of(row.units),
                    **{
                        f"{s}_seconds": published(row.status[s] / 1000, 3) for s in ("measured", "estimated", "missing")
                    },
                    "methods": ";".join(
                        f"{rung}={published(ms / 1000, 3):f}" for rung, ms in sorted(row.methods.items())
                    ),
                }
            )
        return found

    def fleet_rows(self) -> list[dict[str, Any]]:
        """A21, with its identity."""
        columns = ("visible", "held", "stale", "unattributed", "idle", "no_data", "lifecycle", "matched", "unmatched")
        found = []
        for model, row in sorted(self.fleet.items()):
            assert row["visible"] == sum(row[c] for c in columns[1:6]), "A21"
            assert row["lifecycle"] == row["matched"] + row["unmatched"], "A21"
            if any(row[c] for c in columns):
                values = {c: published(Fraction(row[c]) / 1000, 3) for c in columns}
                found.append({"cluster": self.cluster, "hour": self.hour, "gpu_model": model, **values})
        return found

    def idle_rows(self) -> list[dict[str, Any]]:
        """A27 before pricing: nobody's time, and that of pods without a deployment."""
        lines = dict(self.idle)
        for (name, model), row in self.rows.items():
            if self.unattributed(name):
                line = lines.setdefault(model, Row())
                line.gpu_ms += row.gpu_ms
                for unit, value in row.units.items():
                    line.units[unit] = line.units.get(unit, 0) + value
                for status, ms in row.status.items():
                    line.status[status] += ms
        found = []
        for model, line in sorted(lines.items()):
            units = units_of(line.units)
            del units["gpu_active_seconds"]
            flag = line.status["estimated"] > 0 or line.status["missing"] > 0
            seconds = published(Fraction(line.gpu_ms) / 1000, 3)
            key = {"cluster": self.cluster, "hour": self.hour, "gpu_model": model}
            found.append({**key, "gpu_seconds": seconds, **units, "estimated": flag})
        return found


def units_of(units: dict[str, int]) -> dict[str, Decimal | None]:
    """A28: published units of a row; null where no window is known (A20)."""
    active, memory, energy = (units.get(name) for name in ("activity", "memory", "energy"))
    return {
        "gpu_active_seconds": None if active is None else published(Fraction(active, 10**9), 3),
        "gpu_memory_gb_seconds": None if memory is None else published(Fraction(memory, 1024 * 1024 * 1000), 3),
        "energy_wh": None if energy is None else published(Fraction(energy, 3_600_000), 6),
    }


class Look:
    """What is known of one device in one window: values, rungs (A13) and status (A15)."""

    def __init__(self, hour: Accounting, device: Device, window: int, moments: list[Moment]) -> None:
        self.hour, self.device, self.window = hour, device, window
        self.telemetry = hour.telemetry
        self.step = hour.step
        self.held = any(m.holders[device] for m in moments)
        self.by_events = any(device in devices for m in moments for _, devices in m.running)
        self.board_held, self.board_by_events = self.held, self.by_events
        if BOARD_HOLDERS:
            self.board_held = any(names for m in moments for d, names in m.holders.items() if d[0] == device[0])
            self.board_by_events = any(d[0] == device[0] for m in moments for _, devices in m.running for d in devices)
        self.watts = self.class_watts(moments)
        self.values: dict[str, tuple[str, int | None]] = {}
        for quantity in ("utilization", "memory", "power"):
            self.values[quantity] = self.by_rung(quantity)
        self.rungs = {rung for rung, _ in (self.values["utilization"], self.values["memory"], self.energy_rungs()[0])}
        self.rungs |= self.energy_rungs()[1]
        self.rungs -= {"measured", "missing", ""}
        self.status = self.worst()

    def class_watts(self, moments: list[Moment]) -> Fraction | None:
        """A13 rung 5, A20: the model's watts, else those of the class on a whole device with one holder."""
        table, settings = self.hour.settings.class_watts, self.hour.settings
        watts = settings.of_model(table, self.telemetry.model[self.device])
        if watts is not None or self.device[1] or len({n for m in moments for n in m.holders[self.device]}) != 1:
            return watts
        for moment in moments:
            for interval, devices in moment.running:
                units = dict(self.hour.units_on(interval, devices)).get(self.device)
                one = settings.of_model(table, interval.placed_class)
                if units is not None:
                    return None if one is None else one * units
        return None

    def by_rung(self, quantity: str) -> tuple[str, int | None]:
        """A13: the rung and the window's value, a whole number (A28)."""
        rung, value = self.telemetry.value(self.device, quantity, self.window)
        held, events = (self.board_held, self.board_by_events) if quantity == "power" else (self.held, self.by_events)
        if rung == "one_side":
            rung, value = ("held", value) if events else ("missing", None)
        elif rung == "never":
            watts = self.watts if quantity == "power" and held else None
            rung, value = ("missing", None) if watts is None else ("modelled", watts * 1000)
        return rung, None if value is None else half_even(value)

    def energy_rungs(self) -> tuple[tuple[str, int | None], set[str]]:
        """The rung of power where it makes energy in this window, and `counter` where a gap is bridged (A15)."""
        spans = self.telemetry.counter_spans(self.device, self.window, self.window + self.step)
        counter = self.telemetry.value(self.device, "energy", self.window)[0] in {"linear", "profile"}
        bridged = {"counter"} if counter and any(rise is not None for *_, rise in spans) else set()
        return (self.values["power"] if any(rise is None for *_, rise in spans) else ("", 0)), bridged

    def energy(self, start: int, end: int) -> int | None:
        """A20: the board's energy over a piece, in mJ; None where it is unknown (choice 11)."""
        power, spans = self.values["power"][1], self.telemetry.counter_spans(self.device, start, end)
        unsound = sum(high - low for low, high, rise in spans if rise is None)
        if unsound and power is None:
            return None
        return sum(rise or 0 for *_, rise in spans) + half_even(Fraction((power or 0) * unsound, 1000))

    def worst(self) -> str:
        """A15: the window's status."""
        readings = self.telemetry.readings
        energy = self.energy(self.window, self.window + self.step)
        known = {
            "utilization": (self.values["utilization"][1], readings(self.device, "utilization")),
            "memory": (self.values["memory"][1], readings(self.device, "memory")),
            "energy": (energy, readings(self.device, "power") or readings(self.device, "energy")),
        }
        counting = [value for value, read in known.values() if value is not None or read]
        if not counting or any(value is None for value in counting):
            return "missing"
        silent = self.telemetry.is_gap(self.device, self.window)
        return "estimated" if silent or self.rungs - {"counter"} else "measured"

    def shared(self, quantity: str, name: str, moment: Moment) -> Fraction | None:
        """A19: a holder's part of memory or utilization: per-process readings, else 1/k."""
        holders = moment.holders[self.device]
        if len(holders) > 1:
            for metric in (MEMORY,) if quantity == "memory" else (PROF, UTIL):
                own = {holder: self.process(metric, holder, moment) for holder in holders}
                if all(v is not None for v in own.values()) and any(own.values()):
                    return Fraction(own[name])  # type: ignore[arg-type]
        value = self.values[quantity][1]
        return None if value is None else Fraction(value, max(len(holders), 1))

    def process(self, metric: str, holder: str, moment: Moment) -> int | None:
        """The mean of a holder's per-process readings in the window, by the pod that it has at the piece's start."""
        pairs = {i.pair for i, _ in moment.running if i.workload_id == holder}
        if holder not in self.hour.lifecycle:
            pairs = {tuple(holder.split("/", 1))}  # type: ignore[arg-type]
        found = [
            value
            for at, rows in self.telemetry.process[self.device, metric].items()
            if self.window <= at < self.window + self.step
            for pair, value in rows.items()
            if pair in pairs
        ]
        return half_even(sum(found, Fraction(0)) / len(found)) if found else None


def account(
    cluster: str,
    hour: int,
    samples: list[Sample],
    events: list[Event],
    deployments: list[Deployment],
    inventory: list[InventoryEntry],
    now: int,
    settings: Settings,
) -> Hour:
    """One hour (start in ms) by the rules A1-A21, A28 and A29."""
    return Accounting(cluster, hour, samples, events, deployments, inventory, now, settings).run()
