-- What an hour or a month computes; replaced as a whole when it is computed again.

CREATE TABLE eai.gpu_sample_runs (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    first_window timestamptz NOT NULL,
    window_seconds integer NOT NULL,
    node text,
    gpu_uuid text NOT NULL,
    mig_instance text NOT NULL,
    model text NOT NULL,
    namespace text,
    pod text,
    tenant_id uuid NOT NULL,
    attributed boolean NOT NULL,
    deployment_id text,
    utilization_millionths integer[] NOT NULL,
    memory_kib bigint[] NOT NULL,
    power_mw bigint[] NOT NULL,
    kind smallint[] NOT NULL,
    methods text[] NOT NULL,
    estimates boolean[] NOT NULL
) PARTITION BY RANGE (hour);
COMMENT ON TABLE eai.gpu_sample_runs IS
    'Windows of one device and holder that follow each other in an hour. Partitioned by UTC day. Read as '
    'eai.gpu_samples.';
COMMENT ON COLUMN eai.gpu_sample_runs.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.gpu_sample_runs.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.gpu_sample_runs.first_window IS 'start of its first window (A11) (UTC)';
COMMENT ON COLUMN eai.gpu_sample_runs.window_seconds IS 'length of a window in seconds';
COMMENT ON COLUMN eai.gpu_sample_runs.node IS 'node (A8)';
COMMENT ON COLUMN eai.gpu_sample_runs.gpu_uuid IS 'board';
COMMENT ON COLUMN eai.gpu_sample_runs.mig_instance IS 'MIG instance; empty for a whole device (A7)';
COMMENT ON COLUMN eai.gpu_sample_runs.model IS 'platform''s name of the model';
COMMENT ON COLUMN eai.gpu_sample_runs.namespace IS 'namespace of the workload label (A8)';
COMMENT ON COLUMN eai.gpu_sample_runs.pod IS 'pod of the workload label (A8)';
COMMENT ON COLUMN eai.gpu_sample_runs.tenant_id IS 'tenant of the holder; see attributed';
COMMENT ON COLUMN eai.gpu_sample_runs.attributed IS
    'false: nobody holds it, and tenant_id is the platform tenant, who sees such rows';
COMMENT ON COLUMN eai.gpu_sample_runs.deployment_id IS 'deployment of the holder';
COMMENT ON COLUMN eai.gpu_sample_runs.utilization_millionths IS
    'of each window, mean utilization in millionths (A28)';
COMMENT ON COLUMN eai.gpu_sample_runs.memory_kib IS 'of each window, memory used in KiB';
COMMENT ON COLUMN eai.gpu_sample_runs.power_mw IS 'of each window, board power in mW';
COMMENT ON COLUMN eai.gpu_sample_runs.kind IS 'of each window, its place in methods and estimates, from 1';
COMMENT ON COLUMN eai.gpu_sample_runs.methods IS
    'methods of the hour''s windows: rungs of A13, joined by +; `measured`, or `missing`';
COMMENT ON COLUMN eai.gpu_sample_runs.estimates IS 'beside methods: true unless the whole window was measured (A15)';
CREATE INDEX gpu_sample_runs_hour ON eai.gpu_sample_runs (cluster, hour);
CREATE INDEX gpu_sample_runs_tenant ON eai.gpu_sample_runs (tenant_id, hour);

CREATE VIEW eai.gpu_samples WITH (security_invoker = true) AS
SELECT r.cluster, r.hour,
       r.first_window + (w.place - 1) * r.window_seconds * interval '1 second' AS window_start,
       r.node, r.gpu_uuid, r.mig_instance, r.model, r.namespace, r.pod, r.tenant_id, r.attributed,
       r.deployment_id, r.window_seconds, w.utilization / 1e6::double precision AS utilization,
       w.memory / 1048576::double precision AS memory_used_gb, w.power / 1e3::double precision AS power_w,
       r.estimates[w.kind] AS estimated, r.methods[w.kind] AS method
