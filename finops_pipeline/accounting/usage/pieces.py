"""The pieces of a board's hour, and all that was used in them (A13, A15, A19, A20).

A piece is a window, or a part of one in which the holders of the board's devices do not change.
What belongs here: status, methods and use of windows and pieces. What does not: sums and shares (`usage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from finops_pipeline.accounting.arrays import (
    Bools,
    Ints,
    Texts,
    changes,
    group_bounds,
    mapped,
    scrambled,
    sorting,
    spread,
)
from finops_pipeline.accounting.config import AccountingConfig, Quantity
from finops_pipeline.accounting.exact import half_even_div
from finops_pipeline.accounting.holding.holders import Holding
from finops_pipeline.accounting.holding.lifecycle import NANO
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.telemetry.energy import WindowCounter, counter_of, stretch_energy
from finops_pipeline.accounting.telemetry.readings import HourReadings, Readings
from finops_pipeline.accounting.telemetry.summaries import Edge, Timeline, combined_utilization
from finops_pipeline.accounting.telemetry.windows import Filled, Method, fill, gap_windows

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Measure:
    """One quantity in every window, the holders being known: owners x windows."""

    value: Ints
    method: Codes

    @property
    def known(self) -> Bools:
        return np.asarray(self.method != Method.MISSING)


@dataclass(frozen=True)
class Pieces:
    """One element a (device, piece, holder), of visible devices only; nobody is a holder too."""

    device: Ints
    window: Ints
    cell: Ints
    """device x windows + window: its place in a table of devices x windows, laid flat"""
    begin: Ints
    end: Ints
    """ms from the hour's start"""
    holder: Ints
    """party of a workload (A4), `len(parties)` + pod, or NOBODY"""
    interval: Ints
    """of the holding's intervals, or NOBODY"""
    holders: Ints
    """how many share the device then (A19)"""
    units: Ints
    """billionths of a unit of `gpu_count` that the device matches (A21)"""
    pods: Ints
    """how many of the holders are pods without events"""
    taken: Ints
    """what workloads' units take of the device: GPU-ms times `Holding.taken.whole`"""
    state: Codes


@dataclass(frozen=True)
class Energy:
    """What the board used in each piece, and where the class of the holder told it (A20)."""

    value: Ints
    """mJ, an element a piece"""
    known: Bools
    by_class: Bools
    """devices x windows: modelled by the holder's class (A13 rung 5)"""


@dataclass(frozen=True)
class Measures:
    """What was read in every window, or stands for a reading: devices x windows; power is the board's."""

    utilization: Measure
    memory: Measure
    power: Measure


@dataclass(frozen=True)
class Status:
    """How well each window is known (A15): devices x windows; measured is neither estimated nor missing."""

    estimated: Bools
    missing: Bools
    rungs: dict[Method, Bools]
    """which rungs a window used"""


@dataclass(frozen=True)
class HourPieces:
    """All that was used in an hour, whole as soon as it is made."""

    pieces: Pieces
    energy: Energy
    seen: Bools
    """devices x windows: visible whoever holds it (A21)"""
    visible: Bools
    """devices x windows: visible in some part of it"""
    measures: Measures
    status: Status
    provisional: bool
    """a gap or a hole in a label that no later reading has closed yet (A16)"""
    counter: WindowCounter
    counter_gaps: Bools
    """devices x windows: gaps of the energy counter (A11)"""


