"""What each holder, or nobody, had and used of each board in an hour (A15, A18-A20, A28).

What belongs here: sums over pieces, and the division of MIG and shared boards.
What does not: workloads' rows and published units (`usage`).

Whole numbers are summed as columns. Only boards that are MIG or shared in the hour take exact fractions,
once per board and holder.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import (
    Bools,
    Column,
    Ints,
    Texts,
    changes,
    grouped,
    sorting,
)
from finops_pipeline.accounting.config import AccountingConfig, Quantity
from finops_pipeline.accounting.exact import (
    HOUR_MS,
    decimal_of,
    hour_text,
    largest_remainder,
    round_half_even,
    rows_of,
)
from finops_pipeline.accounting.holding.cells import Cells
from finops_pipeline.accounting.holding.deployments import PodOwner
from finops_pipeline.accounting.holding.holders import Holding
from finops_pipeline.accounting.holding.states import State
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.telemetry.cards import Slices
from finops_pipeline.accounting.telemetry.readings import HourReadings, Readings
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, NEVER_BEFORE, Edge, Timeline
from finops_pipeline.accounting.telemetry.windows import RUNGS, Method, fill
from finops_pipeline.accounting.usage.pieces import HourPieces, Pieces, places, visible_cells
from finops_pipeline.contracts.lake import FLEET_STATES, GPU_HOLDINGS, GPU_MATCHES

UNITS = ("time", "activity", "memory", "energy")
SEPARATOR = "\x1f"
"""between a share id and what tells parts of one share id apart"""
Amounts = dict[str, tuple[Ints, Bools]]
"""Of each unit, the amounts and whether they are known"""


def holdings_table(
    hour: HourReadings,
    timeline: Timeline,
    holding: Holding,
    found: HourPieces,
    slices: Slices,
    config: AccountingConfig,
) -> pa.Table:
    """GPU_HOLDINGS of an hour, ascending by board and holder."""
    pieces = found.pieces
    board = timeline.board[pieces.device]
    order, first = grouped(board, pieces.holder)
    group = np.zeros(len(order), dtype=np.int64)
    group[order] = np.cumsum(changes(board[order], pieces.holder[order])) - 1
    groups = len(first)
    of_board, of_holder = board[order[first]], pieces.holder[order[first]]
    mig = np.zeros(len(timeline.boards), dtype=bool)
    mig[timeline.board[(timeline.devices.instance != "") & found.visible.any(axis=1)]] = True
    shared = np.zeros(len(timeline.boards), dtype=bool)
    shared[board[pieces.holders > 1]] = True
    split = (mig | shared)[board]
    used = _used(pieces, found)
    amounts = {unit: _totals(group, groups, amount, known & ~split) for unit, (amount, known) in used.items()}
    rows = np.flatnonzero(split)
    if len(rows):
        shares = _shares(pieces, rows, used, hour, timeline, holding, slices, mig, config)
        left = _left_to_pods(pieces, rows, group[rows], holding, slices)
        for unit, parts in shares.items():
            _add_split(
                amounts[unit],
                group[rows],
                parts,
                of_board,
                of_holder,
                timeline,
                holding,
                hour_text(hour.start),
                left if unit == "time" else defaultdict(Fraction),
            )
    begin, end = np.full(groups, HOUR_MS), np.zeros(groups, np.int64)
    np.minimum.at(begin, group, pieces.begin)
    np.maximum.at(end, group, pieces.end)
    lifecycle = (of_holder != NOBODY) & (of_holder < len(holding.parties))
    basis = np.select([of_holder == NOBODY, lifecycle], ["idle", "lifecycle"], "samples")
    model = _board_models(timeline)[of_board]
    party = np.where(lifecycle, of_holder, NOBODY)
    columns: dict[str, Column] = {
        "gpu_uuid": pa.array(timeline.boards[of_board], pa.string()),
        "gpu_model": pa.array(model, pa.string()),
        "workload_id": pa.array(holder_names(of_holder, model, holding), pa.string()),
        "tenant_id": pa.array(_of_party(holding.parties.tenant, party), pa.string()),
        "deployment_id": pa.array(_of_party(holding.parties.deployment, party), pa.string()),
        "basis": pa.array(basis.tolist(), pa.string()),
        "first_at": pa.array(hour.start + begin, GPU_HOLDINGS.field("first_at").type),
        "last_at": pa.array(hour.start + end, GPU_HOLDINGS.field("last_at").type),
    }
    for unit, (amount, known) in amounts.items():
        columns[unit] = pa.array(amount, pa.int64(), mask=~known)
    for name, mask in _device_times(pieces, found).items():
        span = np.where(mask, pieces.end - pieces.begin, 0)
        columns[name] = pa.array(_totals(group, groups, span, mask)[0], pa.int64())
    return pa.table(columns, schema=GPU_HOLDINGS)


def _of_party(texts: Texts, party: Ints) -> list[str | None]:
    """A text of each party; None for NOBODY."""
    return [None if number == NOBODY else str(texts[number]) for number in party.tolist()]


def holder_names(holder: Ints, model: Texts, holding: Holding) -> Texts:
    """workload_id, `namespace/pod`, or `idle:<model>`: also the names by which A29 breaks ties."""
    known = np.concatenate([holding.parties.workload, np.array(holding.pods, dtype=object), [""]]).astype(object)
    return np.where(holder == NOBODY, "idle:" + model, known[holder])


def _board_models(timeline: Timeline) -> Texts:
    models = np.full(len(timeline.boards), "", dtype=object)
    models[timeline.board[::-1]] = timeline.devices.model[::-1]
    return models


def _totals(group: Ints, groups: int, amount: Ints, known: Bools) -> tuple[Ints, Bools]:
    """Sums of the known amounts of each group, and whether there is any."""
    total, some = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=bool)
    np.add.at(total, group[known], amount[known])
    some[group[known]] = True
    return total, some


def _device_times(pieces: Pieces, found: HourPieces) -> dict[str, Bools]:
    """Which pieces count for which column of device time; an instance or a shared device counts whole (A15)."""
    missing, estimated = found.status.missing.ravel()[pieces.cell], found.status.estimated.ravel()[pieces.cell]
    masks = {"measured_ms": ~missing & ~estimated, "estimated_ms": estimated, "missing_ms": missing}
    return masks | {f"{rung.name.lower()}_ms": found.status.rungs[rung].ravel()[pieces.cell] for rung in RUNGS}


def _used(pieces: Pieces, found: HourPieces) -> Amounts:
    """What the whole device used in each piece; energy is the board's."""
    at = pieces.cell
    span = pieces.end - pieces.begin
    return {
        "time": (span, np.ones(len(span), dtype=bool)),
        "activity": (found.measures.utilization.value.ravel()[at] * span, found.measures.utilization.known.ravel()[at]),
        "memory": (found.measures.memory.value.ravel()[at] * span, found.measures.memory.known.ravel()[at]),
        "energy": (found.energy.value, found.energy.known),
    }


