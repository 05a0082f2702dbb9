-- Run %(run)s is about to read these hours; what is marked by now it will see. Under the lock "inputs", after a fold.
INSERT INTO eai.hour_reads (cluster, hour, run_id, reader, marks_seen)
SELECT %(cluster)s, h.hour, %(run)s, %(run)s,
       coalesce((SELECT max(mark) FROM eai.stale_hours s WHERE s.cluster = %(cluster)s AND s.hour = h.hour), 0)
FROM unnest(%(hours)s::timestamptz[]) AS h (hour)
ON CONFLICT (cluster, hour) DO UPDATE SET
    run_id = excluded.run_id, reader = excluded.reader, marks_seen = excluded.marks_seen
