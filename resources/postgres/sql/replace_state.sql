-- Make the rows of a state table and cluster those of table `incoming`. Rows of one thing are paired in order: equal ones stay,
-- others are changed; what has no partner goes, or is new. The table's triggers keep what was before (section 2).
WITH there AS MATERIALIZED (
    SELECT ctid AS place, *, row_number() OVER (PARTITION BY {thing}, valid_from ORDER BY {rest}) AS n
    FROM eai.{table} WHERE cluster = %(cluster)s
), given AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY {thing}, valid_from ORDER BY {rest}) AS n FROM incoming
), gone AS (
    DELETE FROM eai.{table} t USING there o
    WHERE t.ctid = o.place AND NOT EXISTS (
        SELECT FROM given g WHERE g.{thing} = o.{thing} AND g.valid_from IS NOT DISTINCT FROM o.valid_from AND g.n = o.n)
), changed AS (
    UPDATE eai.{table} t SET ({rest}) = ROW({given})
    FROM there o JOIN given g ON g.{thing} = o.{thing} AND g.valid_from IS NOT DISTINCT FROM o.valid_from AND g.n = o.n
    WHERE t.ctid = o.place AND ({there}) IS DISTINCT FROM ({given})
)
INSERT INTO eai.{table} ({columns})
SELECT {columns} FROM given g WHERE NOT EXISTS (
    SELECT FROM there o WHERE g.{thing} = o.{thing} AND g.valid_from IS NOT DISTINCT FROM o.valid_from AND g.n = o.n)
