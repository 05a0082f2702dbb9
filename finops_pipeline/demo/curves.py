"""Smooth, repeatable load curves in whole numbers: the same on every machine and version.

What belongs here: noise, ramps and the power that a load draws. What does not: who runs what and when
(`finops_pipeline.demo.generate`). Loads are millionths, power mW, energy mJ, memory MiB.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Whole: TypeAlias = npt.NDArray[np.int64]

FULL = 1_000_000


def noise(seed: int, steps: Whole, amplitude: int, knot: int = 8) -> Whole:
    """Noise within +-`amplitude` that wanders: a hash at every `knot` steps, straight lines between."""
    left = steps // knot
    rise = (_hash(seed, left + 1) - _hash(seed, left)) * (steps - left * knot) // knot
    return np.asarray((_hash(seed, left) + rise) * amplitude // 65_536)


def ramp(seconds: Whole, start: int, end: int) -> Whole:
    """0 before `start`, FULL after `end`, a straight line between."""
    return np.clip((seconds - start) * FULL // (end - start), 0, FULL)


def power_mw(load: Whole, idle_w: int, full_w: int, seed: int, steps: Whole) -> Whole:
    """What a card draws at a load: linear, with 1 % of noise."""
    steady = idle_w * 1000 + load * ((full_w - idle_w) * 1000) // FULL
    return steady + steady * noise(seed, steps, 10_000, knot=2) // FULL


def energy_mj(power: Whole, instants_ms: Whole, start: int) -> Whole:
    """The energy counter at each instant: it has risen by the power of every span before."""
    return start + np.concatenate([[0], np.cumsum(power[:-1] * np.diff(instants_ms) // 1000)])


def _hash(seed: int, steps: Whole) -> Whole:
    """Well mixed whole numbers from -65,536 to 65,535 (the finaliser of MurmurHash3)."""
    mixed = (steps + np.int64(seed) * 7_919_000_003).astype(np.uint64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed & np.uint64(0x1FFFF)).astype(np.int64) - 65_536
