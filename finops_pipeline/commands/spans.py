"""The hours that somebody asks for: whether they can be computed, and those of them that are left to do.

What belongs here: judging a span, and cutting it. What does not: computing it, and Dagster, which would be slow to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import TypeAlias

from finops_pipeline.accounting.exact import hour_text, instant_of, ms_of
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.source import Source

Span: TypeAlias = tuple[datetime, datetime]
"""First hour, and the hour to end before."""
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def span_of(source: Source, first: datetime | None, past: datetime | None) -> Span:
    """The hours asked for; by default all that the source has, or the last hour that has ended."""
    now = instant_of(source.now_ms()).replace(minute=0, second=0, microsecond=0)
    has = source.span
    past = past or (has[1] if has else now)
    return first or (has[0] if has else past - HOUR), past


def check_span(source: Source, first: datetime, past: datetime) -> None:
    """Refuse a span that is empty, not of whole hours, beyond what the source has, or not over yet (A2)."""
    for name, instant in (("--from", first), ("--to", past)):
        if instant != instant.replace(minute=0, second=0, microsecond=0):
            raise UsageError(f"{name} {instant:%Y-%m-%dT%H:%M:%SZ} is not a whole hour (A1)")
    if past <= first:
        raise UsageError(f"--to {past:%Y-%m-%dT%H:%MZ} is not after --from {first:%Y-%m-%dT%H:%MZ}")
    has = source.span
    if has is not None and not has[0] <= first < past <= has[1]:
        name, instant = ("--from", first) if first < has[0] else ("--to", past)
        raise UsageError(
            f"{name} {instant:%Y-%m-%dT%H:%MZ} is beyond the bundle, which has {has[0]:%Y-%m-%dT%H:%MZ} to"
            f" {has[1]:%Y-%m-%dT%H:%MZ}: ask for hours within it"
        )
    now = source.now_ms()
    if ms_of(past) > now:
        raise UsageError(
            f"the hour {past - HOUR:%Y-%m-%dT%H:00:00Z} has not ended at {hour_text(now)}: ask for hours that are over (A2)"
        )


def hours_of(first: datetime, past: datetime) -> list[datetime]:
    """The hours of `[first, past)`."""
    return [first + index * HOUR for index in range((past - first) // HOUR)]


def days_of(hours: Sequence[datetime]) -> Iterator[Span]:
    """Neighbouring hours together, at most a day of them; `hours` ascend."""
    begin: datetime | None = None
    for hour, after in zip_longest(hours, hours[1:]):
        begin = begin or hour
        past = hour + HOUR
        if after != past or past - begin >= DAY:
            yield begin, past
            begin = None
