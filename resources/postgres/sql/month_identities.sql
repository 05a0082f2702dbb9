-- Rows of a month in which an identity of A21 does not hold, or more is priced than there is (A36), from the stored
-- tables. Device time is stored exactly; GPU-time is rounded to 3 places row by row, so sums of it may differ by half a
-- thousandth a row, and by one more where an idle line gave whole milliseconds.
WITH used AS (
    SELECT cluster, hour, gpu_model, sum(gpu_seconds) AS gpu_seconds, count(*) AS rows
    FROM eai.gpu_usage WHERE basis = 'lifecycle' AND hour >= %(first)s AND hour < %(past)s GROUP BY 1, 2, 3
), fleet AS (
    SELECT * FROM eai.fleet_hours WHERE hour >= %(first)s AND hour < %(past)s
)
SELECT cluster, to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS hour, gpu_model, fault
FROM fleet f FULL JOIN used u USING (cluster, hour, gpu_model) CROSS JOIN LATERAL (VALUES
    (CASE WHEN visible <> held + stale + unattributed + idle + no_data
          THEN 'visible ' || visible || ' is not held + stale + unattributed + idle + no_data' END),
    (CASE WHEN abs(lifecycle - matched - unmatched) > 0.001
          THEN 'lifecycle ' || lifecycle || ' is not matched ' || matched || ' + unmatched ' || unmatched END),
    (CASE WHEN abs(coalesce(lifecycle, 0) - coalesce(gpu_seconds, 0)) > 0.0005 * (coalesce(rows, 0) + 2)
          THEN 'lifecycle ' || coalesce(lifecycle, 0) || ' is not the ' || coalesce(gpu_seconds, 0) || ' of usage' END),
    (CASE WHEN priced > visible_gpu
          THEN priced || ' GPU-seconds are priced as those of visible devices, which give ' || visible_gpu END)
) AS v (fault)
WHERE fault IS NOT NULL ORDER BY cluster, f.hour, gpu_model
