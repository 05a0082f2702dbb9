"""The gate of a month close (A33), pure: each condition by itself, and what the report says of it."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.money.closing import Life, MonthFacts, coverage, gate, spans

FIRST = 1_790_812_800_000  # 2026-10-01T00:00:00Z
PAST = FIRST + 744 * HOUR_MS
LIMIT = Decimal("0.99")
ACCOUNT = ("a", "chat", "EUR")
SUMS = (Decimal(3600), None, Decimal(512), Decimal("2.628528"))


def facts(**changes: Any) -> MonthFacts:
    """A month in which nothing is missing."""
    complete: dict[str, Any] = {
        "first": FIRST, "past": PAST, "now": PAST,
        "hours": {"c1": dict.fromkeys(range(FIRST, PAST, HOUR_MS), False)},
        "measured": Decimal(990), "estimated": Decimal(0), "missing": Decimal(10),
        "unpriced": [], "conflicts": [], "identities": [], "parts": [],
        "allocated": {ACCOUNT: SUMS}, "booked": {ACCOUNT: SUMS},
    }  # fmt: skip
    return MonthFacts(**complete | changes)


def missing(month: MonthFacts, **options: Any) -> dict[str, list[dict[str, Any]]]:
    judged = gate(month, LIMIT, **options)
    assert judged.open == all(condition.holds for condition in judged.conditions)
    return {c.name: [dict(row) for row in c.missing] for c in judged.conditions if not c.holds}


def test_a_complete_month() -> None:
    assert missing(facts()) == {}
    assert len(gate(facts(), LIMIT).conditions) == 11


@pytest.mark.parametrize(
    ("measured", "estimated", "lost", "open_"),
    [("990", "0", "10", True), ("989.999", "0", "10.001", False), ("0", "990", "10", True), ("0", "0", "0", True)],
)
def test_coverage(measured: str, estimated: str, lost: str, open_: bool) -> None:
    month = facts(measured=Decimal(measured), estimated=Decimal(estimated), missing=Decimal(lost))
    assert (missing(month) == {}) is open_
    assert (coverage(month) is None) is (lost == "0")


def test_the_last_hour_is_as_needed_as_any_other() -> None:
    hours = dict.fromkeys(range(FIRST, PAST - HOUR_MS, HOUR_MS), False)
    assert missing(facts(hours={"c1": hours})) == {
        "hours": [{"cluster": "c1", "from": "2026-10-31T23:00:00Z", "to": "2026-11-01T00:00:00Z", "hours": 1}]
    }


def test_no_cluster_at_all() -> None:
    assert missing(facts(hours={})) == {"hours": [{"cluster": "none is known", "hours": 744}]}


def test_a_cluster_that_began_and_ended() -> None:
    begin, end = FIRST + 10 * HOUR_MS, FIRST + 12 * HOUR_MS
    hours = {"c1": facts().hours["c1"], "edge": {begin: False, begin + HOUR_MS: False}}
    assert set(missing(facts(hours=hours))) == {"hours"}
    assert missing(facts(hours=hours), lives={"edge": Life(begin, end)}) == {}
    assert set(missing(facts(hours=hours), lives={"edge": Life(begin + HOUR_MS, end)})) == {"clusters"}
    assert missing(facts(), lives={"typo": Life(begin)}) == {
        "clusters": [{"cluster": "typo", "what": "no such cluster has an hour in this month"}]
    }


def test_a_life_reaches_beyond_the_month_on_both_sides() -> None:
    assert missing(facts(), lives={"c1": Life(FIRST - HOUR_MS, PAST + HOUR_MS)}) == {}


def test_conflicts_are_accepted_by_key() -> None:
    conflicts = [{"source": "workload_events", "key": "ev-1"}, {"source": "token_usage", "key": "ev-2"}]
    assert missing(facts(conflicts=conflicts), accepted=("ev-1",)) == {"conflicts": conflicts[1:]}


def test_nothing_is_unpriced_where_usage_has_no_prices() -> None:
    month = facts(unpriced=[{"rows": 1}], unpriced_corrections=[{"hour": "h"}])
    assert missing(month) == {"priced": [{"rows": 1}, {"hour": "h"}]}
    assert missing(month, priced=False) == {}


@pytest.mark.parametrize("name", ["changed", "identities", "parts", "unpriced", "unpriced_corrections"])
def test_rows_that_stand_against_it(name: str) -> None:
    row = {"cluster": "c1", "what": "something"}
    (rows,) = missing(facts(**{name: [row]})).values()
    assert rows == [row]


@pytest.mark.parametrize(
    ("allocated", "booked", "equal"),
    [
        ({}, {}, True),
        ({ACCOUNT: SUMS}, {}, False),
        ({}, {ACCOUNT: SUMS}, False),
        ({ACCOUNT: (None, None, None, None)}, {}, True),
        ({}, {ACCOUNT: (Decimal("0.000"), None, None, Decimal(0))}, True),
        ({ACCOUNT: SUMS}, {ACCOUNT: (*SUMS[:3], SUMS[3] + Decimal("1e-9"))}, False),
        ({ACCOUNT: SUMS}, {ACCOUNT: (SUMS[0], Decimal(0), *SUMS[2:])}, True),
        ({ACCOUNT: SUMS}, {("a", "chat", None): SUMS}, False),
    ],
)
def test_the_statement_is_what_is_booked(allocated: Any, booked: Any, equal: bool) -> None:
    assert ("ledger" not in missing(facts(allocated=allocated, booked=booked))) is equal


@given(st.sets(st.integers(0, 50)))
def test_spans_cover_exactly_the_hours(numbers: set[int]) -> None:
    hours = sorted(FIRST + number * HOUR_MS for number in numbers)
    stretches = list(spans(hours))
    assert [hour for begin, end in stretches for hour in range(begin, end, HOUR_MS)] == hours
    assert all(a[1] < b[0] for a, b in pairwise(stretches))
