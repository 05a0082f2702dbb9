"""What an allocation policy must look like before anything is priced with it (A22).

Files, the command line, the database and the book of prices all ask here. Belongs here: the form of one policy. Does not:
which policy wins and what a price that is not given is (`accounting.money.policies`), whether an id is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import iso4217

PRICES = ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price")
FIELDS = (
    *("id", "name", "deployment_pattern", "gpu_model", "currency"),
    *PRICES,
    *("idle_policy", "token_weights", "effective_from", "effective_to", "status"),
)
IDLE_POLICIES = ("owner", "proportional", "platform")
STATUSES = ("active", "retired")
TOKEN_KINDS = ("input", "output", "cached")

PRICE_DECIMALS = 12
WEIGHT_DECIMALS = 6

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]+)?")
_NEGATIVE = re.compile(r"-\s*[0-9.]")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([Zz]|[+-]\d\d:\d\d)")


class PolicyError(ValueError):
    """One line: where, which policy, which field, what is wrong with it and what is expected."""


def validate_policy(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The policy with every field of `FIELDS`, those that are not given as None, `idle_policy` and `status` by default.

    `document` is a policy of `allocation_policies.json`, the body of a request, or a row of the Arrow table; `where`
    names its file. Numbers become decimal strings, instants UTC datetimes, `token_weights` canonical JSON text.
    Raises PolicyError for a wrong or unknown field, and where name, pattern or currency is missing.
    """
    if not isinstance(document, Mapping):
        raise PolicyError(f"{where}: a policy must be an object, is {_shown(document)}")
    return _Policy(document, where).checked()


class _Policy:
    """One document while it is checked; the methods read a field or raise with its name."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self._document = document
        self._where = f"{where}: policy {document.get('id') or document.get('name') or '(without id)'}"

    def checked(self) -> dict[str, Any]:
        unknown = sorted(set(self._document) - set(FIELDS))
        if unknown:
            raise self._wrong(unknown[0], f"is not a field of a policy; known are {', '.join(FIELDS)}")
        effective_from = self._hour("effective_from")
        effective_to = self._hour("effective_to")
        if effective_from is not None and effective_to is not None and effective_to <= effective_from:
            raise self._wrong("effective_to", f"must be after effective_from, is {_shown(self._value('effective_to'))}")
        return {
            "id": self._optional("id"),
            "name": self._text("name"),
            "deployment_pattern": self._glob("deployment_pattern"),
            "gpu_model": self._optional("gpu_model"),
            "currency": self._currency("currency"),
            **{name: self._number(name, self._value(name), PRICE_DECIMALS) for name in PRICES},
            "idle_policy": self._one_of("idle_policy", IDLE_POLICIES),
            "token_weights": self._token_weights(),
            "effective_from": effective_from,
            "effective_to": effective_to,
            "status": self._one_of("status", STATUSES),
        }

    def _wrong(self, field: str, what: str) -> PolicyError:
        return PolicyError(f"{self._where}: {field} {what}")

    def _value(self, field: str) -> Any:
        value = self._document.get(field)
        return None if value == "" else value

    def _text(self, field: str) -> str:
        value = self._value(field)
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or value != value.strip():
            raise self._wrong(field, f"must be a text without spaces around it, is {_shown(value)}")
        return value

    def _optional(self, field: str) -> str | None:
        return None if self._value(field) is None else self._text(field)

    def _number(self, field: str, value: object, decimals: int) -> str | None:
        """A decimal string as it is, a JSON number at its shortest text, None for what is not given."""
        if value is None:
            return None
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            text = _shortest(value)
        else:
            text = value if isinstance(value, str) else ""
        if _DECIMAL.fullmatch(text):
            if len(text.partition(".")[2].rstrip("0")) > decimals:
                raise self._wrong(field, f"must have at most {decimals} decimals, is {_shown(value)}")
            return text
        if _NEGATIVE.match(text):
            raise self._wrong(field, f"must not be negative, is {_shown(value)}")
        raise self._wrong(
            field,
            f'must be a decimal string like "2.10" or a number (15 digits before the point, {decimals} after), is'
            f" {_shown(value)}",
        )

    def _one_of(self, field: str, choices: tuple[str, ...]) -> str:
        value = self._value(field)
        if value is None:
            return choices[0]
        if value not in choices:
            raise self._wrong(field, f"must be one of {', '.join(choices)}, is {_shown(value)}")
        return str(value)

    def _currency(self, field: str) -> str:
        code = self._value(field)
        try:
            currency = iso4217.Currency(code)
        except ValueError:
            raise self._wrong(field, f"must be an ISO 4217 code like EUR, is {_shown(code)}") from None
        if currency.exponent is None:
            raise self._wrong(field, f"{code} has no minor unit to round a statement to; use a currency that is spent")
        return str(code)

    def _glob(self, field: str) -> str:
        pattern = self._text(field)
        unclosed = "[" in re.sub(r"\[!?\]?[^\]]*\]", "", pattern)
        if unclosed or any(character.isspace() for character in pattern):
            raise self._wrong(field, f"must be a glob like chat-*, without spaces, each [ closed; is {_shown(pattern)}")
        return pattern

    def _token_weights(self) -> str | None:
        value = self._value("token_weights")
        if isinstance(value, str):
            try:
                value = json.loads(value, parse_float=Decimal)
            except ValueError:
                raise self._wrong("token_weights", f"must be a JSON object, is {_shown(value)}") from None
        if value is None:
            return None
        if not isinstance(value, Mapping) or set(value) - set(TOKEN_KINDS):
            kinds = ", ".join(TOKEN_KINDS)
            raise self._wrong("token_weights", f"must be an object with some of {kinds}, is {_shown(value)}")
        weights = {
            kind: self._number(f"token_weights.{kind}", weight, WEIGHT_DECIMALS)
            for kind, weight in value.items()
            if weight is not None
        }
        return json.dumps(weights, sort_keys=True, separators=(",", ":"))

    def _hour(self, field: str) -> datetime | None:
        instant = self._instant(field)
        if instant is not None and (instant.minute, instant.second, instant.microsecond) != (0, 0, 0):
            raise self._wrong(field, f"must be a whole UTC hour, is {_shown(self._value(field))}")
        return instant

    def _instant(self, field: str) -> datetime | None:
        value = self._value(field)
        if value is None:
            return None
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
        if isinstance(value, str) and _INSTANT.fullmatch(value):
            try:
                return datetime.fromisoformat(value.upper()).astimezone(UTC)
            except ValueError:
                pass
        raise self._wrong(field, f"must be a time with its zone like 2026-10-01T00:00:00Z, is {_shown(value)}")


def _shortest(value: float | Decimal) -> str:
    """A JSON number as the shortest decimal text that stands for it."""
    number = Decimal(str(value))
    if not number.is_finite():
        return str(value)
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, default=str)[:80]
