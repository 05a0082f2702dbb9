"""In which windows a device is visible (A21).

What belongs here: seen, expected, or replaced by other instances. What does not: who holds it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.around import NEVER_AFTER, Timeline
from finops_pipeline.accounting.arrays import Bools, Ints, ints
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS


def visible_windows(
    device: Ints, at: Ints, timeline: Timeline, held: Bools, inventory: pa.Table, config: AccountingConfig
) -> Bools:
    """Devices x windows. `device`, `at` are the hour's instants; `held` is where somebody holds the device.

    Visible: read in the window or in the 24 h before it, or in the inventory, or held; not once its board is
    read under other instances and it is not read again, or was never read together with them.
    """
    shape = (len(timeline.devices), config.windows)
    begins = timeline.start + np.arange(config.windows) * config.window_ms
    last_read = np.full(shape, timeline.start - 2 * REACH_HOURS * HOUR_MS, dtype=np.int64)
    last_read[:, 0] = timeline.last_before if shape[0] else 0
    window = (at - timeline.start) // config.window_ms
    np.maximum.at(last_read, (device, window), at)
    last_read = np.maximum.accumulate(last_read, axis=1)
    read = np.zeros(shape, dtype=bool)
    read[device, window] = True
    visible = (
        read | (last_read >= begins - REACH_HOURS * HOUR_MS) | held | _in_inventory(inventory, timeline, begins, config)
    )
    crowded = np.bincount(timeline.board, minlength=1)[timeline.board] > 1 if shape[0] else np.zeros(0, bool)
    if crowded.any():
        visible &= ~_replaced(np.flatnonzero(crowded), last_read, read, timeline)
    return visible


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
    coming |= (timeline.first_after != NEVER_AFTER)[:, None]
    board = timeline.board[devices]
    begin, end = np.searchsorted(board, board, "left"), np.searchsorted(board, board, "right")
    left = np.repeat(devices, end - begin)
    right = devices[np.concatenate([np.arange(b, e) for b, e in zip(begin, end, strict=True)])]
    left, right = left[left != right], right[left != right]
    together = np.array([pair in timeline.together for pair in zip(left.tolist(), right.tolist(), strict=True)], bool)
    since = (last_read[right] > last_read[left]) & ~read[left] & (~coming[left] | ~together[:, None])
    np.logical_or.at(replaced, left, since)
    return replaced
