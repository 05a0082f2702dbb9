-- What people look at and decide: findings, credits, quotas, shares, and what was reported to whom.

CREATE TABLE eai.findings (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    workload_id text,
    tenant_id uuid NOT NULL,
    attributed boolean NOT NULL,
    first_at timestamptz,
    last_at timestamptz,
    seconds numeric,
    detail text NOT NULL
);
COMMENT ON TABLE eai.findings IS 'Something in an hour that a person should look at. No finding changes an amount.';
COMMENT ON COLUMN eai.findings.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.findings.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.findings.kind IS 'what was found; docs/findings.md has the kinds';
COMMENT ON COLUMN eai.findings.subject IS 'device, board, workload or series that it is about';
COMMENT ON COLUMN eai.findings.workload_id IS 'workload concerned, if it is one';
COMMENT ON COLUMN eai.findings.tenant_id IS 'tenant concerned; see attributed';
COMMENT ON COLUMN eai.findings.attributed IS
    'false: it concerns no single tenant, and tenant_id is the platform tenant';
COMMENT ON COLUMN eai.findings.first_at IS
    'when it began in the hour; the last sign of life before a failure may be earlier (UTC)';
COMMENT ON COLUMN eai.findings.last_at IS 'when it ended in the hour, exclusive (UTC)';
COMMENT ON COLUMN eai.findings.seconds IS 'how much of the hour, in seconds; the kind says of what';
COMMENT ON COLUMN eai.findings.detail IS 'for a person: what was seen';
CREATE INDEX findings_hour ON eai.findings (cluster, hour);
CREATE INDEX findings_workload ON eai.findings (cluster, workload_id, hour);
CREATE INDEX findings_tenant ON eai.findings (tenant_id, hour);

CREATE TABLE eai.credit_proposals (
    id uuid PRIMARY KEY,
    cluster text NOT NULL,
    workload_id text NOT NULL,
    tenant_id uuid NOT NULL,
    deployment_id text NOT NULL,
    window_from timestamptz NOT NULL,
    window_to timestamptz NOT NULL,
    gpu_seconds numeric NOT NULL,
    amount numeric NOT NULL,
    currency text NOT NULL,
    reason text NOT NULL,
    shares jsonb NOT NULL,
    evidence jsonb NOT NULL,
    status text NOT NULL,
    proposed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_by text,
    decided_at timestamptz,
    decision_reason text,
    CONSTRAINT credit_proposals_reason CHECK (reason IN ('died_unseen', 'node_failure')),
    CONSTRAINT credit_proposals_status CHECK (status IN ('proposed', 'approved', 'rejected')),
    CONSTRAINT credit_proposals_window CHECK (window_from < window_to),
    CONSTRAINT credit_proposals_amount CHECK (amount >= 0 AND gpu_seconds >= 0),
    CONSTRAINT credit_proposals_decided
        CHECK (num_nulls(decided_by, decided_at, decision_reason) = CASE status WHEN 'proposed' THEN 3 ELSE 0 END)
);
COMMENT ON TABLE eai.credit_proposals IS
    'Time that a workload was charged without working, and what became of the proposal to give it back.';
COMMENT ON COLUMN eai.credit_proposals.id IS 'UUIDv5 of what it is about; the same on any machine';
COMMENT ON COLUMN eai.credit_proposals.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.credit_proposals.workload_id IS 'workload that was charged without working';
COMMENT ON COLUMN eai.credit_proposals.tenant_id IS 'tenant that was charged';
COMMENT ON COLUMN eai.credit_proposals.deployment_id IS 'deployment that was charged';
COMMENT ON COLUMN eai.credit_proposals.window_from IS 'last sign of life (UTC)';
COMMENT ON COLUMN eai.credit_proposals.window_to IS 'its end by its events, or how far it is known, exclusive (UTC)';
COMMENT ON COLUMN eai.credit_proposals.gpu_seconds IS 'GPU-seconds charged for the window';
COMMENT ON COLUMN eai.credit_proposals.amount IS 'what was charged for the window, in `currency`';
COMMENT ON COLUMN eai.credit_proposals.currency IS 'ISO 4217 code';
COMMENT ON COLUMN eai.credit_proposals.reason IS 'died_unseen, or node_failure';
COMMENT ON COLUMN eai.credit_proposals.shares IS 'hour -> fraction of its charge, like 2/3';
COMMENT ON COLUMN eai.credit_proposals.evidence IS 'last sign of life, event ids, findings';
COMMENT ON COLUMN eai.credit_proposals.status IS 'proposed, approved or rejected';
COMMENT ON COLUMN eai.credit_proposals.proposed_at IS 'when it was last computed (UTC)';
COMMENT ON COLUMN eai.credit_proposals.decided_by IS 'who decided';
COMMENT ON COLUMN eai.credit_proposals.decided_at IS 'when it was decided (UTC)';
COMMENT ON COLUMN eai.credit_proposals.decision_reason IS 'why';
CREATE INDEX credit_proposals_workload ON eai.credit_proposals (cluster, workload_id);
CREATE INDEX credit_proposals_window ON eai.credit_proposals (status, window_from);

