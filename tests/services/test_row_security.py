"""Each known way around row-level security, on real servers: a check of the catalogue that names what is open to it,
the proof that it would, and what a tenant sees, writes and learns.

Belongs here: who sees what. Does not: what nobody may change (test_postgres.py, test_closing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import cast
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from tests.databases import Databases

ALICE = "a0000000-0000-4000-8000-00000000000a"
BOB = "b0000000-0000-4000-8000-00000000000b"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
STRANGER = "c0000000-0000-4000-8000-00000000000c"
EVERYBODY = {ALICE, BOB, PLATFORM}
TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
DAY = "gpu_sample_runs_20261001"

BY_TYPE = {"timestamp with time zone": TEN, "numeric": 1, "boolean": True, "integer": 15, "bigint": 1, "jsonb": "{}"}
"""A value that any column of the type takes; texts and uuids are the tenant's."""
BY_TABLE: dict[str, dict[str, object]] = {
    "credit_proposals": {"reason": "died_unseen", "status": "proposed", "window_to": TEN + timedelta(hours=1)},
    "deployments": {"mode": "shared"},
    "gpu_cost_allocation": {"usage_type": "gpu_local"},
    "gpu_sample_runs": {
        **{name: [1] for name in ("utilization_millionths", "memory_kib", "power_mw", "kind")},
        "methods": ["measured"],
        "estimates": [False],
    },
    "gpu_usage": {"basis": "samples"},
    "quotas": {"period": "day"},
    "usage_events": {"usage_type": "llm", "input_tokens": 1, "output_tokens": 1, "cached_tokens": 0},
}


@pytest.fixture(scope="module")
def databases(package: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres"), package=package) as found:
        yield found


@pytest.fixture(scope="module")
def url(databases: Databases) -> str:
    """The administrator's URL of a database where every table of tenants has a row of each."""
    url = databases.admin(databases.fresh())
    with psycopg.connect(url) as connection:
        connection.execute("SELECT eai.create_gpu_sample_partitions(%s, %s)", (TEN, TEN + timedelta(hours=1)))
        for relation in relations(connection, "r", "p"):
            fill(connection, relation)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")
    return url


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """The administrator's connection, whose work is rolled back."""
    with psycopg.connect(url) as opened, opened.transaction(force_rollback=True):
        yield opened


def relations(connection: Connection, *kinds: str) -> dict[str, str]:
    """The relations of schema `eai` with a tenant's column, and that column; a partitioned one once."""
    statement = (
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'eai'::regnamespace AND NOT c.relispartition AND c.relkind::text = ANY(%s)"
        " AND a.attname IN ('tenant_id', 'owner_tenant_id') ORDER BY 1"
    )
    return dict(connection.execute(statement, [list(kinds)]).fetchall())


def fill(connection: Connection, table: str) -> None:
    """One row of each tenant, with a value in every column that needs one."""
    columns = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'eai' AND table_name = %s"
        " AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'",
        [table],
    ).fetchall()
    for tenant in EVERYBODY:
        row = {name: BY_TYPE.get(kind, tenant) for name, kind in columns} | BY_TABLE.get(table, {})
        insert(connection, table, row)


def insert(connection: Connection, table: str, row: dict[str, object]) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier("eai", table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join([sql.Placeholder()] * len(row)),
    )
    connection.execute(statement, list(row.values()))


def become(connection: Connection, tenant: str | None = None, role: str = "eai_reader") -> None:
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    if tenant is not None:
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])


def answer(connection: Connection, statement: str | sql.Composed) -> set[str]:
    """The values of the one column that a statement selects."""
    return {str(value) for (value,) in connection.execute(statement)}


def seen(connection: Connection) -> dict[str, set[str]]:
    """The tenants that are seen in each relation."""
    return {
        name: answer(connection, sql.SQL("SELECT {} FROM eai.{}").format(sql.Identifier(column), sql.Identifier(name)))
        for name, column in relations(connection, "r", "p", "v").items()
    }


def everywhere(connection: Connection, tenants: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(relations(connection, "r", "p", "v"), tenants)


@contextmanager
def refused(connection: Connection, message: str = "^permission denied") -> Iterator[None]:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=message), connection.transaction():
        yield


# The catalogue

