"""Statements (A30): every case's gpu_allocation.json byte for byte, currencies of any minor unit, and properties."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import AccountingError
from finops_pipeline.accounting.money.statement import CORRECTIONS, statement, statement_json
from finops_pipeline.contracts import lake

CASES = Path(__file__).parents[1] / "cases"
CASE_NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())
UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")


def row(**changes: Any) -> dict[str, Any]:
    return {
        "cluster": "dc1",
        "hour": datetime(2026, 10, 1, 10, tzinfo=UTC),
        "workload_id": "wl",
        "gpu_model": "H100",
        "tenant_id": "a",
        "usage_type": "gpu_local",
        "deployment_id": "chat",
        "gpu_seconds": Decimal("3600.000"),
        "gpu_memory_gb_seconds": None,
        "energy_wh": Decimal("500.000000"),
        "amount": Decimal("1.000000000"),
        "currency": "EUR",
        "policy_id": "p1",
        "estimated": False,
    } | changes


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=lake.GPU_COST_ALLOCATION)


def amounts(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        item["tenant_id"]: item["allocated"]["amount"]
        for item in statement("2026-10", "open", table_of(*rows))["items"]
    }


@pytest.mark.parametrize("case", CASE_NAMES)
def test_case(case: str) -> None:
    with (CASES / case / "expected/allocation.csv").open(newline="") as file:
        rows: list[dict[str, Any]] = [
            {
                **{name: text or None for name, text in line.items()},
                **{name: Decimal(line[name]) if line[name] else None for name in (*UNITS, "amount")},
                "hour": datetime.fromisoformat(line["hour"]),
                "estimated": line["estimated"] == "true",
            }
            for line in csv.DictReader(file)
        ]
    months = sorted({line["hour"].strftime("%Y-%m") for line in rows})
    statements = [
        statement(month, "open", table_of(*(line for line in rows if line["hour"].strftime("%Y-%m") == month)))
        for month in months
    ]
    assert statement_json(statements) == (CASES / case / "expected/gpu_allocation.json").read_text()


def test_an_empty_month_is_a_statement_without_lines() -> None:
    result = statement("2026-10", "open", lake.GPU_COST_ALLOCATION.empty_table())
    assert result == {"period": "2026-10", "status": "open", "items": [], "totals": []}
    assert json.loads(statement_json([result])) == [result]
    assert statement_json([]) == "[]\n"


@pytest.mark.parametrize(
    ("currency", "parts", "total"),
    [
        ("EUR", {"a": "0.34", "b": "0.33", "c": "0.33"}, "1.00"),
        ("JPY", {"a": "1", "b": "0", "c": "0"}, "1"),
        ("KWD", {"a": "0.334", "b": "0.333", "c": "0.333"}, "1.000"),
    ],
)
def test_minor_units_of_0_2_and_3_decimals(currency: str, parts: dict[str, str], total: str) -> None:
    """A third each, the first a hair more: it gets the unit left over."""
    thirds = {"a": "0.333333334", "b": "0.333333333", "c": "0.333333333"}
    rows = [row(tenant_id=tenant, amount=Decimal(text), currency=currency) for tenant, text in thirds.items()]
    assert amounts(*rows) == parts
    (line,) = statement("2026-10", "open", table_of(*rows))["totals"]
    assert (line["amount"], line["currency"]) == (total, currency)


def test_equal_fractions_go_by_the_digest_of_tenant_deployment_and_month() -> None:
    """A30: sha256("a|chat|2026-10") = 3fd5d504.. comes before sha256("b|chat|2026-10") = f7e4dce4.."""
    rows = [row(tenant_id=tenant, amount=Decimal("0.015000000")) for tenant in "ba"]
    assert amounts(*rows) == {"a": "0.02", "b": "0.01"}


def test_a_total_of_half_a_cent_goes_to_the_even_one() -> None:
    assert amounts(row(amount=Decimal("0.005000000"))) == {"a": "0.00"}
    assert amounts(row(amount=Decimal("0.015000000"))) == {"a": "0.02"}


def test_negative_amounts_sum_to_their_rounded_total() -> None:
    """Corrections of earlier hours: -1.006 - 0.001 = -1.007, rounded -1.01; cut down to -1.01 and -0.01."""
    rows = [row(amount=Decimal("-1.006000000")), row(tenant_id="b", amount=Decimal("-0.001000000"))]
    assert amounts(*rows) == {"a": "-1.01", "b": "0.00"}


def test_unpriced_usage_is_an_item_and_a_total_of_its_own() -> None:
    rows = [row(), row(workload_id="w2", amount=None, currency=None, policy_id=None)]
    result = statement("2026-10", "open", table_of(*rows))
    assert [(i["allocated"]["currency"], i["policy_id"], i["gpu_seconds"]) for i in result["items"]] == [
        (None, None, Decimal(3600)),
        ("EUR", "p1", Decimal(3600)),
    ]
    assert [(t["amount"], t["currency"]) for t in result["totals"]] == [(None, None), ("1.00", "EUR")]


def test_currencies_are_never_added_together() -> None:
    result = statement("2026-10", "open", table_of(row(), row(workload_id="w2", currency="USD")))
    assert [(t["amount"], t["currency"]) for t in result["totals"]] == [("1.00", "EUR"), ("1.00", "USD")]
    assert len(result["items"]) == 2


def test_policy_is_that_of_the_latest_priced_hour() -> None:
    later = datetime(2026, 10, 1, 11, tzinfo=UTC)
    rows = [
        row(hour=later, policy_id="new"),
        row(policy_id="old", workload_id="zz"),
        row(hour=later, policy_id="newest", workload_id="wm"),
    ]
    for order in (rows, rows[::-1]):
        (item,) = statement("2026-10", "open", table_of(*order))["items"]
        assert item["policy_id"] == "newest"


def test_policy_of_two_in_one_hour_is_the_highest_id_whatever_the_rows_order() -> None:
    """A workload that holds an H100 (policy std) and an L40S (policy L) in one hour: not the last row's."""
    rows = [row(gpu_model="H100", policy_id="std"), row(gpu_model="L40S", policy_id="L")]
    for some in (rows, rows[::-1]):
        (item,) = statement("2026-10", "open", table_of(*some))["items"]
        assert item["policy_id"] == "std"


