-- Events that an open month's statement lists beside its own items, in order of booking: those booked into the final
-- months before it (first parameter) after their close, which no final statement lists, and its own credits (A33).
WITH listed AS (
    SELECT l.event_id FROM eai.late_events l
    WHERE l.period = ANY (%s) AND NOT EXISTS (
        SELECT FROM eai.gpu_correction_events c JOIN eai.gpu_statements s USING (period)
        WHERE s.status = 'final' AND c.event_id = l.event_id)
    UNION ALL
    SELECT e.event_id FROM eai.usage_events e
    WHERE e.workload_id LIKE 'credit:%%' AND e.usage_type <> 'llm' AND e.period_start >= %s AND e.period_start < %s
)
SELECT e.event_id, e.period_start AS hour, e.tenant_id::text AS tenant_id, e.deployment_id,
       e.cost_currency AS currency, e.allocation_policy_id AS policy_id, e.gpu_seconds, e.gpu_memory_gb_seconds,
       e.energy_wh, e.cost_amount AS amount, e.estimated
FROM listed JOIN eai.usage_events e USING (event_id) WHERE e.usage_type <> 'llm' ORDER BY e.seq
