"""Who pays: usage rows priced and split over tenants so that the parts sum exactly to the whole (A24-A29).

The authoritative totals are the published (rounded) units of GPU_USAGE and GPU_IDLE and the disks' GB-hours; the
weights are tokens, which say nothing about some hours. In this order:

1. price     each row once, from its published units, by the policy that fits it best (A23, A24);
2. shares    a dedicated deployment's row goes to its owner, a workload's without a known deployment to the event's
             tenant, a shared one's to the tenants by weighted tokens; with no tokens by the `idle_policy` (A25-A27);
3. split     units and cost, each by the largest remainder (A29);
4. idle      lines `idle:<model>` after all others, because `proportional` spreads them by those results (A27);
5. check     the parts of every row against the row, units and cost by another route; nothing leaves unbalanced.

Choices where the rules are silent: a disk of an unknown deployment goes to the platform tenant, since somebody must
pay for it; a row whose energy is unknown is `estimated`, because its cost lacks that term (A24).

What does not belong here: how units came about (usage), which policy fits (policies.py), statements (statement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import (
    HOUR_MS,
    AccountingError,
    Split,
    column_units,
    hour_text,
    round_half_even,
    rows_of,
    units_column,
)
from finops_pipeline.accounting.holding.deployments import deployment_modes
from finops_pipeline.accounting.money.policies import AMOUNT_PLACES, Policy, PolicyBook, TokenWeights
from finops_pipeline.accounting.money.tokens import TokenCounts, token_counts, weighted_tokens
from finops_pipeline.accounting.usage.storage import PREFIX, gb_hours
from finops_pipeline.contracts import lake

IDLE_DEPLOYMENT = "idle"
IDLE_PREFIX = "idle:"
STORAGE_PLACES = 6
PLACES = {
    "gpu_seconds": 3,
    "gpu_memory_gb_seconds": 3,
    "energy_wh": 6,
    "storage_gb_hours": STORAGE_PLACES,
    "amount": AMOUNT_PLACES,
}

_DAY_MS = 24 * HOUR_MS

Key = tuple[str, str | None]
"""workload_id and gpu_model: what makes a row of an hour."""


class Units(NamedTuple):
    """A row's units as integers of PLACES; None is unknown or does not apply."""

    gpu_seconds: int | None
    gpu_memory_gb_seconds: int | None
    energy_wh: int | None
    storage_gb_hours: int | None = None


class Row(NamedTuple):
    """A whole row before it is split. `amount` is in 1e-9 of the policy's currency; None is unpriced."""

    workload_id: str
    gpu_model: str | None
    usage_type: str
    deployment_id: str
    tenant_id: str | None
    units: Units
    amount: int | None
    policy: Policy | None
    estimated: bool


class Part(NamedTuple):
    """A tenant's part of a row."""

    row: Row
    tenant_id: str
    units: Units
    amount: int | None


@dataclass(frozen=True)
class Hour:
    """Everything that decides who pays in one hour of one cluster."""

    hour_ms: int
    book: PolicyBook
    deployments: Mapping[str, tuple[str, str]]
    tokens: pa.Table
    platform_tenant: str

    @cached_property
    def text(self) -> str:
        return hour_text(self.hour_ms)

    @cached_property
    def tokens_now(self) -> TokenCounts:
        return token_counts(self.tokens, self.hour_ms, self.hour_ms + HOUR_MS)

    @cached_property
    def tokens_before(self) -> TokenCounts:
        return token_counts(self.tokens, self.hour_ms - _DAY_MS, self.hour_ms)


def allocate(
    hour_ms: int,
    cluster: str,
    *,
    usage: pa.Table,
    idle: pa.Table,
    storage: pa.Table,
    tokens: pa.Table,
    deployments: pa.Table,
    book: PolicyBook,
    platform_tenant: str,
) -> pa.Table:
    """GPU_COST_ALLOCATION of one hour of one cluster, sorted by key.

    `usage` (GPU_USAGE; `storage` rows in it are passed over) and `idle` (GPU_IDLE) hold that hour only, `storage`
    is DEPLOYMENT_STORAGE, `tokens` the clean TOKEN_USAGE of `[hour - 24 h, hour + 1 h)` at least.
    Raises `AccountingError` if parts do not sum to their whole.
    """
    hour = Hour(hour_ms, book.in_force(hour_ms), deployment_modes(deployments), tokens, platform_tenant)
    disks = gb_hours(storage, hour_ms)
    shares = _token_shares(hour)
    parts = [
        part for row in (*_workload_rows(hour, usage), *_storage_rows(hour, disks)) for part in _split(row, shares(row))
    ]
    by_use = _use_shares(hour, parts)
    for row in _idle_rows(hour, idle):
        parts.extend(
            _split(row, by_use if row.policy and row.policy.idle_policy == "proportional" else _platform(hour))
        )
    allocation = _table(cluster, hour_ms, parts)
    check_parts(allocation, hour_ms, usage=usage, idle=idle, storage=storage, book=book)
    return allocation


