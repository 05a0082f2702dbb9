"""Which metrics are there, which are missing, and which readings cannot be (A9, A10).

What belongs here: names, quantities, limits. What does not: labels (`labels`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import PERCENT, RATIO, Quantity
from finops_pipeline.doctor.diagnosis.remarks import Level, Remark, counted, listed, minutes_text
from finops_pipeline.doctor.diagnosis.seen import Seen

_COUNTERS: Final = "in the counters file of dcgm-exporter (-f)"
_NEEDS: Final[tuple[tuple[str, tuple[Quantity, ...], str, str], ...]] = (
    (
        "utilization",
        (Quantity.UTILIZATION, Quantity.UTILIZATION_COARSE),
        "active seconds stay null",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    ),
    ("memory", (Quantity.MEMORY,), "memory stays null", "DCGM_FI_DEV_FB_USED"),
    (
        "energy",
        (Quantity.ENERGY, Quantity.POWER),
        "energy is modelled from [class_watts], or null",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION and DCGM_FI_DEV_POWER_USAGE",
    ),
)
_UNLIKE: Final = re.compile(r"limit|violation|mgmt|enforced|percent|free|total_time|state|cap$|throttl", re.IGNORECASE)
_LIKELY: Final[tuple[tuple[re.Pattern[str], Quantity, int], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), quantity, factor)
    for pattern, quantity, factor in (
        (r"gr_engine|gpu_active", Quantity.UTILIZATION, RATIO),
        (r"gpu_util", Quantity.UTILIZATION_COARSE, PERCENT),
        (r"fb_used|framebuffer_used|memory_used", Quantity.MEMORY, 1024),
        (r"energy", Quantity.ENERGY, 1),
        (r"power", Quantity.POWER, 1000),
    )
)


def likely_quantity(metric: str) -> tuple[Quantity, int] | None:
    """What an unknown DCGM metric probably measures, by its name, and the factor if its unit is DCGM's usual one."""
    if _UNLIKE.search(metric):
        return None
    return next(((quantity, factor) for pattern, quantity, factor in _LIKELY if pattern.search(metric)), None)


def nothing_configured(names: Collection[str], start: int, end: int) -> Remark:
    others = sorted(names)
    guess = next((name for name in others if likely_quantity(name)), None)
    return Remark(
        Level.FAIL,
        "metrics",
        f"no DCGM metric that is configured has a sample in {minutes_text(end - start)}"
        + (f"; other DCGM metrics are there: {listed(others)}" if others else ", and none under another name"),
        metric_entry(guess)
        if guess
        else "scrape dcgm-exporter with this Prometheus (see its /targets page), or name the right one in"
        " FINOPS_PROMETHEUS_URLS",
    )


def metric_entry(name: str) -> str:
    """The line of FINOPS_CONFIG that would make a metric count."""
    found = likely_quantity(name)
    if found is None:
        return ""
    quantity, factor = found
    return f'in FINOPS_CONFIG: [metrics] {name} = {{quantity = "{quantity.name.lower()}", factor = {factor}}}'


def check_quantities(seen: Seen) -> Iterable[Remark]:
    """Which metric each quantity comes from, and the devices that have none (A9)."""
    for what, quantities, otherwise, metrics in _NEEDS:
        of_board = what == "energy"
        owners = [str(owner) for owner in (seen.hour.boards if of_board else seen.hour.devices.key)]
        with_reading = {int(owner) for q in quantities for owner in np.unique(seen.hour.values[q].owner)}
        without = [owner for index, owner in enumerate(owners) if index not in with_reading]
        sources = _sources(seen, quantities, of_board=of_board)
        if sources:
            yield Remark(
                Level.OK,
                what,
                ", ".join(f"{name} ({counted(count, 'board' if of_board else 'device')})" for name, count in sources),
            )
        if without:
            yield Remark(
                Level.WARN,
                what,
                f"{len(without)} of {counted(len(owners), 'board' if of_board else 'device')} without a valid reading of"
                f" {what} ({listed(without)}): {otherwise}",
                _missing_remedy(seen, quantities, set(without), metrics),
            )
    if not len(seen.hour.values[Quantity.ENERGY].owner) and len(seen.hour.values[Quantity.POWER].owner):
        yield Remark(
            Level.WARN,
            "energy",
            "there is power but no energy counter: energy in a gap is estimated instead of read from the counter",
            f"export DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION {_COUNTERS}",
        )


