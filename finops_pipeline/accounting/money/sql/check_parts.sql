-- The first row whose parts are not the whole (A29): units, cost, and that nothing is lost or invented.
-- Relations: priced, allocation.
WITH whole AS (
    SELECT make_timestamp(hour_ms * 1000) AS hour, workload_id, coalesce(gpu_model, '') AS model, deployment_id,
           usage_type, sum(gpu_seconds) AS gpu_seconds, sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds,
           sum(energy_wh) AS energy_wh, sum(storage_gb_hours) AS storage_gb_hours, sum(amount) AS amount
    FROM priced GROUP BY ALL
), allocated AS (
    SELECT hour, workload_id, coalesce(gpu_model, '') AS model, deployment_id, usage_type,
           count(DISTINCT coalesce(policy_id, '')) AS policies, sum(gpu_seconds) AS gpu_seconds,
           sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh,
           sum(storage_gb_hours) AS storage_gb_hours, sum(amount) AS amount
    FROM allocation GROUP BY ALL
), judged AS (
    SELECT coalesce(w.hour, a.hour) AS hour, coalesce(w.workload_id, a.workload_id) AS workload_id,
           coalesce(w.model, a.model) AS model, CASE
        WHEN a.workload_id IS NULL THEN 'was allocated to nobody'
        WHEN w.workload_id IS NULL THEN 'is not usage'
        WHEN a.policies > 1 THEN 'parts are priced by several policies'
        WHEN a.gpu_seconds IS DISTINCT FROM w.gpu_seconds
            THEN format('parts of gpu_seconds sum to {}, the whole is {}', a.gpu_seconds::TEXT, w.gpu_seconds::TEXT)
        WHEN a.gpu_memory_gb_seconds IS DISTINCT FROM w.gpu_memory_gb_seconds
            THEN format('parts of gpu_memory_gb_seconds sum to {}, the whole is {}',
                        a.gpu_memory_gb_seconds::TEXT, w.gpu_memory_gb_seconds::TEXT)
        WHEN a.energy_wh IS DISTINCT FROM w.energy_wh
            THEN format('parts of energy_wh sum to {}, the whole is {}', a.energy_wh::TEXT, w.energy_wh::TEXT)
        WHEN a.storage_gb_hours IS DISTINCT FROM w.storage_gb_hours
            THEN format('parts of storage_gb_hours sum to {}, the whole is {}',
                        a.storage_gb_hours::TEXT, w.storage_gb_hours::TEXT)
        WHEN a.amount IS DISTINCT FROM w.amount
            THEN format('parts cost {}, the whole costs {}', a.amount::TEXT, w.amount::TEXT)
        END AS fault
    FROM whole w FULL JOIN allocated a
        ON a.hour = w.hour AND a.workload_id = w.workload_id AND a.model = w.model
        AND a.deployment_id = w.deployment_id AND a.usage_type = w.usage_type
)
SELECT epoch_ms(hour) AS hour_ms, workload_id, model, fault FROM judged
WHERE fault IS NOT NULL
ORDER BY hour, workload_id, model
LIMIT 1
