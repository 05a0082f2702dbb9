-- The trial balance: usage x price = allocated = booked = stated, from Postgres alone and without the program's
-- arithmetic (A24, A28-A33). One row a proof, month, tenant (null: all of them), currency and measure.
--   priced   every usage row's parts cost what its units cost by its policy, rounded half-even once to 9 places (rows
--            that differ in the tenant of their events alone are looked at together); no division and no rounding is
--            done here: both sides are multiplied by the denominator instead
--   booked   what is allocated to a tenant, plus its credits, is what the ledger holds, exactly
--   stated   the events that a statement covers are its lines: units exactly, an amount to less than one minor unit a
--            line, the total of items and that of corrections to half a minor unit each
-- Parameters: first, past (months' bounds; null is everything), digits (JSON: decimals of each currency's minor unit).
WITH month AS (
    SELECT coalesce(%(first)s::timestamptz, '-infinity') AS first, coalesce(%(past)s::timestamptz, 'infinity') AS past
), usage AS (
    SELECT u.cluster, u.hour, u.workload_id, u.gpu_model AS model, u.deployment_id, sum(u.gpu_seconds) AS gpu_seconds,
           sum(u.gpu_memory_gb_seconds) AS gpu_memory_gb_seconds, sum(u.energy_wh) AS energy_wh, count(*) AS rows
    FROM eai.gpu_usage u, month WHERE u.attributed AND u.basis <> 'storage' AND u.hour >= first AND u.hour < past
    GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT i.cluster, i.hour, 'idle:' || i.gpu_model, i.gpu_model, 'idle', i.gpu_seconds, i.gpu_memory_gb_seconds,
           i.energy_wh, 1
    FROM eai.gpu_idle i, month WHERE i.hour >= first AND i.hour < past
), allocated AS (
    SELECT a.*, to_char(a.hour AT TIME ZONE 'UTC', 'YYYY-MM') AS period
    FROM eai.gpu_cost_allocation a, month WHERE a.hour >= first AND a.hour < past
), whole AS (
    SELECT cluster, hour, workload_id, coalesce(gpu_model, '') AS model, deployment_id, min(currency) AS currency,
           min(policy_id) AS policy_id, count(DISTINCT coalesce(policy_id, '')) AS policies, sum(amount) AS amount,
           sum(gpu_seconds) AS gpu_seconds, sum(gpu_memory_gb_seconds) AS gpu_memory_gb_seconds,
           sum(energy_wh) AS energy_wh, sum(storage_gb_hours) AS storage_gb_hours
    FROM allocated GROUP BY 1, 2, 3, 4, 5
), priced AS (
    SELECT cluster, hour, workload_id, model, w.currency, w.amount, w.policies, w.policy_id, p.currency AS charged,
           w.workload_id IS NOT NULL AS paid, w.storage_gb_hours IS NOT NULL AS disk, u.workload_id IS NOT NULL AS used,
           (w.gpu_seconds, w.gpu_memory_gb_seconds, w.energy_wh)
               IS DISTINCT FROM (u.gpu_seconds, u.gpu_memory_gb_seconds, u.energy_wh) AS other_units,
           p.effective_from <= hour AND (p.effective_to IS NULL OR hour < p.effective_to) AS in_force,
           CASE WHEN w.storage_gb_hours IS NULL
                THEN coalesce(u.gpu_seconds, 0) * p.gpu_hourly_cost * (100 + p.overhead_pct)
                     + coalesce(u.energy_wh, 0) * p.pue * p.energy_kwh_price * 360
                ELSE w.storage_gb_hours * p.storage_gb_month_price END AS exact,
           CASE WHEN w.storage_gb_hours IS NULL THEN 360000
                ELSE 24 * extract(day FROM date_trunc('month', hour AT TIME ZONE 'UTC') + interval '1 month - 1 day')
                END AS scale,
           -- a disk is priced by its exact GB-hours, of which 6 decimals are published (A24)
           CASE WHEN w.storage_gb_hours IS NULL THEN 0 ELSE 0.0000005 * p.storage_gb_month_price END AS slack,
           -- rows that differ in their event's tenant alone are rounded one by one (A36)
           coalesce(u.rows, 1) AS rows
    FROM whole w FULL JOIN usage u USING (cluster, hour, workload_id, model, deployment_id)
    LEFT JOIN eai.allocation_policies p ON p.id = w.policy_id
), judged AS (
    SELECT to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM') AS period, currency, amount, exact / scale AS cost, rows, CASE
        WHEN NOT paid THEN 'is usage that nobody pays'
        WHEN NOT used AND NOT disk THEN 'is paid, but is no usage'
        WHEN NOT disk AND other_units THEN 'has parts that do not sum to its units'
        WHEN policies > 1 THEN 'is priced by several policies'
        WHEN policy_id IS NULL THEN CASE WHEN amount IS NOT NULL THEN 'has an amount without a policy' END
        WHEN charged IS NULL THEN 'is priced by a policy that does not exist'
        WHEN NOT in_force THEN 'is priced by a policy that is not in force'
        WHEN charged <> currency THEN 'is not in the currency of its policy'
        WHEN abs(amount * scale - exact) > 0.0000000005 * scale * rows + slack THEN 'costs something else'
        WHEN slack = 0 AND rows = 1 AND abs(amount * scale - exact) = 0.0000000005 * scale
            AND trunc(amount * 1000000000) %% 2 <> 0 THEN 'is not rounded half-even'
        END AS fault, cluster || ', ' || to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ', '
            || workload_id || CASE model WHEN '' THEN '' ELSE ' on ' || model END AS place
    FROM priced
), events AS (
    SELECT e.event_id, e.tenant_id, e.cost_currency AS currency, e.cost_amount AS amount, e.gpu_seconds,
           e.gpu_memory_gb_seconds, e.energy_wh, to_char(e.period_start AT TIME ZONE 'UTC', 'YYYY-MM') AS period,
           e.workload_id LIKE 'credit:%%' AS credit
    FROM eai.usage_events e, month
    WHERE e.usage_type <> 'llm' AND e.period_start >= first AND e.period_start < past
), ledger AS (
    SELECT period, tenant_id, currency, measure, sum(value) FILTER (WHERE side = 'allocated') AS left_side,
           sum(value) FILTER (WHERE side = 'booked') AS right_side
    FROM (
        SELECT 'allocated' AS side, period, tenant_id, currency, amount, gpu_seconds, gpu_memory_gb_seconds, energy_wh
        FROM allocated
        UNION ALL
        SELECT 'allocated', period, tenant_id, currency, amount, gpu_seconds, gpu_memory_gb_seconds, energy_wh
        FROM events WHERE credit
        UNION ALL
        SELECT 'booked', period, tenant_id, currency, amount, gpu_seconds, gpu_memory_gb_seconds, energy_wh FROM events
    ) both_sides CROSS JOIN LATERAL (VALUES ('amount', amount), ('gpu_seconds', gpu_seconds),
        ('gpu_memory_gb_seconds', gpu_memory_gb_seconds), ('energy_wh', energy_wh)) AS m (measure, value)
    GROUP BY GROUPING SETS ((period, tenant_id, currency, measure), (period, currency, measure))
), statements AS (
    SELECT s.* FROM eai.gpu_statements s, month
    WHERE (s.period || '-01')::timestamp AT TIME ZONE 'UTC' >= first
      AND (s.period || '-01')::timestamp AT TIME ZONE 'UTC' < past
), covered AS (
    SELECT s.period, e.tenant_id, e.currency, e.amount, e.gpu_seconds, e.gpu_memory_gb_seconds, e.energy_wh
    FROM statements s JOIN events e USING (period)
    WHERE NOT e.credit AND NOT (s.status = 'final' AND EXISTS (SELECT FROM eai.late_events l WHERE l.event_id = e.event_id))
    UNION ALL
    SELECT s.period, e.tenant_id, e.cost_currency, e.cost_amount, e.gpu_seconds, e.gpu_memory_gb_seconds, e.energy_wh
    FROM statements s JOIN eai.gpu_correction_events c USING (period) JOIN eai.usage_events e USING (event_id)
    WHERE e.usage_type <> 'llm'
), lines AS (
    SELECT period, tenant_id, currency, amount, gpu_seconds, gpu_memory_gb_seconds, energy_wh, 1 AS item, 0 AS correction
    FROM eai.gpu_allocation JOIN statements USING (period)
    UNION ALL
    SELECT period, tenant_id, currency, amount, gpu_seconds, gpu_memory_gb_seconds, energy_wh, 0, 1
    FROM eai.gpu_corrections JOIN statements USING (period)
), stated AS (
    SELECT period, tenant_id, currency, measure, grouping(tenant_id) = 1 AS everybody,
           sum(value) FILTER (WHERE side = 'covered') AS left_side,
           sum(value) FILTER (WHERE side = 'stated') AS right_side,
           sum(item) AS items, sum(correction) AS corrections
    FROM (
        SELECT 'covered' AS side, *, 0 AS item, 0 AS correction FROM covered
        UNION ALL SELECT 'stated', * FROM lines
    ) both_sides CROSS JOIN LATERAL (VALUES ('amount', amount), ('gpu_seconds', gpu_seconds),
        ('gpu_memory_gb_seconds', gpu_memory_gb_seconds), ('energy_wh', energy_wh)) AS m (measure, value)
    GROUP BY GROUPING SETS ((period, tenant_id, currency, measure), (period, currency, measure))
), totals AS (
    SELECT t.period, t.currency, measure, value
    FROM eai.gpu_allocation_totals t JOIN statements USING (period) CROSS JOIN LATERAL (VALUES ('amount', t.amount),
        ('gpu_seconds', t.gpu_seconds), ('gpu_memory_gb_seconds', t.gpu_memory_gb_seconds), ('energy_wh', t.energy_wh)
    ) AS m (measure, value)
), proofs AS (
    SELECT 'priced' AS proof, period, NULL::uuid AS tenant_id, currency, 'amount' AS measure, sum(cost) AS left_side,
           sum(amount) AS right_side, sum(rows) * 0.0000000005 AS tolerance, count(fault) = 0 AS holds,
           min(place || ' ' || fault) AS fault
    FROM judged GROUP BY period, currency
    UNION ALL
    SELECT 'booked', period, tenant_id, currency, measure, left_side, right_side, 0,
           coalesce(left_side, 0) = coalesce(right_side, 0), NULL
    FROM ledger
    UNION ALL
    SELECT 'stated', s.period, s.tenant_id, s.currency, s.measure, s.left_side, s.right_side, tolerance, CASE
        WHEN s.everybody AND coalesce(s.right_side, 0) <> coalesce(t.value, 0) THEN false
        WHEN tolerance = 0 OR s.everybody THEN abs(coalesce(s.left_side, 0) - coalesce(s.right_side, 0)) <= tolerance
        ELSE abs(coalesce(s.left_side, 0) - coalesce(s.right_side, 0)) < tolerance END,
        CASE WHEN s.everybody AND coalesce(s.right_side, 0) <> coalesce(t.value, 0)
             THEN 'the lines sum to ' || coalesce(s.right_side, 0) || ', the total says ' || coalesce(t.value, 0) END
    FROM stated s
    LEFT JOIN totals t ON s.everybody AND t.period = s.period AND t.measure = s.measure
        AND t.currency IS NOT DISTINCT FROM s.currency
    CROSS JOIN LATERAL (SELECT CASE WHEN s.measure <> 'amount' OR s.currency IS NULL THEN 0 ELSE
        (CASE WHEN s.everybody THEN 0.5 * ((s.items > 0)::int + (s.corrections > 0)::int)
              ELSE s.items + s.corrections END) / 10 ^ (%(digits)s::jsonb ->> s.currency)::int END AS tolerance) AS w
)
SELECT proof, period, tenant_id::text AS tenant_id, currency, measure, left_side, right_side,
       coalesce(right_side, 0) - coalesce(left_side, 0) AS difference, tolerance, holds, fault
FROM proofs ORDER BY period, proof, tenant_id NULLS FIRST, currency NULLS FIRST, measure