def hour_pieces(
    hour: HourReadings,
    timeline: Timeline,
    seen: Bools,
    holding: Holding,
    config: AccountingConfig,
) -> HourPieces:
    """One hour's pieces; `seen` (devices x windows) is where devices are visible whoever holds them, `holding` the
    outcome of A17.
    """
    device_of = places(hour.devices.key, timeline.devices.key)
    board_of = places(hour.boards, timeline.boards)
    held, held_by_events = _held_windows(holding, timeline, config)
    visible = seen | held

    def near(quantity: Quantity, readings: Readings) -> tuple[Readings, Edge, Edge]:
        return readings, timeline.before[quantity], timeline.after[quantity]

    def of_board(quantity: Quantity) -> tuple[Readings, Edge, Edge]:
        readings = hour.values[quantity]
        return near(quantity, Readings(board_of[readings.owner], readings.at, readings.value))

    def filled(readings: Readings, before: Edge, after: Edge) -> Filled:
        return fill(readings, before, after, hour.start, timeline.scrape_ms, config)

    combined, memories = combined_utilization(hour, config), hour.values[Quantity.MEMORY]
    utilization = filled(*near(Quantity.UTILIZATION, Readings(device_of[combined.owner], combined.at, combined.value)))
    memory = filled(*near(Quantity.MEMORY, Readings(device_of[memories.owner], memories.at, memories.value)))
    drawn, energy = of_board(Quantity.POWER), of_board(Quantity.ENERGY)
    power = filled(*_seen_by_devices(*drawn, timeline))
    counter = WindowCounter.of(
        counter_of(*energy, _power_limits(timeline, config), drawn[0], timeline.standing),
        len(timeline.boards),
        hour.start,
        config.windows,
        config.window_ms,
    )
    counter_gaps = gap_windows(*_seen_by_devices(*energy, timeline), hour.start, timeline.scrape_ms, config)
    measures = Measures(
        utilization=_settled(utilization, held_by_events),
        memory=_settled(memory, held_by_events),
        power=_modelled(_settled(power, held_by_events), power.known, held, timeline, config),
    )
    pieces = _pieces(holding, timeline, seen)
    spent = _energy(pieces, counter, measures.power, power.known, holding, timeline, config)
    ever_read = (utilization.known, memory.known, power.known)
    return HourPieces(
        pieces=pieces,
        energy=spent,
        seen=seen,
        visible=visible,
        measures=measures,
        status=_status(measures, ever_read, counter, counter_gaps, spent.by_class, holding, timeline, config),
        provisional=holding.open_hole or _open_gap(visible, (utilization, memory, power), holding, timeline),
        counter=counter,
        counter_gaps=counter_gaps,
    )


def _open_gap(visible: Bools, quantities: Sequence[Filled], holding: Holding, timeline: Timeline) -> bool:
    """Whether a visible window lies in a gap that no later reading has closed yet (A16)."""
    waits = np.logical_or.reduce([filled.open_ended for filled in quantities])
    runs = timeline.runs
    last_window = np.full(len(timeline.devices), -1, dtype=np.int64)
    np.maximum.at(last_window, runs.device, runs.last)
    silent_since = np.arange(visible.shape[1]) > last_window[:, None]
    return bool((visible & (waits | (holding.silent & silent_since))).any())


def _seen_by_devices(readings: Readings, before: Edge, after: Edge, timeline: Timeline) -> tuple[Readings, Edge, Edge]:
    """A board's readings as each of its devices has them: with a scrape interval and holders of its own."""
    board = timeline.board
    first = np.searchsorted(readings.owner, board, "left")
    device, position = spread(np.searchsorted(readings.owner, board, "right") - first)
    row = first[device] + position
    return (
        Readings(device, readings.at[row], readings.value[row]),
        Edge(before.at[board], before.value[board]),
        Edge(after.at[board], after.value[board]),
    )


def places(keys: Texts, among: Texts) -> Ints:
    """Where each of `keys` stands in `among`."""
    index = {key: place for place, key in enumerate(among.tolist())}
    return np.array([index[key] for key in keys.tolist()], dtype=np.int64)


def _held_windows(holding: Holding, timeline: Timeline, config: AccountingConfig) -> tuple[Bools, Bools]:
    """Devices x windows: somebody holds a part of it; somebody with events does."""
    held = np.zeros((len(timeline.devices), config.windows), dtype=bool)
    by_events = held.copy()
    cell, holder = holding.claims.cell, holding.claims.holder
    place = holding.cells.device * config.windows + holding.cells.window
    held.ravel()[place[cell]] = True
    by_events.ravel()[place[cell[holder < len(holding.intervals)]]] = True
    return held, by_events


def _settled(filled: Filled, held_by_events: Bools) -> Measure:
    """A reading on one side only counts where a workload with events holds the device (A13 rung 4)."""
    method = np.where((filled.method == Method.HELD) & ~held_by_events, np.int8(Method.MISSING), filled.method)
    return Measure(np.where(method == Method.MISSING, 0, filled.value), method)


