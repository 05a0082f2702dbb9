"""Token usage of shared deployments: which events count, and in which hour (A5, A26).

What does not belong here: what a token weighs (`sql/shares.sql`, by the policy), or who pays (allocation.py).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import bools
from finops_pipeline.accounting.exact import FUTURE_MS
from finops_pipeline.accounting.holding.arrivals import CONFLICT, first_arrivals, quarantined
from finops_pipeline.contracts import lake

COUNTS = ("input_tokens", "output_tokens", "cached_tokens")

TOKEN_EVENTS = pa.schema(
    [pa.field("hour_ms", pa.int64()), pa.field("span", pa.int64())]
    + [lake.TOKEN_USAGE.field(name) for name in ("deployment_id", "tenant_id", *COUNTS)],
    metadata={"grain": "a token event that can count in an hour: in it (span 0), or in the 24 hours before it (1)"},
)


def clean_tokens(tokens: pa.Table, now_ms: int) -> tuple[pa.Table, pa.Table]:
    """Token events that count, in order of arrival, and the quarantine of the others (A5).

    The same event_id with the same content counts once; with other content each later arrival is a
    `conflict`, whatever became of the first. One reason an event: conflict, else future, else negative.
    """
    first, conflicts = first_arrivals(tokens)
    future = bools(pc.greater(first["occurred_at"].cast(pa.int64()), pa.scalar(now_ms + FUTURE_MS)))
    negative = bools(pc.less(pc.min_element_wise(*(first[name] for name in COUNTS)), pa.scalar(0))) & ~future
    faulty = [
        *((row, "conflict", CONFLICT) for row in conflicts.to_pylist()),
        *((row, "future", f"occurred_at {row['occurred_at']}") for row in first.filter(pa.array(future)).to_pylist()),
        *(
            (row, "negative", " ".join(f"{name}={row[name]}" for name in COUNTS))
            for row in first.filter(pa.array(negative)).to_pylist()
        ),
    ]
    clean = first.filter(pa.array(~(future | negative)))
    return clean, quarantined("token_usage", ((row["event_id"], reason, detail) for row, reason, detail in faulty))


def tokens_between(tokens: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """The clean token events in `[start_ms, end_ms)`."""
    instant = tokens["occurred_at"].cast(pa.int64())
    return tokens.filter(pc.and_(pc.greater_equal(instant, pa.scalar(start_ms)), pc.less(instant, pa.scalar(end_ms))))