KEEPER = """(polname = 'keeper' AND relname = 'deployments_before' AND polcmd = 'a' AND polroles = ARRAY['eai_owner'::regrole::oid])"""
"""The owner may add, as the trigger of `deployments`, and sees nothing."""

TABLES = """(
    SELECT c.oid, c.relname, c.relispartition, c.relrowsecurity AND c.relforcerowsecurity AS forced,
           a.attname, a.attnotnull
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname LIKE '%tenant%'
    WHERE c.relnamespace = 'eai'::regnamespace AND c.relkind IN ('r', 'p')) AS tables"""
GRANTS = """(
    SELECT c.relname, c.relkind, c.relispartition, c.relrowsecurity, privilege_type, grantee,
           grantee = 'eai_pipeline'::regrole AS pipeline, grantee = 'eai_reader'::regrole AS reader
    FROM pg_class c, aclexplode(c.relacl)
    WHERE c.relnamespace = 'eai'::regnamespace AND grantee <> c.relowner) AS grants"""
RULE = """$$(tenant = ( SELECT (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid AS "nullif"))$$"""
LEAKS = {
    "not forced": f"SELECT relname FROM {TABLES} WHERE NOT forced",
    "tenant unknown": f"SELECT relname FROM {TABLES} WHERE NOT attnotnull",
    "other policies": f"""
        SELECT relname FROM {TABLES} LEFT JOIN pg_policy ON polrelid = tables.oid AND NOT {KEEPER},
            replace(pg_get_expr(polqual, polrelid), '(' || attname || ' ', '(tenant ') AS shown,
            replace(pg_get_expr(polwithcheck, polrelid), '(' || attname || ' ', '(tenant ') AS written
        WHERE NOT relispartition GROUP BY relname HAVING array_agg(polname::text ORDER BY polname)
            IS DISTINCT FROM ARRAY['pipeline', 'tenant'] OR NOT bool_and(CASE polname
                WHEN 'pipeline' THEN polroles = ARRAY['eai_pipeline'::regrole::oid]
                ELSE shown = {RULE} AND written IN ({RULE}, '(' || {RULE} || ' AND (usage_type = ''llm''::text))') END)""",
    "partition": f"SELECT relname FROM {GRANTS} WHERE relispartition",
    "view of its owner": """
        SELECT relname FROM pg_class WHERE relnamespace = 'eai'::regnamespace AND relkind = 'v'
            AND NOT coalesce(reloptions @> '{security_invoker=true}', false)""",
    "copy without policies": """
        SELECT relname FROM pg_class WHERE relnamespace = 'eai'::regnamespace AND relkind IN ('m', 'f')""",
    "readable without policies": f"""
        SELECT relname FROM {GRANTS} WHERE relkind IN ('r', 'p') AND NOT relrowsecurity AND NOT pipeline
            AND relname <> 'providers'""",
    "right past the policies": f"""
        SELECT relname FROM {GRANTS} WHERE privilege_type NOT IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')""",
    "writer or stranger": f"""
        SELECT relname FROM {GRANTS} WHERE NOT pipeline AND NOT (reader AND privilege_type = 'SELECT')""",
    # The pipeline may set a policy's end, once (A22): a trigger refuses every other change of the row.
    "right on a column": """
        SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        WHERE relnamespace = 'eai'::regnamespace AND attacl IS NOT NULL
            AND NOT (relname = 'allocation_policies' AND attname = 'effective_to'
                     AND attacl::text = '{eai_pipeline=w/eai_owner}')""",
    "sequence": f"SELECT relname FROM {GRANTS} WHERE relkind = 'S'",
    "foreign key": f"SELECT relname FROM {TABLES} JOIN pg_constraint ON tables.oid IN (conrelid, confrelid) AND contype = 'f'",
    "function for everybody": """
        SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))
        WHERE pronamespace = 'eai'::regnamespace AND grantee NOT IN (proowner, 'eai_pipeline'::regrole)""",
    "path of its caller": """
        SELECT proname FROM pg_proc WHERE pronamespace = 'eai'::regnamespace AND prosecdef
            AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)""",
    "other owner": """
        SELECT relname FROM pg_class WHERE relnamespace = 'eai'::regnamespace AND relowner <> 'eai_owner'::regrole
        UNION ALL
        SELECT proname FROM pg_proc WHERE pronamespace = 'eai'::regnamespace AND proowner <> 'eai_owner'::regrole""",
    "rule": """
        SELECT relname FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class
        WHERE relnamespace = 'eai'::regnamespace AND rulename <> '_RETURN'""",
    "default privileges": """
        SELECT grantee::regrole::name FROM pg_default_acl, aclexplode(defaclacl) WHERE grantee <> defaclrole""",
    "schema": """
        SELECT grantee::regrole::name FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'eai'
            AND grantee <> nspowner AND (privilege_type, grantee) NOT IN
                (('USAGE', 'eai_pipeline'::regrole), ('USAGE', 'eai_reader'::regrole))""",
    "role": """
        SELECT r.rolname FROM pg_roles r WHERE r.rolname LIKE 'eai_%' AND (
            r.rolbypassrls OR r.rolsuper OR r.rolcanlogin OR EXISTS (SELECT FROM pg_auth_members WHERE member = r.oid))""",
}


