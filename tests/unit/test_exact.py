"""Exact arithmetic (A28, A29)."""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import (
    AccountingError,
    column_units,
    half_even_div,
    hour_text,
    largest_remainder,
    month_text,
    plain,
    quantize,
    round_half_even,
    rows_of,
    units_column,
    units_of,
)

HOUR = "2026-10-01T10:00:00Z"
int64s = st.integers(-(2**63), 2**63 - 1)
weights = st.dictionaries(
    st.text(min_size=1, max_size=4), st.one_of(st.integers(0, 10**12), st.fractions(0, 1000)), min_size=1, max_size=7
).filter(lambda w: any(w.values()))


@pytest.mark.parametrize(
    ("numerator", "denominator", "nearest"),
    [
        (1, 2, 0),
        (3, 2, 2),
        (5, 2, 2),
        (-1, 2, 0),
        (-3, 2, -2),
        (-5, 2, -2),
        (7, 3, 2),
        (8, 3, 3),
        (-8, 3, -3),
        (0, 9, 0),
    ],
)
def test_a_half_goes_to_the_even_neighbour(numerator: int, denominator: int, nearest: int) -> None:
    assert round_half_even(numerator, denominator) == nearest


@settings(deadline=None)
@given(st.integers(), st.integers(1, 10**30))
def test_round_half_even_is_the_fraction_rounded(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@settings(deadline=None)
@given(st.lists(st.tuples(int64s, st.integers(1, 2**63 - 1)), min_size=1, max_size=20))
def test_vectorised_division_is_exact_over_all_of_int64(pairs: list[tuple[int, int]]) -> None:
    num, den = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    assert half_even_div(num, den).tolist() == [round_half_even(n, d) for n, d in pairs]


def test_vectorised_division_by_one_number() -> None:
    assert half_even_div(np.array([-5, -3, -1, 1, 3, 5]), 2).tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        (Fraction(1, 2000), 3, "0.000"),
        (Fraction(3, 2000), 3, "0.002"),
        (Fraction(-1, 10**10), 9, "0.000000000"),
        (Fraction(5, 10**7), 6, "0.000000"),
        (Fraction(2, 3), 9, "0.666666667"),
        (3600, 3, "3600.000"),
        (Fraction(-7, 2), 0, "-4"),
    ],
)
def test_quantize_rounds_half_even_once_and_is_never_minus_zero(value: Fraction | int, places: int, text: str) -> None:
    assert f"{quantize(value, places):f}" == text


def test_digits_do_not_depend_on_the_decimal_context() -> None:
    with localcontext(prec=3):
        assert f"{quantize(10**30 + Fraction(1, 3), 9):f}" == "1000000000000000000000000000000.333333333"
        assert units_of(Decimal("123456789.123456"), 6) == 123456789123456


@pytest.mark.parametrize(
    ("value", "text"),
    [("1E+1", "10"), ("0E-9", "0.000000000"), ("1E-9", "0.000000001"), ("2.50", "2.50"), ("-1.2E+3", "-1200")],
)
def test_no_decimal_is_shown_with_an_exponent(value: str, text: str) -> None:
    assert plain(Decimal(value)) == text


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_shown_decimal_is_the_same_number(value: Decimal) -> None:
    assert Decimal(plain(value)) == value
    assert "E" not in plain(value)


def test_units_refuse_digits_that_they_cannot_hold() -> None:
    with pytest.raises(AccountingError, match=r"0\.0005 has more than 3 decimals"):
        units_of(Decimal("0.0005"), 3)


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(10**30), 10**30)), st.sampled_from([0, 3, 6, 9]))
def test_units_survive_the_column(units: list[int | None], places: int) -> None:
    assert column_units(pa.chunked_array([units_column(units, places)]), places) == units


def test_case_15_ties_go_by_digest() -> None:
    """500 Wh over three equal tenants: the two millionths left over go to c and a (cases/15)."""
    a, b, c = (f"{x}0000000-0000-4000-8000-00000000000{x}" for x in "abc")
    assert largest_remainder(500_000_000, {a: 1, b: 1, c: 1}, HOUR) == {a: 166666667, b: 166666666, c: 166666667}


@settings(deadline=None)
@given(st.integers(-(10**20), 10**20), weights, st.randoms(use_true_random=False))
def test_split(total: int, shares: dict[str, Fraction | int], shuffler: object) -> None:
    parts = largest_remainder(total, shares, HOUR)
    assert sum(parts.values()) == total
    assert parts.keys() == {share_id for share_id, weight in shares.items() if weight}
    whole = sum(shares.values())
    assert all(abs(part - Fraction(total) * shares[share_id] / whole) < 1 for share_id, part in parts.items())
    assert largest_remainder(total, dict(reversed(shares.items())), HOUR) == parts
    assert largest_remainder(-total, shares, HOUR) == {share_id: -part for share_id, part in parts.items()}
    assert largest_remainder(total, {share_id: 3 * weight for share_id, weight in shares.items()}, HOUR) == parts


@settings(deadline=None)
@given(st.integers(0, 10**15), weights)
def test_split_is_the_rule_as_written(total: int, shares: dict[str, Fraction | int]) -> None:
    """A29 by the letter, in fractions: floors, then one unit each to the largest remainders, ties by digest."""
    whole = sum(shares.values())
    exact = {share_id: Fraction(total) * weight / whole for share_id, weight in shares.items() if weight}
    parts = {share_id: quota.numerator // quota.denominator for share_id, quota in exact.items()}

    def order(share_id: str) -> tuple[Fraction, str]:
        return parts[share_id] - exact[share_id], hashlib.sha256(f"{share_id}|{HOUR}".encode()).hexdigest()

    expected = dict(parts)
    for share_id in sorted(exact, key=order)[: total - sum(parts.values())]:
        expected[share_id] += 1
    assert largest_remainder(total, shares, HOUR) == expected


@pytest.mark.parametrize(
    ("shares", "message"), [({}, "sum to zero"), ({"a": 0}, "sum to zero"), ({"a": 2, "b": -1}, "negative")]
)
def test_weights_that_cannot_split_are_an_error(shares: dict[str, int], message: str) -> None:
    with pytest.raises(AccountingError, match=f"2026-10-01T10:00:00Z.*{message}.*A29|{message}.*A29"):
        largest_remainder(10, shares, HOUR)


def test_texts_of_time() -> None:
    assert hour_text(1_790_848_800_000) == HOUR
    assert month_text(1_790_848_800_000) == "2026-10"
    assert month_text(1_793_491_200_000 - 1) == "2026-10"
    assert month_text(1_793_491_200_000) == "2026-11"


def test_rows_give_instants_as_milliseconds() -> None:
    table = pa.table({"t": pa.array([5, None], pa.timestamp("ms", tz="UTC")), "x": ["a", "b"]})
    assert list(rows_of(table, "x", "t")) == [("a", 5), ("b", None)]
