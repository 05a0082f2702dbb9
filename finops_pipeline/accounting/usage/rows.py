"""Rows of usage in exact units, before they are published (A4, A6, A15, A20).

What belongs here: what a row is keyed by, and how amounts come together in it. What does not: rounding and tables
(`workload_hours`), what an idle line gives to workloads (`pooling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from finops_pipeline.accounting.telemetry.windows import RUNGS

UNITS = ("time", "activity", "memory", "energy")
STATUSES = ("measured", "estimated", "missing")
RUNG_NAMES = tuple(rung.name.lower() for rung in RUNGS)
POOLED = "pooled"
METHODS = (*RUNG_NAMES, POOLED)


class RowKey(NamedTuple):
    """What makes a row: a workload, or a pod without events, on one model for one tenant and deployment (A4)."""

    workload: str
    model: str
    basis: str
    tenant: str | None
    deployment: str


@dataclass
class Row:
    """A row in exact units; a unit is None while no part of it is known."""

    units: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(UNITS))
    times: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys((*STATUSES, *METHODS), Fraction(0)))
    gpu_ms: Fraction = Fraction(0)
    unseen: dict[int, Fraction] = field(default_factory=dict)
    """of each interval of a workload, its units x ms without a visible device (A20)"""
    interval: int = -1
    """the last interval that counts in it (A6); -1 for pods without events"""

    def add(self, unit: str, amount: int | None) -> None:
        if amount is not None:
            self.units[unit] = (self.units[unit] or 0) + amount

    def runs(self, interval: int) -> None:
        self.interval = max(self.interval, interval)

    def hold(self, part: Mapping[str, int | None]) -> None:
        """Take in a row of summed GPU_HOLDINGS."""
        for unit in UNITS:
            self.add(unit, part[f"{unit}_sum"])
        for name in (*STATUSES, *RUNG_NAMES):
            self.times[name] += part[f"{name}_ms_sum"] or 0

    @property
    def estimated(self) -> bool:
        """Whether it is not all measured, by its exact times (A15)."""
        return bool(self.times["estimated"] or self.times["missing"])