def check_parts(
    allocation: pa.Table, hour_ms: int, *, usage: pa.Table, idle: pa.Table, storage: pa.Table, book: PolicyBook
) -> None:
    """Sum of parts = whole, for every row, unit and cost of one hour of one cluster (A29).

    Sums the allocation per row in Arrow, and holds it against the published units and against the cost that the
    row's policy makes of them. Raises `AccountingError` naming the first row that differs.
    """
    disks: dict[Key, Fraction] = {
        (PREFIX + deployment_id, None): held for deployment_id, held in gb_hours(storage, hour_ms).items()
    }
    wholes = _wholes(usage, idle, disks)
    sums = _sums(allocation)
    if differing := wholes.keys() ^ sums.keys():
        key = min(differing, key=str)
        raise _unbalanced(hour_ms, key, "is not usage" if key in sums else "was allocated to nobody")
    for key, whole in wholes.items():
        units, amount, policy_id = sums[key]
        for name, total in units.items():
            if total != (expected := getattr(whole, name)):
                raise _unbalanced(hour_ms, key, f"parts of {name} sum to {total} units, the whole is {expected}")
        if policy_id is not None:
            policy = book[policy_id]
            disk = disks.get(key)
            if disk is None:
                cost = policy.cost(whole.gpu_seconds, whole.energy_wh)
            else:
                cost = policy.storage_cost(disk, hour_ms)
            if amount != cost:
                raise _unbalanced(hour_ms, key, f"parts cost {amount}, the whole costs {cost} x 1e-9")


def _unbalanced(hour_ms: int, key: Key, what: str) -> AccountingError:
    return AccountingError(f"{hour_text(hour_ms)}, row {key[0]} on {key[1] or 'no model'}: {what} (A29)")


def _workload_rows(hour: Hour, usage: pa.Table) -> Iterator[Row]:
    paid = _paid(usage)
    names = ("workload_id", "gpu_model", "deployment_id", "tenant_id", "estimated_seconds", "missing_seconds")
    for (workload_id, gpu_model, deployment_id, tenant_id, *flawed), units in zip(
        rows_of(paid, *names), _units(paid), strict=True
    ):
        policy = hour.book.best(deployment_id, gpu_model, hour.hour_ms)
        amount = None if policy is None else policy.cost(units.gpu_seconds, units.energy_wh)
        flag = any(flawed) or units.energy_wh is None
        yield Row(workload_id, gpu_model, "gpu_local", deployment_id, tenant_id, units, amount, policy, flag)


def _storage_rows(hour: Hour, disks: Mapping[str, Fraction]) -> Iterator[Row]:
    for deployment_id, held in disks.items():
        policy = hour.book.best(deployment_id, None, hour.hour_ms)
        amount = None if policy is None else policy.storage_cost(held, hour.hour_ms)
        units = Units(None, None, None, _storage_units(held))
        yield Row(PREFIX + deployment_id, None, "gpu_local", deployment_id, None, units, amount, policy, False)


def _idle_rows(hour: Hour, idle: pa.Table) -> Iterator[Row]:
    for (gpu_model, estimated), units in zip(rows_of(idle, "gpu_model", "estimated"), _units(idle), strict=True):
        policy = hour.book.best(IDLE_DEPLOYMENT, gpu_model, hour.hour_ms)
        amount = None if policy is None else policy.cost(units.gpu_seconds, units.energy_wh)
        flag = estimated or units.energy_wh is None
        yield Row(IDLE_PREFIX + gpu_model, gpu_model, "gpu_idle", IDLE_DEPLOYMENT, None, units, amount, policy, flag)


def _token_shares(hour: Hour) -> Callable[[Row], Split]:
    """Who pays a row, by its deployment, event tenant and policy (A25-A27); each answer is worked out once."""
    known: dict[tuple[str, str | None, str | None], Split] = {}

    def shares(row: Row) -> Split:
        key = (row.deployment_id, row.tenant_id, None if row.policy is None else row.policy.id)
        if key not in known:
            mode, owner = hour.deployments.get(row.deployment_id, ("dedicated", row.tenant_id or hour.platform_tenant))
            weights = _token_weights(hour, row.deployment_id, owner, row.policy) if mode == "shared" else {owner: 1}
            known[key] = Split(weights, hour.text)
        return known[key]

    return shares


def _token_weights(hour: Hour, deployment_id: str, owner: str, policy: Policy | None) -> Mapping[str, int]:
    token_kinds = TokenWeights() if policy is None else policy.token_weights
    if now := weighted_tokens(hour.tokens_now, deployment_id, token_kinds):
        return now
    if policy is not None and policy.idle_policy == "platform":
        return {hour.platform_tenant: 1}
    if policy is not None and policy.idle_policy == "proportional":
        return weighted_tokens(hour.tokens_before, deployment_id, token_kinds) or {owner: 1}
    return {owner: 1}


