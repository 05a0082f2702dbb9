-- A row of the cluster itself stands before one without a cluster.
SELECT DISTINCT ON (deployment_id COLLATE "C")
       deployment_id, mode, owner_tenant_id, namespace, pod_pattern, model
FROM eai.deployments
WHERE cluster = %(cluster)s OR (cluster IS NULL AND %(default)s)
ORDER BY deployment_id COLLATE "C", cluster NULLS LAST
