"""Who pays: usage rows priced and split over tenants so that the parts sum exactly to the whole (A24-A29).

The authoritative totals are the published (rounded) units of GPU_USAGE and GPU_IDLE and the disks' GB-hours; the
weights are tokens, which say nothing about some hours. A stretch of hours is done at once, in this order:

1. price     each row, from its published units, by the policy that fits it best (A23, A24): here, exactly;
2. shares    a dedicated deployment's row goes to its owner, a workload's without a known deployment to the event's
             tenant, a shared one's to the tenants by weighted tokens, without tokens by the `idle_policy` (A25-A27):
             `sql/shares.sql`;
3. parts     units and cost, each by the largest remainder (A29): `sql/parts.sql`;
4. idle      lines `idle:<model>` after all others, because `proportional` spreads them by those results (A27):
             `sql/idle_shares.sql`, then `sql/parts.sql` again;
5. check     the parts of every row against the row, units and cost: `sql/check_parts.sql`; nothing leaves unbalanced.

Choices where the rules are silent: a row whose energy is unknown is `estimated`, because its cost lacks that term
(A24); a total and weights whose product no 128-bit integer holds are refused, naming the deployment.

What does not belong here: how units came about (usage), which policy fits (policies.py), statements (statement.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import (
    HOUR_MS,
    AccountingError,
    column_units,
    hour_text,
    quantize,
    rows_of,
    units_column,
)
from finops_pipeline.accounting.holding.deployments import deployment_modes
from finops_pipeline.accounting.money.policies import AMOUNT_PLACES, Policy, PolicyBook
from finops_pipeline.accounting.money.queries import Queries, conformed, queries
from finops_pipeline.accounting.money.tokens import COUNTS, TOKEN_EVENTS, tokens_between
from finops_pipeline.accounting.usage.storage import PREFIX, gb_hours
from finops_pipeline.contracts import lake

IDLE_DEPLOYMENT = "idle"
IDLE_PREFIX = "idle:"
PLACES = {
    "gpu_seconds": 3,
    "gpu_memory_gb_seconds": 3,
    "energy_wh": 6,
    "storage_gb_hours": 6,
    "amount": AMOUNT_PLACES,
}

_FAULT = ("hour_ms", "workload_id", "model", "fault")
_WHOLE = pa.decimal128(38)
_PRICED = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("hour_ms", pa.int64(), nullable=False),
        *(lake.GPU_COST_ALLOCATION.field(name) for name in ("workload_id", "gpu_model", "usage_type", "deployment_id")),
        pa.field("tenant_id", pa.string()),
        *(lake.GPU_COST_ALLOCATION.field(name) for name in (*PLACES, "currency", "policy_id", "estimated")),
    ],
    metadata={"grain": "a whole row of an hour before it is split; `tenant_id` is the event's"},
)
_POLICY = pa.schema(
    [("policy_id", pa.string()), ("idle_policy", pa.string())]
    + [(name, _WHOLE) for name in ("per_input", "per_output", "per_cached")],
    metadata={"grain": "a policy: what a token of each kind counts for, whole by a common factor (A26)"},
)
_DEPLOYMENT = pa.schema(
    [("hour_ms", pa.int64())] + [(name, pa.string()) for name in ("deployment_id", "mode", "owner_tenant_id")],
    metadata={"grain": "a deployment as it is in one hour"},
)


class Units(NamedTuple):
    """A row's units as integers of PLACES; None is unknown or does not apply."""

    gpu_seconds: int | None
    gpu_memory_gb_seconds: int | None
    energy_wh: int | None
    storage_gb_hours: int | None = None


@dataclass(frozen=True)
class PaidHour:
    """Everything that decides who pays in one hour of one cluster.

    `usage` (GPU_USAGE; `storage` rows in it are passed over) and `idle` (GPU_IDLE) hold that hour only, `storage`
    is DEPLOYMENT_STORAGE, `tokens` the clean TOKEN_USAGE of `[hour - 24 h, hour + 1 h)` at least.
    """

    hour_ms: int
    usage: pa.Table
    idle: pa.Table
    storage: pa.Table
    tokens: pa.Table
    deployments: pa.Table
    book: PolicyBook

    def policies(self, rows: Iterable[tuple[str, str | None]]) -> list[Policy | None]:
        """The policy of each row, given by its deployment and model (A23); each answer is worked out once."""
        found = []
        for row in rows:
            if row not in self.chosen:
                self.chosen[row] = self._in_force.best(*row, self.hour_ms)
            found.append(self.chosen[row])
        return found

    def is_shared(self, deployment_id: str) -> bool:
        return self.modes.get(deployment_id, ("", ""))[0] == "shared"

    @property
    def used(self) -> dict[str, Policy]:
        """The policies found so far, by id."""
        return {policy.id: policy for policy in self.chosen.values() if policy is not None}

    @cached_property
    def _in_force(self) -> PolicyBook:
        return self.book.in_force(self.hour_ms)

    @cached_property
    def chosen(self) -> dict[tuple[str, str | None], Policy | None]:
        """The policy of each deployment and model that was asked for."""
        return {}

    @cached_property
    def modes(self) -> Mapping[str, tuple[str, str]]:
        return deployment_modes(self.deployments)


