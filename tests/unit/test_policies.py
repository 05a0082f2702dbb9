"""Policies: parsing (A22), which one wins (A23), what it makes of units (A24)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import HOUR_MS, AccountingError
from finops_pipeline.accounting.money.policies import (
    PolicyBook,
    TokenWeights,
    completed,
    minor_digits,
    token_weights,
)
from finops_pipeline.contracts import lake
from finops_pipeline.contracts.policy import PolicyError

_CLOSED = r"\[!?\]?[^\]]*\]"
H10 = 1_790_848_800_000  # 2026-10-01T10:00:00Z


def row(**changes: Any) -> dict[str, Any]:
    return {
        "id": "p1",
        "name": "p1",
        "deployment_pattern": "*",
        "gpu_model": None,
        "currency": "EUR",
        "gpu_hourly_cost": "2.10",
        "overhead_pct": "18",
        "energy_kwh_price": "0.21",
        "pue": "1.4",
        "storage_gb_month_price": "0.10",
        "idle_policy": "owner",
        "token_weights": None,
        "effective_from": H10 - 1000 * HOUR_MS,
        "effective_to": None,
        "status": "active",
    } | changes


def book_of(*rows: dict[str, Any], models: dict[str, str] | None = None) -> PolicyBook:
    return PolicyBook.parse(pa.Table.from_pylist(list(rows), schema=lake.ALLOCATION_POLICIES), models or {})


def best(book: PolicyBook, deployment_id: str, model: str | None = "H100", hour_ms: int = H10) -> str | None:
    policy = book.best(deployment_id, model, hour_ms)
    assert policy == book.in_force(hour_ms).best(deployment_id, model, hour_ms)
    return None if policy is None else policy.id


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        ({"deployment_pattern": "chat-prod"}, {"deployment_pattern": "chat-*", "gpu_model": "H100"}),
        ({"deployment_pattern": "chat-prod"}, {"deployment_pattern": "chat-prod*"}),
        ({"deployment_pattern": "chat-*"}, {"deployment_pattern": "c*d", "gpu_model": "H100"}),
        ({"deployment_pattern": "chat-?rod"}, {"deployment_pattern": "chat*", "effective_from": H10}),
        ({"deployment_pattern": "chat-[op]rod"}, {"deployment_pattern": "chat*"}),
        ({"gpu_model": "H100"}, {"effective_from": H10}),
        ({"effective_from": H10}, {"effective_from": H10 - HOUR_MS, "id": "z"}),
        ({"id": "p10"}, {"id": "p09"}),
        ({}, {"deployment_pattern": "chat-prod", "gpu_model": "A100"}),
        ({}, {"deployment_pattern": "Chat-prod"}),
        ({}, {"deployment_pattern": "chat-prod", "status": "retired"}),
        ({}, {"deployment_pattern": "chat-prod", "effective_from": H10 + HOUR_MS}),
        ({}, {"deployment_pattern": "chat-prod", "effective_to": H10}),
        ({"deployment_pattern": "chat-prod", "effective_to": H10 + HOUR_MS}, {}),
        ({"deployment_pattern": "chat-[!x]*"}, {"deployment_pattern": "chat-[!p]*", "id": "z"}),
    ],
)
def test_the_most_specific_policy_in_force_wins(winner: dict[str, Any], loser: dict[str, Any]) -> None:
    first, second = row(id="w") | winner, row(id="l") | loser
    for rows in ([first, second], [second, first]):
        assert best(book_of(*rows), "chat-prod") == first["id"]


def test_no_match_is_none() -> None:
    assert best(book_of(row(deployment_pattern="chat-*")), "lab") is None
    assert best(book_of(), "lab") is None


def test_a_disk_takes_no_policy_with_a_model() -> None:
    assert best(book_of(row(gpu_model="H100")), "chat", None) is None


@pytest.mark.parametrize("policy_model", ["NVIDIA H100 80GB HBM3", "H100-80GB", "nvidia-h100-80gb_HBM3", "h100 80gb"])
@pytest.mark.parametrize("row_model", ["NVIDIA H100 80GB HBM3", "H100-80GB", "H100_80GB"])
def test_a_policy_and_a_row_may_carry_either_name_of_a_model_in_any_spelling(policy_model: str, row_model: str) -> None:
    book = book_of(row(gpu_model=policy_model), models={"NVIDIA H100 80GB HBM3": "H100-80GB"})
    assert best(book, "chat", row_model) == "p1"
    assert best(book, "chat", "L40S") is None


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text("ab*?[]!-", min_size=1, max_size=5).filter(lambda text: "[" not in re.sub(_CLOSED, "", text)),
            st.sampled_from([None, "H100", "A100"]),
            st.integers(-2, 2),
            st.none() | st.integers(-1, 3),
            st.sampled_from(["active", "active", "retired"]),
        ),
        max_size=8,
    ),
    st.text("ab-", min_size=1, max_size=5),
    st.sampled_from([None, "H100"]),
)
def test_the_index_finds_what_trying_them_all_finds(
    drawn: list[tuple[str, str | None, int, int | None, str]], deployment_id: str, model: str | None
) -> None:
    rows = [
        row(
            id=f"p{index}",
            deployment_pattern=pattern,
            gpu_model=gpu_model,
            effective_from=H10 + start * HOUR_MS,
            effective_to=None if end is None or end <= start else H10 + end * HOUR_MS,
            status=status,
        )
        for index, (pattern, gpu_model, start, end, status) in enumerate(drawn)
    ]

    def specificity(r: dict[str, Any]) -> tuple[Any, ...]:
        pattern = r["deployment_pattern"]
        literal = min([pattern.find(x) for x in "*?[" if x in pattern], default=len(pattern))
        return literal == len(pattern), literal, r["gpu_model"] is not None, r["effective_from"], r["id"]

    fitting = [
        r
        for r in rows
        if r["status"] == "active"
        and r["effective_from"] <= H10
        and (r["effective_to"] is None or r["effective_to"] > H10)
        and r["gpu_model"] in (None, model)
        and fnmatchcase(deployment_id, r["deployment_pattern"])
    ]
    assert best(book_of(*rows), deployment_id, model) == (max(fitting, key=specificity)["id"] if fitting else None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu_hourly_cost": "-1"}, "policy p1: gpu_hourly_cost must not be negative"),
        ({"storage_gb_month_price": ""}, "policy p1: storage_gb_month_price is missing"),
        ({"currency": "EURO"}, "policy p1: currency must be an ISO 4217 code"),
        ({"currency": "XAU"}, "policy p1: currency XAU has no minor unit"),
        ({"effective_from": H10 + 1}, "policy p1: effective_from must be a whole UTC hour"),
        ({"effective_to": H10 + 1}, "policy p1: effective_to must be a whole UTC hour"),
        ({"token_weights": "{"}, "policy p1: token_weights must be a JSON object"),
    ],
)
def test_a_wrong_policy_is_named_with_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AccountingError, match=message) as caught:
        book_of(row(**changes))
    assert "\n" not in str(caught.value)


def test_one_id_for_two_versions_is_an_error() -> None:
    assert best(book_of(row(), row()), "chat") == "p1"
    with pytest.raises(AccountingError, match="policy p1: two versions share this id"):
        book_of(row(), row(pue="1.5"))


def test_token_weights_left_out_are_one() -> None:
    assert token_weights(None) == token_weights("null") == token_weights("{}") == TokenWeights()
    text = json.dumps({"output": "4", "cached": "0.1"})
    assert token_weights(text) == TokenWeights(Fraction(1), Fraction(4), Fraction(1, 10))


def test_cost_of_the_worked_example() -> None:
    """accounting.md section 10: gpu 2.10, overhead 0.378, energy 0.150528."""
    policy = book_of(row())["p1"]
    assert policy.cost(3_600_000, 512_000_000) == 2_628_528_000
    assert policy.cost(3_600_000, None) == 2_478_000_000
    assert policy.cost(None, 512_000_000) == 150_528_000
    assert policy.cost(-3_600_000, -512_000_000) == -2_628_528_000


@pytest.mark.parametrize(
    ("hour_ms", "hours"),
    [(H10, 744), (H10 - 24 * HOUR_MS, 720), (1_772_280_000_000, 28 * 24), (1_835_352_000_000, 29 * 24)],
    ids=["October", "September", "February", "February of a leap year"],
)
def test_a_disk_costs_its_price_in_a_whole_month_of_any_length(hour_ms: int, hours: int) -> None:
    """A24."""
    policy = book_of(row(storage_gb_month_price="1"))["p1"]
    assert policy.storage_cost(Fraction(hours), hour_ms) == 10**9


@pytest.mark.parametrize(("currency", "digits"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4)])
def test_minor_digits(currency: str, digits: int) -> None:
    assert minor_digits(currency) == digits


# --- what a new policy does not say (A22) ----------------------------------------------------------------------------

NEXT = datetime(2026, 10, 1, 11, tzinfo=UTC)
SEED: dict[str, Any] = {
    "name": "local-gpu-default",
    "deployment_pattern": "*",
    "currency": "EUR",
    "gpu_hourly_cost": "2.10",
    "overhead_pct": "18",
    "energy_kwh_price": "0.21",
    "pue": "1.4",
    "storage_gb_month_price": "0.02",
}
"""The body of POST /v1/finops/allocation-policies as the platform's documents show it."""


