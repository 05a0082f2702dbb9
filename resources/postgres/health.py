"""What a Postgres says about itself, for `finops doctor`: it looks, and never changes or installs anything.

Each method of `DatabaseProbe` is one question by itself, so that one that fails does not hide the others.
What belongs here: questions to the catalogue and to the platform's tables. What does not: judging the answers
(`finops_pipeline.doctor`), and the pipeline's own reading and writing (`resources.postgres`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.errors import CONNECT_SECONDS, translated

PIPELINE, OWNER, READER = ROLES = ("eai_pipeline", "eai_owner", "eai_reader")
SETS_ROLES_FROM = 160_000
"""From this version on membership of a role and becoming it are two rights."""


@dataclass(frozen=True)
class Server:
    version: int
    """like 150004"""
    text: str
    clock: datetime
    encoding: str
    in_recovery: bool
    encrypted: bool


@dataclass(frozen=True)
class Login:
    name: str
    superuser: bool
    bypasses_rls: bool
    may_create_schema: bool
    may_create_roles: bool


@dataclass(frozen=True)
class Role:
    """One of the group roles of `contracts/migrations/roles.sql`."""

    superuser: bool
    bypasses_rls: bool
    may_log_in: bool
    reachable: bool
    """the login may become it"""


@dataclass(frozen=True)
class TableAccess:
    """A table of schema `eai`; what `eai_pipeline` may do with it."""

    name: str
    readable: bool
    writable: bool
    of_tenants: bool
    """it has a tenant's column, and so needs row-level security"""
    secured: bool
    forced: bool
    policies: int


@dataclass(frozen=True)
class Platform:
    """What the platform has written."""

    policies: Sequence[Mapping[str, Any]]
    """id, deployment_pattern, gpu_model, status, effective_from, effective_to"""
    deployments: int
    shared: int
    last_event: datetime | None
    future_events: int
    event_clusters: frozenset[str]
    """named by the events of a week; those without one are the default cluster's"""
    last_tokens: datetime | None


class DatabaseProbe:
    """An open connection of the configured login; a context manager.

    Raises SourceError or UsageError where it cannot connect, with neither password nor traceback.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = sa.make_url(re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", url.strip()))
        except (sa.exc.ArgumentError, ValueError):
            raise UsageError("EAI_DATABASE_URL is not a Postgres URL") from None
        with translated(self._url):
            self._connection: Connection = psycopg.connect(
                self._url.render_as_string(hide_password=False),
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                application_name="finops doctor",
                options="-c statement_timeout=30s -c default_transaction_read_only=on",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def user(self) -> str:
        return self._url.username or ""

    def server(self) -> Server:
        row = self._row(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), clock_timestamp(),"
            " current_setting('server_encoding'), pg_is_in_recovery(),"
            " coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)"
        )
        return Server(*row)

    def login(self) -> Login:
        row = self._row(
            "SELECT rolname, rolsuper, rolbypassrls, has_database_privilege(current_database(), 'CREATE'),"
            " rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user"
        )
        return Login(*row)

    def roles(self, version: int) -> dict[str, Role]:
        """Those of ROLES that exist."""
        right = "SET" if version >= SETS_ROLES_FROM else "MEMBER"
        rows = self._rows(
            "SELECT rolname, rolsuper, rolbypassrls, rolcanlogin, pg_has_role(current_user, oid, %s)"
            " FROM pg_roles WHERE rolname = ANY(%s)",
            (right, list(ROLES)),
        )
        return {name: Role(*facts) for name, *facts in rows}

    def revision(self) -> str | None:
        """The version of schema `eai`; None where it is not installed."""
        (installed,) = self._row(
            "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'eai' AND c.relname = 'alembic_version')"
        )
        if not installed:
            return None
        with self._as_pipeline():
            rows = self._rows("SELECT version_num FROM eai.alembic_version")
        return str(rows[0][0]) if rows else None

    def tables(self) -> list[TableAccess]:
        """All tables of schema `eai`, a partitioned one once."""
        rows = self._rows(
            "SELECT c.relname, has_table_privilege(%(role)s, c.oid, 'SELECT'),"
            " has_table_privilege(%(role)s, c.oid, 'INSERT'),"
            " EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
            "         AND a.attname IN ('tenant_id', 'owner_tenant_id')),"
            " c.relrowsecurity, c.relforcerowsecurity, (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'eai' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1",
            {"role": PIPELINE},
        )
        return [TableAccess(*row) for row in rows]

    def unattributed(self) -> list[str]:
        """Pods of the newest published day that used GPUs and match no deployment (A18)."""
        with self._as_pipeline():
            rows = self._rows(
                "SELECT DISTINCT workload_id FROM eai.gpu_usage WHERE basis = 'samples' AND NOT attributed"
                " AND hour > (SELECT max(hour) FROM eai.gpu_usage) - interval '24 hours' ORDER BY 1"
            )
        return [str(workload) for (workload,) in rows]

    def platform(self) -> Platform:
        """What the platform has written, read as the pipeline reads it."""
        with self._as_pipeline():
            policies = self._rows(
                "SELECT id, deployment_pattern, gpu_model, status, effective_from, effective_to"
                " FROM eai.allocation_policies ORDER BY id"
            )
            names = ("id", "deployment_pattern", "gpu_model", "status", "effective_from", "effective_to")
            deployments, shared = self._row(
                "SELECT count(*), count(*) FILTER (WHERE mode = 'shared') FROM eai.deployments"
            )
            last, future = self._row(
                "SELECT max(occurred_at) FILTER (WHERE occurred_at <= now() + interval '5 minutes'),"
                " count(*) FILTER (WHERE occurred_at > now() + interval '5 minutes') FROM eai.workload_events"
                " WHERE occurred_at > now() - interval '31 days'"
            )
            clusters = self._rows(
                "SELECT DISTINCT cluster FROM eai.workload_events"
                " WHERE occurred_at > now() - interval '7 days' AND cluster IS NOT NULL"
            )
            (tokens,) = self._row(
                "SELECT max(occurred_at) FROM eai.usage_events"
                " WHERE usage_type = 'llm' AND occurred_at > now() - interval '31 days'"
            )
        return Platform(
            policies=[dict(zip(names, row, strict=True)) for row in policies],
            deployments=deployments,
            shared=shared,
            last_event=last,
            future_events=future,
            event_clusters=frozenset(name for (name,) in clusters),
            last_tokens=tokens,
        )

    @contextmanager
    def _as_pipeline(self) -> Iterator[None]:
        """One transaction that sees what the pipeline sees, without keeping anything on the connection."""
        with translated(self._url), self._connection.transaction(force_rollback=True):
            self._connection.execute("SET LOCAL ROLE eai_pipeline")
            yield

    def _rows(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        with translated(self._url):
            return self._connection.execute(statement, params).fetchall()

    def _row(self, statement: str) -> tuple[Any, ...]:
        return self._rows(statement)[0]