def allocate(cluster: str, hours: Sequence[PaidHour], *, platform_tenant: str) -> pa.Table:
    """GPU_COST_ALLOCATION of a stretch of hours of one cluster, sorted by key.

    Memory grows with the rows of the stretch: take a day at a time. Raises `AccountingError` if parts do not sum to
    their whole, or a row cannot be divided exactly.
    """
    rows = priced(hours)
    with queries(**_relations(hours, rows)) as run:
        for _ in _divided(run, platform_tenant):
            pass
        allocation = conformed(run.table("allocation"), lake.GPU_COST_ALLOCATION, cluster=cluster)
    check_parts(allocation, rows)
    return allocation


def payers(hour: PaidHour, *, platform_tenant: str) -> pa.Table:
    """Who pays each row of an hour, by which rule and weight: what `allocate` divides by (A25-A27).

    Columns: workload_id, gpu_model, deployment_id, event_tenant_id, tenant_id, rule, weight and, where tokens decide,
    input_tokens, output_tokens and cached_tokens. Rules: see `sql/shares.sql` and `sql/idle_shares.sql`.
    """
    with queries(**_relations([hour], priced([hour]))) as run:
        return pa.concat_tables(
            (run.table("payers") for _ in _divided(run, platform_tenant)), promote_options="permissive"
        )


def _divided(run: Queries, platform_tenant: str) -> Iterator[None]:
    """Fill the relation `part`; comes to the caller with the relation `share` of each of the two rounds."""
    run.keep("token_sum", "token_sums")
    run.keep("share", "shares", platform_tenant=platform_tenant)
    _require_divisible(run)
    run.keep("part", "parts")
    yield
    run.keep("share", "idle_shares", platform_tenant=platform_tenant)
    _require_divisible(run)
    run.add("part", "parts")
    yield


def check_parts(allocation: pa.Table, rows: pa.Table) -> None:
    """Sum of parts = whole, for every row, unit and cost (A29); `rows` is what `priced` gives for the same hours.

    Raises `AccountingError` naming the first row that differs.
    """
    with queries(allocation=allocation, priced=rows) as run:
        for hour_ms, workload_id, model, fault in rows_of(run.table("check_parts"), *_FAULT):
            raise AccountingError(f"{hour_text(hour_ms)}, row {workload_id} on {model or 'no model'}: {fault} (A29)")


def priced(hours: Iterable[PaidHour]) -> pa.Table:
    """Every whole row of the hours with its published units, its policy and its cost (A23, A24)."""
    tables = [table for hour in hours for table in (_of_workloads(hour), _of_disks(hour), _of_nobody(hour))]
    rows = pa.concat_tables(tables)
    return pa.table([pa.array(range(len(rows)), pa.int64()), *rows.columns], schema=_PRICED)


def of_hour(table: pa.Table, hour_ms: int) -> pa.Table:
    """The rows of one hour of a table with an `hour`."""
    return table.filter(pc.equal(table["hour"], pa.scalar(hour_ms, lake.INSTANT)))


def _of_workloads(hour: PaidHour) -> pa.Table:
    """Rows that somebody pays for; an unattributed pod's time is in the idle line (A18)."""
    usage = hour.usage
    paid = usage.filter(pc.and_(pc.not_equal(usage["basis"], pa.scalar("storage")), pc.is_valid(usage["tenant_id"])))
    names = ("workload_id", "gpu_model", "deployment_id", "tenant_id")
    if len(set(rows_of(paid, *names))) != len(paid):
        raise AccountingError("gpu_usage has two rows of one workload, model, deployment and tenant (A4, A20)")
    flawed = pc.or_(paid["estimated"], pc.is_null(paid["energy_wh"]))
    return _rows(hour, paid, "gpu_local", {name: paid[name] for name in names} | {"estimated": flawed})


def _of_nobody(hour: PaidHour) -> pa.Table:
    idle = hour.idle
    models = idle["gpu_model"]
    if len(pc.unique(models)) != len(idle):
        raise AccountingError("gpu_idle has two rows of one model (A27)")
    described = {
        "workload_id": [f"{IDLE_PREFIX}{model}" for model in models.to_pylist()],
        "gpu_model": models,
        "deployment_id": pa.repeat(IDLE_DEPLOYMENT, len(idle)),
        "estimated": pc.or_(idle["estimated"], pc.is_null(idle["energy_wh"])),
    }
    return _rows(hour, idle, "gpu_idle", described)


