CREATE OR REPLACE VIEW usage_events_final AS
SELECT day, substring(toString(day), 1, 7) AS period, *
FROM usage_events FINAL
COMMENT 'One usage event, each exactly once'
