"""The accounting rules a second time: slow, plain, and written from their text alone.

One hour of usage, idle lines before pricing, fleet identity and quarantine (A1-A21, A28, A29, A36), from plain Python
data: numbers are `Fraction`, times are integer milliseconds, and every rule is one function with its number. Nothing
here is shared with the pipeline, so that the two agree only where both follow the text. What does NOT belong here:
prices, tokens, the ledger (A22-A35), files, and anything that is fast and therefore hard to read.

AMBIGUITIES (the text allows more than one reading; the choice taken here)

1.  A7/A10: copies of a reading are rejected one by one, and the highest *valid* one is the reading.
2.  A9/A11: utilization between windows runs through the readings of the source that each window chose.
3.  A11: a window is a gap *of the device* by its instants of any kind (rejected ones count); `silent`, `no_data`, A14
    and "measured" in A17 (c) and (d) mean this gap. Gaps of a quantity are found by its own valid readings.
4.  A13/A19: a board's power and counter are judged with the scrape interval of the device that is looked at.
5.  A13 rung 5: the class's watts are taken for a whole device with one holder over the window, times the units of
    `gpu_count` that it has there at the window's first moment of being held.
6.  A14: "the readings on both sides" are the device's nearest instants with their own labels.
7.  A17: pods that A14 keeps in a gap also share with a workload that holds the silent device by name.
8.  A17 (b): of all offers (a device, the nearest window in which lacking workloads held it by (a)) the one with the
    nearest window goes first, on a tie the earlier window, then the order of (a); all lacking workloads of that window
    take it together; what a workload took counts for its next offer. A device that a pod without events holds by its
    label in a measured window is not offered, (d) can reach it.
9.  A17: whether workloads take a device whole is decided after (a), (b), (c) and (d), moment by moment. Their units
    count in GPUs (`class_fraction` times units) against the device's part of the card; more than it is whole too.
10. A17/A21: a device that is neither read within reach nor in the inventory does not exist, named or not.
11. A18: of equally specific deployments the lowest id wins. Pods beside workloads have an equal part of the time that
    the workloads' units leave; memory, activity and energy are 1/k of all holders.
12. A21: "never read together with them" is asked of each other device of the board by itself. Time shared by an
    attributed holder and an unattributed pod is `held`.
13. A21: a device that is visible only while it is held is visible in those pieces of a window alone, and a board's
    energy is divided by the slices visible in the piece.
14. A21: once a row of the inventory has ended and none is in force, the 24 hours do not apply, also after readings
    that came after the end; readings themselves still show the device. A row that names a whole board stands for its
    instances where it ends or is in force, but makes none of them visible by itself.
15. A21: "its node" is that of the device's last instant; other devices are all others of it, instances too.
16. A19: an instance whose profile nobody told (it is only in the inventory) is one that is not understood. "The
    others" are the instances that are visible in the window apart from being held.
17. A19: per-process rows of the utilization metric that has them are used, also where the device's value is of the
    other one; they count beside a *valid* row without a pod; a workload's pod is that of the piece's first moment.
    Copies are told instant by instant.
18. A20: all milliseconds of a piece that power decides are rounded to mJ once, together.
19. A20: equal readings stand still together over their whole run, also across the hour's edges; the first and the last
    belong to it, and so do power readings at their instants.
20. A11: the distances within all hours in reach are those between two instants of one hour, added up for each target.
21. A7: within a window the earliest instant with a profile (a model) tells it, at one instant the smallest spelling.
22. Section 2: the spellings of the hour are those read in its windows (or in the nearer reading's place), of inventory
    rows in force at the start of one, and the `placed_class` of intervals that run in it.
23. A28: a workload's rows on one board are weights of their own with the workload_id as share_id; equal remainders of
    one workload go in the order of model, tenant, deployment. A window is also cut where a holder's tenant or deployment
    changes.
24. A36: what is given of GPU-seconds is whole milliseconds, too: `min(idle line, unmatched rounded half-even)`, divided
    by A29. Where the line gives all that is asked, the rest below a millisecond is on no row. The device time of what
    is pooled is `gpu_count` x seconds in proportion. Nodes are those of the device's readings in the hour (else of the
    nearer one) and of the inventory rows in force.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from . import names

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

T = TypeVar("T")
Device = tuple[str, str]
Pair = tuple[str, str]
# A usage row: workload, model, tenant, deployment (A4); an idle line has neither tenant nor deployment.
Key = tuple[str, str, str, str]
Readings = list[tuple[int, Fraction]]


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
    """A deployment, as far as A18 needs it; it counts for the hours that begin in [start, end) (ms; None is open)."""

    deployment_id: str
    owner_tenant_id: str
    namespace: str | None = None
    pod_pattern: str | None = None
    start: int | None = None
    end: int | None = None

    def counts(self, hour: int) -> bool:
        return (self.start is None or self.start <= hour) and (self.end is None or hour < self.end)


@dataclass(frozen=True)
class InventoryEntry:
    """A device that is known to be there from `start` to `end` (ms; None is open)."""

    gpu_uuid: str
    model: str
    start: int
    end: int | None = None
    node: str | None = None

    @property
    def device(self) -> Device:
        return device_of_name(self.gpu_uuid)

    def lists(self, device: Device) -> bool:
        """Whether the row names the device, or the whole board of an instance (choice 14)."""
        return self.device in {device, (device[0], "")}

    def in_force(self, at: int) -> bool:
        return self.start <= at and (self.end is None or at < self.end)


@dataclass(frozen=True)
class Settings:
    """The tables of the rules' section 2; `card_limits` is model -> (W, GB)."""

    window_seconds: int = 15
    models: dict[str, str] = field(default_factory=dict)
    card_limits: dict[str, tuple[Fraction | None, Fraction | None]] = field(default_factory=dict)
    class_watts: dict[str, Fraction] = field(default_factory=dict)
    class_fraction: dict[str, Fraction] = field(default_factory=dict)
    mig_slices: dict[str, int] = field(default_factory=dict)
    exporter_pod: str = "dcgm-exporter"
    honor_labels: bool = False

    def of_model(self, table: dict[str, T], name: str) -> T | None:
        return names.of_model(table, name, self.models)

    def identity(self, name: str) -> str:
        return names.identity(name, self.models)


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
    deployment_id: str
    pair: Pair | None
    named: frozenset[Device]
    node: str | None

    @property
    def most_devices(self) -> int:
        """How many devices it may hold (A17)."""
        return math.ceil(self.gpu_count)

    def covers(self, start: int, end: int) -> bool:
        return self.start <= start and (self.end is None or end <= self.end)

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and (self.end is None or self.end > start)


def half_even(value: Fraction) -> int:
    """A28: a whole number, rounded half-even."""
    return round(value)