def _rows(hour: PaidHour, table: pa.Table, usage_type: str, described: Mapping[str, Any]) -> pa.Table:
    """Rows of _PRICED without their number, from the units in `table`."""
    deployments, models = (described[name].to_pylist() for name in ("deployment_id", "gpu_model"))
    policies = hour.policies(zip(deployments, models, strict=True))
    units = (column_units(table[name], PLACES[name]) for name in ("gpu_seconds", "energy_wh"))
    amounts = (
        None if policy is None else policy.cost(gpu, energy)
        for policy, gpu, energy in zip(policies, *units, strict=True)
    )
    return _table(
        hour, usage_type, policies, amounts, {**described, **{name: table[name] for name in Units._fields[:3]}}
    )


def _of_disks(hour: PaidHour) -> pa.Table:
    disks = gb_hours(hour.storage, hour.hour_ms)
    policies = hour.policies((deployment_id, None) for deployment_id in disks)
    amounts = (
        None if policy is None else policy.storage_cost(held, hour.hour_ms)
        for policy, held in zip(policies, disks.values(), strict=True)
    )
    described = {
        "workload_id": [PREFIX + deployment_id for deployment_id in disks],
        "deployment_id": list(disks),
        "storage_gb_hours": [quantize(held, PLACES["storage_gb_hours"]) for held in disks.values()],
        "estimated": [False] * len(disks),
    }
    return _table(hour, "gpu_local", policies, amounts, described)


def _table(
    hour: PaidHour,
    usage_type: str,
    policies: list[Policy | None],
    amounts: Iterable[int | None],
    described: Mapping[str, Any],
) -> pa.Table:
    columns = {
        "hour_ms": pa.repeat(hour.hour_ms, len(policies)),
        "usage_type": pa.repeat(usage_type, len(policies)),
        "amount": units_column(amounts, PLACES["amount"]),
        "currency": [policy and policy.currency for policy in policies],
        "policy_id": [policy and policy.id for policy in policies],
        **described,
    }
    schema = _PRICED.remove(0)
    return pa.table(
        {field.name: columns.get(field.name, pa.nulls(len(policies), field.type)) for field in schema}, schema=schema
    )


def _relations(hours: Sequence[PaidHour], rows: pa.Table) -> dict[str, pa.Table]:
    """What `sql/shares.sql` asks for: the rows, and the deployments, policies and tokens that decide about them."""
    modes = [(hour.hour_ms, name, *mode) for hour in hours for name, mode in hour.modes.items()]
    weights = {
        policy_id: (policy_id, policy.idle_policy, *map(Decimal, policy.token_weights.integers))
        for hour in hours
        for policy_id, policy in hour.used.items()
    }
    tokens = [_spanned(hour.hour_ms, span, some) for hour in hours for span, some in enumerate(_tokens(hour))]
    return {
        "priced": rows,
        "deployment": _transposed(modes, _DEPLOYMENT),
        "policy": _transposed(list(weights.values()), _POLICY),
        "token_event": pa.concat_tables(tokens),
    }


def _tokens(hour: PaidHour) -> Iterator[pa.Table]:
    """The hour's token events, and those of the 24 hours before it that `proportional` asks for (A27)."""
    now = tokens_between(hour.tokens, hour.hour_ms, hour.hour_ms + HOUR_MS)
    yield now
    served = now.filter(pc.greater(pc.max_element_wise(*(now[name] for name in COUNTS)), pa.scalar(0)))
    waiting = {
        deployment_id
        for (deployment_id, _), policy in hour.chosen.items()
        if policy is not None and policy.idle_policy == "proportional" and hour.is_shared(deployment_id)
    }
    if all(all(policy.token_weights.integers) for policy in hour.used.values()):
        waiting -= set(pc.unique(served["deployment_id"]).to_pylist())
    if waiting:
        before = tokens_between(hour.tokens, hour.hour_ms - 24 * HOUR_MS, hour.hour_ms)
        yield before.filter(pc.is_in(before["deployment_id"], value_set=pa.array(sorted(waiting), pa.string())))


def _spanned(hour_ms: int, span: int, tokens: pa.Table) -> pa.Table:
    constants: list[Any] = [pa.repeat(hour_ms, len(tokens)), pa.repeat(span, len(tokens))]
    return pa.table([*constants, *tokens.select(TOKEN_EVENTS.names[2:]).columns], schema=TOKEN_EVENTS)


def _transposed(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _require_divisible(run: Queries) -> None:
    for hour_ms, deployment_id in rows_of(run.table("too_large"), "hour_ms", "deployment_id"):
        raise AccountingError(
            f"{hour_text(hour_ms)}, deployment {deployment_id}: its units and the weights of its tenants are too large to"
            " be divided exactly; look for absurd token counts, token_weights or prices (A26, A29)"
        )
