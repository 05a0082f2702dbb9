-- Lifecycle events that the hours of [%(from)s + 24 h, %(to)s - 24 h) can need, in order of arrival: all before %(to)s of
-- each workload that has one in reach, may still run, is new, or whose label was read, with every other copy of their ids (A5).
-- An instant is rounded half-even to milliseconds when it is read (A1): half a millisecond below a bound is on it.
-- OFFSET 0 keeps the joins as look-ups by index, whatever the planner guesses of their number.
WITH here AS NOT MATERIALIZED (
    SELECT * FROM eai.workloads
    WHERE (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
      AND first_at < %(to)s::timestamptz - interval '500 us'
), workloads AS MATERIALIZED (
    SELECT workload_id FROM here WHERE last_at >= %(from)s::timestamptz - interval '500 us'
    UNION SELECT workload_id FROM here WHERE doubtful
    UNION SELECT workload_id FROM here WHERE last_states && %(billable)s::text[]
    UNION SELECT e.workload_id FROM eai.unfolded_events JOIN eai.workload_events e USING (seq)
    UNION SELECT h.workload_id FROM unnest(%(labels)s::text[]) AS label CROSS JOIN LATERAL (
        SELECT workload_id FROM here WHERE labels @> ARRAY[label] OFFSET 0) h
), ids AS MATERIALIZED (
    SELECT DISTINCT e.event_id FROM workloads w CROSS JOIN LATERAL (
        SELECT event_id FROM eai.workload_events
        WHERE workload_id = w.workload_id AND occurred_at < %(to)s::timestamptz - interval '500 us'
          AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
        OFFSET 0) e
)
SELECT e.event_id, occurred_at, workload_id, tenant_id, deployment_id, namespace, pod, from_state, to_state, gpu_count,
       placed_class, node, gpu_uuids, reason
FROM ids CROSS JOIN LATERAL (
    SELECT * FROM eai.workload_events
    WHERE event_id = ids.event_id AND (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
    OFFSET 0) e
ORDER BY seq
