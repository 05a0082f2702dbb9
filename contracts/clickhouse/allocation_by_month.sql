CREATE OR REPLACE VIEW allocation_by_month AS
SELECT
    period,
    tenant_id,
    deployment_id,
    cost_currency AS currency,
    sum(gpu_seconds) AS gpu_seconds,
    sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds,
    sum(energy_wh) AS energy_wh,
    sum(cost_amount) AS amount,
    max(estimated) AS estimated
FROM usage_events_final
WHERE usage_type IN ('gpu_local', 'gpu_idle')
GROUP BY period, tenant_id, deployment_id, currency
COMMENT 'Booked cost of one UTC month, tenant, deployment and currency, to the last digit, with corrections and credits in the month of their hour: a statement (A30, A33) rounds it to minor units, and lists what came after a close apart'
