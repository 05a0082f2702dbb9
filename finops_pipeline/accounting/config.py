"""The configuration tables of accounting.md section 2, with the defaults that ship (A4, A7-A11, A19).

What belongs here: names and numbers that a site may change. What does not: where they come from
(environment, bundle.toml), which is `finops_pipeline.settings` and `resources.bundle`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Final, TypeVar

T = TypeVar("T")

REACH_HOURS: Final = 24
"""Readings count this many hours before and after the hour (A12)."""
FINE: Final = 1_000_000
"""A reading is held in millionths of its published integer unit, so that a mean is rounded once (A28)."""


class Quantity(IntEnum):
    """What a device tells (A9), with the whole unit of A28 that it is rounded to."""

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
    """a group whose pod or container contains this is the exporter itself"""
    exporter_container: str = "exporter"


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
    """words of a reason that tell the failure of a node or a GPU"""


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
    mig_slices: Mapping[str, int] = field(default_factory=lambda: {"A30": 4, "NVIDIA A30": 4})
    """slices of a card; 7 unless listed (A19)"""
    metrics: Mapping[str, tuple[Quantity, int]] = field(default_factory=lambda: dict(DEFAULT_METRICS))
    labels: LabelNames = field(default_factory=LabelNames)
    billable_states: frozenset[str] = frozenset({"running"})
    findings: FindingLimits = field(default_factory=FindingLimits)

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

    @property
    def reading_digest(self) -> str:
        """Changes with whatever turns series into readings and windows: names, limits, window length (A7-A11)."""
        parts = [
            self.window_seconds,
            sorted(self.models.items()),
            sorted((model, str(limit.power_w), str(limit.memory_gb)) for model, limit in self.card_limits.items()),
            sorted(self.mig_slices.items()),
            sorted((metric, int(quantity), factor) for metric, (quantity, factor) in self.metrics.items()),
            self.labels,
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def platform_model(self, model: str) -> str:
        return self.models.get(model, model)

    def limit(self, model: str) -> CardLimit:
        """The limits of a card, listed under DCGM's or the platform's name."""
        return self._either(self.card_limits, model) or CardLimit()

    def watts(self, name: str) -> Decimal | None:
        """Modelled watts of one unit of a class or model (A13 rung 5)."""
        return self._either(self.class_watts, name)

    def fraction(self, placed_class: str | None) -> Fraction:
        """GPUs that one unit of the class counts for (A4)."""
        found = self._either(self.class_fraction, placed_class) if placed_class else None
        return Fraction(1) if found is None else found

    def slices(self, model: str) -> int:
        return self._either(self.mig_slices, model) or 7

    def _either(self, table: Mapping[str, T], name: str) -> T | None:
        """An entry under DCGM's name, the platform's name, or any DCGM name that maps to it."""
        names = [name, self.platform_model(name)]
        names += [dcgm for dcgm, platform in self.models.items() if platform == names[1]]
        return next((table[known] for known in names if known in table), None)


def profile_slices(profile: str) -> int:
    """Slices of a MIG profile: 3 of `3g.40gb` (A19); 1 where the exporter does not tell."""
    match = re.match(r"(\d+)g", profile)
    return int(match.group(1)) if match else 1
