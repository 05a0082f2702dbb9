-- Functions and triggers. Guards hold for the owner too; grants alone bind only the other roles.

-- Daily partitions. ATTACH, unlike PARTITION OF, does not wait for writers of other days.
CREATE FUNCTION eai.create_gpu_sample_partitions(first timestamptz, past timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
DECLARE
    day timestamptz;
    partition text;
    made integer = 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('eai.gpu_sample_runs partitions', 0));
    FOR day IN SELECT generate_series(date_trunc('day', first), past - interval '1 us', interval '1 day') LOOP
        partition = 'gpu_sample_runs_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('eai.' || partition) IS NOT NULL;
        EXECUTE format('CREATE TABLE eai.%I (LIKE eai.gpu_sample_runs INCLUDING ALL)', partition);
        EXECUTE format('ALTER TABLE eai.%I ENABLE ROW LEVEL SECURITY', partition);
        EXECUTE format('ALTER TABLE eai.%I FORCE ROW LEVEL SECURITY', partition);
        EXECUTE format('COMMENT ON TABLE eai.%I IS %L', partition,
                       'One UTC day of eai.gpu_sample_runs. Read through eai.gpu_samples only.');
        EXECUTE format('ALTER TABLE eai.gpu_sample_runs ATTACH PARTITION eai.%I FOR VALUES FROM (%L) TO (%L)',
                       partition, day, day + interval '1 day');
        made = made + 1;
    END LOOP;
    RETURN made;
END $body$;

CREATE FUNCTION eai.drop_gpu_sample_partitions(before timestamptz) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
DECLARE
    partition text;
    dropped integer = 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('eai.gpu_sample_runs partitions', 0));
    FOR partition IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'eai.gpu_sample_runs'::regclass
          AND c.relname < 'gpu_sample_runs_' || to_char(before, 'YYYYMMDD')
    LOOP
        EXECUTE format('DROP TABLE eai.%I', partition);
        dropped = dropped + 1;
    END LOOP;
    RETURN dropped;
END $body$;

GRANT EXECUTE ON FUNCTION eai.create_gpu_sample_partitions(timestamptz, timestamptz) TO eai_pipeline;
COMMENT ON FUNCTION eai.create_gpu_sample_partitions(timestamptz, timestamptz) IS
    'makes the missing days of [first, past)';
GRANT EXECUTE ON FUNCTION eai.drop_gpu_sample_partitions(timestamptz) TO eai_pipeline;
COMMENT ON FUNCTION eai.drop_gpu_sample_partitions(timestamptz) IS
    'retention: drops the days before that of the instant';

CREATE FUNCTION eai.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    RAISE EXCEPTION 'eai.% is append only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Book a correction as a new row.';
END $body$;
DO $body$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['usage_events', 'audit_events', 'workload_events'] LOOP
        EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON eai.%I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()', name);
    END LOOP;
END $body$;

-- A policy's end may be set once (A22); nothing else of it ever changes.
CREATE FUNCTION eai.refuse_change_of_policy() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF OLD.effective_to IS NULL AND NEW.effective_to IS NOT NULL
        AND to_jsonb(NEW) - 'effective_to' = to_jsonb(OLD) - 'effective_to' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'eai.allocation_policies is append only: UPDATE of % refused', OLD.id
        USING ERRCODE = 'restrict_violation', HINT = 'Only its end may be set, once. Give a change an id of its own.';
END $body$;
CREATE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON eai.allocation_policies
    FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change();
CREATE TRIGGER ends_once BEFORE UPDATE ON eai.allocation_policies
    FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_policy();

CREATE FUNCTION eai.refuse_change_of_final() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    touched text[] = CASE TG_OP WHEN 'INSERT' THEN ARRAY[NEW.period]
                                WHEN 'DELETE' THEN ARRAY[OLD.period] ELSE ARRAY[OLD.period, NEW.period] END;
    closed text;
BEGIN
    SELECT s.period INTO closed FROM eai.gpu_statements s WHERE s.period = ANY (touched) AND s.status = 'final';
    IF FOUND AND NOT (TG_TABLE_NAME = 'gpu_statements' AND TG_OP = 'UPDATE' AND eai.is_reopening(closed)) THEN
        RAISE EXCEPTION 'the statement of % is final (A33): % of eai.% refused', closed, TG_OP, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation', HINT = 'Later differences are listed in the next open month.';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $body$;

CREATE FUNCTION eai.is_reopening(month text) RETURNS boolean LANGUAGE sql STABLE AS $body$
    SELECT coalesce((
        SELECT a.kind = 'month.reopened' AND a.payload ->> 'period' = month
           AND a.xmin::text = (txid_current() % 4294967296)::text
        FROM eai.audit_events a ORDER BY a.seq DESC LIMIT 1), false)
$body$;
DO $body$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'gpu_statements', 'gpu_allocation', 'gpu_allocation_totals', 'gpu_corrections', 'gpu_correction_events',
        'late_events'
    ] LOOP
        EXECUTE format('CREATE TRIGGER final_stays BEFORE %s ON eai.%I'
                       ' FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_final()',
                       CASE name WHEN 'late_events' THEN '' ELSE 'INSERT OR ' END || 'UPDATE OR DELETE', name);
        EXECUTE format('CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.%I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change()', name);
    END LOOP;
END $body$;

CREATE FUNCTION eai.note_late_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO eai.late_events (event_id, period)
    SELECT n.event_id, s.period FROM booked n
    JOIN eai.gpu_statements s
      ON s.status = 'final' AND s.period = to_char(n.period_start AT TIME ZONE 'UTC', 'YYYY-MM')
    WHERE n.usage_type <> 'llm';
    RETURN NULL;
END $body$;

CREATE FUNCTION eai.note_unfolded() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO eai.unfolded_events (seq) SELECT seq FROM written;
    RETURN NULL;
END $body$;

CREATE TRIGGER note_unfolded AFTER INSERT ON eai.workload_events REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION eai.note_unfolded();

CREATE TRIGGER note_late AFTER INSERT ON eai.usage_events REFERENCING NEW TABLE AS booked
    FOR EACH STATEMENT EXECUTE FUNCTION eai.note_late_events();

CREATE FUNCTION eai.refuse_change_of_decided() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF OLD.status <> 'proposed' THEN
        RAISE EXCEPTION 'credit % is %: % refused', OLD.id, OLD.status, TG_OP
            USING ERRCODE = 'restrict_violation', HINT = 'What was decided stays; propose another credit.';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $body$;

CREATE TRIGGER decided_stays BEFORE UPDATE OR DELETE ON eai.credit_proposals
    FOR EACH ROW EXECUTE FUNCTION eai.refuse_change_of_decided();

CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.credit_proposals
    FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_change();

COMMENT ON FUNCTION eai.refuse_change_of_decided() IS 'refuses a change of a credit that was approved or rejected';
COMMENT ON FUNCTION eai.refuse_change() IS 'refuses UPDATE, DELETE and TRUNCATE of what is append only';
COMMENT ON FUNCTION eai.refuse_change_of_final() IS
    'refuses a change of a final month (A33), unless it is being reopened';
COMMENT ON FUNCTION eai.is_reopening(text) IS
    'whether this transaction has just said in the audit log that it reopens the month';
COMMENT ON FUNCTION eai.note_unfolded() IS 'keeps which lifecycle events eai.workloads does not know yet';
COMMENT ON FUNCTION eai.note_late_events() IS 'keeps which usage events were booked into a final month (A33)';