def _shares(
    pieces: Pieces,
    rows: Ints,
    used: Amounts,
    hour: HourReadings,
    timeline: Timeline,
    holding: Holding,
    slices: Slices,
    mig: Bools,
    config: AccountingConfig,
) -> dict[str, tuple[Ints, Ints, Bools]]:
    """Exact parts of the pieces of MIG and shared boards, as amount, denominator and known (A19)."""
    device, holders = pieces.device[rows], pieces.holders[rows]
    number, per = (table[device, pieces.window[rows]] for table in (slices.number, slices.per))
    part, whole = slices.part(device, pieces.window[rows])
    weight, together = _weights(pieces, rows, number, per, timeline.board[device])
    divided = mig[timeline.board[device]]
    here = {unit: (amount[rows], known[rows]) for unit, (amount, known) in used.items()}
    span = here["time"][0]
    shares = {
        "time": (span * part, whole * holders, (pieces.holder[rows] == NOBODY) | (pieces.pods[rows] == holders)),
        "activity": (here["activity"][0] * part, whole * holders, here["activity"][1]),
        "memory": (here["memory"][0], holders, here["memory"][1]),
        "energy": (
            here["energy"][0] * np.where(divided, weight, 1),
            np.where(divided, together, 1) * holders,
            here["energy"][1],
        ),
    }
    own = {
        "memory": ((Quantity.MEMORY,), np.ones_like(part), np.ones_like(whole)),
        "activity": ((Quantity.UTILIZATION, Quantity.UTILIZATION_COARSE), part, whole),
    }
    for unit, (quantities, numerator, denominator) in own.items():
        value, has = _process_values(pieces, rows, hour, timeline, holding, quantities, config)
        amount, divisor, known = shares[unit]
        shares[unit] = (
            np.where(has, value * span * numerator, amount),
            np.where(has, denominator, divisor),
            known | has,
        )
    return shares


