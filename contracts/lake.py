"""Arrow schemas of every lake table: what is stored, at which grain, in which unit.

One schema object per table serves validation on write, the column documentation and the tests.
Every field carries `unit` and `doc` metadata. A lake file holds one (cluster, hour) of one table;
cluster and hour are repeated as columns only where the table is published.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

INSTANT = pa.timestamp("ms", tz="UTC")
SECONDS = pa.decimal128(38, 3)
GB_SECONDS = pa.decimal128(38, 3)
WATT_HOURS = pa.decimal128(38, 6)
AMOUNT = pa.decimal128(38, 9)


def column(name: str, type_: pa.DataType, doc: str, unit: str = "", nullable: bool = True) -> pa.Field[Any]:
    """A field whose unit and meaning travel with the data."""
    return pa.field(name, type_, nullable=nullable, metadata={"doc": doc, "unit": unit})


def text(name: str, doc: str, nullable: bool = True) -> pa.Field[Any]:
    return column(name, pa.string(), doc, nullable=nullable)


def coded(name: str, doc: str, nullable: bool = True) -> pa.Field[Any]:
    """A text of which a table has few different ones."""
    return column(name, pa.dictionary(pa.int32(), pa.string()), doc, nullable=nullable)


def instant(name: str, doc: str, nullable: bool = True) -> pa.Field[Any]:
    return column(name, INSTANT, doc, "UTC, milliseconds", nullable)


CLUSTER = text("cluster", "cluster that the row belongs to", nullable=False)
HOUR = instant("hour", "start of the accounting hour (A1)", nullable=False)

DCGM_SERIES = pa.schema(
    [
        text("metric", "metric name as exported", nullable=False),
        column("labels", pa.map_(pa.string(), pa.string()), "label set as stored, without __name__", nullable=False),
        column("timestamps", pa.list_(INSTANT), "instants of the samples, ascending", "UTC, milliseconds", False),
        column("values", pa.list_(pa.float64()), "sample values, one per instant", "the metric's own", False),
    ],
    metadata={"grain": "one series of one hour, readings as they came (A7-A12)"},
)

DCGM_SUMMARY = pa.schema(
    [
        text("device", "uuid, or uuid/instance (A7)", False),
        text("config", "digest of the configuration that it was made with", False),
        text("node", "node (A8)", False),
        column("exporters", pa.list_(pa.string()), "pods that were taken for the exporter's own (A8)", "", False),
        column("scrape_seconds", pa.int32(), "scrape interval; null where no target has 10 distances (A11)", "s"),
        column("spacing_target", pa.list_(pa.string()), "scrape target: job and instance, joined by U+001F (A11)"),
        column("spacing_seconds", pa.list_(pa.int32()), "distance of two consecutive instants of that target", "s"),
        column("spacing_count", pa.list_(pa.int32()), "how often it was seen in the hour", "1"),
        column("sparse_at", pa.list_(INSTANT), "all instants, where the scrape interval is null", "UTC, milliseconds"),
        column("sparse_labels", pa.list_(pa.string()), "workload labels then, joined by U+001F"),
        instant("first_at", "first instant with a sample", False),
        instant("last_at", "last instant with a sample", False),
        text("first_labels", "workload labels then, joined by U+001F", False),
        text("last_labels", "workload labels then, joined by U+001F", False),
        instant("node_next_at", "first instant after `last_at` of another device of its node (A21); null if none"),
        column("together", pa.list_(pa.string()), "devices of the board read at a same instant (A21)", "", False),
        column("run_first", pa.list_(pa.int32()), "first window of each stretch of measured windows", "window", False),
        column("run_last", pa.list_(pa.int32()), "last window of each stretch", "window", False),
        column("run_labels", pa.list_(pa.string()), "labels of each stretch, joined by U+001F", "", False),
    ]
    + [
        field
        for name, doc in (
            ("model", "modelName as read"),
            ("profile", "MIG profile as read"),
            ("node", "node as read (A8)"),
        )
        for field in (
            column(f"{name}_text", pa.list_(pa.string()), f"{doc}, of each stretch of time that shows one (A7)"),
            column(f"{name}_first", pa.list_(INSTANT), "first instant of each stretch", "UTC, milliseconds"),
            column(f"{name}_last", pa.list_(INSTANT), "last instant of each stretch", "UTC, milliseconds"),
        )
    ]
    + [
        field
        for quantity, unit in (("utilization", "1e-12"), ("memory", "1e-6 KiB"), ("power", "1e-6 mW"), ("energy", "mJ"))
        for field in (
            instant(f"{quantity}_first_at", f"first valid reading of {quantity}"),
            column(f"{quantity}_first_value", pa.int64(), "its value", unit),
            instant(f"{quantity}_last_at", f"last valid reading of {quantity}"),
            column(f"{quantity}_last_value", pa.int64(), "its value", unit),
        )
    ]
    + [
        instant("energy_first_until", "last of the readings of the counter that equal the first without a break (A20)"),
        instant("energy_last_since", "first of the readings of the counter that equal the last without a break (A20)"),
        instant("drawn_first_at", "first reading of power above zero (A20)"),
        instant("drawn_last_at", "last reading of power above zero (A20)"),
        column("process_quantity", pa.list_(pa.int32()), "quantity of a process's own readings (A19)"),
        column("process_label", pa.list_(pa.string()), "workload label of the process"),
        column("process_first_at", pa.list_(INSTANT), "its first reading", "UTC, milliseconds"),
        column("process_first_value", pa.list_(pa.int64()), "its value", "as the quantity's"),
        column("process_last_at", pa.list_(INSTANT), "its last reading", "UTC, milliseconds"),
        column("process_last_value", pa.list_(pa.int64()), "its value", "as the quantity's"),
    ],
    metadata={
        "grain": "what other hours need to know of one device in one hour (A12); power and energy are the board's"
    },
)

WORKLOAD_EVENTS = pa.schema(
    [
        text("event_id", "id of the lifecycle event; the same id with other content is a conflict (A5)", False),
        instant("occurred_at", "instant of the state change (A1)", False),
        text("workload_id", "workload that changed state", False),
        text("tenant_id", "tenant on whose behalf the workload runs (A25)", False),
        text("deployment_id", "deployment of the workload, if any"),
        text("namespace", "Kubernetes namespace, if known (A3)"),
        text("pod", "pod name, if known (A3)"),
        text("from_state", "state before"),
        text("to_state", "state after; `running` is billable (A3)", False),
        column("gpu_count", pa.decimal128(38, 9), "GPUs asked for; may be a fraction (A4)", "GPU"),
        text("placed_class", "class that the workload was placed on (A6)"),
        text("node", "node, if known"),
        column("gpu_uuids", pa.list_(pa.string()), "devices named: uuid, or uuid/instance (A17)"),
        text("reason", "free text"),
    ],
    metadata={"grain": "one lifecycle event, in order of arrival"},
)

DEPLOYMENTS = pa.schema(
    [
        text("deployment_id", "deployment", False),
        text("mode", "dedicated or shared (A25, A26)", False),
        text("owner_tenant_id", "tenant that owns it", False),
        text("namespace", "namespace of its pods (A18)"),
        text("pod_pattern", "glob of its pod names (A18)"),
        text("model", "model that it serves"),
        instant("valid_from", "it counts for hours that begin from then on; null is always", True),
        instant("valid_to", "and before then; null is still there", True),
    ],
    metadata={"grain": "one deployment over a span of time"},
)

TOKEN_USAGE = pa.schema(
    [
        text("event_id", "id of the gateway's usage event (A5)", False),
        instant("occurred_at", "instant of the request", False),
        text("tenant_id", "tenant served", False),
        text("deployment_id", "deployment that served it"),
        column("input_tokens", pa.int64(), "input tokens, without cached ones", "token", False),
        column("output_tokens", pa.int64(), "output tokens", "token", False),
        column("cached_tokens", pa.int64(), "input tokens served from cache", "token", False),
    ],
    metadata={"grain": "one gateway usage event, in order of arrival"},
)

ALLOCATION_POLICIES = pa.schema(
    [
        text("id", "policy id", False),
        text("name", "name", False),
        text("deployment_pattern", "glob on deployment_id (A23)", False),
        text("gpu_model", "model that it is for; null is any (A23)"),
        text("currency", "ISO 4217 code", False),
        text("gpu_hourly_cost", "decimal: currency per GPU-hour", False),
        text("overhead_pct", "decimal: per cent on the GPU cost", False),
        text("energy_kwh_price", "decimal: currency per kWh", False),
        text("pue", "decimal: power usage effectiveness", False),
        text("storage_gb_month_price", "decimal: currency per GB and month", False),
        text("idle_policy", "owner, proportional or platform (A27)", False),
        text("token_weights", "JSON object input/output/cached of decimals, or null (A26)"),
        instant("effective_from", "first hour that it prices (A22)", False),
        instant("effective_to", "end of its validity, exclusive"),
        text("status", "active or retired", False),
    ],
    metadata={"grain": "one version of a policy"},
)

DEPLOYMENT_STORAGE = pa.schema(
    [
        text("deployment_id", "deployment that holds the disk", False),
        column("size_gb", pa.decimal128(38, 9), "size", "GB (2^30 bytes)", False),
        instant("valid_from", "held from", False),
        instant("valid_to", "held until, exclusive; null is still held"),
    ],
    metadata={"grain": "one disk of a deployment over a span of time (A24)"},
)

GPU_INVENTORY = pa.schema(
    [
        text("node", "node", False),
        text("gpu_uuid", "uuid, or uuid/instance", False),
        text("model", "DCGM's or the platform's name", False),
        instant("valid_from", "present from", False),
        instant("valid_to", "present until, exclusive; null is still there"),
    ],
    metadata={"grain": "one device over a span of time (A21)"},
)

QUARANTINE = pa.schema(
    [
        text("source", "workload_events, token_usage or dcgm", False),
        text("key", "event_id, or uuid[/instance]:METRIC", False),
        text("reason", "reason code of A5 or A10", False),
        text("detail", "free text: what was seen and how often", False),
    ],
    metadata={"grain": "an input that was set aside, and why"},
)

HOUR_FACTS = pa.schema(
    [
        column(
            "provisional", pa.bool_(), "no later reading has closed some gap or hole in a label yet (A16)", "", False
        ),
        column("devices", pa.int64(), "devices known in the hour", "1", False),
        column("readings", pa.int64(), "valid readings in the hour", "1", False),
        column("rejected", pa.int64(), "rejected readings in the hour (A10)", "1", False),
    ],
    metadata={"grain": "one row: what the samples of an hour say about themselves"},
)

GPU_SAMPLES = pa.schema(
    [
        coded("cluster", "cluster that the row belongs to", False),
        instant("window_start", "start of the window (A11)", False),
        coded("node", "node (A8)"),
        coded("gpu_uuid", "board", False),
        coded("mig_instance", "MIG instance; empty for a whole device (A7)", False),
        coded("model", "platform's name of the model", False),
        coded("namespace", "namespace of the workload label (A8)"),
        coded("pod", "pod of the workload label (A8)"),
        coded("tenant_id", "tenant of the holder; null where nobody holds it"),
        coded("deployment_id", "deployment of the holder"),
        column("window_seconds", pa.int32(), "length of the window", "s", False),
        column("utilization", pa.float64(), "mean utilization, a multiple of 1e-6 (A28)", "1"),
        column("memory_used_gb", pa.float64(), "memory used", "GB (2^30 bytes)"),
        column("power_w", pa.float64(), "board power", "W"),
        column("estimated", pa.bool_(), "true unless the whole window was measured (A15)", nullable=False),
        coded("method", "rungs of A13 used, joined by +; `measured` or `missing` where none", False),
    ],
    metadata={"grain": "one window of one visible device (A11-A15)"},
)

GPU_HOLDINGS = pa.schema(
    [
        text("gpu_uuid", "board", False),
        text("gpu_model", "platform's name of its model", False),
        text("workload_id", "workload, namespace/pod of a pod without events (A18), or idle:<model> for nobody", False),
        text("tenant_id", "tenant of the running interval (A4); null without one"),
        text("deployment_id", "deployment of the running interval, or its workload; null without one"),
        text("basis", "lifecycle, samples or idle", False),
        instant("first_at", "when it first had a part of the board in the hour", False),
        instant("last_at", "when it last had one, exclusive", False),
    ]
    + [
        column(name, pa.int64(), doc, unit)
        for name, doc, unit in (
            ("time", "its part of the board's time (A18, A19)", "GPU-ms"),
            ("activity", "its part of utilization x time (A20); null where none is known", "1e-6 GPU-ms"),
            ("memory", "its part of memory x time (A20); null where none is known", "KiB-ms"),
            ("energy", "its part of the board's energy (A20); null where none is known", "mJ"),
        )
    ]
    + [
        column(f"{name}_ms", pa.int64(), f"device time {name}: each device whole (A15)", "ms", False)
        for name in ("measured", "estimated", "missing")
    ]
    + [
        column(f"{name}_ms", pa.int64(), f"device time that used the rung {name} (A13)", "ms", False)
        for name in ("counter", "linear", "profile", "held", "modelled")
    ],
    metadata={"grain": "what one holder, or nobody, had and used of one board in an hour (A4, A17-A20, A28)"},
)

GPU_MATCHES = pa.schema(
    [
        text("event_id", "lifecycle event that opened the running interval", False),
        text("gpu_model", "model of the devices", False),
        column("unit_ms", pa.decimal128(38, 9), "units of gpu_count on visible devices x time", "unit-ms", False),
    ],
    metadata={"grain": "a running interval's allocation on devices of one model in an hour (A21)"},
)

FLEET_STATES = pa.schema(
    [text("gpu_model", "model", False)]
    + [
        column(name, pa.int64(), doc, "device-ms", False)
        for name, doc in (
            ("visible", "visible device time"),
            ("held", "held by somebody"),
            ("stale", "labelled with a workload that does not run"),
            ("unattributed", "of pods that belong to no deployment, or between two of them"),
            ("idle", "read, and nobody's"),
            ("no_data", "silent, and nobody's"),
        )
    ]
    + [
        column(
            "visible_gpu",
            pa.int64(),
            "what the visible devices give, each board up to a whole ms (A36)",
            "GPU-ms",
            False,
        ),
        column("nodes", pa.list_(pa.string()), "nodes that have a visible device (A36)", "", False),
    ],
    metadata={"grain": "the states of one model's devices in an hour (A17, A21)"},
)

FINDINGS = pa.schema(
    [
        CLUSTER,
        HOUR,
        text("kind", "what was found; docs/findings.md has the kinds", False),
        text("subject", "device, board, workload or series that it is about", False),
        text("workload_id", "workload concerned, if it is one"),
        text("tenant_id", "tenant concerned; null where none is"),
        instant("first_at", "when it began in the hour; the last sign of life of a failure may lie before it"),
        instant("last_at", "when it ended in the hour, exclusive"),
        column("seconds", SECONDS, "how much of the hour; the kind says of what", "s"),
        text("detail", "for a person: what was seen", False),
    ],
    metadata={"grain": "something in an hour that a person should look at; no finding changes an amount"},
)

GPU_USAGE = pa.schema(
    [
        CLUSTER,
        HOUR,
        text("workload_id", "workload, namespace/pod (A18) or storage:<deployment>", False),
        text("gpu_model", "model; placed_class where no device was visible; null for storage"),
        text("tenant_id", "the event's tenant, else the deployment's owner; null when unattributed"),
        text("deployment_id", "deployment (A18, A23)", False),
        text("placed_class", "class of the row's last interval in the hour (A6)"),
        text("basis", "lifecycle, samples or storage", False),
        column("gpu_seconds", SECONDS, "allocated time (A4, A18)", "GPU-s"),
        column("gpu_active_seconds", SECONDS, "utilization x seconds (A20)", "GPU-s"),
        column("gpu_memory_gb_seconds", GB_SECONDS, "memory x seconds (A20)", "GB-s"),
        column("energy_wh", WATT_HOURS, "energy without PUE (A20)", "Wh"),
        column("measured_seconds", SECONDS, "device time measured (A15)", "s"),
        column("estimated_seconds", SECONDS, "device time estimated (A15)", "s"),
        column("missing_seconds", SECONDS, "device time missing (A15)", "s"),
        column(
            "estimated", pa.bool_(), "true unless all of it was measured, also below a millisecond (A15)", "", False
        ),
        text("methods", "estimation rungs with their seconds, sorted, joined by ;", False),
    ],
    metadata={"grain": "a workload's hour on one model for one tenant and deployment (A4, A20)"},
)

GPU_IDLE = pa.schema(
    [
        CLUSTER,
        HOUR,
        text("gpu_model", "model", False),
        column("gpu_seconds", SECONDS, "device time nobody pays for, an instance by its slices (A27)", "GPU-s", False),
        column("gpu_memory_gb_seconds", GB_SECONDS, "its memory", "GB-s"),
        column("energy_wh", WATT_HOURS, "its energy", "Wh"),
        column("estimated", pa.bool_(), "true unless all of it was measured", nullable=False),
    ],
    metadata={"grain": "idle, stale, no_data and unattributed time of one hour and model, before pricing (A27)"},
)

FLEET_HOURS = pa.schema(
    [CLUSTER, HOUR, text("gpu_model", "model", False)]
    + [
        column(name, SECONDS, doc, unit, False)
        for name, doc, unit in (
            ("visible", "visible device time", "device-s"),
            ("held", "held by somebody", "device-s"),
            ("stale", "labelled with a workload that does not run", "device-s"),
            ("unattributed", "of pods that belong to no deployment, or between two of them", "device-s"),
            ("idle", "read, and nobody's", "device-s"),
            ("no_data", "silent, and nobody's", "device-s"),
            ("lifecycle", "allocated by lifecycle events", "GPU-s"),
            ("matched", "of that, on a visible device", "GPU-s"),
            ("unmatched", "of that, without one", "GPU-s"),
            ("visible_gpu", "what the visible devices give, each board rounded up (A36)", "GPU-s"),
            ("priced", "of rows and the idle line, on visible devices: at most `visible_gpu` (A36)", "GPU-s"),
        )
    ],
    metadata={"grain": "the fleet identity of one hour and model (A21)"},
)

GPU_COST_ALLOCATION = pa.schema(
    [
        CLUSTER,
        HOUR,
        text("workload_id", "workload, idle:<model> or storage:<deployment>", False),
        text("gpu_model", "model; null for storage"),
        text("tenant_id", "tenant that pays (A25-A27)", False),
        text("usage_type", "gpu_local or gpu_idle (A31)", False),
        text("deployment_id", "deployment; `idle` for idle lines", False),
        column("gpu_seconds", SECONDS, "its part of the allocated time", "GPU-s"),
        column("gpu_memory_gb_seconds", GB_SECONDS, "its part of the memory", "GB-s"),
        column("energy_wh", WATT_HOURS, "its part of the energy", "Wh"),
        column("storage_gb_hours", pa.decimal128(38, 6), "its part of the disk (A24)", "GB-h"),
        column("amount", AMOUNT, "its part of the cost (A24); null is unpriced", "currency"),
        text("currency", "ISO 4217 code; null is unpriced"),
        text("policy_id", "policy that priced it (A23)"),
        column("estimated", pa.bool_(), "true unless all of the row was measured", nullable=False),
    ],
    metadata={"grain": "a tenant's part of a usage row (A25-A29)"},
)

TENANT_HOURS = pa.schema(
    [
        CLUSTER,
        HOUR,
        text("tenant_id", "tenant that was given the time (A25-A27)", False),
        text("placed_class", "class that it ran on (A6); the model for pods without events", False),
        column("gpu_seconds", SECONDS, "its part of the allocated time", "GPU-s", False),
    ],
    metadata={"grain": "a tenant's allocated time of one hour on one class, without storage and idle capacity"},
)

TABLES: dict[str, pa.Schema] = {
    "dcgm_series": DCGM_SERIES,
    "dcgm_summary": DCGM_SUMMARY,
    "workload_events": WORKLOAD_EVENTS,
    "deployments": DEPLOYMENTS,
    "token_usage": TOKEN_USAGE,
    "allocation_policies": ALLOCATION_POLICIES,
    "deployment_storage": DEPLOYMENT_STORAGE,
    "gpu_inventory": GPU_INVENTORY,
    "rejected_records": QUARANTINE,
    "rejected_readings": QUARANTINE,
    "hour_facts": HOUR_FACTS,
    "gpu_samples": GPU_SAMPLES,
    "gpu_holdings": GPU_HOLDINGS,
    "gpu_matches": GPU_MATCHES,
    "fleet_states": FLEET_STATES,
    "findings": FINDINGS,
    "gpu_usage": GPU_USAGE,
    "gpu_idle": GPU_IDLE,
    "fleet_hours": FLEET_HOURS,
    "gpu_cost_allocation": GPU_COST_ALLOCATION,
    "tenant_hours": TENANT_HOURS,
}