FROM eai.gpu_sample_runs r
CROSS JOIN LATERAL unnest(r.utilization_millionths, r.memory_kib, r.power_mw, r.kind)
    WITH ORDINALITY AS w (utilization, memory, power, kind, place);
COMMENT ON VIEW eai.gpu_samples IS
    'One window of one visible device (A11-A15). Ask by hour: only it finds the rows by index.';
COMMENT ON COLUMN eai.gpu_samples.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.gpu_samples.hour IS 'start of the accounting hour (A1)';
COMMENT ON COLUMN eai.gpu_samples.window_start IS 'start of the window (A11)';
COMMENT ON COLUMN eai.gpu_samples.node IS 'node (A8)';
COMMENT ON COLUMN eai.gpu_samples.gpu_uuid IS 'board';
COMMENT ON COLUMN eai.gpu_samples.mig_instance IS 'MIG instance; empty for a whole device (A7)';
COMMENT ON COLUMN eai.gpu_samples.model IS 'platform''s name of the model';
COMMENT ON COLUMN eai.gpu_samples.namespace IS 'namespace of the workload label (A8)';
COMMENT ON COLUMN eai.gpu_samples.pod IS 'pod of the workload label (A8)';
COMMENT ON COLUMN eai.gpu_samples.tenant_id IS 'tenant of the holder; see attributed';
COMMENT ON COLUMN eai.gpu_samples.attributed IS
    'false: nobody holds it, and tenant_id is the platform tenant, who sees such rows';
COMMENT ON COLUMN eai.gpu_samples.deployment_id IS 'deployment of the holder';
COMMENT ON COLUMN eai.gpu_samples.window_seconds IS 'length of the window in seconds';
COMMENT ON COLUMN eai.gpu_samples.utilization IS 'mean utilization, 0 to 1, a multiple of 1e-6 (A28)';
COMMENT ON COLUMN eai.gpu_samples.memory_used_gb IS 'memory used in GB (2^30 bytes)';
COMMENT ON COLUMN eai.gpu_samples.power_w IS 'board power in W';
COMMENT ON COLUMN eai.gpu_samples.estimated IS 'true unless the whole window was measured (A15)';
COMMENT ON COLUMN eai.gpu_samples.method IS 'rungs of A13 used, joined by +; `measured` or `missing` where none';

CREATE TABLE eai.gpu_usage (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    workload_id text NOT NULL,
    gpu_model text,
    tenant_id uuid NOT NULL,
    attributed boolean NOT NULL,
    deployment_id text NOT NULL,
    placed_class text,
    basis text NOT NULL,
    gpu_seconds numeric,
    gpu_active_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    measured_seconds numeric,
    estimated_seconds numeric,
    missing_seconds numeric,
    estimated boolean NOT NULL,
    methods text NOT NULL,
    CONSTRAINT gpu_usage_key UNIQUE NULLS NOT DISTINCT (cluster, hour, workload_id, gpu_model, tenant_id, deployment_id),
    CONSTRAINT gpu_usage_basis CHECK (basis IN ('lifecycle', 'samples', 'storage'))
);
COMMENT ON TABLE eai.gpu_usage IS 'A workload''s hour on one model for one tenant and deployment (A4, A20).';
COMMENT ON COLUMN eai.gpu_usage.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.gpu_usage.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.gpu_usage.workload_id IS 'workload, namespace/pod (A18) or storage:<deployment>';
COMMENT ON COLUMN eai.gpu_usage.gpu_model IS 'model; placed_class where no device was visible; null for storage';
COMMENT ON COLUMN eai.gpu_usage.tenant_id IS 'the event''s tenant, else the deployment''s owner; see attributed';
COMMENT ON COLUMN eai.gpu_usage.attributed IS
    'false: nobody holds it, and tenant_id is the platform tenant, who sees such rows';