def _sources(seen: Seen, quantities: tuple[Quantity, ...], *, of_board: bool) -> list[tuple[str, int]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in seen.used:
        if seen.config.metrics[row.metric][0] in quantities:
            found[row.metric].add(row.board if of_board else row.key)
    return [(metric, len(owners)) for metric, owners in sorted(found.items())]


def _missing_remedy(seen: Seen, quantities: tuple[Quantity, ...], without: set[str], metrics: str) -> str:
    """An unknown metric of these very devices that looks right, or what to export."""
    for row in seen.rows:
        found = likely_quantity(row.metric) if row.metric not in seen.config.metrics else None
        if row.read and found is not None and found[0] in quantities and {row.key, row.board} & without:
            return f"{metric_entry(row.metric)} (check its unit)"
    return f"export {metrics} {_COUNTERS}, or name what has it in FINOPS_CONFIG: [metrics]"


def check_unused(seen: Seen, names: Collection[str]) -> Remark | None:
    others = sorted(name for name in names if name not in seen.config.metrics and likely_quantity(name))
    if not others:
        return None
    return Remark(
        Level.OK,
        "other metrics",
        f"not used, though of the kind: {listed(others, len(others))}",
        f"only if it shall count: {metric_entry(others[0])}",
    )


def check_limits(seen: Seen) -> Iterable[Remark]:
    """Models without the numbers that plausibility and modelling need (A10, A13)."""
    devices = seen.hour.devices
    models = sorted({model for model in devices.model.tolist() if model})
    unlimited = [m for m in models if None in (seen.config.limit(m).power_w, seen.config.limit(m).memory_gb)]
    if unlimited:
        yield Remark(
            Level.WARN,
            "card_limits",
            f"no power or memory limit of {listed(unlimited, len(unlimited))}: impossible readings are not all rejected (A10)",
            "in FINOPS_CONFIG: [card_limits] "
            + ", ".join(f'"{model}" = {{power_w = watts, memory_gb = GB}}' for model in unlimited),
        )
    boards = {
        index for q in (Quantity.POWER, Quantity.ENERGY) for index in np.unique(seen.hour.values[q].owner).tolist()
    }
    told = np.isin(seen.hour.board_of(), list(boards))
    unknown = [m for m in models if seen.config.watts(m) is None]
    dark = [m for m in unknown if (~told & (devices.model == m)).any()]
    if unknown:
        yield Remark(
            Level.WARN if dark else Level.OK,
            "class_watts",
            f"no watts of {listed(dark or unknown, len(unknown))}: "
            + (
                "it reports no power, so its energy is null"
                if dark
                else "only needed where no power was ever read (A13)"
            ),
            "in FINOPS_CONFIG: [class_watts] " + ", ".join(f'"{model}" = watts' for model in dark or unknown),
        )


def check_rejected(seen: Seen) -> Iterable[Remark]:
    table = seen.hour.rejected
    counts = pc.replace_substring(table["detail"], "readings=", "").cast(pa.int64()).to_pylist()
    readings: Counter[tuple[str, str]] = Counter()
    devices: Counter[tuple[str, str]] = Counter()
    for key, reason, count in zip(texts(table["key"]), texts(table["reason"]), counts, strict=True):
        kind = (str(reason), str(key).rpartition(":")[2])
        readings[kind] += int(count or 0)
        devices[kind] += 1
    if readings:
        yield Remark(
            Level.WARN,
            "rejected readings",
            f"in {seen.minutes}: "
            + ", ".join(
                f"{count} {kind[0]} of {kind[1]} ({counted(devices[kind], 'device')})"
                for kind, count in sorted(readings.items())
            ),
            "above_limit, above_one: check [card_limits] and the factors in [metrics]; blank: a newer exporter drops them",
        )