def leaks(connection: Connection) -> set[tuple[str, str]]:
    """Which leak, and what is open to it."""
    return {(leak, name) for leak, statement in LEAKS.items() for name in answer(connection, statement)}


@pytest.mark.parametrize("leak", LEAKS)
def test_the_schema_is_not_open_to(leak: str, connection: Connection) -> None:
    """One leak, in everything that the migration made."""
    assert answer(connection, LEAKS[leak]) == set()


def test_the_tables_of_tenants_are_known(connection: Connection) -> None:
    """A check that finds no tables finds no leak."""
    assert len(relations(connection, "r", "p")) == 13
    assert list(relations(connection, "v")) == ["gpu_samples", "tenant_usage"]


POLICY = "tenant_id = (SELECT NULLIF(current_setting('app.tenant_id', true), '')::uuid)"
NEW = f"""
    SET LOCAL ROLE eai_owner;
    CREATE TABLE eai.new (id text PRIMARY KEY, tenant_id uuid NOT NULL, amount numeric, n int GENERATED ALWAYS AS IDENTITY);
    ALTER TABLE eai.new ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY tenant ON eai.new USING ({POLICY}) WITH CHECK ({POLICY});
    CREATE POLICY pipeline ON eai.new TO eai_pipeline USING (true) WITH CHECK (true);
    GRANT SELECT ON eai.new TO eai_reader;
    GRANT SELECT, INSERT ON eai.new TO eai_pipeline;
    CREATE VIEW eai.seen WITH (security_invoker = true) AS SELECT tenant_id FROM eai.new;
    GRANT SELECT ON eai.seen TO eai_reader;
    CREATE FUNCTION eai.made() RETURNS SETOF uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
        AS 'SELECT tenant_id FROM eai.new';
    RESET ROLE"""


@dataclass(frozen=True)
class Hole:
    """A statement that makes a hole in what `NEW` makes, and a question by which Alice's reader then sees Bob's row."""

    leak: str
    name: str
    opened_by: str
    witness: str | None = None
    role: str = "eai_reader"


