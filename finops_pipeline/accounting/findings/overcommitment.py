"""What is sold against what is there (A4, A17, A19, A21, A25).

What belongs here: units without a device, parts of cards that nobody has or that are sold twice, and who a deployment
works for. What does not: labels (`labels`) and telemetry (`suspicion`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import Bools, Ints, changes, group_bounds, sorting
from finops_pipeline.accounting.exact import HOUR_MS, rows_of
from finops_pipeline.accounting.findings.context import Scene, sums
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.holding.lifecycle import NANO
from finops_pipeline.accounting.holding.view import NOBODY


def unmatched(scene: Scene, matches: pa.Table) -> Iterator[Finding]:
    """A row for each workload that could be found on a device and has units on none; `matches` is GPU_MATCHES."""
    intervals, start = scene.holding.intervals, scene.timeline.start
    seen: dict[str, Fraction] = defaultdict(Fraction)
    for event_id, unit_ms in rows_of(matches, "event_id", "unit_ms"):
        seen[event_id] += Fraction(unit_ms)
    named = np.bincount(intervals.named_interval, minlength=len(intervals))
    fractions = intervals.fractions(scene.config)
    left: dict[int, list[tuple[int, int, int, Fraction]]] = defaultdict(list)
    for number, (label, event_id, count) in enumerate(
        zip(intervals.label.tolist(), intervals.event_id.tolist(), intervals.gpu_count.tolist(), strict=True)
    ):
        if label is None and not named[number]:
            continue
        begin = max(int(intervals.start[number]) - start, 0)
        end = min(int(intervals.end[number]) - start, HOUR_MS)
        lacking = Fraction(count * (end - begin), NANO) - seen[event_id]
        if lacking > 0:
            left[int(intervals.workload[number])].append((number, begin, end, lacking * fractions[number]))
    for parts in left.values():
        workload, tenant = scene.workload_of(parts[-1][0])
        label = intervals.label[parts[-1][0]]
        detail = f"label {label}" if label is not None else "it names devices"
        yield Finding(
            Kind.UNMATCHED,
            workload,
            workload,
            tenant,
            min(begin for _, begin, _, _ in parts),
            max(end for _, _, end, _ in parts),
            sum((ms for *_, ms in parts), Fraction(0)),
            f"{detail}, and some of its units are on no visible device",
        )


def unsold_parts(scene: Scene) -> Iterator[Finding]:
    """A row for each whole device and its one holder, or for several holders together."""
    pieces = scene.found.pieces
    covered, common = _covered(scene)
    begins, ends = group_bounds(changes(pieces.device, pieces.begin))
    if not len(begins):
        return
    whole = scene.timeline.devices.instance[pieces.device[begins]] == ""
    by_events = np.logical_and.reduceat(pieces.interval != NOBODY, begins)
    sold = np.add.reduceat(covered, begins)
    rows = np.flatnonzero(whole & by_events & (sold < NANO * common))
    begins, ends, sold = begins[rows], ends[rows], sold[rows]
    holder = np.where(begins == ends, pieces.holder[begins], NOBODY)
    device, begin, end = pieces.device[begins], pieces.begin[begins], pieces.end[begins]
    found = sums((device, holder, sold), begin, end, end - begin)
    parts: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = defaultdict(list)
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        part = 1 - Fraction(int(sold[member]), NANO * common)
        parts[int(device[member]), int(holder[member])].append((first, last, part * ms))
    for (where, who), spans in parts.items():
        workload, tenant = scene.holder(who)
        total = sum((ms for _, _, ms in spans), Fraction(0))
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        detail = f"{workload or 'several workloads'} cover only a part of it"
        key = str(scene.timeline.devices.key[where])
        yield Finding(Kind.UNSOLD_PART, key, workload, tenant, first, last, total, detail)


def oversold(scene: Scene) -> Iterator[Finding]:
    """A row for each card; the pieces of a board's devices begin and end together."""
    pieces = scene.found.pieces
    covered, common = _covered(scene)
    board = scene.timeline.board[pieces.device]
    order = sorting(board, pieces.begin)
    if not len(order):
        return
    first, _ = group_bounds(changes(board[order], pieces.begin[order]))
    sold = np.add.reduceat(covered[order], first)
    rows = np.flatnonzero(sold > NANO * common)
    several = np.add.reduceat((covered > 0)[order].astype(np.int64), first)[rows]
    at, sold = order[first[rows]], sold[rows]
    begin, end = pieces.begin[at], pieces.end[at]
    found = sums((board[at],), begin, end, end - begin)
    worst = np.zeros(len(scene.timeline.boards), dtype=np.int64)
    np.maximum.at(worst, board[at], sold)
    crowd = np.zeros(len(scene.timeline.boards), dtype=np.int64)
    np.maximum.at(crowd, board[at], several)
    for member, begun, ended, ms in zip(*(part.tolist() for part in found), strict=True):
        card = int(board[at[member]])
        detail = f"up to {worst[card] / (NANO * common):.4g} GPUs sold on it, to {crowd[card]} at once"
        yield Finding(Kind.OVERSOLD, str(scene.timeline.boards[card]), None, None, begun, ended, ms, detail)


