"""Hourly usage of workloads, nobody's part, and the fleet identity (A4, A6, A13 rung 5, A18, A20, A21).

What belongs here: rows in published units (A28). What does not: how a board was divided (`shares`), prices (`allocation`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, hour_text, quantize, round_half_even, rows_of
from finops_pipeline.accounting.holding.deployments import PodOwner
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.telemetry.cards import ModelNames
from finops_pipeline.accounting.usage.pooling import pool
from finops_pipeline.accounting.usage.rows import METHODS, RUNG_NAMES, STATUSES, UNITS, Row, RowKey
from finops_pipeline.contracts.lake import FLEET_HOURS, GPU_IDLE, GPU_USAGE

KIB_MS_PER_GB_S = 1024 * 1024 * 1000
ACTIVITY_PER_S = 1_000_000_000
MJ_PER_WH = 3_600_000
DEVICE_TIMES = ("visible", "held", "stale", "unattributed", "idle", "no_data")


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
    fleet = _allocate(rows, intervals, matches, _placed(states, intervals, config), start, config)
    _pool(rows, idle, intervals, states, start, config)
    _model_energy(rows, intervals, config)
    return HourUsage(
        usage=_usage_table(rows, intervals, cluster, start),
        idle=_idle_table(idle, cluster, start),
        fleet=_fleet_table(
            states, fleet, _priced(rows, idle, intervals, config), _allocated(intervals, start, config), cluster, start
        ),
    )


def _held(holdings: pa.Table, owners: Mapping[str, PodOwner | None]) -> tuple[dict[RowKey, Row], dict[str, Row]]:
    """Rows, and nobody's by model: pods of no deployment count in both (A27)."""
    rows: dict[RowKey, Row] = defaultdict(Row)
    idle: dict[str, Row] = defaultdict(Row)
    columns = [*UNITS, *(f"{name}_ms" for name in (*STATUSES, *RUNG_NAMES))]
    keys = ["basis", "workload_id", "gpu_model", "tenant_id", "deployment_id"]
    for part in holdings.group_by(keys).aggregate([(name, "sum") for name in columns]).to_pylist():
        basis, workload, model = part["basis"], part["workload_id"], part["gpu_model"]
        if basis == "lifecycle":
            rows[RowKey(workload, model, basis, part["tenant_id"], part["deployment_id"])].hold(part)
        if basis == "samples":
            owner = owners[workload]
            row = rows[
                RowKey(workload, model, basis, *((owner.tenant_id, owner.deployment_id) if owner else (None, workload)))
            ]
            row.hold(part)
            row.gpu_ms += part["time_sum"]
        if basis == "idle" or (basis == "samples" and owners[workload] is None):
            idle[model].hold(part)
    return rows, idle


def _placed(states: pa.Table, intervals: Intervals, config: AccountingConfig) -> list[str]:
    """The model that each interval's `placed_class` is, by the name that it has in the hour (section 2)."""
    classes = [name or "" for name in intervals.placed_class.tolist()]
    names = ModelNames.of([*texts(states["gpu_model"]), *classes], config)
    return [names.named(name) for name in classes]


def _allocate(
    rows: dict[RowKey, Row],
    intervals: Intervals,
    matches: pa.Table,
    placed: Sequence[str],
    start: int,
    config: AccountingConfig,
) -> dict[str, tuple[Fraction, Fraction]]:
    """Lifecycle time on rows: matched on its model, the rest without a visible device on its class (`placed`).

    Returns (matched, unmatched) GPU-ms by model.
    """
    number = {event_id: index for index, event_id in enumerate(intervals.event_id.tolist())}
    parties, fractions = intervals.parties(), intervals.fractions(config)

    def row_of(interval: int, model: str) -> Row:
        party = parties.of_interval[interval]
        tenant, deployment = parties.tenant[party], parties.deployment[party]
        row = rows[RowKey(parties.workload[party], model, "lifecycle", tenant, deployment)]
        row.runs(interval)
        return row

    unseen = _unit_ms(intervals, start)
    fleet: dict[str, tuple[Fraction, Fraction]] = defaultdict(lambda: (Fraction(0), Fraction(0)))
    for match in matches.to_pylist():
        interval, model, unit_ms = number[match["event_id"]], match["gpu_model"], Fraction(match["unit_ms"])
        unseen[interval] -= unit_ms
        gpu_ms = unit_ms * fractions[interval]
        row_of(interval, model).gpu_ms += gpu_ms
        fleet[model] = (fleet[model][0] + gpu_ms, fleet[model][1])
    for interval, unit_ms in enumerate(unseen):
        if unit_ms:
            model = placed[interval]
            row_of(interval, model).unseen[interval] = unit_ms
            fleet[model] = (fleet[model][0], fleet[model][1] + unit_ms * fractions[interval])
    return fleet


def _pool(
    rows: Mapping[RowKey, Row],
    idle: dict[str, Row],
    intervals: Intervals,
    states: pa.Table,
    start: int,
    config: AccountingConfig,
) -> None:
    """A36: idle lines of visible models give to workloads of their class, on whose node they are, if it is known."""
    fractions = intervals.fractions(config)
    nodes = {model: set(names) for model, ms, names in rows_of(states, "gpu_model", "visible", "nodes") if ms}
    asking: dict[str, dict[RowKey, tuple[Row, dict[int, Fraction]]]] = defaultdict(dict)
    for key, row in rows.items():
        may = {
            interval: fractions[interval]
            for interval in row.unseen
            if key.model in nodes and intervals.node[interval] in {None, *nodes[key.model]}
        }
        if may:
            asking[key.model][key] = (row, may)
    for model in sorted(asking.keys() & idle.keys()):
        if pool(idle[model], asking[model], hour_text(start)):
            del idle[model]


