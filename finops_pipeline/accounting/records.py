"""Which of the platform's records an hour needs (A3, A5, A12, A26, A27).

What belongs here: cutting a longer read down to one hour, losing nothing that can change its result.
What does not: judging the records (`lifecycle`, `tokens`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import bools, ints, texts
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS

REACH_MS = REACH_HOURS * HOUR_MS
FAR_MS = 1 << 60


def events_of_hour(events: pa.Table, start: int, labels: Collection[str], config: AccountingConfig) -> pa.Table:
    """All events of each workload that can matter to the hour, in order of arrival.

    A workload matters if an event of it lies within reach, if any of its last events before makes it run, or if one of `labels`
    (`namespace/pod`, as read within reach) is its own: then its events say whose the label is.
    """
    if not len(events):
        return events
    at, workload = ints(events["occurred_at"]), texts(events["workload_id"])
    names, number = np.unique(workload.astype(str), return_inverse=True)
    before = np.flatnonzero(at < start - REACH_MS)
    last = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(last, number[before], at[before])
    before = before[at[before] == last[number[before]]]
    billable = bools(pc.is_in(events["to_state"], pa.array(sorted(config.billable_states))))
    matters = np.zeros(len(names), dtype=bool)
    matters[number[before[billable[before]]]] = True
    matters[number[(at >= start - REACH_MS) & (at < start + HOUR_MS + REACH_MS)]] = True
    pairs = zip(texts(events["namespace"]), texts(events["pod"]), strict=True)
    labelled = np.array([bool(pod) and f"{namespace or ''}/{pod}" in labels for namespace, pod in pairs], dtype=bool)
    matters[number[labelled]] = True
    return events.filter(pa.array(matters[number]))


def tokens_of_hour(tokens: pa.Table, start: int) -> pa.Table:
    """Token events of the hour and of the 24 hours before it (A26, A27)."""
    at = ints(tokens["occurred_at"])
    return tokens.filter(pa.array((at >= start - REACH_MS) & (at < start + HOUR_MS)))


def deployments_of_hour(deployments: pa.Table, start: int) -> pa.Table:
    """The deployments (DEPLOYMENTS) that count for the hour (section 2): of those of one id that it begins in, the first row."""
    if not len(deployments):
        return deployments
    begun = ints(deployments["valid_from"], -FAR_MS) <= start
    there = ints(deployments["valid_to"], FAR_MS) > start
    inside = np.flatnonzero(begun & there)
    _, first = np.unique(texts(deployments["deployment_id"])[inside].astype(str), return_index=True)
    return deployments.take(np.sort(inside[first]))


def within(rows: pa.Table, key: str, events: pa.Table, begin: int, end: int) -> pa.Table:
    """Quarantined `rows` whose event (by `key`) occurred in `[begin, end)`."""
    at = ints(events["occurred_at"])
    inside = set(texts(events["event_id"])[(at >= begin) & (at < end)].tolist())
    return rows.filter(pa.array([name in inside for name in texts(rows[key])], pa.bool_()))
