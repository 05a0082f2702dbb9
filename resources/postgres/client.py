"""The door to Postgres, schema `eai`: typed reads and bulk writes in Arrow, one transaction per publication.

Work runs as `eai_pipeline`: every transaction starts with SET LOCAL ROLE, so row-level security and the missing rights
on the ledger hold whatever login the URL names, and nothing of it stays on a pooled connection. Connections come from
SQLAlchemy's small pool (checked before use, safe across fork).

Belongs here: what the pipeline stores and reads. Does not: what is computed (accounting), DDL (contracts/migrations),
starting a server (embedded). Rules: A1 (instants to milliseconds), A5 (arrival order), A22, A34.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, cast
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import rfc8785
import sqlalchemy as sa
from psycopg import sql
from psycopg.abc import Params
from psycopg.pq import TransactionStatus

from finops_pipeline.accounting.audit.chain import GENESIS, policy_sha256
from finops_pipeline.accounting.money.policies import comparable, completed
from finops_pipeline.contracts import lake, migrations
from finops_pipeline.contracts.policy import FIELDS, PolicyError
from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.anchor import Anchor
from finops_pipeline.resources.postgres.copy import Connection, incoming, select, with_constant
from finops_pipeline.resources.postgres.errors import CONNECT_SECONDS, shown, translated

ROLE = "eai_pipeline"
HOUR = timedelta(hours=1)
REACH = timedelta(hours=24)

_APPLICATION = "finops_pipeline"
_WORK = sql.SQL(
    "SET LOCAL ROLE eai_pipeline; SET LOCAL TimeZone = 'UTC'; SET LOCAL lock_timeout = '600s'; SET LOCAL jit = off"
)
_PLATFORM = (
    "workload_events",
    "deployments",
    "token_usage",
    "allocation_policies",
    "deployment_storage",
    "gpu_inventory",
)
_IN_ARRIVAL_ORDER = frozenset({"workload_events", "usage_events", "quarantine"})
_WITHOUT_HOLDER = frozenset({"gpu_samples", "gpu_usage", "findings"})
_KEYS = frozenset(
    (
        "cluster",
        "hour",
        "window_start",
        "workload_id",
        "gpu_model",
        "deployment_id",
        "gpu_uuid",
        "mig_instance",
        "tenant_id",
        "usage_type",
        "kind",
        "subject",
        "placed_class",
    )
)


class Database:
    """Schema `eai` of one database.

    `url` is a Postgres URL for work; its user must be a member of `eai_pipeline`. `admin_url` is for `migrate()`, the
    same URL unless given. Neither shows its password in `repr` or in an error. `anchor` follows the audit log: each
    transaction that appends to it brings the file up to it, after its commit (A34).
    """

    def __init__(self, url: str, *, admin_url: str | None = None, anchor: Anchor | None = None) -> None:
        self._url = _parsed(url)
        self._admin_url = self._url if admin_url is None else _parsed(admin_url)
        self.anchor = anchor
        self._appending: set[int] = set()

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)})"

    @cached_property
    def _engine(self) -> sa.Engine:
        return _engine(self._url)

    def close(self) -> None:
        """Close the pooled connections; the next use opens new ones."""
        self._engine.dispose()

    def migrate(self) -> None:
        """Bring schema `eai` to this program's version, in one transaction; with nothing to do it is one quick look.

        UsageError where the user may not, or the database is newer than the program.
        """
        engine = self._engine if self._admin_url == self._url else _engine(self._admin_url)
        try:
            with translated(self._admin_url), engine.begin() as connection:
                found = migrations.revision(connection)
                if found is not None and found > migrations.HEAD:
                    raise UsageError(
                        f"{shown(self._url)}: schema eai is at version {found}, newer than this program's"
                        f" {migrations.HEAD}: update finops_pipeline"
                    )
                if found != migrations.HEAD:
                    migrations.upgrade(connection)
                if self._url.username and self._url.username != self._admin_url.username:
                    worker = connection.dialect.identifier_preparer.quote(self._url.username)
                    connection.execute(sa.text(f"GRANT {ROLE} TO {worker}"))
        finally:
            if engine is not self._engine:
                engine.dispose()

    # Transactions

    def refuse_privileged(self) -> None:
        """UsageError if the login could get around row-level security, or become a role that can: the ledger's tenants
        are then kept apart by nothing but this program's good behaviour.
        """
        with translated(self._url), self._engine.connect() as connection:
            found = connection.execute(
                sa.text(
                    "SELECT current_user, rolname, rolsuper FROM pg_roles WHERE (rolsuper OR rolbypassrls)"
                    " AND pg_has_role(current_user, oid, 'MEMBER') ORDER BY rolname <> current_user, rolname LIMIT 1"
                )
            ).one_or_none()
        if found is not None:
            login, role, above = found
            raise UsageError(
                f"EAI_DATABASE_URL: {login} is {'' if role == login else f'a member of {role}, '}"
                f"{'a superuser' if above else 'a role with BYPASSRLS'}, which FINOPS_PRODUCTION refuses: name a login that"
                " is only a member of eai_pipeline"
            )

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """One transaction as `eai_pipeline` on a pooled connection: committed at the end, rolled back on any error.

        `snapshot` makes it read-only and all its queries see one instant. Raises SourceError (`transient` says
        whether another try may help) or UsageError for what a user can fix; other database errors are defects.
        """
        appended = False
        with translated(self._url):
            pooled = self._engine.raw_connection()
            connection = cast(Connection, pooled.driver_connection)
            try:
                if snapshot:
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(_WORK)
                yield connection
                connection.commit()
                appended = id(connection) in self._appending
            except BaseException:
                if connection.info.transaction_status == TransactionStatus.ACTIVE:
                    pooled.invalidate()  # interrupted in a statement: the server rolls back once we are gone
                elif not connection.closed:
                    connection.rollback()
                raise
            finally:
                self._appending.discard(id(connection))
                pooled.close()
        if appended:
            self.follow_anchor()

    def hour_lock(self, connection: Connection, cluster: str, hour: datetime) -> None:
        """Wait to be the only writer of this hour until the transaction ends; take several hours in ascending order.

        Its month cannot be closed or reopened meanwhile. Take it before anything of the hour is written.
        """
        hour = hour.astimezone(UTC)
        _lock(connection, f"month|{hour:%Y-%m}", shared=True)
        _lock(connection, f"hour|{cluster}|{hour:%Y-%m-%dT%H:%M:%SZ}")

    def month_lock(self, connection: Connection, period: str) -> None:
        """Wait until nobody writes an hour of the month `period`, and keep it so until the transaction ends."""
        _lock(connection, f"month|{period}")

    def statements_lock(self, connection: Connection) -> None:
        """Wait to be the only one who publishes, closes or reopens a statement; take it before `month_lock`."""
        _lock(connection, "statements")

    def credits_lock(self, connection: Connection, cluster: str) -> None:
        """Wait to be the only one who proposes or decides credits of a cluster; take it after the hours' locks."""
        _lock(connection, f"credits|{cluster}")

    # Reading

    def query(
        self,
        statement: str | sql.Composable,
        params: Params | None = None,
        *,
        schema: pa.Schema | None = None,
        connection: Connection | None = None,
    ) -> pa.Table:
        """The rows of a SELECT as Arrow, in a snapshot of its own or in the transaction of `connection`.

        With `schema`, columns are cast to it (instants half-even to its unit; a decimal that does not fit is an
        error). Without, numeric becomes decimal128(38, the most fractional digits seen), timestamptz microseconds UTC,
        arrays list<string>, everything unknown a string.
        """
        if connection is not None:
            return select(connection, statement, params, schema)
        with self.transaction(snapshot=True) as own:
            return select(own, statement, params, schema)

    def rows(self, statement: str, params: Params | None = None) -> list[dict[str, Any]]:
        """The rows of a small SELECT as Python values, instants in UTC, in a snapshot of its own.

        For commands that answer at once: without Arrow, which loads pandas with the first column that it makes (0.5 s).
        """
        with self.transaction(snapshot=True) as connection:
            return _python_rows(connection, sql.SQL(statement), params)

    def read_hours(
        self, table: str, cluster: str | None, start: datetime, end: datetime, *, connection: Connection | None = None
    ) -> pa.Table:
        """A result table's rows of [start, end) in its lake schema, of one cluster or of all.

        The tenant is null where nobody holds the time.
        """
        schema = lake.TABLES[table]
        holder = sql.SQL("CASE WHEN attributed THEN tenant_id END AS tenant_id")
        statement = sql.SQL(
            "SELECT {} FROM eai.{} AS t WHERE cluster = coalesce(%s, cluster) AND hour >= %s AND hour < %s ORDER BY {}"
        )
        bound = statement.format(
            sql.SQL(", ").join(
                holder if name == "tenant_id" and table in _WITHOUT_HOLDER else sql.Identifier(name)
                for name in schema.names
            ),
            sql.Identifier(table),
            sql.SQL(", ").join(sql.SQL("t.{}").format(_ordered(name)) for name in schema.names if name in _KEYS),
        )
        return self.query(bound, (cluster, start, end), schema=schema, connection=connection)

    def read_policies(self, connection: Connection | None = None) -> pa.Table:
        """All policies (ALLOCATION_POLICIES), by id."""
        return self.query(_platform_sql("allocation_policies"), schema=lake.ALLOCATION_POLICIES, connection=connection)

    def policies(self) -> list[dict[str, Any]]:
        """All policies as Python values, by id: `read_policies` without Arrow (see `rows`)."""
        return self.rows(_platform_sql("allocation_policies"))

    def read_platform(
        self,
        cluster: str,
        start: datetime,
        end: datetime,
        *,
        default_cluster: bool,
        labels: Collection[str] = (),
        billable: Collection[str] = ("running",),
    ) -> dict[str, pa.Table]:
        """What the platform recorded that the hours of [start, end) can need, as one snapshot, in the lake's schemas.

        `workload_events`: all before end + 24 h of the workloads that have one in [start - 24 h, end + 24 h), whose last
        state is one of `billable` or in doubt (A5), or whose label (`namespace/pod`) is one of `labels`, in order of
        arrival.
        `token_usage`: [start - 24 h, end + 24 h), in order of arrival (before: A27's `proportional`; after: A5's
        `future`). Both also hold every other row with the id of one of these, so that a conflict looks the same from
        every hour. The other tables are whole. `default_cluster`: rows without a cluster are this one's.
        """
        with self.transaction() as connection:
            _lock(connection, "workloads")
            connection.execute(sql_file("fold_workloads"))
        scope = {
            "cluster": cluster,
            "default": default_cluster,
            "from": start - REACH,
            "to": end + REACH,
            "labels": sorted(labels),
            "billable": sorted(billable),
        }
        with self.transaction(snapshot=True) as connection:
            return {name: select(connection, _platform_sql(name), scope, lake.TABLES[name]) for name in _PLATFORM}

    # Which hours are out of date (A32); the scheme is told in contracts/migrations/versions/0001/watch.sql

    def begin_stage(self, clusters: Sequence[str], hours: Sequence[datetime], run_id: str) -> None:
        """Note that a run begins a stage of these hours: they are out of date until it has published them."""
        with self.transaction() as connection:
            connection.execute(
                sql_file("begin_stage"), {"clusters": list(clusters), "hours": list(hours), "run": run_id}
            )

    def begin_reading(self, cluster: str, hours: Sequence[datetime], run_id: str) -> None:
        """Note that a run reads the hours' records; call it before the snapshot that it reads them in."""
        with self.transaction() as connection:
            self.fold_changes(connection)
            connection.execute(sql_file("begin_reading"), {"cluster": cluster, "hours": list(hours), "run": run_id})

    def settle_hour(self, connection: Connection, cluster: str, hour: datetime, run_id: str) -> None:
        """Publish an hour: what the run had seen when it read the records no longer makes it out of date."""
        connection.execute(sql_file("settle_hour"), {"cluster": cluster, "hour": hour, "run": run_id})

    def fold_changes(self, connection: Connection) -> None:
        """Mark the hours that inputs were written for since they were read. Other readers wait until the commit."""
        _lock(connection, "inputs")
        connection.execute(sql_file("fold_changes"))

    def hours_to_recompute(self, connection: Connection | None = None) -> list[dict[str, Any]]:
        """Published hours that may be out of date: cluster, hour, reason, published_at; ascending (A16, A32)."""
        if connection is None:
            with self.transaction() as own:
                return self.hours_to_recompute(own)
        self.fold_changes(connection)
        return _python_rows(connection, sql.SQL(sql_file("hours_to_recompute")))

    # Writing

    def copy(self, connection: Connection, table: str, data: pa.Table) -> int:
        """Append `data` to `eai.<table>` in bulk; its columns must be columns of the table. Returns the row count.

        COPY FROM is refused under row-level security, hence by way of a temporary table.
        """
        if data.num_rows == 0:
            return 0
        ordered = table in _IN_ARRIVAL_ORDER
        with incoming(connection, table, data, ordered=ordered) as columns:
            statement = sql.SQL("INSERT INTO eai.{0} ({1}) SELECT {1} FROM incoming").format(
                sql.Identifier(table), columns
            )
            if ordered:
                statement += sql.SQL(" ORDER BY ordinal")
            return connection.execute(statement).rowcount

    def replace(self, connection: Connection, table: str, data: pa.Table, **key: object) -> int:
        """Delete the rows whose columns equal `key`, then `copy` the data, an empty one too. Returns its row count."""
        condition = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key)
        connection.execute(
            sql.SQL("DELETE FROM eai.{} WHERE {}").format(sql.Identifier(table), condition), list(key.values())
        )
        return self.copy(connection, table, data)

    def replace_hour(
        self, connection: Connection, table: str, cluster: str, hours: Sequence[datetime], data: pa.Table
    ) -> int:
        """Replace all rows of these hours of a cluster by `data`, an empty result too, under the hours' locks.

        Returns the row count.

        `data` may lack `cluster`, and `hour` if there is just one; rows outside `hours` are a ValueError. Rows of
        nobody in `gpu_sample_runs`, `gpu_usage` and `findings` must have passed through `attributed`.
        """
        data = with_constant(data, "cluster", cluster)
        if len(hours) == 1:
            data = with_constant(data, "hour", hours[0], lake.INSTANT)
        _require_inside(table, data, cluster, hours)
        for hour in sorted(hours):
            self.hour_lock(connection, cluster, hour)
        if table == "gpu_sample_runs":
            self._create_sample_partitions(connection, hours)
        for first, past in _spans(hours):
            connection.execute(
                sql.SQL("DELETE FROM eai.{} WHERE cluster = %s AND hour >= %s AND hour < %s").format(
                    sql.Identifier(table)
                ),
                (cluster, first, past),
            )
        return self.copy(connection, table, data)

    def _create_sample_partitions(self, connection: Connection, hours: Sequence[datetime]) -> None:
        """In a transaction of its own, so that no other cluster's publication waits for this one's."""
        names = sorted({f"gpu_sample_runs_{hour.astimezone(UTC):%Y%m%d}" for hour in hours})
        missing = connection.execute(
            "SELECT FROM unnest(%s::text[]) AS name WHERE to_regclass('eai.' || name) IS NULL", [names]
        ).fetchone()
        if missing is not None:
            with self.transaction() as own:
                for first, past in _spans(hours):
                    own.execute("SELECT eai.create_gpu_sample_partitions(%s, %s)", (first, past))

    def drop_samples(self, before: datetime) -> int:
        """Retention: drop the UTC days of `eai.gpu_samples` before that of `before`. Returns how many."""
        with self.transaction() as connection:
            row = connection.execute("SELECT eai.drop_gpu_sample_partitions(%s)", [before]).fetchone()
        return int(row[0]) if row else 0

    # Platform records from files

    def load_platform(
        self, cluster: str, tables: Mapping[str, pa.Table], *, now: datetime | None = None
    ) -> dict[str, int]:
        """Bring a bundle's tables (lake schemas, by lake name) into the database, all or nothing.

        Returns the rows that are new, per table. Logs (`workload_events`, `token_usage`) and policies get the rows
        whose whole content is not there yet, in the order of the file: the same bundle twice adds nothing, and
        conflicting rows (A5) keep their order. State (`deployments`, `deployment_storage`, `gpu_inventory`) becomes
        what the bundle says for this cluster: a later export of a disk with its end filled in is the same disk. What a
        row said before counts for the hours that had begun at `now`, the database's clock unless given (section 2).
        A table that is not given stays as it is.
        """
        added = {}
        with self.transaction() as connection:
            _lock(connection, f"load|{cluster}")
            connection.execute(
                "SELECT set_config('eai.changed_at', %s, true)", ["" if now is None else now.isoformat()]
            )
            for table, data in sorted(tables.items(), key=lambda entry: entry[0] == "allocation_policies"):
                try:
                    added[table] = self._load(connection, cluster, table, data)
                except psycopg.IntegrityError as error:
                    raise UsageError(f"{table}: {error.diag.message_primary}") from None
        return added

    def _load(self, connection: Connection, cluster: str, table: str, data: pa.Table) -> int:
        here = with_constant(data, "cluster", cluster)
        match table:
            case "allocation_policies":
                return len(self.add_policies(connection, data.to_pylist(), table))
            case "workload_events":
                return _append_new(connection, table, here)
            case "token_usage":
                events = with_constant(here, "usage_type", "llm")
                return _append_new(connection, "usage_events", with_constant(events, "source", "bundle"))
            case "deployments" | "deployment_storage" | "gpu_inventory":
                if table == "deployments":
                    _require_unique(table, ("deployment_id", "valid_from"), data)
                return _replace_state(connection, table, cluster, here)
            case _:
                raise ValueError(f"{table} is not a table of the platform")

    def add_policies(
        self, connection: Connection, documents: Sequence[Mapping[str, Any]], where: str
    ) -> list[dict[str, Any]]:
        """Insert the policies that are not there yet, and return them: `new_policies`, then `store_policies`."""
        self.policies_lock(connection)
        _, new = self.new_policies(connection, documents, where, {}, datetime.now(UTC))
        self.store_policies(connection, new)
        return new

    def new_policies(
        self,
        connection: Connection,
        documents: Sequence[Mapping[str, Any]],
        where: str,
        models: Mapping[str, str],
        now: datetime,
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """The ids of the policies, and those that are not there yet, completed (see `completed`).

        `where` names the file in errors. UsageError for a policy that is not valid, or one whose id is taken by other
        content (A22).
        """
        stored = self.read_policies(connection).to_pylist()
        try:
            policies = completed(
                documents, stored, where, models, now.replace(minute=0, second=0, microsecond=0) + HOUR
            )
        except PolicyError as error:
            raise UsageError(str(error)) from None
        known = {policy["id"]: policy for policy in stored}
        new = []
        for policy in policies:
            booked = known.setdefault(policy["id"], policy)
            if booked is policy:
                new.append(policy)
                if policy["status"] != "active":
                    raise UsageError(
                        f"{where}: policy {policy['id']}: status is {policy['status']}: a new policy is active; to end one:"
                        " finops policies end ID --from HOUR"
                    )
            for field in FIELDS:
                if comparable(field, booked[field]) != comparable(field, policy[field]):
                    raise UsageError(
                        f"{where}: policy {policy['id']}: {field} is {policy[field]}, but this policy exists with"
                        f" {booked[field]}; policies are immutable: give the change a new id and effective_from, or end"
                        f" this one: finops policies end {policy['id']} --from HOUR"
                    )
        return [policy["id"] for policy in policies], new

    def store_policies(
        self, connection: Connection, new: Sequence[Mapping[str, Any]], reason: str | None = None
    ) -> None:
        """Insert new policies, and log them with the `reason` for hours that they price anew (A34): last in a transaction."""
        if not new:
            return
        self.copy(connection, "allocation_policies", pa.Table.from_pylist(list(new), lake.ALLOCATION_POLICIES))
        payload: dict[str, Any] = {"policies": {policy["id"]: policy_sha256(policy) for policy in new}}
        payload |= {} if reason is None else {"retroactive": reason}
        self.append_audit(connection, "policy.added", payload, datetime.now(UTC))

    def policies_lock(self, connection: Connection) -> None:
        """Wait to be the only one who adds or ends policies."""
        _lock(connection, "policies")

    def end_policy(self, connection: Connection, policy_id: str, end: datetime, now: datetime) -> None:
        """Set the end of a policy, once, to an hour that has not begun (A22), and log it. UsageError if it cannot be."""
        self.policies_lock(connection)
        stored = self.read_policies(connection).to_pylist()
        policy = next((row for row in stored if row["id"] == policy_id), None)
        if policy is None:
            raise UsageError(f"policy {policy_id}: there is none with this id; `finops policies list` shows all")
        if policy["effective_to"] is not None:
            raise UsageError(
                f"policy {policy_id}: it ends at {policy['effective_to']:%Y-%m-%dT%H:%M:%SZ} already, and an end is set once"
            )
        if end <= now:
            raise UsageError(
                f"policy {policy_id}: {end:%Y-%m-%dT%H:%M:%SZ} has begun at {now:%Y-%m-%dT%H:%M:%SZ}: end it from an hour"
                " that has not, so that no hour before changes its price (A22)"
            )
        if end <= policy["effective_from"]:
            raise UsageError(
                f"policy {policy_id}: it begins at {policy['effective_from']:%Y-%m-%dT%H:%M:%SZ}: end it after that"
            )
        connection.execute("UPDATE eai.allocation_policies SET effective_to = %s WHERE id = %s", (end, policy_id))
        ended = policy | {"effective_to": end}
        payload = {"policies": {policy_id: policy_sha256(ended)}, "effective_to": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
        self.append_audit(connection, "policy.ended", payload, datetime.now(UTC))

    # Audit

    def append_audit(
        self, connection: Connection, kind: str, payload: Mapping[str, Any], occurred_at: datetime
    ) -> dict[str, Any]:
        """Append an entry to the hash chain (A34) and return it (contracts/v1/audit-event.schema.json).

        Call it last in a transaction: other writers wait from here to the commit.
        """
        _lock(connection, "audit")
        last = connection.execute("SELECT seq, entry_sha256 FROM eai.audit_events ORDER BY seq DESC LIMIT 1").fetchone()
        occurred_at = occurred_at.astimezone(UTC)
        entry: dict[str, Any] = {
            "schema_version": "1.0",
            "seq": 1 if last is None else last[0] + 1,
            "occurred_at": occurred_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "kind": kind,
            "payload": dict(payload),
            "previous_sha256": GENESIS if last is None else last[1],
        }
        row = connection.execute(
            "INSERT INTO eai.audit_events (seq, occurred_at, kind, previous_sha256, entry_sha256, document)"
            " SELECT %s, %s, %s, %s, encode(sha256(convert_to(d, 'UTF8')), 'hex'), d FROM (SELECT %s::text AS d) AS t"
            " RETURNING entry_sha256",
            (entry["seq"], occurred_at, kind, entry["previous_sha256"], rfc8785.dumps(entry).decode()),
        ).fetchone()
        if row is None:
            raise SourceError(f"{shown(self._url)}: the audit entry was not stored", transient=False)
        self._appending.add(id(connection))
        return {**entry, "entry_sha256": row[0]}

    def follow_anchor(self) -> None:
        """Bring the anchor file, if there is one, up to the audit log; AnchorError where the two disagree (A34)."""
        if self.anchor is not None:
            with self.transaction(snapshot=True) as connection:
                self.anchor.follow(
                    lambda seq: (
                        (int(row[0]), str(row[1]))
                        for row in connection.execute(
                            "SELECT seq, entry_sha256 FROM eai.audit_events WHERE seq >= %s ORDER BY seq", [seq]
                        )
                    )
                )


def attributed(data: pa.Table, platform_tenant: str | UUID) -> pa.Table:
    """`gpu_sample_runs`, `gpu_usage` or `findings` as stored: rows of nobody belong to the platform tenant and say so."""
    owner: Any = pc.coalesce(data["tenant_id"], pa.scalar(str(platform_tenant)))
    stored = data.set_column(data.schema.get_field_index("tenant_id"), "tenant_id", owner)
    return stored.append_column("attributed", data["tenant_id"].is_valid())


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(re.sub(r"^postgres://", "postgresql://", url.strip()))
    except (sa.exc.ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise UsageError("EAI_DATABASE_URL is not a Postgres URL: write postgresql://user:password@host:5432/database")
    return parsed.set(drivername="postgresql+psycopg")


def _engine(url: sa.URL) -> sa.Engine:
    defaults = {"connect_timeout": str(CONNECT_SECONDS), "application_name": _APPLICATION}
    return sa.create_engine(
        url.update_query_dict({name: value for name, value in defaults.items() if name not in url.query}),
        connect_args={"prepare_threshold": None, "keepalives_idle": 30, "tcp_user_timeout": 60_000},
        pool_size=4,
        max_overflow=4,
        pool_pre_ping=True,
    )


def _platform_sql(table: str) -> str:
    return sql_file(f"platform_{table}")


def _python_rows(connection: Connection, statement: sql.SQL, params: Params | None = None) -> list[dict[str, Any]]:
    """Rows without Arrow, instants in UTC."""
    found = connection.execute(statement, params)
    names = [column.name for column in found.description or ()]
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in found
    ]


@cache
def sql_file(name: str) -> str:
    """The statement in `resources/postgres/sql/<name>.sql`."""
    return files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def _lock(connection: Connection, name: str, *, shared: bool = False) -> None:
    function = sql.SQL("pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock")
    connection.execute(sql.SQL("SELECT {}(hashtextextended(%s, 0))").format(function), [f"eai|{name}"])


def _ordered(name: str) -> sql.Composable:
    """Byte order, so that a result does not depend on the server's locale."""
    if name in {"hour", "window_start", "tenant_id"}:
        return sql.Identifier(name)
    return sql.SQL('{} COLLATE "C"').format(sql.Identifier(name))


def _spans(hours: Sequence[datetime]) -> list[tuple[datetime, datetime]]:
    """Hours as half-open spans, consecutive ones joined."""
    spans: list[tuple[datetime, datetime]] = []
    for hour in sorted(set(hours)):
        if spans and spans[-1][1] == hour:
            spans[-1] = (spans[-1][0], hour + HOUR)
        else:
            spans.append((hour, hour + HOUR))
    return spans


def _require_inside(table: str, data: pa.Table, cluster: str, hours: Sequence[datetime]) -> None:
    """What is not deleted first must not be written: the next run would write it again."""
    if set(data["cluster"].unique().to_pylist()) - {cluster}:
        raise ValueError(f"{table}: rows of another cluster than {cluster}")
    outside: set[Any] = set(data["hour"].unique().to_pylist()) - set(hours)
    if outside:
        raise ValueError(f"{table}: rows outside the hours that are replaced: {sorted(outside)[:3]}")


def _require_unique(table: str, columns: tuple[str, ...], data: pa.Table) -> None:
    """Postgres does not say which key was doubled where row-level security is on."""
    seen = set()
    for row, value in enumerate(zip(*(data[name].to_pylist() for name in columns), strict=True), 1):
        if value in seen:
            named = ", ".join(f"{name} {part}" for name, part in zip(columns, value, strict=True) if part is not None)
            raise UsageError(f"{table}: row {row}: {named} is there twice; keep one of them")
        seen.add(value)


_THING = {"deployments": "deployment_id", "deployment_storage": "deployment_id", "gpu_inventory": "gpu_uuid"}
"""State table -> the column that, with `valid_from`, says which row is the same thing."""


def _replace_state(connection: Connection, table: str, cluster: str, data: pa.Table) -> int:
    """Make the cluster's rows of a state table those of `data`; what is the same stays untouched. Returns the new ones."""
    rest = [name for name in data.schema.names if name not in {"cluster", "valid_from", _THING[table]}]
    with incoming(connection, table, data) as columns:
        return connection.execute(
            sql.SQL(sql_file("replace_state")).format(
                table=sql.Identifier(table),
                thing=sql.Identifier(_THING[table]),
                columns=columns,
                rest=sql.SQL(", ").join(map(sql.Identifier, rest)),
                there=sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in rest),
                given=sql.SQL(", ").join(sql.SQL("g.{}").format(sql.Identifier(name)) for name in rest),
            ),
            {"cluster": cluster},
        ).rowcount


def _append_new(connection: Connection, table: str, data: pa.Table) -> int:
    """Append the rows whose whole content `eai.<table>` does not hold yet, in their order, equal ones once."""
    if data.num_rows == 0:
        return 0
    with incoming(connection, table, data, ordered=True) as columns:
        connection.execute("ANALYZE incoming")
        return connection.execute(
            sql.SQL(
                "INSERT INTO eai.{table} ({columns})"
                " SELECT {columns} FROM (SELECT {columns}, min(ordinal) AS ordinal FROM incoming GROUP BY {columns}) i"
                " WHERE NOT EXISTS (SELECT FROM eai.{table} t WHERE t.event_id = i.event_id{kind} AND {same})"
                " ORDER BY ordinal"
            ).format(
                table=sql.Identifier(table),
                columns=columns,
                kind=sql.SQL(" AND t.usage_type = 'llm'" if table == "usage_events" else ""),
                same=sql.SQL(" AND ").join(
                    sql.SQL("t.{0} IS NOT DISTINCT FROM i.{0}").format(sql.Identifier(name))
                    for name in data.schema.names
                ),
            )
        ).rowcount
