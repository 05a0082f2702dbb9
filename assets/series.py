"""First stage: the readings, as they came, into the lake (A7, A12).

An hour is kept beyond Prometheus' retention, so that it can always be recomputed. With each hour its summary
lands, which is all that other hours need of it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, span_text, stage_of
from finops_pipeline.resources.lake.readings import drop_readings, write_readings, write_summary
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.series import window
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

CLUSTERS_AT_ONCE = 4
STEP_HOURS = 6
"""Hours around the run are pulled this many at a time: memory stays bounded."""


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"prometheus", "parquet"},
    deps=["prometheus"],
)
def dcgm_series(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> dg.MaterializeResult:
    """One row per DCGM series and hour: raw samples with their labels, from Prometheus to the lake."""
    with stage_of(context, source, watch) as stage:
        counts = Landing(lake, source, rules).all(stage.hours, stage.done)
    return dg.MaterializeResult(
        metadata={"hours": span_text(stage.hours), "clusters": len(counts), "samples": sum(counts)}
    )


@dataclass(frozen=True)
class Landing:
    """Readings on their way from the source to the lake."""

    lake: Lake
    source: Source
    rules: AccountingConfig

    def all(self, hours: Sequence[int], done: Callable[[str, int, str], None]) -> list[int]:
        """Land the hours of a run, of several clusters at once; how many samples each has.

        The first failure, or an interrupt, ends the others at their next hour.
        """
        stop = Event()
        with ThreadPoolExecutor(max_workers=CLUSTERS_AT_ONCE) as pool:
            try:
                return list(pool.map(lambda cluster: self.of(cluster, hours, stop, done), self.source.clusters))
            finally:
                stop.set()

    def of(
        self,
        cluster: str,
        hours: Sequence[int],
        stop: Event | None = None,
        done: Callable[[str, int, str], None] = lambda *_: None,
    ) -> int:
        """Land a cluster's hours of a run, and those around it that readings may reach (A12); how many samples the run has."""
        stop = stop or Event()
        landed = self.source.landed(self.lake, cluster)
        first, last = hours[0], hours[-1]
        self._around(cluster, first - REACH_HOURS * HOUR_MS, first, landed, stop)
        samples = 0
        for hour in hours:
            if stop.is_set():
                break
            found = self._hour(cluster, hour, landed)
            samples += found
            done(cluster, hour, f"{found} samples")
        end = min(last + (REACH_HOURS + 1) * HOUR_MS, self.source.readings_end())
        self._around(cluster, last + HOUR_MS, end, landed, stop)
        return samples

    def _hour(self, cluster: str, hour: int, landed: set[int]) -> int:
        """The hour afresh; what landed before stays where the source has less of it by now."""
        kept = self.lake.read("dcgm_series", cluster, hour) if hour in landed else None
        found = self._series(cluster, hour, hour + HOUR_MS, may_be_gone=kept is not None)
        if kept is not None and samples_in(kept) > samples_in(found):
            found = kept
        write_readings(self.lake, self.rules, cluster, hour, found)
        return samples_in(found)

    def _around(self, cluster: str, begin: int, end: int, landed: set[int], stop: Event) -> None:
        """Hours of `[begin, end)` that have not landed, a few at a time."""
        for hour in range(begin, end, STEP_HOURS * HOUR_MS):
            if not stop.is_set():
                self._some(cluster, hour, min(hour + STEP_HOURS * HOUR_MS, end), landed)

    def _some(self, cluster: str, begin: int, end: int, landed: set[int]) -> None:
        """Hours of `[begin, end)` that have not landed; of one that has not ended only the summary so far.

        Nothing is no reading of the hour or one that is no longer kept. It does not land, so that whoever computes the
        hour asks again and learns which.
        """
        wanted = [hour for hour in range(begin, end, HOUR_MS) if hour not in landed]
        if not wanted:
            return
        found = self._series(cluster, wanted[0], min(wanted[-1] + HOUR_MS, end), may_be_gone=True)
        for hour in wanted:
            series = window(found, hour, hour + HOUR_MS)
            if not len(series):
                drop_readings(self.lake, cluster, hour)
            elif hour + HOUR_MS <= self.source.readings_end():
                write_readings(self.lake, self.rules, cluster, hour, series)
            else:
                write_summary(self.lake, self.rules, cluster, hour, series)

    def _series(self, cluster: str, start_ms: int, end_ms: int, *, may_be_gone: bool) -> pa.Table:
        return self.source.series(cluster, start_ms, end_ms, list(self.rules.metrics), may_be_gone=may_be_gone)


def samples_in(series: pa.Table) -> int:
    """How many samples a DCGM_SERIES table has."""
    return int(pc.sum(pc.list_value_length(series["timestamps"])).as_py() or 0)
