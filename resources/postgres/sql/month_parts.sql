-- Usage rows of a month whose tenants' parts do not sum to them in every unit, are missing, or have no row (A29).
WITH whole AS (
    SELECT cluster, hour, workload_id, coalesce(gpu_model, '') AS model, deployment_id, sum(gpu_seconds) AS gpu_seconds,
           sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh
    FROM eai.gpu_usage WHERE (attributed OR basis = 'storage') AND hour >= %(first)s AND hour < %(past)s
    GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT cluster, hour, 'idle:' || gpu_model, gpu_model, 'idle', gpu_seconds, gpu_memory_gb_seconds, energy_wh
    FROM eai.gpu_idle WHERE hour >= %(first)s AND hour < %(past)s
), parts AS (
    SELECT cluster, hour, workload_id, coalesce(gpu_model, '') AS model, deployment_id, sum(gpu_seconds) AS gpu_seconds,
           sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh, count(*) AS tenants
    FROM eai.gpu_cost_allocation WHERE hour >= %(first)s AND hour < %(past)s GROUP BY 1, 2, 3, 4, 5
)
SELECT cluster, to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS hour, workload_id, model AS gpu_model,
       CASE WHEN p.tenants IS NULL THEN 'nobody pays' WHEN w.workload_id IS NULL THEN 'is no usage'
            ELSE 'parts differ from the whole' END AS fault
FROM whole w FULL JOIN parts p USING (cluster, hour, workload_id, model, deployment_id)
WHERE p.tenants IS NULL OR w.workload_id IS NULL
   OR (w.gpu_seconds, w.gpu_memory_gb_seconds, w.energy_wh)
      IS DISTINCT FROM (p.gpu_seconds, p.gpu_memory_gb_seconds, p.energy_wh)
ORDER BY 1, 2, 3, 4
