-- A tenant's allocated time by hour and class (A6, A25-A27); a row without a class counts for its model. Idle capacity
-- that is spread over tenants is not their usage, and a disk uses no GPU.
-- Relations: allocation, usage.
WITH class AS (
    SELECT cluster, hour, workload_id, gpu_model, deployment_id, max(coalesce(placed_class, gpu_model)) AS placed_class
    FROM usage GROUP BY ALL
)
SELECT a.cluster, a.hour, a.tenant_id, c.placed_class, sum(a.gpu_seconds) AS gpu_seconds
FROM allocation a JOIN class c
    ON c.cluster = a.cluster AND c.hour = a.hour AND c.workload_id = a.workload_id AND c.gpu_model = a.gpu_model
    AND c.deployment_id = a.deployment_id
WHERE a.usage_type = 'gpu_local' AND a.gpu_seconds IS NOT NULL
GROUP BY a.cluster, a.hour, a.tenant_id, c.placed_class
ORDER BY a.cluster, a.hour, a.tenant_id, c.placed_class
