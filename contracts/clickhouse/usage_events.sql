CREATE TABLE IF NOT EXISTS {table}
(
    tenant_id             UUID                            COMMENT 'tenant that used, and pays',
    day                   Date32 MATERIALIZED toDate32(ifNull(period_start, occurred_at), 'UTC') COMMENT 'UTC day of the usage: of period_start, or of occurred_at where there is none (llm)',
    event_id              String                          COMMENT 'UUIDv5 of key and revision; the gateway\'s own id for llm, not unique there (A5, A31)',
    seq                   Int64                           COMMENT 'order of arrival in Postgres; one row of eai.usage_events, and one here',
    copied_at             DateTime64(6, 'UTC')            COMMENT 'when it was copied; of two copies of a row the later one counts (UTC)',
    schema_version        Nullable(String)                COMMENT 'version of the usage-event contract',
    occurred_at           DateTime64(6, 'UTC')            COMMENT 'instant of the usage; start of the hour for gpu events (UTC)',
    period_start          Nullable(DateTime64(6, 'UTC'))  COMMENT 'start of the accounting hour; null for llm (UTC)',
    period_end            Nullable(DateTime64(6, 'UTC'))  COMMENT 'end of the accounting hour, exclusive; null for llm (UTC)',
    usage_type            String                          COMMENT 'gpu_local, gpu_idle or llm',
    source                String                          COMMENT 'who wrote it',
    cluster               Nullable(String)                COMMENT 'cluster; null is the default one, the first of FINOPS_PROMETHEUS_URLS',
    workload_id           Nullable(String)                COMMENT 'workload, idle:<model> or storage:<deployment>; null for llm',
    deployment_id         Nullable(String)                COMMENT 'deployment',
    model_provider        Nullable(String)                COMMENT 'provider of the model served',
    model_name            Nullable(String)                COMMENT 'model served',
    gpu_model             Nullable(String)                COMMENT 'GPU model; null for storage and llm',
    basis                 Nullable(String)                COMMENT 'lifecycle, samples or storage; null for llm',
    gpu_seconds           Nullable(Decimal(38, 12))       COMMENT 'allocated time in GPU-seconds; a correction may be negative',
    gpu_memory_gb_seconds Nullable(Decimal(38, 12))       COMMENT 'memory in GB-seconds',
    energy_wh             Nullable(Decimal(38, 12))       COMMENT 'energy in Wh, without PUE',
    storage_gb_hours      Nullable(Decimal(38, 12))       COMMENT 'storage in GB-hours (GB of 2^30 bytes)',
    input_tokens          Nullable(Int64)                 COMMENT 'input tokens, without cached ones',
    output_tokens         Nullable(Int64)                 COMMENT 'output tokens',
    cached_tokens         Nullable(Int64)                 COMMENT 'input tokens served from cache',
    cost_amount           Nullable(Decimal(38, 12))       COMMENT 'cost in cost_currency; null is unpriced',
    cost_currency         Nullable(String)                COMMENT 'ISO 4217 code; null is unpriced',
    allocation_policy_id  Nullable(String)                COMMENT 'policy that priced it (A23)',
    estimated             Nullable(Bool)                  COMMENT 'true unless all of it was measured (A15)',
    measured_seconds      Nullable(Decimal(38, 12))       COMMENT 'device time measured, in seconds',
    estimated_seconds     Nullable(Decimal(38, 12))       COMMENT 'device time estimated, in seconds',
    missing_seconds       Nullable(Decimal(38, 12))       COMMENT 'device time missing, in seconds',
    methods               Nullable(String)                COMMENT 'estimation rungs with their seconds, sorted, joined by ;',
    revision              Nullable(Int64)                 COMMENT 'revision of its key, from 1 (A32)',
    corrects              Nullable(String)                COMMENT 'event_id of the revision before; null for the first',
    content_sha256        Nullable(String)                COMMENT 'SHA-256 of the document in Postgres, hexadecimal (A31)',
    booked_at             DateTime64(6, 'UTC')            COMMENT 'when the row was written to Postgres (UTC)'
)
ENGINE = ReplacingMergeTree(copied_at)
PARTITION BY toYYYYMM(day)
ORDER BY (tenant_id, day, event_id, seq)
COMMENT 'One row of eai.usage_events of Postgres, perhaps in several copies: read it with FINAL, or through a view'
