"""Schema `eai`, first version: inputs of the platform, results by hour, the append-only ledger and the audit chain.

Units are plain `numeric`: a database never rounds (A28). Names and meanings follow `contracts/lake.py`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

TENANT = "(SELECT NULLIF(current_setting('app.tenant_id', true), '')::uuid)"


def text(name: str, comment: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null, comment=comment)


def uuid(name: str, comment: str) -> sa.Column[object]:
    return sa.Column(name, sa.Uuid, nullable=False, comment=comment)


def instant(name: str, comment: str, *, null: bool = False, default: str | None = None) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.TIMESTAMP(timezone=True),
        nullable=null,
        server_default=None if default is None else sa.text(default),
        comment=f"{comment} (UTC)",
    )


def number(name: str, comment: str, *, null: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.Numeric, nullable=null, comment=comment)


def whole(name: str, comment: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=null, comment=comment)


def flag(name: str, comment: str, *, null: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=null, comment=comment)


def many(name: str, of: type[sa.types.TypeEngine[object]], comment: str) -> sa.Column[object]:
    return sa.Column(name, postgresql.ARRAY(of), nullable=False, comment=comment)


def arrival(comment: str = "order of arrival") -> sa.Column[int]:
    return sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True, comment=comment)


def unique(name: str, *columns: str) -> sa.UniqueConstraint:
    """A key in which two nulls are the same value."""
    return sa.UniqueConstraint(*columns, name=name, postgresql_nulls_not_distinct=True)


def view(name: str, query: str, comment: str, **columns: str) -> None:
    """A view with the rights of whoever reads it, and what its columns mean."""
    op.execute(f"CREATE VIEW eai.{name} WITH (security_invoker = true) AS {query}")
    op.execute(f"COMMENT ON VIEW eai.{name} IS {quoted(comment)}")
    for column, meaning in columns.items():
        op.execute(f"COMMENT ON COLUMN eai.{name}.{column} IS {quoted(meaning)}")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


CLUSTER = "cluster that the row belongs to"
CLUSTER_OR_DEFAULT = "cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS"
HOUR = "start of the accounting hour (A1)"
ATTRIBUTED = "false: nobody holds it, and tenant_id is the platform tenant, who sees such rows"


def upgrade() -> None:
    # Else everybody may run a new function: with note_late_events on a table of its own a reader wrote late events.
    op.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    _platform_tables()
    _result_tables()
    _ledger_tables()
    _oversight_tables()
    _samples_functions()
    _guards()
    _access()
    op.execute("COMMENT ON SCHEMA eai IS 'GPU usage, allocated cost and the append-only ledger of usage events'")
    op.execute("COMMENT ON TABLE eai.alembic_version IS 'version of this schema'")
    op.execute("COMMENT ON COLUMN eai.alembic_version.version_num IS 'revision of contracts/migrations'")


def downgrade() -> None:
    raise NotImplementedError("the ledger is never migrated downwards: restore a backup")


def _platform_tables() -> None:
    """What the platform writes and the pipeline reads (accounting.md section 2)."""
    op.create_table(
        "workload_events",
        arrival(),
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        text("event_id", "id of the event; not unique: the same id with other content is quarantined (A5)"),
        instant("occurred_at", "instant of the state change (A1)"),
        text("workload_id", "workload that changed state"),
        uuid("tenant_id", "tenant on whose behalf the workload runs (A25)"),
        text("deployment_id", "deployment of the workload, if any", null=True),
        text("namespace", "Kubernetes namespace, if known (A3)", null=True),
        text("pod", "pod name, if known (A3)", null=True),
        text("from_state", "state before", null=True),
        text("to_state", "state after; `running` is billable (A3)"),
        number("gpu_count", "GPUs asked for; may be a fraction (A4)"),
        text("placed_class", "class that the workload was placed on (A6)", null=True),
        text("node", "node, if known", null=True),
        sa.Column("gpu_uuids", postgresql.ARRAY(sa.Text), comment="devices named: uuid, or uuid/instance (A17)"),
        text("reason", "free text", null=True),
        instant("received_at", "when the row was written", default="clock_timestamp()"),
        schema="eai",
        comment="One lifecycle event of a workload, in order of arrival. Append only.",
    )
    op.create_index("workload_events_event_id", "workload_events", ["event_id"], schema="eai")
    op.create_index("workload_events_occurred_at", "workload_events", ["occurred_at"], schema="eai")
    op.create_index("workload_events_workload", "workload_events", ["workload_id", "occurred_at"], schema="eai")
    op.execute(
        "CREATE INDEX workload_events_late ON eai.workload_events (received_at)"
        " WHERE received_at - occurred_at > interval '1 minute'"
    )
    op.create_table(
        "workloads",
        text("workload_id", "workload"),
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        instant("first_at", "instant of its first event"),
        instant("last_at", "instant of its last event"),
        many("last_states", sa.Text, "states after its events of that millisecond"),
        many("labels", sa.Text, "namespace/pod of all its events that have a pod"),
        flag("doubtful", "true: an id of its events is there again with other content (A5)"),
        unique("workloads_key", "workload_id", "cluster"),
        schema="eai",
        comment="From when to when a workload has events, so that those of an hour are found without reading the others."
        " The pipeline keeps it, from unfolded_events.",
    )
    op.create_table(
        "unfolded_events",
        sa.Column("seq", sa.BigInteger, primary_key=True, comment="row of workload_events"),
        schema="eai",
        comment="Lifecycle events that workloads does not know yet. A trigger of workload_events fills it, so that writers"
        " never wait for each other; the pipeline empties it.",
    )
    op.create_index("workloads_last_at", "workloads", ["last_at"], schema="eai")
    for column in ("labels", "last_states"):  # without the list of pending entries, which every look-up would read
        op.execute(f"CREATE INDEX workloads_{column} ON eai.workloads USING gin ({column}) WITH (fastupdate = off)")
    op.execute("CREATE INDEX workloads_doubtful ON eai.workloads (workload_id) WHERE doubtful")
    op.create_table(
        "deployments",
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        text("deployment_id", "deployment"),
        text("mode", "dedicated (A25) or shared (A26)"),
        uuid("owner_tenant_id", "tenant that owns it"),
        text("namespace", "namespace of its pods (A18)", null=True),
        text("pod_pattern", "glob of its pod names (A18)", null=True),
        text("model", "model that it serves", null=True),
        unique("deployments_key", "cluster", "deployment_id"),
        check("deployments_mode", "mode IN ('dedicated', 'shared')"),
        schema="eai",
        comment="One deployment.",
    )
    op.create_table(
        "allocation_policies",
        sa.Column("id", sa.Text, primary_key=True, comment="policy id"),
        text("name", "name"),
        text("deployment_pattern", "glob on deployment_id (A23)"),
        text("gpu_model", "model that it is for; null is any (A23)", null=True),
        text("currency", "ISO 4217 code"),
        number("gpu_hourly_cost", "currency per GPU-hour", null=False),
        number("overhead_pct", "per cent on the GPU cost", null=False),
        number("energy_kwh_price", "currency per kWh", null=False),
        number("pue", "power usage effectiveness", null=False),
        number("storage_gb_month_price", "currency per GB (2^30 bytes) and month", null=False),
        text("idle_policy", "who pays an hour without tokens: owner, proportional or platform (A27)"),
        text("token_weights", "JSON object of decimals for input, output and cached; null is 1 each (A26)", null=True),
        instant("effective_from", "first hour that it prices (A22)"),
        instant("effective_to", "end of its validity, exclusive; null is open", null=True),
        text("status", "active or retired"),
        instant("created_at", "when the row was written", default="clock_timestamp()"),
        *(
            check(f"allocation_policies_{name}", f"{name} >= 0 AND {name} < 'Infinity'")
            for name in ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price")
        ),
        check("allocation_policies_idle_policy", "idle_policy IN ('owner', 'proportional', 'platform')"),
        check("allocation_policies_status", "status IN ('active', 'retired')"),
        check("allocation_policies_currency", "currency ~ '^[A-Z]{3}$'"),
        check("allocation_policies_effective_from", "extract(epoch from effective_from) % 3600 = 0"),
        check("allocation_policies_effective_to", "effective_to > effective_from"),
        schema="eai",
        comment="One immutable version of a pricing policy; a change is a new row from a later hour (A22).",
    )
    op.create_table(
        "deployment_storage",
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        text("deployment_id", "deployment that holds the disk"),
        number("size_gb", "size in GB (2^30 bytes)", null=False),
        instant("valid_from", "held from"),
        instant("valid_to", "held until, exclusive; null is still held", null=True),
        check("deployment_storage_size", "size_gb >= 0 AND size_gb < 'Infinity'"),
        check("deployment_storage_valid_to", "valid_to >= valid_from"),
        schema="eai",
        comment="One disk of a deployment over a span of time (A24).",
    )
    op.create_table(
        "gpu_inventory",
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        text("node", "node"),
        text("gpu_uuid", "uuid, or uuid/instance"),
        text("model", "DCGM's or the platform's name of the model"),
        instant("valid_from", "present from"),
        instant("valid_to", "present until, exclusive; null is still there", null=True),
        check("gpu_inventory_valid_to", "valid_to >= valid_from"),
        schema="eai",
        comment="One device over a span of time (A21).",
    )
    op.create_table(
        "providers",
        sa.Column("id", sa.Text, primary_key=True, comment="provider id, the `model.provider` of a usage event"),
        text("name", "name"),
        text("kind", "self_hosted or external"),
        text("status", "active or retired"),
        sa.Column("models", postgresql.ARRAY(sa.Text), nullable=False, comment="names of the models that it serves"),
        check("providers_kind", "kind IN ('self_hosted', 'external')"),
        check("providers_status", "status IN ('active', 'retired')"),
        schema="eai",
        comment="One provider of models, as in GET /v1/providers/catalog.",
    )


def _result_tables() -> None:
    """What an hour or a month computes; replaced as a whole when it is computed again."""
    op.create_table(
        "gpu_sample_runs",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        instant("first_window", "start of its first window (A11)"),
        sa.Column("window_seconds", sa.Integer, nullable=False, comment="length of a window in seconds"),
        text("node", "node (A8)", null=True),
        text("gpu_uuid", "board"),
        text("mig_instance", "MIG instance; empty for a whole device (A7)"),
        text("model", "platform's name of the model"),
        text("namespace", "namespace of the workload label (A8)", null=True),
        text("pod", "pod of the workload label (A8)", null=True),
        uuid("tenant_id", "tenant of the holder; see attributed"),
        flag("attributed", ATTRIBUTED),
        text("deployment_id", "deployment of the holder", null=True),
        many("utilization_millionths", sa.Integer, "of each window, mean utilization in millionths (A28)"),
        many("memory_kib", sa.BigInteger, "of each window, memory used in KiB"),
        many("power_mw", sa.BigInteger, "of each window, board power in mW"),
        many("kind", sa.SmallInteger, "of each window, its place in methods and estimates, from 1"),
        many("methods", sa.Text, "methods of the hour's windows: rungs of A13, joined by +; `measured`, or `missing`"),
        many("estimates", sa.Boolean, "beside methods: true unless the whole window was measured (A15)"),
        schema="eai",
        comment="Windows of one device and holder that follow each other in an hour. Partitioned by UTC day. Read as"
        " eai.gpu_samples.",
        postgresql_partition_by="RANGE (hour)",
    )
    op.create_index("gpu_sample_runs_hour", "gpu_sample_runs", ["cluster", "hour"], schema="eai")
    op.create_index("gpu_sample_runs_tenant", "gpu_sample_runs", ["tenant_id", "hour"], schema="eai")
    view(
        "gpu_samples",
        """SELECT r.cluster, r.hour, r.first_window + (w.place - 1) * r.window_seconds * interval '1 second' AS window_start,
                  r.node, r.gpu_uuid, r.mig_instance, r.model, r.namespace, r.pod, r.tenant_id, r.attributed,
                  r.deployment_id, r.window_seconds, w.utilization / 1e6::double precision AS utilization,
                  w.memory / 1048576::double precision AS memory_used_gb, w.power / 1e3::double precision AS power_w,
                  r.estimates[w.kind] AS estimated, r.methods[w.kind] AS method
           FROM eai.gpu_sample_runs r
           CROSS JOIN LATERAL unnest(r.utilization_millionths, r.memory_kib, r.power_mw, r.kind)
               WITH ORDINALITY AS w (utilization, memory, power, kind, place)""",
        "One window of one visible device (A11-A15). Ask by hour: only it finds the rows by index.",
        cluster=CLUSTER,
        hour=HOUR,
        window_start="start of the window (A11)",
        node="node (A8)",
        gpu_uuid="board",
        mig_instance="MIG instance; empty for a whole device (A7)",
        model="platform's name of the model",
        namespace="namespace of the workload label (A8)",
        pod="pod of the workload label (A8)",
        tenant_id="tenant of the holder; see attributed",
        attributed=ATTRIBUTED,
        deployment_id="deployment of the holder",
        window_seconds="length of the window in seconds",
        utilization="mean utilization, 0 to 1, a multiple of 1e-6 (A28)",
        memory_used_gb="memory used in GB (2^30 bytes)",
        power_w="board power in W",
        estimated="true unless the whole window was measured (A15)",
        method="rungs of A13 used, joined by +; `measured` or `missing` where none",
    )
    op.create_table(
        "gpu_usage",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("workload_id", "workload, namespace/pod (A18) or storage:<deployment>"),
        text("gpu_model", "model; placed_class where no device was visible; null for storage", null=True),
        uuid("tenant_id", "the event's tenant, else the deployment's owner; see attributed"),
        flag("attributed", ATTRIBUTED),
        text("deployment_id", "deployment (A18, A23)"),
        text("placed_class", "class of the hour's last interval (A6)", null=True),
        text("basis", "lifecycle, samples or storage"),
        number("gpu_seconds", "allocated time in GPU-seconds (A4, A18)"),
        number("gpu_active_seconds", "utilization x seconds in GPU-seconds (A20)"),
        number("gpu_memory_gb_seconds", "memory x seconds in GB-seconds (A20)"),
        number("energy_wh", "energy in Wh, without PUE (A20)"),
        number("measured_seconds", "device time measured, in seconds (A15)"),
        number("estimated_seconds", "device time estimated, in seconds (A15)"),
        number("missing_seconds", "device time missing, in seconds (A15)"),
        text("methods", "estimation rungs with their seconds, sorted, joined by ;"),
        unique("gpu_usage_key", "cluster", "hour", "workload_id", "gpu_model"),
        check("gpu_usage_basis", "basis IN ('lifecycle', 'samples', 'storage')"),
        schema="eai",
        comment="A workload's hour on one model (A20).",
    )
    op.create_index("gpu_usage_tenant", "gpu_usage", ["tenant_id", "hour"], schema="eai")
    op.create_table(
        "gpu_idle",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("gpu_model", "model"),
        number("gpu_seconds", "time nobody pays for in GPU-seconds, an instance by its slices (A27)", null=False),
        number("gpu_memory_gb_seconds", "its memory in GB-seconds"),
        number("energy_wh", "its energy in Wh, without PUE"),
        flag("estimated", "true unless all of it was measured"),
        sa.PrimaryKeyConstraint("cluster", "hour", "gpu_model"),
        schema="eai",
        comment="Idle, stale, no_data and unattributed time of one hour and model, before pricing (A27).",
    )
    op.create_table(
        "fleet_hours",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("gpu_model", "model"),
        number("visible", "visible device time in device-seconds", null=False),
        number("held", "held by somebody, device-seconds", null=False),
        number("stale", "labelled with a workload that does not run, device-seconds", null=False),
        number("unattributed", "of pods of no deployment, or between two pods, device-seconds", null=False),
        number("idle", "read, and nobody's, device-seconds", null=False),
        number("no_data", "silent, and nobody's, device-seconds", null=False),
        number("lifecycle", "allocated by lifecycle events, GPU-seconds", null=False),
        number("matched", "of that, on a visible device, GPU-seconds", null=False),
        number("unmatched", "of that, without one, GPU-seconds", null=False),
        sa.PrimaryKeyConstraint("cluster", "hour", "gpu_model"),
        check("fleet_hours_devices", "visible = held + stale + unattributed + idle + no_data"),
        schema="eai",
        comment="The fleet identity of one hour and model (A21).",
    )
    op.create_table(
        "gpu_cost_allocation",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("workload_id", "workload, idle:<model> or storage:<deployment>"),
        text("gpu_model", "model; null for storage", null=True),
        uuid("tenant_id", "tenant that pays (A25-A27)"),
        text("usage_type", "gpu_local or gpu_idle (A31)"),
        text("deployment_id", "deployment; `idle` for idle lines"),
        number("gpu_seconds", "its part of the allocated time in GPU-seconds"),
        number("gpu_memory_gb_seconds", "its part of the memory in GB-seconds"),
        number("energy_wh", "its part of the energy in Wh, without PUE"),
        number("storage_gb_hours", "its part of the disk in GB-hours (A24)"),
        number("amount", "its part of the cost in `currency` (A24); null is unpriced"),
        text("currency", "ISO 4217 code; null is unpriced", null=True),
        text("policy_id", "policy that priced it (A23)", null=True),
        flag("estimated", "true unless all of the row was measured"),
        unique("gpu_cost_allocation_key", "cluster", "hour", "workload_id", "gpu_model", "tenant_id", "usage_type"),
        check("gpu_cost_allocation_usage_type", "usage_type IN ('gpu_local', 'gpu_idle')"),
        check("gpu_cost_allocation_priced", "(amount IS NULL) = (currency IS NULL)"),
        schema="eai",
        comment="A tenant's part of a usage row (A25-A29).",
    )
    op.create_index("gpu_cost_allocation_tenant", "gpu_cost_allocation", ["tenant_id", "hour"], schema="eai")
    op.create_table(
        "quarantine",
        arrival("order of writing"),
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("source", "workload_events, token_usage or dcgm"),
        text("key", "event_id, or uuid[/instance]:METRIC"),
        text("reason", "reason code of A5 or A10"),
        text("detail", "free text: what was seen and how often"),
        schema="eai",
        comment="An input that was set aside while an hour was computed, and why (A5, A10).",
    )
    op.create_index("quarantine_hour", "quarantine", ["cluster", "hour"], schema="eai")
    op.create_table(
        "hour_runs",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        instant("published_at", "when its latest result was published"),
        flag("provisional", "true while later readings may still change it (A16)"),
        number("estimated_share", "estimated part of the device time, 0 to 1; null without device time"),
        whole("unpriced", "allocation rows without a policy (A23)"),
        whole("quarantined", "inputs set aside"),
        text("input_fingerprint", "digest of the inputs; another one means: compute again"),
        text("run_id", "run that published it", null=True),
        sa.PrimaryKeyConstraint("cluster", "hour"),
        schema="eai",
        comment="One published hour of one cluster, and in which state its result is.",
    )
    op.create_table(
        "hour_reads",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        instant("read_at", "when the platform's records of the hour were last read; later ones do not count in it yet"),
        sa.PrimaryKeyConstraint("cluster", "hour"),
        schema="eai",
        comment="Up to when an hour's result knows what the platform recorded.",
    )
    op.create_table(
        "gpu_statements",
        sa.Column("period", sa.Text, primary_key=True, comment="UTC month, like 2026-10"),
        text("status", "open, or final: then nothing of the month changes any more (A33)"),
        instant("computed_at", "when it was last computed"),
        instant("final_at", "when it became final", null=True),
        text("content_sha256", "SHA-256 of its JSON (gpu_allocation.json of this month alone)"),
        check("gpu_statements_period", "period ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'"),
        check("gpu_statements_status", "status IN ('open', 'final')"),
        check("gpu_statements_final", "(status = 'final') = (final_at IS NOT NULL)"),
        schema="eai",
        comment="One month's statement (A30, A33).",
    )
    op.create_table(
        "gpu_allocation",
        text("period", "UTC month, like 2026-10"),
        uuid("tenant_id", "tenant that pays"),
        text("deployment_id", "deployment; `idle` for idle lines"),
        text("currency", "ISO 4217 code; null is unpriced", null=True),
        *_statement_units(),
        text("policy_id", "policy of the item's latest priced hour", null=True),
        flag("estimated", "true unless all of it was measured"),
        unique("gpu_allocation_key", "period", "tenant_id", "deployment_id", "currency"),
        check("gpu_allocation_priced", "(amount IS NULL) = (currency IS NULL)"),
        schema="eai",
        comment="One item of a month's statement (A30).",
    )
    op.create_table(
        "gpu_allocation_totals",
        text("period", "UTC month, like 2026-10"),
        text("currency", "ISO 4217 code; null is unpriced", null=True),
        *_statement_units(),
        unique("gpu_allocation_totals_key", "period", "currency"),
        check("gpu_allocation_totals_priced", "(amount IS NULL) = (currency IS NULL)"),
        schema="eai",
        comment="A month's total in one currency, over all tenants, corrections included (A30).",
    )
    op.create_table(
        "gpu_corrections",
        text("period", "UTC month whose statement lists it, like 2026-11"),
        instant("hour", "hour of an earlier, final month that it belongs to; of this one for a credit (A33)"),
        uuid("tenant_id", "tenant that pays, or gets back"),
        text("deployment_id", "deployment; `idle` for idle lines"),
        text("currency", "ISO 4217 code; null is unpriced", null=True),
        *_statement_units(),
        text("policy_id", "policy of its last event that has one", null=True),
        flag("estimated", "true unless all of it was measured"),
        unique("gpu_corrections_key", "period", "hour", "tenant_id", "deployment_id", "currency"),
        check("gpu_corrections_priced", "(amount IS NULL) = (currency IS NULL)"),
        schema="eai",
        comment="A difference of a final month, listed in the next open one's statement, or a credit (A33).",
    )
    op.create_table(
        "gpu_correction_events",
        text("period", "UTC month whose statement lists the event"),
        text("event_id", "usage event in one of its corrections"),
        sa.PrimaryKeyConstraint("period", "event_id"),
        schema="eai",
        comment="Which usage events a statement's corrections are made of (A33).",
    )
    op.create_index("gpu_correction_events_event_id", "gpu_correction_events", ["event_id"], schema="eai")


def _statement_units() -> tuple[sa.Column[object], ...]:
    return (
        number("gpu_seconds", "allocated time in GPU-seconds; null where no row has one"),
        number("gpu_memory_gb_seconds", "memory in GB-seconds; null where no row has one"),
        number("energy_wh", "energy in Wh, without PUE; null where no row has one"),
        number("amount", "cost in whole minor units of `currency`; null is unpriced"),
    )


def _ledger_tables() -> None:
    """What is written once and never changed (A31-A34)."""
    op.create_table(
        "usage_events",
        arrival(),
        text("event_id", "UUIDv5 of key and revision; the gateway's own id for llm, not unique there (A5, A31)"),
        text("schema_version", "version of the usage-event contract", null=True),
        instant("occurred_at", "instant of the usage; start of the hour for gpu events"),
        instant("period_start", "start of the accounting hour; null for llm", null=True),
        instant("period_end", "end of the accounting hour, exclusive; null for llm", null=True),
        uuid("tenant_id", "tenant that used, and pays"),
        text("usage_type", "gpu_local, gpu_idle or llm"),
        text("source", "who wrote it"),
        text("cluster", CLUSTER_OR_DEFAULT, null=True),
        text("workload_id", "workload, idle:<model> or storage:<deployment>; null for llm", null=True),
        text("deployment_id", "deployment", null=True),
        text("model_provider", "provider of the model served", null=True),
        text("model_name", "model served", null=True),
        text("gpu_model", "GPU model; null for storage and llm", null=True),
        text("basis", "lifecycle, samples or storage; null for llm", null=True),
        number("gpu_seconds", "allocated time in GPU-seconds; a correction may be negative"),
        number("gpu_memory_gb_seconds", "memory in GB-seconds"),
        number("energy_wh", "energy in Wh, without PUE"),
        number("storage_gb_hours", "storage in GB-hours (GB of 2^30 bytes)"),
        whole("input_tokens", "input tokens, without cached ones", null=True),
        whole("output_tokens", "output tokens", null=True),
        whole("cached_tokens", "input tokens served from cache", null=True),
        number("cost_amount", "cost in `cost_currency`; null is unpriced"),
        text("cost_currency", "ISO 4217 code; null is unpriced", null=True),
        text("allocation_policy_id", "policy that priced it (A23)", null=True),
        flag("estimated", "true unless all of it was measured (A15)", null=True),
        number("measured_seconds", "device time measured, in seconds"),
        number("estimated_seconds", "device time estimated, in seconds"),
        number("missing_seconds", "device time missing, in seconds"),
        text("methods", "estimation rungs with their seconds, sorted, joined by ;", null=True),
        sa.Column("revision", sa.Integer, comment="revision of its key, from 1 (A32)"),
        text("corrects", "event_id of the revision before; null for the first", null=True),
        text("content_sha256", "SHA-256 of `document`, hexadecimal (A31)", null=True),
        text("document", "canonical JSON (RFC 8785) of the event without content_sha256", null=True),
        instant("booked_at", "when the row was written", default="clock_timestamp()"),
        check("usage_events_usage_type", "usage_type IN ('gpu_local', 'gpu_idle', 'llm')"),
        check("usage_events_priced", "(cost_amount IS NULL) = (cost_currency IS NULL)"),
        check(
            "usage_events_complete",
            "usage_type = 'llm' OR num_nulls(schema_version, period_start, period_end, cluster, workload_id,"
            " deployment_id, estimated, methods, revision, content_sha256, document) = 0",
        ),
        check(
            "usage_events_tokens",
            "usage_type <> 'llm' OR num_nulls(input_tokens, output_tokens, cached_tokens) = 0",
        ),
        check("usage_events_hash", "content_sha256 = encode(sha256(convert_to(document, 'UTF8')), 'hex')"),
        schema="eai",
        comment="One immutable usage event: booked by the pipeline (gpu_*), or written by the gateway (llm). Append only.",
    )
    op.execute(
        "CREATE UNIQUE INDEX usage_events_event_id ON eai.usage_events (event_id) WHERE usage_type <> 'llm';"
        "CREATE UNIQUE INDEX usage_events_key ON eai.usage_events"
        " (cluster, period_start, workload_id, gpu_model, tenant_id, usage_type, revision)"
        " NULLS NOT DISTINCT WHERE usage_type <> 'llm';"
        "CREATE INDEX usage_events_llm ON eai.usage_events (occurred_at) WHERE usage_type = 'llm';"
        "CREATE INDEX usage_events_llm_event_id ON eai.usage_events (event_id) WHERE usage_type = 'llm';"
        "CREATE INDEX usage_events_late ON eai.usage_events (booked_at)"
        " WHERE usage_type = 'llm' AND booked_at - occurred_at > interval '1 minute';"
        "CREATE INDEX usage_events_days ON eai.usage_events USING brin (occurred_at);"
        "CREATE INDEX usage_events_tenant ON eai.usage_events (tenant_id, occurred_at);"
        "CREATE INDEX usage_events_credits ON eai.usage_events (period_start) WHERE workload_id LIKE 'credit:%';"
        "CREATE INDEX usage_events_period ON eai.usage_events (period_start) WHERE usage_type <> 'llm'"
    )
    op.create_table(
        "late_events",
        sa.Column("event_id", sa.Text, primary_key=True, comment="usage event"),
        text("period", "final UTC month that it belongs to, like 2026-10"),
        schema="eai",
        comment="A usage event booked after its month was final: the next open month's statement lists it (A33).",
    )
    op.create_table(
        "audit_events",
        sa.Column("seq", sa.BigInteger, autoincrement=False, primary_key=True, comment="place in the chain, from 1"),
        instant("occurred_at", "when it happened"),
        text("kind", "what happened, like hour.published"),
        text("previous_sha256", "entry_sha256 of the entry before; 64 zeros for the first"),
        text("entry_sha256", "SHA-256 of `document`, hexadecimal"),
        text("document", "canonical JSON (RFC 8785) of the entry without entry_sha256"),
        sa.Column(
            "payload",
            postgresql.JSONB,
            sa.Computed("document::jsonb -> 'payload'", persisted=True),
            comment="the payload inside `document`",
        ),
        sa.UniqueConstraint("previous_sha256", name="audit_events_no_fork"),
        check("audit_events_hash", "entry_sha256 = encode(sha256(convert_to(document, 'UTF8')), 'hex')"),
        check("audit_events_link", "previous_sha256 = document::jsonb ->> 'previous_sha256'"),
        check("audit_events_seq", "seq > 0 AND seq = (document::jsonb ->> 'seq')::bigint"),
        schema="eai",
        comment="One entry of the hash-chained audit log (A34). Append only.",
    )


def _oversight_tables() -> None:
    """What people look at and decide: findings, credits, quotas, shares, and what was told to whom."""
    op.create_table(
        "findings",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        text("kind", "what was found; docs/findings.md has the kinds"),
        text("subject", "device, board, workload or series that it is about"),
        text("workload_id", "workload concerned, if it is one", null=True),
        uuid("tenant_id", "tenant concerned; see attributed"),
        flag("attributed", "false: it concerns no single tenant, and tenant_id is the platform tenant"),
        instant(
            "first_at", "when it began in the hour; the last sign of life before a failure may be earlier", null=True
        ),
        instant("last_at", "when it ended in the hour, exclusive", null=True),
        number("seconds", "how much of the hour, in seconds; the kind tells of what"),
        text("detail", "for a person: what was seen"),
        schema="eai",
        comment="Something in an hour that a person should look at. No finding changes an amount.",
    )
    op.create_index("findings_hour", "findings", ["cluster", "hour"], schema="eai")
    op.create_index("findings_workload", "findings", ["cluster", "workload_id", "hour"], schema="eai")
    op.create_index("findings_tenant", "findings", ["tenant_id", "hour"], schema="eai")
    op.create_table(
        "credit_proposals",
        sa.Column("id", sa.Uuid, primary_key=True, comment="UUIDv5 of what it is about; the same on any machine"),
        text("cluster", CLUSTER),
        text("workload_id", "workload that was charged without working"),
        uuid("tenant_id", "tenant that was charged"),
        text("deployment_id", "deployment that was charged"),
        instant("window_from", "last sign of life"),
        instant("window_to", "its end by its events, or how far it is known, exclusive"),
        number("gpu_seconds", "GPU-seconds charged for the window", null=False),
        number("amount", "what was charged for the window, in `currency`", null=False),
        text("currency", "ISO 4217 code"),
        text("reason", "died_unseen, or node_failure"),
        sa.Column("shares", postgresql.JSONB, nullable=False, comment="hour -> fraction of its charge, like 2/3"),
        sa.Column("evidence", postgresql.JSONB, nullable=False, comment="last sign of life, event ids, findings"),
        text("status", "proposed, approved or rejected"),
        instant("proposed_at", "when it was last computed", default="clock_timestamp()"),
        text("decided_by", "who decided", null=True),
        instant("decided_at", "when it was decided", null=True),
        text("decision_reason", "why", null=True),
        check("credit_proposals_reason", "reason IN ('died_unseen', 'node_failure')"),
        check("credit_proposals_status", "status IN ('proposed', 'approved', 'rejected')"),
        check("credit_proposals_window", "window_from < window_to"),
        check("credit_proposals_amount", "amount >= 0 AND gpu_seconds >= 0"),
        check(
            "credit_proposals_decided",
            "num_nulls(decided_by, decided_at, decision_reason) = CASE status WHEN 'proposed' THEN 3 ELSE 0 END",
        ),
        schema="eai",
        comment="Time that a workload was charged without working, and what became of the proposal to give it back.",
    )
    op.create_index("credit_proposals_workload", "credit_proposals", ["cluster", "workload_id"], schema="eai")
    op.create_index("credit_proposals_window", "credit_proposals", ["status", "window_from"], schema="eai")
    op.create_table(
        "tenant_hours",
        text("cluster", CLUSTER),
        instant("hour", HOUR),
        uuid("tenant_id", "tenant that was given the time (A25-A27)"),
        text("placed_class", "class that it ran on (A6); the model for pods without events"),
        number("gpu_seconds", "its part of the allocated time in GPU-seconds", null=False),
        sa.PrimaryKeyConstraint("cluster", "hour", "tenant_id", "placed_class"),
        schema="eai",
        comment="A tenant's allocated time of one hour on one class, without storage and idle capacity.",
    )
    op.create_index("tenant_hours_tenant", "tenant_hours", ["tenant_id", "hour"], schema="eai")
    op.create_index("tenant_hours_hour", "tenant_hours", ["hour"], schema="eai")
    view(
        "tenant_usage",
        """SELECT tenant_id, placed_class, (hour AT TIME ZONE 'UTC')::date AS day,
                  to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM') AS month, sum(gpu_seconds) AS gpu_seconds
           FROM eai.tenant_hours GROUP BY 1, 2, 3, 4""",
        "A tenant's allocated time of one UTC day on one class.",
        tenant_id="tenant that was given the time (A25-A27)",
        placed_class="class that it ran on (A6); the model for pods without events",
        day="UTC day",
        month="UTC month of the day, like 2026-10",
        gpu_seconds="allocated time in GPU-seconds, over all clusters",
    )
    op.create_table(
        "quotas",
        uuid("tenant_id", "tenant that it limits"),
        text("placed_class", "class that it is for; null is all together", null=True),
        text("period", "day or month, UTC"),
        number("gpu_hours", "GPU-hours that the tenant may be given in the period", null=False),
        instant("set_at", "when it was last set", default="clock_timestamp()"),
        unique("quotas_key", "tenant_id", "placed_class", "period"),
        check("quotas_period", "period IN ('day', 'month')"),
        check("quotas_gpu_hours", "gpu_hours >= 0 AND gpu_hours < 'Infinity'"),
        schema="eai",
        comment="How many GPU-hours a tenant may use. The pipeline reports; whoever places workloads enforces.",
    )
    op.create_table(
        "fair_shares",
        sa.Column("node", sa.Text, primary_key=True, comment="an account's name, or a tenant's uuid"),
        text("parent", "account that it belongs to; null is right under the root", null=True),
        number("shares", "shares among those with the same parent", null=False),
        check("fair_shares_shares", "shares >= 0 AND shares < 'Infinity'"),
        check("fair_shares_parent", "parent <> node"),
        schema="eai",
        comment="Shares of accounts and tenants (docs/fairshare.md); a tenant that is not listed has one share.",
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.Text, primary_key=True, comment="UUIDv5 of what was told: a repeated delivery has the same"),
        text("kind", "kind of finding"),
        text("cluster", CLUSTER),
        text("workload_id", "workload that it was about"),
        sa.Column("day", sa.Date, nullable=False, comment="UTC day of the findings"),
        instant("sent_at", "when the receiver took it", default="clock_timestamp()"),
        schema="eai",
        comment="What was told to people by the webhook, once per workload and UTC day.",
    )


def _samples_functions() -> None:
    """Daily partitions. ATTACH, unlike PARTITION OF, does not wait for writers of other days."""
    op.execute("""
        CREATE FUNCTION eai.create_gpu_sample_partitions(first timestamptz, past timestamptz) RETURNS integer
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
        DECLARE
            day timestamptz;
            partition text;
            made integer = 0;
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('eai.gpu_sample_runs partitions', 0));
            FOR day IN SELECT generate_series(date_trunc('day', first), past - interval '1 us', interval '1 day') LOOP
                partition = 'gpu_sample_runs_' || to_char(day, 'YYYYMMDD');
                CONTINUE WHEN to_regclass('eai.' || partition) IS NOT NULL;
                EXECUTE format('CREATE TABLE eai.%I (LIKE eai.gpu_sample_runs INCLUDING ALL)', partition);
                EXECUTE format('ALTER TABLE eai.%I ENABLE ROW LEVEL SECURITY', partition);
                EXECUTE format('ALTER TABLE eai.%I FORCE ROW LEVEL SECURITY', partition);
                EXECUTE format('COMMENT ON TABLE eai.%I IS %L', partition,
                               'One UTC day of eai.gpu_sample_runs. Read through eai.gpu_samples only.');
                EXECUTE format('ALTER TABLE eai.gpu_sample_runs ATTACH PARTITION eai.%I FOR VALUES FROM (%L) TO (%L)',
                               partition, day, day + interval '1 day');
                made = made + 1;
            END LOOP;
            RETURN made;
        END $body$""")
    op.execute("""
        CREATE FUNCTION eai.drop_gpu_sample_partitions(before timestamptz) RETURNS integer
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
        DECLARE
            partition text;
            dropped integer = 0;
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('eai.gpu_sample_runs partitions', 0));
            FOR partition IN
                SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'eai.gpu_sample_runs'::regclass
                  AND c.relname < 'gpu_sample_runs_' || to_char(before, 'YYYYMMDD')
            LOOP
                EXECUTE format('DROP TABLE eai.%I', partition);
                dropped = dropped + 1;
            END LOOP;
            RETURN dropped;
        END $body$""")
    for function, comment in (
        ("create_gpu_sample_partitions(timestamptz, timestamptz)", "makes the missing days of [first, past)"),
        ("drop_gpu_sample_partitions(timestamptz)", "retention: drops the days before that of the instant"),
    ):
        op.execute(f"GRANT EXECUTE ON FUNCTION eai.{function} TO eai_pipeline")
        op.execute(f"COMMENT ON FUNCTION eai.{function} IS '{comment}'")


def _guards() -> None:
    """Triggers that hold for the owner too; grants alone bind only the other roles."""
    op.execute("""
        CREATE FUNCTION eai.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            RAISE EXCEPTION 'eai.% is append only: % refused', TG_TABLE_NAME, TG_OP
                USING ERRCODE = 'restrict_violation', HINT = 'Book a correction as a new row.';
        END $body$""")
    for table in ("usage_events", "audit_events", "allocation_policies", "workload_events"):
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON eai.{table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()"
        )
    op.execute("""
        CREATE FUNCTION eai.refuse_change_of_final() RETURNS trigger LANGUAGE plpgsql AS $body$
        DECLARE
            touched text[] = CASE TG_OP WHEN 'INSERT' THEN ARRAY[NEW.period]
                                        WHEN 'DELETE' THEN ARRAY[OLD.period] ELSE ARRAY[OLD.period, NEW.period] END;
            closed text;
        BEGIN
            SELECT s.period INTO closed FROM eai.gpu_statements s WHERE s.period = ANY (touched) AND s.status = 'final';
            IF FOUND AND NOT (TG_TABLE_NAME = 'gpu_statements' AND TG_OP = 'UPDATE' AND eai.is_reopening(closed)) THEN
                RAISE EXCEPTION 'the statement of % is final (A33): % of eai.% refused', closed, TG_OP, TG_TABLE_NAME
                    USING ERRCODE = 'restrict_violation', HINT = 'Later differences are listed in the next open month.';
            END IF;
            RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
        END $body$""")
    op.execute("""
        CREATE FUNCTION eai.is_reopening(month text) RETURNS boolean LANGUAGE sql STABLE AS $body$
            SELECT coalesce((
                SELECT a.kind = 'month.reopened' AND a.payload ->> 'period' = month
                   AND a.xmin::text = (txid_current() % 4294967296)::text
                FROM eai.audit_events a ORDER BY a.seq DESC LIMIT 1), false)
        $body$""")
    for table in (
        "gpu_statements",
        "gpu_allocation",
        "gpu_allocation_totals",
        "gpu_corrections",
        "gpu_correction_events",
    ):
        op.execute(
            f"CREATE TRIGGER final_stays BEFORE INSERT OR UPDATE OR DELETE ON eai.{table}"
            " FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_final();"
            f"CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.{table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()"
        )
    op.execute(
        "CREATE TRIGGER final_stays BEFORE UPDATE OR DELETE ON eai.late_events"
        " FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_final();"
        "CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.late_events"
        " FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()"
    )
    op.execute("""
        CREATE FUNCTION eai.note_late_events() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            INSERT INTO eai.late_events (event_id, period)
            SELECT n.event_id, s.period FROM booked n
            JOIN eai.gpu_statements s
              ON s.status = 'final' AND s.period = to_char(n.period_start AT TIME ZONE 'UTC', 'YYYY-MM')
            WHERE n.usage_type <> 'llm';
            RETURN NULL;
        END $body$""")
    op.execute("""
        CREATE FUNCTION eai.note_unfolded() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            INSERT INTO eai.unfolded_events (seq) SELECT seq FROM written;
            RETURN NULL;
        END $body$""")
    op.execute(
        "CREATE TRIGGER note_unfolded AFTER INSERT ON eai.workload_events REFERENCING NEW TABLE AS written"
        " FOR EACH STATEMENT EXECUTE FUNCTION eai.note_unfolded()"
    )
    op.execute(
        "CREATE TRIGGER note_late AFTER INSERT ON eai.usage_events REFERENCING NEW TABLE AS booked"
        " FOR EACH STATEMENT EXECUTE FUNCTION eai.note_late_events()"
    )
    op.execute("""
        CREATE FUNCTION eai.refuse_change_of_decided() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            IF OLD.status <> 'proposed' THEN
                RAISE EXCEPTION 'credit % is %: % refused', OLD.id, OLD.status, TG_OP
                    USING ERRCODE = 'restrict_violation', HINT = 'What was decided stays; propose another credit.';
            END IF;
            RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
        END $body$""")
    op.execute(
        "CREATE TRIGGER decided_stays BEFORE UPDATE OR DELETE ON eai.credit_proposals"
        " FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_decided();"
        "CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.credit_proposals"
        " FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()"
    )
    for function, comment in (
        ("refuse_change_of_decided()", "refuses a change of a credit that was approved or rejected"),
        ("refuse_change()", "refuses UPDATE, DELETE and TRUNCATE of what is append only"),
        ("refuse_change_of_final()", "refuses a change of a final month (A33), unless it is being reopened"),
        ("is_reopening(text)", "whether this transaction has just said in the audit log that it reopens the month"),
        ("note_unfolded()", "keeps which lifecycle events eai.workloads does not know yet"),
        ("note_late_events()", "keeps which usage events were booked into a final month (A33)"),
    ):
        op.execute(f"COMMENT ON FUNCTION eai.{function} IS '{comment}'")


def _access() -> None:
    """Row-level security and grants. The pipeline sees every tenant by a policy of its own, not by BYPASSRLS."""
    append_only = "workload_events", "usage_events", "audit_events", "allocation_policies"
    replaced = (
        *(
            "deployments",
            "deployment_storage",
            "gpu_inventory",
            "providers",
            "gpu_sample_runs",
            "gpu_usage",
            "gpu_idle",
        ),
        *("fleet_hours", "gpu_cost_allocation", "quarantine", "hour_runs"),
        *("gpu_statements", "gpu_allocation", "gpu_allocation_totals", "gpu_corrections", "gpu_correction_events"),
        *(
            "findings",
            "credit_proposals",
            "tenant_hours",
            "quotas",
            "fair_shares",
            "notifications",
            "workloads",
            "hour_reads",
        ),
    )
    tenant_column = {
        "workload_events": "tenant_id",
        "deployments": "owner_tenant_id",
        "gpu_sample_runs": "tenant_id",
        "gpu_usage": "tenant_id",
        "gpu_cost_allocation": "tenant_id",
        "gpu_allocation": "tenant_id",
        "gpu_corrections": "tenant_id",
        "usage_events": "tenant_id",
        "findings": "tenant_id",
        "credit_proposals": "tenant_id",
        "tenant_hours": "tenant_id",
        "quotas": "tenant_id",
    }
    for table, column in tenant_column.items():
        op.execute(f"ALTER TABLE eai.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE eai.{table} FORCE ROW LEVEL SECURITY")
        # The ids of booked events are unique over all tenants: only the pipeline, who sees them all, may meet one.
        written = " AND usage_type = 'llm'" if table == "usage_events" else ""
        op.execute(
            f"CREATE POLICY tenant ON eai.{table} USING ({column} = {TENANT}) WITH CHECK ({column} = {TENANT}{written})"
        )
        op.execute(f"CREATE POLICY pipeline ON eai.{table} TO eai_pipeline USING (true) WITH CHECK (true)")
        op.execute(f"GRANT SELECT ON eai.{table} TO eai_reader")
    op.execute("GRANT SELECT ON eai.providers TO eai_reader")
    op.execute("GRANT SELECT ON eai.tenant_usage, eai.gpu_samples TO eai_pipeline, eai_reader")
    op.execute("GRANT USAGE ON SCHEMA eai TO eai_pipeline, eai_reader")
    op.execute("GRANT SELECT ON eai.alembic_version TO eai_pipeline")
    op.execute("GRANT EXECUTE ON FUNCTION eai.is_reopening TO eai_pipeline")
    for table in append_only:
        op.execute(f"GRANT SELECT, INSERT ON eai.{table} TO eai_pipeline")
    for table in replaced:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON eai.{table} TO eai_pipeline")
    op.execute("GRANT SELECT, DELETE ON eai.late_events TO eai_pipeline")
    op.execute("GRANT SELECT, DELETE ON eai.unfolded_events TO eai_pipeline")
