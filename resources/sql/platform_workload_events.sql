-- Lifecycle events that the hours up to %(to)s - 24 h can need, in order of arrival, with every other copy of their ids
-- (A5). An instant is rounded half-even to milliseconds when it is read (A1): half a millisecond below a bound is on it.
SELECT event_id, occurred_at, workload_id, tenant_id, deployment_id, namespace, pod, from_state, to_state, gpu_count,
       placed_class, node, gpu_uuids, reason
FROM eai.workload_events
WHERE (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
  AND (occurred_at < %(to)s::timestamptz - interval '500 us'
       OR event_id IN (SELECT event_id FROM eai.workload_events
                       WHERE (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
                         AND occurred_at < %(to)s::timestamptz - interval '500 us'))
ORDER BY seq
