-- Noticing inputs that an hour does not know yet (A32): by the order of transactions, not by any clock.
--   1. A trigger of each input table writes what was written to input_changes. Writers never wait for each other.
--   2. Whoever reads or asks drains it under one lock (resources/postgres/sql/fold_changes.sql): each change becomes a
--      mark, in stale_hours, on the hours that were read before and that it touches.
--   3. A run first drains, notes that it reads the hour and which marks it has seen (begin_reading.sql), and only then
--      takes the snapshot that it reads in. What that snapshot does not show commits later, is drained later, and gets
--      a later mark. Publishing takes away the marks that the run had seen, and no others.
-- A record that commits between 3's note and its snapshot counts and is marked all the same: the hour is computed once
-- more, and nothing is booked.

CREATE TABLE eai.input_changes (
    source text NOT NULL,
    cluster text,
    key text,
    first_at timestamptz NOT NULL,
    past_at timestamptz NOT NULL
);
COMMENT ON TABLE eai.input_changes IS
    'Something written into an input table that no hour was compared with yet. Triggers fill it, the pipeline empties it.';
COMMENT ON COLUMN eai.input_changes.source IS 'input table; `pod` for the label of a lifecycle event';
COMMENT ON COLUMN eai.input_changes.cluster IS 'cluster; null is the default one, whichever that is';
COMMENT ON COLUMN eai.input_changes.key IS 'seq of a lifecycle event, else the deployment, device or policy';
COMMENT ON COLUMN eai.input_changes.first_at IS 'instant from which on it may count (UTC)';
COMMENT ON COLUMN eai.input_changes.past_at IS 'instant up to which it may count, exclusive (UTC)';

CREATE TABLE eai.hour_reads (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    run_id text,
    reader text,
    marks_seen bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, hour)
);
COMMENT ON TABLE eai.hour_reads IS 'Who last worked on an hour, and which marks in stale_hours its reader had seen.';
COMMENT ON COLUMN eai.hour_reads.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.hour_reads.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.hour_reads.run_id IS 'run that last began a stage of the hour';
COMMENT ON COLUMN eai.hour_reads.reader IS 'run that last read the platform''s records of the hour';
COMMENT ON COLUMN eai.hour_reads.marks_seen IS 'highest mark whose change that reading shows';

CREATE TABLE eai.stale_hours (
    mark bigint GENERATED ALWAYS AS IDENTITY,
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (cluster, hour, reason)
);
COMMENT ON TABLE eai.stale_hours IS 'An hour that was read before an input of it was written, and what was written.';
COMMENT ON COLUMN eai.stale_hours.mark IS 'order of noticing';
COMMENT ON COLUMN eai.stale_hours.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.stale_hours.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.stale_hours.reason IS 'what was written';

CREATE FUNCTION eai.note_change(source text, cluster text, key text, first_at timestamptz, past_at timestamptz)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    INSERT INTO eai.input_changes (source, cluster, key, first_at, past_at)
    SELECT source, cluster, key, first_at, past_at WHERE first_at < past_at
$body$;
COMMENT ON FUNCTION eai.note_change(text, text, text, timestamptz, timestamptz) IS
    'notes that an input of [first_at, past_at) was written';

CREATE FUNCTION eai.note_event_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO eai.input_changes (source, cluster, key, first_at, past_at)
    SELECT 'workload_events', cluster, seq::text, occurred_at, 'infinity' FROM written;
    RETURN NULL;
END $body$;
COMMENT ON FUNCTION eai.note_event_changes() IS 'notes which lifecycle events were written';

CREATE FUNCTION eai.note_token_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
BEGIN
    -- an instant within half a millisecond below the hour is read as the hour's (A1)
    INSERT INTO eai.input_changes (source, cluster, first_at, past_at)
    SELECT DISTINCT 'token_usage', cluster, date_trunc('hour', occurred_at),
           date_trunc('hour', occurred_at + interval '500 us') + interval '1 hour'
    FROM written WHERE usage_type = 'llm';
    RETURN NULL;
END $body$;
COMMENT ON FUNCTION eai.note_token_changes() IS 'notes the hours of which token events were written';

CREATE FUNCTION eai.note_policy_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM eai.note_change('allocation_policies', NULL, NEW.id, NEW.effective_from,
                                coalesce(NEW.effective_to, 'infinity'));
    ELSIF NEW.effective_to IS DISTINCT FROM OLD.effective_to THEN
        PERFORM eai.note_change('allocation_policies', NULL, NEW.id,
                                least(coalesce(OLD.effective_to, 'infinity'), coalesce(NEW.effective_to, 'infinity')),
                                greatest(coalesce(OLD.effective_to, 'infinity'), coalesce(NEW.effective_to, 'infinity')));
    END IF;
    RETURN NULL;
END $body$;
COMMENT ON FUNCTION eai.note_policy_changes() IS 'notes which policies were added or ended';

CREATE TRIGGER note_changes AFTER INSERT ON eai.workload_events REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION eai.note_event_changes();
CREATE TRIGGER note_changes AFTER INSERT ON eai.usage_events REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION eai.note_token_changes();
CREATE TRIGGER note_changes AFTER INSERT OR UPDATE ON eai.allocation_policies
    FOR EACH ROW EXECUTE FUNCTION eai.note_policy_changes();