COMMENT ON COLUMN eai.gpu_usage.deployment_id IS 'deployment (A18, A23)';
COMMENT ON COLUMN eai.gpu_usage.placed_class IS 'class of the row''s last interval in the hour (A6)';
COMMENT ON COLUMN eai.gpu_usage.basis IS 'lifecycle, samples or storage';
COMMENT ON COLUMN eai.gpu_usage.gpu_seconds IS 'allocated time in GPU-seconds (A4, A18)';
COMMENT ON COLUMN eai.gpu_usage.gpu_active_seconds IS 'utilization x seconds in GPU-seconds (A20)';
COMMENT ON COLUMN eai.gpu_usage.gpu_memory_gb_seconds IS 'memory x seconds in GB-seconds (A20)';
COMMENT ON COLUMN eai.gpu_usage.energy_wh IS 'energy in Wh, without PUE (A20)';
COMMENT ON COLUMN eai.gpu_usage.measured_seconds IS 'device time measured, in seconds (A15)';
COMMENT ON COLUMN eai.gpu_usage.estimated_seconds IS 'device time estimated, in seconds (A15)';
COMMENT ON COLUMN eai.gpu_usage.missing_seconds IS 'device time missing, in seconds (A15)';
COMMENT ON COLUMN eai.gpu_usage.estimated IS 'true unless all of it was measured, also below a millisecond (A15)';
COMMENT ON COLUMN eai.gpu_usage.methods IS 'estimation rungs with their seconds, sorted, joined by ;';
CREATE INDEX gpu_usage_pods ON eai.gpu_usage (workload_id, hour) WHERE basis = 'samples';
CREATE INDEX gpu_usage_tenant ON eai.gpu_usage (tenant_id, hour);

CREATE TABLE eai.gpu_idle (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    gpu_model text NOT NULL,
    gpu_seconds numeric NOT NULL,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    estimated boolean NOT NULL,
    PRIMARY KEY (cluster, hour, gpu_model)
);
COMMENT ON TABLE eai.gpu_idle IS
    'Idle, stale, no_data and unattributed time of one hour and model, before pricing (A27).';
COMMENT ON COLUMN eai.gpu_idle.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.gpu_idle.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.gpu_idle.gpu_model IS 'model';
COMMENT ON COLUMN eai.gpu_idle.gpu_seconds IS 'time nobody pays for in GPU-seconds, an instance by its slices (A27)';
COMMENT ON COLUMN eai.gpu_idle.gpu_memory_gb_seconds IS 'its memory in GB-seconds';
COMMENT ON COLUMN eai.gpu_idle.energy_wh IS 'its energy in Wh, without PUE';
COMMENT ON COLUMN eai.gpu_idle.estimated IS 'true unless all of it was measured';

CREATE TABLE eai.fleet_hours (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    gpu_model text NOT NULL,
    visible numeric NOT NULL,
    held numeric NOT NULL,
    stale numeric NOT NULL,
    unattributed numeric NOT NULL,
    idle numeric NOT NULL,
    no_data numeric NOT NULL,
    lifecycle numeric NOT NULL,
    matched numeric NOT NULL,
    unmatched numeric NOT NULL,
    visible_gpu numeric NOT NULL,
    priced numeric NOT NULL,
    PRIMARY KEY (cluster, hour, gpu_model),
    CONSTRAINT fleet_hours_devices CHECK (visible = held + stale + unattributed + idle + no_data)
);
COMMENT ON TABLE eai.fleet_hours IS 'The fleet identity of one hour and model (A21).';
COMMENT ON COLUMN eai.fleet_hours.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.fleet_hours.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.fleet_hours.gpu_model IS 'model';
COMMENT ON COLUMN eai.fleet_hours.visible IS 'visible device time in device-seconds';
COMMENT ON COLUMN eai.fleet_hours.held IS 'held by somebody, device-seconds';
COMMENT ON COLUMN eai.fleet_hours.stale IS 'labelled with a workload that does not run, device-seconds';
COMMENT ON COLUMN eai.fleet_hours.unattributed IS 'of pods of no deployment, or between two pods, device-seconds';
COMMENT ON COLUMN eai.fleet_hours.idle IS 'read, and nobody''s, device-seconds';
COMMENT ON COLUMN eai.fleet_hours.no_data IS 'silent, and nobody''s, device-seconds';
COMMENT ON COLUMN eai.fleet_hours.lifecycle IS 'allocated by lifecycle events, GPU-seconds';
COMMENT ON COLUMN eai.fleet_hours.matched IS 'of that, on a visible device, GPU-seconds';
COMMENT ON COLUMN eai.fleet_hours.unmatched IS 'of that, without one, GPU-seconds';
COMMENT ON COLUMN eai.fleet_hours.visible_gpu IS
    'what the visible devices give in GPU-seconds, each board rounded up (A36)';
