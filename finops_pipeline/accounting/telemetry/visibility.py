"""In which windows a device is visible (A21).

What belongs here: seen, expected, or replaced by other instances. What does not: who holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Bools, Ints, ints, spread
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.summaries import NEVER_AFTER, Timeline


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


def visible_windows(
    seen: Presence, timeline: Timeline, held: Bools, inventory: pa.Table, config: AccountingConfig
) -> Bools:
    """Devices x windows. `held` is where somebody holds the device.

    Visible: read in the window or in the 24 h before it, or in the inventory, or held; not once its board is
    read under other instances and it is not read again, or was never read together with them.
    """
    begins = timeline.start + np.arange(config.windows) * config.window_ms
    recent = seen.last_read >= begins - REACH_HOURS * HOUR_MS
    return (seen.read | recent | held | _in_inventory(inventory, timeline, begins, config)) & ~seen.replaced


def _in_inventory(inventory: pa.Table, timeline: Timeline, begins: Ints, config: AccountingConfig) -> Bools:
    listed = np.zeros((len(timeline.devices), len(begins)), dtype=bool)
    if not len(inventory):
        return listed
    device = ints(pc.index_in(inventory["gpu_uuid"], pa.array(timeline.devices.key, pa.string())))
    valid_from, valid_to = ints(inventory["valid_from"]), ints(inventory["valid_to"], default=1 << 60)
    present = (valid_from[:, None] < begins + config.window_ms) & (valid_to[:, None] > begins)
    np.logical_or.at(listed, device, present)
    return listed


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