FOR_READER = "GRANT SELECT ON {0} TO eai_reader"
HOLES = [
    Hole("not forced", "new", "ALTER TABLE eai.new NO FORCE ROW LEVEL SECURITY", "TABLE eai.seen", "eai_owner"),
    Hole("not forced", "new", "ALTER TABLE eai.new DISABLE ROW LEVEL SECURITY", "TABLE eai.seen"),
    Hole("tenant unknown", "new", "ALTER TABLE eai.new ALTER tenant_id DROP NOT NULL"),
    Hole("other policies", "new", "CREATE POLICY more ON eai.new USING (true)", "TABLE eai.seen"),
    Hole("other policies", "new", "ALTER POLICY pipeline ON eai.new TO PUBLIC", "TABLE eai.seen"),
    Hole("other policies", "new", "ALTER POLICY tenant ON eai.new USING (tenant_id IS NOT NULL)", "TABLE eai.seen"),
    Hole("other policies", "new", "ALTER POLICY tenant ON eai.new WITH CHECK (true)"),
    Hole("other policies", "new", "DROP POLICY tenant ON eai.new"),
    Hole(
        "partition",
        DAY,
        f"ALTER TABLE eai.{DAY} DISABLE ROW LEVEL SECURITY; {FOR_READER.format('eai.' + DAY)}",
        f"SELECT tenant_id FROM eai.{DAY}",
    ),
    Hole("view of its owner", "seen", "ALTER VIEW eai.seen RESET (security_invoker)"),
    Hole(
        "view of its owner",
        "bare",
        f"CREATE VIEW eai.bare AS SELECT tenant_id FROM eai.new; {FOR_READER.format('eai.bare')}",
        "TABLE eai.bare",
    ),
    Hole(
        "copy without policies",
        "copied",
        f"CREATE MATERIALIZED VIEW eai.copied AS SELECT tenant_id FROM eai.new; {FOR_READER.format('eai.copied')}",
        "TABLE eai.copied",
    ),
    Hole("readable without policies", "late_events", FOR_READER.format("eai.late_events")),
    Hole("right past the policies", "new", "GRANT TRUNCATE ON eai.new TO eai_pipeline"),
    Hole("right past the policies", "new", "GRANT REFERENCES ON eai.new TO eai_reader"),
    Hole("right past the policies", "new", "GRANT TRIGGER ON eai.new TO PUBLIC"),
    Hole("writer or stranger", "new", "GRANT INSERT ON eai.new TO eai_reader"),
    Hole("writer or stranger", "new", "GRANT SELECT ON eai.new TO PUBLIC"),
    Hole("right on a column", "new", "GRANT UPDATE (amount) ON eai.new TO eai_reader"),
    Hole("sequence", "new_n_seq", "GRANT SELECT ON SEQUENCE eai.new_n_seq TO eai_reader"),
    Hole("foreign key", "new", "CREATE TABLE eai.child (id text REFERENCES eai.new)"),
    Hole("function for everybody", "made", "GRANT EXECUTE ON FUNCTION eai.made TO PUBLIC"),
    Hole(
        "function for everybody",
        "made",
        "ALTER FUNCTION eai.made OWNER TO CURRENT_USER; GRANT EXECUTE ON FUNCTION eai.made TO eai_reader",
        "SELECT eai.made()",
    ),
    Hole("path of its caller", "made", "ALTER FUNCTION eai.made RESET search_path"),
    Hole("other owner", "seen", "ALTER VIEW eai.seen OWNER TO CURRENT_USER"),
    Hole("rule", "new", "CREATE RULE told AS ON INSERT TO eai.new DO ALSO NOTIFY told"),
    Hole(
        "default privileges",
        "eai_reader",
        "ALTER DEFAULT PRIVILEGES FOR ROLE eai_owner IN SCHEMA eai GRANT SELECT ON TABLES TO eai_reader",
    ),
    Hole("schema", "eai_reader", "GRANT CREATE ON SCHEMA eai TO eai_reader"),
    Hole("role", "eai_reader", "GRANT eai_pipeline TO eai_reader", "TABLE eai.seen"),
    Hole("role", "eai_reader", "ALTER ROLE eai_reader BYPASSRLS", "TABLE eai.seen"),
    Hole("role", "eai_reader", "ALTER ROLE eai_reader SUPERUSER", "TABLE eai.seen"),
]


def test_every_leak_is_shown_to_be_found() -> None:
    """A check that never failed proves nothing."""
    assert {hole.leak for hole in HOLES} == set(LEAKS)


def test_a_protected_table_is_not_named(connection: Connection) -> None:
    """What the holes are made in has none, and shows a reader its own row alone."""
    connection.execute(NEW)
    fill(connection, "new")
    assert leaks(connection) == set()
    become(connection, ALICE)
    assert answer(connection, "TABLE eai.seen") == answer(connection, "SELECT tenant_id FROM eai.new") == {ALICE}


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.opened_by.partition(";")[0])
def test_a_hole_is_named(hole: Hole, connection: Connection) -> None:
    """Whoever adds a table, view or function without one of its protections is told, and where it leaks at once is shown."""
    connection.execute(NEW)
    fill(connection, "new")
    connection.execute(hole.opened_by)
    assert (hole.leak, hole.name) in leaks(connection)
    if hole.witness is not None:
        become(connection, ALICE, hole.role)
        assert BOB in answer(connection, hole.witness)


# What is seen


