"""Token usage of shared deployments: which events count, and in which hour (A5, A26).

What does not belong here: what a token weighs (`sql/shares.sql`, by the policy), or who pays (allocation.py).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import FUTURE_MS
from finops_pipeline.contracts import lake

COUNTS = ("input_tokens", "output_tokens", "cached_tokens")

TOKEN_EVENTS = pa.schema(
    [pa.field("hour_ms", pa.int64()), pa.field("span", pa.int64())]
    + [lake.TOKEN_USAGE.field(name) for name in ("deployment_id", "tenant_id", *COUNTS)],
    metadata={"grain": "a token event that can count in an hour: in it (span 0), or in the 24 hours before it (1)"},
)


def clean_tokens(tokens: pa.Table, now_ms: int) -> tuple[pa.Table, pa.Table]:
    """Token events that count, in order of arrival, and the quarantine of the others (A5).

    The same event_id with the same content counts once; with other content each later content is a
    `conflict`, whatever became of the first. One reason an event: conflict, else future, else negative.
    """
    arrival = pa.array(range(tokens.num_rows), pa.int64())
    contents = (
        tokens.append_column("arrival", arrival)
        .group_by(lake.TOKEN_USAGE.names, use_threads=False)
        .aggregate([("arrival", "min")])
        .sort_by("arrival_min")
    )
    firsts = contents.group_by("event_id").aggregate([("arrival_min", "min")])["arrival_min_min"]
    conflict = pc.invert(pc.is_in(contents["arrival_min"], value_set=firsts.combine_chunks()))
    future = pc.greater(contents["occurred_at"].cast(pa.int64()), pa.scalar(now_ms + FUTURE_MS))
    input_tokens, output_tokens, cached_tokens = (contents[name] for name in COUNTS)
    negative = pc.less(pc.min_element_wise(input_tokens, output_tokens, cached_tokens), pa.scalar(0))
    reason = pc.case_when(pc.make_struct(conflict, future, negative), "conflict", "future", "negative")
    faulty = contents.append_column("reason", reason).filter(pc.is_valid(reason))
    clean = contents.filter(pc.is_null(reason)).select(lake.TOKEN_USAGE.names).cast(lake.TOKEN_USAGE)
    return clean, _quarantine(faulty)


def tokens_between(tokens: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """The clean token events in `[start_ms, end_ms)`."""
    instant = tokens["occurred_at"].cast(pa.int64())
    return tokens.filter(pc.and_(pc.greater_equal(instant, pa.scalar(start_ms)), pc.less(instant, pa.scalar(end_ms))))


def _quarantine(faulty: pa.Table) -> pa.Table:
    """QUARANTINE rows of the token events that have a `reason`."""
    rows = [
        {"source": "token_usage", "key": row["event_id"], "reason": row["reason"], "detail": _detail(row)}
        for row in faulty.to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=lake.QUARANTINE)


def _detail(row: dict[str, object]) -> str:
    match row["reason"]:
        case "conflict":
            return "same event_id, other content"
        case "future":
            return f"occurred_at {row['occurred_at']}"
        case _:
            return " ".join(f"{name}={row[name]}" for name in COUNTS)
