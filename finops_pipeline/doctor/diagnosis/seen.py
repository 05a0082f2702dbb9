"""What all checks look at: each series with its device and label, and the readings as the accounting has them.

What belongs here: preparing it once. What does not: judging it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import Column, Ints, ints, whole
from finops_pipeline.accounting.config import FINE, RATIO, AccountingConfig
from finops_pipeline.accounting.telemetry.readings import HourReadings, SeriesColumns, read_hour
from finops_pipeline.accounting.telemetry.summaries import MAX_SCRAPE_SECONDS, combined_utilization
from finops_pipeline.doctor.diagnosis.remarks import minutes_text

BUSY: Final = RATIO * FINE // 20
"""Mean utilization above which a device without a workload label is worth a look: 5 %."""
MILLISECONDS: Final = 1000


@dataclass(frozen=True)
class Row:
    """One series."""

    metric: str
    labels: Mapping[str, str]
    key: str
    """of its device; empty without a uuid"""
    board: str
    workload: str | None
    first: int
    last: int
    samples: int

    @property
    def read(self) -> bool:
        return bool(self.key) and self.samples > 0


@dataclass(frozen=True)
class Seen:
    """What all checks look at."""

    rows: list[Row]
    hour: HourReadings
    start: int
    end: int
    config: AccountingConfig
    by_device: Mapping[str, list[Row]]
    interval: list[int | None]
    """commonest seconds between the instants of each device; None with fewer than two distances"""
    usual_ms: Ints
    """of each device: what A11 takes for its scrape interval"""

    @staticmethod
    def of(series: pa.Table, start: int, end: int, config: AccountingConfig) -> Seen:
        rows = _rows(series, config)
        by_device: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row.read and row.metric in config.metrics:
                by_device[row.key].append(row)
        hour = read_hour(series, start, config)
        interval = _intervals(hour)
        floor = config.window_seconds
        usual = [min(max(seconds or 0, floor), max(MAX_SCRAPE_SECONDS, floor)) for seconds in interval]
        return Seen(rows, hour, start, end, config, by_device, interval, np.array(usual, dtype=np.int64) * MILLISECONDS)

    @property
    def used(self) -> Iterable[Row]:
        return (row for rows in self.by_device.values() for row in rows)

    @property
    def minutes(self) -> str:
        return minutes_text(self.end - self.start)


def _rows(series: pa.Table, config: AccountingConfig) -> list[Row]:
    if not len(series):
        return []
    columns = SeriesColumns.of(series, config)
    lists = whole(series["timestamps"])
    at, counts = ints(lists.flatten()), ints(lists.value_lengths())
    stop = np.cumsum(counts)
    labels: Column = whole(series["labels"])
    return [
        Row(
            metric=columns.metric[row],
            labels=dict(pairs),
            key=columns.key[row] if columns.uuid[row] else "",
            board=columns.uuid[row],
            workload=columns.label[row],
            first=int(at[end - count]) if count else 0,
            last=int(at[end - 1]) if count else 0,
            samples=count,
        )
        for row, (pairs, count, end) in enumerate(zip(labels.to_pylist(), counts.tolist(), stop.tolist(), strict=True))
    ]


def _intervals(hour: HourReadings) -> list[int | None]:
    """The commonest seconds of each device's scrape targets, the smallest over them (A11), whatever their number."""
    spacing = hour.spacing
    best: dict[tuple[int, int], tuple[int, int]] = {}
    total: Counter[tuple[int, int]] = Counter()
    for device, target, seconds, count in zip(
        *(column.tolist() for column in (spacing.device, spacing.target, spacing.seconds, spacing.count)), strict=True
    ):
        if seconds:
            total[device, target] += count
            best[device, target] = min(best.get((device, target), (0, 0)), (-count, seconds))
    found: list[int | None] = [None] * len(hour.devices)
    for (device, target), (_, seconds) in best.items():
        if total[device, target] > 1:
            found[device] = min(found[device] or seconds, seconds)
    return found


def busy_devices(seen: Seen) -> set[int]:
    readings = combined_utilization(seen.hour, seen.config)
    count = np.bincount(readings.owner, minlength=1)
    total = np.bincount(readings.owner, weights=readings.value.astype(np.float64), minlength=1)
    return set(np.flatnonzero(total > BUSY * np.maximum(count, 1)).tolist())