CREATE TABLE eai.tenant_hours (
    cluster text NOT NULL,
    hour timestamptz NOT NULL,
    tenant_id uuid NOT NULL,
    placed_class text NOT NULL,
    gpu_seconds numeric NOT NULL,
    PRIMARY KEY (cluster, hour, tenant_id, placed_class)
);
COMMENT ON TABLE eai.tenant_hours IS
    'A tenant''s allocated time of one hour on one class, without storage and idle capacity.';
COMMENT ON COLUMN eai.tenant_hours.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.tenant_hours.hour IS 'start of the accounting hour (A1) (UTC)';
COMMENT ON COLUMN eai.tenant_hours.tenant_id IS 'tenant that was given the time (A25-A27)';
COMMENT ON COLUMN eai.tenant_hours.placed_class IS 'class that it ran on (A6); the model for pods without events';
COMMENT ON COLUMN eai.tenant_hours.gpu_seconds IS 'its part of the allocated time in GPU-seconds';
CREATE INDEX tenant_hours_tenant ON eai.tenant_hours (tenant_id, hour);
CREATE INDEX tenant_hours_hour ON eai.tenant_hours (hour);

CREATE VIEW eai.tenant_usage WITH (security_invoker = true) AS
SELECT tenant_id, placed_class, (hour AT TIME ZONE 'UTC')::date AS day,
       to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM') AS month, sum(gpu_seconds) AS gpu_seconds
FROM eai.tenant_hours GROUP BY 1, 2, 3, 4;
COMMENT ON VIEW eai.tenant_usage IS 'A tenant''s allocated time of one UTC day on one class.';
COMMENT ON COLUMN eai.tenant_usage.tenant_id IS 'tenant that was given the time (A25-A27)';
COMMENT ON COLUMN eai.tenant_usage.placed_class IS 'class that it ran on (A6); the model for pods without events';
COMMENT ON COLUMN eai.tenant_usage.day IS 'UTC day';
COMMENT ON COLUMN eai.tenant_usage.month IS 'UTC month of the day, like 2026-10';
COMMENT ON COLUMN eai.tenant_usage.gpu_seconds IS 'allocated time in GPU-seconds, over all clusters';

CREATE TABLE eai.quotas (
    tenant_id uuid NOT NULL,
    placed_class text,
    period text NOT NULL,
    gpu_hours numeric NOT NULL,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT quotas_key UNIQUE NULLS NOT DISTINCT (tenant_id, placed_class, period),
    CONSTRAINT quotas_period CHECK (period IN ('day', 'month')),
    CONSTRAINT quotas_gpu_hours CHECK (gpu_hours >= 0 AND gpu_hours < 'Infinity')
);
COMMENT ON TABLE eai.quotas IS
    'How many GPU-hours a tenant may use. The pipeline reports; whoever places workloads enforces.';
COMMENT ON COLUMN eai.quotas.tenant_id IS 'tenant that it limits';
COMMENT ON COLUMN eai.quotas.placed_class IS 'class that it is for; null is all together';
COMMENT ON COLUMN eai.quotas.period IS 'day or month, UTC';
COMMENT ON COLUMN eai.quotas.gpu_hours IS 'GPU-hours that the tenant may be given in the period';
COMMENT ON COLUMN eai.quotas.set_at IS 'when it was last set (UTC)';

CREATE TABLE eai.fair_shares (
    node text PRIMARY KEY,
    parent text,
    shares numeric NOT NULL,
    CONSTRAINT fair_shares_shares CHECK (shares >= 0 AND shares < 'Infinity'),
    CONSTRAINT fair_shares_parent CHECK (parent <> node)
);
COMMENT ON TABLE eai.fair_shares IS
    'Shares of accounts and tenants (docs/fairshare.md); a tenant that is not listed has one share.';
COMMENT ON COLUMN eai.fair_shares.node IS 'an account''s name, or a tenant''s uuid';
COMMENT ON COLUMN eai.fair_shares.parent IS 'account that it belongs to; null is right under the root';
COMMENT ON COLUMN eai.fair_shares.shares IS 'shares among those with the same parent';

CREATE TABLE eai.notifications (
    id text PRIMARY KEY,
    kind text NOT NULL,
    cluster text NOT NULL,
    workload_id text NOT NULL,
    day date NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE eai.notifications IS 'What was reported to people by the webhook, once per workload and UTC day.';
COMMENT ON COLUMN eai.notifications.id IS 'UUIDv5 of what was reported: a repeated delivery has the same';
COMMENT ON COLUMN eai.notifications.kind IS 'kind of finding';
COMMENT ON COLUMN eai.notifications.cluster IS 'cluster that the row belongs to';
COMMENT ON COLUMN eai.notifications.workload_id IS 'workload that it was about';
COMMENT ON COLUMN eai.notifications.day IS 'UTC day of the findings';
COMMENT ON COLUMN eai.notifications.sent_at IS 'when the receiver took it (UTC)';
