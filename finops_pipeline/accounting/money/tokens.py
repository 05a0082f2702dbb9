"""Token usage of shared deployments: which events count, and in which hour (A5, A26).

What does not belong here: what a token weighs (`sql/shares.sql`, by the policy), or who pays (allocation.py).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Bools, Column, bools, ints
from finops_pipeline.accounting.exact import FUTURE_MS, HOUR_MS
from finops_pipeline.accounting.holding.arrivals import CONFLICT, first_arrivals, quarantined
from finops_pipeline.contracts import lake

FAR_MS = 1 << 60
COUNTS = ("input_tokens", "output_tokens", "cached_tokens")

TOKEN_EVENTS = pa.schema(
    [pa.field("hour_ms", pa.int64()), pa.field("span", pa.int64())]
    + [lake.TOKEN_USAGE.field(name) for name in ("deployment_id", "tenant_id", *COUNTS)],
    metadata={"grain": "a token event that can count in an hour: in it (span 0), or in the 24 hours before it (1)"},
)


def clean_tokens(tokens: pa.Table, deployments: pa.Table, now_ms: int) -> tuple[pa.Table, pa.Table]:
    """Token events that count, in order of arrival, and the quarantine of the others (A5).

    `deployments` is DEPLOYMENTS over all time: an event whose deployment is null, or does not count for the hour that
    the event lies in, is set aside. The same event_id with the same content counts once; with other content each later
    arrival is a `conflict`, whatever became of the first. One reason per event: conflict, else future, else negative,
    else deployment.
    """
    first, conflicts = first_arrivals(tokens)
    future = bools(pc.greater(first["occurred_at"].cast(pa.int64()), pa.scalar(now_ms + FUTURE_MS)))
    negative = bools(pc.less(pc.min_element_wise(*(first[name] for name in COUNTS)), pa.scalar(0))) & ~future
    unknown = ~(_of_known_deployments(first, deployments) | future | negative)
    faulty = [
        *((row, "conflict", CONFLICT) for row in conflicts.to_pylist()),
        *((row, "future", f"occurred_at {row['occurred_at']}") for row in first.filter(pa.array(future)).to_pylist()),
        *(
            (row, "negative", " ".join(f"{name}={row[name]}" for name in COUNTS))
            for row in first.filter(pa.array(negative)).to_pylist()
        ),
        *(
            (row, "deployment", f"no deployment {row['deployment_id'] or '(null)'} in the hour of the event")
            for row in first.filter(pa.array(unknown)).to_pylist()
        ),
    ]
    clean = first.filter(pa.array(~(future | negative | unknown)))
    return clean, quarantined("token_usage", ((row["event_id"], reason, detail) for row, reason, detail in faulty))


def _of_known_deployments(tokens: pa.Table, deployments: pa.Table) -> Bools:
    """Where a deployment of that id counts for the hour of the event (section 2)."""
    hour = ints(tokens["occurred_at"]) // HOUR_MS * HOUR_MS
    columns: tuple[Column, ...] = (tokens["deployment_id"], pa.array(hour), pa.array(np.arange(len(tokens))))
    spans: tuple[Column, ...] = (
        deployments["deployment_id"],
        pa.array(ints(deployments["valid_from"], -FAR_MS)),
        pa.array(ints(deployments["valid_to"], FAR_MS)),
    )
    pairs = pa.table([*columns], ["id", "hour", "event"]).join(
        pa.table([*spans], ["id", "begin", "end"]), "id", join_type="inner"
    )
    begun, there = ints(pairs["begin"]) <= ints(pairs["hour"]), ints(pairs["hour"]) < ints(pairs["end"])
    known = np.zeros(len(tokens), dtype=bool)
    known[ints(pairs["event"])[begun & there]] = True
    return known


def tokens_between(tokens: pa.Table, start_ms: int, end_ms: int) -> pa.Table:
    """The clean token events in `[start_ms, end_ms)`."""
    instant = tokens["occurred_at"].cast(pa.int64())
    return tokens.filter(pc.and_(pc.greater_equal(instant, pa.scalar(start_ms)), pc.less(instant, pa.scalar(end_ms))))
