-- What of a month has no policy in force (A23): a row per cluster, deployment and model.
SELECT cluster, deployment_id, gpu_model, count(*) AS rows,
       to_char(min(hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS from_hour,
       to_char(max(hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS last_hour
FROM eai.gpu_cost_allocation WHERE amount IS NULL AND hour >= %(first)s AND hour < %(past)s
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
