-- What the platform's tables said before (accounting.md section 2). A row of deployments, deployment_storage or
-- gpu_inventory that is changed or deleted stays in force for the hours that had begun by then: it moves to
-- <table>_before, and what replaces it counts from the next hour on. So no computation of an old hour bills it by what
-- a table says today.
--   * A change of the validity alone says when the same thing began or ended, and counts as given.
--   * A change together with another valid_from says itself since when.
--   * A row that is inserted in the place of one that was deleted (the same key and valid_from: a table loaded anew)
--     takes over where the deleted one ends.

CREATE TABLE eai.deployments_before (
    LIKE eai.deployments INCLUDING COMMENTS,
    in_force_until timestamptz NOT NULL
);
CREATE TABLE eai.deployment_storage_before (
    LIKE eai.deployment_storage INCLUDING COMMENTS,
    in_force_until timestamptz NOT NULL
);
CREATE TABLE eai.gpu_inventory_before (
    LIKE eai.gpu_inventory INCLUDING COMMENTS,
    in_force_until timestamptz NOT NULL
);
COMMENT ON TABLE eai.deployments_before IS 'One state that a row of deployments had before it was changed or deleted.';
COMMENT ON TABLE eai.deployment_storage_before IS
    'One state that a row of deployment_storage had before it was changed or deleted.';
COMMENT ON TABLE eai.gpu_inventory_before IS
    'One state that a row of gpu_inventory had before it was changed or deleted.';
COMMENT ON COLUMN eai.deployments_before.in_force_until IS 'what the row says counts until then, exclusive (UTC)';
COMMENT ON COLUMN eai.deployment_storage_before.in_force_until IS 'what the row says counts until then, exclusive (UTC)';
COMMENT ON COLUMN eai.gpu_inventory_before.in_force_until IS 'what the row says counts until then, exclusive (UTC)';

CREATE TABLE eai.replaced_rows (
    source text NOT NULL,
    cluster text,
    key text NOT NULL,
    valid_from timestamptz,
    in_force_until timestamptz NOT NULL,
    CONSTRAINT replaced_rows_key UNIQUE NULLS NOT DISTINCT (source, key, cluster, valid_from)
);
COMMENT ON TABLE eai.replaced_rows IS
    'Until when the changed and deleted rows of one thing count: what is inserted in their place counts from then on.';
COMMENT ON COLUMN eai.replaced_rows.source IS 'table';
COMMENT ON COLUMN eai.replaced_rows.cluster IS 'cluster of the rows';
COMMENT ON COLUMN eai.replaced_rows.key IS 'deployment or device of the rows';
COMMENT ON COLUMN eai.replaced_rows.valid_from IS 'valid_from of the rows (UTC)';
COMMENT ON COLUMN eai.replaced_rows.in_force_until IS 'the latest of their ends (UTC)';

-- The clock of a change is the database's. A bundle with a `now` of its own says it in eai.changed_at, which only the
-- pipeline may.
CREATE FUNCTION eai.remember() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $body$
DECLARE
    -- the argument is the column that, with cluster and valid_from, says which row is the same thing
    thing text = to_jsonb(CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END) ->> TG_ARGV[0];
    was text = to_jsonb(CASE TG_OP WHEN 'INSERT' THEN NEW ELSE OLD END) ->> TG_ARGV[0];
    validity text[] = ARRAY['valid_from', 'valid_to', 'in_force_from'];
    changed_at timestamptz = coalesce(
        CASE current_setting('role') WHEN 'eai_pipeline'
            THEN NULLIF(current_setting('eai.changed_at', true), '')::timestamptz END,
        clock_timestamp());
    begun timestamptz = date_trunc('hour', changed_at) + interval '1 hour';  -- the first hour that has not begun
    began timestamptz;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT r.in_force_until INTO began FROM eai.replaced_rows r
        WHERE r.source = TG_TABLE_NAME AND r.key = thing
          AND r.cluster IS NOT DISTINCT FROM NEW.cluster AND r.valid_from IS NOT DISTINCT FROM NEW.valid_from;
        NEW.in_force_from = began;
        PERFORM eai.note_change(TG_TABLE_NAME, NEW.cluster, thing,
                                coalesce(greatest(NEW.valid_from, began), '-infinity'),
                                coalesce(NEW.valid_to, 'infinity'));
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - validity = to_jsonb(NEW) - validity THEN
        NEW.in_force_from = OLD.in_force_from;
        IF NEW.valid_from IS DISTINCT FROM OLD.valid_from THEN
            PERFORM eai.note_change(TG_TABLE_NAME, NEW.cluster, thing, '-infinity', 'infinity');
        ELSIF NEW.valid_to IS DISTINCT FROM OLD.valid_to THEN
            PERFORM eai.note_change(TG_TABLE_NAME, NEW.cluster, thing,
                                    least(coalesce(OLD.valid_to, 'infinity'), coalesce(NEW.valid_to, 'infinity')),
                                    greatest(coalesce(OLD.valid_to, 'infinity'), coalesce(NEW.valid_to, 'infinity')));
        END IF;
        RETURN NEW;
    END IF;
    began = OLD.in_force_from;
    IF TG_OP = 'UPDATE' AND NEW.valid_from IS DISTINCT FROM OLD.valid_from AND NEW.valid_from IS NOT NULL THEN
        begun = NEW.valid_from;
        began = NULL;
    ELSIF OLD.in_force_from IS NULL OR OLD.in_force_from < begun THEN
        began = begun;
    END IF;
    IF OLD.in_force_from IS NULL OR OLD.in_force_from < begun THEN
        EXECUTE format('INSERT INTO eai.%I SELECT ($1).*, $2', TG_TABLE_NAME || '_before') USING OLD, begun;
        INSERT INTO eai.replaced_rows AS r (source, cluster, key, valid_from, in_force_until)
        VALUES (TG_TABLE_NAME, OLD.cluster, was, OLD.valid_from, begun)
        ON CONFLICT ON CONSTRAINT replaced_rows_key
            DO UPDATE SET in_force_until = greatest(r.in_force_until, excluded.in_force_until);
    END IF;
    PERFORM eai.note_change(TG_TABLE_NAME, OLD.cluster, was, begun, 'infinity');
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.in_force_from = began;
    PERFORM eai.note_change(TG_TABLE_NAME, NEW.cluster, thing, begun, 'infinity');
    RETURN NEW;
END $body$;
COMMENT ON FUNCTION eai.remember() IS 'keeps what a changed or deleted row said, and from when on the present one counts';

CREATE FUNCTION eai.refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    RAISE EXCEPTION 'eai.%: TRUNCATE refused: what its rows said would be forgotten', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = 'DELETE the rows.';
END $body$;
COMMENT ON FUNCTION eai.refuse_truncate() IS 'refuses to empty a table at once, which would pass by its memory';

DO $body$
DECLARE watched record;
BEGIN
    FOR watched IN
        SELECT * FROM (VALUES ('deployments', 'deployment_id'), ('deployment_storage', 'deployment_id'),
                              ('gpu_inventory', 'gpu_uuid')) AS t (name, key)
    LOOP
        EXECUTE format('CREATE TRIGGER remember BEFORE INSERT OR UPDATE OR DELETE ON eai.%I'
                       ' FOR EACH ROW EXECUTE FUNCTION eai.remember(%L)', watched.name, watched.key);
        EXECUTE format('CREATE TRIGGER not_at_once BEFORE TRUNCATE ON eai.%I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION eai.refuse_truncate()', watched.name);
    END LOOP;
END $body$;
