"""Findings on their way out, and checks that may break without stopping the others.

What belongs here: what every check needs and no check knows. What does not: any judgement.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from finops_pipeline.accounting.diagnosis import Finding, Level
from finops_pipeline.errors import FinopsError

SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 2.0, 60.0

Check = Callable[[], Iterable[Finding]]


def guarded(where: str, subject: str, check: Check) -> list[Finding]:
    """The findings of a check; if it breaks, that is one."""
    found: list[Finding] = []
    try:
        found.extend(replace(finding, where=where) for finding in check())
    except FinopsError as error:
        found.append(Finding(Level.FAIL, subject, " ".join(str(error).split()), where=where))
    except Exception as error:  # noqa: BLE001 - the doctor goes on whatever breaks
        said = " ".join(str(error).split()) or "no message"
        found.append(Finding(Level.FAIL, subject, f"the check broke: {type(error).__name__}: {said}", where=where))
    return found


def as_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Findings for a program."""
    return [
        {"level": str(f.level), "where": f.where, "subject": f.subject, "seen": f.seen, "set": f.remedy}
        for f in findings
    ]


def as_text(findings: list[Finding], width: int = 120) -> str:
    """Findings for a person: one paragraph each, grouped by system, and a last line that sums up."""
    lines: list[str] = []
    where = None
    for finding in findings:
        if finding.where != where:
            where = finding.where
            lines += ["", where] if lines else [where]
        lines += textwrap.wrap(
            f"{finding.subject}: {finding.seen}",
            width,
            initial_indent=f"  {finding.level:5} ",
            subsequent_indent=" " * 8,
        )
        if finding.remedy:
            lines += textwrap.wrap(
                finding.remedy,
                width,
                initial_indent=" " * 8 + "-> ",
                subsequent_indent=" " * 11,
                break_on_hyphens=False,
            )
    count = {level: sum(finding.level == level for finding in findings) for level in Level}
    lines += ["", f"{count[Level.FAIL]} failed, {count[Level.WARN]} warnings, {count[Level.OK]} ok"]
    return "\n".join(lines) + "\n"


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.level == Level.FAIL for finding in findings)


def clock_finding(seconds: float | None) -> Finding:
    """A server's clock minus ours; None where the server does not tell."""
    if seconds is None:
        return Finding(Level.OK, "clock", "it does not tell its time")
    late = abs(seconds)
    if late <= SKEW_WARN_SECONDS:
        return Finding(Level.OK, "clock", "it agrees with ours")
    return Finding(
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
