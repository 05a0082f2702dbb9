-- Bring eai.workloads up to the events that it does not know yet. Instants within a millisecond are one (A1, A3).
WITH taken AS (
    DELETE FROM eai.unfolded_events RETURNING seq
), fresh AS MATERIALIZED (
    SELECT e.*, max(occurred_at) OVER (PARTITION BY workload_id, cluster) AS latest
    FROM taken JOIN eai.workload_events e USING (seq)
), repeated AS MATERIALIZED (
    SELECT n.workload_id, n.cluster, o.workload_id AS other_id, o.cluster AS other_cluster
    FROM fresh n JOIN eai.workload_events o ON o.event_id = n.event_id AND o.seq <> n.seq
    WHERE (o.occurred_at, o.workload_id, o.tenant_id, o.deployment_id, o.namespace, o.pod, o.from_state, o.to_state,
           o.gpu_count, o.placed_class, o.node, o.gpu_uuids, o.reason)
          IS DISTINCT FROM
          (n.occurred_at, n.workload_id, n.tenant_id, n.deployment_id, n.namespace, n.pod, n.from_state, n.to_state,
           n.gpu_count, n.placed_class, n.node, n.gpu_uuids, n.reason)
), doubtful AS (
    SELECT workload_id, cluster FROM repeated UNION SELECT other_id, other_cluster FROM repeated
), seen AS (
    SELECT workload_id, cluster, min(occurred_at) AS first_at, max(occurred_at) AS last_at,
           array_agg(DISTINCT to_state) FILTER (WHERE occurred_at >= latest - interval '1 ms') AS last_states,
           coalesce(array_agg(DISTINCT coalesce(namespace, '') || '/' || pod) FILTER (WHERE pod IS NOT NULL), '{}')
               AS labels
    FROM fresh GROUP BY workload_id, cluster
), touched AS (
    SELECT workload_id, cluster FROM seen UNION SELECT workload_id, cluster FROM doubtful
), known AS (
    SELECT workload_id, cluster, first_at, last_at, last_states, labels, false AS doubtful FROM seen
    UNION ALL
    SELECT w.* FROM touched t CROSS JOIN LATERAL (
        SELECT workload_id, cluster, first_at, last_at, last_states, labels, doubtful FROM eai.workloads
        WHERE workload_id = t.workload_id AND cluster IS NOT DISTINCT FROM t.cluster
        OFFSET 0) w
), spans AS (
    SELECT k.*, max(last_at) OVER (PARTITION BY workload_id, cluster) AS latest FROM known k
)
INSERT INTO eai.workloads (workload_id, cluster, first_at, last_at, last_states, labels, doubtful)
SELECT s.workload_id, s.cluster, min(s.first_at), max(s.last_at),
       array_agg(DISTINCT state) FILTER (WHERE s.last_at >= s.latest - interval '1 ms'),
       coalesce(array_agg(DISTINCT label) FILTER (WHERE label IS NOT NULL), '{}'),
       bool_or(s.doubtful OR d.workload_id IS NOT NULL)
FROM spans s
CROSS JOIN LATERAL unnest(s.last_states) AS state
LEFT JOIN LATERAL unnest(s.labels) AS label ON true
LEFT JOIN doubtful d ON d.workload_id = s.workload_id AND d.cluster IS NOT DISTINCT FROM s.cluster
GROUP BY s.workload_id, s.cluster
ON CONFLICT (workload_id, cluster) DO UPDATE SET
    first_at = excluded.first_at, last_at = excluded.last_at, last_states = excluded.last_states,
    labels = excluded.labels, doubtful = excluded.doubtful
