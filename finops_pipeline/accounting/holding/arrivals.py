"""Which of several arrivals of one event counts (A5).

What belongs here: the rule that lifecycle and token events share. What does not: rules of either kind alone.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Column, ints


def first_arrivals(events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Events in order of arrival -> those that count, and later arrivals with other content (`conflict`).

    The same `event_id` with the same content counts once; both results keep the order of arrival.
    """
    counts: Column = pc.value_counts(events["event_id"])
    repeated = counts.field("values").filter(pa.array(ints(counts.field("counts")) > 1))
    if not len(repeated):
        return events, events.slice(0, 0)
    suspects = pc.is_in(events["event_id"], repeated).to_pylist()
    first: dict[str, dict[str, object]] = {}
    keep, conflict = [], []
    for position in (index for index, suspect in enumerate(suspects) if suspect):
        row = events.slice(position, 1).to_pylist()[0]
        original = first.setdefault(row["event_id"], row)
        if original is row:
            keep.append(position)
        elif original != row:
            conflict.append(position)
    counted = [index for index, suspect in enumerate(suspects) if not suspect] + keep
    return events.take(sorted(counted)), events.take(pa.array(conflict, pa.int64()))