def _weights(pieces: Pieces, rows: Ints, number: Ints, per: Ints, board: Ints) -> tuple[Ints, Ints]:
    """Slices of each piece's device and of all devices of its board in the piece, in one unit a board (A19, A21).

    The pieces of a board's devices begin and end together; a device has one element for each of its holders.
    """
    unit = np.ones(int(board.max()) + 1, dtype=np.int64)
    odd = per > 1
    np.lcm.at(unit, board[odd], per[odd])
    weight = number * (unit[board] // per)
    once = changes(pieces.device[rows], pieces.begin[rows])
    order, first = grouped(board * HOUR_MS + pieces.begin[rows])
    totals = np.add.reduceat(np.where(once, weight, 0)[order], first)
    together = np.zeros(len(rows), dtype=np.int64)
    together[order] = np.repeat(totals, np.diff(np.append(first, len(order))))
    return weight, together


def _left_to_pods(pieces: Pieces, rows: Ints, group: Ints, holding: Holding, slices: Slices) -> dict[int, Fraction]:
    """GPU-ms of pods without events beside workloads: equal parts of what the workloads' units leave (A18)."""
    beside = np.flatnonzero((pieces.holder[rows] >= len(holding.parties)) & (pieces.pods[rows] < pieces.holders[rows]))
    which, into = rows[beside], group[beside]
    part, whole = slices.part(pieces.device[which], pieces.window[which])
    order, first = grouped(into, pieces.pods[which], part, whole)
    left: dict[int, Fraction] = defaultdict(Fraction)
    if len(order):
        spans = np.add.reduceat((pieces.end - pieces.begin)[which[order]], first).tolist()
        taken = np.add.reduceat(pieces.taken[which[order]], first).tolist()
        for row, span, amount in zip(order[first].tolist(), spans, taken, strict=True):
            free = Fraction(span * int(part[row]), int(whole[row])) - Fraction(amount, holding.taken.whole)
            left[int(into[row])] += free / int(pieces.pods[which[row]])
    return left


def _add_split(
    amounts: tuple[Ints, Bools],
    group: Ints,
    parts: tuple[Ints, Ints, Bools],
    of_board: Ints,
    of_holder: Ints,
    timeline: Timeline,
    holding: Holding,
    hour: str,
    exact: dict[int, Fraction],
) -> None:
    """Sum the exact parts per holder, round their total on each board once, and divide it by A29 (A28).

    `exact` has parts beside those of `parts`, by group.
    """
    total, some = amounts
    known = parts[2]
    amount, denominator, group = parts[0][known], parts[1][known], group[known]
    order, first = grouped(group, denominator)
    if len(order):
        sums = np.add.reduceat(amount[order], first).tolist()
        for row, value in zip(order[first].tolist(), sums, strict=True):
            exact[int(group[row])] += Fraction(value, int(denominator[row]))
    boards: dict[int, dict[int, Fraction]] = defaultdict(dict)
    for member, value in exact.items():
        boards[int(of_board[member])][member] = value
    models = _board_models(timeline)
    for board, members in boards.items():
        whole = sum(members.values(), Fraction(0))
        rounded = round_half_even(whole.numerator, whole.denominator)
        index = np.array(list(members), dtype=np.int64)
        names = holder_names(of_holder[index], np.full(len(index), models[board], dtype=object), holding)
        # parties ascend by workload, tenant and deployment; so do their numbers as texts of one length
        keys = [
            f"{name}{SEPARATOR}{holder:012d}" for name, holder in zip(names, of_holder[index].tolist(), strict=True)
        ]
        weights = dict(zip(keys, members.values(), strict=True))
        split = largest_remainder(rounded, weights, hour, _share_id) if whole else {}
        total[index] = [split.get(key, 0) for key in keys]
        some[index] = True


def _share_id(key: str) -> str:
    """A board is divided by workload (A29)."""
    return key.rpartition(SEPARATOR)[0]


def _process_values(
    pieces: Pieces,
    rows: Ints,
    hour: HourReadings,
    timeline: Timeline,
    holding: Holding,
    quantities: Sequence[Quantity],
    config: AccountingConfig,
) -> tuple[Ints, Bools]:
    """Each holder's own readings, where every one of several holders has one and not all are zero (A19)."""
    value, usable = np.zeros(len(rows), np.int64), np.zeros(len(rows), dtype=bool)
    key = pieces.device[rows] * HOUR_MS + pieces.begin[rows]
    order, first = grouped(key)
    several = pieces.holders[rows][order[first]] > 1
    for quantity in reversed(quantities):
        found, has = _own_values(pieces, rows, quantity, hour, timeline, holding, config)
        everyone = np.logical_and.reduceat(has[order], first) & several
        everyone &= np.add.reduceat(found[order], first) > 0
        good = np.zeros(len(rows), dtype=bool)
        good[order] = everyone[np.cumsum(changes(key[order])) - 1]
        value, usable = np.where(good, found, value), usable | good
    return value, usable


def _own_values(
    pieces: Pieces,
    rows: Ints,
    quantity: Quantity,
    hour: HourReadings,
    timeline: Timeline,
    holding: Holding,
    config: AccountingConfig,
) -> tuple[Ints, Bools]:
    """Each holder's own readings in its window, in whole units: their mean, or the line of A11 between them (A19)."""
    within = hour.processes[quantity]
    place = places(hour.devices.key, timeline.devices.key)
    within = replace(within, device=place[within.device])
    sides = [within, *(side[quantity] for side in timeline.processes)]
    members = timeline.sets.members
    number = {label: index for index, label in enumerate(sorted({label for labels in members for label in labels}))}
    of_set = np.array([number[next(iter(s))] if len(s) == 1 else -1 for s in members], dtype=np.int64)
    label_of = np.array(
        [number.get(text, -1) for text in (*holding.intervals.label.tolist(), *holding.pods)] + [-1], dtype=np.int64
    )
    interval, holder = pieces.interval[rows], pieces.holder[rows]
    pod = holder - len(holding.parties) + len(holding.intervals)
    label = label_of[np.where(interval != NOBODY, interval, np.where(holder != NOBODY, pod, NOBODY))]
    wanted = pieces.device[rows] * len(number) + label
    keys = [side.device * len(number) + of_set[side.label_set] for side in sides]
    owners = np.intersect1d(np.concatenate(keys), wanted[label >= 0])
    if not len(owners):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), dtype=bool)
    used = [np.isin(key, owners) for key in keys]
    owner, before, after = (np.searchsorted(owners, key[use]) for key, use in zip(keys, used, strict=True))
    order = sorting(owner, within.at[used[0]])
    earlier, later = (
        Edge(np.full(len(owners), never), np.zeros(len(owners), np.int64)) for never in (NEVER_BEFORE, NEVER_AFTER)
    )
    for edge, who, side, use in zip((earlier, later), (before, after), sides[1:], used[1:], strict=True):
        edge.at[who], edge.value[who] = side.at[use], side.value[use]
    own = Readings(owner[order], within.at[used[0]][order], within.value[used[0]][order])
    filled = fill(own, earlier, later, hour.start, timeline.scrape_ms[owners // len(number)], config)
    at = np.minimum(np.searchsorted(owners, wanted), len(owners) - 1)
    window = pieces.window[rows]
    has = (label >= 0) & (owners[at] == wanted) & (filled.method[at, window] == Method.MEASURED)
    return np.where(has, filled.value[at, window], 0), has


def matches_table(holding: Holding, timeline: Timeline) -> pa.Table:
    """GPU_MATCHES: the units of each running interval on visible devices (A21)."""
    intervals = holding.intervals
    claim = np.flatnonzero(holding.claims.holder < len(intervals))
    interval, cell = holding.claims.holder[claim], holding.claims.cell[claim]
    device, span = holding.cells.device[cell], holding.cells.end[cell] - holding.cells.begin[cell]
    units = holding.units[claim]
    names, model_of = np.unique(timeline.devices.model.astype(str), return_inverse=True)
    number = model_of[device]
    order, first = grouped(interval, number, units)
    matched: dict[tuple[int, int], int] = defaultdict(int)
    if len(order):
        spans = np.add.reduceat(span[order], first).tolist()
        for row, total in zip(order[first].tolist(), spans, strict=True):
            matched[int(interval[row]), int(number[row])] += int(units[row]) * total
    return pa.table(
        {
            "event_id": pa.array([intervals.event_id[which] for which, _ in matched], pa.string()),
            "gpu_model": pa.array([str(names[model]) for _, model in matched], pa.string()),
            "unit_ms": pa.array([decimal_of(amount, 9) for amount in matched.values()], pa.decimal128(38, 9)),
        },
        schema=GPU_MATCHES,
    )


def fleet_states(
    hour: HourReadings,
    timeline: Timeline,
    holding: Holding,
    found: HourPieces,
    owners: Mapping[str, PodOwner | None],
    slices: Slices,
    inventory: pa.Table,
    config: AccountingConfig,
) -> pa.Table:
    """FLEET_STATES: visible device time by model, what it was, and where (A17, A18, A21, A36)."""
    cells = holding.cells
    seen = np.flatnonzero(visible_cells(found.seen, holding))
    span = (cells.end - cells.begin)[seen]
    models, model_of = np.unique(timeline.devices.model.astype(str), return_inverse=True)
    totals = np.zeros((len(models), len(State)), dtype=np.int64)
    state = _paid_states(holding, owners)
    np.add.at(totals, (model_of[cells.device[seen]], state[seen]), span)
    visible = np.zeros(len(models), dtype=np.int64)
    np.add.at(visible, model_of[cells.device[seen]], span)
    some = visible > 0
    part, whole = slices.part(cells.device[seen], cells.window[seen])
    gpu_ms = _visible_gpu_ms(cells.device[seen], span, part, whole, found, timeline)
    nodes = _nodes(hour, cells.take(seen), model_of, inventory, timeline, config)
    return pa.table(
        {
            "gpu_model": pa.array(models[some].tolist(), pa.string()),
            "visible": pa.array(visible[some]),
            **{state.name.lower(): pa.array(totals[some, state]) for state in State},
            "visible_gpu": pa.array([gpu_ms[str(name)] for name in models[some]], pa.int64()),
            "nodes": pa.array(
                [sorted(nodes[number]) for number in np.flatnonzero(some).tolist()], pa.list_(pa.string())
            ),
        },
        schema=FLEET_STATES,
    )


def _visible_gpu_ms(
    device: Ints, span: Ints, part: Ints, whole: Ints, found: HourPieces, timeline: Timeline
) -> dict[str, int]:
    """What the visible devices of each model give (A36), from the spans in which a device is visible and its part of the
    card then.

    Each board counts up to a whole ms, one that is MIG or shared to one more: its shares are rounded together (A28).
    """
    board = timeline.board[device]
    exact: dict[int, Fraction] = defaultdict(Fraction)
    order, first = grouped(board, part, whole)
    if len(order):
        for row, total in zip(order[first].tolist(), np.add.reduceat(span[order], first).tolist(), strict=True):
            exact[int(board[row])] += Fraction(total * int(part[row]), int(whole[row]))
    divided = np.zeros(len(timeline.boards), dtype=bool)
    divided[timeline.board[timeline.devices.instance != ""]] = True
    divided[timeline.board[found.pieces.device[found.pieces.holders > 1]]] = True
    models = _board_models(timeline)
    given: dict[str, int] = defaultdict(int)
    for number, gpu_ms in exact.items():
        given[str(models[number])] += math.ceil(gpu_ms) + int(divided[number])
    return given


def _nodes(
    hour: HourReadings,
    cells: Cells,
    model_of: Ints,
    inventory: pa.Table,
    timeline: Timeline,
    config: AccountingConfig,
) -> dict[int, set[str]]:
    """Nodes of the visible devices of each model (A36), `cells` being where they are visible: those of their readings in the
    hour, else of the nearer ones, and those that rows in force list.
    """
    nodes: dict[int, set[str]] = defaultdict(set)
    place = places(hour.devices.key, timeline.devices.key)[hour.nodes.device]
    read = np.zeros(len(timeline.devices), dtype=bool)
    read[place] = True
    seen = np.unique(cells.device)
    here = np.isin(place, seen)
    pairs = {*zip(place[here].tolist(), hour.nodes.text[here].tolist(), strict=True)}
    silent = cells.take(~read[cells.device])
    if len(silent):
        nearer = timeline.nodes.in_windows(len(timeline.devices), timeline.start, config)[silent.device, silent.window]
        told = nearer >= 0
        pairs |= {*zip(silent.device[told].tolist(), timeline.nodes.text[nearer[told]].tolist(), strict=True)}
    for device, node in pairs:
        if node:
            nodes[int(model_of[device])].add(str(node))
    called: dict[str, set[int]] = defaultdict(set)
    for number in seen.tolist():
        called[str(timeline.devices.key[number])].add(int(model_of[number]))
        called[str(timeline.devices.uuid[number])].add(int(model_of[number]))
    last = timeline.start + HOUR_MS - config.window_ms
    for key, node, begin, end in rows_of(inventory, "gpu_uuid", "node", "valid_from", "valid_to"):
        if node and begin <= last and (end is None or end > timeline.start):
            for model in called.get(key, ()):
                nodes[model].add(node)
    return nodes


def _paid_states(holding: Holding, owners: Mapping[str, PodOwner | None]) -> Ints:
    """State of each cell; one that only pods of no deployment hold is unattributed (A18)."""
    count = len(holding.intervals)
    belongs = np.ones(count + len(holding.pods), dtype=bool)
    belongs[count:] = [owners[pod] is not None for pod in holding.pods]
    paid = np.zeros(len(holding.cells), dtype=bool)
    paid[holding.claims.cell[belongs[holding.claims.holder]]] = True
    return np.where((holding.state == State.HELD) & ~paid, np.int64(State.UNATTRIBUTED), holding.state)
