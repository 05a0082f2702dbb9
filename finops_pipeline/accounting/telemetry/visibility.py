"""In which windows a device is visible (A21).

What belongs here: seen, expected, or replaced by other instances. What does not: who holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import Bools, Ints, ints, spread, texts
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, Timeline

GONE_MS = 10 * 60 * 1000
"""How long a node must have shown its other devices until one that it no longer shows is gone."""


@dataclass(frozen=True)
class Presence:
    """When each device was read: devices x windows."""

    read: Bools
    """a sample in the window"""
    last_read: Ints
    """the last instant with a sample up to the window's end"""
    replaced: Bools
    """its board has since been read under other instances: it is not there, and nobody can hold it"""


def presence(device: Ints, at: Ints, timeline: Timeline, config: AccountingConfig) -> Presence:
    """`device`, `at` are the hour's instants, in the timeline's numbers."""
    shape = (len(timeline.devices), config.windows)
    last_read = np.full(shape, timeline.start - 2 * REACH_HOURS * HOUR_MS, dtype=np.int64)
    last_read[:, 0] = timeline.last_before.at
    window = (at - timeline.start) // config.window_ms
    np.maximum.at(last_read, (device, window), at)
    last_read = np.maximum.accumulate(last_read, axis=1)
    read = np.zeros(shape, dtype=bool)
    read[device, window] = True
    crowded = np.bincount(timeline.board, minlength=1)[timeline.board] > 1
    return Presence(read, last_read, _replaced(np.flatnonzero(crowded), last_read, read, timeline))


@dataclass(frozen=True)
class Sight:
    """Devices x windows apart from being held (A21)."""

    visible: Bools
    gone: Bools
    """read in the 24 h before, and cut short because its node no longer shows it (`device_gone`)"""


def seen_windows(
    presence: Presence, silent: Bools, timeline: Timeline, inventory: pa.Table, config: AccountingConfig
) -> Sight:
    """Where a device is visible, whoever holds it; `silent` windows are the gaps (A11).

    Read in the window or in the 24 h before it, or in the inventory at its start. The 24 h do not count once its
    inventory row (or its board's) has ended, and, unless a row in force lists it, after its last reading within reach
    once readings of other devices of its node after that span 10 minutes. Not once its board is read under other
    instances and it is not read again, or was never read together with them.
    """
    begins = timeline.start + np.arange(config.windows) * config.window_ms
    recent = presence.last_read >= begins - REACH_HOURS * HOUR_MS
    listed, in_force, ended = _in_inventory(inventory, timeline, begins)
    counts = recent & (in_force | ~ended)
    gone = counts & silent & ~listed & ~in_force & (timeline.node_span_ms >= GONE_MS)[:, None]
    gone &= begins > timeline.last_read[:, None]
    visible = (~silent | listed | (counts & ~gone)) & ~presence.replaced
    return Sight(visible, gone & ~presence.replaced)


def _in_inventory(inventory: pa.Table, timeline: Timeline, begins: Ints) -> tuple[Bools, Bools, Bools]:
    """Devices x windows, at the window's start: a row in force names the device; one names it or its board; a row of
    either has ended.
    """
    shape = (len(timeline.devices), len(begins))
    listed, in_force, ended = (np.zeros(shape, dtype=bool) for _ in range(3))
    if not len(inventory):
        return listed, in_force, ended
    valid_from, valid_to = ints(inventory["valid_from"]), ints(inventory["valid_to"], default=1 << 60)
    present = (valid_from[:, None] <= begins) & (begins < valid_to[:, None])
    past = valid_to[:, None] <= begins
    keys, boards = texts(inventory["gpu_uuid"]), timeline.devices.uuid
    for names, tables in ((timeline.devices.key, (listed, in_force, ended)), (boards, (in_force, ended))):
        rows: dict[str, list[int]] = {}
        for number, key in enumerate(keys.tolist()):
            rows.setdefault(key, []).append(number)
        pairs = [(place, number) for place, name in enumerate(names.tolist()) for number in rows.get(name, ())]
        device, row = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        for table in tables:
            np.logical_or.at(table, device, (past if table is ended else present)[row])
    return listed, in_force, ended


def _replaced(devices: Ints, last_read: Ints, read: Bools, timeline: Timeline) -> Bools:
    """Windows in which the board has since been read under other instances; `devices` share boards."""
    replaced = np.zeros(read.shape, dtype=bool)
    coming = np.zeros(read.shape, dtype=bool)
    coming[:, :-1] = np.logical_or.accumulate(read[:, :0:-1], axis=1)[:, ::-1]
    coming |= (timeline.first_after.at != NEVER_AFTER)[:, None]
    board = timeline.board[devices]
    begin, end = np.searchsorted(board, board, "left"), np.searchsorted(board, board, "right")
    row, position = spread(end - begin)
    left, right = devices[row], devices[begin[row] + position]
    left, right = left[left != right], right[left != right]
    together = np.array([pair in timeline.together for pair in zip(left.tolist(), right.tolist(), strict=True)], bool)
    since = (last_read[right] > last_read[left]) & ~read[left] & (~coming[left] | ~together[:, None])
    np.logical_or.at(replaced, left, since)
    return replaced
