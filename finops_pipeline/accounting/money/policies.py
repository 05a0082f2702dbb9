"""Allocation policies: parsed once, matched to a deployment and hour, and turned into prices (A22, A23, A24).

What belongs here: what a policy says, which one wins, and what it makes of units.
What does not: who pays (allocation.py), disks (storage.py) or where policies are kept.
"""

from __future__ import annotations

import calendar
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from itertools import count
from typing import Any

import iso4217
import pyarrow as pa

from finops_pipeline.accounting.config import model_key
from finops_pipeline.accounting.exact import AccountingError, ms_of, round_half_even
from finops_pipeline.contracts.policy import PRICES, PolicyError, validate_policy

AMOUNT_PLACES = 9
_IN_CURRENCY = ("gpu_hourly_cost", "energy_kwh_price", "storage_gb_month_price")
_GLOB_CHARACTER = re.compile(r"[*?\[]")
# Units are thousandths of a GPU-second and millionths of a Wh; an amount is in 1e-9 of the currency.
_PER_GPU_UNIT = Fraction(10**AMOUNT_PLACES, 1000 * 3600)
_PER_ENERGY_UNIT = Fraction(10**AMOUNT_PLACES, 10**6 * 1000)


@dataclass(frozen=True)
class TokenWeights:
    """What a token of each kind counts for (A26)."""

    input: Fraction = Fraction(1)
    output: Fraction = Fraction(1)
    cached: Fraction = Fraction(1)

    @cached_property
    def integers(self) -> tuple[int, int, int]:
        """The three weights times the smallest number that makes them whole: shares do not change by it."""
        weights = (self.input, self.output, self.cached)
        scale = math.lcm(*(weight.denominator for weight in weights))
        return int(self.input * scale), int(self.output * scale), int(self.cached * scale)