def test_estimated_is_never_dropped() -> None:
    rows = [row(workload_id=f"w{n}", estimated=n == 1) for n in range(3)]
    (item,) = statement("2026-10", "open", table_of(*rows))["items"]
    assert item["estimated"] is True


def test_an_hour_of_another_month_is_an_error() -> None:
    with pytest.raises(AccountingError, match="statement 2026-09 was given an hour of 2026-10"):
        statement("2026-09", "open", table_of(row()))


lines = st.lists(
    st.builds(
        lambda workload, tenant, deployment, currency, units, seconds: row(
            workload_id=f"w{workload}",
            tenant_id=tenant,
            deployment_id=deployment,
            amount=Decimal(units).scaleb(-9),
            currency=currency,
            gpu_seconds=None if seconds is None else Decimal(seconds).scaleb(-3),
        ),
        st.integers(0, 99),
        st.sampled_from("abcd"),
        st.sampled_from(["chat", "idle", "x|y"]),
        st.sampled_from(["EUR", "JPY", "KWD"]),
        st.integers(-(10**12), 10**13),
        st.none() | st.integers(0, 10**9),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=100)
@given(lines, st.randoms(use_true_random=False))
def test_items_sum_to_the_rounded_total_in_any_order(rows: list[dict[str, Any]], shuffler: Any) -> None:
    result = statement("2026-10", "open", table_of(*rows))
    for total in result["totals"]:
        items = [item for item in result["items"] if item["allocated"]["currency"] == total["currency"]]
        exact = [r for r in rows if r["currency"] == total["currency"]]
        minor = {"EUR": Decimal("0.01"), "JPY": Decimal(1), "KWD": Decimal("0.001")}[total["currency"]]
        assert sum(Decimal(item["allocated"]["amount"]) for item in items) == Decimal(total["amount"])
        assert sum(r["amount"] for r in exact).quantize(minor, ROUND_HALF_EVEN) == Decimal(total["amount"])
        assert not total["amount"].startswith("-0") or Decimal(total["amount"])
        for item in items:
            mine = [r for r in exact if all(r[name] == item[name] for name in ("tenant_id", "deployment_id"))]
            assert abs(sum(r["amount"] for r in mine) - Decimal(item["allocated"]["amount"])) < minor
            known = [r["gpu_seconds"] for r in mine if r["gpu_seconds"] is not None]
            assert item["gpu_seconds"] == (sum(known) if known else None)
    text = statement_json([result])
    shuffler.shuffle(rows)
    assert statement_json([statement("2026-10", "open", table_of(*rows))]) == text


def correction(**changes: Any) -> dict[str, Any]:
    return {
        "hour": datetime(2026, 9, 30, 10, tzinfo=UTC),
        "tenant_id": "a",
        "deployment_id": "chat",
        "currency": "EUR",
        "policy_id": "p1",
        "gpu_seconds": Decimal("-3600.000"),
        "gpu_memory_gb_seconds": None,
        "energy_wh": Decimal("0.000000"),
        "amount": Decimal("-1.000000000"),
        "estimated": False,
    } | changes


def corrected(*rows: dict[str, Any], items: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return statement("2026-10", "open", table_of(*items), pa.Table.from_pylist(list(rows), schema=CORRECTIONS))


def test_corrections_have_their_hour_and_totals_hold_both() -> None:
    result = corrected(correction(), items=(row(),))
    assert result["items"] == statement("2026-10", "open", table_of(row()))["items"], "an item does not change by them"
    assert result["corrections"] == [
        {
            "hour": "2026-09-30T10:00:00Z",
            "tenant_id": "a",
            "deployment_id": "chat",
            "gpu_seconds": Decimal("-3600.000"),
            "gpu_memory_gb_seconds": None,
            "energy_wh": Decimal("0.000000"),
            "allocated": {"amount": "-1.00", "currency": "EUR"},
            "policy_id": "p1",
            "estimated": False,
        }
    ]
    (total,) = result["totals"]
    assert (total["amount"], total["gpu_seconds"], total["energy_wh"]) == (
        "0.00",
        Decimal("0.000"),
        Decimal("500.000000"),
    )


def test_without_corrections_the_file_is_as_ever() -> None:
    assert corrected(items=(row(),)) == statement("2026-10", "open", table_of(row()))


def test_events_of_one_hour_and_account_are_one_line_and_nothing_is_no_line() -> None:
    up = correction(gpu_seconds=Decimal("3600.000"), amount=Decimal("1.000000000"), policy_id=None, estimated=True)
    assert "corrections" not in corrected(correction(), up)
    (line,) = corrected(correction(), up, correction(policy_id="p2"))["corrections"]
    assert (line["gpu_seconds"], line["policy_id"], line["estimated"]) == (Decimal("-3600.000"), "p2", True)


def test_lines_are_sorted_by_hour_first() -> None:
    later = correction(hour=datetime(2026, 9, 30, 11, tzinfo=UTC))
    lines = corrected(later, correction(tenant_id="b"), correction(currency=None, amount=None))["corrections"]
    assert [(x["hour"][11:13], x["tenant_id"], x["allocated"]["currency"]) for x in lines] == [
        ("10", "a", None),
        ("10", "b", "EUR"),
        ("11", "a", "EUR"),
    ]


def test_a_correction_of_a_later_month_is_refused() -> None:
    with pytest.raises(AccountingError, match="A33"):
        corrected(correction(hour=datetime(2026, 11, 1, tzinfo=UTC)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(10**9), 10**9), max_size=5),
    st.lists(st.integers(-(10**9), 10**9), max_size=5),
)
def test_lines_sum_to_the_total_and_stay_within_a_cent(own: list[int], late: list[int]) -> None:
    def amount(units: int) -> Decimal:
        return Decimal(units).scaleb(-9)

    items = tuple(row(tenant_id=f"t{n}", amount=amount(units)) for n, units in enumerate(own))
    result = corrected(*(correction(tenant_id=f"t{n}", amount=amount(u)) for n, u in enumerate(late)), items=items)
    for name, exact in (("items", own), ("corrections", late)):
        for line in result.get(name, ()):
            units = exact[int(line["tenant_id"][1:])]
            assert abs(Decimal(line["allocated"]["amount"]) - amount(units)) < Decimal("0.01")
    lines = [line["allocated"]["amount"] for name in ("items", "corrections") for line in result.get(name, ())]
    assert sum(map(Decimal, lines)) == sum(Decimal(total["amount"]) for total in result["totals"])
    whole = sum((amount(units) for units in (*own, *late)), Decimal(0))
    assert abs(sum(map(Decimal, lines)) - whole) <= Decimal("0.01"), (
        "half a cent for items, half a cent for corrections"
    )
