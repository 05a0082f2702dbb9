-- What deployments say and said before, each with the span in which it counts (section 2). Of two rows in force at an hour the
-- first counts: one of the cluster itself before one without a cluster, then the one that says the latest valid_from.
SELECT deployment_id, mode, owner_tenant_id, namespace, pod_pattern, model,
       greatest(valid_from, in_force_from) AS valid_from, least(valid_to, in_force_until) AS valid_to
FROM (
    SELECT *, NULL::timestamptz AS in_force_until FROM eai.deployments
    UNION ALL
    SELECT * FROM eai.deployments_before
) d
WHERE (cluster = %(cluster)s OR (cluster IS NULL AND %(default)s))
  AND (greatest(valid_from, in_force_from) < least(valid_to, in_force_until)) IS NOT FALSE
ORDER BY deployment_id COLLATE "C", cluster NULLS LAST, d.valid_from DESC NULLS LAST, in_force_until, d.valid_to,
         in_force_from
