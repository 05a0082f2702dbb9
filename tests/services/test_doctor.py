"""The doctor on real systems, whole and broken in turn: what it says, and that it never stops or changes anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from finops_pipeline import doctor
from finops_pipeline.cli import app
from finops_pipeline.contracts import migrations
from finops_pipeline.doctor.diagnosis import Level, Remark
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database
from tests.services.prometheus_server import Answer, Fault, FaultProxy, PrometheusServer, free_port

TENANT = "a0000000-0000-4000-8000-00000000000a"
POLICY = {
    "id": "p1",
    "name": "all",
    "deployment_pattern": "*",
    "gpu_model": None,
    "currency": "EUR",
    "gpu_hourly_cost": "2.10",
    "overhead_pct": "18",
    "energy_kwh_price": "0.21",
    "pue": "1.4",
    "storage_gb_month_price": "0.1",
    "idle_policy": "owner",
    "token_weights": None,
    "effective_from": datetime(2020, 1, 1, tzinfo=UTC),
    "effective_to": None,
    "status": "active",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedPostgres]:
    with embedded.start(tmp_path_factory.mktemp("postgres") / "server") as running:
        database = Database(running.url, admin_url=running.admin_url)
        database.migrate()
        database.close()
        yield running


@pytest.fixture
def fresh(server: embedded.EmbeddedPostgres) -> Iterator[dict[str, str]]:
    """URLs of a migrated database of its own, of the worker and of the administrator."""
    yield from database_of(server, embedded.DATABASE)


@pytest.fixture
def empty(server: embedded.EmbeddedPostgres) -> Iterator[dict[str, str]]:
    """URLs of a database without schema `eai`."""
    yield from database_of(server, "template1")


def database_of(server: embedded.EmbeddedPostgres, template: str) -> Iterator[dict[str, str]]:
    admin = urlunsplit(urlsplit(server.admin_url)._replace(path="/postgres"))
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE doctored TEMPLATE {}").format(sql.Identifier(template)))
        yield {
            name: urlunsplit(urlsplit(url)._replace(path="/doctored"))
            for name, url in (("worker", server.url), ("admin", server.admin_url))
        }
        connection.execute("DROP DATABASE doctored WITH (FORCE)")


def execute(urls: dict[str, str], *statements: str) -> None:
    with psycopg.connect(urls["admin"], autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def environ(home: Path, **variables: str) -> dict[str, str]:
    return {"FINOPS_HOME": str(home), "FINOPS_PLATFORM_TENANT": TENANT, **variables}


def of(remarks: list[Remark], where: str) -> dict[tuple[str, str], Remark]:
    """(level, subject) -> remark of one system; each pair once."""
    found = [remark for remark in remarks if remark.where == where]
    keys = {(str(remark.level), remark.subject): remark for remark in found}
    assert len(keys) == len(found), found
    return keys


def postgres(home: Path, url: str) -> dict[tuple[str, str], Remark]:
    remarks = doctor.diagnose(environ(home, EAI_DATABASE_URL=url))
    password = urlsplit(url).password
    assert not password or not any(password in remark.seen + remark.remedy for remark in remarks)
    assert of(remarks, "lake"), "one system that fails does not stop the others"
    return of(remarks, "Postgres")


# --- Postgres


def test_a_database_as_it_should_be(fresh: dict[str, str], tmp_path: Path) -> None:
    now = datetime.now(UTC)
    database = Database(fresh["worker"])
    with database.transaction() as connection:
        database.add_policies(connection, [POLICY], "here")
        connection.execute(
            "INSERT INTO eai.workload_events (event_id, occurred_at, workload_id, tenant_id, to_state, gpu_count)"
            " VALUES ('e', %s, 'w', %s, 'running', 1)",
            (now - timedelta(hours=1), TENANT),
        )
        connection.execute(
            "INSERT INTO eai.deployments (deployment_id, mode, owner_tenant_id) VALUES ('d', 'dedicated', %s)",
            (TENANT,),
        )
    database.close()
    found = postgres(tmp_path, fresh["worker"])
    assert {level for level, _ in found} == {"ok"}
    assert found["ok", "server"].seen.startswith("it answers, version 1")
    assert found["ok", "roles"].seen.endswith("works as eai_pipeline")
    assert found["ok", "schema"].seen == f"eai is at version {migrations.HEAD}, this program's"
    assert "row-level security forced on" in found["ok", "tables"].seen
    assert found["ok", "policies"].seen == "1 in force, of 1"
    assert found["ok", "lifecycle events"].seen.endswith("60 min ago")
    assert found["ok", "deployments"].seen == "1, 0 of them shared"


def test_a_platform_that_writes_nothing(fresh: dict[str, str], tmp_path: Path) -> None:
    found = postgres(tmp_path, fresh["worker"])
    assert found["warn", "policies"].seen == "none: everything is unpriced (A23)"
    assert found["warn", "lifecycle events"].seen.startswith("none within 31 days")
    assert found["warn", "deployments"].seen.startswith("none")


def test_records_that_are_late_early_or_of_another_cluster(fresh: dict[str, str], tmp_path: Path) -> None:
    named = POLICY | {"id": "p2", "deployment_pattern": "d-*", "gpu_model": "H100"}
    database = Database(fresh["worker"])
    with database.transaction() as connection:
        database.add_policies(connection, [named], "here")
        for index, (hours, cluster) in enumerate(((-50, "elsewhere"), (3, None))):
            connection.execute(
                "INSERT INTO eai.workload_events (event_id, occurred_at, workload_id, tenant_id, to_state, gpu_count, cluster)"
                " VALUES (%s, now() + make_interval(hours => %s), 'w', %s, 'running', 1, %s)",
                (f"e{index}", hours, TENANT, cluster),
            )
        connection.execute(
            "INSERT INTO eai.deployments (deployment_id, mode, owner_tenant_id) VALUES ('d', 'shared', %s)", (TENANT,)
        )
    database.close()
    remarks = doctor.diagnose(environ(tmp_path, EAI_DATABASE_URL=fresh["worker"]))
    told = [remark.seen for remark in remarks if remark.where == "Postgres" and remark.level == Level.WARN]
    assert [seen for seen in told if "none prices the pseudo-deployment `idle`" in seen]
    assert [seen for seen in told if seen.startswith("the last is of ") and seen.endswith("2 days ago")]
    assert [seen for seen in told if seen.startswith("more than 5 minutes in the future, and set aside (A5): 1")]
    assert [seen for seen in told if seen == "of clusters that are not configured: elsewhere"]
    assert [seen for seen in told if seen.startswith("1 shared, and token usage is none")]


def test_a_database_without_the_schema_stays_without_it(empty: dict[str, str], tmp_path: Path) -> None:
    found = postgres(tmp_path, empty["admin"])
    assert found["warn", "schema"].seen == "eai is not installed: the next run does it"
    with psycopg.connect(empty["admin"]) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname = 'eai'").fetchone() is None


def test_a_login_that_may_not_install_it(empty: dict[str, str], tmp_path: Path) -> None:
    found = postgres(tmp_path, empty["worker"])
    assert "may not do it" in found["fail", "schema"].seen
    assert "contracts/migrations/roles.sql" in found["fail", "schema"].remedy


def test_an_administrator_is_a_superuser(fresh: dict[str, str], tmp_path: Path) -> None:
    found = postgres(tmp_path, fresh["admin"])
    assert "is a superuser: row-level security does not bind it" in found["warn", "login"].seen


def test_a_login_outside_the_role(fresh: dict[str, str], tmp_path: Path) -> None:
    execute(fresh, "DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN PASSWORD 'hush-hush'")
    parts = urlsplit(fresh["worker"])
    url = urlunsplit(parts._replace(netloc=f"stranger:hush-hush@{parts.hostname}:{parts.port}"))
    found = postgres(tmp_path, url)
    assert found["fail", "roles"].seen == "stranger may not become eai_pipeline"
    assert found["fail", "roles"].remedy == "an administrator runs: GRANT eai_pipeline TO stranger"
    assert ("fail", "schema") in found, "it cannot be read"


def test_tables_that_are_open_or_closed(fresh: dict[str, str], tmp_path: Path) -> None:
    execute(
        fresh,
        "ALTER TABLE eai.gpu_usage NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE eai.usage_events DISABLE ROW LEVEL SECURITY",
        "REVOKE INSERT ON eai.gpu_usage FROM eai_pipeline",
        "REVOKE SELECT ON eai.deployments FROM eai_pipeline",
    )
    found = postgres(tmp_path, fresh["worker"])
    assert found["fail", "row-level security"].seen.startswith("not forced on gpu_usage, usage_events")
    assert found["fail", "tables"].seen == "eai_pipeline may not read or write deployments, gpu_usage"
    assert "permission denied for table deployments" in found["fail", "records"].seen


def test_a_schema_of_another_version(fresh: dict[str, str], tmp_path: Path) -> None:
    execute(fresh, "UPDATE eai.alembic_version SET version_num = '9999'")
    found = postgres(tmp_path, fresh["worker"])
    assert found["fail", "schema"].seen.startswith("eai is at version 9999, newer than this program's")
    execute(fresh, "UPDATE eai.alembic_version SET version_num = '0000'")
    assert "eai is at version 0000, older than" in postgres(tmp_path, fresh["admin"])["warn", "schema"].seen


def test_roles_that_see_too_much(fresh: dict[str, str], tmp_path: Path) -> None:
    execute(fresh, "ALTER ROLE eai_reader BYPASSRLS")
    try:
        found = postgres(tmp_path, fresh["worker"])
    finally:
        execute(fresh, "ALTER ROLE eai_reader NOBYPASSRLS")
    assert found["fail", "roles"].seen == "eai_reader has BYPASSRLS"
    assert found["fail", "roles"].remedy == "ALTER ROLE eai_reader NOBYPASSRLS"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"netloc": "finops:wrong-word@{host}"}, "wrong user or password"),
        ({"netloc": "finops:wrong-word@127.0.0.1:1"}, "connection refused"),
        ({"path": "/nowhere"}, "there is no such database"),
    ],
)
def test_a_database_that_cannot_be_reached(
    fresh: dict[str, str], tmp_path: Path, change: dict[str, str], told: str
) -> None:
    parts = urlsplit(fresh["worker"])
    change = {key: text.format(host=f"{parts.hostname}:{parts.port}") for key, text in change.items()}
    found = postgres(tmp_path, urlunsplit(parts._replace(**change)))
    assert list(found) == [("fail", "connection")]
    assert told in found["fail", "connection"].seen


def test_without_a_database_url_nothing_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    remarks = doctor.diagnose(environ(home))
    assert of(remarks, "Postgres")["ok", "connection"].seen.startswith(
        "EAI_DATABASE_URL is not set: the first run makes"
    )
    assert of(remarks, "lake")["ok", "folder"].seen.startswith(
        f"{home / 'lake'} can be written (the first run makes it)"
    )
    assert not home.exists()


def test_the_embedded_database_is_looked_at_where_it_is(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "postgres") as running:
        database = Database(running.url, admin_url=running.admin_url)
        database.migrate()
        database.close()
    found = of(doctor.diagnose(environ(tmp_path)), "Postgres")
    assert found["ok", "server"].seen.startswith("it answers, embedded, version")
    assert ("ok", "tables") in found


# --- Prometheus


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with PrometheusServer(tmp_path_factory.mktemp("prometheus") / "data") as running:
        yield running


def cluster(tmp_path: Path, url: str, **variables: str) -> dict[tuple[str, str], Remark]:
    return of(doctor.diagnose(environ(tmp_path, FINOPS_PROMETHEUS_URLS=f"c1={url}", **variables)), "cluster c1")


def through(
    prometheus: PrometheusServer, fault: Fault, tmp_path: Path, **variables: str
) -> dict[tuple[str, str], Remark]:
    with FaultProxy(prometheus.url, fault) as proxy:
        return cluster(tmp_path, proxy.url, **variables)


def test_a_prometheus_without_dcgm(prometheus: PrometheusServer, tmp_path: Path) -> None:
    found = cluster(tmp_path, prometheus.url)
    assert found["ok", "connection"].seen.startswith(f"{prometheus.url} answers, version ")
    assert found["ok", "connection"].seen.endswith("without a login")
    assert found["ok", "clock"].seen == "it agrees with ours"
    assert "(its retention is 100y)" in found["ok", "retention"].seen
    assert found["fail", "metrics"].seen.endswith("and none under another name")


def test_a_prometheus_that_is_not_there(tmp_path: Path) -> None:
    remarks = doctor.diagnose(
        environ(tmp_path, FINOPS_PROMETHEUS_URLS=f"c1=http://127.0.0.1:{free_port()},c2=http://127.0.0.1:{free_port()}")
    )
    for name in ("c1", "c2"):
        found = of(remarks, f"cluster {name}")
        assert list(found) == [("fail", "connection")]
        assert "check that it is up and can be reached" in found["fail", "connection"].seen
    assert of(remarks, "Postgres")
    assert doctor.failed(remarks)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(401, b"no"), "set a bearer token or user and password"),
        (Answer(200, b"<html>", {"Content-Type": "text/html"}), "without a login page before it"),
        (Answer(404, b""), "check the URL"),
    ],
)
def test_a_prometheus_that_refuses(prometheus: PrometheusServer, tmp_path: Path, answer: Answer, told: str) -> None:
    found = through(prometheus, lambda _, __: answer, tmp_path)
    assert list(found) == [("fail", "connection")]
    assert told in found["fail", "connection"].seen


@pytest.mark.parametrize(("seconds", "level", "told"), [(20, "warn", "ahead of ours"), (-900, "fail", "behind ours")])
def test_a_clock_that_is_off(
    prometheus: PrometheusServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    level: str,
    told: str,
) -> None:
    def shifted(_: BaseHTTPRequestHandler, __: float | None = None) -> str:
        return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)

    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", shifted)
    found = through(prometheus, lambda _, real: real(), tmp_path)
    assert told in found[level, "clock"].seen
    assert "NTP" in found[level, "clock"].remedy


def test_something_that_looks_like_thanos(prometheus: PrometheusServer, tmp_path: Path) -> None:
    def fault(request: Any, real: Any) -> Answer:
        if request.path.startswith("/api/v1/status/buildinfo"):
            return Answer(200, b'{"status":"success","data":{"version":"0.38.0"}}')
        answer: Answer = real()
        return answer

    assert through(prometheus, fault, tmp_path)["warn", "Thanos"].remedy == "FINOPS_PROMETHEUS_THANOS=true"
    told = through(prometheus, fault, tmp_path, FINOPS_PROMETHEUS_THANOS="true")
    assert ("warn", "Thanos") not in told


def test_a_query_that_breaks_is_a_remark(prometheus: PrometheusServer, tmp_path: Path) -> None:
    def fault(request: Any, real: Any) -> Answer:
        if "last_over_time" in request.path:
            return Answer(200, b'{"status":"success","warnings":["store eu-1 is down"],"data":{"resultType":"vector"}}')
        answer: Answer = real()
        return answer

    found = through(prometheus, fault, tmp_path)
    assert ("ok", "connection") in found
    assert "store eu-1 is down" in found["fail", "metrics"].seen


# --- settings, lake, bundles


def test_every_wrong_setting_is_told_and_the_rest_is_used(prometheus: PrometheusServer, tmp_path: Path) -> None:
    config = tmp_path / "finops.toml"
    config.write_text("[models]\nA = 1\n")
    remarks = doctor.diagnose(
        environ(
            tmp_path,
            FINOPS_PROMETHEUS_URLS=f"c1={prometheus.url}",
            FINOPS_PLATFORM_TENANT="nobody",
            FINOPS_WINDOW_SECONDS="7",
            FINOPS_MAX_ESTIMATE="0.5",
            FINOPS_PROMETHEUS_TOKEN_FILE="/nowhere/token",
            FINOPS_CONFIG=str(config),
        )
    )
    found = of(remarks, "settings")
    assert {subject for level, subject in found if level == "fail"} == {
        "FINOPS_PLATFORM_TENANT",
        "FINOPS_WINDOW_SECONDS",
        "FINOPS_MAX_ESTIMATE",
        "FINOPS_PROMETHEUS_TOKEN_FILE",
        "FINOPS_CONFIG",
    }
    assert "did you mean FINOPS_MAX_ESTIMATED?" in found["fail", "FINOPS_MAX_ESTIMATE"].seen
    assert ("ok", "connection") in of(remarks, "cluster c1")


def test_nothing_is_set() -> None:
    found = of(doctor.diagnose({}), "settings")
    assert set(found) == {("fail", "clusters"), ("fail", "platform tenant")}


def test_a_lake_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    found = of(doctor.diagnose(environ(tmp_path)), "lake")
    assert "is not a folder" in found["fail", "folder"].seen


def test_a_bundle(cases: Path, tmp_path: Path) -> None:
    remarks = doctor.diagnose({"FINOPS_HOME": str(tmp_path)}, cases / "06-honor-labels-false")
    found = of([remark for remark in remarks if remark.level == Level.OK], "bundle")
    assert found["ok", "honorLabels"].seen == "false: the workload is in exported_pod, and pod is the exporter"
    assert found["ok", "bundle.toml"].seen == "cluster dc1-gpu, 2026-10-01T10:00:00Z to 2026-10-01T11:00:00Z"
    assert found["ok", "policies"].seen == "2 in force, of 2"
    assert "bundle.toml: [class_watts]" in found["ok", "class_watts"].remedy
    assert not of(remarks, "settings")
    assert not doctor.failed(remarks)


def test_every_case_can_be_diagnosed(cases: Path, tmp_path: Path) -> None:
    for folder in sorted(cases.glob("[0-9]*")):
        remarks = doctor.diagnose({"FINOPS_HOME": str(tmp_path)}, folder)
        assert not [remark for remark in remarks if remark.level == Level.FAIL], folder


def test_a_bundle_with_a_broken_file(cases: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(cases / "01-shared-server-70-30", bundle)
    (bundle / "dcgm.om.gz").write_bytes(b"no gzip")
    found = of(doctor.diagnose({"FINOPS_HOME": str(tmp_path)}, bundle), "bundle")
    assert "dcgm.om.gz: cannot be read" in found["fail", "series"].seen
    assert ("ok", "policies") in found, "the records are looked at all the same"
    missing = of(doctor.diagnose({"FINOPS_HOME": str(tmp_path)}, tmp_path / "nowhere"), "bundle")
    assert "is not a bundle" in missing["fail", "files"].seen


# --- the command


def run(arguments: list[str], variables: dict[str, str]) -> Any:
    return CliRunner(env=variables).invoke(app, ["doctor", *arguments])


def test_the_command_ends_with_1_if_something_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run([], {"FINOPS_HOME": str(tmp_path)})
    assert result.exit_code == 1
    assert "fail  clusters: no Prometheus is named\n        -> FINOPS_PROMETHEUS_URLS=" in result.output
    assert result.output.rstrip().endswith("2 failed, 0 warnings, 2 ok")


def test_the_command_ends_with_0_on_warnings(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(["--json", "--bundle", str(cases / "08-blanks-and-garbage")], {"FINOPS_HOME": str(tmp_path)})
    assert result.exit_code == 0
    told = json.loads(result.output)
    assert {tuple(row) for row in told} == {("level", "where", "subject", "seen", "set")}
    assert {row["level"] for row in told} == {"ok", "warn"}