COMMENT ON COLUMN eai.fleet_hours.priced IS
    'of rows and the idle line, on visible devices, GPU-seconds: at most visible_gpu, else the month stays open (A36)';

CREATE TABLE eai.gpu_cost_allocation (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    workload_id text NOT NULL,
    gpu_model text,
    tenant_id uuid NOT NULL,
    usage_type text NOT NULL,
    deployment_id text NOT NULL,
    gpu_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    storage_gb_hours numeric,
    amount numeric,
    currency text,
    policy_id text,
    estimated boolean NOT NULL,
    CONSTRAINT gpu_cost_allocation_key
        UNIQUE NULLS NOT DISTINCT (cluster, hour, workload_id, gpu_model, deployment_id, tenant_id, usage_type),
    CONSTRAINT gpu_cost_allocation_usage_type CHECK (usage_type IN ('gpu_local', 'gpu_idle')),
    CONSTRAINT gpu_cost_allocation_priced CHECK ((amount IS NULL) = (currency IS NULL))
);
COMMENT ON TABLE eai.gpu_cost_allocation IS 'A tenant''s part of a usage row (A25-A29).';
COMMENT ON COLUMN eai.gpu_cost_allocation.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.gpu_cost_allocation.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.gpu_cost_allocation.workload_id IS 'workload, idle:<model> or storage:<deployment>';
COMMENT ON COLUMN eai.gpu_cost_allocation.gpu_model IS 'model; null for storage';
COMMENT ON COLUMN eai.gpu_cost_allocation.tenant_id IS 'tenant that pays (A25-A27)';
COMMENT ON COLUMN eai.gpu_cost_allocation.usage_type IS 'gpu_local or gpu_idle (A31)';
COMMENT ON COLUMN eai.gpu_cost_allocation.deployment_id IS 'deployment; `idle` for idle lines';
COMMENT ON COLUMN eai.gpu_cost_allocation.gpu_seconds IS 'its part of the allocated time in GPU-seconds';
COMMENT ON COLUMN eai.gpu_cost_allocation.gpu_memory_gb_seconds IS 'its part of the memory in GB-seconds';
COMMENT ON COLUMN eai.gpu_cost_allocation.energy_wh IS 'its part of the energy in Wh, without PUE';
COMMENT ON COLUMN eai.gpu_cost_allocation.storage_gb_hours IS 'its part of the disk in GB-hours (A24)';
COMMENT ON COLUMN eai.gpu_cost_allocation.amount IS 'its part of the cost in `currency` (A24); null is unpriced';
COMMENT ON COLUMN eai.gpu_cost_allocation.currency IS 'ISO 4217 code; null is unpriced';
COMMENT ON COLUMN eai.gpu_cost_allocation.policy_id IS 'policy that priced it (A23)';
COMMENT ON COLUMN eai.gpu_cost_allocation.estimated IS 'true unless all of the row was measured';
CREATE INDEX gpu_cost_allocation_tenant ON eai.gpu_cost_allocation (tenant_id, hour);

CREATE TABLE eai.quarantine (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    source text NOT NULL,
    key text NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL
);
COMMENT ON TABLE eai.quarantine IS 'An input that was set aside while an hour was computed, and why (A5, A10).';
COMMENT ON COLUMN eai.quarantine.seq IS 'order of writing';
COMMENT ON COLUMN eai.quarantine.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.quarantine.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.quarantine.source IS 'workload_events, token_usage or dcgm';
COMMENT ON COLUMN eai.quarantine.key IS 'event_id, or uuid[/instance]:METRIC';
COMMENT ON COLUMN eai.quarantine.reason IS 'reason code of A5 or A10';
COMMENT ON COLUMN eai.quarantine.detail IS 'free text: what was seen and how often';
CREATE INDEX quarantine_hour ON eai.quarantine (cluster, hour);

