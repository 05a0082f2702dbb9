"""An hour in few rows, and many hours laid together (A11, A12).

Each landed hour is summed up once (schema DCGM_SUMMARY: a row a device). An hour is then computed from its
own readings and the summaries of the 24 hours to either side, so that a gap, a label or a counter that
reaches over the hour's edge is seen whole, and memory does not grow with the hours.
What belongs here: making summaries and joining them. What does not: the rules that read the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import (
    Bools,
    Column,
    Ints,
    Texts,
    changes,
    group_bounds,
    ints,
    mapped,
    sorting,
    texts,
    whole,
)
from finops_pipeline.accounting.config import AccountingConfig, Quantity
from finops_pipeline.accounting.exact import HOUR_MS, half_even_div
from finops_pipeline.accounting.telemetry.readings import (
    NO_LABELS,
    Devices,
    HourReadings,
    LabelSets,
    Readings,
    device_order,
)
from finops_pipeline.contracts.lake import DCGM_SUMMARY

SEPARATOR = "\x1f"
NEVER_BEFORE = -(1 << 50)
NEVER_AFTER = 1 << 50
EDGES: Mapping[str, Quantity] = {
    "utilization": Quantity.UTILIZATION,
    "memory": Quantity.MEMORY,
    "power": Quantity.POWER,
    "energy": Quantity.ENERGY,
}
"""Column prefix of a quantity's first and last reading in DCGM_SUMMARY."""
MIN_DISTANCES = 10
MAX_SCRAPE_SECONDS = 300


@dataclass(frozen=True)
class Runs:
    """Stretches of measured windows with the same labels; windows count from the hour's start, earlier ones below 0."""

    device: Ints
    first: Ints
    last: Ints
    label_set: Ints

    def take(self, index: Ints | Bools) -> Runs:
        return Runs(self.device[index], self.first[index], self.last[index], self.label_set[index])


@dataclass(frozen=True)
class Edge:
    """The nearest reading beyond the hour on one side, an element an owner; `at` is NEVER_* where there is none."""

    at: Ints
    value: Ints


@dataclass(frozen=True)
class Timeline:
    """All hours in reach laid together; the devices are those of all of them."""

    start: int
    devices: Devices
    boards: Texts
    board: Ints
    """board of each device"""
    sets: LabelSets
    scrape_ms: Ints
    """scrape interval of each device in the hour"""
    runs: Runs
    last_before: Edge
    first_after: Edge
    """nearest instant with a sample beyond the hour, a device; the value is the label set then"""
    before: Mapping[Quantity, Edge]
    after: Mapping[Quantity, Edge]
    together: frozenset[tuple[int, int]]
    """pairs of devices of one board that were read at a same instant"""


def scrape_seconds(owner: Ints, at: Ints, owners: int, window_seconds: int) -> Ints:
    """The commonest distance of consecutive instants, per owner; instants ascend by (owner, at) (A11)."""
    same = owner[1:] == owner[:-1]
    distance = half_even_div((at[1:] - at[:-1])[same], 1000)
    who = owner[1:][same]
    pairs, counts = np.unique(who * (2 * HOUR_MS) + distance, return_counts=True)
    who, distance = pairs // (2 * HOUR_MS), pairs % (2 * HOUR_MS)
    total = np.bincount(who, weights=counts, minlength=owners)
    order = np.lexsort((-distance, counts, who))
    commonest = np.full(owners, window_seconds, dtype=np.int64)
    commonest[who[order]] = distance[order]
    commonest[total < MIN_DISTANCES] = window_seconds
    return np.clip(commonest, window_seconds, max(window_seconds, MAX_SCRAPE_SECONDS))


