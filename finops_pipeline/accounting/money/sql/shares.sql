-- Who pays each row of workloads and disks, by which rule and weight (A25-A27): one row per priced row and tenant.
-- Relations: priced (whole rows), policy (what a token of each kind counts for, by policy), deployment (mode and owner
-- by hour), token_sum. Parameter: platform_tenant.
-- A dedicated deployment's row goes to its owner, one of no known deployment to the event's tenant (a disk's, which has
-- no event, to the platform); a shared one's to the tenants by weighted tokens, and without any by the idle_policy.
-- A weight that is too large is null; too_large.sql finds it before anything is divided.
WITH payer AS (
    SELECT p.number, p.hour_ms, p.deployment_id, d.mode,
           coalesce(d.owner_tenant_id, p.tenant_id, $platform_tenant) AS owner,
           coalesce(q.idle_policy, 'owner') AS idle_policy, coalesce(q.per_input, 1)::HUGEINT AS per_input,
           coalesce(q.per_output, 1)::HUGEINT AS per_output, coalesce(q.per_cached, 1)::HUGEINT AS per_cached
    FROM priced p
    LEFT JOIN deployment d ON d.hour_ms = p.hour_ms AND d.deployment_id = p.deployment_id
    LEFT JOIN policy q ON q.policy_id = p.policy_id
    WHERE p.usage_type <> 'gpu_idle'
), weighed AS (
    SELECT y.number, t.span, t.tenant_id, t.input_tokens, t.output_tokens, t.cached_tokens,
           CASE WHEN per_input::DOUBLE * input_tokens + per_output::DOUBLE * output_tokens
                     + per_cached::DOUBLE * cached_tokens < 5e28
                THEN per_input * input_tokens + per_output * output_tokens + per_cached * cached_tokens END AS weight
    FROM payer y
    JOIN token_sum t ON t.hour_ms = y.hour_ms AND t.deployment_id = y.deployment_id
    WHERE y.mode = 'shared' AND (t.span = 0 OR y.idle_policy = 'proportional')
), served AS (
    SELECT * FROM weighed
    WHERE weight IS NULL OR weight > 0
    QUALIFY span = min(span) OVER (PARTITION BY number)
)
SELECT number, tenant_id, weight, CASE span WHEN 0 THEN 'tokens' ELSE 'tokens_before' END AS rule,
       input_tokens, output_tokens, cached_tokens
FROM served
UNION ALL
SELECT number, CASE WHEN mode = 'shared' AND idle_policy = 'platform' THEN $platform_tenant ELSE owner END, 1,
       CASE WHEN mode IS NULL THEN 'event' WHEN mode = 'dedicated' THEN 'dedicated' ELSE idle_policy END,
       NULL, NULL, NULL
FROM payer
WHERE number NOT IN (SELECT number FROM served)
