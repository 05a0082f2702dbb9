"""An hour in few rows, and many hours laid together (A11, A12).

Each landed hour is summed up once (schema DCGM_SUMMARY: a row a device). An hour is then computed from its
own readings and the summaries of the 24 hours to either side, so that a gap, a label or a counter that
reaches over the hour's edge is seen whole, and memory does not grow with the hours.
What belongs here: making summaries and joining them. What does not: the rules that read the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    grouped,
    ints,
    mapped,
    sorting,
    texts,
    whole,
)
from finops_pipeline.accounting.config import AccountingConfig, Quantity, profile_slices
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.spans import packed
from finops_pipeline.accounting.telemetry.cards import ModelNames, Told, most_told
from finops_pipeline.accounting.telemetry.readings import (
    NO_LABELS,
    NO_PODS,
    SEPARATOR,
    Devices,
    HourReadings,
    LabelSets,
    ProcessReadings,
    Readings,
    device_order,
)
from finops_pipeline.contracts.lake import DCGM_SUMMARY, INSTANT

FORMAT = 3
"""of DCGM_SUMMARY: a summary of another one is made anew"""
NEVER_BEFORE = -(1 << 50)
NEVER_AFTER = 1 << 50
WIDEST = 1 << 34
"""more milliseconds than there are within reach (198 days)"""
EDGES: Mapping[str, Quantity] = {
    "utilization": Quantity.UTILIZATION,
    "memory": Quantity.MEMORY,
    "power": Quantity.POWER,
    "energy": Quantity.ENERGY,
}
"""Column prefix of a quantity's first and last reading in DCGM_SUMMARY."""
NO_INTERVAL = -1
"""no scrape target has enough distances"""
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
class Standing:
    """How long the counter had read, beyond the hour on one side, what it reads nearest to it; an element a board (A20)."""

    at: Ints
    """the farthest of these readings; NEVER_* where there is none"""
    drawn: Bools
    """some reading of power above zero lies between it and the hour"""


@dataclass(frozen=True)
class Timeline:
    """All hours in reach laid together; the devices are those of all of them."""

    start: int
    devices: Devices
    names: ModelNames
    """what models are called in the hour"""
    card: Ints
    """slices of each device's whole card (A19)"""
    profile: Ints
    """devices x windows: slices by the MIG profile, 0 where it shows none that is understood (A7, A19)"""
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
    standing: tuple[Standing, Standing]
    """before and after the hour"""
    processes: tuple[Mapping[Quantity, ProcessReadings], Mapping[Quantity, ProcessReadings]]
    """the nearest readings of processes before and after the hour, in the timeline's devices and label sets (A19)"""
    together: frozenset[tuple[int, int]]
    """pairs of devices of one board that were read at a same instant"""
    last_read: Ints
    """last instant within reach of each device, NEVER_BEFORE where there is none"""
    nodes: Told
    """node of each device (A8)"""
    node_span_ms: Ints
    """how long the readings of other devices of its node span after that; -1 where there are none (A21)"""


def scrape_seconds(device: Ints, target: Ints, seconds: Ints, count: Ints, devices: int) -> Ints:
    """The commonest distance of each device's scrape targets, the smallest over them, or NO_INTERVAL (A11).

    One element for each distance; equal ones of a device and target are added up. Of equally common distances the
    smallest counts; a target with fewer than 10 does not.
    """
    found = np.full(devices, np.iinfo(np.int64).max, dtype=np.int64)
    order, first = grouped(device, target, seconds)
    if len(order):
        device, target, seconds = (column[order[first]] for column in (device, target, seconds))
        count = np.add.reduceat(count[order], first)
        begins, ends = group_bounds(changes(device, target))
        total = np.add.reduceat(count, begins)
        group = np.repeat(np.arange(len(begins)), ends - begins + 1)
        commonest = seconds[np.lexsort((-seconds, count, group))[ends]]
        enough = total >= MIN_DISTANCES
        np.minimum.at(found, device[begins][enough], commonest[enough])
    return np.where(found == np.iinfo(np.int64).max, NO_INTERVAL, found)


def _interval_ms(seconds: Ints, config: AccountingConfig) -> Ints:
    """Scrape intervals of A11 from commonest distances: at most 300 s, at least a window, which NO_INTERVAL is."""
    return np.maximum(np.minimum(seconds, MAX_SCRAPE_SECONDS), config.window_seconds) * 1000


