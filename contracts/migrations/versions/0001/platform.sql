-- What the platform writes and the pipeline reads (accounting.md section 2).

-- Names and meanings follow contracts/lake.py; units are plain numeric: a database never rounds (A28).
-- Nobody may run a new function unasked: note_late_events on a table of its own let a reader write late events.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

CREATE TABLE eai.workload_events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster text,
    event_id text NOT NULL,
    occurred_at timestamptz NOT NULL,
    workload_id text NOT NULL,
    tenant_id uuid NOT NULL,
    deployment_id text,
    namespace text,
    pod text,
    from_state text,
    to_state text NOT NULL,
    gpu_count numeric,
    placed_class text,
    node text,
    gpu_uuids text[],
    reason text,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE eai.workload_events IS 'One lifecycle event of a workload, in order of arrival. Append only.';
COMMENT ON COLUMN eai.workload_events.seq IS 'order of arrival';
COMMENT ON COLUMN eai.workload_events.cluster IS
    'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.workload_events.event_id IS
    'id of the event; not unique: the same id with other content is quarantined (A5)';
COMMENT ON COLUMN eai.workload_events.occurred_at IS 'instant of the state change (A1) (UTC)';
COMMENT ON COLUMN eai.workload_events.workload_id IS 'workload that changed state';
COMMENT ON COLUMN eai.workload_events.tenant_id IS 'tenant on whose behalf the workload runs (A25)';
COMMENT ON COLUMN eai.workload_events.deployment_id IS 'deployment of the workload, if any';
COMMENT ON COLUMN eai.workload_events.namespace IS 'Kubernetes namespace, if known (A3)';
COMMENT ON COLUMN eai.workload_events.pod IS 'pod name, if known (A3)';
COMMENT ON COLUMN eai.workload_events.from_state IS 'state before';
COMMENT ON COLUMN eai.workload_events.to_state IS 'state after; `running` is billable (A3)';
COMMENT ON COLUMN eai.workload_events.gpu_count IS 'GPUs asked for; may be a fraction (A4)';
COMMENT ON COLUMN eai.workload_events.placed_class IS 'class that the workload was placed on (A6)';
COMMENT ON COLUMN eai.workload_events.node IS 'node, if known';
COMMENT ON COLUMN eai.workload_events.gpu_uuids IS 'devices named: uuid, or uuid/instance (A17)';
COMMENT ON COLUMN eai.workload_events.reason IS 'free text';
COMMENT ON COLUMN eai.workload_events.received_at IS 'when the row was written (UTC)';
CREATE INDEX workload_events_event_id ON eai.workload_events (event_id);
CREATE INDEX workload_events_occurred_at ON eai.workload_events (occurred_at);
CREATE INDEX workload_events_workload ON eai.workload_events (workload_id, occurred_at);

CREATE TABLE eai.workloads (
    workload_id text NOT NULL,
    cluster text,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    last_states text[] NOT NULL,
    labels text[] NOT NULL,
    doubtful boolean NOT NULL,
    CONSTRAINT workloads_key UNIQUE NULLS NOT DISTINCT (workload_id, cluster)
);
COMMENT ON TABLE eai.workloads IS
    'From when to when a workload has events, so that those of an hour are found without reading the '
    'others. The pipeline keeps it, from unfolded_events.';
COMMENT ON COLUMN eai.workloads.workload_id IS 'workload';
COMMENT ON COLUMN eai.workloads.cluster IS 'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.workloads.first_at IS 'instant of its first event (UTC)';
COMMENT ON COLUMN eai.workloads.last_at IS 'instant of its last event (UTC)';
COMMENT ON COLUMN eai.workloads.last_states IS 'states after its events of that millisecond';
COMMENT ON COLUMN eai.workloads.labels IS 'namespace/pod of all its events that have a pod';
COMMENT ON COLUMN eai.workloads.doubtful IS 'true: an id of its events is there again with other content (A5)';

CREATE TABLE eai.unfolded_events (
    seq bigint PRIMARY KEY
);
COMMENT ON TABLE eai.unfolded_events IS
    'Lifecycle events that workloads does not know yet. A trigger of workload_events fills it, so that '
    'writers never wait for each other; the pipeline empties it.';
COMMENT ON COLUMN eai.unfolded_events.seq IS 'row of workload_events';
CREATE INDEX workloads_last_at ON eai.workloads (last_at);
CREATE INDEX workloads_labels ON eai.workloads USING gin (labels) WITH (fastupdate = off);
CREATE INDEX workloads_last_states ON eai.workloads USING gin (last_states) WITH (fastupdate = off);
CREATE INDEX workloads_doubtful ON eai.workloads (workload_id) WHERE doubtful;

