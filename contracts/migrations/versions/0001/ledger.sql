-- What is written once and never changed (A31-A34).

CREATE TABLE eai.usage_events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    schema_version text,
    occurred_at timestamptz NOT NULL,
    period_start timestamptz,
    period_end timestamptz,
    tenant_id uuid NOT NULL,
    usage_type text NOT NULL,
    source text NOT NULL,
    cluster text,
    workload_id text,
    deployment_id text,
    model_provider text,
    model_name text,
    gpu_model text,
    basis text,
    gpu_seconds numeric,
    gpu_memory_gb_seconds numeric,
    energy_wh numeric,
    storage_gb_hours numeric,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    cost_amount numeric,
    cost_currency text,
    allocation_policy_id text,
    estimated boolean,
    measured_seconds numeric,
    estimated_seconds numeric,
    missing_seconds numeric,
    methods text,
    revision integer,
    corrects text,
    content_sha256 text,
    document text,
    booked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT usage_events_usage_type CHECK (usage_type IN ('gpu_local', 'gpu_idle', 'llm')),
    CONSTRAINT usage_events_priced CHECK ((cost_amount IS NULL) = (cost_currency IS NULL)),
    CONSTRAINT usage_events_complete
        CHECK (usage_type = 'llm' OR num_nulls(schema_version, period_start, period_end, cluster, workload_id,
               deployment_id, estimated, methods, revision, content_sha256, document) = 0),
    CONSTRAINT usage_events_tokens
        CHECK (usage_type <> 'llm' OR num_nulls(input_tokens, output_tokens, cached_tokens) = 0),
    CONSTRAINT usage_events_hash CHECK (content_sha256 = encode(sha256(convert_to(document, 'UTF8')), 'hex'))
);
COMMENT ON TABLE eai.usage_events IS
    'One immutable usage event: booked by the pipeline (gpu_*), or written by the gateway (llm). Append '
    'only.';
COMMENT ON COLUMN eai.usage_events.seq IS 'order of arrival';
COMMENT ON COLUMN eai.usage_events.event_id IS
    'UUIDv5 of key and revision; the gateway''s own id for llm, not unique there (A5, A31)';
COMMENT ON COLUMN eai.usage_events.schema_version IS 'version of the usage-event contract';
COMMENT ON COLUMN eai.usage_events.occurred_at IS 'instant of the usage; start of the hour for gpu events (UTC)';
COMMENT ON COLUMN eai.usage_events.period_start IS 'start of the accounting hour; null for llm (UTC)';
COMMENT ON COLUMN eai.usage_events.period_end IS 'end of the accounting hour, exclusive; null for llm (UTC)';
COMMENT ON COLUMN eai.usage_events.tenant_id IS 'tenant that used, and pays';
COMMENT ON COLUMN eai.usage_events.usage_type IS 'gpu_local, gpu_idle or llm';
COMMENT ON COLUMN eai.usage_events.source IS 'who wrote it';
COMMENT ON COLUMN eai.usage_events.cluster IS 'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.usage_events.workload_id IS 'workload, idle:<model> or storage:<deployment>; null for llm';
COMMENT ON COLUMN eai.usage_events.deployment_id IS 'deployment';
COMMENT ON COLUMN eai.usage_events.model_provider IS 'provider of the model served';
COMMENT ON COLUMN eai.usage_events.model_name IS 'model served';
COMMENT ON COLUMN eai.usage_events.gpu_model IS 'GPU model; null for storage and llm';
COMMENT ON COLUMN eai.usage_events.basis IS 'lifecycle, samples or storage; null for llm';
COMMENT ON COLUMN eai.usage_events.gpu_seconds IS 'allocated time in GPU-seconds; a correction may be negative';
COMMENT ON COLUMN eai.usage_events.gpu_memory_gb_seconds IS 'memory in GB-seconds';
COMMENT ON COLUMN eai.usage_events.energy_wh IS 'energy in Wh, without PUE';
COMMENT ON COLUMN eai.usage_events.storage_gb_hours IS 'storage in GB-hours (GB of 2^30 bytes)';
COMMENT ON COLUMN eai.usage_events.input_tokens IS 'input tokens, without cached ones';
COMMENT ON COLUMN eai.usage_events.output_tokens IS 'output tokens';
COMMENT ON COLUMN eai.usage_events.cached_tokens IS 'input tokens served from cache';
COMMENT ON COLUMN eai.usage_events.cost_amount IS 'cost in `cost_currency`; null is unpriced';
COMMENT ON COLUMN eai.usage_events.cost_currency IS 'ISO 4217 code; null is unpriced';
COMMENT ON COLUMN eai.usage_events.allocation_policy_id IS 'policy that priced it (A23)';
COMMENT ON COLUMN eai.usage_events.estimated IS 'true unless all of it was measured (A15)';
COMMENT ON COLUMN eai.usage_events.measured_seconds IS 'device time measured, in seconds';
COMMENT ON COLUMN eai.usage_events.estimated_seconds IS 'device time estimated, in seconds';
COMMENT ON COLUMN eai.usage_events.missing_seconds IS 'device time missing, in seconds';
COMMENT ON COLUMN eai.usage_events.methods IS 'estimation rungs with their seconds, sorted, joined by ;';
COMMENT ON COLUMN eai.usage_events.revision IS 'revision of its key, from 1 (A32)';
COMMENT ON COLUMN eai.usage_events.corrects IS 'event_id of the revision before; null for the first';
COMMENT ON COLUMN eai.usage_events.content_sha256 IS 'SHA-256 of `document`, hexadecimal (A31)';
COMMENT ON COLUMN eai.usage_events.document IS 'canonical JSON (RFC 8785) of the event without content_sha256';
COMMENT ON COLUMN eai.usage_events.booked_at IS 'when the row was written (UTC)';
CREATE UNIQUE INDEX usage_events_event_id ON eai.usage_events (event_id) WHERE usage_type <> 'llm';
CREATE UNIQUE INDEX usage_events_key ON eai.usage_events
    (cluster, period_start, workload_id, gpu_model, deployment_id, tenant_id, usage_type, revision)
    NULLS NOT DISTINCT WHERE usage_type <> 'llm';
