"""First stage: the readings, as they came, into the lake (A7, A12).

An hour is kept beyond Prometheus' retention, so that it can always be recomputed. With each hour its summary
lands, which is all that other hours need of it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.config import REACH_HOURS
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, failing_clearly, hours_of, span_text
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.series import window
from finops_pipeline.resources.site import Site

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
def dcgm_series(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One row per DCGM series and hour: raw samples with their labels, from Prometheus to the lake."""
    with failing_clearly(site):
        hours = hours_of(context, site)
        counts = land_all(site, hours)
    return dg.MaterializeResult(metadata={"hours": span_text(hours), "clusters": len(counts), "samples": sum(counts)})


def land_all(site: Site, hours: Sequence[int]) -> list[int]:
    """Land the hours of a run, of several clusters at once; how many samples each has.

    The first failure, or an interrupt, ends the others at their next hour.
    """
    stop = Event()
    with ThreadPoolExecutor(max_workers=CLUSTERS_AT_ONCE) as pool:
        try:
            return list(pool.map(lambda cluster: land(site, cluster, hours, stop), site.doors))
        finally:
            stop.set()


def land(site: Site, cluster: str, hours: Sequence[int], stop: Event) -> int:
    """Land the hours of a run, and those around it that readings may reach (A12); how many samples the run has."""
    landed = set() if site.bundle else set(site.lake.hours("dcgm_series", cluster))
    first, last = hours[0], hours[-1]
    _land_around(site, cluster, first - REACH_HOURS * HOUR_MS, first, landed, stop)
    samples = 0
    for hour in hours:
        if stop.is_set():
            break
        samples += _land_hour(site, cluster, hour, landed)
        site.progress("dcgm_series", hour)
    end = last + (REACH_HOURS + 1) * HOUR_MS
    if site.bundle is None:
        end = min(end, site.now_ms())
    _land_around(site, cluster, last + HOUR_MS, end, landed, stop)
    return samples


def _land_hour(site: Site, cluster: str, hour: int, landed: set[int]) -> int:
    """The hour afresh; what landed before stays where the source has less of it by now."""
    kept = site.lake.read("dcgm_series", cluster, hour) if hour in landed else None
    found = site.doors[cluster].series(hour, hour + HOUR_MS, list(site.config.metrics), may_be_gone=kept is not None)
    if kept is not None and samples_in(kept) > samples_in(found):
        found = kept
    _write(site, cluster, hour, found)
    return samples_in(found)


def _land_around(site: Site, cluster: str, begin: int, end: int, landed: set[int], stop: Event) -> None:
    """Hours of `[begin, end)` that have not landed, a few at a time."""
    for hour in range(begin, end, STEP_HOURS * HOUR_MS):
        if not stop.is_set():
            _land_some(site, cluster, hour, min(hour + STEP_HOURS * HOUR_MS, end), landed)


def _land_some(site: Site, cluster: str, begin: int, end: int, landed: set[int]) -> None:
    """Hours of `[begin, end)` that have not landed; of one that has not ended only the summary so far.

    Nothing is no reading of the hour or one that is no longer kept. It does not land, so that whoever computes the
    hour asks again and is told which.
    """
    wanted = [hour for hour in range(begin, end, HOUR_MS) if hour not in landed]
    if not wanted:
        return
    metrics = list(site.config.metrics)
    found = site.doors[cluster].series(wanted[0], min(wanted[-1] + HOUR_MS, end), metrics, may_be_gone=True)
    for hour in wanted:
        series = window(found, hour, hour + HOUR_MS)
        if not len(series):
            for table in ("dcgm_series", "dcgm_summary"):
                site.lake.drop(table, cluster, hour)
        elif hour + HOUR_MS <= site.now_ms() or site.bundle:
            _write(site, cluster, hour, series)
        else:
            site.lake.write("dcgm_summary", cluster, hour, _summary(site, hour, series))


def _write(site: Site, cluster: str, hour: int, series: pa.Table) -> None:
    """The readings, then their summary, which is computed meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        landing = beside.submit(site.lake.write, "dcgm_series", cluster, hour, series)
        summary = _summary(site, hour, series)
        landing.result()
    reached("series landed")
    site.lake.write("dcgm_summary", cluster, hour, summary)


def _summary(site: Site, hour: int, series: pa.Table) -> pa.Table:
    return summarise(read_hour(series, hour, site.config), site.config)


def samples_in(series: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(series["timestamps"])).as_py() or 0)
