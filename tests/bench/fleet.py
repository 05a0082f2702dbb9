"""A fleet to measure with: DCGM series of an hour, lifecycle events, tokens and prices, all from a seed.

Every GPU is scraped each 15 s with four metrics; one scrape in a hundred is missing; nine of ten GPUs carry a pod, two
to a workload; one workload in five ends in the hour and its GPUs go to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa

from finops_pipeline.contracts import lake

START = 1_790_848_800_000
HOUR_MS = 3_600_000
SCRAPE_MS = 15_000
CLUSTER = "bench"
TENANTS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(1, 21)]
PLATFORM = "ffffffff-0000-4000-8000-000000000000"
MODEL = "NVIDIA H100 80GB HBM3"
METRICS = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
)


def labels(gpu: int) -> list[tuple[str, str]]:
    """The label set of a GPU, as honorLabels=false leaves it."""
    found = [
        ("DCGM_FI_DRIVER_VERSION", "570.124.06"),
        ("Hostname", f"gpu-node-{gpu // 8:04d}"),
        ("UUID", f"GPU-{gpu:08x}-1c2d-4e5f-8a9b-{gpu:012x}"),
        ("device", f"nvidia{gpu % 8}"),
        ("gpu", str(gpu % 8)),
        ("instance", f"10.42.{gpu // 2048}.{gpu // 8 % 256}:9400"),
        ("job", "dcgm-exporter"),
        ("modelName", MODEL),
        ("pci_bus_id", f"00000000:{gpu % 8:02X}:00.0"),
        ("pod", "nvidia-dcgm-exporter-9tq4x"),
        ("namespace", "gpu-operator"),
    ]
    if gpu % 10:
        found += [("exported_container", "main"), ("exported_namespace", "train"), ("exported_pod", f"job-{gpu // 2}")]
    return sorted(found)


def hour_series(gpus: int, hour: int) -> pa.Table:
    """DCGM_SERIES of one hour: about 950 samples a GPU."""
    rng = np.random.default_rng(hour // HOUR_MS)
    counts, instants, values = [], [], []
    base = hour + np.arange(HOUR_MS // SCRAPE_MS) * SCRAPE_MS
    for gpu in range(gpus):
        at = (base + gpu * 37 % SCRAPE_MS)[rng.random(len(base)) > 0.01]
        power = 300 + 100 * np.sin(at / 6e5 + gpu) + rng.random(len(at))
        columns = (
            np.round(0.5 + 0.4 * np.sin(at / 9e5 + gpu), 6),
            np.floor(60_000 + 5_000 * np.sin(at / 7e5 + gpu)),
            np.round(power, 3),
            np.floor(9e11 + 300.5 * (at - START) + 6e7 * (np.cos(START / 6e5 + gpu) - np.cos(at / 6e5 + gpu))),
        )
        for column in columns:
            counts.append(len(at))
            instants.append(at)
            values.append(column)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    names = [labels(gpu) for gpu in range(gpus) for _ in METRICS]
    stamps = pa.array(np.concatenate(instants), pa.int64()).cast(lake.INSTANT)
    return pa.table(
        {
            "metric": pa.array(list(METRICS) * gpus),
            "labels": pa.array(names, pa.map_(pa.string(), pa.string())),
            "timestamps": pa.ListArray.from_arrays(offsets, stamps),
            "values": pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(values))),
        },
        schema=lake.DCGM_SERIES,
    )


def open_metrics(series: pa.Table) -> Iterator[str]:
    """The text that `promtool tsdb create-blocks-from openmetrics` reads: one metric after the other."""
    rows = series.to_pylist()
    for metric in METRICS:
        for row in rows:
            if row["metric"] == metric:
                name = metric + "{" + ",".join(f'{key}="{value}"' for key, value in row["labels"]) + "}"
                pairs = zip(row["values"], row["timestamps"], strict=True)
                yield "".join(f"{name} {value!r} {at.timestamp():.3f}\n" for value, at in pairs)
    yield "# EOF\n"


def records(gpus: int, hours: int = 1) -> dict[str, pa.Table]:
    """The platform's tables: two GPUs a workload, a fifth of the workloads replaced in the middle of the first hour."""
    events = []
    for workload in range(gpus // 2):
        label, tenant = f"job-{workload}", TENANTS[workload % len(TENANTS)]
        states = [("running", START - 5 * HOUR_MS + workload)]
        if workload % 5 == 0:
            states += [("stopped", START + 1_800_000 + workload * 7)]
        for number, (state, at) in enumerate(states):
            events.append(_event(f"ev-{workload}-{number}", f"wl-{workload}", tenant, label, state, at))
        if workload % 5 == 0:
            events.append(
                _event(
                    f"ev-{workload}-n", f"wl-{workload}-n", tenant, label, "running", START + 1_810_000 + workload * 7
                )
            )
    tokens = [
        {
            "event_id": f"tk-{hour}-{number}",
            "occurred_at": START + hour * HOUR_MS + number * 30_000,
            "tenant_id": TENANTS[number % len(TENANTS)],
            "deployment_id": f"shared-{number % 10}",
            "input_tokens": 1000 + number,
            "output_tokens": 100,
            "cached_tokens": 0,
        }
        for hour in range(hours)
        for number in range(100)
    ]
    deployments = [
        {
            "deployment_id": f"shared-{number}",
            "mode": "shared",
            "owner_tenant_id": TENANTS[number],
            "namespace": "serve",
            "pod_pattern": f"shared-{number}-*",
            "model": "llama",
        }
        for number in range(10)
    ]
    policy = {
        "id": "bench",
        "name": "bench",
        "deployment_pattern": "*",
        "gpu_model": None,
        "currency": "EUR",
        "gpu_hourly_cost": "2.10",
        "overhead_pct": "18",
        "energy_kwh_price": "0.21",
        "pue": "1.4",
        "storage_gb_month_price": "0.02",
        "idle_policy": "owner",
        "token_weights": None,
        "effective_from": START - 1000 * HOUR_MS,
        "effective_to": None,
        "status": "active",
    }
    return {
        "workload_events": pa.Table.from_pylist(events, schema=lake.WORKLOAD_EVENTS),
        "token_usage": pa.Table.from_pylist(tokens, schema=lake.TOKEN_USAGE),
        "deployments": pa.Table.from_pylist(deployments, schema=lake.DEPLOYMENTS),
        "allocation_policies": pa.Table.from_pylist([policy], schema=lake.ALLOCATION_POLICIES),
    }


def _event(event_id: str, workload: str, tenant: str, pod: str, state: str, at: int) -> dict[str, object]:
    return {
        "event_id": event_id,
        "occurred_at": at,
        "workload_id": workload,
        "tenant_id": tenant,
        "deployment_id": f"shared-{int(workload.split('-')[1]) % 100}",
        "namespace": "train",
        "pod": pod,
        "from_state": "running" if state == "stopped" else "provisioning",
        "to_state": state,
        "gpu_count": Decimal(2),
        "placed_class": MODEL,
        "node": None,
        "gpu_uuids": None,
        "reason": None,
    }
