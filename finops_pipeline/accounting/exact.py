"""Exact arithmetic of the accounting: one rounding, one way of splitting, one text for an hour (A1, A28, A29).

What belongs here: integer and fraction arithmetic that every other accounting module shares.
What does not: any knowledge of devices, tenants, policies or of what a table means.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HOUR_MS = 3_600_000
FUTURE_MS = 5 * 60_000
"""A record may be this far ahead of the clock, no further (A5)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_UNBOUNDED = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


class AccountingError(ValueError):
    """A rule cannot be applied, or parts do not sum to their whole: nothing may be published from this."""


def round_half_even(numerator: int, denominator: int) -> int:
    """`numerator / denominator` as the nearest integer, a half to the even one (A28). `denominator` is positive."""
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    return quotient + (twice > denominator or (twice == denominator and quotient & 1))


def half_even_div(num: npt.NDArray[np.int64], den: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """`round_half_even` element by element, exact over the whole int64 range. Every `den` is positive."""
    quotient, remainder = np.divmod(num, np.asarray(den, dtype=np.int64))
    rest = den - remainder  # remainder against rest instead of 2 x remainder: no overflow
    up = (remainder > rest) | ((remainder == rest) & (quotient & 1 == 1))
    return np.asarray(quotient + up, dtype=np.int64)


def decimal_of(units: int, places: int) -> Decimal:
    """`units x 10^-places` with exactly `places` decimals; zero is never negative. Independent of the context."""
    return _UNBOUNDED.scaleb(Decimal(units), -places)


def plain(value: Decimal) -> str:
    """A Decimal as everybody reads it: all its digits, never an exponent, as 10 and not 1E+1."""
    return f"{value:f}"


def units_of(value: Decimal, places: int) -> int:
    """`value x 10^places` as an integer; raises `AccountingError` if that is not a whole number."""
    scaled = _UNBOUNDED.scaleb(value, places)
    units = int(scaled)
    if units != scaled:
        raise AccountingError(f"{value} has more than {places} decimals; quantise it first (A28)")
    return units


def instant_of(ms: int) -> datetime:
    """Epoch milliseconds as an instant in UTC (A1)."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms_of(instant: datetime) -> int:
    """An instant (with its zone) as epoch milliseconds, rounded half-even (A1)."""
    return round((instant - _EPOCH) / timedelta(milliseconds=1))


def rows_of(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """The named columns of each row as Python values, instants as epoch milliseconds (A1)."""
    columns = (table[name] for name in names)
    return zip(*(_milliseconds(column).to_pylist() for column in columns), strict=True)


def column_units(column: pa.ChunkedArray[Any], places: int) -> list[int | None]:
    """`units_of` for a decimal128 column; null stays null."""
    units: list[int | None] = []
    for chunk in column.chunks:
        words = _words(chunk)
        if column.type.scale == places and (words[:, 1] == words[:, 0] >> 63).all():  # each fits an int64
            low: list[int | None] = words[:, 0].tolist()
            for index in np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False)):
                low[index] = None
            units += low
        else:
            units += [None if value is None else units_of(value, places) for value in chunk.to_pylist()]
    return units


def units_column(units: Iterable[int | None], places: int) -> pa.Array[Any]:
    """`decimal_of` as a decimal128(38, places) column; None is null."""
    units = list(units)
    try:
        integers = pa.array(units, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([None if unit is None else decimal_of(unit, places) for unit in units], _decimal(places))
    low = integers.fill_null(0).to_numpy()
    words = pa.py_buffer(np.column_stack((low, low >> 63)).tobytes())
    return pa.Array.from_buffers(_decimal(places), len(units), [integers.buffers()[0], words])


def quantize(value: Fraction | int, places: int) -> Decimal:
    """`value` rounded half-even once to `places` decimals (A28)."""
    return decimal_of(round_half_even(value.numerator * 10**places, value.denominator), places)


class Split:
    """The shares of one split (A29): the same for every unit and for the cost of a row.

    `share_ids` are those with a weight above zero, in the order in which equal remainders are served.
    Several parts may have one share id (`share_of` tells that of a key); equal remainders among them go in order of key.
    Raises `AccountingError` on a negative weight or when the weights sum to zero.
    """

    def __init__(self, weights: Mapping[str, Fraction | int], hour: str, share_of: Callable[[str], str] = str) -> None:
        if any(weight < 0 for weight in weights.values()):
            raise AccountingError(f"a split of {hour} has a negative weight: {_listed(weights)} (A29)")
        self.share_ids = sorted(
            (key for key, weight in weights.items() if weight), key=lambda key: (tie_break(share_of(key), hour), key)
        )
        if not self.share_ids:
            raise AccountingError(f"the weights of a split of {hour} sum to zero: {_listed(weights)} (A29)")
        scale = math.lcm(*(weights[share_id].denominator for share_id in self.share_ids))
        self._weights = [int(weights[share_id] * scale) for share_id in self.share_ids]
        self._whole = sum(self._weights)

    def parts(self, total: int) -> list[int]:
        """`total` cut into one part for each of `share_ids`, summing exactly to it.

        A negative total gives the negated parts of the positive one, so a reversal undoes its booking.
        """
        if len(self._weights) == 1:
            return [total]
        sign = -1 if total < 0 else 1
        divided = [divmod(abs(total) * weight, self._whole) for weight in self._weights]
        parts = [quotient for quotient, _ in divided]
        left_over = abs(total) - sum(parts)
        if left_over:
            for index in sorted(range(len(parts)), key=lambda i: -divided[i][1])[:left_over]:
                parts[index] += 1
        return [sign * part for part in parts]


def largest_remainder(
    total: int, weights: Mapping[str, Fraction | int], hour: str, share_of: Callable[[str], str] = str
) -> dict[str, int]:
    """Split `total` integer units over share ids by weight (A29): see `Split`. A weight of zero has no entry."""
    split = Split(weights, hour, share_of)
    return dict(zip(split.share_ids, split.parts(total), strict=True))


def rank_remainders(remainders: Mapping[str, int], period: str) -> list[str]:
    """Share ids in the order in which units left over are served: largest remainder first, then `tie_break` (A30)."""
    return sorted(remainders, key=lambda share_id: (-remainders[share_id], tie_break(share_id, period)))


@lru_cache(maxsize=1 << 16)
def tie_break(share_id: str, period: str) -> str:
    """The hex digest in whose ascending order equal remainders are served (A29, A30)."""
    return hashlib.sha256(f"{share_id}|{period}".encode()).hexdigest()


def hour_text(ms: int) -> str:
    """Epoch milliseconds of a whole second as `2026-10-01T10:00:00Z` (A1)."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def month_text(ms: int) -> str:
    """The UTC month of an instant in epoch milliseconds, as `2026-10` (A1)."""
    return hour_text(ms)[:7]


def _decimal(places: int) -> pa.Decimal128Type[Any, Any]:
    return pa.decimal128(38, places)


def _words(chunk: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Low and high word of each decimal128, null ones as 0: an Arrow decimal is a 128-bit little-endian integer."""
    _, data = chunk.buffers()
    words = np.frombuffer(b"" if data is None else data.to_pybytes(), dtype="<i8").reshape(-1, 2)[
        chunk.offset : chunk.offset + len(chunk)
    ]
    return np.where(chunk.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)


def _milliseconds(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _listed(weights: Mapping[str, Fraction | int]) -> str:
    return ", ".join(f"{key}={weight}" for key, weight in sorted(weights.items())) or "no weight at all"
