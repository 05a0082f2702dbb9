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
from typing import Any

import iso4217
import pyarrow as pa

from finops_pipeline.accounting.config import model_key
from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, hour_text, round_half_even, rows_of

AMOUNT_PLACES = 9
IDLE_POLICIES = ("owner", "proportional", "platform")
STATUSES = ("active", "retired")

_PRICES = ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
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
        names = policies.column_names
        rows = (dict(zip(names, row, strict=True)) for row in rows_of(policies, *names))
        return cls((_parse(row, models) for row in rows), models)

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


def token_weights(text: str | None) -> TokenWeights:
    """The weights of a policy's JSON object `{"input", "output", "cached"}`; what it leaves out is 1 (A26)."""
    if text is None:
        return TokenWeights()
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise AccountingError(f"token_weights is not JSON: {text!r}") from error
    if given is None:
        return TokenWeights()
    if not isinstance(given, dict) or not given.keys() <= {"input", "output", "cached"}:
        raise AccountingError(f"token_weights takes input, output and cached, not {text!r}")
    return TokenWeights(**{name: _price(f"token_weights.{name}", value) for name, value in given.items()})


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
        minor_digits(row["currency"])
        return Policy(
            id=row["id"],
            deployment_pattern=row["deployment_pattern"],
            gpu_model=row["gpu_model"] and models.get(row["gpu_model"], row["gpu_model"]),
            model=row["gpu_model"] and model_key(row["gpu_model"], models),
            currency=row["currency"],
            idle_policy=_one_of("idle_policy", row["idle_policy"], IDLE_POLICIES),
            token_weights=token_weights(row["token_weights"]),
            effective_from=_whole_hour("effective_from", row["effective_from"]),
            effective_to=row["effective_to"],
            status=_one_of("status", row["status"], STATUSES),
            **{name: _price(name, row[name]) for name in _PRICES},
        )
    except AccountingError as error:
        raise AccountingError(f"policy {row['id']}: {error} (A22)") from error


def _price(name: str, text: object) -> Fraction:
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise AccountingError(f"{name} must be a decimal string that is not negative, such as 2.10, not {text!r}")
    return Fraction(text)


def _whole_hour(name: str, instant: int) -> int:
    if instant % HOUR_MS:
        raise AccountingError(f"{name} must be a whole UTC hour, not an instant after {hour_text(instant)}")
    return instant


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise AccountingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value
