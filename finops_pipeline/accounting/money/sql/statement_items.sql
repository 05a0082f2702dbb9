-- A statement's items: the exact sums of each tenant, deployment and currency (A30), with the policy of the item's latest
-- priced hour; of several in that hour the highest id.
-- Relation: allocation.
SELECT tenant_id, deployment_id, currency, sum(gpu_seconds) AS gpu_seconds,
       sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh, sum(amount) AS amount,
       bool_or(estimated) AS estimated,
       arg_max(policy_id, (hour, policy_id)) FILTER (policy_id IS NOT NULL) AS policy_id
FROM allocation
GROUP BY tenant_id, deployment_id, currency
ORDER BY tenant_id, deployment_id, coalesce(currency, '')
