"""Whether a month may become final, and if not, exactly what is missing (A2, A21, A23, A29, A32, A33).

The gate is a list of conditions, all of them judged, so that one look shows everything there is to do. Choices where
A33 is silent: the clusters are those that are configured and those that have an hour or an event in the month; a
cluster that began or ended within the month owes only the hours of its life, if somebody says so and no result lies
outside it; an input in conflict (A5) can never be taken back, so somebody may accept it by name, with a reason.

What belongs here: judging the facts. What does not: reading them, or what a statement is (statement).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

from finops_pipeline.accounting.exact import HOUR_MS, hour_text

AccountSums = Mapping[tuple[str, str, str | None], tuple[Decimal | None, ...]]
"""Exact sums of the statement's units and the amount, by tenant, deployment and currency."""


@dataclass(frozen=True)
class Life:
    """When a cluster began and ended, epoch ms; None is before and after everything."""

    began: int | None = None
    ended: int | None = None

    def span(self, first: int, past: int) -> tuple[int, int]:
        return max(first, first if self.began is None else self.began), min(past, self.ended or past)


@dataclass(frozen=True)
class MonthFacts:
    """What the stored tables say of a month. Rows are dicts that name themselves in the report."""

    first: int
    """epoch ms"""
    past: int
    now: int
    hours: Mapping[str, Mapping[int, bool]]
    """cluster -> published hour (epoch ms) -> whether it is provisional; a cluster that is only configured has none"""
    measured: Decimal
    estimated: Decimal
    missing: Decimal
    """device time in seconds (A15)"""
    unpriced: Sequence[Mapping[str, Any]]
    conflicts: Sequence[Mapping[str, Any]]
    """each with its `key`"""
    identities: Sequence[Mapping[str, Any]]
    """rows of A21 that do not hold"""
    parts: Sequence[Mapping[str, Any]]
    """usage rows whose parts do not sum to them (A29)"""
    allocated: AccountSums
    booked: AccountSums
    """what the ledger holds of the month"""
    unpriced_corrections: Sequence[Mapping[str, Any]] = ()
    changed: Sequence[Mapping[str, Any]] = ()
    """hours whose inputs are not those that they were computed from"""


@dataclass(frozen=True)
class Condition:
    """One condition of the gate: `missing` has one dict for each thing that stands against it."""

    name: str
    says: str
    missing: Sequence[Mapping[str, Any]] = ()

    @property
    def holds(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Gate:
    """All conditions, in the order in which a person would fix them."""

    conditions: Sequence[Condition] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return all(condition.holds for condition in self.conditions)


def gate(
    facts: MonthFacts,
    min_coverage: Decimal,
    *,
    lives: Mapping[str, Life] | None = None,
    accepted: Collection[str] = (),
    priced: bool = True,
) -> Gate:
    """Judge a month. `lives` are the clusters that began or ended in it, `accepted` keys of conflicts (see above).

    Unless usage is `priced`, nothing can be unpriced.
    """
    lives = lives or {}
    provisional = {cluster: sorted(h for h, open_ in hours.items() if open_) for cluster, hours in facts.hours.items()}
    conflicts = [row for row in facts.conflicts if row["key"] not in accepted]
    unpriced = [*facts.unpriced, *facts.unpriced_corrections] if priced else []
    return Gate(
        [
            Condition("over", "the month is over (A2)", _not_over(facts)),
            Condition("hours", "every hour of every cluster is computed", list(_missing_hours(facts, lives))),
            Condition("clusters", "nothing is booked outside a cluster's life", list(_outside(facts, lives))),
            Condition("provisional", "no hour is provisional (A16)", list(_spans_of(provisional))),
            Condition("changed", "no hour waits for changed inputs", facts.changed),
            Condition(
                "coverage",
                f"at least {min_coverage:.2%} of device time is measured or estimated",
                _uncovered(facts, min_coverage),
            ),
            Condition("priced", "nothing is unpriced (A23)", unpriced),
            Condition("conflicts", "no input is in conflict (A5)", conflicts),
            Condition("fleet", "both fleet identities hold (A21)", facts.identities),
            Condition("parts", "the tenants' parts sum to their rows (A29)", facts.parts),
            Condition("ledger", "the statement is what is booked (A32)", list(_unbooked(facts))),
        ]
    )


def coverage(facts: MonthFacts) -> Decimal | None:
    """The part of device time that is measured or estimated; None without device time."""
    known = facts.measured + facts.estimated
    whole = known + facts.missing
    return known / whole if whole else None


def spans(hours: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending hours as half-open stretches, epoch ms."""
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(hours), 1) if b - a != HOUR_MS), len(hours)]
    for begin, end in pairwise(breaks):
        if end > begin:
            yield hours[begin], hours[end - 1] + HOUR_MS


def _not_over(facts: MonthFacts) -> list[dict[str, Any]]:
    if facts.now >= facts.past:
        return []
    return [{"now": hour_text(facts.now), "ends": hour_text(facts.past)}]


def _missing_hours(facts: MonthFacts, lives: Mapping[str, Life]) -> Iterator[dict[str, Any]]:
    if not facts.hours:
        yield {"cluster": "none is known", "hours": (facts.past - facts.first) // HOUR_MS}
    missing = {
        cluster: [
            h for h in range(*lives.get(cluster, Life()).span(facts.first, facts.past), HOUR_MS) if h not in hours
        ]
        for cluster, hours in facts.hours.items()
    }
    yield from _spans_of(missing)


def _spans_of(hours: Mapping[str, Sequence[int]]) -> Iterator[dict[str, Any]]:
    for cluster, some in sorted(hours.items()):
        for begin, end in spans(some):
            yield {
                "cluster": cluster,
                "from": hour_text(begin),
                "to": hour_text(end),
                "hours": (end - begin) // HOUR_MS,
            }


def _outside(facts: MonthFacts, lives: Mapping[str, Life]) -> Iterator[dict[str, Any]]:
    for cluster, life in sorted(lives.items()):
        begin, end = life.span(facts.first, facts.past)
        if cluster not in facts.hours:
            yield {"cluster": cluster, "what": "no such cluster has an hour in this month"}
        outside = sorted(hour for hour in facts.hours.get(cluster, {}) if not begin <= hour < end)
        yield from ({**row, "what": "computed outside its life"} for row in _spans_of({cluster: outside}))


def _uncovered(facts: MonthFacts, min_coverage: Decimal) -> list[dict[str, Any]]:
    share = coverage(facts)
    if share is None or share >= min_coverage:
        return []
    return [{"coverage": f"{share:.6f}", "missing_seconds": f"{facts.missing:f}"}]


def _unbooked(facts: MonthFacts) -> Iterator[dict[str, Any]]:
    """Accounts whose allocation differs from the ledger; null and 0 add up alike (A32)."""
    nothing: tuple[Decimal | None, ...] = (None, None, None, None)
    for account in sorted(facts.allocated.keys() | facts.booked.keys(), key=lambda key: [part or "" for part in key]):
        here, there = facts.allocated.get(account, nothing), facts.booked.get(account, nothing)
        if [value or 0 for value in here] != [value or 0 for value in there]:
            tenant_id, deployment_id, currency = account
            yield {
                "tenant_id": tenant_id,
                "deployment_id": deployment_id,
                "currency": currency,
                "allocated": _text(here[-1]),
                "booked": _text(there[-1]),
            }


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"
