"""A fleet's hours by the pipeline's own accounting, in the shape of the reference's result."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.config import AccountingConfig, CardLimit
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.hour import account_hour, sample_hour
from finops_pipeline.accounting.records import deployments_of_hour
from finops_pipeline.accounting.telemetry.readings import like_exporters, read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.contracts.lake import DCGM_SERIES, DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS

from .reference import DAY, HOUR, Event, Hour, Sample

if TYPE_CHECKING:
    from .fleets import Fleet

CLUSTER = "dc1"


def decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def series_of(samples: list[Sample]) -> dict[int, pa.Table]:
    """DCGM_SERIES of each hour with a sample, one row per series."""
    rows: dict[int, dict[tuple[Any, ...], list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        key = (sample.metric, *sorted(sample.labels.items()))
        rows[sample.at // HOUR * HOUR][key].append((sample.at, sample.value))
    tables = {}
    for hour, series in rows.items():
        found = []
        for (metric, *labels), values in series.items():
            values.sort(key=lambda reading: reading[0])
            found.append(
                {
                    "metric": metric,
                    "labels": labels,
                    "timestamps": [at for at, _ in values],
                    "values": [value for _, value in values],
                }
            )
        tables[hour] = pa.Table.from_pylist(found, schema=DCGM_SERIES)
    return tables


def event_row(event: Event) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "occurred_at": event.at,
        "workload_id": event.workload_id,
        "tenant_id": event.tenant_id,
        "deployment_id": event.deployment_id,
        "namespace": event.namespace,
        "pod": event.pod,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "gpu_count": None if event.gpu_count is None else decimal(event.gpu_count),
        "placed_class": event.placed_class,
        "node": event.node,
        "gpu_uuids": None if event.gpu_uuids is None else list(event.gpu_uuids),
        "reason": event.reason,
    }


def config_of(fleet: Fleet) -> AccountingConfig:
    settings = fleet.settings
    return AccountingConfig(
        platform_tenant="platform",
        window_seconds=settings.window_seconds,
        models=settings.models,
        card_limits={
            name: CardLimit(None if watts is None else decimal(watts), None if size is None else decimal(size))
            for name, (watts, size) in settings.card_limits.items()
        },
        class_watts={name: decimal(watts) for name, watts in settings.class_watts.items()},
        class_fraction=settings.class_fraction,
    )


def records_of(fleet: Fleet) -> dict[str, pa.Table]:
    """The platform's records as lake tables."""
    return {
        "workload_events": pa.Table.from_pylist([event_row(e) for e in fleet.events], schema=WORKLOAD_EVENTS),
        "deployments": pa.Table.from_pylist(
            [
                {
                    "deployment_id": d.deployment_id,
                    "mode": "dedicated",
                    "owner_tenant_id": d.owner_tenant_id,
                    "namespace": d.namespace,
                    "pod_pattern": d.pod_pattern,
                    "valid_from": d.start,
                    "valid_to": d.end,
                }
                for d in fleet.deployments
            ],
            schema=DEPLOYMENTS,
        ),
        "gpu_inventory": pa.Table.from_pylist(
            [
                {
                    "cluster": CLUSTER,
                    "node": e.node or "n",
                    "gpu_uuid": e.gpu_uuid,
                    "model": e.model,
                    "valid_from": e.start,
                    "valid_to": e.end,
                }
                for e in fleet.inventory
            ],
            schema=GPU_INVENTORY,
        ),
    }


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows = table.to_pylist()
    for row in rows:
        row["hour"] = int(row["hour"].timestamp()) * 1000
    return rows


def key_of(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return row["workload_id"], row["gpu_model"], row["tenant_id"] or "", row["deployment_id"]


def account_fleet(fleet: Fleet, series: dict[int, pa.Table] | None = None) -> list[Hour]:
    """Every hour of a fleet by the pipeline; quarantined events are told in the first."""
    config, records = config_of(fleet), records_of(fleet)
    tables = series_of(fleet.samples) if series is None else series
    intervals = running_intervals(records["workload_events"], fleet.now, config)
    pods, events = like_exporters(intervals.known_labels, config), intervals.quarantine
    summaries = {hour: summarise(read_hour(table, hour, config, pods), config) for hour, table in tables.items()}
    hours = []
    for start in fleet.hours:
        near = {hour: table for hour, table in summaries.items() if start - DAY <= hour <= start + DAY}
        own = tables.get(start, DCGM_SERIES.empty_table())
        known = records | {"deployments": deployments_of_hour(records["deployments"], start)}
        sampled = sample_hour(CLUSTER, start, own, near, known, fleet.now, config)
        found = account_hour(CLUSTER, start, sampled, known, fleet.now, config)
        quarantine = {
            (row["source"], row["key"], row["reason"])
            for table in (events, sampled.rejected)
            for row in table.to_pylist()
        }
        flagged = {key_of(row) for row in rows_of(found.usage) if row["estimated"]}
        usage = rows_of(found.usage.drop_columns(["estimated"]))
        fleet_rows = rows_of(found.fleet.drop_columns(["visible_gpu", "priced"]))
        over = found.fleet.filter(pc.greater(found.fleet["priced"], found.fleet["visible_gpu"]))
        excess = {row["gpu_model"]: Fraction(row["priced"] - row["visible_gpu"]) * 1000 for row in over.to_pylist()}
        idle = rows_of(found.idle)
        hours.append(Hour(usage, fleet_rows, idle, quarantine, estimated=flagged, overpriced=excess))
    return hours
