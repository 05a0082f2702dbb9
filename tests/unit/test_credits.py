"""Credits: which time is lost, what it was charged, and that no more than that is ever given back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.credits import (
    Allocated,
    Charge,
    Lost,
    credit_rows,
    evidence,
    grants,
    lost_windows,
    proposals,
    without,
)
from finops_pipeline.accounting.money.ledger import booked_sums, differences
from finops_pipeline.contracts.lake import FINDINGS, WORKLOAD_EVENTS

TEN = 1_790_848_800_000  # 2026-10-01T10:00:00Z
MINUTE = 60_000
A, B = "a0000000-0000-4000-8000-00000000000a", "b0000000-0000-4000-8000-00000000000b"
CONFIG = AccountingConfig(platform_tenant="p", class_fraction={"quarter": Fraction(1, 4)})
ACCOUNT = (A, "d", "EUR")


def allocated(*events: tuple[int, str, str, str]) -> Allocated:
    """Events of workload w: minutes after 10:00, state, gpu_count, class."""
    rows = [
        {"event_id": f"e{n}", "occurred_at": TEN + minute * MINUTE, "workload_id": "w", "tenant_id": A,
         "to_state": state, "gpu_count": Decimal(count), "placed_class": placed}
        for n, (minute, state, count, placed) in enumerate(events)
    ]  # fmt: skip
    intervals = running_intervals(pa.Table.from_pylist(rows, WORKLOAD_EVENTS), TEN + 99 * HOUR_MS, CONFIG)
    return Allocated(intervals, "w", CONFIG)


def finding(kind: str, first: int, last: int, seconds: int | None = None) -> dict[str, Any]:
    """`first` and `last` in minutes after 10:00."""
    hour = (last - 1) // 60 * 60
    return {
        "cluster": "c", "hour": TEN + hour * MINUTE, "kind": kind, "subject": "w", "workload_id": "w", "tenant_id": A,
        "first_at": TEN + first * MINUTE, "last_at": TEN + last * MINUTE,
        "seconds": Decimal((last - first) * 60 if seconds is None else seconds), "detail": "why",
    }  # fmt: skip


def windows(*rows: dict[str, Any], of: Allocated | None = None) -> list[tuple[str, int, int]]:
    found = lost_windows(pa.Table.from_pylist(list(rows), FINDINGS), of or allocated((0, "running", "1", "h")), CONFIG)
    return [(lost.reason, (lost.begin - TEN) // MINUTE, (lost.end - TEN) // MINUTE) for lost in found]


def charge(hour: int, amount: str, seconds: str = "3600", account: tuple[str, str, str] = ACCOUNT) -> Charge:
    return Charge(TEN + hour * HOUR_MS, *account, Decimal(seconds), Decimal(amount), estimated=False)


# Windows


def test_silent_hours_in_a_row_are_one_window() -> None:
    rows = [finding("no_sign_of_life", first, last) for first, last in ((40, 60), (60, 120), (120, 135))]
    assert windows(*rows) == [("died_unseen", 40, 135)]


def test_hours_that_do_not_meet_are_two() -> None:
    assert windows(finding("no_sign_of_life", 40, 60), finding("no_sign_of_life", 70, 120)) == [
        ("died_unseen", 40, 60),
        ("died_unseen", 70, 120),
    ]


def test_the_end_of_an_hour_alone_is_too_short() -> None:
    assert windows(finding("no_sign_of_life", 55, 60)) == []


def test_after_a_day_without_a_reading_the_workload_is_unmatched_as_a_whole() -> None:
    dead, gone, partly = (
        finding("no_sign_of_life", 30, 60),
        finding("unmatched", 60, 120),
        finding("unmatched", 120, 180, seconds=1800),
    )
    assert windows(dead, gone, partly) == [("died_unseen", 30, 120)]
    assert windows(gone) == []


def test_a_node_failure_wins_over_a_silent_end() -> None:
    assert windows(finding("no_sign_of_life", 20, 60), finding("node_failure", 50, 75, 900)) == [
        ("died_unseen", 20, 50),
        ("node_failure", 50, 75),
    ]


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ([], [(0, 10)]), ([(0, 10)], []), ([(2, 4)], [(0, 2), (4, 10)]), ([(-5, 3), (8, 20)], [(3, 8)]),
        ([(6, 8), (1, 7)], [(0, 1), (8, 10)]), ([(12, 15)], [(0, 10)]),
    ],
)  # fmt: skip
def test_what_is_left_of_a_span(taken: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert without((0, 10), taken) == left


# Shares and amounts


def test_shares_are_by_allocated_time() -> None:
    """Runs from 10:30; lost from 10:40 to 11:15: 20 of 30 minutes, then 15 of 60."""
    shares = allocated((30, "running", "1", "h")).shares(TEN + 40 * MINUTE, TEN + 75 * MINUTE)
    assert shares == {TEN: Fraction(2, 3), TEN + HOUR_MS: Fraction(1, 4)}


def test_shares_weigh_the_units() -> None:
    """30 minutes of 1 GPU and 30 of 3: 90 of 120 GPU-minutes; a quarter counts a quarter."""
    of = allocated((0, "running", "1", "h"), (30, "running", "3", "h"))
    assert of.shares(TEN + 30 * MINUTE, TEN + 60 * MINUTE) == {TEN: Fraction(3, 4)}
    of = allocated((0, "running", "1", "h"), (30, "running", "4", "quarter"))
    assert of.shares(TEN + 30 * MINUTE, TEN + 60 * MINUTE) == {TEN: Fraction(1, 2)}


def test_an_hour_that_is_not_allocated_has_no_share() -> None:
    of = allocated((0, "running", "1", "h"), (20, "stopped", "0", "h"))
    assert of.shares(TEN + 20 * MINUTE, TEN + 180 * MINUTE) == {}


def test_a_proposal_by_hand() -> None:
    """2.628528 for the hour from 10, lost from 10:20 to 11:15: 2/3 of it, and 1/4 of 2.10."""
    of = allocated((0, "running", "1", "h"))
    lost = Lost("died_unseen", TEN + 20 * MINUTE, TEN + 75 * MINUTE, ())
    (found,) = proposals("c", "w", lost, of, [charge(0, "2.628528"), charge(1, "2.10"), charge(2, "9")], {})
    assert found.amount == Decimal("1.752352000") + Decimal("0.525")
    assert found.gpu_seconds == Decimal(2400) + Decimal(900)
    assert found.shares == {TEN: Fraction(2, 3), TEN + HOUR_MS: Fraction(1, 4)}


def test_each_tenant_of_a_shared_deployment_has_a_proposal_of_its_own() -> None:
    lost = Lost("died_unseen", TEN, TEN + 30 * MINUTE, ())
    charges = [charge(0, "7"), charge(0, "3", account=(B, "d", "EUR")), charge(0, "1", account=(A, "d", "USD"))]
    found = proposals("c", "w", lost, allocated((0, "running", "1", "h")), charges, {})
    assert [(p.tenant_id, p.currency, p.amount) for p in found] == [
        (A, "EUR", Decimal("3.5")),
        (A, "USD", Decimal("0.5")),
        (B, "EUR", Decimal("1.5")),
    ]
    assert len({p.id for p in found}) == 3


def test_a_window_that_grows_is_the_same_proposal() -> None:
    of, charges = allocated((0, "running", "1", "h")), [charge(0, "2"), charge(1, "2")]
    ids = {
        proposals("c", "w", Lost("died_unseen", TEN, TEN + minutes * MINUTE, ()), of, charges, {})[0].id
        for minutes in (30, 60, 90)
    }
    assert len(ids) == 1


def test_what_was_decided_is_not_proposed_again() -> None:
    of, charges = allocated((0, "running", "1", "h")), [charge(0, "2"), charge(1, "2")]
    lost = Lost("died_unseen", TEN, TEN + 90 * MINUTE, ())
    (rest,) = proposals("c", "w", lost, of, charges, {ACCOUNT: [(TEN, TEN + 60 * MINUTE)]})
    assert (rest.lost.begin, rest.amount) == (TEN + HOUR_MS, Decimal(1))
    assert proposals("c", "w", lost, of, charges, {ACCOUNT: [(TEN, TEN + 90 * MINUTE)]}) == []


def test_what_nobody_paid_is_not_proposed() -> None:
    lost = Lost("died_unseen", TEN, TEN + 90 * MINUTE, ())
    assert proposals("c", "w", lost, allocated((0, "running", "1", "h")), [charge(0, "0")], {}) == []


# Booking


def events(approved: Sequence[tuple[str, dict[int, Fraction]]], charges: list[Charge], booked: list[Any]) -> list[Any]:
    parts = grants([(name, ACCOUNT, shares) for name, shares in approved], charges)
    return differences(*credit_rows("c", parts), booked_sums(booked))


def sums(booked: list[dict[str, Any]]) -> Decimal:
    return sum((Decimal(event["cost"]["amount"]) for event in booked), Decimal(0))


def test_a_credit_is_a_negative_event_without_units_and_books_once() -> None:
    booked = events([("x", {TEN: Fraction(2, 3)})], [charge(0, "3")], [])
    (event,) = booked
    assert event["workload_id"] == "credit:x"
    assert (event["cost"], event["units"]) == ({"amount": "-2.000000000", "currency": "EUR"}, {})
    assert event["deployment_id"] == "d"
    assert events([("x", {TEN: Fraction(2, 3)})], [charge(0, "3")], booked) == []


def test_a_credit_fits_the_contract(repository: Path) -> None:
    schema = json.loads((repository / "contracts" / "v1" / "usage-event.schema.json").read_text(encoding="utf-8"))
    name = "00000000-0000-4000-8000-000000000000"
    booked = events([(name, {TEN: Fraction(2, 3)})], [charge(0, "3")], [])
    booked += events([(name, {TEN: Fraction(2, 3)})], [charge(0, "2")], booked)
    assert [list(Draft202012Validator(schema).iter_errors(event)) for event in booked] == [[], []]


def test_a_credit_follows_the_charge_down_and_up_and_out() -> None:
    booked: list[Any] = []
    for amount, expected in (("3", "-2"), ("1.5", "-1"), ("6", "-4"), ("0", "0"), ("-1", "0")):
        booked += events([("x", {TEN: Fraction(2, 3)})], [charge(0, amount)], booked)
        assert sums(booked) == Decimal(expected)
    assert [event["revision"] for event in booked] == [1, 2, 3, 4]
    booked += events([("x", {TEN: Fraction(2, 3)})], [charge(0, "3")], booked)
    booked += events([("x", {})], [charge(0, "3")], booked)  # its workload did not run then, as is known by now
    assert sums(booked) == 0


def test_several_credits_of_one_hour_never_exceed_it() -> None:
    approved = [("x", {TEN: Fraction(2, 3)}), ("y", {TEN: Fraction(2, 3)}), ("z", {TEN: Fraction(1)})]
    parts = grants([(name, ACCOUNT, shares) for name, shares in approved], [charge(0, "3")])
    assert [part.amount for part in parts] == [Decimal(2), Decimal(1), Decimal(0)]


@given(
    st.lists(st.fractions(0, 1, max_denominator=3600), max_size=5),
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=5),
)
def test_credits_stay_between_nothing_and_the_charge(shares: list[Fraction], amounts: list[int]) -> None:
    """Whatever is approved, and however the charge changes: sum of the credits within [0, charge]."""
    booked: list[Any] = []
    for amount in amounts:
        now = Decimal(amount).scaleb(-9)
        approved = [(f"{n}", {TEN: share}) for n, share in enumerate(shares)]
        booked += events(approved, [charge(0, f"{now}")], booked)
        assert 0 <= -sums(booked) <= max(now, Decimal(0))
        assert events(approved, [charge(0, f"{now}")], booked) == []


def test_evidence_names_the_events_around() -> None:
    rows = [
        {
            "event_id": f"e{n}",
            "occurred_at": TEN + n * HOUR_MS,
            "workload_id": "w",
            "tenant_id": A,
            "to_state": "running",
        }
        for n in range(4)
    ]
    lost = Lost("died_unseen", TEN + HOUR_MS + 1, TEN + 2 * HOUR_MS, ({"kind": "no_sign_of_life"},))
    assert evidence(lost, pa.Table.from_pylist(rows, WORKLOAD_EVENTS)) == {
        "last_sign_of_life": "2026-10-01T11:00:00.001Z",
        "event_ids": ["e1", "e2"],
        "findings": [{"kind": "no_sign_of_life"}],
    }
