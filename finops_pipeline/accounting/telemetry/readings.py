"""DCGM series -> devices, instants, labels and valid readings of one hour (A7-A10).

What belongs here: what an exporter wrote and what of it is a reading. What does not: windows and
gaps (`windows`), and who holds a device (`holding`).

Series are many times fewer than samples: labels are worked out once a series, samples only as columns.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    spread,
    texts,
    whole,
)
from finops_pipeline.accounting.config import FINE, RATIO, AccountingConfig, Quantity, profile_slices
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.contracts.lake import QUARANTINE

BLANK = 140_737_488_355_328.0
BLANK_INT32 = (2_147_483_632.0, 2_147_483_647.0)
BLANK_COUNTER = 9.2e18
LARGEST = float(2**62) / FINE
"""Above this a reading cannot be held; no card comes near it."""
REASONS = ("nan", "inf", "negative", "blank", "above_one", "above_limit")
NO_LABELS = 0


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
    """the platform's name"""
    node: Texts
    slices: Ints
    """slices of an instance; of the whole card for a whole device (A19)"""

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
class ProcessReadings:
    """Rows with a pod beside a row without one at the same instant (A19)."""

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
    values: dict[Quantity, Readings]
    processes: dict[Quantity, ProcessReadings]
    rejected: pa.Table
    """schema QUARANTINE"""
    rejections: int
    """rejected samples"""

    def board_of(self) -> Ints:
        return np.searchsorted(self.boards.astype(str), self.devices.uuid.astype(str)).astype(np.int64)


def device_order(keys: Iterable[str]) -> list[str]:
    """Keys by uuid and instance: whole device first, instances by number."""

    def rank(key: str) -> tuple[str, int, int, str]:
        uuid, _, instance = key.partition("/")
        return (uuid, 0 if not instance else 1, int(instance) if instance.isdigit() else 1 << 30, instance)

    return sorted(set(keys), key=rank)


