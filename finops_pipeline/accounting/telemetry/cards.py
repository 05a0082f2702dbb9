"""Which card a device is: its model and MIG profile window by window, and what models are called (section 2, A7, A19).

What belongs here: what labels show of a device for a stretch of time, and the names and slices of cards. What does not:
readings (`readings`), and dividing anything by slices (`usage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from finops_pipeline.accounting.arrays import Bools, Ints, Texts, changes, group_bounds, mapped
from finops_pipeline.accounting.config import USUAL_SLICES, AccountingConfig, folded


@dataclass(frozen=True)
class Told:
    """What labels show of devices (a model, a profile) in stretches of time, disjoint, ascending by (device, first)."""

    device: Ints
    first: Ints
    last: Ints
    """epoch ms: the first and the last instant that show it"""
    text: Texts

    def __len__(self) -> int:
        return len(self.device)

    @staticmethod
    def nothing() -> Told:
        none = np.zeros(0, dtype=np.int64)
        return Told(none, none, none, np.zeros(0, dtype=object))

    @staticmethod
    def of(device: Ints, first: Ints, last: Ints, code: Ints, texts: Sequence[str]) -> Told:
        """Disjoint stretches, or instants, in any order; neighbours of one device that show the same become one.

        `code` is the place in `texts`, which ascend. Of several texts of a device at one instant the smallest counts.
        """
        if not len(code):
            return Told.nothing()
        order = np.lexsort((code, first, device))
        device, first, last, code = (column[order] for column in (device, first, last, code))
        once = changes(device, first)
        device, first, last, code = (column[once] for column in (device, first, last, code))
        begins, ends = group_bounds(changes(device, code))
        return Told(device[begins], first[begins], last[ends], np.array(texts, dtype=object)[code[begins]])

    def latest(self, device: Ints, at: Ints) -> Ints:
        """The stretch of each device that has begun last at the instant; -1 where none has."""
        if not len(self):
            return np.full(len(device), -1, dtype=np.int64)
        low = int(self.first.min())
        wide = int(max(self.first.max(), at.max(initial=low))) - low + 1
        keys = self.device * wide + self.first - low
        found = np.searchsorted(keys, device * wide + np.maximum(at - low, -1), "right") - 1
        return np.where((found >= 0) & (self.device[found] == device), found, -1)

    def in_windows(self, devices: int, start: int, config: AccountingConfig) -> Ints:
        """Devices x windows of the hour: the stretch that counts for the window, -1 where none does (A7).

        That of the earliest reading in the window, else of the nearer reading, on a tie the earlier one.
        """
        which = np.full((devices, config.windows), -1, dtype=np.int64)
        first = np.searchsorted(self.device, np.arange(devices), "left")
        past = np.searchsorted(self.device, np.arange(devices), "right")
        one = past - first == 1
        which[one] = first[one][:, None]
        several = np.flatnonzero(past - first > 1)
        if not len(several):
            return which
        begins = start + np.arange(config.windows) * config.window_ms
        low = int(self.last.min())
        wide = int(self.last.max()) - low + 2  # more than any last instant: packed keys of different devices stay apart
        wanted = several[:, None] * wide + np.clip(begins - low, 0, wide - 1)
        following = np.searchsorted(self.device * wide + self.last - low, wanted)
        least, most = first[several][:, None], past[several][:, None] - 1
        after, before = np.minimum(following, most), np.maximum(following - 1, least)
        # the stretch that ends in or after the window begins before its end: it has the window's earliest reading
        inside = (following <= most) & (self.first[after] < begins + config.window_ms)
        nearer = (following > least) & (2 * begins + config.window_ms <= self.last[before] + self.first[after])
        which[several] = np.where(inside, after, np.where((following > most) | nearer, before, after))
        return which


@dataclass(frozen=True)
class ModelNames:
    """What models are called in an hour: as in `models`, else by the smallest spelling (section 2)."""

    config: AccountingConfig
    spellings: Mapping[str, frozenset[str]]
    """of the hour, by `folded` name"""

    @staticmethod
    def of(spellings: Iterable[str], config: AccountingConfig) -> ModelNames:
        found: dict[str, set[str]] = {}
        for name in spellings:
            found.setdefault(folded(name), set()).add(name)
        return ModelNames(config, {key: frozenset(names) for key, names in found.items()})

    def alike(self, name: str) -> frozenset[str]:
        """All spellings of the hour of this model."""
        return self.spellings.get(folded(name), frozenset()) | {name}

    def named(self, name: str) -> str:
        """The one name of the model in the hour."""
        listed = self.config.listed_model(name)
        return min(self.alike(name)) if listed is None else listed

    def known_slices(self, name: str) -> int | None:
        """Slices of a card; None where no table has it (A19)."""
        found = (self.config.known_slices(spelling) for spelling in sorted(self.alike(name)))
        return next((slices for slices in found if slices is not None), None)

    def slices(self, name: str) -> int:
        """Slices of a card; 7 where no table has it (A19)."""
        return self.known_slices(name) or USUAL_SLICES


def most_told(told: Told, which: Ints, config: AccountingConfig) -> list[str]:
    """Of each device, the model of most of its windows in the hour, on a tie the earlier one; '' where nothing shows one.

    `which` is `told.in_windows` of the hour.
    """
    keys = mapped(config.model_key, told.text.tolist())
    first = which[:, 0]
    found = np.where(first < 0, "", np.append(told.text, "")[first]).astype(object)
    for device in np.flatnonzero((which != first[:, None]).any(axis=1)).tolist():
        windows = [keys[place] for place in which[device].tolist()]
        most = Counter(windows).most_common(1)[0][0]  # the first of equals is the earlier one
        found[device] = told.text[which[device, windows.index(most)]]
    return [str(text) for text in found.tolist()]


@dataclass(frozen=True)
class Slices:
    """MIG slices of each device in each window, `number / per`: devices x windows (A7, A19)."""

    number: Ints
    per: Ints
    """1, unless instances with a profile that is not understood divide what the others leave"""
    card: Ints
    """of the device's whole card"""
    known: Bools
    """the profile of the window is understood, or the device is whole"""
    whole: Bools
    """of each device: it is not an instance"""

    def part(self, device: Ints, window: Ints) -> tuple[Ints, Ints]:
        """The part of its card that each device is in a window, as numerator and denominator; 1 if it is whole."""
        return (
            np.where(self.whole[device], 1, self.number[device, window]),
            np.where(self.whole[device], 1, self.card[device] * self.per[device, window]),
        )


def slices_in_windows(profile: Ints, card: Ints, board: Ints, whole: Bools, visible: Bools) -> Slices:
    """Slices by the profile that each window shows (`profile`, 0 where it is not understood); devices x windows.

    `card` (slices of the card), `board` and `whole` (no instance) have an element for each device; `visible` is where
    a device is visible apart from being held. An instance whose profile is not understood takes an equal part of what
    the other visible instances leave of the card.
    """
    number = np.where(whole[:, None], card[:, None], profile)
    known = number > 0
    per = np.ones_like(number)
    if not known.all():
        parts = visible & ~whole[:, None]
        shape = (int(board.max()) + 1, number.shape[1])
        told, untold = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        np.add.at(told, board, profile * parts)
        np.add.at(untold, board, parts & ~known)
        left = np.maximum(card[:, None] - told[board], 0)
        number, per = np.where(known, number, left), np.where(known, per, 1 + untold[board] - (parts & ~known))
    return Slices(number, per, card, known, whole)
