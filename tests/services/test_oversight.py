"""Findings, credits, quotas and shares through the whole pipeline, on a real Postgres.

A workload of tenant A that its events let run until 12:30 shows no sign of life after 10:20. By hand, at 2.10 EUR and 18 %
overhead (no energy is known): 2.478 for each whole hour, 2.478 + 2.478 + 1.239 charged, of which
2/3 x 2.478 + 2.478 + 1.239 = 5.369 could be given back, and 2400 + 3600 + 1800 = 7800 GPU-seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from assets.credits import decide, listed
from finops_pipeline.errors import UsageError
from finops_pipeline.runner import run_hours
from finops_pipeline.settings import load_settings
from resources.published import read_statement
from resources.site import Site, open_site
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
    return [json.loads(text) for text in found["p"].to_pylist()]


@pytest.fixture
def site(databases: Databases, tmp_path: Path) -> Iterator[Site]:
    with site_of(databases.fresh(), tmp_path / "home", bundle(tmp_path / "bundle")) as opened:
        compute(opened)
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
    assert [told["hour"] for told in evidence["findings"]] == [f"2026-10-01T{hour}:00:00Z" for hour in (10, 11, 12)]


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


def test_a_late_end_takes_charge_and_credit_away_together(site: Site, databases: Databases, tmp_path: Path) -> None:
    """The platform learns that the workload ended at 10:20: 826/2478 of one hour are left, and no credit."""
    approve(site, listed(site.database)[0]["id"])
    folder = bundle(tmp_path / "late", f"e3,2026-10-01T10:20:00Z,w,{A},,ns,w,running,stopped,,,,,")
    url = site.database._url.render_as_string(hide_password=False).replace("+psycopg", "")
    with site_of(url, tmp_path / "home", folder) as later:
        compute(later)
        assert booked(later, "w") == Decimal("0.826")
        assert booked(later, "credit:%") == 0
        compute(later)
        assert booked(later) == Decimal("0.826")
        assert [row["status"] for row in listed(later.database)] == ["approved"]


def test_rejecting_books_nothing_and_is_not_proposed_again(site: Site) -> None:
    (found,) = listed(site.database)
    count = events(site)
    for _ in range(2):
        outcome = decide(site.database, found["id"], approve=False, reason="it had crashed itself", decided_by="ada")
        assert (outcome.status, outcome.amount, outcome.booked) == ("rejected", 0, 0)
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