@pytest.mark.parametrize(
    ("setting", "tenants"),
    [(ALICE, {ALICE}), (BOB, {BOB}), (PLATFORM, {PLATFORM}), (STRANGER, set()), ("", set()), (None, set())],
)
def test_a_reader_sees_exactly_its_tenant(setting: str | None, tenants: set[str], connection: Connection) -> None:
    """In every table and through every view; a tenant that is empty or was never set is nobody, without an error."""
    become(connection, setting)
    assert seen(connection) == everywhere(connection, tenants)


def test_a_tenant_that_is_no_uuid_is_an_error(connection: Connection) -> None:
    """Never all rows."""
    become(connection, "' OR true --")
    for name in relations(connection, "r", "p", "v"):
        with pytest.raises(psycopg.errors.InvalidTextRepresentation), connection.transaction():
            connection.execute(sql.SQL("SELECT FROM eai.{}").format(sql.Identifier(name)))


def test_the_owner_is_bound_too(connection: Connection) -> None:
    """Without FORCE the owner sees every tenant."""
    become(connection, role="eai_owner")
    assert seen(connection) == everywhere(connection, set())
    become(connection, ALICE, role="eai_owner")
    assert seen(connection) == everywhere(connection, {ALICE})


def test_a_tenant_does_not_see_the_fleet(connection: Connection) -> None:
    """What has no tenant's column has no policy either: there is no right to read it, except the providers."""
    every = "SELECT relname FROM pg_class WHERE relnamespace = 'eai'::regnamespace AND relkind IN ('r', 'p', 'v')"
    fleet = answer(connection, every) - {*relations(connection, "r", "p", "v"), "providers"}
    assert {"fleet_hours", "hour_runs", "quarantine", "audit_events", "late_events", DAY} <= fleet
    become(connection, ALICE)
    for name in fleet:
        with refused(connection):
            connection.execute(sql.SQL("SELECT FROM eai.{}").format(sql.Identifier(name)))


@pytest.mark.parametrize("role", ["eai_reader", "eai_pipeline"])
def test_a_partition_is_read_through_its_parent(role: str, connection: Connection) -> None:
    """A partition selected directly has the policies of itself, not of its parent."""
    become(connection, ALICE, role)
    with refused(connection):
        connection.execute(f"SELECT FROM eai.{DAY}")
    become(connection, ALICE, "eai_owner")
    assert answer(connection, f"SELECT tenant_id FROM eai.{DAY}") == set()


def test_a_copy_holds_what_is_seen(connection: Connection) -> None:
    """COPY TO reads under the policies, and not into a file of the server."""
    become(connection, ALICE)
    for name, column in relations(connection, "r").items():
        statement = sql.SQL("COPY eai.{} ({}) TO STDOUT").format(sql.Identifier(name), sql.Identifier(column))
        with connection.cursor().copy(statement) as copy:
            assert {bytes(row).decode().strip() for row in copy} == {ALICE}, name
    with refused(connection, "pg_write_server_files"):
        connection.execute("COPY eai.gpu_usage TO '/tmp/copied'")


def test_switching_row_security_off_is_an_error(connection: Connection) -> None:
    """As a dump does, which would else be quietly incomplete, or complete."""
    become(connection, ALICE)
    connection.execute("SET LOCAL row_security = off")
    for name in relations(connection, "r", "p", "v"):
        with refused(connection, "row-level security policy"):
            connection.execute(sql.SQL("SELECT FROM eai.{}").format(sql.Identifier(name)))


@pytest.mark.parametrize(("local", "tenants"), [(True, set()), (False, {ALICE})], ids=["SET LOCAL", "SET"])
def test_the_next_user_of_a_connection(local: bool, tenants: set[str], url: str) -> None:
    """A tenant set for the session stays on a pooled connection; one of the transaction leaves '', which is nobody."""
    database = Database(url)
    pids = set()
    for tenant in (ALICE, None):
        with database.transaction() as connection:
            become(connection)
            if tenant is not None:
                connection.execute("SELECT set_config('app.tenant_id', %s, %s)", (tenant, local))
            pids.add(connection.info.backend_pid)
            found = seen(connection)
            left = answer(connection, "SELECT current_setting('app.tenant_id', true)")
    database.close()
    assert len(pids) == 1
    assert left == (tenants or {""})
    assert set(map(frozenset, found.values())) == {frozenset(tenants)}


