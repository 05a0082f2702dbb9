-- What the ledger holds of a month, by account, credits left out: they are listed beside the items (A32, A33).
SELECT tenant_id::text AS tenant_id, deployment_id, cost_currency AS currency, sum(gpu_seconds) AS gpu_seconds,
       sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(energy_wh) AS energy_wh, sum(cost_amount) AS amount
FROM eai.usage_events
WHERE usage_type <> 'llm' AND workload_id NOT LIKE 'credit:%%' AND period_start >= %(first)s AND period_start < %(past)s
GROUP BY 1, 2, 3
