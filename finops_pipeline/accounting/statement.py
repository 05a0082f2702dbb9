"""Statements: a month's allocation summed per tenant, deployment and currency, rounded to money (A30).

What belongs here: the exact sums, the rounding that keeps items and total equal, and the file's exact text.
What does not: whether a month may become final (A33), or where statements are kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import (
    AccountingError,
    decimal_of,
    month_text,
    rank_remainders,
    round_half_even,
    rows_of,
    units_of,
)
from finops_pipeline.accounting.policies import AMOUNT_PLACES, minor_digits

UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")

_ITEM = ("tenant_id", "deployment_id", "currency")
_KEY = ("hour", "cluster", "workload_id", "gpu_model", "usage_type")


def statement(period: str, status: str, allocation: pa.Table) -> dict[str, Any]:
    """The statement of the month `period` (`2026-10`), from all its GPU_COST_ALLOCATION rows of all clusters.

    Units are `Decimal` (None where no row has one), amounts are strings in the currency's minor unit, unpriced
    usage is an item and a line of totals with amount and currency None. Items are sorted by tenant, deployment,
    currency, totals by currency, None first. `policy_id` is that of the item's latest priced hour; of several
    in that hour, the last by key. Raises `AccountingError` on a row of another month.
    """
    _require_month(period, allocation)
    items = _items(allocation)
    by_currency: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_currency[item["currency"]].append(item)
    totals = []
    for currency, members in sorted(by_currency.items(), key=lambda entry: entry[0] or ""):
        amount = None if currency is None else _round_together(currency, period, members)
        units = {name: _sum(members, name) for name in UNITS}
        totals.append({"currency": currency, "amount": amount, **units})
    for item in items:
        item["allocated"] = {"amount": item.pop("amount"), "currency": item.pop("currency")}
    return {"period": period, "status": status, "items": items, "totals": totals}


def statement_json(statements: Iterable[Mapping[str, Any]]) -> str:
    """`gpu_allocation.json`: keys sorted, two spaces of indent, units with all their decimals."""
    return _json(list(statements), "") + "\n"


def _require_month(period: str, allocation: pa.Table) -> None:
    for (instant,) in rows_of(allocation.group_by("hour").aggregate([]), "hour"):
        if month_text(instant) != period:
            raise AccountingError(f"statement {period} was given an hour of {month_text(instant)} (A30)")


def _items(allocation: pa.Table) -> list[dict[str, Any]]:
    """One dict an item with its exact sums, sorted."""
    summed = (*UNITS, "amount")
    sums = allocation.group_by(list(_ITEM)).aggregate([*((name, "sum") for name in summed), ("estimated", "any")])
    policies = _latest_policies(allocation)
    items = [
        {
            **{name: row[name] for name in _ITEM},
            **{name: row[f"{name}_sum"] for name in summed},
            "estimated": row["estimated_any"],
            "policy_id": policies.get(tuple(row[name] for name in _ITEM)),
        }
        for row in sums.to_pylist()
    ]
    return sorted(items, key=lambda item: tuple(item[name] or "" for name in _ITEM))


def _latest_policies(allocation: pa.Table) -> dict[tuple[Any, ...], str]:
    """The policy of each priced item's latest hour; of several in that hour, that of the last row by key."""
    priced = allocation.filter(pc.is_valid(allocation["policy_id"])).select([*_ITEM, *_KEY, "policy_id"])
    latest = priced.group_by(list(_ITEM)).aggregate([("hour", "max")]).rename_columns([*_ITEM, "hour"])
    rows = priced.join(latest, [*_ITEM, "hour"], join_type="inner").to_pylist()
    rows.sort(key=lambda row: tuple(row[name] or "" for name in _KEY[1:]))
    return {tuple(row[name] for name in _ITEM): row["policy_id"] for row in rows}


def _round_together(currency: str, period: str, items: list[dict[str, Any]]) -> str:
    """Turn the items' amounts into minor units that sum to their rounded total, which is returned (A30)."""
    digits = minor_digits(currency)
    scale = 10 ** (AMOUNT_PLACES - digits)
    exact = [units_of(item["amount"], AMOUNT_PLACES) for item in items]
    total = round_half_even(sum(exact), scale)
    cut = [divmod(amount, scale) for amount in exact]
    by_share = {f"{item['tenant_id']}|{item['deployment_id']}": index for index, item in enumerate(items)}
    fractions = {share_id: cut[index][1] for share_id, index in by_share.items()}
    minor = [whole for whole, _ in cut]
    for share_id in rank_remainders(fractions, period)[: total - sum(minor)]:
        minor[by_share[share_id]] += 1
    for item, units in zip(items, minor, strict=True):
        item["amount"] = f"{decimal_of(units, digits):f}"
    return f"{decimal_of(total, digits):f}"


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
