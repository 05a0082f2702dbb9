-- Run %(run)s publishes the hour: what it had seen when it read the records is settled (A32).
WITH known AS (
    INSERT INTO eai.hour_reads (cluster, hour) VALUES (%(cluster)s, %(hour)s) ON CONFLICT DO NOTHING
)
DELETE FROM eai.stale_hours s USING eai.hour_reads r
WHERE s.cluster = %(cluster)s AND s.hour = %(hour)s AND r.cluster = s.cluster AND r.hour = s.hour
  AND r.reader = %(run)s AND s.mark <= r.marks_seen
