-- What busy pods that match no deployment are of a month's idle lines (A18, A27): one row per tenant and currency of these
-- lines. Their units are the pods' own; a line's amount is theirs by GPU-seconds. Where idle time is spread over tenants,
-- so are they.
WITH pods AS (
    SELECT cluster, hour, gpu_model, sum(gpu_seconds) AS gpu_seconds,
           sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh
    FROM eai.gpu_usage
    WHERE basis = 'samples' AND NOT attributed AND hour >= %(first)s AND hour < %(past)s
    GROUP BY 1, 2, 3
), idle AS (
    SELECT cluster, hour, gpu_model, tenant_id, currency, gpu_seconds, amount,
           sum(gpu_seconds) OVER (PARTITION BY cluster, hour, gpu_model) AS whole
    FROM eai.gpu_cost_allocation
    WHERE usage_type = 'gpu_idle' AND deployment_id = 'idle' AND hour >= %(first)s AND hour < %(past)s
)
SELECT tenant_id, currency,
       round(sum(least(p.gpu_seconds * i.gpu_seconds / i.whole, i.gpu_seconds)), 3) AS gpu_seconds,
       round(sum(p.gpu_memory_gb_seconds * i.gpu_seconds / i.whole), 3) AS gpu_memory_gb_seconds,
       round(sum(p.energy_wh * i.gpu_seconds / i.whole), 6) AS energy_wh,
       round(sum(i.amount * least(p.gpu_seconds / i.whole, 1)), 9) AS amount
FROM idle i JOIN pods p USING (cluster, hour, gpu_model)
WHERE i.whole > 0
GROUP BY 1, 2
ORDER BY 1, 2
