CREATE OR REPLACE VIEW usage_by_month AS
SELECT
    period,
    tenant_id,
    deployment_id,
    usage_type,
    cost_currency,
    count() AS events,
    sum(gpu_seconds) AS gpu_seconds,
    sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds,
    sum(energy_wh) AS energy_wh,
    sum(storage_gb_hours) AS storage_gb_hours,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(cost_amount) AS cost_amount
FROM usage_events_final
GROUP BY period, tenant_id, deployment_id, usage_type, cost_currency
COMMENT 'Usage and exact cost of one UTC month, tenant, deployment, usage type and currency; corrections lie in the month that they correct'
