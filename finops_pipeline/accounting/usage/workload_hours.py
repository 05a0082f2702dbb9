"""Hourly usage of workloads, nobody's part, and the fleet identity (A4, A6, A13 rung 5, A18, A20, A21).

What belongs here: rows in published units (A28). What does not: how a board was divided (`shares`), prices (`allocation`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, hour_text, quantize, round_half_even
from finops_pipeline.accounting.holding.deployments import PodOwner
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.telemetry.windows import RUNGS
from finops_pipeline.contracts.lake import FLEET_HOURS, GPU_IDLE, GPU_USAGE

UNITS = ("time", "activity", "memory", "energy")
STATUSES = ("measured", "estimated", "missing")
METHODS = tuple(rung.name.lower() for rung in RUNGS)
KIB_MS_PER_GB_S = 1024 * 1024 * 1000
ACTIVITY_PER_S = 1_000_000_000
MJ_PER_WH = 3_600_000


@dataclass
class Row:
    """A row in exact units; a unit is None while no part of it is known."""

    units: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(UNITS))
    times: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys((*STATUSES, *METHODS), Fraction(0)))
    gpu_ms: Fraction = Fraction(0)
    interval: int = -1
    """the last interval that counts in it (A6); -1 for pods without events"""

    def add(self, unit: str, amount: int | None) -> None:
        if amount is not None:
            self.units[unit] = (self.units[unit] or 0) + amount

    def allocate(self, interval: int, gpu_ms: Fraction) -> None:
        self.gpu_ms += gpu_ms
        self.interval = max(self.interval, interval)

    def hold(self, part: Mapping[str, int | None]) -> None:
        """Take in a row of summed GPU_HOLDINGS."""
        for unit in UNITS:
            self.add(unit, part[f"{unit}_sum"])
        for name in self.times:
            self.times[name] += part[f"{name}_ms_sum"] or 0

    @property
    def estimated(self) -> bool:
        return bool(self.times["estimated"] or self.times["missing"])


@dataclass(frozen=True)
class HourUsage:
    """Schemas GPU_USAGE, GPU_IDLE and FLEET_HOURS, each sorted by its key."""

    usage: pa.Table
    idle: pa.Table
    fleet: pa.Table


def hour_usage(
    cluster: str,
    start: int,
    intervals: Intervals,
    holdings: pa.Table,
    matches: pa.Table,
    states: pa.Table,
    owners: Mapping[str, PodOwner | None],
    config: AccountingConfig,
) -> HourUsage:
    """Holdings, matches and states of an hour (`shares`) and its running intervals -> its usage.

    `owners` tells each pod without events its deployment (A18). Raises `AccountingError` if the fleet
    identity does not hold (A21).
    """
    intervals = intervals.running_in(start, start + HOUR_MS)
    rows, idle = _held(holdings, owners)
    fleet = _allocate(rows, intervals, matches, start, config)
    return HourUsage(
        usage=_usage_table(rows, intervals, owners, cluster, start),
        idle=_idle_table(idle, cluster, start),
        fleet=_fleet_table(states, fleet, _allocated(intervals, start, config), cluster, start),
    )


def _held(
    holdings: pa.Table, owners: Mapping[str, PodOwner | None]
) -> tuple[dict[tuple[str, str, str], Row], dict[str, Row]]:
    """Rows by (basis, workload, model), and nobody's by model: pods of no deployment count in both (A27)."""
    rows: dict[tuple[str, str, str], Row] = defaultdict(Row)
    idle: dict[str, Row] = defaultdict(Row)
    columns = [*UNITS, *(f"{name}_ms" for name in (*STATUSES, *METHODS))]
    sums = holdings.group_by(["basis", "workload_id", "gpu_model"]).aggregate([(name, "sum") for name in columns])
    for part in sums.to_pylist():
        basis, workload, model = part["basis"], part["workload_id"], part["gpu_model"]
        if basis != "idle":
            rows[basis, workload, model].hold(part)
        if basis == "samples":
            rows[basis, workload, model].gpu_ms += part["time_sum"]
        if basis == "idle" or (basis == "samples" and owners[workload] is None):
            idle[model].hold(part)
    return rows, idle


