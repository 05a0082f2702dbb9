"""Remarks on their way out, and checks that may break without stopping the others.

What belongs here: what every check needs and no check knows. What does not: any judgement.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from finops_pipeline.doctor.diagnosis import Level, Remark
from finops_pipeline.errors import FinopsError

SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 2.0, 60.0

Check = Callable[[], Iterable[Remark]]


def guarded(where: str, subject: str, check: Check) -> list[Remark]:
    """The remarks of a check; if it breaks, that is one."""
    found: list[Remark] = []
    try:
        found.extend(replace(remark, where=where) for remark in check())
    except FinopsError as error:
        found.append(Remark(Level.FAIL, subject, " ".join(str(error).split()), where=where))
    except Exception as error:  # noqa: BLE001 - the doctor goes on whatever breaks
        said = " ".join(str(error).split()) or "no message"
        found.append(Remark(Level.FAIL, subject, f"the check broke: {type(error).__name__}: {said}", where=where))
    return found


def as_json(remarks: Iterable[Remark]) -> list[dict[str, str]]:
    """Remarks for a program."""
    return [
        {"level": str(f.level), "where": f.where, "subject": f.subject, "seen": f.seen, "set": f.remedy}
        for f in remarks
    ]


def as_text(remarks: list[Remark], width: int = 120) -> str:
    """Remarks for a person: one paragraph each, grouped by system, and a last line that sums up."""
    lines: list[str] = []
    where = None
    for remark in remarks:
        if remark.where != where:
            where = remark.where
            lines += ["", where] if lines else [where]
        lines += textwrap.wrap(
            f"{remark.subject}: {remark.seen}",
            width,
            initial_indent=f"  {remark.level:5} ",
            subsequent_indent=" " * 8,
        )
        if remark.remedy:
            lines += textwrap.wrap(
                remark.remedy,
                width,
                initial_indent=" " * 8 + "-> ",
                subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
    count = {level: sum(remark.level == level for remark in remarks) for level in Level}
    lines += ["", f"{count[Level.FAIL]} failed, {count[Level.WARN]} warnings, {count[Level.OK]} ok"]
    return "\n".join(lines) + "\n"


def failed(remarks: Iterable[Remark]) -> bool:
    return any(remark.level == Level.FAIL for remark in remarks)


def clock_remark(seconds: float | None) -> Remark:
    """A server's clock minus ours; None where the server does not report it."""
    if seconds is None:
        return Remark(Level.OK, "clock", "it does not report its time")
    late = abs(seconds)
    if late <= SKEW_WARN_SECONDS:
        return Remark(Level.OK, "clock", "it agrees with ours")
    return Remark(
        Level.FAIL if late > SKEW_FAIL_SECONDS else Level.WARN,
        "clock",
        f"it is {late:.0f} s {'ahead of' if seconds > 0 else 'behind'} ours: readings and events miss their hour",
        "run NTP on both machines",
    )


def age_text(age: timedelta) -> str:
    """An age for a person."""
    hours = age / timedelta(hours=1)
    return (
        f"{age / timedelta(minutes=1):.0f} min"
        if hours < 2
        else f"{hours:.0f} h"
        if hours < 48
        else f"{hours / 24:.0f} days"
    )


def utc_text(instant_ms: int) -> str:
    """An instant for a person."""
    return f"{datetime.fromtimestamp(instant_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
