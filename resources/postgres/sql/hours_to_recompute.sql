-- Published hours whose result may be out of date: a gap that later readings may have closed (A16), or a record that was
-- written after the hour's records were read and counts in it. Computing such an hour again books the difference, if any (A32).
WITH published AS MATERIALIZED (
    SELECT h.cluster, h.hour, h.published_at, h.provisional, least(r.read_at, h.published_at) AS read_at
    FROM eai.hour_runs h LEFT JOIN eai.hour_reads r USING (cluster, hour)
), late_events AS (
    SELECT e.cluster, e.occurred_at, e.received_at,
           (SELECT min(n.occurred_at) FROM eai.workload_events n
            WHERE n.workload_id = e.workload_id AND n.occurred_at > e.occurred_at) AS until
    FROM eai.workload_events e
    WHERE e.received_at - e.occurred_at > interval '1 minute'
      AND e.received_at > (SELECT min(read_at) FROM published)
), late_tokens AS (
    SELECT DISTINCT u.cluster, date_trunc('hour', u.occurred_at) AS hour, max(u.booked_at) AS booked_at
    FROM eai.usage_events u
    WHERE u.usage_type = 'llm' AND u.booked_at - u.occurred_at > interval '1 minute'
      AND u.booked_at > (SELECT min(read_at) FROM published)
    GROUP BY 1, 2
)
SELECT h.cluster, h.hour, min(r.reason) AS reason, h.published_at
FROM published h
CROSS JOIN LATERAL (
    SELECT 'later readings have arrived' AS reason
    WHERE h.provisional
      AND EXISTS (SELECT FROM eai.hour_runs l
                  WHERE l.cluster = h.cluster AND l.hour > h.hour AND l.hour <= h.hour + interval '24 hours'
                    AND l.published_at > h.published_at)
    UNION ALL
    SELECT 'a lifecycle event was recorded late' FROM late_events e
    WHERE (e.cluster = h.cluster OR e.cluster IS NULL) AND e.received_at > h.read_at
      AND e.occurred_at < h.hour + interval '1 hour' AND (e.until IS NULL OR e.until > h.hour)
    UNION ALL
    SELECT 'tokens were recorded late' FROM late_tokens t
    WHERE (t.cluster = h.cluster OR t.cluster IS NULL) AND t.booked_at > h.read_at
      AND (t.hour = h.hour OR (t.hour BETWEEN h.hour - interval '24 hours' AND h.hour AND EXISTS
           (SELECT FROM eai.allocation_policies p WHERE p.idle_policy = 'proportional')))
    UNION ALL
    SELECT 'a policy was added' FROM eai.allocation_policies p
    WHERE p.created_at > h.read_at AND p.effective_from <= h.hour
      AND (p.effective_to IS NULL OR p.effective_to > h.hour)
) r
GROUP BY h.cluster, h.hour, h.published_at
ORDER BY h.cluster, h.hour
