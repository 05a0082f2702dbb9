"""Statements: a month's allocation summed per tenant, deployment and currency, rounded to money (A30, A33).

A statement has *items*, the month's own allocation, and *corrections*, each with its hour: differences of final months
that no other statement lists, and credits. Items and corrections are rounded apart, so that an item is the same with and without corrections;
`totals` are both together: over time the exact sums of all statements are the sum of all events.

What belongs here: the exact sums, the rounding that keeps lines and totals equal, and the file's exact text.
What does not: whether a month may become final (closing), or where statements are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.exact import (
    AccountingError,
    decimal_of,
    hour_text,
    month_text,
    rank_remainders,
    round_half_even,
    rows_of,
    units_of,
)
from finops_pipeline.accounting.money.policies import AMOUNT_PLACES, minor_digits
from finops_pipeline.accounting.money.queries import queries
from finops_pipeline.contracts import lake

UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")

CORRECTIONS = pa.schema(
    [pa.field("hour", lake.INSTANT, nullable=False)]
    + [pa.field(name, pa.string()) for name in ("tenant_id", "deployment_id", "currency", "policy_id")]
    + [lake.GPU_COST_ALLOCATION.field(name) for name in (*UNITS, "amount")]
    + [pa.field("estimated", pa.bool_(), nullable=False)],
    metadata={"grain": "a usage event that a statement lists beside its items, in order of booking (A33)"},
)

_ITEM = ("tenant_id", "deployment_id", "currency")

Line = dict[str, Any]
"""An item, or a correction, which also has its `hour` (epoch ms)."""


def statement(period: str, status: str, allocation: pa.Table, corrections: pa.Table | None = None) -> dict[str, Any]:
    """The statement of the month `period` (`2026-10`), from all its GPU_COST_ALLOCATION rows of all clusters.

    `corrections` is a CORRECTIONS table, of no later month; the result has that key only if it comes to something.
    Units are `Decimal` (None where no row has one), amounts are strings in the currency's minor unit, unpriced
    usage is an item and a line of totals with amount and currency None. Items are sorted by tenant, deployment,
    currency, corrections by hour before that, totals by currency, None first. `policy_id` is that of the item's latest
    priced hour; of several in that hour the highest id. Raises `AccountingError` on a row of another month.
    """
    _require_month(period, allocation)
    items = _items(allocation)
    corrected = [] if corrections is None else _corrections(period, corrections)
    totals = _totals(period, (items, corrected))
    for line in (*items, *corrected):
        line["allocated"] = {"amount": line.pop("amount"), "currency": line.pop("currency")}
    for line in corrected:
        line["hour"] = hour_text(line["hour"])
    result = {"period": period, "status": status, "items": items, "totals": totals}
    return result | {"corrections": corrected} if corrected else result


def account_sums(allocation: pa.Table) -> dict[tuple[str, str, str | None], tuple[Decimal | None, ...]]:
    """Exact sums of UNITS and amount by (tenant, deployment, currency), as the ledger must have them (A32, A33)."""
    return {
        tuple(item[name] for name in _ITEM): tuple(item[n] for n in (*UNITS, "amount")) for item in _items(allocation)
    }


def statement_sha256(result: Mapping[str, Any]) -> str:
    """SHA-256 of a statement's `gpu_allocation.json`, with which the audit log names it (A34)."""
    return hashlib.sha256(statement_json([result]).encode()).hexdigest()


def statement_json(statements: Iterable[Mapping[str, Any]]) -> str:
    """`gpu_allocation.json`: keys sorted, two spaces of indent, units with all their decimals."""
    return _json(list(statements), "") + "\n"


def _require_month(period: str, allocation: pa.Table) -> None:
    for (instant,) in rows_of(allocation.group_by("hour").aggregate([]), "hour"):
        if month_text(instant) != period:
            raise AccountingError(f"statement {period} was given an hour of {month_text(instant)} (A30)")


