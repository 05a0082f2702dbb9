"""DCGM series -> devices, instants, labels and valid readings of one hour (A7-A10).

What belongs here: what an exporter wrote and what of it is a reading. What does not: windows and
gaps (`windows`), and who holds a device (`holding`).

Series are many times fewer than samples: labels are worked out once a series, samples only as columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import (
    Bools,
    Ints,
    Texts,
    changes,
    group_bounds,
    grouped,
    ints,
    mapped,
    position_in_group,
    scrambled,
    sorting,
    spread,
    texts,
    whole,
)
from finops_pipeline.accounting.config import FINE, RATIO, AccountingConfig, Quantity
from finops_pipeline.accounting.exact import HOUR_MS, half_even_div
from finops_pipeline.accounting.telemetry.cards import ModelNames, Told, most_told
from finops_pipeline.contracts.lake import QUARANTINE

BLANK = 140_737_488_355_328.0
BLANK_INT32 = (2_147_483_632.0, 2_147_483_647.0)
BLANK_COUNTER = 9.2e18
LARGEST = float(2**62) / FINE
"""Above this a reading cannot be held; no card comes near it."""
REASONS = ("nan", "inf", "negative", "blank", "above_one", "above_limit")
NO_UUID = "no_uuid"
TARGET = ("job", "instance")
"""labels that distinguish scrape targets (A11)"""
NO_LABELS = 0
NO_PODS: frozenset[str] = frozenset()
SEPARATOR = "\x1f"
"""between the parts of a text that no label contains"""


class LabelSets:
    """Interned sets of workload labels (`namespace/pod`): set 0 is the empty one."""

    def __init__(self) -> None:
        self.members: list[frozenset[str]] = [frozenset()]
        self._index: dict[frozenset[str], int] = {frozenset(): NO_LABELS}

    def intern(self, labels: Iterable[str]) -> int:
        key = frozenset(labels)
        if key not in self._index:
            self._index[key] = len(self.members)
            self.members.append(key)
        return self._index[key]

    def union(self, left: Ints, right: Ints) -> Ints:
        """Element by element."""
        pairs, inverse = np.unique(np.stack([left, right]), axis=1, return_inverse=True)
        merged = [self.intern(self.members[a] | self.members[b]) for a, b in pairs.T.tolist()]
        return np.array(merged, dtype=np.int64)[inverse.reshape(-1)]


@dataclass(frozen=True)
class Devices:
    """Devices in order of uuid and instance, whole device first, instances by number (A7, A17)."""

    key: Texts
    """`uuid` or `uuid/instance`"""
    uuid: Texts
    instance: Texts
    model: Texts
    """the one name of the model in the hour (section 2)"""
    node: Texts

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class Readings:
    """Valid readings of one quantity: unique instants per owner, ascending by (owner, instant)."""

    owner: Ints
    """index of the device, or of the board for power and energy"""
    at: Ints
    """epoch ms"""
    value: Ints
    """millionths of the whole unit of the quantity; whole mJ for the counter"""


@dataclass(frozen=True)
class Spacing:
    """How often each device was read by each scrape target: whole seconds between consecutive instants (A11)."""

    device: Ints
    target: Ints
    """place in `targets`"""
    seconds: Ints
    count: Ints
    targets: Texts
    """`job` and `instance`, joined by U+001F"""


@dataclass(frozen=True)
class ProcessReadings:
    """Rows with a pod beside a row without one at the same instant, copies of it left out (A19)."""

    device: Ints
    at: Ints
    label_set: Ints
    """the set of the one label of the row"""
    value: Ints


@dataclass(frozen=True)
class HourReadings:
    """What was read in one hour."""

    start: int
    devices: Devices
    boards: Texts
    """uuids, ascending"""
    sets: LabelSets
    instant_device: Ints
    instant_at: Ints
    instant_set: Ints
    """every instant at which a device has a sample, rejected ones too, with the labels of all of them"""
    spacing: Spacing
    models: Told
    profiles: Told
    nodes: Told
    spellings: frozenset[str]
    """of models, as they were read"""
    values: dict[Quantity, Readings]
    processes: dict[Quantity, ProcessReadings]
    rejected: pa.Table
    """schema QUARANTINE"""
    rejections: int
    """samples set aside"""
    event_pods: frozenset[str]
    """pods called like the exporter's that lifecycle events name (A8)"""
    passed_over: dict[int, frozenset[str]]
    """device -> pods that were taken for the exporter's own (A8)"""
    two_pods: dict[tuple[int, str, str], Ints]
    """device, the pod that counts and the other one that its rows name -> instants of such rows (A8)"""

    def board_of(self) -> Ints:
        return np.searchsorted(self.boards.astype(str), self.devices.uuid.astype(str)).astype(np.int64)


