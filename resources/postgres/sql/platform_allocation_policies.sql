SELECT id, name, deployment_pattern, gpu_model, currency, gpu_hourly_cost::text, overhead_pct::text,
       energy_kwh_price::text, pue::text, storage_gb_month_price::text, idle_policy, token_weights,
       effective_from, effective_to, status
FROM eai.allocation_policies
ORDER BY id COLLATE "C"
