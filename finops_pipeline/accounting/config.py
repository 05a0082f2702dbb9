"""The configuration tables of accounting.md section 2, with the defaults that ship (A4, A7-A11, A19).

What belongs here: names and numbers that a site may change. What does not: where they come from
(environment, bundle.toml), which is `finops_pipeline.settings` and `resources.bundle`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import Final, TypeVar

T = TypeVar("T")

REACH_HOURS: Final = 24
"""Readings count this many hours before and after the hour (A12)."""
USUAL_SLICES: Final = 7
"""Slices of a MIG card that no table has (A19)."""
CARD_SLICES: Final[Mapping[str, int]] = {
    "A100": 7,
    "A30": 4,
    "A800": 7,
    "B200": 7,
    "B300": 7,
    "GB200": 7,
    "GB300": 7,
    "GH200": 7,
    "H100": 7,
    "H200": 7,
    "H800": 7,
    "RTX PRO 4500 Blackwell": 2,
    "RTX PRO 5000 Blackwell": 2,
    "RTX PRO 6000 Blackwell": 4,
}
"""Slices of a card by words of its name, from the profiles of NVIDIA's MIG user guide
(docs.nvidia.com/datacenter/tesla/mig-user-guide, "Supported MIG Profiles"); the RTX PRO 4500 from NVIDIA's reference of
vGPU types for Blackwell (A19)."""
FINE: Final = 1_000_000
"""A reading is held in millionths of its published integer unit, so that a mean is rounded once (A28)."""


class Quantity(IntEnum):
    """What a device reports (A9), with the whole unit of A28 that it is rounded to."""

    UTILIZATION = 0
    """millionths; of `DCGM_FI_PROF_GR_ENGINE_ACTIVE`, preferred"""
    UTILIZATION_COARSE = 1
    """millionths; of `DCGM_FI_DEV_GPU_UTIL`"""
    MEMORY = 2
    """KiB"""
    POWER = 3
    """mW, of the board"""
    ENERGY = 4
    """mJ counter, of the board"""


PERCENT: Final = 10_000
RATIO: Final = 1_000_000
DEFAULT_METRICS: Final[Mapping[str, tuple[Quantity, int]]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (Quantity.UTILIZATION, RATIO),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": (Quantity.UTILIZATION, RATIO),
    "dcgm_gr_engine_active": (Quantity.UTILIZATION, RATIO),
    "DCGM_FI_DEV_GPU_UTIL": (Quantity.UTILIZATION_COARSE, PERCENT),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": (Quantity.UTILIZATION_COARSE, PERCENT),
    "dcgm_gpu_utilization": (Quantity.UTILIZATION_COARSE, PERCENT),
    "DCGM_FI_DEV_FB_USED": (Quantity.MEMORY, 1024),
    "dcgm_fb_used": (Quantity.MEMORY, 1024),
    "DCGM_FI_DEV_POWER_USAGE": (Quantity.POWER, 1000),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": (Quantity.POWER, 1000),
    "dcgm_power_usage": (Quantity.POWER, 1000),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (Quantity.ENERGY, 1),
    "dcgm_total_energy_consumption": (Quantity.ENERGY, 1),
}
"""Metric name -> quantity and factor to its whole unit. The `_RATIO` of the newest exporters' GPU_UTIL is still per cent."""


@dataclass(frozen=True)
class LabelNames:
    """Which labels carry what; the first that is there and not empty counts (A7, A8)."""

    uuid: tuple[str, ...] = ("UUID", "uuid")
    instance: tuple[str, ...] = ("GPU_I_ID",)
    profile: tuple[str, ...] = ("GPU_I_PROFILE",)
    model: tuple[str, ...] = ("modelName",)
    node: tuple[str, ...] = ("Hostname", "hostname", "node", "kubernetes_node", "instance")
    workload: tuple[tuple[str, str, str], ...] = (
        ("exported_namespace", "exported_pod", "exported_container"),
        ("namespace", "pod", "container"),
        ("pod_namespace", "pod_name", "container_name"),
    )
    exporter_pattern: str = "dcgm-exporter"
    """a group whose pod contains this is the exporter itself, unless a lifecycle event names that pod"""
    honor_labels: bool = False
    """the scrape job has honorLabels: only `namespace` and `pod` name the workload"""

    def groups(self) -> tuple[tuple[str, str, str], ...]:
        """The groups of labels that may name the workload, the first one first (A8)."""
        return (("namespace", "pod", "container"),) if self.honor_labels else self.workload

    def may_be_exporter(self, pod: str) -> bool:
        """Whether a pod of this name is the exporter's own, if no lifecycle event names it (A8)."""
        return self.exporter_pattern in pod


