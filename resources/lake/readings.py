"""Readings and their summaries in the lake: landed together, and looked up around an hour (A12).

What belongs here: keeping the two of an hour together, and making a summary anew where the configuration has changed
since. What does not: where readings come from, and what a summary says (`accounting.telemetry.summaries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.store import Lake

READINGS = ("dcgm_series", "dcgm_summary")


def write_readings(lake: Lake, rules: AccountingConfig, cluster: str, hour: int, series: pa.Table) -> None:
    """The readings of an hour (DCGM_SERIES), then their summary, which is computed meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        landing = beside.submit(lake.write, "dcgm_series", cluster, hour, series)
        summary = _summary(rules, hour, series)
        landing.result()
    reached("series landed")
    lake.write("dcgm_summary", cluster, hour, summary)


def write_summary(lake: Lake, rules: AccountingConfig, cluster: str, hour: int, series: pa.Table) -> None:
    """Only the summary so far, of an hour that has not ended."""
    lake.write("dcgm_summary", cluster, hour, _summary(rules, hour, series))


def drop_readings(lake: Lake, cluster: str, hour: int) -> None:
    """Forget an hour that has no readings."""
    for table in READINGS:
        lake.drop(table, cluster, hour)


class Summaries:
    """Summaries of the hours around an hour, each read once while a run moves on."""

    def __init__(self, lake: Lake, rules: AccountingConfig, cluster: str) -> None:
        self._lake, self._rules, self._cluster = lake, rules, cluster
        self._read: dict[int, pa.Table | None] = {}

    def of(self, hour: int) -> Mapping[int, pa.Table]:
        """By the start of their hour, those that landed."""
        reach = range(hour - REACH_HOURS * HOUR_MS, hour + (REACH_HOURS + 1) * HOUR_MS, HOUR_MS)
        self._read = {start: self._read[start] if start in self._read else self._lookup(start) for start in reach}
        return {start: table for start, table in self._read.items() if table is not None}

    def _lookup(self, start: int) -> pa.Table | None:
        """The landed summary; made anew from the readings where the configuration has changed since."""
        summary = self._lake.read("dcgm_summary", self._cluster, start)
        if summary is None or not len(summary) or summary["config"][0].as_py() == self._rules.reading_digest:
            return summary
        series = self._lake.read("dcgm_series", self._cluster, start)
        if series is None:
            return None
        write_summary(self._lake, self._rules, self._cluster, start, series)
        return self._lake.read("dcgm_summary", self._cluster, start)


def _summary(rules: AccountingConfig, hour: int, series: pa.Table) -> pa.Table:
    return summarise(read_hour(series, hour, rules), rules)
