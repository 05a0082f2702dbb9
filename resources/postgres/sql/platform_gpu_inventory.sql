SELECT node, gpu_uuid, model, valid_from, valid_to
FROM eai.gpu_inventory
WHERE cluster = %(cluster)s OR (cluster IS NULL AND %(default)s)
ORDER BY gpu_uuid COLLATE "C", valid_from, valid_to, node COLLATE "C", model COLLATE "C"
