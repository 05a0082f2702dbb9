-- The allocation: one row per hour, workload, model, deployment, tenant and usage type (A31), in that order; parts of
-- several rows that end with one key are added.
-- Relations: priced, part.
SELECT make_timestamp(p.hour_ms * 1000) AS hour, p.workload_id, p.gpu_model, t.tenant_id, p.usage_type, p.deployment_id,
       sum(t.gpu_seconds)::DECIMAL(38, 0) * 0.001 AS gpu_seconds,
       sum(t.gpu_memory_gb_seconds)::DECIMAL(38, 0) * 0.001 AS gpu_memory_gb_seconds,
       sum(t.energy_wh)::DECIMAL(38, 0) * 0.000001 AS energy_wh,
       sum(t.storage_gb_hours)::DECIMAL(38, 0) * 0.000001 AS storage_gb_hours,
       sum(t.amount)::DECIMAL(38, 0) * 0.000000001 AS amount,
       p.currency, p.policy_id, bool_or(p.estimated) AS estimated
FROM part t JOIN priced p USING (number)
GROUP BY p.hour_ms, p.workload_id, p.gpu_model, t.tenant_id, p.usage_type, p.deployment_id, p.currency, p.policy_id
ORDER BY p.hour_ms, p.workload_id, coalesce(p.gpu_model, ''), t.tenant_id, p.usage_type, p.deployment_id
