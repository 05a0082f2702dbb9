-- What gpu_inventory says and said before, each with the span in which it counts (section 2).
SELECT * FROM (
    SELECT node, gpu_uuid, model,
           greatest(valid_from, in_force_from) AS valid_from, least(valid_to, in_force_until) AS valid_to
    FROM (
        SELECT *, NULL::timestamptz AS in_force_until FROM eai.gpu_inventory
        UNION ALL
        SELECT * FROM eai.gpu_inventory_before
    ) AS d
    WHERE cluster = %(cluster)s OR (cluster IS NULL AND %(default)s)
) AS counted
WHERE (valid_from <= valid_to) IS NOT FALSE
ORDER BY gpu_uuid COLLATE "C", valid_from, valid_to, node COLLATE "C", model COLLATE "C"
