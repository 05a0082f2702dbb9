"""Busy pods that match no deployment, as a person sees them in a statement: a line of their own beside `idle`.

What belongs here: taking their part out of the idle lines of a statement that is shown. What does not: the statement
itself, in whose files and tables their time is in the idle line (A27).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.money.policies import minor_digits
from finops_pipeline.resources.postgres.client import Database, sql_file
from finops_pipeline.resources.postgres.published import month_bounds

UNATTRIBUTED = "unattributed"
UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")


def told_apart(database: Database, result: Mapping[str, Any]) -> dict[str, Any]:
    """A statement for a person: of each `idle` line the part of such pods as a line `unattributed` after it.

    The two sum to the line, in every unit and in money.
    """
    first, past = month_bounds(result["period"])
    found = database.query(sql_file("unattributed"), {"first": first, "past": past}).to_pylist()
    parts = {(row["tenant_id"], row["currency"]): row for row in found}
    items: list[Mapping[str, Any]] = []
    for item in result["items"]:
        part = parts.get((item["tenant_id"], item["allocated"]["currency"]))
        items += [item] if item["deployment_id"] != "idle" or part is None else _split(item, part)
    return {**result, "items": items}


def _split(item: Mapping[str, Any], part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    units = {name: _within(part[name], item[name]) for name in UNITS}
    cost = dict(item["allocated"])
    if cost["amount"] is not None:
        whole = Decimal(cost["amount"])
        exact = Decimal(part["amount"]).quantize(Decimal(1).scaleb(-minor_digits(cost["currency"])))
        cost["amount"] = _within(exact, whole)
    pods = {**item, **units, "deployment_id": UNATTRIBUTED, "allocated": _text(cost)}
    rest = {
        **item,
        **{name: None if item[name] is None else item[name] - (units[name] or 0) for name in UNITS},
        "allocated": _text(
            cost
            if cost["amount"] is None
            else {**cost, "amount": Decimal(item["allocated"]["amount"]) - cost["amount"]}
        ),
    }
    return [rest, pods]


def _within(part: Decimal | None, whole: Decimal | None) -> Decimal | None:
    """A part that is no more than its whole; a final statement may be older than what is published."""
    if part is None or whole is None:
        return None
    return max(min(part, whole), Decimal(0)) if whole >= 0 else Decimal(0)


def _text(cost: Mapping[str, Any]) -> dict[str, Any]:
    return {**cost, "amount": None if cost["amount"] is None else f"{cost['amount']:f}"}
