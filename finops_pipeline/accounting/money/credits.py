"""Credits: time that a workload was charged without working, proposed from findings, decided by a person.

Two reasons. `died_unseen`: hours in a row of `no_sign_of_life`, and after a day without any reading of its label of
`unmatched`. `node_failure`: from the last window with its label to the event that says so; it wins where both apply.

A credit takes from each hour's charge the part lost / allocated in GPU-time (A4), rounded half-even like any amount,
and never more than what is charged there by now. Its events have keys of their own, hour by hour, so that computing
an hour again (A32) neither undoes a credit nor leaves one that is more than the charge: it is booked anew, by
difference. They carry cost and no units: the time was allocated, whoever pays.

What belongs here: windows, shares, amounts and rows. What does not: where they are kept, and who decides.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.arrays import ints, texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, hour_text, quantize, rows_of
from finops_pipeline.accounting.findings.kinds import Kind
from finops_pipeline.accounting.holding.lifecycle import NANO, Intervals
from finops_pipeline.accounting.money.policies import AMOUNT_PLACES
from finops_pipeline.contracts.lake import GPU_COST_ALLOCATION, GPU_USAGE

PREFIX = "credit:"
"""`workload_id` of a credit's usage events: this and the credit's id."""
NAMESPACE = uuid.UUID("5c0f5f0e-7c6b-4f0f-9a54-5e0b1f5d9a77")
"""Namespace of the credits' ids; a change would propose everything again."""
DIED_UNSEEN = "died_unseen"
NODE_FAILURE = "node_failure"
KINDS = (Kind.NO_SIGN_OF_LIFE.code, Kind.NODE_FAILURE.code, Kind.UNMATCHED.code)
"""Findings that `lost_windows` wants."""


@dataclass(frozen=True)
class Lost:
    """A span in which a workload was charged without working; epoch ms."""

    reason: str
    begin: int
    end: int
    findings: tuple[Mapping[str, Any], ...] = field(compare=False)
    """kind, hour and detail of the findings that show it"""


@dataclass(frozen=True)
class Charge:
    """What is booked of one workload and hour for one tenant, deployment and currency, credits left out."""

    hour: int
    tenant_id: str
    deployment_id: str
    currency: str
    gpu_seconds: Decimal
    amount: Decimal
    estimated: bool

    @property
    def account(self) -> tuple[str, str, str]:
        return self.tenant_id, self.deployment_id, self.currency


@dataclass(frozen=True)
class Proposal:
    """A credit for one account: what could be given back, hour by hour."""

    id: str
    cluster: str
    workload_id: str
    tenant_id: str
    deployment_id: str
    currency: str
    lost: Lost
    shares: Mapping[int, Fraction]
    """of each hour's charge, by its start in epoch ms"""
    gpu_seconds: Decimal
    amount: Decimal


@dataclass(frozen=True)
class Part:
    """What a credit gives back of one hour's charge."""

    credit_id: str
    hour: int
    tenant_id: str
    deployment_id: str
    currency: str
    amount: Decimal
    estimated: bool


class Allocated:
    """The allocated GPU-time of one workload, exactly (A4)."""

    def __init__(self, intervals: Intervals, workload_id: str, config: AccountingConfig) -> None:
        number = {str(name): index for index, name in enumerate(intervals.workloads.tolist())}.get(workload_id)
        fractions = intervals.fractions(config)
        self._spans = [
            (int(intervals.start[i]), int(intervals.end[i]), Fraction(int(intervals.gpu_count[i]), NANO) * fractions[i])
            for i in range(len(intervals))
            if intervals.workload[i] == number
        ]

    def between(self, begin: int, end: int) -> Fraction:
        """GPU-ms in `[begin, end)`."""
        return sum((_overlap(a, b, begin, end) * units for a, b, units in self._spans), Fraction(0))

    def shares(self, begin: int, end: int) -> dict[int, Fraction]:
        """Of each hour that `[begin, end)` touches, the part of its GPU-time that lies in it, where there is any."""
        shares = {}
        for hour in hours_of(begin, end):
            lost = self.between(max(begin, hour), min(end, hour + HOUR_MS))
            if lost:
                shares[hour] = lost / self.between(hour, hour + HOUR_MS)
        return shares