def read_hour(series: pa.Table, start: int, config: AccountingConfig) -> HourReadings:
    """Series of DCGM_SERIES -> the readings of `[start, start + 1 h)`; samples outside are cut off (A12)."""
    columns = SeriesColumns.of(series, config)
    samples = _Samples.of(series, start)
    used = columns.usable & (samples.count > 0)
    keys = device_order(columns.key[used])
    index = {key: position for position, key in enumerate(keys)}
    device_of_row = np.array([index.get(key, -1) for key in columns.key.tolist()], dtype=np.int64)
    order = np.lexsort((device_of_row, columns.quantity))
    samples = samples.take(order[used[order]])
    devices = _devices(keys, device_of_row, columns, samples, config)
    boards = np.array(sorted(set(devices.uuid.tolist())), dtype=object)
    sets = LabelSets()
    set_of_row = np.array(
        [NO_LABELS if label is None else sets.intern([label]) for label in columns.label.tolist()], dtype=np.int64
    )
    telling = samples.take(_telling_rows(samples, device_of_row, set_of_row))
    row = telling.row()
    instants = _instants(device_of_row[row], telling.at, set_of_row[row], sets)
    row, reasons = samples.row(), _rejections(samples, device_of_row, columns, devices, config)
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
    return HourReadings(
        start=start,
        devices=devices,
        boards=boards,
        sets=sets,
        instant_device=instants[0],
        instant_at=instants[1],
        instant_set=instants[2],
        values=values,
        processes=processes,
        rejected=_rejected_table(reasons, row, columns),
        rejections=0 if reasons is None else int((reasons >= 0).sum()),
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
    quantity: Ints
    factor: npt.NDArray[np.float64]
    metric: Texts
    key: Texts
    uuid: Texts
    instance: Texts
    profile: Texts
    model: Texts
    node: Texts
    label: Texts
    """`namespace/pod`, or None"""

    @staticmethod
    def of(series: pa.Table, config: AccountingConfig) -> SeriesColumns:
        labels = _label_columns(series, config)
        names = config.labels
        metric = np.asarray(series["metric"].to_numpy(), dtype=object)
        kind = [config.metrics.get(name) for name in metric.tolist()]
        uuid = labels.first(names.uuid)
        instance = labels.first(names.instance)
        key = np.where(instance == "", uuid, uuid + "/" + instance)
        fine = [0.0 if k is None else float(k[1] * (1 if k[0] == Quantity.ENERGY else FINE)) for k in kind]
        return SeriesColumns(
            usable=np.array([k is not None for k in kind], dtype=bool) & (uuid != ""),
            quantity=np.array([-1 if k is None else int(k[0]) for k in kind], dtype=np.int64),
            factor=np.array(fine, dtype=np.float64),
            metric=metric,
            key=key,
            uuid=uuid,
            instance=instance,
            profile=labels.first(names.profile),
            model=labels.first(names.model),
            node=labels.first(names.node),
            label=labels.workload(config),
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

    def workload(self, config: AccountingConfig) -> Texts:
        """The first group with a pod that is not the exporter's own, as `namespace/pod` (A8)."""
        names = config.labels
        found = np.full(self.rows, None, dtype=object)
        for group in reversed(names.workload):
            namespace, pod, container = (self.columns[name] for name in group)
            own = np.array(
                [
                    names.exporter_pattern in p or names.exporter_pattern in c or c == names.exporter_container
                    for p, c in zip(pod.tolist(), container.tolist(), strict=True)
                ],
                dtype=bool,
            )
            found = np.where((pod == "") | own, found, namespace + "/" + pod)
        return found


def _label_columns(series: pa.Table, config: AccountingConfig) -> _LabelColumns:
    """One array a label name, '' where a series lacks it."""
    names = config.labels
    wanted = {*names.uuid, *names.instance, *names.profile, *names.model, *names.node}
    wanted |= {name for group in names.workload for name in group}
    columns = {name: np.full(len(series), "", dtype=object) for name in wanted}
    pairs = whole(series["labels"]).cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    parents = ints(pc.list_parent_indices(pairs))
    keys, values = pairs.flatten().flatten()
    keys, values = keys.dictionary_encode(), texts(values)
    code = ints(keys.indices)
    for number, name in enumerate(keys.dictionary.to_pylist()):
        if name in wanted:
            mask = code == number
            columns[name][parents[mask]] = values[mask]
    return _LabelColumns(columns, len(series))


def _devices(
    keys: list[str], device_of_row: Ints, columns: SeriesColumns, samples: _Samples, config: AccountingConfig
) -> Devices:
    """Model, node and profile of a device are those of its series read last (ties: the greatest text)."""
    last = np.full(len(device_of_row), -1, dtype=np.int64)
    if len(samples.rows):
        last[samples.rows] = np.maximum.reduceat(samples.at, np.cumsum(samples.count) - samples.count)
    best: dict[int, tuple[int, str, str, str]] = {}
    described = zip(device_of_row.tolist(), last.tolist(), columns.model, columns.node, columns.profile, strict=True)
    for device, instant, model, node, profile in described:
        if device >= 0 and instant >= 0:
            best[device] = max(best.get(device, (-1, "", "", "")), (instant, model, node, profile))
    facts = [best[device] for device in range(len(keys))]
    parts = [key.partition("/") for key in keys]
    slices = [
        profile_slices(profile) if instance else card
        for (_, _, _, profile), (_, _, instance), card in zip(
            facts, parts, mapped(config.slices, (model for _, model, _, _ in facts)), strict=True
        )
    ]
    return Devices(
        key=np.array(keys, dtype=object),
        uuid=np.array([uuid for uuid, _, _ in parts], dtype=object),
        instance=np.array([instance for _, _, instance in parts], dtype=object),
        model=np.array([config.platform_model(model) for _, model, _, _ in facts], dtype=object),
        node=np.array([node for _, _, node, _ in facts], dtype=object),
        slices=np.array(slices, dtype=np.int64),
    )


def _telling_rows(samples: _Samples, device_of_row: Ints, set_of_row: Ints) -> Ints:
    """One series of those of a device that have the same labels and instants: the others tell nothing new of them.

    Places in `samples.rows`.
    """
    if not len(samples.rows):
        return samples.rows
    instants = np.add.reduceat(scrambled(samples.at), np.cumsum(samples.count) - samples.count).view(np.int64)
    order, group = grouped(device_of_row[samples.rows], set_of_row[samples.rows], samples.count, instants)
    return order[group]


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
    samples: _Samples, device_of_row: Ints, columns: SeriesColumns, devices: Devices, config: AccountingConfig
) -> npt.NDArray[np.int8] | None:
    """Index into REASONS for each sample, -1 for a reading; None if all are readings (A10)."""
    ceiling = np.full((len(devices), len(Quantity)), LARGEST)
    for position, limit in enumerate(mapped(config.limit, devices.model.tolist())):
        if limit.power_w is not None:
            ceiling[position, Quantity.POWER] = np.float64(limit.power_w * Decimal("1.5"))
        if limit.memory_gb is not None:
            ceiling[position, Quantity.MEMORY] = np.float64(limit.memory_gb * 1024)
    ceiling[:, Quantity.ENERGY] = np.inf
    quantity = columns.quantity[samples.rows]
    highest = ceiling[device_of_row[samples.rows], quantity]
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
    """Rows with a pod at an instant at which the device also has a row without one (A19)."""
    bare = label_set == NO_LABELS
    both = np.zeros((2, int(device.max(initial=0)) + 1), dtype=bool)
    both[bare.astype(np.int64), device] = True
    candidate = (both[0] & both[1])[device]
    device, at, value, label_set, bare = (part[candidate] for part in (device, at, value, label_set, bare))
    moment = device * (2 * HOUR_MS) + at % (2 * HOUR_MS)
    beside = ~bare & np.isin(moment, moment[bare])
    device, at, value, label_set = (part[beside] for part in (device, at, value, label_set))
    order = np.lexsort((value, label_set, at, device))
    device, at, value, label_set = (part[order] for part in (device, at, value, label_set))
    last = group_bounds(changes(device, at, label_set))[1]
    return ProcessReadings(device[last], at[last], label_set[last], value[last])


def _rejected_table(reasons: npt.NDArray[np.int8] | None, row: Ints, columns: SeriesColumns) -> pa.Table:
    if reasons is None:
        return QUARANTINE.empty_table()
    failed = reasons >= 0
    pairs, counts = np.unique(np.stack([row[failed], reasons[failed].astype(np.int64)]), axis=1, return_counts=True)
    totals: dict[tuple[str, str], int] = {}
    for series_row, code, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        key = (f"{columns.key[series_row]}:{columns.metric[series_row]}", REASONS[code])
        totals[key] = totals.get(key, 0) + count
    return pa.Table.from_pylist(
        [
            {"source": "dcgm", "key": key, "reason": reason, "detail": f"readings={count}"}
            for (key, reason), count in sorted(totals.items())
        ],
        schema=QUARANTINE,
    )