def summary_digest(config: AccountingConfig, event_pods: Collection[str] = NO_PODS) -> str:
    """Of the format, the configuration and the pods that `read_hour` was given: summaries with another are of no use."""
    return f"{FORMAT}:{config.reading_digest}:{SEPARATOR.join(sorted(event_pods))}"


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
    spacing = hour.spacing
    scrape = scrape_seconds(spacing.device, spacing.target, spacing.seconds, spacing.count, count)
    first = np.searchsorted(hour.instant_device, np.arange(count), "left")
    last = np.searchsorted(hour.instant_device, np.arange(count), "right") - 1
    # bridges of a device whose interval is not known yet are built when the hours are laid together
    bridged = np.where(scrape == NO_INTERVAL, 0, _interval_ms(scrape, config))
    runs = _runs_within(hour, bridged, config)
    sparse = np.flatnonzero((scrape == NO_INTERVAL)[hour.instant_device])
    joined = np.array([SEPARATOR.join(sorted(members)) for members in hour.sets.members], dtype=object)
    exporters = [sorted(hour.passed_over.get(device, ())) for device in range(count)]

    def lists(owner: Ints, values: Column) -> Column:
        offsets: Column = pa.array(np.searchsorted(owner, np.arange(count + 1)).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values)

    def instants(at: Ints, none: Bools | None = None) -> Column:
        return pa.array(at, pa.int64(), mask=none).cast(INSTANT)

    columns: dict[str, Column] = {
        "device": pa.array(devices.key, pa.string()),
        "config": pa.array([summary_digest(config, hour.event_pods)] * count, pa.string()),
        "node": pa.array(devices.node, pa.string()),
        "exporters": pa.array(exporters, pa.list_(pa.string())),
        "scrape_seconds": pa.array(scrape, pa.int32(), mask=scrape == NO_INTERVAL),
        "spacing_target": lists(spacing.device, pa.array(spacing.targets[spacing.target], pa.string())),
        "spacing_seconds": lists(spacing.device, pa.array(spacing.seconds, pa.int32())),
        "spacing_count": lists(spacing.device, pa.array(spacing.count, pa.int32())),
        "sparse_at": lists(hour.instant_device[sparse], instants(hour.instant_at[sparse])),
        "sparse_labels": lists(hour.instant_device[sparse], pa.array(joined[hour.instant_set[sparse]], pa.string())),
        "first_at": instants(hour.instant_at[first]),
        "last_at": instants(hour.instant_at[last]),
        "first_labels": pa.array(joined[hour.instant_set[first]], pa.string()),
        "last_labels": pa.array(joined[hour.instant_set[last]], pa.string()),
        "node_next_at": _node_next(hour, hour.instant_at[last]),
        "together": pa.array(_together(hour), pa.list_(pa.string())),
        "run_first": lists(runs.device, pa.array(runs.first, pa.int32())),
        "run_last": lists(runs.device, pa.array(runs.last, pa.int32())),
        "run_labels": lists(runs.device, pa.array(joined[runs.label_set], pa.string())),
    }
    for name, told in (("model", hour.models), ("profile", hour.profiles), ("node", hour.nodes)):
        columns[f"{name}_text"] = lists(told.device, pa.array(told.text, pa.string()))
        columns[f"{name}_first"] = lists(told.device, instants(told.first))
        columns[f"{name}_last"] = lists(told.device, instants(told.last))

    def ends_of(readings: Readings, owner: Ints) -> tuple[Ints, Ints, Bools]:
        """Places of each owner's first and last reading, and where there is none."""
        begin = np.searchsorted(readings.owner, owner, "left")
        end = np.searchsorted(readings.owner, owner, "right") - 1
        none = end < begin
        return np.where(none, 0, begin), np.where(none, 0, end), none

    for name, quantity in EDGES.items():
        owner = board if quantity in (Quantity.POWER, Quantity.ENERGY) else np.arange(count)
        readings = combined_utilization(hour, config) if name == "utilization" else hour.values[quantity]
        *ends, none = ends_of(readings, owner)
        for which, index in zip(("first", "last"), ends, strict=True):
            at = readings.at[index] if len(readings.at) else np.zeros(count, np.int64)
            value = readings.value[index] if len(readings.at) else np.zeros(count, np.int64)
            columns[f"{name}_{which}_at"] = instants(at, none)
            columns[f"{name}_{which}_value"] = pa.array(value, pa.int64(), mask=none)
    counter, power = hour.values[Quantity.ENERGY], hour.values[Quantity.POWER]
    equal_from, equal_to = _equal_neighbours(counter)
    begin, end, none = ends_of(counter, board)
    until, since = (bound[index] if len(bound) else index for bound, index in ((equal_to, begin), (equal_from, end)))
    columns["energy_first_until"], columns["energy_last_since"] = instants(until, none), instants(since, none)
    drawn = power.value > 0
    above = Readings(power.owner[drawn], power.at[drawn], power.value[drawn])
    begin, end, none = ends_of(above, board)
    for name, index in (("drawn_first_at", begin), ("drawn_last_at", end)):
        columns[name] = instants(above.at[index] if len(above.at) else index, none)
    columns |= _process_edges(hour, lists, instants)
    return pa.table(columns, schema=DCGM_SUMMARY)