@dataclass(frozen=True)
class CardLimit:
    """What a card can draw and hold (A10)."""

    power_w: Decimal | None = None
    memory_gb: Decimal | None = None


@dataclass(frozen=True)
class FindingLimits:
    """From when on something is a finding (`findings`, `credits`); no rule of the accounting reads these."""

    idle_utilization: Decimal = Decimal("0.01")
    """below this a device is idle, from this on busy"""
    idle_minutes: int = 30
    """so long a held device must be idle without a break"""
    silent_minutes: int = 10
    """so long a running workload must show no sign of life"""
    collection_seconds: int = 30
    """how often DCGM renews its values, whatever the scrape interval"""
    frozen_intervals: int = 4
    """more collection intervals than this with the same power and energy are a frozen series"""
    counter_tolerance: Decimal = Decimal("0.05")
    """part of the counter's energy by which that of power may differ"""
    counter_minutes: int = 10
    """so long both must be measured before they are compared"""
    failure_words: tuple[str, ...] = ("node", "gpu", "xid")
    """words of a reason that mean the failure of a node or a GPU"""


@dataclass(frozen=True)
class AccountingConfig:
    """Everything that the rules take from configuration."""

    platform_tenant: str
    window_seconds: int = 15
    models: Mapping[str, str] = field(default_factory=dict)
    """DCGM `modelName` -> the platform's name; unlisted names stay"""
    card_limits: Mapping[str, CardLimit] = field(default_factory=dict)
    class_watts: Mapping[str, Decimal] = field(default_factory=dict)
    class_fraction: Mapping[str, Fraction] = field(default_factory=dict)
    mig_slices: Mapping[str, int] = field(default_factory=dict)
    """slices of cards that `CARD_SLICES` lacks or has otherwise (A19)"""
    metrics: Mapping[str, tuple[Quantity, int]] = field(default_factory=lambda: dict(DEFAULT_METRICS))
    labels: LabelNames = field(default_factory=LabelNames)
    billable_states: frozenset[str] = frozenset({"running"})
    findings: FindingLimits = field(default_factory=FindingLimits)
    priced: bool = True
    """whether usage is priced at all; else it is accounted, closed and stated without policies (FINOPS_PRICING)"""

    def __post_init__(self) -> None:
        if self.window_seconds < 1 or 3600 % self.window_seconds:
            raise ValueError(f"window_seconds is {self.window_seconds}: it must divide 3600 (A11)")

    @property
    def window_ms(self) -> int:
        return self.window_seconds * 1000

    @property
    def windows(self) -> int:
        """Windows of an hour."""
        return 3600 // self.window_seconds

    @cached_property
    def reading_digest(self) -> str:
        """Changes with whatever turns series into readings and summaries: names, limits, window length (A7-A11)."""
        parts = [
            self.window_seconds,
            sorted(self.models.items()),
            sorted((model, str(limit.power_w), str(limit.memory_gb)) for model, limit in self.card_limits.items()),
            sorted((metric, int(quantity), factor) for metric, (quantity, factor) in self.metrics.items()),
            self.labels,
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def listed_model(self, name: str) -> str | None:
        """The platform's name of a model that `models` lists under any spelling of either name, else None."""
        return self._listed.get(folded(name))

    def platform_model(self, name: str) -> str:
        """The name as in `models`, else the name itself."""
        return self.listed_model(name) or name

    def model_key(self, name: str) -> str:
        """`model_key` by `models`."""
        return folded(self.platform_model(name))

    def limit(self, model: str) -> CardLimit:
        """The limits of a card, under any of its model's names."""
        return self._entry(self._limits, model) or CardLimit()

    def watts(self, name: str) -> Decimal | None:
        """Modelled watts of one unit of a class or model (A13 rung 5)."""
        return self._entry(self._watts, name)

    def fraction(self, placed_class: str | None) -> Fraction:
        """GPUs that one unit of the class counts for (A4)."""
        found = self._entry(self._fractions, placed_class) if placed_class else None
        return Fraction(1) if found is None else found

    def known_slices(self, model: str) -> int | None:
        """Slices of a card by `mig_slices`, else by `CARD_SLICES`; None where neither has it (A19)."""
        listed = self._entry(self._slices, model)
        if listed is not None:
            return listed
        key = self.model_key(model)
        names = {model, *(name for pair in self.models.items() for name in pair if self.model_key(name) == key)}
        tables = (self.mig_slices, CARD_SLICES)
        return next((slices for table in tables for slices in _by_words(table, names)), None)

    def slices(self, model: str) -> int:
        """Slices of a card; 7 where no table has it (A19)."""
        return self.known_slices(model) or USUAL_SLICES

    @cached_property
    def _listed(self) -> Mapping[str, str]:
        return listed_models(self.models)

    @cached_property
    def _limits(self) -> Mapping[str, CardLimit]:
        return self._by_model(self.card_limits)

    @cached_property
    def _watts(self) -> Mapping[str, Decimal]:
        return self._by_model(self.class_watts)

    @cached_property
    def _fractions(self) -> Mapping[str, Fraction]:
        return self._by_model(self.class_fraction)

    @cached_property
    def _slices(self) -> Mapping[str, int]:
        return self._by_model(self.mig_slices)

    def _by_model(self, table: Mapping[str, T]) -> Mapping[str, T]:
        """A table by the spelling of its names, and by model; of several names of one model the smallest counts."""
        found: dict[str, T] = {}
        for key in (folded, self.model_key):
            for name in sorted(table):
                found.setdefault(key(name), table[name])
        return found

    def _entry(self, by_model: Mapping[str, T], name: str) -> T | None:
        """The entry under this very name, however spelled, else under another name of the model.

        Cards of one platform's name may differ: 40 and 80 GB under two names of DCGM.
        """
        found = by_model.get(folded(name))
        return by_model.get(self.model_key(name)) if found is None else found


def folded(name: str) -> str:
    """Model names that differ only in case, blanks, `-` or `_` are one model (section 2)."""
    return re.sub(r"[\s_-]", "", name).lower()


def listed_models(models: Mapping[str, str]) -> Mapping[str, str]:
    """The platform's name by the `folded` DCGM's name and by its own."""
    either: dict[str, str] = {}
    for dcgm, platform in sorted(models.items()):
        either.setdefault(folded(dcgm), platform)
        either.setdefault(folded(platform), platform)
    return either


def model_key(name: str, models: Mapping[str, str]) -> str:
    """Equal for all spellings and both names of one model; `models` is DCGM's name -> the platform's (section 2)."""
    return folded(listed_models(models).get(folded(name), name))


def _by_words(table: Mapping[str, int], names: Iterable[str]) -> Iterator[int]:
    """Entries whose words stand together in one of the names, those with the most words first."""
    full = [f" {' '.join(_words(name))} " for name in names]
    for listed in sorted(table, key=lambda name: (-len(_words(name)), name)):
        if any(f" {' '.join(_words(listed))} " in name for name in full):
            yield table[listed]


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def profile_slices(profile: str) -> int | None:
    """Slices of a MIG profile, the number before `g`: 3 of `MIG 3g.40gb`, `1c.3g.40gb`, `3G.40GB`; None where there is
    none (A19).
    """
    match = re.search(r"(\d+)g\b", profile, re.IGNORECASE)
    return (int(match[1]) or None) if match else None
