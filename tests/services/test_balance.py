"""The trial balance sees every single thing that is made wrong. That it holds for every case is in tests/cases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from finops_pipeline.resources.postgres.balance import Proof, trial_balance
from tests.databases import Databases
from tests.services.books import BOB, HOUR, POLICY, Books, Used

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def books(databases: Databases, tmp_path: Path) -> Iterator[Books]:
    """A final month, a correction of it, and an open month that lists it."""
    url = databases.fresh()
    opened = Books(url, databases.admin(url), tmp_path)
    opened.hour(OCTOBER, Used(seconds="1234.567", wh="99.999999"), Used(BOB, "1800", None, "wl2", "train"))
    opened.close("2026-10")
    opened.hour(OCTOBER, Used(seconds="1200", wh="99.999999"), Used(BOB, "1800", None, "wl2", "train"))
    opened.hour(NOVEMBER, Used())
    opened.publish("2026-11")
    yield opened
    opened.database.close()


def wrong(books: Books, period: str | None = None) -> list[Proof]:
    return [proof for proof in trial_balance(books.database, period) if not proof.holds]


def test_it_holds_with_a_final_month_and_corrections(books: Books) -> None:
    proofs = trial_balance(books.database)
    assert [proof for proof in proofs if not proof.holds] == []
    assert {(proof.proof, proof.period) for proof in proofs} == {
        (proof, period) for proof in ("priced", "booked", "stated") for period in ("2026-10", "2026-11")
    }
    stated = {p.period: p.right for p in proofs if (p.proof, p.tenant_id, p.measure) == ("stated", None, "gpu_seconds")}
    assert stated == {"2026-10": Decimal("3034.567"), "2026-11": Decimal("3565.433")}


def test_one_month_only(books: Books) -> None:
    assert {proof.period for proof in trial_balance(books.database, "2026-11")} == {"2026-11"}
    assert trial_balance(books.database, "2026-09") == []


def test_an_empty_database_balances(databases: Databases, tmp_path: Path) -> None:
    url = databases.fresh()
    opened = Books(url, databases.admin(url), tmp_path, policies=())
    assert trial_balance(opened.database) == []
    opened.database.close()


@pytest.mark.parametrize(
    ("statement", "proof", "fault"),
    [
        ("UPDATE eai.gpu_cost_allocation SET amount = amount + 0.000000001", "priced", "costs something else"),
        ("UPDATE eai.gpu_usage SET gpu_seconds = gpu_seconds + 0.001", "priced", "do not sum to its units"),
        ("UPDATE eai.gpu_usage SET gpu_memory_gb_seconds = 1", "priced", "do not sum to its units"),
        ("DELETE FROM eai.gpu_usage", "priced", "is paid, but is no usage"),
        ("DELETE FROM eai.gpu_cost_allocation", "priced", "is usage that nobody pays"),
        ("UPDATE eai.allocation_policies SET pue = 1.5", "priced", "costs something else"),
        ("UPDATE eai.allocation_policies SET effective_from = '2027-01-01T00:00Z'", "priced", "not in force"),
        ("UPDATE eai.allocation_policies SET effective_to = '2026-10-01T00:00Z'", "priced", "not in force"),
        ("UPDATE eai.allocation_policies SET currency = 'USD'", "priced", "not in the currency"),
        ("UPDATE eai.gpu_cost_allocation SET policy_id = 'x'", "priced", "does not exist"),
        ("UPDATE eai.gpu_cost_allocation SET policy_id = NULL", "priced", "amount without a policy"),
        ("UPDATE eai.usage_events SET cost_amount = cost_amount + 0.000000001 WHERE seq = 1", "booked", None),
        ("UPDATE eai.usage_events SET energy_wh = 0 WHERE seq = 1", "booked", None),
        (f"UPDATE eai.usage_events SET tenant_id = '{BOB}'", "booked", None),
        ("DELETE FROM eai.usage_events WHERE revision = 2", "booked", None),
        ("UPDATE eai.gpu_allocation SET amount = amount + 0.01 WHERE period = '2026-10'", "stated", "the lines sum to"),
        ("UPDATE eai.gpu_allocation SET gpu_seconds = 1 WHERE period = '2026-11'", "stated", "the lines sum to"),
        ("UPDATE eai.gpu_allocation_totals SET amount = amount + 0.01", "stated", "the total says"),
        ("DELETE FROM eai.gpu_corrections", "stated", "the lines sum to"),
        ("DELETE FROM eai.gpu_correction_events", "stated", None),
        ("DELETE FROM eai.late_events", "stated", None),
    ],
)
def test_whatever_is_made_wrong_is_seen(statement: str, proof: str, fault: str | None, books: Books) -> None:
    books.tamper(statement)
    found = [one for one in wrong(books) if one.proof == proof]
    assert found
    if fault is not None:
        assert any(fault in (one.fault or "") for one in found), found


def test_lines_and_total_that_are_wrong_together(books: Books) -> None:
    """A cent too much on line and total: within the line's tolerance, not within the total's."""
    books.tamper(
        "UPDATE eai.gpu_allocation SET amount = amount + 0.01 WHERE period = '2026-10' AND deployment_id = 'chat'",
        "UPDATE eai.gpu_allocation_totals SET amount = amount + 0.01 WHERE period = '2026-10'",
    )
    assert [(p.proof, p.tenant_id) for p in wrong(books) if p.tenant_id is None] == [("stated", None)]


def test_a_row_that_is_rounded_half_up_is_seen(databases: Databases, tmp_path: Path) -> None:
    """1 s at 0.0000018 an hour is half a unit of 1e-9: half-even makes it 0, a database's ROUND would make it 1."""
    url = databases.fresh()
    price = POLICY | {"gpu_hourly_cost": "0.0000018", "overhead_pct": "0", "energy_kwh_price": "0"}
    opened = Books(url, databases.admin(url), tmp_path, policies=(price,))
    opened.hour(OCTOBER, Used(seconds="1", wh="0"))
    assert wrong(opened) == []
    opened.tamper("UPDATE eai.gpu_cost_allocation SET amount = 0.000000001")
    assert [one.fault for one in wrong(opened) if one.proof == "priced"] == [
        "c1, 2026-10-01T00:00:00Z, wl on H100 is not rounded half-even"
    ]
    opened.database.close()


def test_parts_of_one_row_with_two_policies_are_seen(books: Books) -> None:
    books.hour(NOVEMBER + HOUR, Used())
    books.tamper(
        "INSERT INTO eai.gpu_cost_allocation SELECT cluster, hour, workload_id, gpu_model,"
        f" '{BOB}', usage_type, deployment_id, 0, NULL, 0, NULL, 0, currency, 'alp_9', estimated"
        " FROM eai.gpu_cost_allocation WHERE hour = '2026-11-01T01:00Z'"
    )
    assert any("several policies" in (one.fault or "") for one in wrong(books))
