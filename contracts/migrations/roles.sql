-- The group roles of schema `eai`. Run by the migration where its user may create roles; otherwise an administrator
-- runs this file once (psql -f roles.sql), and grants eai_owner and eai_pipeline to the login that migrates.
--   eai_owner     owns the schema; nobody works as it
--   eai_pipeline  writes results; sees every tenant by policy, without BYPASSRLS; cannot change the ledger
--   eai_reader    reads the rows of the tenant in app.tenant_id, and nothing without one. Whoever runs SQL as it may
--                 name any tenant: it is for a service that does set_config('app.tenant_id', ..., true) in each
--                 transaction, never for a tenant's own login
DO $roles$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['eai_owner', 'eai_pipeline', 'eai_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- another database of this server was being migrated at the same moment
            END;
        END IF;
    END LOOP;
    -- From Postgres 16 on, the creator of a role may administer it but not become it until this grant.
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
        FOREACH name IN ARRAY ARRAY['eai_owner', 'eai_pipeline'] LOOP
            BEGIN
                EXECUTE format('GRANT %I TO %I', name, current_user);
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;  -- granted by the administrator, or the next statement says that it is missing
            END;
        END LOOP;
    END IF;
END
$roles$;