CREATE INDEX usage_events_llm ON eai.usage_events (occurred_at) WHERE usage_type = 'llm';
CREATE INDEX usage_events_llm_event_id ON eai.usage_events (event_id) WHERE usage_type = 'llm';
CREATE INDEX usage_events_days ON eai.usage_events USING brin (occurred_at);
CREATE INDEX usage_events_tenant ON eai.usage_events (tenant_id, occurred_at);
CREATE INDEX usage_events_credits ON eai.usage_events (period_start) WHERE workload_id LIKE 'credit:%';
CREATE INDEX usage_events_period ON eai.usage_events (period_start) WHERE usage_type <> 'llm';

CREATE TABLE eai.late_events (
    event_id text PRIMARY KEY,
    period text NOT NULL
);
COMMENT ON TABLE eai.late_events IS
    'A usage event booked after its month was final: the next open month''s statement lists it (A33).';
COMMENT ON COLUMN eai.late_events.event_id IS 'usage event';
COMMENT ON COLUMN eai.late_events.period IS 'final UTC month that it belongs to, like 2026-10';

CREATE TABLE eai.audit_events (
    seq bigint PRIMARY KEY,
    occurred_at timestamptz NOT NULL,
    kind text NOT NULL,
    previous_sha256 text NOT NULL,
    entry_sha256 text NOT NULL,
    document text NOT NULL,
    payload jsonb GENERATED ALWAYS AS (document::jsonb -> 'payload') STORED,
    CONSTRAINT audit_events_no_fork UNIQUE (previous_sha256),
    CONSTRAINT audit_events_hash CHECK (entry_sha256 = encode(sha256(convert_to(document, 'UTF8')), 'hex')),
    CONSTRAINT audit_events_link CHECK (previous_sha256 = document::jsonb ->> 'previous_sha256'),
    CONSTRAINT audit_events_seq CHECK (seq > 0 AND seq = (document::jsonb ->> 'seq')::bigint)
);
COMMENT ON TABLE eai.audit_events IS 'One entry of the hash-chained audit log (A34). Append only.';
COMMENT ON COLUMN eai.audit_events.seq IS 'place in the chain, from 1';
COMMENT ON COLUMN eai.audit_events.occurred_at IS 'when it happened (UTC)';
COMMENT ON COLUMN eai.audit_events.kind IS 'what happened, like hour.published';
COMMENT ON COLUMN eai.audit_events.previous_sha256 IS 'entry_sha256 of the entry before; 64 zeros for the first';
COMMENT ON COLUMN eai.audit_events.entry_sha256 IS 'SHA-256 of `document`, hexadecimal';
COMMENT ON COLUMN eai.audit_events.document IS 'canonical JSON (RFC 8785) of the entry without entry_sha256';
COMMENT ON COLUMN eai.audit_events.payload IS 'the payload inside `document`';