def _model_energy(rows: Mapping[RowKey, Row], intervals: Intervals, config: AccountingConfig) -> None:
    """Time without a visible device: the class's watts, or missing (A13 rung 5, A15, A20)."""
    fractions = intervals.fractions(config)
    for row in rows.values():
        for interval, unit_ms in row.unseen.items():
            row.gpu_ms += unit_ms * fractions[interval]
            watts = config.watts(intervals.placed_class[interval] or "")
            if watts is None:
                row.times["missing"] += unit_ms
            elif unit_ms:
                row.times["estimated"] += unit_ms
                row.times["modelled"] += unit_ms
                energy = Fraction(watts) * unit_ms
                row.add("energy", round_half_even(energy.numerator, energy.denominator))


def _priced(
    rows: Mapping[RowKey, Row], idle: Mapping[str, Row], intervals: Intervals, config: AccountingConfig
) -> dict[str, Fraction]:
    """GPU-ms of each model that somebody pays for as those of a visible device (A36)."""
    fractions = intervals.fractions(config)
    priced: dict[str, Fraction] = defaultdict(Fraction)
    for key, row in rows.items():
        if key.tenant is not None:
            stayed = sum((unit_ms * fractions[interval] for interval, unit_ms in row.unseen.items()), Fraction(0))
            priced[key.model] += row.gpu_ms - stayed
    for model, line in idle.items():
        priced[model] += line.units["time"] or 0
    return priced


def _unit_ms(intervals: Intervals, start: int) -> list[Fraction]:
    """Of each interval, the units x ms that its events allocate in the hour (A4)."""
    spans = zip(intervals.gpu_count.tolist(), intervals.start.tolist(), intervals.end.tolist(), strict=True)
    return [Fraction(count * (min(end, start + HOUR_MS) - max(begin, start)), NANO) for count, begin, end in spans]


def _allocated(intervals: Intervals, start: int, config: AccountingConfig) -> Fraction:
    """GPU-ms that the events allocate in the hour, straight from the intervals (A4)."""
    parts = zip(_unit_ms(intervals, start), intervals.fractions(config), strict=True)
    return sum((unit_ms * fraction for unit_ms, fraction in parts), Fraction(0))


def _published(amount: int | Fraction | None, divisor: int, places: int) -> Decimal | None:
    return None if amount is None else quantize(Fraction(amount) / divisor, places)


def _seconds(ms: int | Fraction) -> Decimal | None:
    return _published(ms, 1000, 3)


def _used(row: Row) -> dict[str, Decimal | None]:
    return {
        "gpu_memory_gb_seconds": _published(row.units["memory"], KIB_MS_PER_GB_S, 3),
        "energy_wh": _published(row.units["energy"], MJ_PER_WH, 6),
    }


def _usage_table(rows: Mapping[RowKey, Row], intervals: Intervals, cluster: str, start: int) -> pa.Table:
    records = []
    for key, row in sorted(rows.items(), key=lambda item: (*item[0][:2], item[0].deployment, item[0].tenant or "")):
        methods = {name: row.times[name] for name in sorted(METHODS) if row.times[name]}
        records.append(
            {
                "cluster": cluster,
                "hour": start,
                "workload_id": key.workload,
                "gpu_model": key.model,
                "tenant_id": key.tenant,
                "deployment_id": key.deployment,
                "placed_class": None if row.interval < 0 else intervals.placed_class[row.interval],
                "basis": key.basis,
                "gpu_seconds": _seconds(row.gpu_ms),
                "gpu_active_seconds": _published(row.units["activity"], ACTIVITY_PER_S, 3),
                **_used(row),
                **{f"{name}_seconds": _seconds(row.times[name]) for name in STATUSES},
                "estimated": row.estimated,
                "methods": ";".join(f"{name}={_seconds(ms)}" for name, ms in methods.items()),
            }
        )
    return pa.Table.from_pylist(records, schema=GPU_USAGE)


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
    states: pa.Table,
    gpu_ms: Mapping[str, tuple[Fraction, Fraction]],
    priced: Mapping[str, Fraction],
    allocated: Fraction,
    cluster: str,
    start: int,
) -> pa.Table:
    """FLEET_HOURS; raises `AccountingError` where an identity of A21 does not hold."""
    by_model = {row["gpu_model"]: row for row in states.to_pylist()}
    where = f"fleet identity of {cluster}, {hour_text(start)}"
    records = []
    for model in sorted({*by_model, *gpu_ms}):
        found = by_model.get(model, {})
        device_ms = {name: found.get(name, 0) for name in DEVICE_TIMES}
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
                "lifecycle": quantize(matched / 1000, 3) + quantize(unmatched / 1000, 3),
                "matched": _seconds(matched),
                "unmatched": _seconds(unmatched),
                "visible_gpu": _seconds(found.get("visible_gpu", 0)),
                "priced": _seconds(priced.get(model, Fraction(0))),
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