def _covered(scene: Scene) -> tuple[Ints, int]:
    """Of each piece, the units that its holder has on the device x `class_fraction`, in NANO x the second result."""
    numerators, common = scene.fractions
    pieces = scene.found.pieces
    factor = np.append(numerators, 0)[np.where(pieces.interval == NOBODY, len(numerators), pieces.interval)]
    return pieces.units * factor, common


def stranded_slices(scene: Scene) -> Iterator[Finding]:
    """A row for each card and number of slices left over, over windows without a visible whole device of the card.

    An instance whose profile is not understood leaves nothing over.
    """
    parts = scene.timeline.devices.instance != ""
    if not parts.any():
        return
    visible, slices = scene.found.visible, scene.slices
    instances = visible & parts[:, None]
    used = _of_boards(scene, np.where(instances, slices.number, 0))
    unclear = _of_boards(scene, (visible & ~parts[:, None]) | (instances & ~slices.known)) > 0
    card = np.zeros(len(scene.timeline.boards), dtype=np.int64)
    card[scene.timeline.board] = slices.card
    board, window = np.nonzero((used > 0) & (used < card[:, None]) & ~unclear)
    left = (card[:, None] - used)[board, window]
    begin = window * scene.width
    found = sums((board, left), begin, begin + scene.width, np.full(len(board), scene.width))
    for member, first, last, ms in zip(*(part.tolist() for part in found), strict=True):
        where, over = int(board[member]), int(left[member])
        detail = f"{over} of {card[where]} slices are in no visible instance"
        part = Fraction(ms * over, int(card[where]))
        yield Finding(Kind.STRANDED_SLICES, str(scene.timeline.boards[where]), None, None, first, last, part, detail)


def _of_boards(scene: Scene, of_devices: Ints | Bools) -> Ints:
    total = np.zeros((len(scene.timeline.boards), of_devices.shape[1]), dtype=np.int64)
    np.add.at(total, scene.timeline.board, of_devices)
    return total


def foreign_tenants(scene: Scene, dedicated: Mapping[str, str]) -> Iterator[Finding]:
    """One row per workload and tenant; `dedicated` is the owner of each dedicated deployment."""
    intervals, start = scene.holding.intervals, scene.timeline.start
    fractions = intervals.fractions(scene.config)
    spans: dict[tuple[int, str, str], list[tuple[int, int, Fraction]]] = defaultdict(list)
    for number, (deployment, tenant) in enumerate(
        zip(intervals.deployment.tolist(), intervals.tenant.tolist(), strict=True)
    ):
        if dedicated.get(deployment, tenant) != tenant:
            begin = max(int(intervals.start[number]) - start, 0)
            end = min(int(intervals.end[number]) - start, HOUR_MS)
            ms = Fraction(int(intervals.gpu_count[number]) * (end - begin), NANO) * fractions[number]
            spans[int(intervals.workload[number]), deployment, tenant].append((begin, end, ms))
    for (workload, deployment, tenant), parts in spans.items():
        name = str(intervals.workloads[workload])
        yield Finding(
            Kind.FOREIGN_TENANT,
            name,
            name,
            dedicated[deployment],
            min(begin for begin, _, _ in parts),
            max(end for _, end, _ in parts),
            sum((ms for _, _, ms in parts), Fraction(0)),
            f"its events name tenant {tenant}, deployment {deployment} belongs to {dedicated[deployment]}, who pays",
        )
