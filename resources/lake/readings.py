"""Readings and their summaries in the lake: landed together, and looked up around an hour (A12).

What belongs here: keeping the two of an hour together, and making a summary anew where the configuration has changed
since. What does not: where readings come from, and what a summary says (`accounting.telemetry.summaries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from finops_pipeline.accounting.arrays import texts, whole
from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.readings import NO_PODS, SEPARATOR, read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise, summary_digest
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.store import EarlierFormatError, Lake

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


def landed_summary(lake: Lake, rules: AccountingConfig, cluster: str, hour: int) -> pa.Table | None:
    """The landed summary; made anew from the readings where the configuration or the format has changed since."""
    try:
        summary = lake.read("dcgm_summary", cluster, hour)
        if summary is None or not len(summary) or summary["config"][0].as_py() == summary_digest(rules):
            return summary
    except EarlierFormatError:
        pass
    series = lake.read("dcgm_series", cluster, hour)
    if series is None:
        return None
    write_summary(lake, rules, cluster, hour, series)
    return lake.read("dcgm_summary", cluster, hour)


def labels_of(lake: Lake, rules: AccountingConfig, cluster: str, hour: int) -> frozenset[str]:
    """Every workload label of an hour, as far as it has landed, and the pods taken for the exporter's own (A8)."""
    names = ["run_labels", "exporters"]
    try:
        summary = lake.read("dcgm_summary", cluster, hour, names)
    except EarlierFormatError:
        summary = landed_summary(lake, rules, cluster, hour)
    if summary is None:
        return frozenset()
    sets = (text for name in names for text in texts(whole(summary[name]).flatten().unique()))
    return frozenset(label for joined in sets for label in joined.split(SEPARATOR))


class Summaries:
    """Summaries of the hours around an hour, each read once while a run moves on."""

    def __init__(self, lake: Lake, rules: AccountingConfig, cluster: str) -> None:
        self._lake, self._rules, self._cluster = lake, rules, cluster
        self._read: dict[int, pa.Table | None] = {}

    def of(self, hour: int, named: frozenset[str] = NO_PODS) -> Mapping[int, pa.Table]:
        """By the start of their hour, those that landed.

        `named` are pods called like the exporter's that lifecycle events name: hours that read one of them as the
        exporter are summed up anew, for this hour alone (A8).
        """
        reach = range(hour - REACH_HOURS * HOUR_MS, hour + (REACH_HOURS + 1) * HOUR_MS, HOUR_MS)
        self._read = {
            start: self._read[start]
            if start in self._read
            else landed_summary(self._lake, self._rules, self._cluster, start)
            for start in reach
        }
        found = {start: table for start, table in self._read.items() if table is not None}
        return {start: self._with(named, start, table) for start, table in found.items()} if named else found

    def _with(self, named: frozenset[str], start: int, summary: pa.Table) -> pa.Table:
        series = self._lake.read("dcgm_series", self._cluster, start)
        if series is None or not named & set(texts(whole(summary["exporters"]).flatten()).tolist()):
            return summary
        return summarise(read_hour(series, start, self._rules, named), self._rules)


def _summary(rules: AccountingConfig, hour: int, series: pa.Table) -> pa.Table:
    return summarise(read_hour(series, hour, rules), rules)