def _allocate(
    rows: dict[tuple[str, str, str], Row], intervals: Intervals, matches: pa.Table, start: int, config: AccountingConfig
) -> dict[str, tuple[Fraction, Fraction]]:
    """Lifecycle time on rows: matched on its model, the rest without a visible device on `placed_class`.

    Returns (matched, unmatched) GPU-ms by model.
    """
    number = {event_id: index for index, event_id in enumerate(intervals.event_id.tolist())}
    workload_of = [str(intervals.workloads[workload]) for workload in intervals.workload.tolist()]
    fractions = intervals.fractions(config)
    unseen = [
        Fraction(count * (min(end, start + HOUR_MS) - max(begin, start)), NANO)
        for count, begin, end in zip(
            intervals.gpu_count.tolist(), intervals.start.tolist(), intervals.end.tolist(), strict=True
        )
    ]
    fleet: dict[str, tuple[Fraction, Fraction]] = defaultdict(lambda: (Fraction(0), Fraction(0)))
    for match in matches.to_pylist():
        interval, model, unit_ms = number[match["event_id"]], match["gpu_model"], Fraction(match["unit_ms"])
        unseen[interval] -= unit_ms
        gpu_ms = unit_ms * fractions[interval]
        rows["lifecycle", workload_of[interval], model].allocate(interval, gpu_ms)
        fleet[model] = (fleet[model][0] + gpu_ms, fleet[model][1])
    for interval, unit_ms in enumerate(unseen):
        if unit_ms:
            model = str(intervals.placed_class[interval])
            row = rows["lifecycle", workload_of[interval], model]
            row.allocate(interval, unit_ms * fractions[interval])
            fleet[model] = (fleet[model][0], fleet[model][1] + unit_ms * fractions[interval])
            _model_energy(row, unit_ms, config.watts(model))
    return fleet


def _model_energy(row: Row, unit_ms: Fraction, watts: Decimal | None) -> None:
    """Time without a visible device: the class's watts, or missing (A13 rung 5, A15, A20)."""
    if watts is None:
        row.times["missing"] += unit_ms
        return
    row.times["estimated"] += unit_ms
    row.times["modelled"] += unit_ms
    energy = Fraction(watts) * unit_ms
    row.add("energy", round_half_even(energy.numerator, energy.denominator))


def _allocated(intervals: Intervals, start: int, config: AccountingConfig) -> Fraction:
    """GPU-ms that the events allocate in the hour, straight from the intervals (A4)."""
    spans = zip(
        intervals.gpu_count.tolist(),
        intervals.start.tolist(),
        intervals.end.tolist(),
        intervals.fractions(config),
        strict=True,
    )
    return sum(
        (
            Fraction(count * (min(end, start + HOUR_MS) - max(begin, start)), NANO) * fraction
            for count, begin, end, fraction in spans
        ),
        Fraction(0),
    )


def _published(amount: int | Fraction | None, divisor: int, places: int) -> Decimal | None:
    return None if amount is None else quantize(Fraction(amount) / divisor, places)


def _seconds(ms: int | Fraction) -> Decimal | None:
    return _published(ms, 1000, 3)


def _used(row: Row) -> dict[str, Decimal | None]:
    return {
        "gpu_memory_gb_seconds": _published(row.units["memory"], KIB_MS_PER_GB_S, 3),
        "energy_wh": _published(row.units["energy"], MJ_PER_WH, 6),
    }


