"""What an allocation policy must look like before anything is priced with it (A22).

Belongs here: the form of one policy. Does not: which policy wins (A23), what it costs (A24), whether an id is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
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

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?")
_NEGATIVE = re.compile(r"-\s*[0-9.]")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?([Zz]|[+-]\d\d:\d\d)")


class PolicyError(ValueError):
    """One line: where, which policy, which field, what is wrong with it and what is expected."""


def validate_policy(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The policy with every field of `FIELDS`, ready for `contracts.lake.ALLOCATION_POLICIES`.

    `document` is a policy of `allocation_policies.json`, or a row of the Arrow table; `where` names its file. Decimals
    stay the strings they are, instants become UTC datetimes, `token_weights` canonical JSON text.
    Raises PolicyError for a missing, unknown or wrong field.
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
        effective_from = self._instant("effective_from")
        if effective_from is None:
            raise self._wrong("effective_from", "is missing; give a whole UTC hour like 2026-10-01T00:00:00Z")
        if (effective_from.minute, effective_from.second, effective_from.microsecond) != (0, 0, 0):
            raise self._wrong("effective_from", f"must be a whole UTC hour, is {_shown(self._value('effective_from'))}")
        effective_to = self._instant("effective_to")
        if effective_to is not None and effective_to <= effective_from:
            raise self._wrong("effective_to", f"must be after effective_from, is {_shown(self._value('effective_to'))}")
        identifier = self._text("id")
        return {
            "id": identifier,
            "name": self._text("name") if self._value("name") is not None else identifier,
            "deployment_pattern": self._glob("deployment_pattern"),
            "gpu_model": self._text("gpu_model") if self._value("gpu_model") is not None else None,
            "currency": self._currency("currency"),
            **{name: self._decimal(name, self._value(name)) for name in PRICES},
            "idle_policy": self._one_of("idle_policy", IDLE_POLICIES),
            "token_weights": self._token_weights(),
            "effective_from": effective_from,
            "effective_to": effective_to,
            "status": self._one_of("status", STATUSES),
        }

    def _wrong(self, field: str, what: str) -> PolicyError:
        return PolicyError(f"{self._where}: {field} {what}")

    def _value(self, field: str) -> Any:
        return self._document.get(field)

    def _text(self, field: str) -> str:
        value = self._value(field)
        if not isinstance(value, str) or not value.strip() or not value.isprintable() or value != value.strip():
            raise self._wrong(field, f"must be a text without spaces around it, is {_shown(value)}")
        return value

    def _decimal(self, field: str, value: object) -> str:
        if isinstance(value, str):
            if _DECIMAL.fullmatch(value):
                return value
            if _NEGATIVE.match(value):
                raise self._wrong(field, f"must not be negative, is {_shown(value)}")
        raise self._wrong(
            field, f'must be a decimal string like "2.10" (15 digits before the point, 12 after), is {_shown(value)}'
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
                value = json.loads(value)
            except ValueError:
                raise self._wrong("token_weights", f"must be a JSON object, is {_shown(value)}") from None
        if value is None:
            return None
        if not isinstance(value, Mapping) or set(value) - set(TOKEN_KINDS):
            kinds = ", ".join(TOKEN_KINDS)
            raise self._wrong("token_weights", f"must be an object with some of {kinds}, is {_shown(value)}")
        weights = {kind: self._decimal(f"token_weights.{kind}", weight) for kind, weight in value.items()}
        return json.dumps(weights, sort_keys=True, separators=(",", ":"))

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


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, default=str)[:80]
