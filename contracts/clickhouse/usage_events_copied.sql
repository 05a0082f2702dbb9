CREATE TABLE IF NOT EXISTS {table}
(
    step      UInt64               COMMENT 'number of the note, from 1; the last one holds',
    seq       Int64                COMMENT 'all rows of Postgres up to this order of arrival are copied',
    event     String               COMMENT 'copied, repaired or rebuilt; compared (all) or checked (what was new); reset: the ledger has gone back',
    rows      UInt64               COMMENT 'rows that were written, or compared',
    copied_at DateTime64(6, 'UTC') COMMENT 'when; copied_at of the rows that were written (UTC)'
)
ENGINE = MergeTree
ORDER BY step
COMMENT 'What was done to usage_events, one note for each batch and comparison'