def test_a_pooled_connection_keeps_no_role(databases: Databases) -> None:
    """The pipeline's role ends with its transaction, also with one that failed."""
    database = Database(databases.fresh())
    with database.transaction() as connection:
        assert answer(connection, "SELECT current_user") == {"eai_pipeline"}
    with pytest.raises(psycopg.errors.DivisionByZero), database.transaction() as connection:
        connection.execute("SELECT 1 / 0")
    pooled = database._engine.raw_connection()
    connection = cast(Connection, pooled.driver_connection)
    assert answer(connection, "SELECT current_user = session_user") == {"True"}
    pooled.close()
    database.close()


@pytest.mark.parametrize("attribute", ["SUPERUSER", "BYPASSRLS"])
def test_start_up_refuses_who_gets_around(attribute: str, databases: Databases, url: str) -> None:
    """No policy binds a superuser or BYPASSRLS, nor a login that may become one."""
    above, below = f"above_{uuid4().hex}", f"below_{uuid4().hex}"
    kind = "a superuser" if attribute == "SUPERUSER" else "a role with BYPASSRLS"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {above} LOGIN PASSWORD 'pw' {attribute} IN ROLE eai_reader")
        admin.execute(f"CREATE ROLE {below} LOGIN PASSWORD 'pw' IN ROLE {above}")
        try:
            for login, told in ((above, f"{above} is {kind}"), (below, f"{below} is a member of {above}, {kind}")):
                at = sa.make_url(url).set(username=login, password="pw").render_as_string(hide_password=False)
                with psycopg.connect(at) as connection:
                    connection.execute(f"SET LOCAL ROLE {above}")
                    assert seen(connection) == everywhere(connection, EVERYBODY)
                database = Database(at)
                with pytest.raises(UsageError, match=told):
                    database.refuse_privileged()
                database.close()
        finally:
            admin.execute(f"DROP ROLE {above}, {below}")


# What is written


@pytest.mark.parametrize(
    "change",
    ["INSERT INTO eai.{0} DEFAULT VALUES", "UPDATE eai.{0} SET {1} = {1}", "DELETE FROM eai.{0}", "TRUNCATE eai.{0}"],
)
def test_a_reader_changes_nothing(change: str, connection: Connection) -> None:
    """TRUNCATE asks no policy, and who may write learns from a key that is taken."""
    become(connection, ALICE)
    for name, column in relations(connection, "r", "p").items():
        with refused(connection):
            connection.execute(sql.SQL(change).format(sql.Identifier(name), sql.Identifier(column)))


def test_the_pipeline_truncates_nothing(connection: Connection) -> None:
    """TRUNCATE would empty every tenant's rows at once."""
    become(connection, role="eai_pipeline")
    for name in relations(connection, "r", "p"):
        with refused(connection):
            connection.execute(sql.SQL("TRUNCATE eai.{}").format(sql.Identifier(name)))


@pytest.fixture
def gateway(connection: Connection) -> Connection:
    """Alice's gateway, with the one right that somebody else than the pipeline may be given: to write token events."""
    insert(connection, "usage_events", booked(BOB, "taken"))
    connection.execute("CREATE ROLE gateway; GRANT USAGE ON SCHEMA eai TO gateway")
    connection.execute("GRANT INSERT ON eai.usage_events TO gateway")
    become(connection, ALICE, "gateway")
    return connection


def booked(tenant: str, event_id: str) -> dict[str, object]:
    """An event as the pipeline books it."""
    texts = ("schema_version", "source", "cluster", "workload_id", "deployment_id", "methods")
    hour = {"occurred_at": TEN, "period_start": TEN, "period_end": TEN + timedelta(hours=1)}
    content = {"content_sha256": sha256(b"{}").hexdigest(), "document": "{}"}
    key = {"event_id": event_id, "tenant_id": tenant, "usage_type": "gpu_local", "revision": 1, "estimated": False}
    return {**dict.fromkeys(texts, tenant), **hour, **content, **key}


@pytest.mark.parametrize("event_id", ["taken", "free"])
def test_a_booked_event_is_no_oracle(event_id: str, gateway: Connection) -> None:
    """Ids of booked events are unique over all tenants: a gateway that tries one hears the same, taken or not."""
    with refused(gateway, r'^new row violates row-level security policy for table "usage_events"$'):
        insert(gateway, "usage_events", booked(ALICE, event_id))