CREATE TABLE eai.hour_runs (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    published_at timestamptz NOT NULL,
    provisional boolean NOT NULL,
    estimated_share numeric,
    unpriced bigint NOT NULL,
    quarantined bigint NOT NULL,
    input_fingerprint text NOT NULL,
    run_id text,
    PRIMARY KEY (cluster, hour)
);
COMMENT ON TABLE eai.hour_runs IS 'One published hour of one cluster, and in which state its result is.';
COMMENT ON COLUMN eai.hour_runs.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.hour_runs.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.hour_runs.published_at IS 'when its latest result was published (UTC)';
COMMENT ON COLUMN eai.hour_runs.provisional IS 'true while later readings may still change it (A16)';
COMMENT ON COLUMN eai.hour_runs.estimated_share IS
    'estimated part of the device time, 0 to 1; null without device time';
COMMENT ON COLUMN eai.hour_runs.unpriced IS 'allocation rows without a policy (A23)';
COMMENT ON COLUMN eai.hour_runs.quarantined IS 'inputs set aside';
COMMENT ON COLUMN eai.hour_runs.input_fingerprint IS 'digest of the inputs; another one means: compute again';
COMMENT ON COLUMN eai.hour_runs.run_id IS 'run that published it';

CREATE TABLE eai.gpu_statements (
    period text PRIMARY KEY,
    status text NOT NULL,
    computed_at timestamptz NOT NULL,
    final_at timestamptz,
    content_sha256 text NOT NULL,
    CONSTRAINT gpu_statements_period CHECK (period ~ '^[0-9]{4}-(0[1-9]|1[0-2])$'),
    CONSTRAINT gpu_statements_status CHECK (status IN ('open', 'final')),
    CONSTRAINT gpu_statements_final CHECK ((status = 'final') = (final_at IS NOT NULL))
);
COMMENT ON TABLE eai.gpu_statements IS 'One month''s statement (A30, A33).';
COMMENT ON COLUMN eai.gpu_statements.period IS 'UTC month, like 2026-10';
COMMENT ON COLUMN eai.gpu_statements.status IS 'open, or final: then nothing of the month changes any more (A33)';
COMMENT ON COLUMN eai.gpu_statements.computed_at IS 'when it was last computed (UTC)';
COMMENT ON COLUMN eai.gpu_statements.final_at IS 'when it became final (UTC)';
COMMENT ON COLUMN eai.gpu_statements.content_sha256 IS
    'SHA-256 of its JSON (gpu_allocation.json of this month alone)';

CREATE TABLE eai.gpu_allocation (
    period text NOT NULL,
    tenant_id uuid NOT NULL,
    deployment_id text NOT NULL,
    currency text,
    gpu_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    amount numeric,
    policy_id text,
    estimated boolean NOT NULL,
    CONSTRAINT gpu_allocation_key UNIQUE NULLS NOT DISTINCT (period, tenant_id, deployment_id, currency),
    CONSTRAINT gpu_allocation_priced CHECK ((amount IS NULL) = (currency IS NULL))
);
COMMENT ON TABLE eai.gpu_allocation IS 'One item of a month''s statement (A30).';
COMMENT ON COLUMN eai.gpu_allocation.period IS 'UTC month, like 2026-10';
COMMENT ON COLUMN eai.gpu_allocation.tenant_id IS 'tenant that pays';
COMMENT ON COLUMN eai.gpu_allocation.deployment_id IS 'deployment; `idle` for idle lines';
COMMENT ON COLUMN eai.gpu_allocation.currency IS 'ISO 4217 code; null is unpriced';
COMMENT ON COLUMN eai.gpu_allocation.gpu_seconds IS 'allocated time in GPU-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation.gpu_memory_gb_seconds IS 'memory in GB-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation.energy_wh IS 'energy in Wh, without PUE; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation.amount IS 'cost in whole minor units of `currency`; null is unpriced';
COMMENT ON COLUMN eai.gpu_allocation.policy_id IS 'policy of the item''s latest priced hour';
COMMENT ON COLUMN eai.gpu_allocation.estimated IS 'true unless all of it was measured';

