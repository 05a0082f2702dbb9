-- Published hours whose result may be out of date; the one definition, after fold_changes.sql. A gap that later readings may
-- have closed (A16), an input that was written after the hour's records were read, or stages of several runs (A32).
-- Computing such an hour again books the difference, if there is one.
SELECT h.cluster, h.hour, min(r.reason) AS reason, h.published_at
FROM eai.hour_runs h
CROSS JOIN LATERAL (
    SELECT 'later readings have arrived' AS reason
    WHERE h.provisional
      AND EXISTS (SELECT FROM eai.hour_runs l
                  WHERE l.cluster = h.cluster AND l.hour > h.hour AND l.hour <= h.hour + interval '24 hours'
                    AND l.published_at > h.published_at)
    UNION ALL
    SELECT s.reason FROM eai.stale_hours s WHERE s.cluster = h.cluster AND s.hour = h.hour
    UNION ALL
    SELECT 'its stages are not all of one run' FROM eai.hour_reads d
    WHERE d.cluster = h.cluster AND d.hour = h.hour
      AND (d.run_id <> h.run_id OR (d.reader <> h.run_id))
) r
GROUP BY h.cluster, h.hour, h.published_at
ORDER BY h.cluster, h.hour
