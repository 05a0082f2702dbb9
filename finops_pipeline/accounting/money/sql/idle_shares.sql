-- Who pays the idle lines (A27): with idle_policy proportional the tenants by the GPU-seconds that they were given in
-- that hour, all models; else, and where nobody was given any, the platform.
-- Relations: priced, policy, part (of all other rows). Parameter: platform_tenant.
WITH line AS (
    SELECT p.number, p.hour_ms, coalesce(q.idle_policy = 'proportional', false) AS spread
    FROM priced p LEFT JOIN policy q ON q.policy_id = p.policy_id
    WHERE p.usage_type = 'gpu_idle'
), given AS (
    SELECT p.hour_ms, t.tenant_id, sum(t.gpu_seconds) AS weight
    FROM part t JOIN priced p USING (number)
    GROUP BY p.hour_ms, t.tenant_id
    HAVING sum(t.gpu_seconds) > 0
), spread AS (
    SELECT l.number, g.tenant_id, g.weight FROM line l JOIN given g USING (hour_ms) WHERE l.spread
)
SELECT number, tenant_id, weight, 'use' AS rule, NULL::HUGEINT AS input_tokens,
       NULL::HUGEINT AS output_tokens, NULL::HUGEINT AS cached_tokens
FROM spread
UNION ALL
SELECT number, $platform_tenant, 1, CASE WHEN spread THEN 'no_use' ELSE 'nobody' END, NULL, NULL, NULL
FROM line
WHERE number NOT IN (SELECT number FROM spread)
