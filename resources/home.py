"""What a FINOPS_HOME remembers of its installation: the first hour that was asked for.

What belongs here: reading and writing that file. What does not: the demo, whose bundle lies there (`settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.settings import HOME, Settings, whole_hour

FILE: Final = "first_hour"
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Where nothing says when an installation began."""


def first_hour(environ: Mapping[str, str]) -> datetime:
    """The installation's first hour: FINOPS_FIRST_HOUR, else what FINOPS_HOME remembers, else that of the bundle.

    Opens nothing but these files. UsageError for a FINOPS_FIRST_HOUR that is no hour.
    """
    if stated := environ.get("FINOPS_FIRST_HOUR", "").strip():
        try:
            return whole_hour(stated)
        except ValueError as error:
            raise UsageError(f"FINOPS_FIRST_HOUR is {stated!r}: expected {error}") from None
    home = Path(environ.get("FINOPS_HOME", "").strip() or HOME)
    return _remembered(home) or _of_bundle(environ.get("FINOPS_BUNDLE", "").strip()) or LONG_AGO


def begin_now(settings: Settings, now: datetime) -> None:
    """A new installation begins with the month before `now`, unless something says when it does."""
    if settings.first_hour is None and settings.bundle is None and _remembered(settings.home) is None:
        month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        remember_first_hour(settings, (month - timedelta(days=1)).replace(day=1))


def remember_first_hour(settings: Settings, first: datetime) -> None:
    """Keep in FINOPS_HOME that the installation begins at `first`, if it did not begin before."""
    known = _remembered(settings.home)
    if settings.first_hour is None and (known is None or first < known):
        settings.home.mkdir(parents=True, exist_ok=True)
        unfinished = settings.home / f"{FILE}.new"
        unfinished.write_text(f"{first.astimezone(UTC):%Y-%m-%dT%H:%MZ}\n", encoding="utf-8")
        unfinished.replace(settings.home / FILE)


def _remembered(home: Path) -> datetime | None:
    try:
        return whole_hour((home / FILE).read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{home / FILE}: {error}: write the installation's first hour into it") from None


def _of_bundle(folder: str) -> datetime | None:
    try:
        return Bundle.open(Path(folder)).start if folder else None
    except UsageError:
        return None  # whoever opens it says what is wrong with it
