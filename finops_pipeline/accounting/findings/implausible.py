"""Telemetry that is there and cannot be true (A10, A20).

What belongs here: series that stand still, and two sources that contradict each other. What does not: readings that
are rejected one by one (`readings`), and gaps (`windows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from finops_pipeline.accounting.arrays import Ints, changes, firsts, group_bounds, sorting, spread
from finops_pipeline.accounting.config import Quantity
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.findings.context import Scene, stretches, sums
from finops_pipeline.accounting.findings.kinds import Finding, Kind
from finops_pipeline.accounting.holding.view import NOBODY
from finops_pipeline.accounting.telemetry.readings import Readings
from finops_pipeline.accounting.telemetry.windows import Method
from finops_pipeline.accounting.usage.pieces import places

MINUTE_MS = 60_000


def frozen_series(scene: Scene, metrics: Collection[str]) -> Iterator[Finding]:
    """One row per board and frozen stretch; `metrics` are the names that were read in the hour."""
    board, begin, end = _both_frozen(scene)
    collected = np.full(len(scene.timeline.boards), 1 << 40, dtype=np.int64)
    np.minimum.at(collected, scene.timeline.board, scene.timeline.scrape_ms)
    collected = np.maximum(collected, scene.config.findings.collection_seconds * 1000)
    long = (end - begin) > scene.config.findings.frozen_intervals * collected[board]
    board, begin, end = board[long], begin[long], end[long]
    if not len(board):
        return
    held = _held_before(scene, board, end) - _held_before(scene, board, begin)
    known = scene.config.metrics
    names = sorted(name for name in metrics if known.get(name, (None,))[0] in (Quantity.POWER, Quantity.ENERGY))
    for card, first, last, ms in zip(board.tolist(), begin.tolist(), end.tolist(), held.tolist(), strict=True):
        if ms > scene.config.findings.frozen_intervals * int(collected[card]):
            key = str(scene.timeline.boards[card])
            detail = f"{' and '.join(names)} of {key} stand still from {scene.instant(first)} to {scene.instant(last)}"
            yield Finding(Kind.FROZEN_SERIES, key, None, None, first, last, ms, detail)


def _both_frozen(scene: Scene) -> tuple[Ints, Ints, Ints]:
    """Board, first and last instant (ms of the hour) of stretches in which neither power nor energy moves."""
    place = places(scene.hour.boards, scene.timeline.boards)
    energy = _still(scene.hour.values[Quantity.ENERGY], place, scene.timeline.start)
    power = _still(scene.hour.values[Quantity.POWER], place, scene.timeline.start)
    wide = 2 * HOUR_MS
    low = np.searchsorted(power[0] * wide + power[2], energy[0] * wide + energy[1], "left")
    high = np.searchsorted(power[0] * wide + power[1], energy[0] * wide + energy[2], "right")
    row, position = spread(np.maximum(high - low, 0))
    other = low[row] + position
    begin, end = np.maximum(energy[1][row], power[1][other]), np.minimum(energy[2][row], power[2][other])
    some = begin < end
    return energy[0][row][some], begin[some], end[some]


def _still(readings: Readings, place: Ints, start: int) -> tuple[Ints, Ints, Ints]:
    """Board, first and last instant of stretches of equal readings, at least two of them."""
    first, last = group_bounds(changes(readings.owner, readings.value))
    several = last > first
    first, last = first[several], last[several]
    board = place[readings.owner[first]]
    order = sorting(board, readings.at[first])
    return board[order], (readings.at[first] - start)[order], (readings.at[last] - start)[order]


def _held_before(scene: Scene, board: Ints, at: Ints) -> Ints:
    """Held ms of each board before an instant of the hour, whatever the number of devices and holders."""
    pieces = scene.found.pieces
    held = np.flatnonzero(pieces.holder != NOBODY)
    card = scene.timeline.board[pieces.device[held]]
    key = firsts(card * HOUR_MS + pieces.begin[held])
    held, card = held[key], card[key]
    if not len(held):
        return np.zeros(len(board), dtype=np.int64)
    runs = stretches((card,), pieces.begin[held], pieces.end[held])
    card, begin = card[runs.member], runs.first
    done = np.cumsum(runs.total) - runs.total
    wide = 2 * HOUR_MS
    place = np.searchsorted(card * wide + begin, board * wide + at, "right") - 1
    where = np.maximum(place, 0)
    base = np.append(done, runs.total.sum())[np.searchsorted(card, board)]
    inside = (place >= 0) & (card[where] == board)
    return np.where(inside, done[where] + np.minimum(at - begin[where], runs.total[where]) - base, 0)


def disagreeing_counters(scene: Scene) -> Iterator[Finding]:
    """One row per board whose counter and power give different energies."""
    found, width = scene.found, scene.width
    device, window = np.nonzero((found.measures.power.method == Method.MEASURED) & ~found.counter_gaps)
    board = scene.timeline.board[device]
    once = firsts(board * scene.config.windows + window)
    board, window, drawn_mw = board[once], window[once], found.measures.power.value[device[once], window[once]]
    sound = found.counter.unsound[board, window + 1] == found.counter.unsound[board, window]
    board, window, drawn_mw = board[sound], window[sound], drawn_mw[sound]
    begin = window * width
    rise = found.counter.risen[board, window + 1] - found.counter.risen[board, window]
    by_counter = sums((board,), begin, begin + width, rise)
    drawn = sums((board,), begin, begin + width, drawn_mw * width).total
    windows = np.bincount(board, minlength=len(scene.timeline.boards))
    tolerance, least = scene.config.findings.counter_tolerance, scene.config.findings.counter_minutes * MINUTE_MS
    about = 1000.0 * by_counter.total
    suspect = np.abs(about - drawn) > 0.999 * float(tolerance) * about
    suspect &= windows[board[by_counter.member]] * width >= least
    for row in np.flatnonzero(suspect).tolist():
        member, first, last, risen = (int(part[row]) for part in by_counter)
        if abs(1000 * risen - int(drawn[row])) <= tolerance * 1000 * risen:
            continue
        card = int(board[member])
        key = str(scene.timeline.boards[card])
        compared = f"{risen / 3.6e6:.3f} Wh by the counter, {drawn[row] / 3.6e9:.3f} Wh by power"
        detail = f"{compared}, while both were measured"
        yield Finding(Kind.COUNTER_DISAGREES, key, None, None, first, last, int(windows[card]) * width, detail)
