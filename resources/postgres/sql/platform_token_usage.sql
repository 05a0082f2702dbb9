-- The gateway's token events of [%(from)s, %(to)s), in order of arrival, with every other copy of their ids (A5).
-- OFFSET 0 keeps the join as look-ups by index, whatever the planner guesses of their number.
WITH ids AS MATERIALIZED (
    SELECT DISTINCT event_id FROM eai.usage_events
    WHERE usage_type = 'llm' AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
      AND occurred_at >= %(from)s::timestamptz - interval '500 us'
      AND occurred_at < %(to)s::timestamptz - interval '500 us'
)
SELECT e.event_id, occurred_at, tenant_id, deployment_id, input_tokens, output_tokens, cached_tokens
FROM ids CROSS JOIN LATERAL (
    SELECT * FROM eai.usage_events
    WHERE usage_type = 'llm' AND event_id = ids.event_id
      AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
    OFFSET 0) e
ORDER BY seq