def _usage_table(
    rows: Mapping[tuple[str, str, str], Row],
    intervals: Intervals,
    owners: Mapping[str, PodOwner | None],
    cluster: str,
    start: int,
) -> pa.Table:
    records = []
    for (basis, workload, model), row in rows.items():
        methods = {name: row.times[name] for name in sorted(METHODS) if row.times[name]}
        records.append(
            {
                "cluster": cluster,
                "hour": start,
                "workload_id": workload,
                "gpu_model": model,
                **(_by_event(workload, row, intervals) if basis == "lifecycle" else _by_owner(workload, owners)),
                "basis": basis,
                "gpu_seconds": _seconds(row.gpu_ms),
                "gpu_active_seconds": _published(row.units["activity"], ACTIVITY_PER_S, 3),
                **_used(row),
                **{f"{name}_seconds": _seconds(row.times[name]) for name in STATUSES},
                "methods": ";".join(f"{name}={_seconds(ms)}" for name, ms in methods.items()),
            }
        )
    records.sort(key=lambda record: (record["workload_id"], record["gpu_model"]))
    return pa.Table.from_pylist(records, schema=GPU_USAGE)


def _by_event(workload: str, row: Row, intervals: Intervals) -> dict[str, str | None]:
    return {
        "tenant_id": intervals.tenant[row.interval],
        "deployment_id": intervals.deployment[row.interval] or workload,
        "placed_class": intervals.placed_class[row.interval],
    }


def _by_owner(pod: str, owners: Mapping[str, PodOwner | None]) -> dict[str, str | None]:
    owner = owners[pod]
    return {
        "tenant_id": owner.tenant_id if owner else None,
        "deployment_id": owner.deployment_id if owner else pod,
        "placed_class": None,
    }


def _idle_table(rows: Mapping[str, Row], cluster: str, start: int) -> pa.Table:
    records = [
        {
            "cluster": cluster,
            "hour": start,
            "gpu_model": model,
            "gpu_seconds": _seconds(row.units["time"] or 0),
            **_used(row),
            "estimated": row.estimated,
        }
        for model, row in sorted(rows.items())
    ]
    return pa.Table.from_pylist(records, schema=GPU_IDLE)


def _fleet_table(
    states: pa.Table, gpu_ms: Mapping[str, tuple[Fraction, Fraction]], allocated: Fraction, cluster: str, start: int
) -> pa.Table:
    """FLEET_HOURS; raises `AccountingError` where an identity does not hold."""
    by_model = {row.pop("gpu_model"): row for row in states.to_pylist()}
    where = f"fleet identity of {cluster}, {hour_text(start)}"
    records = []
    for model in sorted({*by_model, *gpu_ms}):
        device_ms = by_model.get(model) or dict.fromkeys(states.schema.names[1:], 0)
        matched, unmatched = gpu_ms.get(model, (Fraction(0), Fraction(0)))
        if device_ms["visible"] * 2 != sum(device_ms.values()):
            raise AccountingError(f"{where}, {model}: {device_ms} does not add up (A21); nothing is published")
        if unmatched < 0:
            raise AccountingError(f"{where}, {model}: {-unmatched} GPU-ms matched twice (A21); nothing is published")
        records.append(
            {
                "cluster": cluster,
                "hour": start,
                "gpu_model": model,
                **{name: _seconds(ms) for name, ms in device_ms.items()},
                "lifecycle": _seconds(matched + unmatched),
                "matched": _seconds(matched),
                "unmatched": _seconds(unmatched),
            }
        )
    accounted = sum((matched + unmatched for matched, unmatched in gpu_ms.values()), Fraction(0))
    if accounted != allocated:
        raise AccountingError(
            f"{where}: {allocated} GPU-ms allocated by events, {accounted} accounted (A21); nothing is published"
        )
    return pa.Table.from_pylist(records, schema=FLEET_HOURS)


def pods_of(holdings: pa.Table) -> Iterable[str]:
    """Pods without events that hold something (A18)."""
    rows = zip(texts(holdings["basis"]), texts(holdings["workload_id"]), strict=True)
    return sorted({workload for basis, workload in rows if basis == "samples"})
