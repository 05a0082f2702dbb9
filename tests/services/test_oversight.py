"""Findings, credits, quotas and shares through the whole pipeline, on a real Postgres.

A workload of tenant A that its events let run until 12:30 shows no sign of life after 10:20. By hand, at 2.10 EUR and 18 %
overhead (no energy is known): 2.478 for each whole hour, 2.478 + 2.478 + 1.239 charged, of which
2/3 x 2.478 + 2.478 + 1.239 = 5.369 could be given back, and 2400 + 3600 + 1800 = 7800 GPU-seconds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import dagster as dg
import psycopg
import pytest
from pydantic import SecretStr

from finops_pipeline import cli
from finops_pipeline.commands.audit import verify
from finops_pipeline.commands.credits import credits_json, credits_text
from finops_pipeline.commands.fair_share import fairshare, set_share
from finops_pipeline.commands.quotas import quotas, set_quota
from finops_pipeline.commands.runner import run_hours
from finops_pipeline.commands.usage import usage
from finops_pipeline.errors import UsageError
from finops_pipeline.notifications import Posted, held_but_idle_sensor, post_new
from finops_pipeline.resources.credits import decide, listed
from finops_pipeline.resources.postgres.balance import trial_balance
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.postgres.statements import publish_statement
from finops_pipeline.resources.site import Site, open_site
from finops_pipeline.resources.webhook import Webhook
from finops_pipeline.settings import load_settings
from tests.databases import Databases

A, PLATFORM = "a0000000-0000-4000-8000-00000000000a", "ff000000-0000-4000-8000-0000000000ff"
TEN, ONE = datetime(2026, 10, 1, 10, tzinfo=UTC), datetime(2026, 10, 1, 13, tzinfo=UTC)
HEAD = "event_id,occurred_at,workload_id,tenant_id,deployment_id,namespace,pod,from_state,to_state,gpu_count,placed_class,node,gpu_uuids,reason"
POLICY = {
    "id": "p1", "name": "p1", "deployment_pattern": "*", "gpu_model": None, "currency": "EUR",
    "gpu_hourly_cost": "2.10", "overhead_pct": "18", "energy_kwh_price": "0.21", "pue": "1.4",
    "storage_gb_month_price": "0.10", "idle_policy": "owner", "token_weights": None,
    "effective_from": "2026-01-01T00:00:00Z", "effective_to": None, "status": "active",
}  # fmt: skip


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


def bundle(folder: Path, *late: str) -> Path:
    """The workload's bundle; `late` are further lines of workload_events.csv."""
    folder.mkdir()
    (folder / "bundle.toml").write_text(
        f'cluster = "c1"\nfrom = "2026-10-01T10:00:00Z"\nto = "2026-10-01T13:00:00Z"\nnow = "2026-10-03T00:00:00Z"\n'
        f'platform_tenant = "{PLATFORM}"\n'
    )
    events = (
        f"e1,2026-10-01T09:00:00Z,w,{A},,ns,w,,running,1,H100,,,",
        f"e2,2026-10-01T12:30:00Z,w,{A},,ns,w,running,stopped,,,,,",
        *late,
    )
    (folder / "workload_events.csv").write_text("\n".join((HEAD, *events, "")))
    (folder / "allocation_policies.json").write_text(json.dumps([POLICY]))
    lines = []
    for second in range(0, 3 * 3600, 15):
        dead = second >= 20 * 60
        pod = "" if dead else ',exported_namespace="ns",exported_pod="w",exported_container="c"'
        labels = f'{{UUID="GPU-a",modelName="H100",Hostname="n1"{pod}}}'
        at = int(TEN.timestamp()) + second
        lines.append((f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{labels}", f"{0.0 if dead else 0.7} {at}"))
    lines.sort(key=lambda line: line[0])
    (folder / "dcgm.om").write_text("".join(f"{series} {sample}\n" for series, sample in lines) + "# EOF\n")
    return folder


@contextmanager
def site_of(url: str, home: Path, folder: Path) -> Iterator[Site]:
    settings = load_settings({"FINOPS_HOME": str(home), "EAI_DATABASE_URL": url})
    with open_site(settings, folder) as site:
        yield site


def compute(site: Site) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_hours(site, instance, TEN, ONE)


def booked(site: Site, kind: str = "%") -> Decimal:
    found = site.database.query(
        "SELECT coalesce(sum(cost_amount), 0) AS amount FROM eai.usage_events"
        " WHERE usage_type = 'gpu_local' AND workload_id LIKE %s",
        (kind,),
    )
    return Decimal(found["amount"][0].as_py())


def events(site: Site) -> int:
    return int(site.database.query("SELECT count(*) AS n FROM eai.usage_events")["n"][0].as_py())


def audited(site: Site, kind: str) -> list[dict[str, Any]]:
    found = site.database.query("SELECT payload::text AS p FROM eai.audit_events WHERE kind = %s ORDER BY seq", (kind,))
    return [json.loads(str(text)) for text in found["p"].to_pylist()]


@pytest.fixture(scope="module")
def computed(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The bundle's three hours, computed: URL and home, to be copied."""
    url, folder = databases.fresh(), tmp_path_factory.mktemp("computed")
    with site_of(url, folder / "home", bundle(folder / "bundle")) as opened:
        compute(opened)
    return url, folder


@pytest.fixture
def url(databases: Databases, computed: tuple[str, Path]) -> str:
    return databases.copy_of(computed[0])


@pytest.fixture
def site(url: str, computed: tuple[str, Path], tmp_path: Path) -> Iterator[Site]:
    home = shutil.copytree(computed[1] / "home", tmp_path / "home")
    with site_of(url, home, computed[1] / "bundle") as opened:
        yield opened


def approve(site: Site, credit_id: str, reason: str = "it was dead") -> Any:
    return decide(site.database, credit_id, approve=True, reason=reason, decided_by="ada")


def test_findings_are_published_with_their_hour(site: Site) -> None:
    rows = site.database.read_hours("findings", "c1", TEN, ONE).to_pylist()
    assert {(row["kind"], row["workload_id"], row["tenant_id"]) for row in rows} == {
        ("held_but_idle", "w", A),
        ("label_drop", "w", A),
        ("no_sign_of_life", "w", A),
    }
    assert [row["seconds"] for row in rows if row["kind"] == "no_sign_of_life"] == [
        Decimal("2400.000"),
        Decimal("3600.000"),
        Decimal("1800.000"),
    ]
    lake = site.lake.require("findings", "c1", int(TEN.timestamp()) * 1000)
    assert lake.num_rows == sum(row["hour"] == TEN for row in rows)


def test_a_proposal_with_its_evidence(site: Site) -> None:
    (found,) = listed(site.database)
    assert (found["status"], found["reason"], found["workload_id"], found["tenant_id"]) == (
        "proposed", "died_unseen", "w", A,
    )  # fmt: skip
    assert (found["window_from"], found["window_to"]) == (
        datetime(2026, 10, 1, 10, 20, tzinfo=UTC),
        datetime(2026, 10, 1, 12, 30, tzinfo=UTC),
    )
    assert (found["amount"], found["gpu_seconds"], found["currency"]) == (Decimal("5.369"), Decimal(7800), "EUR")
    evidence = json.loads(found["evidence"])
    assert evidence["last_sign_of_life"] == "2026-10-01T10:20:00.000Z"
    assert evidence["event_ids"] == ["e1", "e2"]
    assert [finding["hour"] for finding in evidence["findings"]] == [
        f"2026-10-01T{hour}:00:00Z" for hour in (10, 11, 12)
    ]


def test_computing_again_proposes_the_same(site: Site) -> None:
    before = [(row["id"], row["amount"]) for row in listed(site.database)]
    compute(site)
    assert [(row["id"], row["amount"]) for row in listed(site.database)] == before


def test_approving_books_once_and_shows_in_the_statement(site: Site) -> None:
    (found,) = listed(site.database)
    first = approve(site, found["id"])
    assert (first.status, first.amount, first.booked) == ("approved", Decimal("5.369"), 3)
    assert booked(site, "credit:%") == Decimal("-5.369")
    count = events(site)
    again = approve(site, found["id"], "twice")
    assert (again.amount, again.booked, events(site)) == (Decimal("5.369"), 0, count)
    compute(site)
    assert events(site) == count, "computing the hours again neither undoes nor repeats a credit (A32)"
    (entry,) = audited(site, "credit.approved")
    assert (entry["amount"], entry["decided_by"], entry["reason"]) == ("5.369000000", "ada", "it was dead")
    assert len(entry["event_ids"]) == 3
    lines = read_statement(site.database, "2026-10")["corrections"]
    assert [line["hour"] for line in lines] == [f"2026-10-01T{hour}:00:00Z" for hour in (10, 11, 12)]
    assert sum(Decimal(line["allocated"]["amount"]) for line in lines) == Decimal("-5.37")
    assert listed(site.database) == listed(site.database, "approved")


def test_a_late_end_takes_charge_and_credit_away_together(site: Site, url: str, tmp_path: Path) -> None:
    """The platform learns that the workload ended at 10:20: 826/2478 of one hour are left, and no credit."""
    approve(site, listed(site.database)[0]["id"])
    folder = bundle(tmp_path / "late", f"e3,2026-10-01T10:20:00Z,w,{A},,ns,w,running,stopped,,,,,")
    with site_of(url, tmp_path / "home", folder) as later:
        compute(later)
        assert booked(later, "w") == Decimal("0.826")
        assert booked(later, "credit:%") == 0
        compute(later)
        assert booked(later) == Decimal("0.826")
        (left,) = listed(later.database)
        assert left["status"] == "approved"
        assert "0.000000000" in credits_text([left])
        assert "E-" not in credits_text([left])
        assert credits_json([left])[0]["given_back"] == "0.000000000"


def test_rejecting_books_nothing_and_is_not_proposed_again(site: Site) -> None:
    (found,) = listed(site.database)
    count = events(site)
    for _ in range(2):
        outcome = decide(site.database, found["id"], approve=False, reason="it had crashed itself", decided_by="ada")
        assert (outcome.status, outcome.amount, outcome.booked) == ("rejected", Decimal(0), 0)
    compute(site)
    assert events(site) == count
    assert [row["status"] for row in listed(site.database)] == ["rejected"]
    assert len(audited(site, "credit.rejected")) == 1
    with pytest.raises(UsageError, match="was rejected by ada: it had crashed itself; what was decided stays"):
        approve(site, found["id"])


@pytest.mark.parametrize(
    ("credit_id", "reason", "message"),
    [
        ("nonsense", "r", "nonsense: not an id"),
        ("00000000-0000-0000-0000-000000000000", "r", "there is none with this id"),
        ("00000000-0000-0000-0000-000000000000", "  ", "needs a reason"),
    ],
)
def test_what_cannot_be_decided(site: Site, credit_id: str, reason: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        approve(site, credit_id, reason)


def test_a_decision_stays_whoever_asks(site: Site) -> None:
    approve(site, listed(site.database)[0]["id"])
    for change in ("UPDATE eai.credit_proposals SET amount = 99", "DELETE FROM eai.credit_proposals"):
        with (
            pytest.raises(psycopg.errors.RestrictViolation, match="approved"),
            site.database.transaction() as connection,
        ):
            connection.execute(change)


def test_tenant_usage_counts_allocated_time_by_class(site: Site) -> None:
    rows = site.database.query("SELECT tenant_id::text, placed_class, day, month, gpu_seconds FROM eai.tenant_usage")
    (row,) = rows.to_pylist()
    assert (row["tenant_id"], row["placed_class"], f"{row['day']}", row["month"]) == (
        A,
        "H100",
        "2026-10-01",
        "2026-10",
    )
    assert row["gpu_seconds"] == Decimal(9000)


def test_a_credit_for_a_final_month_is_a_correction_of_the_next(site: Site) -> None:
    with site.database.transaction() as connection:
        connection.execute("UPDATE eai.gpu_statements SET status = 'final', final_at = now() WHERE period = '2026-10'")
    before = read_statement(site.database, "2026-10")
    approve(site, listed(site.database)[0]["id"])
    assert read_statement(site.database, "2026-10") == before
    lines = read_statement(site.database, "2026-11")["corrections"]
    assert sum(Decimal(line["allocated"]["amount"]) for line in lines) == Decimal("-5.37")


def test_ledger_log_and_statements_agree_with_a_credit(site: Site) -> None:
    approve(site, listed(site.database)[0]["id"])
    publish_statement(site.database, "2026-10", ONE)
    assert verify(site.database).exit_code == 0
    assert [proof for proof in trial_balance(site.database) if not proof.holds] == []


def test_quotas_shares_and_usage(site: Site) -> None:
    set_quota(site.database, A, None, "month", Decimal(5))
    set_quota(site.database, A, "H100", "day", Decimal(10))
    set_quota(site.database, A, "H100", "day", Decimal("2.5"))
    set_quota(site.database, A, "T4", "day", Decimal(1))
    set_quota(site.database, A, "T4", "day", None)
    assert [(q["placed_class"], q["period"], q["gpu_hours"]) for q in quotas(site.database)] == [
        (None, "month", Decimal(5)),
        ("H100", "day", Decimal("2.5")),
    ]
    assert [
        (r["period"], r["placed_class"], r["quota_used"]) for r in usage(site.database, "month", A, None, None)
    ] == [
        ("2026-10", None, Decimal("0.5000")),
        ("2026-10", "H100", None),
    ]
    (day,) = usage(site.database, "day", None, TEN.date(), None)
    assert (day["period"], day["gpu_hours"], day["quota_used"]) == ("2026-10-01", Decimal("2.5"), Decimal(1))
    assert usage(site.database, "day", None, None, TEN.date()) == []
    assert len(audited(site, "quota.set")) == 5
    set_share(site.database, "lab", None, Decimal(3))
    set_share(site.database, A, "lab", Decimal(1))
    shares = {share.name: share for share in fairshare(site.database, ONE + timedelta(days=7), 7)}
    # 1, 1 and 0.5 GPU-hours whose hours ended 2, 1 and 0 hours before the day a week ago
    expected = sum(seconds * 2.0 ** -((168 + age) / 168) for seconds, age in ((3600, 2), (3600, 1), (1800, 0)))
    assert shares[A].raw_usage == pytest.approx(expected)
    assert (shares["lab"].factor, shares[A].norm_shares) == (0.5, 1.0)
    for node, parent, message in (("lab", A, "circle"), ("x", "nowhere", "no shares itself"), ("x", "x", "itself")):
        with pytest.raises(UsageError, match=message):
            set_share(site.database, node, parent, Decimal(1))
    with pytest.raises(UsageError, match="not negative"):
        set_quota(site.database, A, None, "month", Decimal("NaN"))


def test_a_tenant_sees_its_own_and_no_others(site: Site, url: str, databases: Databases) -> None:
    tables = ("findings", "credit_proposals", "tenant_hours", "tenant_usage")
    for tenant, seen in ((A, True), (PLATFORM, False)):
        with psycopg.connect(databases.admin(url)) as connection:
            connection.execute("SET LOCAL ROLE eai_reader")
            connection.execute("SELECT set_config('app.tenant_id', %s, true)", (tenant,))
            for table in tables:
                (count,) = connection.execute(f"SELECT count(*) FROM eai.{table}").fetchone() or (0,)
                assert (count > 0) is seen, (table, tenant)


def test_the_commands(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAI_DATABASE_URL", url)
    monkeypatch.setenv("FINOPS_HOME", str(Path(site.lake.where).parent))

    def finops(*arguments: str) -> str:
        cli.app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    rows = json.loads(finops("findings", "--kind", "no_sign_of_life", "--json"))
    assert [row["seconds"] for row in rows] == ["2400.000", "3600.000", "1800.000"]
    assert "3 no_sign_of_life" in finops("findings", "--from", "2026-10-01T10:00Z", "--to", "2026-10-01T13:00Z")
    with pytest.raises(UsageError, match="--kind nonsense: use one of"):
        finops("findings", "--kind", "nonsense")
    (proposal,) = json.loads(finops("credits", "list", "--status", "proposed", "--json"))
    assert proposal["evidence"]["event_ids"] == ["e1", "e2"]
    assert "5.369" in finops("credits", "list")
    assert "3 events booked now" in finops("credits", "approve", proposal["id"], "--reason", "dead", "--by", "ada")
    assert "0 events booked now" in finops("credits", "approve", proposal["id"], "--reason", "dead", "--by", "ada")
    assert finops("credits", "list", "--status", "proposed") == "no credit is proposed\n"
    table = finops("quotas", "set", A, "1E+1")
    assert (" 10\n" in table, "E+" in table) == (True, False)
    assert json.loads(finops("quotas", "list", "--json"))[0]["gpu_hours"] == "10"
    assert " 10  " in finops("usage")
    for command in (("usage",), ("findings",), ("credits", "list")):
        assert "<table" in finops(*command, "--format", "html")
        assert "|:-" in finops(*command, "--format", "markdown")
    finops("quotas", "set", A, "none")
    assert "2.5" in finops("quotas", "set", A, "2.5", "--period", "day", "--class", "H100")
    assert "100.0%" in finops("usage", "--by", "day")
    assert json.loads(finops("quotas", "list", "--json"))[0]["gpu_hours"] == "2.5"
    assert A in finops("fairshare")
    assert finops("fairshare", "set", "lab", "2E+1") == "lab has 20 shares\n"
    assert [row["name"] for row in json.loads(finops("fairshare", "--json"))] == [A, "lab"]


# Reported to people


class Receiver(BaseHTTPRequestHandler):
    """Takes documents; answers with the statuses that the test lines up, then 200."""

    taken: ClassVar[list[tuple[dict[str, Any], str]]] = []
    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.taken.append((json.loads(body), self.headers["Idempotency-Key"]))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.taken.clear()
    Receiver.statuses.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/services/secret-token"
        server.shutdown()


def webhook(url: str) -> Webhook:
    return Webhook(SecretStr(url), pause_seconds=0.01)


def test_a_workload_is_told_once_a_day(site: Site, receiver: str) -> None:
    assert post_new(site.database, webhook(receiver), ONE) == Posted(1, 0, None)
    assert post_new(site.database, webhook(receiver), ONE) == Posted(0, 0, None)
    compute(site)
    assert post_new(site.database, webhook(receiver), ONE) == Posted(0, 0, None)
    ((document, key),) = Receiver.taken
    assert key == document["id"]
    assert document | {"id": ""} == {
        "id": "", "kind": "held_but_idle", "cluster": "c1", "workload_id": "w", "tenant_id": A, "day": "2026-10-01",
        "devices": ["GPU-a"], "seconds": 7800.0,
        "text": "w on c1 holds 1 GPU without using it: 2.167 idle GPU-hours on 2026-10-01 so far",
    }  # fmt: skip


def test_the_next_day_is_told_again_and_an_old_one_never(site: Site, receiver: str) -> None:
    with site.database.transaction() as connection:
        connection.execute(
            "INSERT INTO eai.findings SELECT cluster, hour + interval '1 day', kind, subject, workload_id, tenant_id,"
            " attributed, first_at, last_at, seconds, detail FROM eai.findings WHERE kind = 'held_but_idle'"
        )
    assert post_new(site.database, webhook(receiver), TEN + timedelta(days=2, hours=4)).sent == 1
    assert [document["day"] for document, _ in Receiver.taken] == ["2026-10-02"]


def test_a_receiver_that_stumbles_is_tried_again(site: Site, receiver: str) -> None:
    Receiver.statuses.extend([503, 429])
    assert post_new(site.database, webhook(receiver), ONE).sent == 1


def test_a_receiver_that_is_down_gets_it_at_the_next_tick(site: Site, receiver: str) -> None:
    Receiver.statuses.extend([500] * 3)
    posted = post_new(site.database, webhook(receiver), ONE)
    assert (posted.sent, posted.waiting) == (0, 1)
    assert posted.problem == "FINOPS_WEBHOOK_URL: 127.0.0.1 does not take it: HTTP 500"
    assert post_new(site.database, webhook(receiver), ONE).sent == 1


def test_a_refusal_is_not_repeated_in_one_round(site: Site, receiver: str) -> None:
    Receiver.statuses.extend([403])
    posted = post_new(site.database, webhook(receiver), ONE)
    assert (posted.sent, posted.problem) == (0, "FINOPS_WEBHOOK_URL: 127.0.0.1 refuses: HTTP 403")
    assert Receiver.statuses == []


def test_nobody_listens(site: Site) -> None:
    posted = post_new(site.database, webhook("http://127.0.0.1:9/secret-token"), ONE)
    assert (posted.sent, posted.waiting) == (0, 1)
    assert "secret-token" not in f"{posted.problem}{webhook('http://127.0.0.1:9/secret-token')!r}"


def test_two_rounds_at_once_tell_it_once(site: Site, receiver: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        rounds = list(pool.map(lambda _: post_new(site.database, webhook(receiver), ONE), range(4)))
    assert sum(posted.sent for posted in rounds) == 1
    assert len(Receiver.taken) == 1


def test_the_sensor_tells_and_never_fails(
    site: Site, url: str, receiver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(**environ: str) -> str:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance=instance) as context:
            data = held_but_idle_sensor.evaluate_tick(context)
        assert data.run_requests == []
        return str(data.skip_message)

    monkeypatch.chdir(tmp_path)
    assert tick(EAI_DATABASE_URL=url) == "FINOPS_WEBHOOK_URL is not set: nothing is reported"
    with site.database.transaction() as connection:
        connection.execute("UPDATE eai.findings SET hour = date_trunc('hour', now()) WHERE kind = 'held_but_idle'")
    assert tick(FINOPS_WEBHOOK_URL=receiver) == "1 idle workloads reported"
    assert tick() == "0 idle workloads reported"
    assert "nothing was reported" in tick(EAI_DATABASE_URL="postgresql://127.0.0.1:9/nothing")
