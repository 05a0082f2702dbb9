CREATE TABLE IF NOT EXISTS {table}
(
    step      UInt64               COMMENT 'number of the note, from 1; the last one holds',
    seq       Int64                COMMENT 'all rows of Postgres up to this order of arrival are copied',
    event     String               COMMENT 'what happened: copied, repaired, rebuilt or reset',
    rows      UInt64               COMMENT 'rows that were written',
    copied_at DateTime64(6, 'UTC') COMMENT 'copied_at of these rows (UTC)'
)
ENGINE = MergeTree
ORDER BY step
COMMENT 'One note for each batch that was copied to usage_events'
