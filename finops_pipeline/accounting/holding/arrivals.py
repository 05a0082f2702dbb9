"""Which of several arrivals of one event counts (A5).

What belongs here: the rule that lifecycle and token events share. What does not: rules of either kind alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Column, bools, ints
from finops_pipeline.contracts.lake import QUARANTINE

CONFLICT = "same event_id, other content"
"""What a later arrival with other content is told as."""


def first_arrivals(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Events in order of arrival -> those that count, and later arrivals with other content (`conflict`).

    The same `event_id` with the same content counts once; both results keep the order of arrival.
    """
    counts: Column = pc.value_counts(events["event_id"])
    repeated = counts.field("values").filter(pa.array(ints(counts.field("counts")) > 1))
    if not len(repeated):
        return events, events.slice(0, 0)
    suspect = np.flatnonzero(bools(pc.is_in(events["event_id"], repeated)))
    first: dict[str, dict[str, object]] = {}
    keep = np.ones(len(events), dtype=bool)
    conflict = []
    for position, row in zip(suspect.tolist(), events.take(suspect).to_pylist(), strict=True):
        original = first.setdefault(row["event_id"], row)
        keep[position] = original is row
        if original != row:
            conflict.append(position)
    return events.filter(pa.array(keep)), events.take(pa.array(conflict, pa.int64()))


def quarantined(source: str, rows: Iterable[tuple[str, str, str]]) -> pa.Table:
    """QUARANTINE rows of (key, reason, detail): one for each key and reason, with the count in its detail (A5)."""
    details: dict[tuple[str, str], list[str]] = {}
    for key, reason, detail in rows:
        details.setdefault((key, reason), []).append(detail)
    return pa.Table.from_pylist(
        [
            {
                "source": source,
                "key": key,
                "reason": reason,
                "detail": told[0] if len(told) == 1 else f"{told[0]} ({len(told)} times)",
            }
            for (key, reason), told in details.items()
        ],
        schema=QUARANTINE,
    )
