-- Run %(run)s begins a stage of these hours: until it has published them, they are out of date (A32).
INSERT INTO eai.hour_reads (cluster, hour, run_id)
SELECT c.cluster, h.hour, %(run)s
FROM unnest(%(clusters)s::text[]) AS c (cluster) CROSS JOIN unnest(%(hours)s::timestamptz[]) AS h (hour)
ON CONFLICT (cluster, hour) DO UPDATE SET run_id = excluded.run_id WHERE hour_reads.run_id IS DISTINCT FROM excluded.run_id
