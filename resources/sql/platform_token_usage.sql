-- The gateway's token events of [%(from)s, %(to)s), in order of arrival, with every other copy of their ids (A5).
SELECT event_id, occurred_at, tenant_id, deployment_id, input_tokens, output_tokens, cached_tokens
FROM eai.usage_events
WHERE usage_type = 'llm'
  AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
  AND (occurred_at >= %(from)s::timestamptz - interval '500 us'
       AND occurred_at < %(to)s::timestamptz - interval '500 us'
       OR event_id IN (SELECT event_id FROM eai.usage_events
                       WHERE usage_type = 'llm'
                         AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
                         AND occurred_at >= %(from)s::timestamptz - interval '500 us'
                         AND occurred_at < %(to)s::timestamptz - interval '500 us'))
ORDER BY seq
