"""Token usage of shared deployments: cleaned, summed over a span and weighted (A5, A26).

What belongs here: which token events count, and what they weigh.
What does not: which policy sets the weights (policies.py), or who pays (allocation.py).
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import FUTURE_MS
from finops_pipeline.accounting.money.policies import TokenWeights
from finops_pipeline.contracts import lake

_COUNTS = ("input_tokens", "output_tokens", "cached_tokens")

_SUMMABLE = pa.schema(
    pa.field(field.name, pa.decimal128(38)) if field.name in _COUNTS else field for field in lake.TOKEN_USAGE
)
"""An int64 sum would wrap around silently: one absurd count must not turn into another tenant's share."""

TokenCounts = dict[str, dict[str, tuple[int, int, int]]]
"""Input, output and cached tokens by deployment and tenant."""


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
    input_tokens, output_tokens, cached_tokens = (contents[name] for name in _COUNTS)
    negative = pc.less(pc.min_element_wise(input_tokens, output_tokens, cached_tokens), pa.scalar(0))
    reason = pc.case_when(pc.make_struct(conflict, future, negative), "conflict", "future", "negative")
    faulty = contents.append_column("reason", reason).filter(pc.is_valid(reason))
    clean = contents.filter(pc.is_null(reason)).select(lake.TOKEN_USAGE.names).cast(lake.TOKEN_USAGE)
    return clean, _quarantine(faulty)


def token_counts(tokens: pa.Table, start_ms: int, end_ms: int) -> TokenCounts:
    """Sums of the clean token events in `[start_ms, end_ms)`. Events without a deployment serve none."""
    instant = tokens["occurred_at"].cast(pa.int64())
    inside = pc.and_(pc.greater_equal(instant, pa.scalar(start_ms)), pc.less(instant, pa.scalar(end_ms)))
    sums = (
        tokens.filter(pc.and_(inside, pc.is_valid(tokens["deployment_id"])))
        .cast(_SUMMABLE)
        .group_by(["deployment_id", "tenant_id"])
        .aggregate([(name, "sum") for name in _COUNTS])
    )
    counts: TokenCounts = defaultdict(dict)
    for row in sums.to_pylist():
        input_sum, output_sum, cached_sum = (int(row[f"{name}_sum"]) for name in _COUNTS)
        counts[row["deployment_id"]][row["tenant_id"]] = (input_sum, output_sum, cached_sum)
    return dict(counts)


def weighted_tokens(counts: TokenCounts, deployment_id: str, weights: TokenWeights) -> dict[str, int]:
    """Weighted tokens of a deployment by tenant, whole by a common factor; a tenant with weight 0 has no part (A26)."""
    per_input, per_output, per_cached = weights.integers
    weighted = {
        tenant_id: per_input * input_sum + per_output * output_sum + per_cached * cached_sum
        for tenant_id, (input_sum, output_sum, cached_sum) in counts.get(deployment_id, {}).items()
    }
    return {tenant_id: weight for tenant_id, weight in weighted.items() if weight}


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
            return " ".join(f"{name}={row[name]}" for name in _COUNTS)