def _totals(period: str, blocks: Sequence[list[Line]]) -> list[dict[str, Any]]:
    """Round each block of lines, and add up both by currency."""
    by_currency: dict[str | None, list[list[Line]]] = defaultdict(lambda: [[] for _ in blocks])
    for number, lines in enumerate(blocks):
        for line in lines:
            by_currency[line["currency"]][number].append(line)
    totals = []
    for currency, parts in sorted(by_currency.items(), key=lambda entry: entry[0] or ""):
        amount = None
        if currency is not None:
            amount = f"{sum((_round_together(currency, period, lines) for lines in parts if lines), Decimal(0)):f}"
        units = {name: _sum([line for lines in parts for line in lines], name) for name in UNITS}
        totals.append({"currency": currency, "amount": amount, **units})
    return totals


def _corrections(period: str, events: pa.Table) -> list[Line]:
    """One dict an hour, tenant, deployment and currency that comes to something, with its exact sums, sorted."""
    summed = (*UNITS, "amount")
    key = ("hour", *_ITEM)
    groups: dict[tuple[Any, ...], Line] = {}
    for *at, policy_id, estimated in rows_of(events, *key, "policy_id", "estimated"):
        line = groups.setdefault(tuple(at), dict(zip(key, at, strict=True)) | {"policy_id": None, "estimated": False})
        line["policy_id"] = policy_id or line["policy_id"]
        line["estimated"] = estimated or line["estimated"]
    sums = events.group_by(list(key)).aggregate([(name, "sum") for name in summed])
    for row in rows_of(sums, *key, *(f"{name}_sum" for name in summed)):
        groups[row[: len(key)]].update(zip(summed, row[len(key) :], strict=True))
    for hour, *_ in groups:
        if month_text(hour) > period:
            raise AccountingError(f"statement {period} was given a correction of {hour_text(hour)} (A33)")
    lines = [line for line in groups.values() if any(line[name] for name in summed)]
    return sorted(lines, key=lambda line: tuple(line[name] or "" for name in key))


def _items(allocation: pa.Table) -> list[Line]:
    """One dict an item with its exact sums, sorted."""
    with queries(allocation=allocation) as run:
        return list(run.table("statement_items").to_pylist())


def _round_together(currency: str, period: str, lines: list[Line]) -> Decimal:
    """Turn the lines' amounts into minor units that sum to their rounded total, which is returned (A30)."""
    digits = minor_digits(currency)
    scale = 10 ** (AMOUNT_PLACES - digits)
    exact = [units_of(line["amount"], AMOUNT_PLACES) for line in lines]
    total = round_half_even(sum(exact), scale)
    cut = [divmod(amount, scale) for amount in exact]
    by_share = {_share_id(line): index for index, line in enumerate(lines)}
    fractions = {share_id: cut[index][1] for share_id, index in by_share.items()}
    minor = [whole for whole, _ in cut]
    for share_id in rank_remainders(fractions, period)[: total - sum(minor)]:
        minor[by_share[share_id]] += 1
    for line, units in zip(lines, minor, strict=True):
        line["amount"] = f"{decimal_of(units, digits):f}"
    return decimal_of(total, digits)


def _share_id(line: Line) -> str:
    """What breaks ties of A30; a correction's also names its hour."""
    share_id = f"{line['tenant_id']}|{line['deployment_id']}"
    return f"{share_id}|{hour_text(line['hour'])}" if "hour" in line else share_id


def _sum(items: Iterable[Mapping[str, Any]], name: str) -> Decimal | None:
    known = [item[name] for item in items if item[name] is not None]
    return sum(known[1:], known[0]) if known else None


def _json(value: object, indent: str) -> str:
    """As `json.dumps(value, indent=2, sort_keys=True)`, but a Decimal keeps its digits."""
    inner = indent + "  "
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Mapping) and value:
        members = (f"{inner}{json.dumps(key)}: {_json(value[key], inner)}" for key in sorted(value))
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{_json(member, inner)}" for member in value) + f"\n{indent}]"
    return json.dumps(value)