def _equal_neighbours(readings: Readings) -> tuple[Ints, Ints]:
    """Of each reading, the first and the last instant of the readings that equal it without a break."""
    begins, ends = group_bounds(changes(readings.owner, readings.value))
    member = np.repeat(np.arange(len(begins)), ends - begins + 1)
    return readings.at[begins][member], readings.at[ends][member]


def _process_edges(
    hour: HourReadings, lists: Callable[[Ints, Column], Column], instants: Callable[[Ints], Column]
) -> dict[str, Column]:
    """The first and the last reading of each process, quantity by quantity, as columns of DCGM_SUMMARY."""
    parts = []
    for quantity, readings in hour.processes.items():
        order = sorting(readings.device, readings.label_set, readings.at)
        device, label = readings.device[order], readings.label_set[order]
        begins, ends = group_bounds(changes(device, label))
        kind = np.full(len(begins), quantity)
        edges = (column[order[index]] for index in (begins, ends) for column in (readings.at, readings.value))
        parts.append((device[begins], kind, label[begins], *edges))
    device, kind, label, first_at, first_value, last_at, last_value = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    order = sorting(device)
    names = np.array([next(iter(members), "") for members in hour.sets.members], dtype=object)
    return {
        "process_quantity": lists(device[order], pa.array(kind[order], pa.int32())),
        "process_label": lists(device[order], pa.array(names[label[order]], pa.string())),
        "process_first_at": lists(device[order], instants(first_at[order])),
        "process_first_value": lists(device[order], pa.array(first_value[order], pa.int64())),
        "process_last_at": lists(device[order], instants(last_at[order])),
        "process_last_value": lists(device[order], pa.array(last_value[order], pa.int64())),
    }


def _runs_within(hour: HourReadings, scrape_ms: Ints, config: AccountingConfig) -> Runs:
    """Measured windows of the hour, as far as the hour alone shows (A11); a scrape interval of 0 bridges nothing."""
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
        scrape_ms[runs.device[:-1]],
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


def _node_next(hour: HourReadings, last_at: Ints) -> Column:
    """The first instant of each device's last node after the device's last one: it is another device's (A21)."""
    nodes = hour.nodes
    number = {name: place for place, name in enumerate(sorted(set(nodes.text.tolist())))}
    code = np.array([*(number[name] for name in nodes.text.tolist()), -1], dtype=np.int64)
    stretch = nodes.latest(hour.instant_device, hour.instant_at)
    keys = np.append(np.sort(packed(code[stretch] + 1, hour.instant_at - hour.start, HOUR_MS)), -1)
    node = code[nodes.latest(np.arange(len(last_at)), last_at)] + 1
    following = np.searchsorted(keys[:-1], packed(node, last_at - hour.start, HOUR_MS), "right")
    found, offset = np.divmod(keys[following], HOUR_MS)
    return pa.array(hour.start + offset, INSTANT, mask=(found != node) | (node == 0))