def published(value: Fraction, places: int) -> Decimal:
    """A28: a decimal of so many places, rounded half-even once."""
    return Decimal(half_even(value * 10**places)).scaleb(-places)


def hour_text(at: int) -> str:
    """An hour as A29 writes it."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def split(total: int, weights: dict[Key, Fraction], hour: int) -> dict[Key, int]:
    """A29: the largest-remainder method on whole units; the share_id is the key's first part (choice 23)."""
    whole = sum(weights.values())
    if whole == 0:
        return dict.fromkeys(weights, 0)
    exact = {key: total * weight / whole for key, weight in weights.items()}
    parts = {key: math.floor(value) for key, value in exact.items()}

    def order(key: Key) -> tuple[Fraction, str, Key]:
        digest = hashlib.sha256(f"{key[0]}|{hour_text(hour)}".encode()).hexdigest()
        return parts[key] - exact[key], digest, key

    for key in sorted(exact, key=order)[: total - sum(parts.values())]:
        parts[key] += 1
    return parts


# Lifecycle events -----------------------------------------------------------------------------------------------------


def screened(events: list[Event], now: int) -> tuple[list[Event], Counter[tuple[str, str, str]]]:
    """A5: the events that count, ordered by A3, and how often (source, key, reason) of the others."""
    quarantine: Counter[tuple[str, str, str]] = Counter()
    first: dict[str, Event] = {}
    for event in events:
        if event.event_id not in first:
            first[event.event_id] = event
        elif event != first[event.event_id]:
            quarantine["workload_events", event.event_id, "conflict"] += 1
    good = []
    open_interval: dict[str, bool] = defaultdict(bool)
    for event in sorted(first.values(), key=lambda e: (e.at, e.event_id)):
        billable = event.to_state == "running"
        if event.at > now + 300_000:
            quarantine["workload_events", event.event_id, "future"] += 1
        elif billable and (event.gpu_count is None or event.gpu_count <= 0):
            quarantine["workload_events", event.event_id, "gpu_count"] += 1
        elif event.from_state == "running" and not billable and not open_interval[event.workload_id]:
            quarantine["workload_events", event.event_id, "no_start"] += 1
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
        node: str | None = None
        for event, after in zip(own, [*own[1:], None], strict=True):
            if event.namespace and event.pod:
                pair = (event.namespace, event.pod)
            node = event.node or node
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
                    fraction=settings.of_model(settings.class_fraction, klass) or Fraction(1),
                    tenant_id=event.tenant_id,
                    deployment_id=event.deployment_id or workload_id,
                    pair=pair,
                    named=frozenset(device_of_name(name) for name in event.gpu_uuids or ()),
                    node=node,
                )
            )
    return found


# Device samples -------------------------------------------------------------------------------------------------------


def workload_pairs(labels: dict[str, str], with_events: AbstractSet[Pair], settings: Settings) -> list[Pair]:
    """A8: namespace and pod of each group of labels that names one, the exporter's own left out."""
    groups = [("exported_namespace", "exported_pod"), ("namespace", "pod"), ("pod_namespace", "pod_name")]
    found = []
    for namespace, pod in groups[1:2] if settings.honor_labels else groups:
        pair = labels.get(namespace, ""), labels.get(pod, "")
        if pair[1] and (settings.exporter_pod not in pair[1] or pair in with_events):
            found.append(pair)
    return found


def label_pair(
    labels: dict[str, str], with_events: frozenset[Pair] = frozenset(), settings: Settings | None = None
) -> Pair | None:
    """A8: the workload that a row names, by the first group that names one."""
    return next(iter(workload_pairs(labels, with_events, settings or Settings())), None)


def node_of(labels: dict[str, str]) -> str:
    """A8: the node of a row."""
    return next(
        (labels[n] for n in ("Hostname", "hostname", "node", "kubernetes_node", "instance") if labels.get(n)), ""
    )


def rejection(metric: str, value: float, limits: tuple[Fraction | None, Fraction | None] | None) -> str | None:
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
    watts, gigabytes = limits or (None, None)
    if metric == POWER and watts is not None and exact > Fraction(3, 2) * watts:
        return "above_limit"
    if metric == MEMORY and gigabytes is not None and exact > 1024 * gigabytes:
        return "above_limit"
    return None


def slices_of_profile(profile: str | None) -> int | None:
    """A19: the digit before `g`; None where there is none."""
    found = re.search(r"(\d+)g\b", profile or "", re.IGNORECASE)
    return int(found[1]) or None if found else None


def order_of(device: Device) -> tuple[str, int]:
    """A17: by uuid, the whole device first, instances by number."""
    return device[0], int(device[1]) if device[1] else -1