@dataclass(frozen=True)
class Policy:
    """One version of a policy (A22). Prices are exact; instants are epoch milliseconds."""

    id: str
    deployment_pattern: str
    gpu_model: str | None
    model: str | None
    """`model_key` of it: the same for all names and spellings of the model"""
    currency: str
    gpu_hourly_cost: Fraction
    overhead_pct: Fraction
    energy_kwh_price: Fraction
    pue: Fraction
    storage_gb_month_price: Fraction
    idle_policy: str
    token_weights: TokenWeights
    effective_from: int
    effective_to: int | None
    status: str

    def in_force(self, hour_ms: int) -> bool:
        """True if the policy is active and prices the hour that starts at `hour_ms` (A23)."""
        ended = self.effective_to is not None and hour_ms >= self.effective_to
        return self.status == "active" and self.effective_from <= hour_ms and not ended

    @cached_property
    def literal_prefix(self) -> str:
        """The pattern up to its first glob character; all of it if it has none (A23)."""
        return _GLOB_CHARACTER.split(self.deployment_pattern, maxsplit=1)[0]

    @property
    def exact(self) -> bool:
        """True if the pattern names one deployment."""
        return self.literal_prefix == self.deployment_pattern

    def matches(self, deployment_id: str) -> bool:
        """True if the whole `deployment_id` fits the pattern (`*`, `?`, `[..]`, `[!..]`; case-sensitive)."""
        return fnmatchcase(deployment_id, self.deployment_pattern)

    def cost(self, gpu_units: int | None, energy_units: int | None) -> int:
        """Cost of published units in 1e-9 of the currency, rounded half-even once (A24, A28).

        `gpu_units` are thousandths of a GPU-second, `energy_units` millionths of a Wh; None adds no term.
        """
        gpu_rate, energy_rate, denominator = self._rates
        return round_half_even((gpu_units or 0) * gpu_rate + (energy_units or 0) * energy_rate, denominator)

    def storage_cost(self, gb_hours: Fraction, hour_ms: int) -> int:
        """Cost of a disk's GB-hours in the month of `hour_ms`, in 1e-9 of the currency (A24)."""
        instant = datetime.fromtimestamp(hour_ms // 1000, UTC)
        hours_in_month = 24 * calendar.monthrange(instant.year, instant.month)[1]
        cost = gb_hours * self.storage_gb_month_price * 10**AMOUNT_PLACES / hours_in_month
        return round_half_even(cost.numerator, cost.denominator)

    @cached_property
    def _rates(self) -> tuple[int, int, int]:
        gpu = self.gpu_hourly_cost * (1 + self.overhead_pct / 100) * _PER_GPU_UNIT
        energy = self.pue * self.energy_kwh_price * _PER_ENERGY_UNIT
        denominator = math.lcm(gpu.denominator, energy.denominator)
        return int(gpu * denominator), int(energy * denominator), denominator


class PolicyBook:
    """All policies, indexed so that the most specific one is found without trying them all (A23)."""

    def __init__(self, policies: Iterable[Policy], models: Mapping[str, str]) -> None:
        """`models` maps DCGM's name of a model to the platform's; a policy and a row may carry either, in any spelling."""
        self._models = models
        self._key = cache(partial(model_key, models=models))
        self._by_id: dict[str, Policy] = {}
        self._exact: dict[str, list[Policy]] = defaultdict(list)
        self._globs: dict[str, list[Policy]] = defaultdict(list)
        for policy in policies:
            if self._by_id.setdefault(policy.id, policy) != policy:
                raise AccountingError(f"policy {policy.id}: two versions share this id; give the change its own (A22)")
        for policy in self._by_id.values():
            index = self._exact if policy.exact else self._globs
            index[policy.literal_prefix].append(policy)
        self._prefix_lengths = sorted({len(prefix) for prefix in self._globs}, reverse=True)

    @classmethod
    def parse(cls, policies: pa.Table, models: Mapping[str, str]) -> PolicyBook:
        """From an ALLOCATION_POLICIES table. Raises `AccountingError` naming the policy and the field."""
        return cls((_parse(row, models) for row in policies.to_pylist()), models)

    def __getitem__(self, policy_id: str) -> Policy:
        """The policy with this id; `KeyError` if there is none."""
        return self._by_id[policy_id]

    def in_force(self, hour_ms: int) -> PolicyBook:
        """The book of one hour: only what `best` can find for it."""
        return PolicyBook((policy for policy in self._by_id.values() if policy.in_force(hour_ms)), self._models)

    def best(self, deployment_id: str, gpu_model: str | None, hour_ms: int) -> Policy | None:
        """The policy that prices a row of this deployment, model and hour (A23); None leaves it unpriced.

        `gpu_model` None (a disk) is priced only by a policy without a model.
        """
        model = None if gpu_model is None else self._key(gpu_model)
        for policies in self._candidates(deployment_id):
            fitting = [
                policy
                for policy in policies
                if policy.model in (None, model) and policy.in_force(hour_ms) and policy.matches(deployment_id)
            ]
            if fitting:
                return max(fitting, key=lambda p: (p.gpu_model is not None, p.effective_from, p.id))
        return None

    def _candidates(self, deployment_id: str) -> Iterable[list[Policy]]:
        """Groups of policies of equal specificity, the most specific first."""
        if deployment_id in self._exact:
            yield self._exact[deployment_id]
        for length in self._prefix_lengths:
            if length <= len(deployment_id) and (prefix := deployment_id[:length]) in self._globs:
                yield self._globs[prefix]


def completed(
    documents: Iterable[Mapping[str, Any]],
    stored: Iterable[Mapping[str, Any]],
    where: str,
    models: Mapping[str, str],
    next_hour: datetime,
) -> list[dict[str, Any]]:
    """New policies with what they do not say: id, first hour and prices (A22). Both are rows of ALLOCATION_POLICIES.

    * A policy whose id is stored is the stored one where it says nothing, and stays as it is given elsewhere.
    * Without an id it is the stored policy that says the same (a request that is sent twice is one policy), else
      `alp_<n>`, the first number that is free.
    * Without an `effective_from` it begins at `next_hour`.
    * A price is inherited from the policy that would apply without this one at its first hour: its pattern is looked up
      like a deployment's id, and a policy of the same pattern matches it. Raises PolicyError naming the price if there is
      none.
    """
    known = {row["id"]: dict(row) for row in stored}
    found: list[dict[str, Any]] = []
    checked = [validate_policy(document, where) for document in documents]
    for policy in sorted(checked, key=lambda policy: policy["effective_from"] or next_hour):
        same = known.get(policy["id"]) if policy["id"] else _same(policy, known.values())
        if same is None:
            complete = _inherited(policy, known.values(), where, models, next_hour)
            complete["id"] = complete["id"] or _free_id(known)
        else:
            complete = {name: same[name] if value is None else value for name, value in policy.items()}
        known.setdefault(complete["id"], complete)
        found.append(complete)
    return found


def _same(policy: Mapping[str, Any], known: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The stored policy, not ended, that says all that this one without an id says."""
    said = {name: value for name, value in policy.items() if value is not None}
    for row in known:
        if row["effective_to"] is None and all(comparable(n, row[n]) == comparable(n, v) for n, v in said.items()):
            return row
    return None


def comparable(field: str, value: Any) -> Any:
    """A field's value, prices by value: `2.1` is `2.10`."""
    return Fraction(value) if field in PRICES and value is not None else value


def _free_id(known: Mapping[str, Any]) -> str:
    return next(name for number in count(1) if (name := f"alp_{number}") not in known)


def _inherited(
    policy: Mapping[str, Any],
    known: Iterable[Mapping[str, Any]],
    where: str,
    models: Mapping[str, str],
    next_hour: datetime,
) -> dict[str, Any]:
    complete = {**policy, "effective_from": policy["effective_from"] or next_hour}
    missing = [name for name in PRICES if policy[name] is None]
    if not missing:
        return complete
    at, pattern = complete["effective_from"], policy["deployment_pattern"]
    wanted = {policy["gpu_model"] and model_key(policy["gpu_model"], models), None}
    fitting = [
        row
        for row in known
        if row["status"] == "active"
        and row["effective_from"] <= at
        and (row["effective_to"] is None or at < row["effective_to"])
        and (row["gpu_model"] and model_key(row["gpu_model"], models)) in wanted
        and (row["deployment_pattern"] == pattern or fnmatchcase(pattern, row["deployment_pattern"]))
    ]
    if not fitting:
        raise PolicyError(
            f"{where}: policy {policy['id'] or policy['name']}: {missing[0]} is not given, and no other policy matches"
            f" {pattern} at {at:%Y-%m-%dT%H:%M:%SZ} to inherit it from (A22)"
        )
    best = max(fitting, key=_specificity)
    if best["currency"] != policy["currency"] and (own := next((n for n in missing if n in _IN_CURRENCY), None)):
        raise PolicyError(
            f"{where}: policy {policy['id'] or policy['name']}: {own} is not given, and policy {best['id']}, which it would"
            f" be inherited from, is in {best['currency']}, not {policy['currency']} (A22)"
        )
    return complete | {name: best[name] for name in missing}


def _specificity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """In whose order the last policy wins (A23)."""
    pattern = row["deployment_pattern"]
    prefix = _GLOB_CHARACTER.split(pattern, maxsplit=1)[0]
    return prefix == pattern, len(prefix), row["gpu_model"] is not None, row["effective_from"], row["id"]


def token_weights(text: str | None) -> TokenWeights:
    """The weights of a policy's JSON object `{"input", "output", "cached"}`; what it leaves out is 1 (A26)."""
    given: dict[str, str] = (None if text is None else json.loads(text)) or {}
    return TokenWeights(**{name: Fraction(value) for name, value in given.items()})


@lru_cache
def minor_digits(currency: str) -> int:
    """Decimals of the currency's minor unit (ISO 4217). Raises `AccountingError` for a code without one."""
    try:
        digits = iso4217.Currency(currency).exponent
    except ValueError as error:
        raise AccountingError(f"unknown currency {currency!r}; use an ISO 4217 code such as EUR") from error
    if digits is None:
        raise AccountingError(f"currency {currency} has no minor unit in ISO 4217; a statement cannot be rounded to it")
    return int(digits)


def _parse(row: Mapping[str, Any], models: Mapping[str, str]) -> Policy:
    try:
        checked = validate_policy(row, "allocation_policies")
    except PolicyError as error:
        raise AccountingError(f"{error} (A22)") from error
    for name in ("id", "effective_from", *PRICES):
        if checked[name] is None:
            raise AccountingError(f"allocation_policies: policy {checked['id']}: {name} is missing (A22)")
    end = checked["effective_to"]
    return Policy(
        id=checked["id"],
        deployment_pattern=checked["deployment_pattern"],
        gpu_model=checked["gpu_model"] and models.get(checked["gpu_model"], checked["gpu_model"]),
        model=checked["gpu_model"] and model_key(checked["gpu_model"], models),
        currency=checked["currency"],
        idle_policy=checked["idle_policy"],
        token_weights=token_weights(checked["token_weights"]),
        effective_from=ms_of(checked["effective_from"]),
        effective_to=None if end is None else ms_of(end),
        status=checked["status"],
        **{name: Fraction(checked[name]) for name in PRICES},
    )