def combined_utilization(hour: HourReadings, config: AccountingConfig) -> Readings:
    """In each window the finer metric, if it has a valid reading there, else the coarse one (A9)."""
    fine, coarse = hour.values[Quantity.UTILIZATION], hour.values[Quantity.UTILIZATION_COARSE]
    if not len(coarse.owner):
        return fine
    cells = fine.owner * config.windows + (fine.at - hour.start) // config.window_ms
    alone = ~np.isin(coarse.owner * config.windows + (coarse.at - hour.start) // config.window_ms, cells)
    owner = np.concatenate([fine.owner, coarse.owner[alone]])
    at = np.concatenate([fine.at, coarse.at[alone]])
    value = np.concatenate([fine.value, coarse.value[alone]])
    order = sorting(owner, at)
    return Readings(owner[order], at[order], value[order])


def summarise(hour: HourReadings, config: AccountingConfig) -> pa.Table:
    """The readings of an hour -> DCGM_SUMMARY, a row a device."""
    devices = hour.devices
    count = len(devices)
    board = hour.board_of()
    scrape = scrape_seconds(hour.instant_device, hour.instant_at, count, config.window_seconds)
    first = np.searchsorted(hour.instant_device, np.arange(count), "left")
    last = np.searchsorted(hour.instant_device, np.arange(count), "right") - 1
    runs = _runs_within(hour, scrape, config)
    offsets: Column = pa.array(np.searchsorted(runs.device, np.arange(count + 1)).astype(np.int32))
    joined = np.array([SEPARATOR.join(sorted(members)) for members in hour.sets.members], dtype=object)
    columns: dict[str, Column] = {
        "device": pa.array(devices.key, pa.string()),
        "config": pa.array([config.reading_digest] * count, pa.string()),
        "model": pa.array(devices.model, pa.string()),
        "node": pa.array(devices.node, pa.string()),
        "slices": pa.array(devices.slices, pa.int32()),
        "scrape_seconds": pa.array(scrape, pa.int32()),
        "first_at": pa.array(hour.instant_at[first], DCGM_SUMMARY.field("first_at").type),
        "last_at": pa.array(hour.instant_at[last], DCGM_SUMMARY.field("last_at").type),
        "first_labels": pa.array(joined[hour.instant_set[first]], pa.string()),
        "last_labels": pa.array(joined[hour.instant_set[last]], pa.string()),
        "together": pa.array(_together(hour), pa.list_(pa.string())),
        "run_first": pa.ListArray.from_arrays(offsets, pa.array(runs.first, pa.int32())),
        "run_last": pa.ListArray.from_arrays(offsets, pa.array(runs.last, pa.int32())),
        "run_labels": pa.ListArray.from_arrays(offsets, pa.array(joined[runs.label_set], pa.string())),
    }
    for name, quantity in EDGES.items():
        owner = board if quantity in (Quantity.POWER, Quantity.ENERGY) else np.arange(count)
        readings = combined_utilization(hour, config) if name == "utilization" else hour.values[quantity]
        begin = np.searchsorted(readings.owner, owner, "left")
        end = np.searchsorted(readings.owner, owner, "right") - 1
        none = end < begin
        for which, index in (("first", begin), ("last", end)):
            safe = np.where(none, 0, index)
            at = readings.at[safe] if len(readings.at) else np.zeros(count, np.int64)
            value = readings.value[safe] if len(readings.at) else np.zeros(count, np.int64)
            columns[f"{name}_{which}_at"] = pa.array(at, pa.int64(), mask=none).cast(DCGM_SUMMARY.field("last_at").type)
            columns[f"{name}_{which}_value"] = pa.array(value, pa.int64(), mask=none)
    return pa.table(columns, schema=DCGM_SUMMARY)


def _runs_within(hour: HourReadings, scrape: Ints, config: AccountingConfig) -> Runs:
    """Measured windows of the hour, as far as the hour alone tells (A11)."""
    device, window = hour.instant_device, (hour.instant_at - hour.start) // config.window_ms
    cell = device * config.windows + window
    begins, ends = group_bounds(changes(cell))
    labelled = np.flatnonzero(hour.instant_set != NO_LABELS)
    earliest = np.searchsorted(labelled, begins)
    candidate = labelled[np.minimum(earliest, max(len(labelled) - 1, 0))] if len(labelled) else begins
    within = (earliest < len(labelled)) & (cell[candidate] == cell[begins])
    label_set = np.where(within, hour.instant_set[candidate], NO_LABELS)
    runs = Runs(device[begins], window[begins], window[begins], label_set)
    bridges = _bridges(
        runs.device[:-1],
        hour.start,
        (hour.instant_at[ends][:-1], hour.instant_set[ends][:-1]),
        (hour.instant_at[begins][1:], hour.instant_set[begins][1:]),
        scrape[runs.device[:-1]] * 1000,
        runs.device[:-1] == runs.device[1:],
        config,
    )
    return merge_runs([runs, *bridges])


def _bridges(
    device: Ints,
    start: int,
    left: tuple[Ints, Ints],
    right: tuple[Ints, Ints],
    scrape_ms: Ints,
    joined: Bools,
    config: AccountingConfig,
    within: tuple[Ints | int, Ints | int] = (-(1 << 40), 1 << 40),
) -> list[Runs]:
    """Windows without a reading between two instants at most 2.5 scrape intervals apart (A11).

    They carry the labels of the nearer reading, on a tie of the earlier; `left` and `right` are (instant, labels).
    Only windows of the closed range `within` are given.
    """
    width = config.window_ms
    (p, p_set), (n, n_set) = left, right
    near = joined & (2 * (n - p) <= 5 * scrape_ms)
    lowest, highest = (np.broadcast_to(np.asarray(bound, dtype=np.int64), near.shape) for bound in within)
    device, p, p_set, n, n_set = (part[near] for part in (device, p, p_set, n, n_set))
    first = np.maximum((p - start) // width + 1, lowest[near])
    last = np.minimum((n - start) // width - 1, highest[near])
    # a window's midpoint is start + window * width + width / 2: nearer to p while 2 * midpoint <= p + n
    turn = np.clip((p + n - 2 * start - width) // (2 * width), first - 1, last)
    return [
        runs.take(runs.first <= runs.last)
        for runs in (Runs(device, first, turn, p_set), Runs(device, turn + 1, last, n_set))
    ]


def merge_runs(parts: Sequence[Runs]) -> Runs:
    """Runs ascending by device and window; adjoining ones with the same labels become one."""
    device, first, last, label_set = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("device", "first", "last", "label_set")
    )
    order = sorting(device, first)
    runs = Runs(device, first, last, label_set).take(order)
    fresh = changes(runs.device, runs.label_set)
    fresh[1:] |= runs.first[1:] != runs.last[:-1] + 1
    begins, ends = group_bounds(fresh)
    return Runs(runs.device[begins], runs.first[begins], runs.last[ends], runs.label_set[begins])


def _together(hour: HourReadings) -> list[list[str]]:
    """Of each device, the other devices of its board that were read at a same instant."""
    board = hour.board_of()
    crowded = np.bincount(board, minlength=1)[board] > 1 if len(board) else np.zeros(0, bool)
    together: list[list[str]] = [[] for _ in range(len(board))]
    moments: dict[int, Ints] = {
        device: hour.instant_at[slice(*np.searchsorted(hour.instant_device, [device, device + 1]))]
        for device in np.flatnonzero(crowded).tolist()
    }
    for device, instants in moments.items():
        for other, theirs in moments.items():
            if other != device and board[other] == board[device] and np.isin(instants, theirs).any():
                together[device].append(str(hour.devices.key[other]))
    return together


def lay_together(
    start: int,
    summaries: Mapping[int, pa.Table],
    extra_models: Mapping[str, str],
    sets: LabelSets,
    config: AccountingConfig,
) -> Timeline:
    """The summaries of the hours in reach, by their start in epoch ms, the hour's own among them, as one timeline.

    `extra_models` adds devices that need no reading: key -> model (the inventory).
    """
    hours = sorted(hour for hour in summaries if len(summaries[hour]))
    table = pa.concat_tables([summaries[hour] for hour in hours]) if hours else DCGM_SUMMARY.empty_table()
    hour = np.repeat(np.array(hours, dtype=np.int64), [len(summaries[h]) for h in hours]).astype(np.int64)
    keys = device_order([*texts(table["device"].unique()), *extra_models])
    device = ints(pc.index_in(table["device"], pa.array(keys, pa.string())))
    devices = _facts(keys, table, hour, device, start, extra_models, config)
    boards = np.array(sorted(set(devices.uuid.tolist())), dtype=object)
    board = ints(pc.index_in(pa.array(devices.uuid, pa.string()), pa.array(boards, pa.string())))
    count = len(keys)
    scrape = np.full(count, config.window_seconds, dtype=np.int64)
    here = hour == start
    row_scrape = ints(table["scrape_seconds"])
    scrape[device[here]] = row_scrape[here]
    before, after = hour < start, hour > start
    last = (ints(table["last_at"]), _interned(table["last_labels"], sets))
    first = (ints(table["first_at"]), _interned(table["first_labels"], sets))
    edges = _edges(table, device, board, before, after, count, len(boards))
    runs = _joined_runs(table, hour, device, start, sets, row_scrape, config)
    index = {key: position for position, key in enumerate(keys)}
    together = whole(table["together"])
    linked, others = ints(pc.list_parent_indices(together)), together.flatten().to_pylist()
    return Timeline(
        start=start,
        devices=devices,
        boards=boards,
        board=board,
        sets=sets,
        scrape_ms=scrape * 1000,
        runs=runs,
        last_before=_edge(device, *last, before, count, NEVER_BEFORE),
        first_after=_edge(device, *first, after, count, NEVER_AFTER),
        before=edges[0],
        after=edges[1],
        together=frozenset((int(device[row]), index[key]) for row, key in zip(linked, others, strict=True)),
    )


def _facts(
    keys: list[str],
    table: pa.Table,
    hour: Ints,
    device: Ints,
    start: int,
    extra_models: Mapping[str, str],
    config: AccountingConfig,
) -> Devices:
    """Model, node and slices of each device: of the hour itself, else of the latest hour before, else of the next after."""
    order = np.argsort(np.where(hour <= start, hour, 2 * start - hour - (1 << 45)), kind="stable")
    row = np.full(len(keys), -1, dtype=np.int64)
    row[device[order]] = order
    model, node, slices = texts(table["model"]), texts(table["node"]), ints(table["slices"])
    models = [config.platform_model(extra_models[key]) if r < 0 else model[r] for key, r in zip(keys, row, strict=True)]
    parts = [key.partition("/") for key in keys]
    whole = [card if not part[2] else 1 for card, part in zip(mapped(config.slices, models), parts, strict=True)]
    return Devices(
        key=np.array(keys, dtype=object),
        uuid=np.array([uuid for uuid, _, _ in parts], dtype=object),
        instance=np.array([instance for _, _, instance in parts], dtype=object),
        model=np.array(models, dtype=object),
        node=np.array(["" if r < 0 else node[r] for r in row], dtype=object),
        slices=np.array([w if r < 0 else slices[r] for w, r in zip(whole, row, strict=True)], dtype=np.int64),
    )


def _edges(
    table: pa.Table, device: Ints, board: Ints, before: Bools, after: Bools, count: int, boards: int
) -> tuple[dict[Quantity, Edge], dict[Quantity, Edge]]:
    """The last reading before the hour and the first after it, of each quantity and owner."""
    sides: tuple[dict[Quantity, Edge], dict[Quantity, Edge]] = ({}, {})
    for name, quantity in EDGES.items():
        shared = quantity in (Quantity.POWER, Quantity.ENERGY)
        owner, owners = (board[device], boards) if shared else (device, count)
        for side, (which, rows, never) in enumerate((("last", before, NEVER_BEFORE), ("first", after, NEVER_AFTER))):
            at, value = ints(table[f"{name}_{which}_at"], never), ints(table[f"{name}_{which}_value"])
            sides[side][quantity] = _edge(owner, at, value, rows, owners, never)
    return sides


def _edge(owner: Ints, at: Ints, value: Ints, rows: Bools, owners: int, never: int) -> Edge:
    """Of the rows, each owner's latest if `never` is before the hour, else its earliest; of several the highest value."""
    known = np.flatnonzero(rows & (at != never))
    owner, at, value = owner[known], at[known], value[known]
    edge = Edge(np.full(owners, never, dtype=np.int64), np.zeros(owners, dtype=np.int64))
    (np.maximum if never < 0 else np.minimum).at(edge.at, owner, at)
    nearest = at == edge.at[owner]
    edge.value[owner[nearest]] = value[nearest]
    np.maximum.at(edge.value, owner[nearest], value[nearest])
    return edge


def _joined_runs(
    table: pa.Table, hour: Ints, device: Ints, start: int, sets: LabelSets, scrape: Ints, config: AccountingConfig
) -> Runs:
    """The runs of all hours, with the windows bridged that lie between two hours."""
    shift = (hour - start) // config.window_ms
    lists = whole(table["run_first"])
    row = ints(pc.list_parent_indices(lists))
    runs = Runs(
        device[row],
        ints(lists.flatten()) + shift[row],
        ints(whole(table["run_last"]).flatten()) + shift[row],
        _interned(whole(table["run_labels"]).flatten(), sets),
    )
    order = np.argsort(device, kind="stable")  # the rows are in order of the hours
    left, right = order[:-1], order[1:]
    first_at, last_at = ints(table["first_at"]), ints(table["last_at"])
    first_set = _interned(table["first_labels"], sets)
    last_set = _interned(table["last_labels"], sets)
    border = shift[right]
    bridges = [
        bridge
        for side, within in ((left, (-(1 << 40), border - 1)), (right, (border, 1 << 40)))
        for bridge in _bridges(
            device[left],
            start,
            (last_at[left], last_set[left]),
            (first_at[right], first_set[right]),
            scrape[side] * 1000,
            device[left] == device[right],
            config,
            within,
        )
    ]
    return merge_runs([runs, *bridges])


def _interned(joined: Column, sets: LabelSets) -> Ints:
    """Joined labels -> label sets."""
    encoded = whole(joined).dictionary_encode()
    ids = [sets.intern(text.split(SEPARATOR) if text else ()) for text in encoded.dictionary.to_pylist()]
    return np.array(ids, dtype=np.int64)[encoded.indices.to_numpy()] if ids else np.zeros(0, np.int64)
