-- Each tenant's part of each row, in whole units, by the largest remainder (A29): the parts sum exactly to the row.
-- Relations: priced, share(number, tenant_id, weight). Units are thousandths (seconds, GB-seconds), millionths (Wh,
-- GB-hours) and 1e-9 (amount); what a row does not know, its parts do not know either.
-- total x weight / whole is divided by hand in three steps, so that no product outgrows a HUGEINT (see too_large.sql):
-- total // whole first, then what it leaves without its last nine digits, then with them.
WITH weighed AS (
    SELECT s.number, s.tenant_id, s.weight, sum(s.weight) OVER row AS whole, count(*) OVER row AS tenants
    FROM share s
    WINDOW row AS (PARTITION BY s.number)
), total AS (
    SELECT number, hour_ms, (gpu_seconds * 1000)::HUGEINT AS gpu_seconds,
           (gpu_memory_gb_seconds * 1000)::HUGEINT AS gpu_memory_gb_seconds, (energy_wh * 1000000)::HUGEINT AS energy_wh,
           (storage_gb_hours * 1000000)::HUGEINT AS storage_gb_hours, (amount * 1000000000)::HUGEINT AS amount
    FROM priced
), tie AS (
    SELECT hour_ms, tenant_id, row_number() OVER (PARTITION BY hour_ms ORDER BY sha256(
        tenant_id || '|' || strftime(make_timestamp(hour_ms * 1000), '%Y-%m-%dT%H:%M:%SZ'))) AS place
    FROM (SELECT DISTINCT t.hour_ms, w.tenant_id FROM weighed w JOIN total t USING (number) WHERE w.tenants > 1)
), cell AS (
    SELECT * FROM (
        SELECT number, hour_ms, unnest([gpu_seconds, gpu_memory_gb_seconds, energy_wh, storage_gb_hours, amount]) AS total,
               unnest([1, 2, 3, 4, 5]) AS measure
        FROM total WHERE number IN (SELECT number FROM weighed WHERE tenants > 1)
    ) WHERE total IS NOT NULL OR measure = 1
), begun AS (
    SELECT c.number, c.measure, w.tenant_id, w.weight, w.whole, c.total, e.place,
           abs(c.total) // w.whole * w.weight AS quotient, abs(c.total) % w.whole % 1000000000 AS last_digits,
           abs(c.total) % w.whole // 1000000000 * w.weight AS product
    FROM cell c JOIN weighed w USING (number) JOIN tie e ON e.hour_ms = c.hour_ms AND e.tenant_id = w.tenant_id
), cut AS (
    SELECT number, measure, tenant_id, total, place, whole, quotient + product // whole * 1000000000 AS quotient,
           product % whole * 1000000000 + last_digits * weight AS product
    FROM begun
), served AS (
    SELECT number, measure, tenant_id,
           sign(total) * (quotient + product // whole + CASE
               WHEN row_number() OVER (one ORDER BY product % whole DESC, place) <=
                    abs(total) - sum(quotient + product // whole) OVER one THEN 1 ELSE 0 END) AS part
    FROM cut
    WINDOW one AS (PARTITION BY number, measure)
)
SELECT number, tenant_id, gpu_seconds, gpu_memory_gb_seconds, energy_wh, storage_gb_hours, amount
FROM weighed JOIN total USING (number)
WHERE tenants = 1
UNION ALL
SELECT number, tenant_id, max(part) FILTER (measure = 1), max(part) FILTER (measure = 2), max(part) FILTER (measure = 3),
       max(part) FILTER (measure = 4), max(part) FILTER (measure = 5)
FROM served
GROUP BY number, tenant_id
