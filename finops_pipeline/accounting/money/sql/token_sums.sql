-- Tokens by hour, span (0: the hour itself, 1: the 24 hours before it), deployment and tenant (A26, A27).
-- Relation: token_event(hour_ms, span, deployment_id, tenant_id, input_tokens, output_tokens, cached_tokens).
-- A sum of BIGINT is a HUGEINT: one absurd count does not wrap around into another tenant's share.
SELECT hour_ms, span, deployment_id, tenant_id, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
       sum(cached_tokens) AS cached_tokens
FROM token_event
WHERE deployment_id IS NOT NULL
GROUP BY hour_ms, span, deployment_id, tenant_id