def lost_windows(findings: pa.Table, allocated: Allocated, config: AccountingConfig) -> list[Lost]:
    """FINDINGS of one workload, of the KINDS -> its lost spans, in their order; no two overlap.

    Of `unmatched` hours only those count in which no unit of the workload is on any device.
    """
    rows = sorted(
        (
            (kind, first, last, hour, detail)
            for kind, first, last, hour, detail, seconds in rows_of(
                findings, "kind", "first_at", "last_at", "hour", "detail", "seconds"
            )
            if kind != Kind.UNMATCHED.code or seconds == quantize(allocated.between(hour, hour + HOUR_MS) / 1000, 3)
        ),
        key=lambda row: (row[1], row[2], row[0]),
    )
    failures = [
        Lost(NODE_FAILURE, first, last, (_told(kind, hour, detail),))
        for kind, first, last, hour, detail in rows
        if kind == Kind.NODE_FAILURE.code
    ]
    chains: list[Lost] = []
    for kind, first, last, hour, detail in rows:
        if kind == Kind.NODE_FAILURE.code:
            continue
        told = (_told(kind, hour, detail),)
        if chains and first == chains[-1].end:
            chains[-1] = Lost(DIED_UNSEEN, chains[-1].begin, last, chains[-1].findings + told)
        elif kind == Kind.NO_SIGN_OF_LIFE.code:
            chains.append(Lost(DIED_UNSEEN, first, last, told))
    least = config.findings.silent_minutes * 60_000
    unseen = [
        Lost(DIED_UNSEEN, begin, end, chain.findings)
        for chain in chains
        if chain.end - chain.begin >= least
        for begin, end in without((chain.begin, chain.end), [(failure.begin, failure.end) for failure in failures])
    ]
    return sorted([*failures, *unseen], key=lambda lost: lost.begin)


def _told(kind: str, hour: int, detail: str) -> dict[str, str]:
    return {"kind": kind, "hour": hour_text(hour), "detail": detail}


