"""When samples come, how often, and whether twice (A7, A11).

What belongs here: scraping. What does not: what the samples say.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from finops_pipeline.accounting.telemetry.summaries import MAX_SCRAPE_SECONDS
from finops_pipeline.doctor.diagnosis.labels import JOB_LABEL
from finops_pipeline.doctor.diagnosis.remarks import Level, Remark, counted, listed
from finops_pipeline.doctor.diagnosis.seen import MILLISECONDS, Row, Seen

STILL_THERE_MS: Final = 60_000
"""A device is not called silent before 2.5 times this long."""
_REPLICA: Final = re.compile(r"replica|^prometheus$")


def check_scrapes(seen: Seen) -> Iterable[Remark]:
    """The scrape interval, and holes in these very minutes (A11)."""
    intervals = Counter(seconds for seconds in seen.interval if seconds is not None)
    if not intervals:
        yield Remark(
            Level.WARN,
            "scrape interval",
            f"too few samples in {seen.minutes} to measure it",
            "set scrape_interval of the job to 60 s or less",
        )
        return
    slow = max(intervals) > MAX_SCRAPE_SECONDS
    seen_text = ", ".join(f"{seconds} s ({counted(count, 'device')})" for seconds, count in sorted(intervals.items()))
    yield Remark(
        Level.WARN if slow else Level.OK,
        "scrape interval",
        seen_text + (f": above {MAX_SCRAPE_SECONDS} s every distance is a gap (A11)" if slow else ""),
        "set scrape_interval of the job to 60 s or less" if slow else "",
    )
    yield from _holes(seen)


def _holes(seen: Seen) -> Iterable[Remark]:
    hour = seen.hour
    same = hour.instant_device[1:] == hour.instant_device[:-1]
    distance = np.where(same, hour.instant_at[1:] - hour.instant_at[:-1], 0)
    hole = 2 * distance > 5 * seen.usual_ms[hour.instant_device[1:]]
    if hole.any():
        devices = np.unique(hour.instant_device[1:][hole])
        yield Remark(
            Level.WARN,
            "holes",
            f"{counted(len(devices), 'device')} silent for up to {int(distance.max()) // MILLISECONDS} s in"
            f" {seen.minutes} ({listed([str(hour.devices.key[i]) for i in devices])})",
            "such gaps are estimated and flagged (A13); look at the exporter's restarts and its scrape_timeout",
        )


def check_silent(seen: Seen) -> Iterable[Remark]:
    """Devices that have stopped reporting anything."""
    hour = seen.hour
    last = hour.instant_at[np.searchsorted(hour.instant_device, np.arange(len(hour.devices)), "right") - 1]
    gone = np.flatnonzero(2 * (seen.end - last) > 5 * np.maximum(seen.usual_ms, STILL_THERE_MS))
    if len(gone):
        yield Remark(
            Level.WARN,
            "silence",
            f"{counted(len(gone), 'device')} with samples in {seen.minutes} and none now"
            f" ({listed([str(hour.devices.key[i]) for i in gone])})",
            "an exporter that is down, a node that is gone, or a new series under another uuid: look at its /targets",
        )


def check_duplicates(seen: Seen) -> Iterable[Remark]:
    """The same reading stored more than once: two scrape jobs, HA replicas (A7)."""
    groups: dict[tuple[str, str, str | None], list[Row]] = defaultdict(list)
    for row in seen.used:
        groups[row.metric, row.key, row.workload].append(row)
    differing: Counter[str] = Counter()
    values: dict[str, set[str]] = defaultdict(set)
    devices: set[str] = set()
    for (_, key, _), rows in groups.items():
        together = [row for row in rows if any(other is not row and _overlap(row, other) for other in rows)]
        names = {name for row in together for name in row.labels} - {JOB_LABEL}
        names = {name for name in names if len({row.labels.get(name, "") for row in together}) > 1}
        if names:
            devices.add(key)
            differing.update(names)
            for name in names:
                values[name] |= {row.labels.get(name, "") for row in together}
    if not devices:
        return
    replica = next((name for name in differing if _REPLICA.search(name)), None)
    name = replica or ("job" if "job" in differing else min(differing, key=lambda n: (-differing[n], n)))
    seen_text = f"{name} = {listed(sorted(values[name] - {''}))}"
    yield Remark(
        Level.WARN,
        "duplicates",
        f"{counted(len(devices), 'device')} stored twice or more, distinguished by {seen_text}: the highest value at an instant counts"
        " (A7)",
        "behind Thanos set FINOPS_PROMETHEUS_THANOS=true, which asks it to deduplicate; else leave it"
        if replica
        else "keep one of the scrape jobs or targets: the other only costs storage",
    )


def _overlap(one: Row, other: Row) -> bool:
    return one.first <= other.last and other.first <= one.last
