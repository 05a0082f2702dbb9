"""The ledger's arithmetic: what to book so that the sum over revisions is the latest result (A31, A32).

An event's units and cost are *differences*; everything else in it describes the result that the revision brings
about (`quality` that of the whole usage row, which its tenants share). A key differs when any published column of
its allocation row does: a flag that changes without a unit is an event of zeros. A key's sums are in one currency
(unpriced is a currency of its own): a change of currency is a reversal in the old one and a booking in the new one, two
revisions, so that sums by currency are right too. A key that is no longer in the result is reversed. Null and 0 add up alike; a unit that becomes known as 0 is booked as 0.

Choices where the rules are silent: `occurred_at` is the start of the period, so that an event lies in its own
hour and month; revisions count from 1; units are JSON numbers, an integer where the value is one, and a value that
a double cannot carry exactly is refused instead of rounded; idle lines have the basis `samples`.

What does not belong here: reading or writing the ledger, the audit log (A34), or the gateway's `llm` events.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import rfc8785

from finops_pipeline.accounting.exact import (
    HOUR_MS,
    AccountingError,
    column_units,
    decimal_of,
    hour_text,
    ms_of,
    rows_of,
    units_column,
    units_of,
)
from finops_pipeline.accounting.money.allocation import PLACES, Units
from finops_pipeline.contracts import lake

EVENT_NAMESPACE = uuid.UUID("3e371450-fc7e-4b01-ba64-2dbff87a5cbd")
"""Namespace of the event ids; part of the contract: a change would give every booked event another id."""

SCHEMA_VERSION = "1.0"
SOURCE = "finops_pipeline"
FIRST_REVISION = 1

KEY = ("cluster", "hour", "workload_id", "gpu_model", "deployment_id", "tenant_id", "usage_type")
ROW = KEY[:5]
"""what a usage row and its tenants' parts have in common"""
TENANT = KEY.index("tenant_id")
UNITS = Units._fields

_QUALITY = ("measured_seconds", "estimated_seconds", "missing_seconds")
_SAFE_INTEGER = 2**53 - 1

