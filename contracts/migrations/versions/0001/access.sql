-- Row-level security and grants. The pipeline sees every tenant by a policy of its own, not by BYPASSRLS.

DO $body$
DECLARE
    secured record;
    own text;
    written text;
BEGIN
    FOR secured IN
        SELECT * FROM (VALUES
            ('workload_events', 'tenant_id'),
            ('deployments', 'owner_tenant_id'),
            ('deployments_before', 'owner_tenant_id'),
            ('gpu_sample_runs', 'tenant_id'),
            ('gpu_usage', 'tenant_id'),
            ('gpu_cost_allocation', 'tenant_id'),
            ('gpu_allocation', 'tenant_id'),
            ('gpu_corrections', 'tenant_id'),
            ('usage_events', 'tenant_id'),
            ('findings', 'tenant_id'),
            ('credit_proposals', 'tenant_id'),
            ('tenant_hours', 'tenant_id'),
            ('quotas', 'tenant_id')
        ) AS t (name, tenant)
    LOOP
        own = format('%I = (SELECT NULLIF(current_setting(''app.tenant_id'', true), '''')::uuid)', secured.tenant);
        -- The ids of booked events are unique over all tenants: only the pipeline, who sees them all, may meet one.
        written = own || CASE secured.name WHEN 'usage_events' THEN ' AND usage_type = ''llm''' ELSE '' END;
        EXECUTE format('ALTER TABLE eai.%I ENABLE ROW LEVEL SECURITY', secured.name);
        EXECUTE format('ALTER TABLE eai.%I FORCE ROW LEVEL SECURITY', secured.name);
        EXECUTE format('CREATE POLICY tenant ON eai.%I USING (%s) WITH CHECK (%s)', secured.name, own, written);
        EXECUTE format('CREATE POLICY pipeline ON eai.%I TO eai_pipeline USING (true) WITH CHECK (true)', secured.name);
        EXECUTE format('GRANT SELECT ON eai.%I TO eai_reader', secured.name);
    END LOOP;
END $body$;

-- The trigger that keeps what deployments said runs as the owner, who may add to it and, as everywhere, sees nothing.
CREATE POLICY keeper ON eai.deployments_before FOR INSERT TO eai_owner WITH CHECK (true);

GRANT USAGE ON SCHEMA eai TO eai_pipeline, eai_reader;
GRANT SELECT ON eai.providers TO eai_reader;
GRANT SELECT ON eai.tenant_usage, eai.gpu_samples TO eai_pipeline, eai_reader;
GRANT SELECT ON eai.alembic_version TO eai_pipeline;
GRANT EXECUTE ON FUNCTION eai.is_reopening TO eai_pipeline;

-- append only
GRANT SELECT, INSERT ON
    eai.workload_events, eai.usage_events, eai.audit_events, eai.allocation_policies
TO eai_pipeline;
GRANT UPDATE (effective_to) ON eai.allocation_policies TO eai_pipeline;

-- replaced as a whole
GRANT SELECT, INSERT, UPDATE, DELETE ON
    eai.deployments, eai.deployment_storage, eai.gpu_inventory, eai.providers,
    eai.gpu_sample_runs, eai.gpu_usage, eai.gpu_idle, eai.fleet_hours, eai.gpu_cost_allocation, eai.quarantine,
    eai.hour_runs, eai.hour_reads, eai.stale_hours, eai.workloads,
    eai.gpu_statements, eai.gpu_allocation, eai.gpu_allocation_totals, eai.gpu_corrections, eai.gpu_correction_events,
    eai.findings, eai.credit_proposals, eai.tenant_hours, eai.quotas, eai.fair_shares, eai.notifications
TO eai_pipeline;

-- filled by triggers, emptied by the pipeline
GRANT SELECT, DELETE ON eai.late_events, eai.unfolded_events TO eai_pipeline;
GRANT SELECT, INSERT, DELETE ON eai.input_changes TO eai_pipeline;
GRANT SELECT ON eai.deployments_before, eai.deployment_storage_before, eai.gpu_inventory_before TO eai_pipeline;

COMMENT ON SCHEMA eai IS 'GPU usage, allocated cost and the append-only ledger of usage events';
COMMENT ON TABLE eai.alembic_version IS 'version of this schema';
COMMENT ON COLUMN eai.alembic_version.version_num IS 'revision of contracts/migrations';
