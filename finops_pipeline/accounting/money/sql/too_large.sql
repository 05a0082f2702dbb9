-- The first row that cannot be divided within a HUGEINT (below 1.7e38), judged in floating point beforehand: parts.sql forms
-- at most (total modulo the weights' sum) / 1e9 x weight, and twice the weights' sum x 1e9.
-- Relations: priced, share.
WITH total AS (
    SELECT number, hour_ms, deployment_id,
           greatest(coalesce(abs(gpu_seconds::DOUBLE), 0) * 1e3, coalesce(abs(gpu_memory_gb_seconds::DOUBLE), 0) * 1e3,
                    coalesce(abs(energy_wh::DOUBLE), 0) * 1e6, coalesce(abs(storage_gb_hours::DOUBLE), 0) * 1e6,
                    coalesce(abs(amount::DOUBLE), 0) * 1e9) AS units
    FROM priced
), weights AS (
    SELECT number, sum(weight::DOUBLE) AS whole, max(weight::DOUBLE) AS largest, bool_or(weight IS NULL) AS unknown
    FROM share GROUP BY number
)
SELECT hour_ms, deployment_id
FROM total JOIN weights USING (number)
WHERE unknown OR whole >= 5e28 OR units >= 1e37 OR least(units, whole) * largest >= 1e47
ORDER BY hour_ms, deployment_id
LIMIT 1