CREATE TABLE eai.deployments (
    cluster text,
    deployment_id text NOT NULL,
    mode text NOT NULL,
    owner_tenant_id uuid NOT NULL,
    namespace text,
    pod_pattern text,
    model text,
    valid_from timestamptz,
    valid_to timestamptz,
    in_force_from timestamptz,
    CONSTRAINT deployments_key UNIQUE NULLS NOT DISTINCT (cluster, deployment_id, valid_from),
    CONSTRAINT deployments_mode CHECK (mode IN ('dedicated', 'shared')),
    CONSTRAINT deployments_valid_to CHECK (valid_to >= valid_from)
);
COMMENT ON TABLE eai.deployments IS 'One deployment.';
COMMENT ON COLUMN eai.deployments.cluster IS 'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.deployments.deployment_id IS 'deployment';
COMMENT ON COLUMN eai.deployments.mode IS 'dedicated (A25) or shared (A26)';
COMMENT ON COLUMN eai.deployments.owner_tenant_id IS 'tenant that owns it';
COMMENT ON COLUMN eai.deployments.namespace IS 'namespace of its pods (A18)';
COMMENT ON COLUMN eai.deployments.pod_pattern IS 'glob of its pod names (A18)';
COMMENT ON COLUMN eai.deployments.model IS 'model that it serves';
COMMENT ON COLUMN eai.deployments.valid_from IS 'it counts for hours that begin from then on; null is always (UTC)';
COMMENT ON COLUMN eai.deployments.valid_to IS 'and before then; null is still there (UTC)';
COMMENT ON COLUMN eai.deployments.in_force_from IS
    'set by the database: what the row says counts from then on, what it said before is in deployments_before (UTC)';

CREATE TABLE eai.allocation_policies (
    id text PRIMARY KEY,
    name text NOT NULL,
    deployment_pattern text NOT NULL,
    gpu_model text,
    currency text NOT NULL,
    gpu_hourly_cost numeric NOT NULL,
    overhead_pct numeric NOT NULL,
    energy_kwh_price numeric NOT NULL,
    pue numeric NOT NULL,
    storage_gb_month_price numeric NOT NULL,
    idle_policy text NOT NULL,
    token_weights text,
    effective_from timestamptz NOT NULL,
    effective_to timestamptz,
    status text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT allocation_policies_gpu_hourly_cost CHECK (gpu_hourly_cost >= 0 AND gpu_hourly_cost < 'Infinity'),
    CONSTRAINT allocation_policies_overhead_pct CHECK (overhead_pct >= 0 AND overhead_pct < 'Infinity'),
    CONSTRAINT allocation_policies_energy_kwh_price CHECK (energy_kwh_price >= 0 AND energy_kwh_price < 'Infinity'),
    CONSTRAINT allocation_policies_pue CHECK (pue >= 0 AND pue < 'Infinity'),
    CONSTRAINT allocation_policies_storage_gb_month_price
        CHECK (storage_gb_month_price >= 0 AND storage_gb_month_price < 'Infinity'),
    CONSTRAINT allocation_policies_idle_policy CHECK (idle_policy IN ('owner', 'proportional', 'platform')),
    CONSTRAINT allocation_policies_status CHECK (status IN ('active', 'retired')),
    CONSTRAINT allocation_policies_currency CHECK (currency ~ '^[A-Z]{3}$'),
    CONSTRAINT allocation_policies_effective_from CHECK (extract(epoch from effective_from) % 3600 = 0),
    CONSTRAINT allocation_policies_effective_to
        CHECK (effective_to > effective_from AND extract(epoch from effective_to) % 3600 = 0)
);
COMMENT ON TABLE eai.allocation_policies IS
    'One immutable version of a pricing policy; a change is a new row from a later hour (A22).';