def _modelled(power: Measure, ever_read: Bools, held: Bools, timeline: Timeline, config: AccountingConfig) -> Measure:
    """Power of devices that never tell it: the watts of their model while somebody holds them (A13 rung 5)."""
    milliwatts = np.array(
        mapped(lambda name: _milli(config.watts(name)), timeline.devices.model.tolist()), dtype=np.int64
    )
    use = (~ever_read & (milliwatts > 0))[:, None] & held
    method = np.where(use, np.int8(Method.MODELLED), power.method)
    return Measure(np.where(use, milliwatts[:, None], power.value), method)


def _milli(watts: Decimal | None) -> int:
    return 0 if watts is None else int((watts * 1000).to_integral_value())


def _power_limits(timeline: Timeline, config: AccountingConfig) -> Ints:
    """MW of each board; 0 is no limit."""
    limits = np.zeros(len(timeline.boards), dtype=np.int64)
    of_devices = mapped(lambda model: _milli(config.limit(model).power_w), timeline.devices.model.tolist())
    limits[timeline.board] = np.array(of_devices, dtype=np.int64)
    return limits


def visible_cells(seen: Bools, holding: Holding) -> Bools:
    """Where a device is visible: seen (A21), or while it is held."""
    visible = seen.ravel()[holding.cells.place]
    visible[holding.claims.cell] = True
    return visible


def _pieces(holding: Holding, timeline: Timeline, seen: Bools) -> Pieces:
    """Cells merged where the holders of the board's devices stay the same, one element a holder."""
    of, claims = holding.cells, holding.claims
    cell = of.place
    visible = visible_cells(seen, holding)
    who = holding.holder_numbers()[claims.holder]
    begins = np.searchsorted(of.device, np.arange(len(timeline.devices)))
    leader = begins[np.searchsorted(timeline.board, timeline.board)]
    board_cell = np.arange(len(of)) + (leader - begins)[of.device]
    mark = np.zeros(len(of), dtype=np.uint64)
    np.add.at(mark, board_cell[claims.cell], scrambled((who << 32) + of.device[claims.cell]))
    mark = mark[board_cell]
    first, last = group_bounds(changes(of.device, of.window, mark))
    piece_of = np.full(len(of), -1, dtype=np.int64)
    piece_of[first] = np.arange(len(first))
    on_first = piece_of[claims.cell] >= 0
    piece = piece_of[claims.cell[on_first]]
    holder, interval = who[on_first], claims.holder[on_first]
    units = holding.units[on_first]
    holders = np.bincount(piece, minlength=len(first))
    pods = np.bincount(piece[holder >= len(holding.parties)], minlength=len(first))
    taken = np.add.reduceat(holding.taken.amount * (of.end - of.begin), first) if len(first) else first
    alone = np.flatnonzero((holders == 0) & visible[first])
    piece = np.concatenate([piece, alone])
    holder = np.concatenate([holder, np.full(len(alone), NOBODY)])
    interval = np.concatenate(
        [np.where(interval < len(holding.intervals), interval, NOBODY), np.full(len(alone), NOBODY)]
    )
    units = np.concatenate([units, np.zeros(len(alone), dtype=np.int64)])
    order = np.argsort(piece, kind="stable")
    order = order[sorting(piece[order], holder[order])]
    order = order[visible[first[piece[order]]]]
    piece, holder, interval, units = piece[order], holder[order], interval[order], units[order]
    here = first[piece]
    return Pieces(
        device=of.device[here],
        window=of.window[here],
        cell=cell[here],
        begin=of.begin[here],
        end=of.end[last[piece]],
        holder=holder,
        interval=interval,
        holders=np.maximum(holders[piece], 1),
        units=units,
        pods=pods[piece],
        taken=taken[piece],
        state=holding.state[here],
    )