CREATE TABLE eai.gpu_allocation_totals (
    period text NOT NULL,
    currency text,
    gpu_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    amount numeric,
    CONSTRAINT gpu_allocation_totals_key UNIQUE NULLS NOT DISTINCT (period, currency),
    CONSTRAINT gpu_allocation_totals_priced CHECK ((amount IS NULL) = (currency IS NULL))
);
COMMENT ON TABLE eai.gpu_allocation_totals IS
    'A month''s total in one currency, over all tenants, corrections included (A30).';
COMMENT ON COLUMN eai.gpu_allocation_totals.period IS 'UTC month, like 2026-10';
COMMENT ON COLUMN eai.gpu_allocation_totals.currency IS 'ISO 4217 code; null is unpriced';
COMMENT ON COLUMN eai.gpu_allocation_totals.gpu_seconds IS 'allocated time in GPU-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation_totals.gpu_memory_gb_seconds IS
    'memory in GB-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation_totals.energy_wh IS 'energy in Wh, without PUE; null where no row has one';
COMMENT ON COLUMN eai.gpu_allocation_totals.amount IS 'cost in whole minor units of `currency`; null is unpriced';

CREATE TABLE eai.gpu_corrections (
    period text NOT NULL,
    hour timestamptz NOT NULL,
    tenant_id uuid NOT NULL,
    deployment_id text NOT NULL,
    currency text,
    gpu_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    amount numeric,
    policy_id text,
    estimated boolean NOT NULL,
    CONSTRAINT gpu_corrections_key UNIQUE NULLS NOT DISTINCT (period, hour, tenant_id, deployment_id, currency),
    CONSTRAINT gpu_corrections_priced CHECK ((amount IS NULL) = (currency IS NULL))
);
COMMENT ON TABLE eai.gpu_corrections IS
    'A difference of a final month, listed in the next open one''s statement, or a credit (A33).';
COMMENT ON COLUMN eai.gpu_corrections.period IS 'UTC month whose statement lists it, like 2026-11';
COMMENT ON COLUMN eai.gpu_corrections.hour IS
    'hour of an earlier, final month that it belongs to; of this one for a credit (A33) (UTC)';
COMMENT ON COLUMN eai.gpu_corrections.tenant_id IS 'tenant that pays, or gets back';
COMMENT ON COLUMN eai.gpu_corrections.deployment_id IS 'deployment; `idle` for idle lines';
COMMENT ON COLUMN eai.gpu_corrections.currency IS 'ISO 4217 code; null is unpriced';
COMMENT ON COLUMN eai.gpu_corrections.gpu_seconds IS 'allocated time in GPU-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_corrections.gpu_memory_gb_seconds IS 'memory in GB-seconds; null where no row has one';
COMMENT ON COLUMN eai.gpu_corrections.energy_wh IS 'energy in Wh, without PUE; null where no row has one';
COMMENT ON COLUMN eai.gpu_corrections.amount IS 'cost in whole minor units of `currency`; null is unpriced';
COMMENT ON COLUMN eai.gpu_corrections.policy_id IS 'policy of its last event that has one';
COMMENT ON COLUMN eai.gpu_corrections.estimated IS 'true unless all of it was measured';

CREATE TABLE eai.gpu_correction_events (
    period text NOT NULL,
    event_id text NOT NULL,
    PRIMARY KEY (period, event_id)
);
COMMENT ON TABLE eai.gpu_correction_events IS 'Which usage events a statement''s corrections are made of (A33).';
COMMENT ON COLUMN eai.gpu_correction_events.period IS 'UTC month whose statement lists the event';
COMMENT ON COLUMN eai.gpu_correction_events.event_id IS 'usage event in one of its corrections';
CREATE INDEX gpu_correction_events_event_id ON eai.gpu_correction_events (event_id);