def _node_spans(table: pa.Table, device: Ints, count: int) -> tuple[Ints, Ints]:
    """`last_read` and `node_span_ms` of the timeline; the rows are in order of the hours."""
    last_read, span = np.full(count, NEVER_BEFORE, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    lists = whole(table["node_text"])
    of_row, names = ints(pc.list_parent_indices(lists)), lists.flatten().dictionary_encode()
    first, last = (ints(whole(table[f"node_{side}"]).flatten()) for side in ("first", "last"))
    row = np.full(count, -1, dtype=np.int64)
    row[device] = np.arange(len(device))  # the last row of a device stays
    read = np.flatnonzero(row >= 0)
    last_read[read] = ints(table["last_at"])[row[read]]
    stretch = np.searchsorted(of_row, row[read], "right") - 1  # the last one of the device's last row
    told = (stretch >= 0) & (np.append(of_row, -1)[stretch] == row[read])
    read, stretch = read[told], stretch[told]
    if not len(read):
        return last_read, span
    code = ints(names.indices)
    latest = np.full(len(names.dictionary), NEVER_BEFORE, dtype=np.int64)
    np.maximum.at(latest, code, last)
    # within the hour of the last reading `node_next_at` tells the first one of another device, later the first stretch does
    node, low = code[stretch], int(first.min())
    keys = np.append(np.sort(packed(code, first - low, WIDEST)), -1)
    hour_end = (last_read[read] // HOUR_MS + 1) * HOUR_MS
    following = keys[np.searchsorted(keys[:-1], packed(node, hour_end - low, WIDEST), "left")]
    later = np.where(following // WIDEST == node, following % WIDEST + low, NEVER_AFTER)
    earliest = np.minimum(ints(table["node_next_at"], NEVER_AFTER)[row[read]], later)
    span[read] = np.where(earliest < NEVER_AFTER, latest[node] - earliest, -1)
    return last_read, span


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
    hour: HourReadings,
    summaries: Mapping[int, pa.Table],
    listed: Mapping[str, str],
    spellings: Iterable[str],
    config: AccountingConfig,
) -> Timeline:
    """The summaries of the hours in reach, by their start in epoch ms, the hour's own among them, as one timeline.

    `hour` has the readings that the timeline is for; `listed` are the inventory's devices, which need no reading, key
    -> model; `spellings` are other names of models in the hour (section 2).
    """
    start, sets = hour.start, hour.sets
    hours = sorted(begin for begin in summaries if len(summaries[begin]))
    parts = [summaries[begin].drop_columns("config") for begin in hours]
    table = pa.concat_tables(parts).combine_chunks() if parts else DCGM_SUMMARY.empty_table()
    of_hour = np.repeat(np.array(hours, dtype=np.int64), [len(summaries[h]) for h in hours]).astype(np.int64)
    keys = device_order([*texts(table["device"].unique()), *listed])
    device = ints(pc.index_in(table["device"], pa.array(keys, pa.string())))
    count = len(keys)
    models = _told(table, "model", device)
    which = models.in_windows(count, start, config)
    told = models.text[np.unique(which[which >= 0])].tolist()
    names = ModelNames.of({*hour.spellings, *told, *spellings}, config)
    devices = _facts(keys, table, of_hour, device, start, most_told(models, which, config), listed, names)
    profiles = _told(table, "profile", device)
    boards = np.array(sorted(set(devices.uuid.tolist())), dtype=object)
    board = ints(pc.index_in(pa.array(devices.uuid, pa.string()), pa.array(boards, pa.string())))
    scrape, row_scrape = _scrape_intervals(table, device, of_hour == start, count, config)
    before, after = of_hour < start, of_hour > start
    last = (ints(table["last_at"]), _interned(table["last_labels"], sets))
    first = (ints(table["first_at"]), _interned(table["first_labels"], sets))
    edges = _edges(table, device, board, before, after, count, len(boards))
    runs = _joined_runs(table, of_hour, device, start, sets, row_scrape, config)
    index = {key: position for position, key in enumerate(keys)}
    together = whole(table["together"])
    linked, others = ints(pc.list_parent_indices(together)), together.flatten().to_pylist()
    last_read, node_span_ms = _node_spans(table, device, count)
    return Timeline(
        start=start,
        devices=devices,
        names=names,
        card=np.array(mapped(names.slices, devices.model.tolist()), dtype=np.int64),
        profile=_profiles(profiles, count, start, config),
        boards=boards,
        board=board,
        sets=sets,
        scrape_ms=scrape,
        runs=runs,
        last_before=_edge(device, *last, before, count, NEVER_BEFORE),
        first_after=_edge(device, *first, after, count, NEVER_AFTER),
        before=edges[0],
        after=edges[1],
        standing=(
            _standing(table, of_hour, board[device], before, len(boards), -1),
            _standing(table, of_hour, board[device], after, len(boards), 1),
        ),
        processes=_processes(table, device, before, after, sets),
        last_read=last_read,
        nodes=_told(table, "node", device),
        node_span_ms=node_span_ms,
        together=frozenset((int(device[row]), index[key]) for row, key in zip(linked, others, strict=True)),
    )


def _told(table: pa.Table, name: str, device: Ints) -> Told:
    """The stretches of all hours as one row of them for each device."""
    lists = whole(table[f"{name}_text"])
    encoded = lists.flatten().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ascending = sorted(names)
    place = {text: rank for rank, text in enumerate(ascending)}
    code = np.array([place[text] for text in names], dtype=np.int64)[ints(encoded.indices)] if names else device[:0]
    return Told.of(
        device[ints(pc.list_parent_indices(lists))],
        ints(whole(table[f"{name}_first"]).flatten()),
        ints(whole(table[f"{name}_last"]).flatten()),
        code,
        ascending,
    )


def _profiles(told: Told, devices: int, start: int, config: AccountingConfig) -> Ints:
    """Devices x windows: slices by the profile that each window shows, 0 where there is none that is understood."""
    slices = [profile_slices(text) or 0 for text in told.text.tolist()]
    return np.array([*slices, 0], dtype=np.int64)[told.in_windows(devices, start, config)]


def _facts(
    keys: list[str],
    table: pa.Table,
    hour: Ints,
    device: Ints,
    start: int,
    models: list[str],
    listed: Mapping[str, str],
    names: ModelNames,
) -> Devices:
    """Model of each device by its readings, else by the inventory; node of the hour itself, else of the latest hour
    before, else of the next after.
    """
    order = np.argsort(np.where(hour <= start, hour, 2 * start - hour - (1 << 45)), kind="stable")
    row = np.full(len(keys), -1, dtype=np.int64)
    row[device[order]] = order
    node = texts(table["node"])
    parts = [key.partition("/") for key in keys]
    given = [
        model or listed.get(key) or listed.get(part[0]) or ""
        for model, key, part in zip(models, keys, parts, strict=True)
    ]
    return Devices(
        key=np.array(keys, dtype=object),
        uuid=np.array([uuid for uuid, _, _ in parts], dtype=object),
        instance=np.array([instance for _, _, instance in parts], dtype=object),
        model=np.array(mapped(names.named, given), dtype=object),
        node=np.array(["" if r < 0 else node[r] for r in row], dtype=object),
    )


def _scrape_intervals(
    table: pa.Table, device: Ints, here: Bools, count: int, config: AccountingConfig
) -> tuple[Ints, Ints]:
    """Scrape intervals in ms: of each device in the hour (the rows `here`), and of each row in its own hour (A11).

    Where no target has 10 distances in an hour, those within all hours in reach count.
    """
    of_row = ints(table["scrape_seconds"], NO_INTERVAL)
    own = np.full(count, NO_INTERVAL, dtype=np.int64)
    own[device[here]] = of_row[here]
    wanted = own == NO_INTERVAL
    wanted[device[of_row == NO_INTERVAL]] = True
    rows = np.flatnonzero(wanted[device])
    if len(rows):
        part = table.select(["spacing_target", "spacing_seconds", "spacing_count"]).take(rows)
        lists = whole(part["spacing_target"])
        within_reach = scrape_seconds(
            device[rows][ints(pc.list_parent_indices(lists))],
            ints(lists.flatten().dictionary_encode().indices),
            ints(whole(part["spacing_seconds"]).flatten()),
            ints(whole(part["spacing_count"]).flatten()),
            count,
        )
        own = np.where(own == NO_INTERVAL, within_reach, own)
        of_row = np.where(of_row == NO_INTERVAL, within_reach[device], of_row)
    return _interval_ms(own, config), _interval_ms(of_row, config)


def _standing(table: pa.Table, hour: Ints, board: Ints, rows: Bools, boards: int, direction: int) -> Standing:
    """Follow equal readings of the counter away from the hour, hour by hour; `direction` is -1 before it, 1 after it."""
    near, far, never, edge = (
        ("last", "first", NEVER_BEFORE, "energy_last_since")
        if direction < 0
        else ("first", "last", NEVER_AFTER, "energy_first_until")
    )
    at, drawn = np.full(boards, never, dtype=np.int64), np.zeros(boards, dtype=bool)
    value = np.zeros(boards, dtype=np.int64)
    open_, between = np.ones(boards, dtype=bool), np.zeros(boards, dtype=bool)
    columns = {
        name: ints(table[name], never)
        for name in (f"energy_{near}_at", f"energy_{near}_value", f"energy_{far}_at", edge, f"drawn_{near}_at")
    }
    for moment in sorted(set(hour[rows].tolist()), key=lambda moment: -direction * moment, reverse=True):
        if not open_.any():
            break
        of = np.flatnonzero(hour == moment)
        of = of[np.unique(board[of], return_index=True)[1]]
        of = of[open_[board[of]]]
        near_at, near_value, far_at, equal, above = (column[of] for column in columns.values())
        who = board[of]
        read = near_at != never
        on = read & ((at[who] == never) | (value[who] == near_value))
        reaches = (above != never) & ((above - equal) * direction <= 0)
        drawn[who[on]] |= (between[who] | reaches)[on]
        at[who[on]], value[who[on]] = equal[on], near_value[on]
        between[who] |= above != never
        open_[who[read]] = (on & (equal == far_at))[read]
    return Standing(at, drawn)


def _processes(
    table: pa.Table, device: Ints, before: Bools, after: Bools, sets: LabelSets
) -> tuple[Mapping[Quantity, ProcessReadings], Mapping[Quantity, ProcessReadings]]:
    """Of each device, process and quantity the last reading before the hour and the first one after it."""
    lists = whole(table["process_label"])
    row = ints(pc.list_parent_indices(lists))
    label = _interned(lists.flatten(), sets)
    quantity = ints(whole(table["process_quantity"]).flatten())
    sides: tuple[dict[Quantity, ProcessReadings], dict[Quantity, ProcessReadings]] = ({}, {})
    for side, (which, rows, sign) in zip(sides, (("last", before, -1), ("first", after, 1)), strict=True):
        at, value = (ints(whole(table[f"process_{which}_{name}"]).flatten()) for name in ("at", "value"))
        for kind in (Quantity.UTILIZATION, Quantity.UTILIZATION_COARSE, Quantity.MEMORY):
            part = np.flatnonzero(rows[row] & (quantity == kind))
            part = part[np.lexsort((sign * at[part], label[part], device[row[part]]))]
            part = part[changes(device[row[part]], label[part])]
            side[kind] = ProcessReadings(device[row[part]], at[part], label[part], value[part])
    return sides


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
    table: pa.Table, hour: Ints, device: Ints, start: int, sets: LabelSets, scrape_ms: Ints, config: AccountingConfig
) -> Runs:
    """The runs of all hours, with the windows bridged that lie between two hours, or between few instants of one."""
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
    sparse = whole(table["sparse_at"])
    owner, at = ints(pc.list_parent_indices(sparse)), ints(sparse.flatten())
    labels = _interned(whole(table["sparse_labels"]).flatten(), sets)
    within_hours = _bridges(
        device[owner[:-1]],
        start,
        (at[:-1], labels[:-1]),
        (at[1:], labels[1:]),
        scrape_ms[owner[:-1]],
        owner[:-1] == owner[1:],
        config,
    )
    bridges = [
        bridge
        for side, within in ((left, (-(1 << 40), border - 1)), (right, (border, 1 << 40)))
        for bridge in _bridges(
            device[left],
            start,
            (last_at[left], last_set[left]),
            (first_at[right], first_set[right]),
            scrape_ms[side],
            device[left] == device[right],
            config,
            within,
        )
    ]
    return merge_runs([runs, *within_hours, *bridges])


def _interned(joined: Column, sets: LabelSets) -> Ints:
    """Joined labels -> label sets."""
    encoded = whole(joined).dictionary_encode()
    ids = [sets.intern(text.split(SEPARATOR) if text else ()) for text in encoded.dictionary.to_pylist()]
    return np.array(ids, dtype=np.int64)[encoded.indices.to_numpy()] if ids else np.zeros(0, np.int64)
