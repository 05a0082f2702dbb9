-- Lifecycle events that the hours of [%(from)s + 24 h, %(to)s - 24 h) can need, in order of arrival: all before %(to)s of
-- each workload that has one in reach, may still run, or whose label was read, with every other copy of their ids (A5).
-- An instant is rounded half-even to milliseconds when it is read (A1): half a millisecond below a bound is on it.
WITH bounds AS (
    SELECT %(from)s::timestamptz - interval '500 us' AS begin, %(to)s::timestamptz - interval '500 us' AS past
), workloads AS (
    SELECT w.workload_id FROM eai.workloads w, bounds b
    WHERE (w.cluster = %(cluster)s OR (w.cluster IS NULL AND %(default)s)) AND w.first_at < b.past
      AND (w.last_at >= b.begin OR w.doubtful OR w.last_states && %(billable)s::text[])
    UNION
    SELECT e.workload_id FROM eai.workload_events e
    WHERE (e.cluster = %(cluster)s OR (e.cluster IS NULL AND %(default)s)) AND e.pod IS NOT NULL
      AND coalesce(e.namespace, '') || '/' || e.pod = ANY (%(labels)s::text[])
), events AS (
    SELECT e.seq, e.event_id FROM workloads JOIN eai.workload_events e USING (workload_id), bounds b
    WHERE (e.cluster = %(cluster)s OR (e.cluster IS NULL AND %(default)s)) AND e.occurred_at < b.past
), wanted AS (
    SELECT seq FROM events
    UNION
    SELECT c.seq FROM events JOIN eai.workload_events c USING (event_id)
    WHERE (c.cluster = %(cluster)s OR (c.cluster IS NULL AND %(default)s))
)
SELECT event_id, occurred_at, workload_id, tenant_id, deployment_id, namespace, pod, from_state, to_state, gpu_count,
       placed_class, node, gpu_uuids, reason
FROM wanted JOIN eai.workload_events USING (seq)
ORDER BY seq