BOOKED = pa.schema(
    [
        *(lake.GPU_COST_ALLOCATION.field(name) for name in KEY),
        pa.field("revision", pa.int32(), nullable=False),
        lake.text("event_id", "event of the last revision", nullable=False),
        lake.text("basis", "basis of the last revision", nullable=False),
        *(lake.GPU_COST_ALLOCATION.field(name) for name in ("currency", "policy_id", "estimated")),
        *(pa.field(name, pa.decimal128(38, PLACES[name])) for name in (*UNITS, "amount")),
    ],
    metadata={
        "grain": "what is booked for one key: its last revision, and the sums over all (amount: in its currency)"
    },
)

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a key amounts to: units and amount in integers of PLACES, and what describes them."""

    units: Units
    amount: int | None
    currency: str | None
    policy_id: str | None
    estimated: bool

    def is_zero(self) -> bool:
        return not any(self.units) and not self.amount

    def negated(self) -> Result:
        """The reversal of the whole."""
        units = Units(*(None if unit is None else -unit for unit in self.units))
        return replace(self, units=units, amount=None if self.amount is None else -self.amount)

    def minus(self, booked: Result) -> Result | None:
        """The difference to what is booked in the same currency; None if no published column differs."""
        pairs = list(zip(self.units, booked.units, strict=True))
        units = Units(*(None if new is None and old is None else (new or 0) - (old or 0) for new, old in pairs))
        amount = None if self.amount is None else self.amount - (booked.amount or 0)
        known = any(new is not None and old is None for new, old in pairs)
        described = (self.policy_id, self.estimated) != (booked.policy_id, booked.estimated)
        if not (any(units) or amount or known or described):
            return None
        return replace(self, units=units, amount=amount)

    def plus(self, booked: Result) -> Result:
        """This revision on top of the sums before it; where the currency changes, a reversal left them at zero."""
        pairs = zip(self.units, booked.units, strict=True)
        units = Units(*(None if new is None and old is None else (new or 0) + (old or 0) for new, old in pairs))
        amount = None if self.amount is None else self.amount + (booked.amount or 0)
        return replace(self, units=units, amount=amount)


class Booked(NamedTuple):
    """The last revision of a key, and in `result` the sums over all of its revisions."""

    revision: int
    event_id: str | None
    basis: str
    result: Result


class Description(NamedTuple):
    """How a result came about: its basis, and the device time by quality (null where there is none) with its rungs."""

    basis: str
    quality: dict[str, Any]


def differences(allocation: pa.Table, usage: pa.Table, booked: pa.Table) -> list[dict[str, Any]]:
    """The usage events that turn what is booked into `allocation` (A32), sorted by key and revision.

    `allocation` is GPU_COST_ALLOCATION of the hours computed, `usage` their GPU_USAGE (basis and quality),
    `booked` a BOOKED table of exactly these hours and clusters: a booked key that `allocation` lacks is reversed.
    Each event is a document of `contracts/v1/usage-event.schema.json`.
    """
    results = _results(allocation)
    ledger = _booked(booked)
    described = _described(usage)
    events: list[dict[str, Any]] = []
    for key in sorted(results.keys() | ledger.keys(), key=lambda key: [(part is not None, part) for part in key]):
        last = ledger.get(key, _NOTHING)
        rows = described.get(key[: len(ROW)])
        description = rows.of(key[TENANT], results.get(key)) if rows else _IDLE
        revision, corrects = last.revision, last.event_id
        for difference, shown in _to_book(results.get(key), description, last):
            revision += 1
            events.append(_event(key, revision, corrects, difference, shown))
            corrects = events[-1]["event_id"]
    return events


def booked_sums(events: Iterable[Mapping[str, Any]]) -> pa.Table:
    """BOOKED of these usage events, whatever their order: what a ledger that holds just them has booked.

    Numbers must be int, float or Decimal as a JSON reader gives them; they are taken by their shortest text.
    """
    ledger: dict[Key, Booked] = {}
    for event in sorted(events, key=lambda event: event["revision"]):
        key = tuple(_instant(event["period_start"]) if name == "hour" else event[name] for name in KEY)
        units = {name: units_of(Decimal(str(value)), PLACES[name]) for name, value in event["units"].items()}
        cost = event["cost"] or {"amount": None, "currency": None}
        amount = None if cost["amount"] is None else units_of(Decimal(cost["amount"]), PLACES["amount"])
        result = Result(
            units=Units(*(units.get(name) for name in UNITS)),
            amount=amount,
            currency=cost["currency"],
            policy_id=event["allocation_policy_id"],
            estimated=event["estimated"],
        )
        if key in ledger:
            result = result.plus(ledger[key].result)
        ledger[key] = Booked(event["revision"], event["event_id"], event["basis"], result)
    return _booked_table(ledger)


def event_id(key: Key, revision: int) -> str:
    """UUIDv5 of a key (as KEY; the hour in epoch milliseconds) and a revision (A31).

    The name is the compact JSON array of the key's fields, the hour as text, and the revision.
    """
    name = [hour_text(part) if field == "hour" else part for field, part in zip(KEY, key, strict=True)]
    return str(uuid.uuid5(EVENT_NAMESPACE, json.dumps([*name, revision], separators=(",", ":"), ensure_ascii=False)))


def content_sha256(event: Mapping[str, Any]) -> str:
    """SHA-256 of the event's canonical JSON (RFC 8785), `content_sha256` itself left out (A31)."""
    content = {name: value for name, value in event.items() if name != "content_sha256"}
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()


def _to_book(new: Result | None, description: Description, last: Booked) -> Iterator[tuple[Result, Description]]:
    """The differences of one key, in the order of their revisions."""
    booked = last.result
    same_currency = new is not None and last.event_id is not None and new.currency == booked.currency
    if not same_currency and not booked.is_zero():
        yield booked.negated(), Description(last.basis, _IDLE.quality)
    if new is not None:
        difference = new.minus(booked) if same_currency else new
        if difference is not None:
            yield difference, description


def _event(
    key: Key, revision: int, corrects: str | None, difference: Result, description: Description
) -> dict[str, Any]:
    _, hour_ms, *_ = key
    amount = difference.amount
    named = dict(zip(KEY, key, strict=True))
    event = {
        "schema_version": SCHEMA_VERSION,
        "event_id": event_id(key, revision),
        "occurred_at": hour_text(hour_ms),
        "period_start": hour_text(hour_ms),
        "period_end": hour_text(hour_ms + HOUR_MS),
        "tenant_id": named["tenant_id"],
        "usage_type": named["usage_type"],
        "source": SOURCE,
        "cluster": named["cluster"],
        "workload_id": named["workload_id"],
        "deployment_id": named["deployment_id"],
        "model": None,
        "gpu_model": named["gpu_model"],
        "basis": description.basis,
        "units": {
            name: _number(decimal_of(unit, PLACES[name]))
            for name, unit in zip(UNITS, difference.units, strict=True)
            if unit is not None
        },
        "cost": None if amount is None else {"amount": _text(amount), "currency": difference.currency},
        "allocation_policy_id": difference.policy_id,
        "estimated": difference.estimated,
        "quality": description.quality,
        "revision": revision,
        "corrects": corrects,
    }
    return event | {"content_sha256": content_sha256(event)}