def complete(*documents: dict[str, Any], stored: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    return completed(documents, stored, "f", {"NVIDIA H100": "H100"}, NEXT)


def test_a_request_gets_an_id_and_the_next_hour() -> None:
    (policy,) = complete(SEED)
    assert (policy["id"], policy["effective_from"], policy["status"]) == ("alp_1", NEXT, "active")
    (again,) = complete(SEED, stored=[policy])
    assert again == policy
    (other,) = complete(SEED | {"pue": "1.5"}, stored=[policy])
    assert other["id"] == "alp_2"


def test_a_price_that_is_not_given_is_that_of_the_policy_that_would_apply() -> None:
    """A22: the most specific that matches, of the same pattern or a wider one; its model's before any model's."""
    wide = SEED | {"id": "wide", "pue": "1.1"}
    chat = SEED | {"id": "chat", "deployment_pattern": "chat-*", "pue": "1.2"}
    h100 = SEED | {"id": "h100", "deployment_pattern": "chat-*", "gpu_model": "NVIDIA H100", "pue": "1.3"}
    later = SEED | {"id": "later", "deployment_pattern": "chat-*", "pue": "9", "effective_from": "2026-10-02T00:00:00Z"}
    other = SEED | {"id": "prod", "deployment_pattern": "chat-prod*", "pue": "8"}
    stored = complete(wide, chat, h100, later, other)

    def pue(pattern: str, model: str | None = None) -> str:
        new = {"name": "new", "deployment_pattern": pattern, "gpu_model": model, "currency": "EUR"}
        (policy,) = complete(new, stored=stored)
        return str(policy["pue"])

    assert [pue("batch"), pue("*"), pue("chat-*"), pue("chat-1"), pue("chat-prod-1")] == [
        "1.1",
        "1.1",
        "1.2",
        "1.2",
        "8",
    ]
    assert [pue("chat-1", "H100"), pue("chat-1", "L40S")] == ["1.3", "1.2"]


def test_a_price_that_nothing_gives_is_refused_by_name() -> None:
    new = {name: value for name, value in SEED.items() if name != "pue"}
    with pytest.raises(
        PolicyError, match=r"policy local-gpu-default: pue is not given, and no other policy matches \*"
    ):
        complete(new)
    ended = SEED | {"id": "old", "effective_from": "2026-01-01T00:00:00Z", "effective_to": "2026-10-01T11:00:00Z"}
    with pytest.raises(PolicyError, match="pue is not given"):
        complete(new, stored=complete(ended))


def test_a_price_is_not_inherited_from_another_currency() -> None:
    """2 EUR are not 2 USD; a percentage is the same in both."""
    stored = complete(SEED)
    dollars = {name: value for name, value in SEED.items() if name not in ("pue", "overhead_pct")} | {"currency": "USD"}
    assert complete(dollars, stored=stored)[0]["pue"] == "1.4"
    with pytest.raises(PolicyError, match=r"gpu_hourly_cost is not given, and policy alp_1, .* is in EUR, not USD"):
        complete({n: v for n, v in dollars.items() if n != "gpu_hourly_cost"}, stored=stored)