def device_order(keys: Iterable[str]) -> list[str]:
    """Keys by uuid and instance: whole device first, instances by number."""

    def rank(key: str) -> tuple[str, int, int, str]:
        uuid, _, instance = key.partition("/")
        return (uuid, 0 if not instance else 1, int(instance) if instance.isdigit() else 1 << 30, instance)

    return sorted(set(keys), key=rank)


def like_exporters(pods: Iterable[str], config: AccountingConfig) -> frozenset[str]:
    """Of pods (`namespace/pod`) that lifecycle events name, those that would be taken for an exporter's own (A8)."""
    return frozenset(pod for pod in pods if config.labels.may_be_exporter(pod.partition("/")[2]))


def read_hour(
    series: pa.Table, start: int, config: AccountingConfig, event_pods: frozenset[str] = NO_PODS
) -> HourReadings:
    """Series of DCGM_SERIES -> the readings of `[start, start + 1 h)`; samples outside are cut off (A12).

    `event_pods` are the pods that `like_exporters` finds among those of the lifecycle events.
    """
    columns = SeriesColumns.of(series, config, event_pods)
    every = _Samples.of(series, start)
    lost = np.flatnonzero(columns.without_uuid & (every.count > 0))
    used = columns.usable & (every.count > 0)
    keys = device_order(columns.key[used])
    index = {key: position for position, key in enumerate(keys)}
    device_of_row = np.array([index.get(key, -1) for key in columns.key.tolist()], dtype=np.int64)
    order = np.lexsort((device_of_row, columns.quantity))
    samples = every.take(order[used[order]])
    spelled = columns.model[samples.rows]
    spellings = frozenset(spelled.tolist()) - {""}
    models = _told(device_of_row, columns.model, samples)
    most = most_told(models, models.in_windows(len(keys), start, config), config)
    names = ModelNames.of(spellings, config)
    devices = _devices(keys, device_of_row, columns, samples, mapped(names.named, most))
    boards = np.array(sorted(set(devices.uuid.tolist())), dtype=object)
    sets = LabelSets()
    set_of_row = np.array(
        [NO_LABELS if label is None else sets.intern([label]) for label in columns.label.tolist()], dtype=np.int64
    )
    targets, target_of_row = _numbered(columns.target)
    telling = samples.take(_telling_rows(samples, device_of_row, set_of_row, target_of_row))
    row = telling.row()
    instants = _instants(device_of_row[row], telling.at, set_of_row[row], sets)
    spacing = _spacing(device_of_row, target_of_row, targets, telling)
    card = np.where(spelled == "", np.array(most, dtype=object)[device_of_row[samples.rows]], spelled)
    row, reasons = samples.row(), _rejections(samples, columns, card, config)
    valid = None if reasons is None else reasons < 0
    values: dict[Quantity, Readings] = {}
    processes: dict[Quantity, ProcessReadings] = {}
    board_of_device = (
        np.searchsorted(boards.astype(str), devices.uuid.astype(str)) if len(devices) else np.zeros(0, np.int64)
    )
    quantity_of = columns.quantity[samples.rows]
    for quantity in Quantity:
        first, past = (int(np.searchsorted(quantity_of, quantity, side)) for side in ("left", "right"))
        of = slice(samples.begin(first), samples.begin(past))
        rows, at, value = row[of], samples.at[of], samples.value[of]
        if valid is not None and not valid[of].all():
            rows, at, value = rows[valid[of]], at[valid[of]], value[valid[of]]
        device = device_of_row[rows]
        fine = np.rint(value * columns.factor[rows]).astype(np.int64)
        if quantity in (Quantity.POWER, Quantity.ENERGY):
            values[quantity] = _stitch(board_of_device[device].astype(np.int64), at, fine)
            continue
        values[quantity] = _stitch(device, at, fine)
        processes[quantity] = _process_rows(device, at, fine, set_of_row[rows])
    set_aside = _rejected(reasons, row, columns)
    for number in lost.tolist():
        key = (f"{columns.node[number]}/{columns.gpu[number]}:{columns.metric[number]}", NO_UUID)
        set_aside[key] = set_aside.get(key, 0) + int(every.count[number])
    return HourReadings(
        start=start,
        devices=devices,
        boards=boards,
        sets=sets,
        instant_device=instants[0],
        instant_at=instants[1],
        instant_set=instants[2],
        spacing=spacing,
        models=models,
        profiles=_told(device_of_row, columns.profile, samples),
        nodes=_told(device_of_row, columns.node, samples),
        spellings=spellings,
        values=values,
        processes=processes,
        rejected=_quarantine(set_aside),
        rejections=sum(set_aside.values()),
        event_pods=event_pods,
        passed_over=_passed_over(device_of_row, columns, samples),
        two_pods=_two_pods(device_of_row, columns, samples),
    )