def _energy(
    pieces: Pieces,
    counter: WindowCounter,
    power: Measure,
    ever_read: Bools,
    holding: Holding,
    timeline: Timeline,
    config: AccountingConfig,
) -> Energy:
    """Energy of each piece (A20)."""
    board = timeline.board[pieces.device]
    milliwatts, known = power.value.ravel()[pieces.cell], power.known.ravel()[pieces.cell]
    by_class = _class_watts(pieces, holding, timeline, config)
    use = ~known & ~ever_read[pieces.device] & (by_class > 0)
    value, value_known = stretch_energy(
        counter, board, pieces.begin, pieces.end, np.where(use, by_class, milliwatts), known | use
    )
    # a window of which a part is unknown is unknown
    value_known &= ~((np.diff(counter.unsound, axis=1)[board, pieces.window] > 0) & ~(known | use))
    modelled = np.zeros((len(timeline.devices), config.windows), dtype=bool)
    modelled.ravel()[pieces.cell[use]] = True
    return Energy(value, value_known, modelled)


def _class_watts(pieces: Pieces, holding: Holding, timeline: Timeline, config: AccountingConfig) -> Ints:
    """MW of each piece by the class of the one workload that holds the device in the window, else 0 (A13 rung 5).

    Class watts are those of one unit; a MIG device, or one with several holders, has only its model's (A20).
    """
    classes = (name or "" for name in holding.intervals.placed_class.tolist())
    per_unit = mapped(lambda name: _milli(config.watts(name)), classes)
    if not any(per_unit):
        return np.zeros(len(pieces.device), dtype=np.int64)
    held = np.flatnonzero(pieces.holder != NOBODY)
    window, windows = pieces.cell, len(timeline.devices) * config.windows
    workload = np.append(holding.intervals.workload, NOBODY)[pieces.interval]
    workload = np.where(workload == NOBODY, len(holding.intervals.workloads) + pieces.holder, workload)
    lowest, highest = np.full(windows, np.iinfo(np.int64).max), np.full(windows, NOBODY)
    np.minimum.at(lowest, window[held], np.where(pieces.holders[held] > 1, NOBODY, workload[held]))
    np.maximum.at(highest, window[held], workload[held])
    whole = timeline.devices.instance[pieces.device[held]] == ""
    held = held[(lowest == highest)[window[held]] & (pieces.interval[held] != NOBODY) & whole]
    watts = np.array([*per_unit, 0], dtype=np.int64)[pieces.interval[held]]
    of_window = np.zeros(windows, dtype=np.int64)
    # pieces ascend by time: the first one of a window is written last and stays
    of_window[window[held][::-1]] = half_even_div(watts * pieces.units[held], NANO)[::-1]
    return of_window[window]


def _status(
    measures: Measures,
    ever_read: tuple[Bools, Bools, Bools],
    counter: WindowCounter,
    counter_gaps: Bools,
    by_class: Bools,
    holding: Holding,
    timeline: Timeline,
    config: AccountingConfig,
) -> Status:
    """Status and rungs of every window (A15); `ever_read` says which owners have any reading within reach."""
    board, width = timeline.board, config.window_ms
    unsound = np.diff(counter.unsound, axis=1)[board]
    from_power, from_counter = unsound > 0, unsound < width
    power_method = np.where(by_class, np.int8(Method.MODELLED), measures.power.method)
    no_energy = from_power & (power_method == Method.MISSING)
    has_counter = np.zeros(len(timeline.boards), dtype=bool)
    has_counter[counter.counter.board] = True
    read_utilization, read_memory, read_power = ever_read
    read_energy = has_counter[board] | read_power
    never = ~(read_utilization | read_memory | read_energy)[:, None]
    missing = (
        (~measures.utilization.known & read_utilization[:, None])
        | (~measures.memory.known & read_memory[:, None])
        | (no_energy & (read_energy[:, None] | never))
    )
    methods = (
        measures.utilization.method,
        measures.memory.method,
        np.where(from_power, power_method, np.int8(Method.MEASURED)),
    )
    rungs = {
        rung: (methods[0] == rung) | (methods[1] == rung) | (methods[2] == rung)
        for rung in (Method.LINEAR, Method.PROFILE, Method.HELD, Method.MODELLED)
    }
    estimated = holding.silent.copy()
    for used in rungs.values():
        estimated |= used
    rungs[Method.COUNTER] = counter_gaps & from_counter
    return Status(estimated=estimated & ~missing, missing=missing, rungs=rungs)