def _number(value: Decimal) -> int | float:
    """The JSON number that stands for exactly this decimal; `AccountingError` if a double cannot."""
    number = int(value) if value == value.to_integral_value() else float(value)
    if abs(value) > _SAFE_INTEGER or Decimal(str(number)) != value:
        raise AccountingError(f"{value} cannot be a JSON number without losing digits (A31)")
    return number


def _text(amount: int) -> str:
    return f"{decimal_of(amount, PLACES['amount']):f}"


def _instant(text: str) -> int:
    return ms_of(datetime.fromisoformat(text))


class _Rows(NamedTuple):
    """Usage rows that differ in the tenants of their events alone: each, and all together."""

    by_tenant: dict[str | None, tuple[int | None, Description]]
    together: Description

    def of(self, tenant_id: str, result: Result | None) -> Description:
        """The row that a result is the whole of, else all of them."""
        seconds, own = self.by_tenant.get(tenant_id, (None, None))
        return own if own and result is not None and result.units.gpu_seconds == seconds else self.together


def _described(usage: pa.Table) -> dict[Key, _Rows]:
    """Basis and quality of the usage rows, by ROW."""
    described: dict[Key, _Rows] = {}
    seconds = column_units(usage["gpu_seconds"], PLACES["gpu_seconds"])
    columns = (*ROW, "tenant_id", "basis", "methods", *_QUALITY)
    for gpu_seconds, row in zip(seconds, rows_of(usage, *columns), strict=True):
        *key, tenant_id, basis, methods, measured, estimated, missing = row
        quality = dict(zip(_QUALITY, map(_seconds, (measured, estimated, missing)), strict=True)) | {"methods": methods}
        own = Description(basis, quality)
        rows = described.setdefault(tuple(key), _Rows({}, own))
        if rows.by_tenant:
            described[tuple(key)] = rows._replace(together=Description(basis, _added(rows.together.quality, quality)))
        rows.by_tenant[tenant_id] = (gpu_seconds, own)
    return described


def _seconds(value: Decimal | None) -> int | float | None:
    return None if value is None else _number(value)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Device time by quality of two rows together, with their rungs."""
    exact = {name: Decimal(str(one[name] or 0)) + Decimal(str(other[name] or 0)) for name in _QUALITY}
    rungs: dict[str, Decimal] = {}
    for entry in filter(None, f"{one['methods']};{other['methods']}".split(";")):
        rung, _, value = entry.partition("=")
        rungs[rung] = rungs.get(rung, Decimal(0)) + Decimal(value)
    methods = ";".join(f"{rung}={value:f}" for rung, value in sorted(rungs.items()))
    return {name: _number(value) for name, value in exact.items()} | {"methods": methods}


def _results(table: pa.Table) -> dict[Key, Result]:
    """A Result for each row, by KEY; raises `AccountingError` if a key comes twice."""
    names = [name for name in (*UNITS, "amount") if name in table.column_names]
    numbers = {name: column_units(table[name], PLACES[name]) for name in names}
    nothing: list[int | None] = [None] * table.num_rows
    units = (numbers.get(name, nothing) for name in UNITS)
    texts = rows_of(table, *KEY, "currency", "policy_id", "estimated")
    results = {
        tuple(key): Result(Units(*units), amount, currency, policy_id, estimated)
        for (*key, currency, policy_id, estimated), amount, *units in zip(texts, numbers["amount"], *units, strict=True)
    }
    if len(results) != table.num_rows:
        raise AccountingError("a key of the ledger comes twice in one table (A31)")
    return results


def _booked(booked: pa.Table) -> dict[Key, Booked]:
    rows = rows_of(booked, "revision", "event_id", "basis")
    results = _results(booked)
    return {
        key: Booked(revision, last_id, basis, result)
        for (revision, last_id, basis), (key, result) in zip(rows, results.items(), strict=True)
    }


def _booked_table(ledger: Mapping[Key, Booked]) -> pa.Table:
    columns: dict[str, Any] = {name: [key[index] for key in ledger] for index, name in enumerate(KEY)}
    for name in ("revision", "event_id", "basis"):
        columns[name] = [getattr(booked, name) for booked in ledger.values()]
    results = [booked.result for booked in ledger.values()]
    for name in ("currency", "policy_id", "estimated"):
        columns[name] = [getattr(result, name) for result in results]
    for name in UNITS:
        columns[name] = units_column((getattr(result.units, name) for result in results), PLACES[name])
    columns["amount"] = units_column((result.amount for result in results), PLACES["amount"])
    return pa.table({name: columns[name] for name in BOOKED.names}, schema=BOOKED)


_NOTHING = Booked(FIRST_REVISION - 1, None, "", Result(Units(None, None, None), None, None, None, estimated=False))
_IDLE = Description("samples", {**dict.fromkeys(_QUALITY), "methods": ""})
