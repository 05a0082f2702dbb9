-- Turn what was written into input tables into marks on the hours that were read before and that it touches (A32; the
-- scheme is told in contracts/migrations/versions/0001/watch.sql). Under the lock "inputs", so that whoever reads an hour
-- has either seen a change or is marked with it.
WITH taken AS (
    DELETE FROM eai.input_changes RETURNING *
), last AS (
    SELECT max(hour) AS hour FROM eai.hour_reads
), events AS MATERIALIZED (
    -- A lifecycle event counts until the next event of its workload; what it says of pod and node is taken on (A3, A36)
    -- until one that says that too. The hour in which that one lies is in it: with a start, a stop is no longer set aside.
    SELECT c.cluster, c.key, e.namespace, e.pod, e.occurred_at AS first_at,
           coalesce(n.occurred_at + interval '1 ms', 'infinity') AS past_at
    FROM taken c
    JOIN eai.workload_events e ON e.seq = c.key::bigint
    LEFT JOIN LATERAL (
        SELECT n.occurred_at FROM eai.workload_events n
        WHERE n.workload_id = e.workload_id AND n.occurred_at > e.occurred_at
          AND (e.pod IS NULL OR n.pod IS NOT NULL) AND (e.node IS NULL OR n.node IS NOT NULL)
        ORDER BY n.occurred_at LIMIT 1) n ON true
    WHERE c.source IN ('workload_events', 'pod') AND e.occurred_at < (SELECT hour FROM last) + interval '25 hours'
), in_flight AS MATERIALIZED (
    SELECT r.cluster, r.hour FROM eai.hour_reads r LEFT JOIN eai.hour_runs h USING (cluster, hour)
    WHERE r.reader IS NOT NULL AND r.reader IS DISTINCT FROM h.run_id
), touched AS (
    SELECT r.cluster, r.hour, 'a lifecycle event was recorded late' AS reason
    FROM events e JOIN eai.hour_reads r
      ON r.hour > e.first_at - interval '1 hour' AND r.hour < e.past_at AND r.cluster = coalesce(e.cluster, r.cluster)
    UNION
    -- a pod that had no events until now was accounted by its samples (A18)
    SELECT u.cluster, u.hour, 'a lifecycle event was recorded late'
    FROM events e JOIN eai.gpu_usage u
      ON u.workload_id = coalesce(e.namespace, '') || '/' || e.pod AND u.basis = 'samples'
     AND u.hour > e.first_at - interval '25 hours' AND u.cluster = coalesce(e.cluster, u.cluster)
    UNION
    SELECT r.cluster, r.hour, 'tokens were recorded late'
    FROM taken c JOIN eai.hour_reads r ON r.cluster = coalesce(c.cluster, r.cluster) AND r.hour >= c.first_at
     AND r.hour < c.past_at + CASE WHEN EXISTS (SELECT FROM eai.allocation_policies WHERE idle_policy = 'proportional')
                                   THEN interval '24 hours' ELSE interval '0' END
    WHERE c.source = 'token_usage'
    UNION
    SELECT r.cluster, r.hour,
           CASE c.source WHEN 'allocation_policies' THEN 'a policy was added or ended'
                         WHEN 'deployment_storage' THEN 'a disk was recorded'
                         WHEN 'gpu_inventory' THEN 'the inventory was changed'
                         WHEN 'quarantine' THEN 'a conflict was decided' END
    FROM taken c JOIN eai.hour_reads r
      ON r.hour > c.first_at - interval '1 hour' AND r.hour < c.past_at AND r.cluster = coalesce(c.cluster, r.cluster)
    WHERE c.source IN ('allocation_policies', 'deployment_storage', 'gpu_inventory', 'quarantine')
    UNION
    -- of hours that are published, those in which something of the deployment is, or a pod that may be its
    SELECT r.cluster, r.hour, 'a deployment was recorded'
    FROM taken c JOIN eai.hour_reads r
      ON r.hour > c.first_at - interval '1 hour' AND r.hour < c.past_at AND r.cluster = coalesce(c.cluster, r.cluster)
    WHERE c.source = 'deployments'
      AND (EXISTS (SELECT FROM in_flight f WHERE f.cluster = r.cluster AND f.hour = r.hour)
           OR EXISTS (SELECT FROM eai.gpu_usage u WHERE u.cluster = r.cluster AND u.hour = r.hour
                      AND (u.deployment_id = c.key OR u.basis = 'samples'))
           OR EXISTS (SELECT FROM eai.usage_events t WHERE t.usage_type = 'llm' AND t.deployment_id = c.key
                      AND t.occurred_at >= r.hour - interval '24 hours' AND t.occurred_at < r.hour + interval '1 hour'))
), waiting AS (
    -- whether a label counts in an hour that is being computed shows when it is published
    INSERT INTO eai.input_changes (source, cluster, key, first_at, past_at)
    SELECT DISTINCT 'pod', e.cluster, e.key, e.first_at, e.past_at
    FROM events e JOIN in_flight f ON f.cluster = coalesce(e.cluster, f.cluster)
     AND f.hour > e.first_at - interval '25 hours' AND f.hour < e.first_at
    WHERE e.pod IS NOT NULL
)
INSERT INTO eai.stale_hours (cluster, hour, reason)
SELECT cluster, hour, reason FROM touched ORDER BY 1, 2, 3
ON CONFLICT (cluster, hour, reason) DO UPDATE SET mark = DEFAULT
