"""A36: what the cards of a model give is never priced twice.

A workload without a visible device and an idle card of its class are mostly one card, seen from two sides: the
workload takes its time from the idle line first.
What belongs here: what a model's idle line gives, and to whom. What does not: what stays unmatched (A20).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from finops_pipeline.accounting.exact import largest_remainder, round_half_even
from finops_pipeline.accounting.usage.rows import POOLED, Row, RowKey

SHARED = ("time", "memory", "energy")
"""what an idle line gives; activity is nobody's to give"""


def pool(line: Row, asking: Mapping[RowKey, tuple[Row, Mapping[int, Fraction]]], hour: str) -> bool:
    """Let the idle line of a model give to the rows of workloads without a visible device; both change.

    `asking` has of each row its intervals that may take, as GPUs that one unit of them counts for (A4). The line gives
    up to all of its GPU-ms and in the same proportion its memory and energy, in whole units, divided by the rows'
    unmatched GPU-ms (A29). Where it gives all that is asked, the rest of a rounding is on no row. Whether the line gave all
    that it had.

    >>> line, row = Row(units={"time": 4000, "activity": 0, "memory": 800, "energy": None}), Row(unseen={0: Fraction(3000)})
    >>> pool(line, {RowKey("w", "H100", "lifecycle", "t", "d"): (row, {0: Fraction(1)})}, "2026-10-01T10:00:00Z")
    False
    >>> row.units["memory"], line.units["memory"], int(row.gpu_ms), row.unseen
    (600, 200, 3000, {0: Fraction(0, 1)})
    """
    keys = {_key(place, key): key for place, key in enumerate(sorted(asking, key=_order))}
    weights = {
        name: sum((asking[key][0].unseen[i] * per_unit for i, per_unit in asking[key][1].items()), Fraction(0))
        for name, key in keys.items()
    }
    asked, idle = sum(weights.values(), Fraction(0)), line.units["time"] or 0
    wanted = round_half_even(asked.numerator, asked.denominator)
    given = min(wanted, idle)
    if given <= 0:
        return False
    for unit in SHARED:
        total = line.units[unit]
        if total is None:
            continue
        part = round_half_even(total * given, idle)
        line.add(unit, -part)
        for name, amount in largest_remainder(part, weights, hour, _share_id).items():
            row = asking[keys[name]][0]
            if unit == "time":
                row.gpu_ms += amount
                _answer(row, asking[keys[name]][1], amount / weights[name] if wanted > idle else Fraction(1))
            else:
                row.add(unit, amount)
    return given == idle


def _answer(row: Row, intervals: Mapping[int, Fraction], share: Fraction) -> None:
    """Device time that was without a device is pooled now."""
    for interval in intervals:
        units_ms = row.unseen[interval] * min(share, Fraction(1))
        row.times["estimated"] += units_ms
        row.times[POOLED] += units_ms
        row.unseen[interval] -= units_ms


def _order(key: RowKey) -> tuple[str, str, str]:
    return key.workload, key.tenant or "", key.deployment


def _key(place: int, key: RowKey) -> str:
    """A text for each row, ascending like them, of which the workload is the share id (A36)."""
    return f"{key.workload}\x1f{place:012d}"


def _share_id(name: str) -> str:
    return name.rpartition("\x1f")[0]
