"""First stage: the readings, as they came, into the lake (A7, A12).

An hour is kept beyond Prometheus' retention, so that it can always be recomputed. With each hour its summary
lands, which is all that other hours need of it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.hours import HOURS, SINGLE_RUN, failing_clearly, hours_of, span_text
from finops_pipeline.accounting.around import summarise
from finops_pipeline.accounting.config import REACH_HOURS
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.readings import read_hour
from resources.series import window
from resources.site import Site

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
        with ThreadPoolExecutor(max_workers=CLUSTERS_AT_ONCE) as pool:
            counts = list(pool.map(lambda cluster: land(site, cluster, hours), site.doors))
    return dg.MaterializeResult(metadata={"hours": span_text(hours), "clusters": len(counts), "samples": sum(counts)})


def land(site: Site, cluster: str, hours: Sequence[int]) -> int:
    """Land the hours of a run, and those around it that readings may reach (A12); how many samples the run has."""
    landed = set() if site.bundle else set(site.lake.hours("dcgm_series", cluster))
    first, last = hours[0], hours[-1]
    samples = 0
    for hour in range(first - REACH_HOURS * HOUR_MS, first, STEP_HOURS * HOUR_MS):
        _land_around(site, cluster, hour, min(hour + STEP_HOURS * HOUR_MS, first), landed)
    for hour in hours:
        samples += _land_hour(site, cluster, hour, landed)
        site.progress("dcgm_series", hour)
    end = min(last + (REACH_HOURS + 1) * HOUR_MS, site.now_ms())
    for hour in range(last + HOUR_MS, end, STEP_HOURS * HOUR_MS):
        _land_around(site, cluster, hour, min(hour + STEP_HOURS * HOUR_MS, end), landed)
    return samples


def _land_hour(site: Site, cluster: str, hour: int, landed: set[int]) -> int:
    """The hour afresh; what landed before stays where the source has less of it by now."""
    kept = site.lake.read("dcgm_series", cluster, hour) if hour in landed else None
    found = site.doors[cluster].series(hour, hour + HOUR_MS, list(site.config.metrics), may_be_gone=kept is not None)
    if kept is not None and samples_in(kept) > samples_in(found):
        found = kept
    _write(site, cluster, hour, found)
    return samples_in(found)


def _land_around(site: Site, cluster: str, begin: int, end: int, landed: set[int]) -> None:
    """Hours of `[begin, end)` that have not landed; of one that has not ended only the summary so far."""
    wanted = [hour for hour in range(begin, end, HOUR_MS) if hour not in landed]
    if not wanted:
        return
    metrics = list(site.config.metrics)
    found = site.doors[cluster].series(wanted[0], min(wanted[-1] + HOUR_MS, end), metrics, may_be_gone=True)
    for hour in wanted:
        series = window(found, hour, hour + HOUR_MS)
        if hour + HOUR_MS <= site.now_ms():
            _write(site, cluster, hour, series)
        else:
            _summarise(site, cluster, hour, series)


def _write(site: Site, cluster: str, hour: int, series: pa.Table) -> None:
    site.lake.write("dcgm_series", cluster, hour, series)
    _summarise(site, cluster, hour, series)


def _summarise(site: Site, cluster: str, hour: int, series: pa.Table) -> None:
    site.lake.write("dcgm_summary", cluster, hour, summarise(read_hour(series, hour, site.config), site.config))


def samples_in(series: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(series["timestamps"])).as_py() or 0)
