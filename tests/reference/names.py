"""Model names (section 2 of the rules): which spellings are one model, and what a table says of it.

Names that differ only in case, blanks, `-` or `_` are one model, and so are DCGM's name and the platform's of `models`.
"""

from __future__ import annotations

import re
from typing import TypeVar

T = TypeVar("T")

# A19: MIG slices of a whole card, by words of its name.
CARD_SLICES = {"A100": 7, "H100": 7, "H200": 7, "B200": 7, "GB200": 7, "A30": 4, "RTX PRO 6000 Blackwell": 4}


def folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def platform_name(name: str, models: dict[str, str]) -> str | None:
    """The platform's name of a model that `models` lists under either name, else None."""
    for listed in sorted(models):
        if folded(name) in {folded(listed), folded(models[listed])}:
            return models[listed]
    return None


def identity(name: str, models: dict[str, str]) -> str:
    """Equal for all spellings and both names of one model."""
    return folded(platform_name(name, models) or name)


def of_model(table: dict[str, T], name: str, models: dict[str, str]) -> T | None:
    """A table's entry for a model under any of its names; of several the one with the smallest name."""
    fitting = [listed for listed in table if identity(listed, models) == identity(name, models)]
    return table[min(fitting)] if fitting else None


def words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def slices_of_card(names: set[str], more: dict[str, int]) -> int | None:
    """A19: MIG slices of a card that has one of these names; None where no table knows it."""
    table = CARD_SLICES | more
    for listed in sorted(table, key=lambda key: (key not in more, -len(words(key)), key)):
        part = words(listed)
        for own in map(words, sorted(names)):
            if any(own[at : at + len(part)] == part for at in range(len(own))):
                return table[listed]
    return None