COMMENT ON COLUMN eai.allocation_policies.id IS 'policy id';
COMMENT ON COLUMN eai.allocation_policies.name IS 'name';
COMMENT ON COLUMN eai.allocation_policies.deployment_pattern IS 'glob on deployment_id (A23)';
COMMENT ON COLUMN eai.allocation_policies.gpu_model IS 'model that it is for; null is any (A23)';
COMMENT ON COLUMN eai.allocation_policies.currency IS 'ISO 4217 code';
COMMENT ON COLUMN eai.allocation_policies.gpu_hourly_cost IS 'currency per GPU-hour';
COMMENT ON COLUMN eai.allocation_policies.overhead_pct IS 'per cent on the GPU cost';
COMMENT ON COLUMN eai.allocation_policies.energy_kwh_price IS 'currency per kWh';
COMMENT ON COLUMN eai.allocation_policies.pue IS 'power usage effectiveness';
COMMENT ON COLUMN eai.allocation_policies.storage_gb_month_price IS 'currency per GB (2^30 bytes) and month';
COMMENT ON COLUMN eai.allocation_policies.idle_policy IS
    'who pays an hour without tokens: owner, proportional or platform (A27)';
COMMENT ON COLUMN eai.allocation_policies.token_weights IS
    'JSON object of decimals for input, output and cached; null is 1 each (A26)';
COMMENT ON COLUMN eai.allocation_policies.effective_from IS 'first hour that it prices (A22) (UTC)';
COMMENT ON COLUMN eai.allocation_policies.effective_to IS 'end of its validity, exclusive; null is open (UTC)';
COMMENT ON COLUMN eai.allocation_policies.status IS 'active or retired';
COMMENT ON COLUMN eai.allocation_policies.created_at IS 'when the row was written (UTC)';

CREATE TABLE eai.deployment_storage (
    cluster text,
    deployment_id text NOT NULL,
    size_gb numeric NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    in_force_from timestamptz,
    CONSTRAINT deployment_storage_size CHECK (size_gb >= 0 AND size_gb < 'Infinity'),
    CONSTRAINT deployment_storage_valid_to CHECK (valid_to >= valid_from)
);
COMMENT ON TABLE eai.deployment_storage IS 'One disk of a deployment over a span of time (A24).';
COMMENT ON COLUMN eai.deployment_storage.cluster IS
    'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.deployment_storage.deployment_id IS 'deployment that holds the disk';
COMMENT ON COLUMN eai.deployment_storage.size_gb IS 'size in GB (2^30 bytes)';
COMMENT ON COLUMN eai.deployment_storage.valid_from IS 'held from (UTC)';
COMMENT ON COLUMN eai.deployment_storage.valid_to IS 'held until, exclusive; null is still held (UTC)';
COMMENT ON COLUMN eai.deployment_storage.in_force_from IS
    'set by the database: what the row says counts from then on, what it said before is in '
    'deployment_storage_before (UTC)';

CREATE TABLE eai.gpu_inventory (
    cluster text,
    node text NOT NULL,
    gpu_uuid text NOT NULL,
    model text NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    in_force_from timestamptz,
    CONSTRAINT gpu_inventory_valid_to CHECK (valid_to >= valid_from)
);
COMMENT ON TABLE eai.gpu_inventory IS 'One device over a span of time (A21).';
COMMENT ON COLUMN eai.gpu_inventory.cluster IS
    'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS';
COMMENT ON COLUMN eai.gpu_inventory.node IS 'node';
COMMENT ON COLUMN eai.gpu_inventory.gpu_uuid IS 'uuid, or uuid/instance';
COMMENT ON COLUMN eai.gpu_inventory.model IS 'DCGM''s or the platform''s name of the model';
COMMENT ON COLUMN eai.gpu_inventory.valid_from IS 'present from (UTC)';
COMMENT ON COLUMN eai.gpu_inventory.valid_to IS 'present until, exclusive; null is still there (UTC)';
COMMENT ON COLUMN eai.gpu_inventory.in_force_from IS
    'set by the database: what the row says counts from then on, what it said before is in '
    'gpu_inventory_before (UTC)';

CREATE TABLE eai.providers (
    id text PRIMARY KEY,
    name text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    models text[] NOT NULL,
    CONSTRAINT providers_kind CHECK (kind IN ('self_hosted', 'external')),
    CONSTRAINT providers_status CHECK (status IN ('active', 'retired'))
);
COMMENT ON TABLE eai.providers IS 'One provider of models, as in GET /v1/providers/catalog.';
COMMENT ON COLUMN eai.providers.id IS 'provider id, the `model.provider` of a usage event';
COMMENT ON COLUMN eai.providers.name IS 'name';
COMMENT ON COLUMN eai.providers.kind IS 'self_hosted or external';
COMMENT ON COLUMN eai.providers.status IS 'active or retired';
COMMENT ON COLUMN eai.providers.models IS 'names of the models that it serves';
