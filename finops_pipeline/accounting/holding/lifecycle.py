"""Allocated time: lifecycle events -> running intervals (A3-A6).

What belongs here: which events count, which are set aside, and the spans in which a workload ran.
What does not: devices and samples, which never change these spans.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import Bools, Column, Ints, Texts, bools, changes, ints, texts, whole
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import FUTURE_MS, hour_text
from finops_pipeline.accounting.holding.arrivals import CONFLICT, first_arrivals, quarantined

OPEN: int = 1 << 60
"""End of an interval that no event closes (A3)."""
NANO = 1_000_000_000
"""`gpu_count` is held in billionths."""


@dataclass(frozen=True)
class Intervals:
    """Running intervals of all workloads, one array element each, ordered by workload and start (A3)."""

    workload: Ints
    """index into `workloads`"""
    start: Ints
    end: Ints
    """epoch ms, exclusive; `OPEN` while it runs"""
    label: Texts
    """`namespace/pod`, or None where none is known"""
    gpu_count: Ints
    """billionths of a GPU"""
    placed_class: Texts
    tenant: Texts
    deployment: Texts
    node: Texts
    """of the event that opened it, else of the workload's last event that had one; None where none is known"""
    event_id: Texts
    """the event that opened it"""
    named_interval: Ints
    named_device: Texts
    """devices named by `gpu_uuids`: pairs of interval index and device key"""
    workloads: Texts
    known_labels: frozenset[str]
    """every `namespace/pod` that some event names: those pods are never accounted by samples (A18)"""
    quarantine: pa.Table

    def __len__(self) -> int:
        return len(self.start)

    def running_in(self, begin: int, end: int) -> Intervals:
        """The intervals that overlap `[begin, end)`."""
        kept = np.flatnonzero((self.start < end) & (self.end > begin))
        number = np.full(len(self), -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        named = number[self.named_interval] >= 0
        return replace(
            self,
            **{name: getattr(self, name)[kept] for name in _EACH},
            named_interval=number[self.named_interval[named]],
            named_device=self.named_device[named],
        )

    def fractions(self, config: AccountingConfig) -> list[Fraction]:
        """`class_fraction` of each interval (A4)."""
        known = {name: config.fraction(name) for name in set(self.placed_class.tolist())}
        return [known[name] for name in self.placed_class.tolist()]

    def is_fractional(self, config: AccountingConfig) -> Bools:
        """Where one unit of the class is less than a GPU."""
        return np.array([fraction < 1 for fraction in self.fractions(config)], dtype=bool)

    def parties(self) -> Parties:
        """The workload, tenant and deployment of each interval as a number, and what the numbers stand for."""
        rows = zip(self.workload.tolist(), self.tenant.tolist(), self.deployment.tolist(), strict=True)
        names = [
            (workload, str(tenant), deployment or str(self.workloads[workload]))
            for workload, tenant, deployment in rows
        ]
        each = sorted(set(names))
        number = {name: place for place, name in enumerate(each)}
        workload, tenant, deployment = (np.array([name[part] for name in each], dtype=object) for part in range(3))
        return Parties(
            of_interval=np.array([number[name] for name in names], dtype=np.int64),
            workload=self.workloads[workload.astype(np.int64)],
            tenant=tenant,
            deployment=deployment,
        )


@dataclass(frozen=True)
class Parties:
    """For whom workloads ran: one element for each workload, tenant and deployment, ascending (A4).

    A workload that changes its tenant or deployment within an hour is two of them, never both at a moment.
    """

    of_interval: Ints
    workload: Texts
    tenant: Texts
    deployment: Texts
    """the workload itself where it has none (A23)"""

    def __len__(self) -> int:
        return len(self.workload)


_EACH = (
    "workload", "start", "end", "label", "gpu_count", "placed_class", "tenant", "deployment", "node", "event_id"
)  # fmt: skip
"""the columns of Intervals with an element for each interval"""


def running_intervals(events: pa.Table, now_ms: int, config: AccountingConfig) -> Intervals:
    """Events in order of arrival (schema WORKLOAD_EVENTS) -> intervals and quarantine (A3, A5).

    `now_ms` is the wall clock against which an event is in the future.
    """
    counted, conflicts = first_arrivals(events)
    late = ints(counted["occurred_at"]) > now_ms + FUTURE_MS
    billable = _is_billable(counted["to_state"], config)
    count = _nano(counted["gpu_count"])
    empty = billable & (count <= 0) & ~late
    kept_mask = ~late & ~empty
    kept = counted.filter(pa.array(kept_mask))
    order = pc.sort_indices(
        kept, sort_keys=[("workload_id", "ascending"), ("occurred_at", "ascending"), ("event_id", "ascending")]
    )
    kept = kept.take(order)
    billable = _is_billable(kept["to_state"], config)
    _, first = _groups(kept["workload_id"])
    was_running = np.append(False, billable)[:-1] & ~first
    stray = ~billable & _is_billable(kept["from_state"], config) & ~was_running
    quarantine = _quarantine(
        [
            (conflicts, "conflict", CONFLICT),
            (counted.filter(pa.array(late)), "future", None),
            (counted.filter(pa.array(empty)), "gpu_count", "gpu_count must be above 0 in a billable state"),
            (kept.filter(pa.array(stray)), "no_start", "a stop without a start"),
        ]
    )
    return _intervals(kept.filter(pa.array(~stray)), config, quarantine)


def _intervals(events: pa.Table, config: AccountingConfig, quarantine: pa.Table) -> Intervals:
    workload, first = _groups(events["workload_id"])
    instants = ints(events["occurred_at"])
    closes = np.where(np.append(first, True)[1:], OPEN, np.append(instants, OPEN)[1:])
    own_label = _own_labels(events)
    opens = np.flatnonzero(_is_billable(events["to_state"], config) & (closes > instants))
    named = whole(events["gpu_uuids"]).take(pa.array(opens))
    return Intervals(
        workload=workload[opens],
        start=instants[opens],
        end=closes[opens],
        label=_carried(own_label, first)[opens],
        gpu_count=_nano(events["gpu_count"])[opens],
        placed_class=texts(events["placed_class"])[opens],
        tenant=texts(events["tenant_id"])[opens],
        deployment=texts(events["deployment_id"])[opens],
        node=_carried(texts(events["node"]), first)[opens],
        event_id=texts(events["event_id"])[opens],
        named_interval=ints(pc.list_parent_indices(named)),
        named_device=texts(pc.list_flatten(named)),
        workloads=texts(events["workload_id"])[first],
        known_labels=frozenset(text for text in set(own_label.tolist()) if text is not None),
        quarantine=quarantine,
    )


def _own_labels(events: pa.Table) -> Texts:
    namespace, pod = texts(events["namespace"]), texts(events["pod"])
    pairs = zip(namespace.tolist(), pod.tolist(), strict=True)
    return np.array([f"{space or ''}/{name}" if name else None for space, name in pairs], dtype=object)


def _carried(own: Texts, first: Bools) -> Texts:
    """The event's own text, else that of the workload's last event that had one (A3, A36); an empty text is none."""
    if not len(own):
        return own
    position = np.arange(len(own))
    has = np.array([bool(text) for text in own], dtype=bool)
    source = np.maximum.accumulate(np.where(has, position, -1))
    begin = np.maximum.accumulate(np.where(first, position, 0))
    carried = own[np.maximum(source, 0)]
    carried[source < begin] = None
    return carried


def _groups(ids: Column) -> tuple[Ints, Bools]:
    """Group numbers of a sorted column, and where each group begins."""
    first = changes(texts(ids))
    return np.cumsum(first) - 1, first


def _is_billable(states: Column, config: AccountingConfig) -> Bools:
    return bools(pc.is_in(states, pa.array(sorted(config.billable_states))))


def _nano(column: Column) -> Ints:
    """decimal128(38, 9) as billionths; null is 0. The low word holds any count below nine billion."""
    array = whole(column)
    array = pc.fill_null(array, pa.scalar(0, pa.decimal128(1, 0)).cast(array.type))
    words = np.frombuffer(array.buffers()[1] or b"", dtype=np.int64)
    return words[::2][array.offset : array.offset + len(array)].copy()


def _quarantine(parts: list[tuple[pa.Table, str, str | None]]) -> pa.Table:
    """One row per event and reason, by event; `future` tells the instant."""
    return quarantined(
        "workload_events",
        sorted(
            (event_id, reason, detail or f"{hour_text(at)[:-1]}.{at % 1000:03d}Z is after the clock")
            for table, reason, detail in parts
            for event_id, at in zip(texts(table["event_id"]), ints(table["occurred_at"]).tolist(), strict=True)
        ),
    )
