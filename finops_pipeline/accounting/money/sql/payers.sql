-- Who pays each row of the present round (A25-A27), for `finops explain`.
-- Relations: priced, share.
SELECT p.workload_id, p.gpu_model, p.deployment_id, p.tenant_id AS event_tenant_id, s.tenant_id, s.rule,
       s.weight, s.input_tokens, s.output_tokens, s.cached_tokens
FROM share s JOIN priced p USING (number)
ORDER BY p.workload_id, coalesce(p.gpu_model, ''), p.deployment_id, s.tenant_id