@dataclass(frozen=True)
class _Samples:
    """The samples of some series of the hour, those of a series together."""

    rows: Ints
    """series"""
    count: Ints
    """samples of each of `rows`"""
    at: Ints
    value: npt.NDArray[np.float64]

    @staticmethod
    def of(series: pa.Table, start: int) -> _Samples:
        """Every series, with its samples of the hour."""
        rows = np.arange(len(series), dtype=np.int64)
        if not len(series):
            return _Samples(rows, rows, rows, np.zeros(0, np.float64))
        lists = whole(series["timestamps"])
        count = ints(lists.value_lengths())
        at = ints(lists.flatten())
        value = np.asarray(whole(series["values"]).flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
        inside = (at >= start) & (at < start + HOUR_MS)
        if not inside.all():
            count = np.bincount(np.repeat(rows, count)[inside], minlength=len(rows))
            at, value = at[inside], value[inside]
        return _Samples(rows, count, at, value)

    def take(self, which: Ints) -> _Samples:
        """Only these of `rows`, in this order."""
        first = np.cumsum(self.count) - self.count
        member, position = spread(self.count[which])
        index = first[which][member] + position
        return _Samples(self.rows[which], self.count[which], self.at[index], self.value[index])

    def row(self) -> Ints:
        """The series of each sample."""
        return np.repeat(self.rows, self.count)

    def begin(self, place: int) -> int:
        """The first sample of the series at this place in `rows`."""
        return int(self.count[:place].sum())


@dataclass(frozen=True)
class SeriesColumns:
    """What the labels of each series say."""

    usable: Bools
    without_uuid: Bools
    """of a metric that counts, and of no device (A7)"""
    quantity: Ints
    factor: npt.NDArray[np.float64]
    metric: Texts
    key: Texts
    uuid: Texts
    instance: Texts
    profile: Texts
    model: Texts
    node: Texts
    gpu: Texts
    target: Texts
    """`job` and `instance` of the scrape, joined by U+001F"""
    label: Texts
    """`namespace/pod`, or None"""
    other: Texts
    """another pod that the row names, or None (A8)"""
    passed: Texts
    """a pod that was taken for the exporter's own, or None (A8)"""

    @staticmethod
    def of(series: pa.Table, config: AccountingConfig, event_pods: Collection[str] = NO_PODS) -> SeriesColumns:
        labels = _label_columns(series, config)
        names = config.labels
        metric = np.asarray(series["metric"].to_numpy(), dtype=object)
        kind = [config.metrics.get(name) for name in metric.tolist()]
        uuid = labels.first(names.uuid)
        instance = labels.first(names.instance)
        key = np.where(instance == "", uuid, uuid + "/" + instance)
        fine = [0.0 if k is None else float(k[1] * (1 if k[0] == Quantity.ENERGY else FINE)) for k in kind]
        known = np.array([k is not None for k in kind], dtype=bool)
        label, other, passed = labels.workload(config, event_pods)
        return SeriesColumns(
            usable=known & (uuid != ""),
            without_uuid=known & (uuid == ""),
            quantity=np.array([-1 if k is None else int(k[0]) for k in kind], dtype=np.int64),
            factor=np.array(fine, dtype=np.float64),
            metric=metric,
            key=key,
            uuid=uuid,
            instance=instance,
            profile=labels.first(names.profile),
            model=labels.first(names.model),
            node=labels.first(names.node),
            gpu=labels.columns["gpu"],
            target=labels.columns["job"] + SEPARATOR + labels.columns["instance"],
            label=label,
            other=other,
            passed=passed,
        )


@dataclass(frozen=True)
class _LabelColumns:
    columns: dict[str, Texts]
    rows: int

    def first(self, names: tuple[str, ...]) -> Texts:
        """The first of several labels that is not empty, or ''."""
        found = np.full(self.rows, "", dtype=object)
        for name in reversed(names):
            column = self.columns[name]
            found = np.where(column == "", found, column)
        return found

    def workload(self, config: AccountingConfig, event_pods: Collection[str]) -> tuple[Texts, Texts, Texts]:
        """Pods as `namespace/pod`, None where there is none: the first group's that is not the exporter's own, another
        one that a later group names, and one that was passed over as the exporter's (A8).
        """
        label, other, passed = (np.full(self.rows, None, dtype=object) for _ in range(3))
        found, different = np.zeros(self.rows, dtype=bool), np.zeros(self.rows, dtype=bool)
        for namespace, pod, _ in config.labels.groups():
            name = self.columns[pod]
            full = self.columns[namespace] + "/" + name
            there = np.asarray(name != "", dtype=bool)
            looks = np.array(mapped(config.labels.may_be_exporter, name.tolist()), dtype=bool)
            own = there & looks & ~np.isin(full, list(event_pods)) if event_pods else there & looks
            passed = np.where(own & ~found, full, passed)
            there &= ~own
            differs = there & found & ~different & np.asarray(full != label, dtype=bool)
            other, different = np.where(differs, full, other), different | differs
            label, found = np.where(there & ~found, full, label), found | there
        return label, other, passed


def _label_columns(series: pa.Table, config: AccountingConfig) -> _LabelColumns:
    """One array a label name, '' where a series lacks it."""
    names = config.labels
    wanted = {*names.uuid, *names.instance, *names.profile, *names.model, *names.node, *TARGET, "gpu"}
    wanted |= {name for namespace, pod, _ in names.groups() for name in (namespace, pod)}
    columns = {name: np.full(len(series), "", dtype=object) for name in wanted}
    pairs = whole(series["labels"]).cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    parents = ints(pc.list_parent_indices(pairs))
    keys, values = pairs.flatten().flatten()
    keys = keys.dictionary_encode()
    name_of, code = keys.dictionary.to_pylist(), ints(keys.indices)
    used = np.flatnonzero(np.array([name in wanted for name in name_of], dtype=bool)[code]) if name_of else code
    code, parents = code[used], parents[used]
    encoded = values.take(pa.array(used)).dictionary_encode()
    texts_of, which = texts(encoded.dictionary), ints(encoded.indices)
    for number, name in enumerate(name_of):
        if name in wanted:
            mask = code == number
            columns[name][parents[mask]] = texts_of[which[mask]]
    return _LabelColumns(columns, len(series))


def _told(device_of_row: Ints, text_of_row: Texts, samples: _Samples) -> Told:
    """What the series show of their devices; those with an empty text show nothing."""
    text = text_of_row[samples.rows]
    texts = sorted(set(text.tolist()) - {""})
    if not texts:
        return Told.nothing()
    number = {name: place for place, name in enumerate(texts)}
    code = np.array([number.get(name, -1) for name in text.tolist()], dtype=np.int64)
    device = device_of_row[samples.rows]
    telling = code >= 0
    devices = int(device.max()) + 1
    low, high = np.full(devices, len(texts)), np.full(devices, -1)
    np.minimum.at(low, device[telling], code[telling])
    np.maximum.at(high, device[telling], code[telling])
    several = telling & (low < high)[device]
    part = samples.take(np.flatnonzero(several))
    begin = np.cumsum(samples.count) - samples.count
    simple = np.flatnonzero(telling & ~several)
    first, last = (bound.reduceat(samples.at, begin)[simple] for bound in (np.minimum, np.maximum))
    order, group = grouped(device[simple])
    first, last = (
        bound.reduceat(column[order], group) if len(group) else group
        for bound, column in ((np.minimum, first), (np.maximum, last))
    )
    return Told.of(
        np.concatenate([device[simple][order[group]], np.repeat(device[several], part.count)]),
        np.concatenate([first, part.at]),
        np.concatenate([last, part.at]),
        np.concatenate([code[simple][order[group]], np.repeat(code[several], part.count)]),
        texts,
    )


def _devices(
    keys: list[str], device_of_row: Ints, columns: SeriesColumns, samples: _Samples, models: list[str]
) -> Devices:
    """The node of a device is that of its series read last (ties: the greatest text)."""
    nodes = columns.node[samples.rows].tolist()
    rank_of = {name: rank for rank, name in enumerate(sorted(set(nodes)))}
    rank = np.array([rank_of[name] for name in nodes], dtype=np.int64)
    device = device_of_row[samples.rows]
    begin = np.cumsum(samples.count) - samples.count
    last = np.maximum.reduceat(samples.at, begin) if len(begin) else begin
    order = np.lexsort((rank, last, device))
    read_last = order[group_bounds(changes(device[order]))[1]]
    parts = [key.partition("/") for key in keys]
    return Devices(
        key=np.array(keys, dtype=object),
        uuid=np.array([uuid for uuid, _, _ in parts], dtype=object),
        instance=np.array([instance for _, _, instance in parts], dtype=object),
        model=np.array(models, dtype=object),
        node=columns.node[samples.rows[read_last]],
    )


def _numbered(names: Texts) -> tuple[list[str], Ints]:
    """Different names, and the place of each name among them."""
    number = {name: place for place, name in enumerate(dict.fromkeys(names.tolist()))}
    return list(number), np.array([number[name] for name in names.tolist()], dtype=np.int64)


def _telling_rows(samples: _Samples, device_of_row: Ints, set_of_row: Ints, target_of_row: Ints) -> Ints:
    """One series of those of a device and target that have the same labels and instants: the others add nothing.

    Places in `samples.rows`.
    """
    rows = samples.rows
    if not len(rows):
        return rows
    instants = np.add.reduceat(scrambled(samples.at), np.cumsum(samples.count) - samples.count).view(np.int64)
    order, group = grouped(device_of_row[rows], target_of_row[rows], set_of_row[rows], samples.count, instants)
    return order[group]


def _spacing(device_of_row: Ints, target_of_row: Ints, targets: list[str], telling: _Samples) -> Spacing:
    """Distances between the consecutive instants of each device and target (A11)."""
    row = telling.row()
    device, target, at = device_of_row[row], target_of_row[row], telling.at
    pair = device * len(targets) + target
    if not _ascending(pair, at):
        order = sorting(pair, at)
        pair, at = pair[order], at[order]
        once = changes(pair, at)
        pair, at = pair[once], at[once]
    same = pair[1:] == pair[:-1]
    wide = HOUR_MS // 1000 + 1
    distances = pair[1:][same] * wide + half_even_div((at[1:] - at[:-1])[same], 1000)
    distances, count = np.unique(distances, return_counts=True)
    pair, seconds = distances // wide, distances % wide
    device, target = np.divmod(pair, max(len(targets), 1))
    return Spacing(device, target, seconds, count, np.array(targets, dtype=object))


def _passed_over(device_of_row: Ints, columns: SeriesColumns, samples: _Samples) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for device, pod in zip(device_of_row[samples.rows].tolist(), columns.passed[samples.rows].tolist(), strict=True):
        if pod is not None:
            found.setdefault(device, set()).add(pod)
    return {device: frozenset(pods) for device, pods in found.items()}


def _two_pods(device_of_row: Ints, columns: SeriesColumns, samples: _Samples) -> dict[tuple[int, str, str], Ints]:
    """Rows of which two groups of labels name different pods, neither the exporter's (A8)."""
    named = [other is not None for other in columns.other[samples.rows].tolist()]
    part = samples.take(np.flatnonzero(np.array(named, dtype=bool)))
    found: dict[tuple[int, str, str], list[Ints]] = {}
    for row, at in zip(part.rows.tolist(), np.split(part.at, np.cumsum(part.count)), strict=False):
        key = (int(device_of_row[row]), str(columns.label[row]), str(columns.other[row]))
        found.setdefault(key, []).append(at)
    return {key: np.unique(np.concatenate(parts)) for key, parts in found.items()}


def _instants(device: Ints, at: Ints, label: Ints, sets: LabelSets) -> tuple[Ints, Ints, Ints]:
    """Unique (device, instant) with the labels of all samples then (A7)."""
    if _ascending(device, at):
        return device, at, label
    order = np.lexsort((label, at, device))
    device, at, label = device[order], at[order], label[order]
    fresh = changes(device, at, label)
    device, at, label = device[fresh], at[fresh], label[fresh]
    first = changes(device, at)
    group, rank = np.cumsum(first) - 1, position_in_group(device, at)
    merged = label[first]
    for position in range(1, int(rank.max(initial=0)) + 1):
        members = rank == position
        merged[group[members]] = sets.union(merged[group[members]], label[members])
    return device[first], at[first], merged


def _rejections(
    samples: _Samples, columns: SeriesColumns, model: Texts, config: AccountingConfig
) -> npt.NDArray[np.int8] | None:
    """Index into REASONS for each sample, -1 for a reading; None if all are readings (A10).

    `model` is what the card of each of the samples' series is called.
    """
    cards, card = _numbered(model)
    ceiling = np.full((len(cards), len(Quantity)), LARGEST)
    for position, limit in enumerate(config.limit(name) for name in cards):
        if limit.power_w is not None:
            ceiling[position, Quantity.POWER] = np.float64(limit.power_w * Decimal("1.5"))
        if limit.memory_gb is not None:
            ceiling[position, Quantity.MEMORY] = np.float64(limit.memory_gb * 1024)
    ceiling[:, Quantity.ENERGY] = np.inf
    quantity = columns.quantity[samples.rows]
    highest = ceiling[card, quantity]
    counter = quantity == Quantity.ENERGY
    one = np.where(quantity <= Quantity.UTILIZATION_COARSE, RATIO * FINE / columns.factor[samples.rows], np.inf)
    plain = np.minimum(np.minimum(one, highest), np.where(counter, BLANK_COUNTER, BLANK_INT32[0]) * (1 - 1e-12))
    suspect = np.flatnonzero(~((samples.value >= 0) & (samples.value <= np.repeat(plain, samples.count))))
    if not len(suspect):
        return None
    place, value = np.repeat(np.arange(len(samples.rows)), samples.count)[suspect], samples.value[suspect]
    int32_blank = (value >= BLANK_INT32[0]) & (value <= BLANK_INT32[1])
    reason = np.full(len(suspect), -1, dtype=np.int8)
    with np.errstate(invalid="ignore"):
        tests = (
            np.isnan(value),
            np.isinf(value),
            value < 0,
            np.where(counter[place], value >= BLANK_COUNTER, (value >= BLANK) | int32_blank),
            value > one[place],
            value > highest[place],
        )
    for code, failed in reversed(list(enumerate(tests))):
        reason[failed] = code
    reasons = np.full(len(samples.value), -1, dtype=np.int8)
    reasons[suspect] = reason
    return reasons


def _stitch(owner: Ints, at: Ints, value: Ints) -> Readings:
    """Several values of one owner at one instant are one reading: the highest (A7)."""
    if _ascending(owner, at):
        return Readings(owner, at, value)
    order = np.lexsort((value, at, owner))
    owner, at, value = owner[order], at[order], value[order]
    last = group_bounds(changes(owner, at))[1]
    return Readings(owner[last], at[last], value[last])


def _ascending(owner: Ints, at: Ints) -> bool:
    """By owner and instant, each pair once."""
    return bool(((owner[1:] > owner[:-1]) | ((owner[1:] == owner[:-1]) & (at[1:] > at[:-1]))).all())


def _process_rows(device: Ints, at: Ints, value: Ints, label_set: Ints) -> ProcessReadings:
    """Rows with a pod at an instant at which the device also has a row without one (A19).

    Where two or more pods' values are all that of the row without one, and not 0, they are copies of it.
    """
    bare = label_set == NO_LABELS
    both = np.zeros((2, int(device.max(initial=0)) + 1), dtype=bool)
    both[bare.astype(np.int64), device] = True
    candidate = (both[0] & both[1])[device]
    device, at, value, label_set = (part[candidate] for part in (device, at, value, label_set))
    order = np.lexsort((value, label_set, at, device))
    device, at, value, label_set = (part[order] for part in (device, at, value, label_set))
    last = group_bounds(changes(device, at, label_set))[1]
    device, at, value, label_set = (part[last] for part in (device, at, value, label_set))
    begins, ends = group_bounds(changes(device, at))
    # NO_LABELS is the lowest set: the row without a pod, if there is one, is the first of its moment
    alone = label_set[begins] == NO_LABELS
    pods = ends - begins
    lowest, highest = (bound.reduceat(value, begins) if len(begins) else begins for bound in (np.minimum, np.maximum))
    copies = (pods > 1) & (lowest == highest) & (highest != 0)
    kept = np.repeat(alone & ~copies, pods + 1) & (label_set != NO_LABELS)
    return ProcessReadings(device[kept], at[kept], label_set[kept], value[kept])


def _rejected(reasons: npt.NDArray[np.int8] | None, row: Ints, columns: SeriesColumns) -> dict[tuple[str, str], int]:
    """Key and reason of the samples set aside, and how many they are (A10)."""
    totals: dict[tuple[str, str], int] = {}
    if reasons is None:
        return totals
    failed = reasons >= 0
    pairs, counts = np.unique(np.stack([row[failed], reasons[failed].astype(np.int64)]), axis=1, return_counts=True)
    for series_row, code, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        key = (f"{columns.key[series_row]}:{columns.metric[series_row]}", REASONS[code])
        totals[key] = totals.get(key, 0) + count
    return totals


def _quarantine(set_aside: dict[tuple[str, str], int]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"source": "dcgm", "key": key, "reason": reason, "detail": f"readings={count}"}
            for (key, reason), count in sorted(set_aside.items())
        ],
        schema=QUARANTINE,
    )
