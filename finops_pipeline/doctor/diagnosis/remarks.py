"""What the doctor says, and the wording that all its checks share.

What belongs here: the shape of a remark. What does not: any check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SHOWN: Final = 3
"""Examples named in a remark."""


class Level(StrEnum):
    """How much a remark matters."""

    OK = "ok"
    """as it should be, or only worth knowing"""
    WARN = "warn"
    """the pipeline runs, but a number will be estimated, null or attributed otherwise than meant"""
    FAIL = "fail"
    """the pipeline cannot run, or what it computes would be wrong"""


@dataclass(frozen=True)
class Remark:
    """One thing that the doctor looked at."""

    level: Level
    subject: str
    seen: str
    remedy: str = ""
    """what to set, and where; empty where nothing needs to be done"""
    where: str = ""
    """the system: `settings`, a cluster, `Postgres`, `lake`"""


def listed(items: Iterable[str], shown: int = SHOWN) -> str:
    found = list(items)
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 or what.endswith("s") else f"{number} {what}s"


def minutes_text(milliseconds: int) -> str:
    return f"{max(milliseconds // 60_000, 1)} min"


def toml_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in dict.fromkeys(names)) + "]"