class Telemetry:
    """All readings that count for one hour (A7-A12), stitched per device."""

    def __init__(self, samples: list[Sample], hour: int, settings: Settings, with_events: set[Pair]) -> None:
        self.hour, self.settings = hour, settings
        self.window_ms = settings.window_seconds * 1000
        self.quarantine: Counter[tuple[str, str, str]] = Counter()
        self.findings: set[tuple[str, str]] = set()
        # What the rows of an instant say of a device.
        self.labels: dict[Device, dict[int, set[Pair]]] = defaultdict(lambda: defaultdict(set))
        self.models: dict[Device, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.profiles: dict[Device, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.nodes: dict[Device, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.targets: dict[Device, dict[Pair, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.values: dict[tuple[Device, str], dict[int, Fraction]] = defaultdict(dict)
        self.board: dict[tuple[str, str], dict[int, Fraction]] = defaultdict(dict)
        self.process: dict[tuple[Device, str, Pair], dict[int, Fraction]] = defaultdict(dict)
        self._cache: dict[Any, Any] = {}
        rows: dict[tuple[Device, str, int], list[tuple[Pair | None, Fraction]]] = defaultdict(list)
        for sample in samples:
            metric = NAMES.get(sample.metric)
            if metric is None or not hour - DAY <= sample.at < hour + HOUR + DAY:
                continue
            self.read(sample, metric, rows, with_events)
        for (device, metric, at), values in rows.items():
            self.stitch(device, metric, at, values)
        self.instants = {device: sorted(at) for device, at in self.labels.items()}

    def read(
        self,
        sample: Sample,
        metric: str,
        rows: dict[tuple[Device, str, int], list[tuple[Pair | None, Fraction]]],
        with_events: set[Pair],
    ) -> None:
        """A7, A8, A10: one row of a device, or its place in the quarantine."""
        labels, at = sample.labels, sample.at
        in_hour = self.hour <= at < self.hour + HOUR
        uuid = labels.get("UUID") or labels.get("uuid")
        if not uuid:
            if in_hour:
                self.quarantine["dcgm", f"{node_of(labels)}/{labels.get('gpu', '')}:{sample.metric}", "no_uuid"] += 1
            return
        device, model = (uuid, labels.get("GPU_I_ID", "")), labels.get("modelName", "")
        pairs = workload_pairs(labels, with_events, self.settings)
        pair = pairs[0] if pairs else None
        if len(set(pairs)) > 1 and in_hour:
            self.findings.add(("two_pods", " ".join(sorted({"/".join(each) for each in pairs}))))
        self.labels[device][at] |= {pair} if pair else set()
        self.models[device][at] |= {model} if model else set()
        self.profiles[device][at] |= {labels["GPU_I_PROFILE"]} if labels.get("GPU_I_PROFILE") else set()
        self.nodes[device][at].add(node_of(labels))
        self.targets[device][labels.get("job", ""), labels.get("instance", "")].add(at)
        reason = rejection(metric, sample.value, self.limits(model))
        if reason is None:
            rows[device, metric, at].append((pair, Fraction(Decimal(repr(sample.value))) * SCALE[metric]))
        elif in_hour:
            self.quarantine["dcgm", f"{'/'.join(filter(None, device))}:{sample.metric}", reason] += 1

    def stitch(self, device: Device, metric: str, at: int, values: list[tuple[Pair | None, Fraction]]) -> None:
        """A7: the highest of several values is the reading; A19: what is a process's own, and what a copy."""
        highest = max(value for _, value in values)
        self.values[device, metric][at] = highest
        if metric in {POWER, ENERGY}:
            seen = self.board[device[0], metric]
            seen[at] = max(highest, seen.get(at, highest))
            return
        bare = [value for pair, value in values if pair is None]
        own = {pod: max(value for pair, value in values if pair == pod) for pod, _ in values if pod}
        copies = len(own) > 1 and bare and set(own.values()) == {max(bare)} and max(bare) != 0
        if bare and not copies:
            for pod, value in own.items():
                self.process[device, metric, pod][at] = value

    def limits(self, model: str) -> tuple[Fraction | None, Fraction | None] | None:
        """Power and memory of a card, by any of its model's names."""
        if ("limits", model) not in self._cache:
            self._cache["limits", model] = self.settings.of_model(self.settings.card_limits, model)
        found: tuple[Fraction | None, Fraction | None] | None = self._cache["limits", model]
        return found

    @cached_property
    def devices(self) -> list[Device]:
        return sorted(self.instants, key=order_of)

    @cached_property
    def utilization(self) -> dict[Device, dict[int, Fraction]]:
        """A9: in each window the readings of the first source with a valid one."""
        chosen: dict[Device, dict[int, Fraction]] = {}
        for device in self.devices:
            prof, util = self.values[device, PROF], self.values[device, UTIL]
            taken = {at // self.window_ms for at in prof}
            chosen[device] = {**{at: v for at, v in util.items() if at // self.window_ms not in taken}, **prof}
        return chosen

    def readings(self, device: Device, quantity: str) -> Readings:
        """Valid readings of a device and quantity, in order; power and energy are the board's (A19)."""
        key = ("readings", device, quantity)
        if key not in self._cache:
            found = {
                "utilization": self.utilization.get(device, {}),
                "memory": self.values[device, MEMORY],
                "power": self.board[device[0], POWER],
                "energy": self.board[device[0], ENERGY],
            }[quantity]
            self._cache[key] = sorted(found.items())
        ordered: Readings = self._cache[key]
        return ordered

    def scrape_interval(self, device: Device, at: int) -> int:
        """A11: the device's scrape interval in the hour of `at`, in ms."""
        start = at // HOUR * HOUR
        if ("scrape", device, start) not in self._cache:
            targets = [sorted(instants) for instants in self.targets.get(device, {}).values()]
            within = [[t for t in instants if start <= t < start + HOUR] for instants in targets]
            commonest = [self.commonest_distance(instants) for instants in within]
            if not any(commonest):
                commonest = [self.commonest_distance(instants) for instants in targets]
            known = [seconds for seconds in commonest if seconds is not None]
            window = self.settings.window_seconds
            self._cache["scrape", device, start] = max(min([*known, 300]), window) * 1000 if known else window * 1000
        found: int = self._cache["scrape", device, start]
        return found

    @staticmethod
    def commonest_distance(instants: list[int]) -> int | None:
        """A11: the commonest of at least 10 distances within hours, the smallest of equals; else None (choice 20)."""
        distances = Counter(
            half_even(Fraction(b - a, 1000)) for a, b in itertools.pairwise(instants) if a // HOUR == b // HOUR
        )
        return min(distances, key=lambda d: (-distances[d], d)) if distances.total() >= 10 else None

    def around(self, moments: list[Any], window: int) -> tuple[int | None, range, int | None]:
        """Of instants, or of readings: the last before a window, those in it, the first after it (indexes)."""
        edges = (window, window + self.window_ms)
        key = None if moments and isinstance(moments[0], int) else lambda reading: reading[0]
        low, high = (bisect.bisect_left(moments, edge, key=key) for edge in edges)
        return low - 1 if low else None, range(low, high), high if high < len(moments) else None

    def nearer(self, before: int, after: int, window: int) -> int:
        """The nearer of two instants around a window, by its midpoint; on a tie the earlier."""
        return before if 2 * window + self.window_ms <= before + after else after

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
        return self.labels[device][self.nearer(instants[before], instants[after], window)]

    def told(self, told: dict[Device, dict[int, set[str]]], device: Device, window: int) -> set[str]:
        """A7: what the window's reading tells (its earliest instant that tells anything), else the nearer one."""
        key = ("told", id(told), device)
        if key not in self._cache:
            self._cache[key] = sorted(at for at, found in told.get(device, {}).items() if found)
        instants: list[int] = self._cache[key]
        before, inside, after = self.around(instants, window)
        if inside:
            at = instants[inside[0]]
        elif before is not None and after is not None:
            at = self.nearer(instants[before], instants[after], window)
        elif before is not None or after is not None:
            at = instants[before if before is not None else after or 0]
        else:
            return set()
        return told[device][at]

    def sides(self, device: Device, window: int) -> tuple[set[Pair], set[Pair]]:
        """A14: the labels of the readings on both sides of a window (choice 6)."""
        instants = self.instants.get(device, [])
        before, _, after = self.around(instants, window)
        return (
            set() if before is None else self.labels[device][instants[before]],
            set() if after is None else self.labels[device][instants[after]],
        )

    def recut(self, device: Device, window: int) -> bool:
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

    def read_within_a_day(self, device: Device, window: int) -> bool:
        """A21: read in the 24 hours before the window."""
        return any(window - DAY <= at < window for at in self.instants.get(device, []))

    def last_instant(self, device: Device) -> int | None:
        """The device's last reading within reach."""
        return self.instants[device][-1] if device in self.instants else None

    def outlived(self, device: Device) -> bool:
        """A21: after its last reading, readings of other devices of its node span 10 minutes."""
        if ("outlived", device) not in self._cache:
            last = self.instants[device][-1]
            nodes = self.nodes[device][last]
            later = [
                at
                for other in self.devices
                if other != device
                for at, found in self.nodes[other].items()
                if at > last and found & nodes
            ]
            self._cache["outlived", device] = bool(later) and max(later) - min(later) >= TEN_MINUTES
        return bool(self._cache["outlived", device])

    def at_window(self, readings: Readings, device: Device, window: int) -> tuple[str, Fraction | None]:
        """A11 and A13 rungs 2 and 3: (`measured`, `linear`, `profile`, `one_side`, `never`) and the value."""
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

    def value(self, device: Device, quantity: str, window: int) -> tuple[str, Fraction | None]:
        return self.at_window(self.readings(device, quantity), device, window)

    def own_value(self, device: Device, metric: str, pair: Pair, window: int) -> int | None:
        """A19: a process's own reading of a measured window, a whole number (A28); None in its gaps."""
        key = ("own", device, metric, pair)
        if key not in self._cache:
            self._cache[key] = sorted(self.process.get((device, metric, pair), {}).items())
        rung, value = self.at_window(self._cache[key], device, window)
        return half_even(value) if rung == "measured" and value is not None else None

    def stood_still(self, device: Device) -> set[int]:
        """A20: the instants of counter readings that begin a span in which the counter stood still (choice 19)."""
        key = ("still", device[0])
        if key not in self._cache:
            found: set[int] = set()
            power = self.readings(device, "power")
            for _, group in itertools.groupby(self.readings(device, "energy"), key=lambda reading: reading[1]):
                run = [at for at, _ in group]
                drawn = any(run[0] <= at <= run[-1] and watts > 0 for at, watts in power)
                if run[-1] - run[0] > 120_000 and drawn:
                    found |= set(run[:-1])
            self._cache[key] = found
        still: set[int] = self._cache[key]
        return still

    def counter_spans(self, device: Device, model: str, start: int, end: int) -> list[tuple[int, int, int | None]]:
        """A20: [start, end) in spans (from, to, rise in mJ, or None where power decides)."""
        watts, _ = self.limits(model) or (None, None)
        readings, still = self.readings(device, "energy"), self.stood_still(device)
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
            bad = high < low or left in still
            bad |= watts is not None and high - low > Fraction(3, 2) * watts * (right - left)
            slope = (high - low) / (right - left)
            rise = half_even(low + slope * (b - left)) - half_even(low + slope * (a - left))
            spans.append((a, b, None if bad else rise))
        if end > readings[-1][0]:
            spans.append((max(start, readings[-1][0]), end, None))
        return spans


# Cards ----------------------------------------------------------------------------------------------------------------


class Cards:
    """Which model each device is in the hour, how models are named, and what a card's slices are (section 2, A7, A19)."""

    def __init__(self, telemetry: Telemetry, inventory: list[InventoryEntry], intervals: list[Interval]) -> None:
        self.telemetry, self.settings, self.inventory = telemetry, telemetry.settings, inventory
        hour = telemetry.hour
        self.windows = range(hour, hour + HOUR, telemetry.window_ms)
        listed = {entry.device for entry in inventory}
        self.devices = sorted({*telemetry.devices, *listed}, key=order_of)
        self.spellings = {i.placed_class for i in intervals if i.placed_class and i.overlaps(hour, hour + HOUR)}
        self.spellings |= {e.model for e in inventory if any(e.in_force(w) for w in self.windows)}
        for device in telemetry.devices:
            self.spellings |= {
                name for at, told in telemetry.models[device].items() if hour <= at < hour + HOUR for name in told
            }
            self.spellings |= {name for w in self.windows for name in telemetry.told(telemetry.models, device, w)}
        self._models = {device: self.named(self.most_of_the_hour(device)) for device in self.devices}

    def most_of_the_hour(self, device: Device) -> str:
        """A7: the model of most of the device's windows, on a tie the earlier one (choice 21)."""
        told = [self.told(device, window) for window in self.windows]
        count = Counter(self.settings.identity(name) for name in told)
        most = max(count, key=lambda identity: count[identity])  # the first of equals is the earlier one
        return next(name for name in told if self.settings.identity(name) == most)

    def told(self, device: Device, window: int) -> str:
        """A device's model in one window, by its readings, else by the inventory."""
        found = self.telemetry.told(self.telemetry.models, device, window)
        if found:
            return min(found)
        rows = [entry for entry in self.inventory if entry.lists(device)]
        in_force = [entry for entry in rows if entry.in_force(window)]
        return next((entry.model for entry in [*in_force, *rows]), "")

    def named(self, name: str) -> str:
        """Section 2: the model's name as in `models`, else by the smallest spelling of the hour."""
        known = names.platform_name(name, self.settings.models)
        return known if known is not None else min(self.alike(name))

    def alike(self, name: str) -> set[str]:
        """All spellings of the hour that are this model."""
        return {name, *(s for s in self.spellings if self.settings.identity(s) == self.settings.identity(name))}

    def model(self, device: Device) -> str:
        return self._models[device]

    def slices_of_card(self, device: Device) -> int:
        """A19: MIG slices of the whole card; 7 and a finding for a MIG card that no table has."""
        name, models = self.model(device), self.settings.models
        tables = {n for row in models.items() for n in row if self.settings.identity(n) == self.settings.identity(name)}
        found = names.slices_of_card(self.alike(name) | tables, self.settings.mig_slices)
        if found is None and device[1]:
            self.telemetry.findings.add(("unknown_card", name))
        return found or 7

    def profile(self, device: Device, window: int) -> int | None:
        """A7, A19: an instance's slices by the profile that the window tells; None where it is not understood."""
        found = self.telemetry.told(self.telemetry.profiles, device, window)
        return slices_of_profile(min(found)) if found else None


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

    def __init__(self, telemetry: Telemetry, cards: Cards, with_events: set[Pair], intervals: list[Interval]) -> None:
        self.telemetry, self.cards, self.with_events, self.intervals = telemetry, cards, with_events, intervals
        self.inventory, self.devices = cards.inventory, cards.devices
        self.step = telemetry.window_ms
        self.open_holes = False  # A16
        self._cache: dict[Any, Any] = {}

    def labels(self, device: Device, window: int) -> set[Pair]:
        key = ("labels", device, window)
        if key not in self._cache:
            self._cache[key] = self.telemetry.window_labels(device, window)
        found: set[Pair] = self._cache[key]
        return found

    def recut(self, device: Device, window: int) -> bool:
        key = ("recut", device, window)
        if key not in self._cache:
            self._cache[key] = self.telemetry.recut(device, window)
        return bool(self._cache[key])

    def by_a(self, interval: Interval, window: int) -> list[Device]:
        """A17 (a): the devices that a running interval holds in a window, at most so many, in order."""
        key = ("by_a", id(interval), window)
        if key not in self._cache:
            found = [
                device
                for device in self.devices
                if (interval.pair in self.labels(device, window) or device in interval.named)
                and not self.recut(device, window)
            ]
            self._cache[key] = found[: interval.most_devices]
        held: list[Device] = self._cache[key]
        return held

    def windows_by_a(self, interval: Interval, device: Device) -> list[int]:
        """The windows within reach (A12) in which the interval holds the device by (a)."""
        key = ("windows", id(interval), device)
        if key not in self._cache:
            start, end = self.telemetry.hour - DAY, self.telemetry.hour + HOUR + DAY
            if device not in interval.named:
                instants = self.telemetry.instants.get(device, [])
                if not instants:
                    return []
                start, end = max(start, instants[0]), min(end, instants[-1] + 1)
            start = max(start, interval.start) // self.step * self.step
            end = end if interval.end is None else min(end, interval.end)
            self._cache[key] = [w for w in range(start, end, self.step) if device in self.by_a(interval, w)]
        found: list[int] = self._cache[key]
        return found

    def nearest(self, interval: Interval, device: Device, window: int) -> int | None:
        """The nearest window in which the interval holds the device by (a); on a tie the earlier."""
        windows = self.windows_by_a(interval, device)
        at = bisect.bisect_left(windows, window)
        return min(windows[max(at - 1, 0) : at + 1], key=lambda w: (abs(w - window), w), default=None)

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
        running = [i for i in self.intervals if i.covers(start, end)]
        holds: dict[int, list[Device]] = {id(i): list(self.by_a(i, window)) for i in running}
        here = [d for d in self.devices if not self.recut(d, window)]
        measured = {d: not self.telemetry.is_gap(d, window) for d in here}
        pods: dict[Device, set[Pair]] = {d: set() for d in self.devices}
        for device in here:
            by_label = self.pods(self.labels(device, window))
            pods[device] = by_label if measured[device] else self.kept(device, window)
        free = [d for d in here if not any(d in held for held in holds.values()) and not (measured[d] and pods[d])]
        self.share_by_b(running, holds, free, window)
        for device in free:
            if measured[device] and not any(device in held for held in holds.values()):
                pods[device] = self.over_a_hole(device, window)
        self.share_by_d(running, holds, [d for d in here if measured[d]], window)
        devices_of = [(i, sorted(holds[id(i)], key=order_of)) for i in running]
        for device in here:
            taken = any(device in held for _, held in devices_of)
            if pods[device] and taken and self.units_left(device, window, devices_of) <= 0:
                for namespace, pod in pods[device]:
                    self.telemetry.findings.add(("uninvited_pod", f"{namespace}/{pod}"))
                pods[device] = set()
        holders = {
            d: sorted({i.workload_id for i in running if d in holds[id(i)]} | {f"{n}/{p}" for n, p in pods[d]})
            for d in self.devices
        }
        states = {d: "held" if holders[d] else self.nobody(d, window) for d in self.devices}
        return Moment(window, start, end, holders, states, devices_of)

    def share_by_b(
        self, running: list[Interval], holds: dict[int, list[Device]], free: list[Device], window: int
    ) -> None:
        """A17 (b): devices that nobody holds by (a) go to workloads that lack some, the nearest window first."""
        left = list(free)
        while True:
            offers = []
            for device in left:
                for interval in running:
                    near = self.nearest(interval, device, window)
                    if near is not None and len(holds[id(interval)]) < interval.most_devices:
                        offers.append((abs(near - window), near, order_of(device), device))
            if not offers:
                return
            _, near, _, device = min(offers)
            for interval in running:
                if near in self.windows_by_a(interval, device) and len(holds[id(interval)]) < interval.most_devices:
                    holds[id(interval)].append(device)
                    self.open_holes |= not any(w > window for w in self.windows_by_a(interval, device))
            left.remove(device)

    def share_by_d(
        self, running: list[Interval], holds: dict[int, list[Device]], measured: list[Device], window: int
    ) -> None:
        """A17 (d): a workload that still lacks devices shares those that it held within 10 minutes."""
        for interval in running:
            offers = []
            for device in measured:
                near = self.nearest(interval, device, window)
                if device not in holds[id(interval)] and near is not None and abs(near - window) <= TEN_MINUTES:
                    offers.append((abs(near - window), near, order_of(device), device))
            room = interval.most_devices - len(holds[id(interval)])
            for *_, device in sorted(offers)[: max(room, 0)]:
                holds[id(interval)].append(device)
                self.open_holes |= not any(w > window for w in self.windows_by_a(interval, device))

    def units_on(self, interval: Interval, devices: list[Device]) -> list[tuple[Device, Fraction]]:
        """A17, A21: the units of `gpu_count` that each held device takes, in order."""
        left, taken = interval.gpu_count, []
        for position, device in enumerate(devices):
            last = position == len(devices) - 1
            units = left if last and interval.fraction < 1 else min(left, Fraction(1))
            taken.append((device, units))
            left -= units
        return taken

    def units_left(self, device: Device, window: int, running: list[tuple[Interval, list[Device]]]) -> Fraction:
        """A17, A18: what running workloads leave of a device, in GPUs (choice 9)."""
        taken = sum(
            (
                units * interval.fraction
                for interval, devices in running
                for each, units in self.units_on(interval, devices)
                if each == device
            ),
            Fraction(0),
        )
        return max(self.size(device, window) - taken, Fraction(0))

    def nobody(self, device: Device, window: int) -> str:
        """A17, last sentence but one: what a moment is that nobody holds."""
        if self.labels(device, window) & self.with_events:
            return "stale"
        if not self.telemetry.is_gap(device, window):
            return "idle"
        return "unattributed" if self.between_labels(device, window) else "no_data"

    def visible(self, device: Device, window: int, held: bool) -> bool:
        """A21: whether a device is visible in a window, or in a piece of it while it is held."""
        if self.recut(device, window):
            return False
        key = ("visible", device, window)
        if key not in self._cache:
            self._cache[key] = self.seen(device, window)
        return held or bool(self._cache[key])

    def seen(self, device: Device, window: int) -> bool:
        """A21: read in the window, or listed at its start, or read in the 24 hours before it."""
        if any(entry.device == device and entry.in_force(window) for entry in self.inventory):
            return True
        if device not in self.telemetry.instants:
            return False
        if not self.telemetry.is_gap(device, window):
            return True
        if not self.telemetry.read_within_a_day(device, window):
            return False
        rows = [entry for entry in self.inventory if entry.lists(device)]
        if any(entry.in_force(window) for entry in rows):
            return True
        if any(entry.end is not None and entry.end <= window for entry in rows):
            return False
        last = self.telemetry.last_instant(device)
        if last is not None and last < window and self.telemetry.outlived(device):
            self.telemetry.findings.add(("device_gone", "/".join(filter(None, device))))
            return False
        return True

    def slices(self, device: Device, window: int) -> Fraction:
        """A19: slices of an instance in a window, or of the whole card."""
        key = ("slices", device, window)
        if key not in self._cache:
            self._cache[key] = self.slices_by_rule(device, window)
        found: Fraction = self._cache[key]
        return found

    def slices_by_rule(self, device: Device, window: int) -> Fraction:
        card = self.cards.slices_of_card(device)
        own = self.cards.profile(device, window) if device[1] else card
        if own is not None:
            return Fraction(own)
        if device in self.telemetry.instants:
            self.telemetry.findings.add(("unknown_profile", "/".join(device)))
        others = [
            self.cards.profile(other, window)
            for other in self.devices
            if other[0] == device[0] and other[1] and other != device and self.visible(other, window, held=False)
        ]
        left = card - sum(other for other in others if other is not None)
        return Fraction(max(left, 0), 1 + sum(other is None for other in others))

    def size(self, device: Device, window: int) -> Fraction:
        """A19: a device's part of its card."""
        return self.slices(device, window) / self.cards.slices_of_card(device) if device[1] else Fraction(1)

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
    without: dict[Interval, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    last: Interval | None = None

    def add(self, unit: str, value: int) -> None:
        if unit == "time":
            self.gpu_ms += value
        else:
            self.units[unit] = self.units.get(unit, 0) + value

    @property
    def estimated(self) -> bool:
        """A15: anything that is not all measured."""
        return self.status["estimated"] > 0 or self.status["missing"] > 0


@dataclass
class Hour:
    """The result: rows as dictionaries with the columns of the published tables, and what goes with them."""

    usage: list[dict[str, Any]]
    fleet: list[dict[str, Any]]
    idle: list[dict[str, Any]]
    quarantine: set[tuple[str, str, str]]
    # How often each quarantined thing was seen (A5).
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # (name, subject) of `uninvited_pod`, `two_pods`, `device_gone`, `unknown_profile`, `unknown_card`.
    findings: set[tuple[str, str]] = field(default_factory=set)
    # The usage rows that are flagged (A15), by workload, model, tenant and deployment.
    estimated: set[Key] = field(default_factory=set)
    # A16: a later reading may change the hour.
    provisional: bool = False
    # A36, the check: models of which more is priced than is visible or stayed unmatched, with the GPU-milliseconds.
    overpriced: dict[str, Fraction] = field(default_factory=dict)


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
        self.cluster, self.hour, self.settings = cluster, hour, settings
        self.deployments = [deployment for deployment in deployments if deployment.counts(hour)]
        good, quarantine = screened(events, now)
        with_events = {(e.namespace, e.pod) for e in good if e.namespace and e.pod}
        self.intervals = intervals_of(good, settings)
        self.telemetry = Telemetry(samples, hour, settings, with_events)
        self.counts = quarantine + self.telemetry.quarantine
        self.cards = Cards(self.telemetry, inventory, self.intervals)
        self.holding = Holding(self.telemetry, self.cards, with_events, self.intervals)
        self.lifecycle = {i.workload_id for i in self.intervals}
        self.rows: dict[Key, Row] = defaultdict(Row)
        self.fleet: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        self.idle: dict[str, Row] = defaultdict(Row)
        self.visible_gpus: dict[str, Fraction] = defaultdict(Fraction)
        self.nodes: dict[str, set[str]] = defaultdict(set)
        self.open_gap = False
        self.step = settings.window_seconds * 1000

    def run(self) -> Hour:
        windows = range(self.hour, self.hour + HOUR, self.step)
        timeline = {window: self.holding.moments(window) for window in windows}
        for moments in timeline.values():
            for moment in moments:
                self.allocate(moment)
        for uuid in sorted({uuid for uuid, _ in self.holding.devices}):
            self.use_of_board(uuid, timeline)
        lines = self.idle_lines()
        for model in sorted({self.cards.named(i.placed_class) for row in self.rows.values() for i in row.without}):
            self.pool(model, lines)
        for row in self.rows.values():
            self.without_device(row)
        overpriced = self.overpriced(lines)
        return Hour(
            self.usage_rows(),
            self.fleet_rows(),
            self.idle_rows(lines),
            set(self.counts),
            self.counts,
            self.telemetry.findings,
            {key for key, row in self.rows.items() if row.estimated},
            self.provisional(timeline),
            overpriced,
        )

    def provisional(self, timeline: dict[int, list[Moment]]) -> bool:
        """A16: an open gap, an open hole in a label (A17 b, d), or a workload that ran while nothing was read."""
        ran = any(moment.running for moments in timeline.values() for moment in moments)
        read = any(
            self.hour <= at < self.hour + HOUR for instants in self.telemetry.instants.values() for at in instants
        )
        return self.open_gap or self.holding.open_holes or (ran and not read)

    def row(self, model: str, interval: Interval) -> Row:
        """A4: the row of an interval's workload, tenant and deployment on a model, with the last interval in it."""
        row = self.rows[interval.workload_id, model, interval.tenant_id, interval.deployment_id]
        if row.last is None or interval.start >= row.last.start:
            row.last = interval
        return row

    def key_of(self, name: str, model: str, moment: Moment) -> Key:
        """The row of a holder at a moment (A4, A18)."""
        for interval, _ in moment.running:
            if interval.workload_id == name:
                return name, model, interval.tenant_id, interval.deployment_id
        own = deployment_of(name, self.deployments)
        return name, model, own.owner_tenant_id if own else "", own.deployment_id if own else name

    def allocate(self, moment: Moment) -> None:
        """A4 and the second half of A21: GPU-seconds of running workloads, matched with devices or not."""
        span = moment.end - moment.start
        for interval, devices in moment.running:
            left = interval.gpu_count
            for device, units in self.holding.units_on(interval, devices):
                left -= units
                model = self.cards.model(device)
                self.row(model, interval).gpu_ms += units * interval.fraction * span
                self.fleet[model]["matched"] += units * interval.fraction * span
                self.fleet[model]["lifecycle"] += units * interval.fraction * span
            if left > 0:
                model = self.cards.named(interval.placed_class)
                self.row(model, interval).without[interval] += left * span
                self.fleet[model]["unmatched"] += left * interval.fraction * span
                self.fleet[model]["lifecycle"] += left * interval.fraction * span

    def without_device(self, row: Row) -> None:
        """A20: a running workload's time with no visible device (`without` is units of `gpu_count` x ms)."""
        for interval, units_ms in row.without.items():
            row.gpu_ms += units_ms * interval.fraction
            watts = self.settings.of_model(self.settings.class_watts, interval.placed_class)
            if watts is None:
                row.status["missing"] += units_ms
            elif units_ms:
                row.status["estimated"] += units_ms
                row.methods["modelled"] += units_ms
                row.add("energy", half_even(watts * units_ms))

    def use_of_board(self, uuid: str, timeline: dict[int, list[Moment]]) -> None:
        """A15, A19, A20, A28: what was used on a board, shared out to its holders."""
        devices = [d for d in self.holding.devices if d[0] == uuid]
        shares: dict[str, dict[Key, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        divided = False
        for window, moments in timeline.items():
            looks = {device: Look(self, device, window, moments) for device in devices}
            for piece in self.pieces(devices, moments):
                first, start, end = piece[0], piece[0].start, piece[-1].end
                visible = [d for d in devices if self.holding.visible(d, window, bool(first.holders[d]))]
                slices = sum(self.holding.slices(d, window) for d in visible)
                for device in visible:
                    model, holders = self.cards.model(device), first.holders[device]
                    divided |= bool(device[1]) or len(holders) > 1
                    size, look = self.holding.size(device, window), looks[device]
                    self.count_visible(device, first, window, end - start)
                    self.open_gap |= look.open_gap
                    for name in holders or [f"idle:{model}"]:
                        key = self.key_of(name, model, first) if holders else (name, model, "", "")
                        row = self.rows[key] if holders else self.idle[model]
                        row.status[look.status] += end - start
                        for rung in look.rungs:
                            row.methods[rung] += end - start
                        for moment in piece:
                            shares["time"][key] += self.time_of(name, device, moment)
                        energy = look.energy(start, end)
                        if energy is not None:
                            part = self.holding.slices(device, window) / slices
                            shares["energy"][key] += energy * part / max(len(holders), 1)
                        memory = look.shared("memory", name, first)
                        if memory is not None:
                            shares["memory"][key] += memory * (end - start)
                        activity = look.shared("utilization", name, first)
                        if activity is not None:
                            shares["activity"][key] += activity * size * (end - start)
        for unit, all_shares in shares.items():
            exact = {k: v for k, v in all_shares.items() if unit != "time" or k[0] not in self.lifecycle}
            total = half_even(sum(exact.values(), Fraction(0)))
            parts = split(total, exact, self.hour) if divided else {key: half_even(v) for key, v in exact.items()}
            for key, value in parts.items():
                row = self.idle[key[1]] if key[0] == f"idle:{key[1]}" else self.rows[key]
                row.add(unit, value)

    def pieces(self, devices: list[Device], moments: list[Moment]) -> list[list[Moment]]:
        """A17: a window cut only where the holders of the board's devices change (choice 23)."""

        def holders(moment: Moment) -> list[list[Key]]:
            return [[self.key_of(name, "", moment) for name in moment.holders[d]] for d in devices]

        found: list[list[Moment]] = []
        for moment in moments:
            if found and holders(found[-1][0]) == holders(moment):
                found[-1].append(moment)
            else:
                found.append([moment])
        return found

    def time_of(self, name: str, device: Device, moment: Moment) -> Fraction:
        """A18, A19, A27: GPU-milliseconds of a pod without events, or of nobody; nothing for a workload with events."""
        span, holders = moment.end - moment.start, moment.holders[device]
        if not holders:
            return self.holding.size(device, moment.window) * span
        pods = [holder for holder in holders if holder not in self.lifecycle]
        if name not in pods:
            return Fraction(0)
        return self.holding.units_left(device, moment.window, moment.running) * span / len(pods)

    def count_visible(self, device: Device, moment: Moment, window: int, span: int) -> None:
        """A21: device time of the fleet, and where its models are (A36)."""
        model = self.cards.model(device)
        self.fleet[model]["visible"] += span
        self.fleet[model][self.state(moment, device)] += span
        self.visible_gpus[model] += self.holding.size(device, window) * span
        told = self.telemetry.nodes.get(device, {})
        own = {node for at, nodes in told.items() if self.hour <= at < self.hour + HOUR for node in nodes}
        self.nodes[model] |= own or self.telemetry.told(self.telemetry.nodes, device, window)
        self.nodes[model] |= {e.node for e in self.cards.inventory if e.node and e.lists(device) and e.in_force(window)}

    def state(self, moment: Moment, device: Device) -> str:
        """A18, A21: `unattributed` also where all holders are pods that belong to no deployment."""
        holders = moment.holders[device]
        if holders and all(self.unattributed(name) for name in holders):
            return "unattributed"
        return moment.state[device]

    def unattributed(self, name: str) -> bool:
        return name not in self.lifecycle and deployment_of(name, self.deployments) is None

    def idle_lines(self) -> dict[str, Row]:
        """A27 before pricing: nobody's time, and that of pods without a deployment."""
        lines = dict(self.idle)
        for (name, model, _, _), row in self.rows.items():
            if self.unattributed(name):
                line = lines.setdefault(model, Row())
                line.gpu_ms += row.gpu_ms
                for unit, value in row.units.items():
                    line.add(unit, value)
                for status, ms in row.status.items():
                    line.status[status] += ms
        return lines

    def pool(self, model: str, lines: dict[str, Row]) -> None:
        """A36: what the idle line of a model gives to running workloads of its class without a visible device."""
        line = lines.get(model)
        if line is None or line.gpu_ms <= 0:
            return
        asking: dict[Key, dict[Interval, Fraction]] = defaultdict(dict)
        for key, row in self.rows.items():
            for interval, units_ms in row.without.items():
                at_home = interval.node is None or interval.node in self.nodes[model]
                if key[1] == model and self.fleet[model]["visible"] > 0 and at_home:
                    asking[key][interval] = units_ms
        weights = {
            key: sum((units_ms * i.fraction for i, units_ms in own.items()), Fraction(0)) for key, own in asking.items()
        }
        asked, idle = sum(weights.values(), Fraction(0)), line.gpu_ms
        given = min(half_even(asked), int(idle))
        if given <= 0:
            return
        for unit in ("time", "memory", "energy"):
            total = idle if unit == "time" else line.units.get(unit)
            if total is None:
                continue
            part = half_even(total * given / idle)
            line.add(unit, -part)
            for key, value in split(part, weights, self.hour).items():
                self.rows[key].add(unit, value)
        pooled = split(given, weights, self.hour)
        for key, own in asking.items():
            # The rest of a rounding is on no row; what the line could not give stays as in A20 (choice 24).
            ratio = min(pooled[key] / weights[key], Fraction(1)) if half_even(asked) > idle else Fraction(1)
            row = self.rows[key]
            for interval, units_ms in own.items():
                row.status["estimated"] += units_ms * ratio
                row.methods["pooled"] += units_ms * ratio
                row.without[interval] -= units_ms * ratio
        if given == idle:
            del lines[model]

    def overpriced(self, lines: dict[str, Row]) -> dict[str, Fraction]:
        """A36, the check: priced GPU-seconds beyond the visible ones and those that stayed unmatched."""
        excess: dict[str, Fraction] = defaultdict(Fraction)
        for (name, model, _, _), row in self.rows.items():
            if not self.unattributed(name):
                excess[model] += row.gpu_ms - sum(ms * i.fraction for i, ms in row.without.items())
        for model, line in lines.items():
            excess[model] += line.gpu_ms
        over = {model: ms - self.visible_gpus[model] for model, ms in excess.items()}
        return {model: ms for model, ms in over.items() if ms > 0}

    def usage_rows(self) -> list[dict[str, Any]]:
        found = []
        for (name, model, tenant, deployment), row in sorted(self.rows.items()):
            lifecycle = name in self.lifecycle
            seconds = {f"{s}_seconds": published(row.status[s] / 1000, 3) for s in ("measured", "estimated", "missing")}
            rungs = [f"{rung}={published(ms / 1000, 3):f}" for rung, ms in sorted(row.methods.items()) if ms]
            found.append(
                {
                    "cluster": self.cluster,
                    "hour": self.hour,
                    "workload_id": name,
                    "gpu_model": model,
                    "tenant_id": tenant or None,
                    "deployment_id": deployment,
                    "placed_class": row.last.placed_class if row.last else None,
                    "basis": "lifecycle" if lifecycle else "samples",
                    "gpu_seconds": published(row.gpu_ms / 1000, 3),
                    **units_of(row.units),
                    **seconds,
                    "methods": ";".join(rungs),
                }
            )
        return found

    def fleet_rows(self) -> list[dict[str, Any]]:
        """A21, with its identity; `lifecycle` is printed as the sum of its printed parts."""
        columns = ("visible", "held", "stale", "unattributed", "idle", "no_data", "lifecycle", "matched", "unmatched")
        found = []
        for model, row in sorted(self.fleet.items()):
            assert row["visible"] == sum(row[c] for c in columns[1:6]), "A21"
            assert row["lifecycle"] == row["matched"] + row["unmatched"], "A21"
            if any(row[c] for c in columns):
                values = {c: published(Fraction(row[c]) / 1000, 3) for c in columns}
                values["lifecycle"] = values["matched"] + values["unmatched"]
                found.append({"cluster": self.cluster, "hour": self.hour, "gpu_model": model, **values})
        return found

    def idle_rows(self, lines: dict[str, Row]) -> list[dict[str, Any]]:
        """A27 before pricing."""
        found = []
        for model, line in sorted(lines.items()):
            units = units_of(line.units)
            del units["gpu_active_seconds"]
            seconds = published(Fraction(line.gpu_ms) / 1000, 3)
            key = {"cluster": self.cluster, "hour": self.hour, "gpu_model": model}
            found.append({**key, "gpu_seconds": seconds, **units, "estimated": line.estimated})
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
        self.telemetry, self.model = hour.telemetry, hour.cards.model(device)
        self.held = any(m.holders[device] for m in moments)
        self.by_events = any(device in devices for m in moments for _, devices in m.running)
        self.watts = self.class_watts(moments)
        self.values: dict[str, tuple[str, int | None]] = {}
        for quantity in ("utilization", "memory", "power"):
            self.values[quantity] = self.by_rung(quantity)
        self.spans = self.telemetry.counter_spans(device, self.model, window, window + hour.step)
        self.by_power = any(rise is None for *_, rise in self.spans)
        self.rungs = {self.values[quantity][0] for quantity in ("utilization", "memory")}
        if self.by_power:
            self.rungs.add(self.values["power"][0])
        bridged = self.telemetry.value(device, "energy", window)[0] in {"linear", "profile"}
        if bridged and any(rise is not None for *_, rise in self.spans):
            self.rungs.add("counter")
        self.rungs -= {"measured", "missing"}
        self.status = self.worst()
        self.open_gap = self.telemetry.is_gap(device, window) and (self.telemetry.last_instant(device) or 0) < window

    def class_watts(self, moments: list[Moment]) -> Fraction | None:
        """A13 rung 5, A20: the model's watts, else those of the class on a whole device with one holder."""
        table, settings = self.hour.settings.class_watts, self.hour.settings
        watts = settings.of_model(table, self.model)
        if watts is not None or self.device[1] or len({n for m in moments for n in m.holders[self.device]}) != 1:
            return watts
        for moment in moments:
            for interval, devices in moment.running:
                units = dict(self.hour.holding.units_on(interval, devices)).get(self.device)
                one = settings.of_model(table, interval.placed_class)
                if units is not None:
                    return None if one is None else one * units
        return None

    def by_rung(self, quantity: str) -> tuple[str, int | None]:
        """A13: the rung and the window's value, a whole number (A28)."""
        rung, value = self.telemetry.value(self.device, quantity, self.window)
        if rung == "one_side":
            rung, value = ("held", value) if self.by_events else ("missing", None)
        elif rung == "never":
            watts = self.watts if quantity == "power" and self.held else None
            rung, value = ("missing", None) if watts is None else ("modelled", watts * 1000)
        return rung, None if value is None else half_even(value)

    def energy(self, start: int, end: int) -> int | None:
        """A20: the board's energy over a piece, in mJ; None in a window of which a part is unknown."""
        power = self.values["power"][1]
        if self.by_power and power is None:
            return None
        spans = self.telemetry.counter_spans(self.device, self.model, start, end)
        unsound = sum(high - low for low, high, rise in spans if rise is None)
        return sum(rise or 0 for *_, rise in spans) + half_even(Fraction((power or 0) * unsound, 1000))

    def worst(self) -> str:
        """A15: the window's status."""
        readings = self.telemetry.readings
        energy = self.energy(self.window, self.window + self.hour.step)
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
                own = {holder: self.own(metric, holder, moment) for holder in holders}
                if all(v is not None for v in own.values()) and any(own.values()):
                    return Fraction(own[name])  # type: ignore[arg-type]
        value = self.values[quantity][1]
        return None if value is None else Fraction(value, max(len(holders), 1))

    def own(self, metric: str, holder: str, moment: Moment) -> int | None:
        """A holder's per-process reading of the window, by the pod that it has at the piece's start (choice 17)."""
        pair = next((i.pair for i, _ in moment.running if i.workload_id == holder), None)
        if holder not in self.hour.lifecycle:
            namespace, _, pod = holder.partition("/")
            pair = namespace, pod
        return None if pair is None else self.telemetry.own_value(self.device, metric, pair, self.window)


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
    """One hour (start in ms) by the rules A1-A21, A28, A29 and A36."""
    return Accounting(cluster, hour, samples, events, deployments, inventory, now, settings).run()
