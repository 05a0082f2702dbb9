-- Inputs of a month that say two things under one id (A5).
SELECT cluster, source, key, to_char(min(hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS hour,
       min(detail) AS detail
FROM eai.quarantine WHERE reason = 'conflict' AND hour >= %(first)s AND hour < %(past)s
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