def without(span: tuple[int, int], taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of `[begin, end)` beside the spans that are taken."""
    begin, end = span
    left = []
    for first, past in sorted(taken):
        if first > begin:
            left.append((begin, min(first, end)))
        begin = max(begin, past)
        if begin >= end:
            break
    if begin < end:
        left.append((begin, end))
    return [(first, past) for first, past in left if first < past]


def hours_of(begin: int, end: int) -> range:
    """Starts of the hours that `[begin, end)` touches."""
    return range(begin // HOUR_MS * HOUR_MS, end, HOUR_MS)


def _overlap(begin: int, end: int, first: int, past: int) -> int:
    return max(0, min(end, past) - max(begin, first))


def proposals(
    cluster: str,
    workload_id: str,
    lost: Lost,
    allocated: Allocated,
    charges: Sequence[Charge],
    decided: Mapping[tuple[str, str, str], Collection[tuple[int, int]]],
) -> list[Proposal]:
    """A proposal for each account that was charged in a lost span, for what is not decided there yet.

    `decided` has the windows of earlier decisions by account. What nobody paid is not proposed.
    """
    found = []
    for account in sorted({charge.account for charge in charges}):
        for begin, end in without((lost.begin, lost.end), decided.get(account, ())):
            shares = allocated.shares(begin, end)
            mine = [charge for charge in charges if charge.account == account and charge.hour in shares]
            amount = sum((_share(charge.amount, shares[charge.hour], AMOUNT_PLACES) for charge in mine), Decimal(0))
            seconds = sum((_share(charge.gpu_seconds, shares[charge.hour], 3) for charge in mine), Decimal(0))
            if amount > 0:
                span = Lost(lost.reason, begin, end, lost.findings)
                identity = proposal_id(cluster, workload_id, account, span)
                found.append(Proposal(identity, cluster, workload_id, *account, span, shares, seconds, amount))
    return found


def proposal_id(cluster: str, workload_id: str, account: tuple[str, str, str], lost: Lost) -> str:
    """UUIDv5 of whom it is for and since when: a window that grows is the same proposal."""
    name = [cluster, workload_id, *account, lost.reason, lost.begin]
    return str(uuid.uuid5(NAMESPACE, json.dumps(name, separators=(",", ":"), ensure_ascii=False)))


def _share(value: Decimal, share: Fraction, places: int) -> Decimal:
    """Never more than the whole: a share is at most 1, and half-even rounding keeps the order."""
    return quantize(Fraction(value) * share, places)


def granted(credit_id: str, share: Fraction, charge: Charge, earlier: Decimal) -> Part:
    """What a credit gives back of an hour's charge, `earlier` credits having given back that much of it.

    Never more than what is left, and nothing of an hour that is not charged (any more).
    """
    left = max(charge.amount - earlier, Decimal(0))
    amount = min(_share(max(charge.amount, Decimal(0)), share, AMOUNT_PLACES), left)
    account = (charge.tenant_id, charge.deployment_id, charge.currency)
    return Part(credit_id, charge.hour, *account, amount, charge.estimated)


def grants(
    approved: Sequence[tuple[str, tuple[str, str, str], Mapping[int, Fraction]]], charges: Sequence[Charge]
) -> list[Part]:
    """What all approved credits of one workload give back: id, account and shares of each, in order of approval.

    `charges` are those of the hours that are wanted.
    """
    given: dict[tuple[int, tuple[str, str, str]], Decimal] = defaultdict(Decimal)
    parts = []
    for credit_id, account, shares in approved:
        for charge in charges:
            if charge.account == account and charge.hour in shares:
                part = granted(credit_id, shares[charge.hour], charge, given[charge.hour, account])
                given[charge.hour, account] += part.amount
                parts.append(part)
    return parts


def credit_rows(cluster: str, parts: Iterable[Part]) -> tuple[pa.Table, pa.Table]:
    """Parts as GPU_COST_ALLOCATION and GPU_USAGE rows, as the ledger takes them (`ledger.differences`)."""
    given = [part for part in parts if part.amount]
    allocation = [
        {
            "cluster": cluster,
            "hour": part.hour,
            "workload_id": PREFIX + part.credit_id,
            "tenant_id": part.tenant_id,
            "usage_type": "gpu_local",
            "deployment_id": part.deployment_id,
            "amount": quantize(-Fraction(part.amount), AMOUNT_PLACES),
            "currency": part.currency,
            "estimated": part.estimated,
        }
        for part in given
    ]
    usage = [
        {name: row[name] for name in ("cluster", "hour", "workload_id", "deployment_id")}
        | {"basis": "lifecycle", "methods": ""}
        for row in allocation
    ]
    return pa.Table.from_pylist(allocation, GPU_COST_ALLOCATION), pa.Table.from_pylist(usage, GPU_USAGE)


def evidence(lost: Lost, events: pa.Table) -> dict[str, Any]:
    """What a person needs to decide: the last sign of life, the events around it, and the findings.

    `events` is WORKLOAD_EVENTS of the workload.
    """
    rows = sorted(zip(ints(events["occurred_at"]).tolist(), texts(events["event_id"]).tolist(), strict=True))
    before = [event_id for at, event_id in rows if at <= lost.begin][-1:]
    after = [event_id for at, event_id in rows if lost.begin < at <= lost.end]
    return {
        "last_sign_of_life": instant_text(lost.begin),
        "event_ids": before + after,
        "findings": [dict(told) for told in lost.findings],
    }


def instant_text(ms: int) -> str:
    """An instant with its milliseconds."""
    return f"{hour_text(ms)[:-1]}.{ms % 1000:03d}Z"
