SELECT deployment_id, size_gb, valid_from, valid_to
FROM eai.deployment_storage
WHERE cluster = %(cluster)s OR (cluster IS NULL AND %(default)s)
ORDER BY deployment_id COLLATE "C", valid_from, valid_to, size_gb