@pytest.mark.parametrize("event_id", [BOB, "free"])
def test_a_token_event_is_no_oracle(event_id: str, gateway: Connection) -> None:
    """An id that another tenant's gateway used is taken as well as any; but a row of the other is not."""
    row = {"event_id": event_id, "occurred_at": TEN, "source": "gateway", **BY_TABLE["usage_events"]}
    insert(gateway, "usage_events", {**row, "tenant_id": ALICE})
    with refused(gateway, "row-level security policy"):
        insert(gateway, "usage_events", {**row, "tenant_id": BOB})


def test_a_foreign_key_is_an_oracle(connection: Connection) -> None:
    """It is checked past the policies: Alice hears which of Bob's ids exist. So none touches a table of tenants."""
    connection.execute(NEW)
    fill(connection, "new")
    connection.execute("CREATE TABLE eai.child (id text REFERENCES eai.new); GRANT INSERT ON eai.child TO eai_reader")
    become(connection, ALICE)
    assert answer(connection, "SELECT id FROM eai.new") == {ALICE}
    insert(connection, "child", {"id": BOB})
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        insert(connection, "child", {"id": STRANGER})


# What is learnt


def test_a_reader_runs_no_function_of_the_schema(connection: Connection) -> None:
    """Those with their owner's rights would run on a reader's own table, by a trigger, past all policies."""
    functions = "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'eai'::regnamespace AND prorettype {} 2279"
    triggers = answer(connection, functions.format("="))
    others = answer(connection, functions.format("<>"))
    assert "eai.note_late_events()" in triggers
    become(connection, ALICE)
    connection.execute("CREATE TEMP TABLE own (event_id text, period_start timestamptz, usage_type text)")
    for function in triggers:
        with refused(connection):
            connection.execute(
                "CREATE TRIGGER own AFTER INSERT ON own REFERENCING NEW TABLE AS booked"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {function}"
            )
    for function in others:
        with refused(connection):
            name, _, types = function.rstrip(")").partition("(")
            connection.execute(f"SELECT {name}({', '.join(f'NULL::{kind}' for kind in types.split(','))})")


def test_a_new_function_is_for_its_owner(connection: Connection) -> None:
    """Postgres lets everybody run a new function; the default privileges of the owner do not."""
    connection.execute(NEW)
    become(connection, ALICE)
    with refused(connection):
        connection.execute("SELECT eai.made()")


def test_a_condition_is_asked_of_rows_that_are_seen(connection: Connection) -> None:
    """A function in a condition could tell of each row that it meets, or fail on it: policies come first."""
    heard: list[str] = []
    connection.add_notice_handler(lambda told: heard.append(told.message_primary or ""))
    become(connection, ALICE)
    connection.execute(
        "CREATE FUNCTION pg_temp.tell(tenant uuid) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE NOTICE '%', tenant; RETURN true; END $$"
    )
    for name, column in relations(connection, "r", "p", "v").items():
        heard.clear()
        connection.execute(f"SELECT FROM eai.{name} WHERE pg_temp.tell({column})")
        assert set(heard) == {ALICE}, name
        connection.execute(f"SELECT FROM eai.{name} WHERE 1 / (CASE {column} WHEN '{BOB}' THEN 0 ELSE 1 END) = 1")


def test_statistics_are_not_shown(connection: Connection) -> None:
    """The most common values of a column are values of every tenant."""
    gathered = "SELECT tablename FROM pg_stats WHERE schemaname = 'eai'"
    assert set(relations(connection, "r")) <= answer(connection, gathered)
    become(connection, ALICE)
    assert answer(connection, gathered) == set()


def test_sequences_are_not_shown(connection: Connection) -> None:
    """The last number of a sequence tells how much all tenants did."""
    sequences = answer(connection, "SELECT sequencename FROM pg_sequences WHERE schemaname = 'eai'")
    assert sequences
    become(connection, ALICE)
    assert answer(connection, "SELECT last_value FROM pg_sequences WHERE schemaname = 'eai'") == {"None"}
    for name in sequences:
        for question in ("SELECT last_value FROM eai.{0}", "SELECT nextval('eai.{0}')"):
            with refused(connection):
                connection.execute(question.format(name))