def _platform(hour: Hour) -> Split:
    return Split({hour.platform_tenant: 1}, hour.text)


def _use_shares(hour: Hour, parts: list[Part]) -> Split:
    """Tenants by the GPU-seconds that they were given in the hour, all models (A27)."""
    seconds: dict[str, int] = {}
    for part in parts:
        seconds[part.tenant_id] = seconds.get(part.tenant_id, 0) + (part.units.gpu_seconds or 0)
    return Split(seconds, hour.text) if any(seconds.values()) else _platform(hour)


def _split(row: Row, split: Split) -> Iterator[Part]:
    tenants = split.share_ids
    if len(tenants) == 1:
        yield Part(row, tenants[0], row.units, row.amount)
        return
    nothing: list[int | None] = [None] * len(tenants)
    columns = [nothing if total is None else split.parts(total) for total in (*row.units, row.amount)]
    for tenant_id, *units, amount in zip(tenants, *columns, strict=True):
        yield Part(row, tenant_id, Units(*units), amount)


def _table(cluster: str, hour_ms: int, parts: list[Part]) -> pa.Table:
    parts = sorted(parts, key=lambda p: (p.row.workload_id, p.row.gpu_model or "", p.tenant_id, p.row.usage_type))
    rows = [part.row for part in parts]
    columns: dict[str, list[Any] | pa.Array[Any]] = {
        "cluster": [cluster] * len(parts),
        "hour": [hour_ms] * len(parts),
        "workload_id": [row.workload_id for row in rows],
        "gpu_model": [row.gpu_model for row in rows],
        "tenant_id": [part.tenant_id for part in parts],
        "usage_type": [row.usage_type for row in rows],
        "deployment_id": [row.deployment_id for row in rows],
        "amount": units_column((part.amount for part in parts), PLACES["amount"]),
        "currency": [row.policy and row.policy.currency for row in rows],
        "policy_id": [row.policy and row.policy.id for row in rows],
        "estimated": [row.estimated for row in rows],
    }
    for index, name in enumerate(Units._fields):
        columns[name] = units_column((part.units[index] for part in parts), PLACES[name])
    schema = lake.GPU_COST_ALLOCATION
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _paid(usage: pa.Table) -> pa.Table:
    """Rows of workloads that somebody pays for; an unattributed pod's time is in the idle line (A18)."""
    return usage.filter(pc.and_(pc.not_equal(usage["basis"], pa.scalar("storage")), pc.is_valid(usage["tenant_id"])))


def _units(table: pa.Table) -> list[Units]:
    columns = (column_units(table[name], PLACES[name]) for name in Units._fields[:3])
    return [Units(*units) for units in zip(*columns, strict=True)]


def _storage_units(held: Fraction) -> int:
    return round_half_even(held.numerator * 10**STORAGE_PLACES, held.denominator)


def _wholes(usage: pa.Table, idle: pa.Table, disks: Mapping[Key, Fraction]) -> dict[Key, Units]:
    """Published units of every row that somebody must pay for, by workload_id and gpu_model."""
    paid = _paid(usage)
    keys: list[Key] = [(workload_id, model) for workload_id, model in rows_of(paid, "workload_id", "gpu_model")]
    keys += [(IDLE_PREFIX + model, model) for (model,) in rows_of(idle, "gpu_model")]
    wholes: dict[Key, Units] = dict(zip(keys, _units(paid) + _units(idle), strict=True))
    if len(wholes) != len(keys):
        raise AccountingError("gpu_usage or gpu_idle has two rows of one workload and model (A20)")
    wholes.update({key: Units(None, None, None, _storage_units(held)) for key, held in disks.items()})
    return wholes


def _sums(allocation: pa.Table) -> dict[Key, tuple[dict[str, int | None], int | None, str | None]]:
    """Units, amount and policy_id of the parts of every row, by workload_id and gpu_model."""
    units = [name for name in Units._fields if name in allocation.column_names]
    names = [*units, "amount"]
    groups = allocation.group_by(["workload_id", "gpu_model", "policy_id"]).aggregate([(name, "sum") for name in names])
    columns = [column_units(groups[f"{name}_sum"], PLACES[name]) for name in names]
    keys = rows_of(groups, "workload_id", "gpu_model", "policy_id")
    sums = {
        (workload_id, model): (dict(zip(units, parts, strict=True)), amount, policy_id)
        for (workload_id, model, policy_id), *parts, amount in zip(keys, *columns, strict=True)
    }
    if len(sums) != groups.num_rows:
        raise AccountingError("gpu_cost_allocation prices parts of one row by several policies (A23)")
    return sums
