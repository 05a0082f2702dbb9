-- What deployment_storage says and said before, each with the span in which it counts (section 2).
SELECT * FROM (
    SELECT deployment_id, size_gb,
           greatest(valid_from, in_force_from) AS valid_from, least(valid_to, in_force_until) AS valid_to
    FROM (
        SELECT *, NULL::timestamptz AS in_force_until FROM eai.deployment_storage
        UNION ALL
        SELECT * FROM eai.deployment_storage_before
    ) AS d
    WHERE cluster = %(cluster)s OR (cluster IS NULL AND %(default)s)
) AS counted
WHERE (valid_from <= valid_to) IS NOT FALSE
ORDER BY deployment_id COLLATE "C", valid_from, valid_to, size_gb
