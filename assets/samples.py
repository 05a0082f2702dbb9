"""Third stage: windows of every device, who held it, and how gaps were filled (A7-A20)."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import REACH_HOURS
from finops_pipeline.accounting.exact import HOUR_MS, instant_of
from finops_pipeline.accounting.hour import HourHoldings, HourSamples, sample_hour
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, abreast, failing_clearly, hours_of, span_text
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.postgres.client import attributed
from finops_pipeline.resources.postgres.sample_runs import sample_runs
from finops_pipeline.resources.site import Site

HELD = {"gpu_holdings": "holdings", "gpu_matches": "matches", "fleet_states": "states"}
"""Lake table -> field of HourHoldings."""
TABLES = {
    "gpu_samples": "samples",
    **HELD,
    "rejected_readings": "rejected",
    "hour_facts": "facts",
    "findings": "findings",
}
"""Lake table -> field of HourSamples."""
CHECK = "findings"
EVENTS_AND_DEVICES = ("workload_events", "deployments", "gpu_inventory")


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"parquet", "postgres"},
    deps=["dcgm_series", "platform_records"],
    check_specs=[
        dg.AssetCheckSpec(
            CHECK, asset="gpu_samples", description="Nothing in these hours that a person should look at, by kind."
        )
    ],
)
def gpu_samples(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One row per window and visible device: utilization, memory, power, whether estimated, and by which method."""
    rows = estimated = 0
    kinds: Counter[str] = Counter()
    with failing_clearly(site):
        hours = hours_of(context, site)
        for cluster in site.doors:
            with closing(sample_all(site, cluster, hours)) as sampled:
                for hour, found in zip(hours, sampled, strict=True):
                    rows += len(found.samples)
                    estimated += pc.sum(found.samples["estimated"]).as_py() or 0
                    kinds.update(texts(found.findings["kind"]).tolist())
                    site.progress("gpu_samples", hour)
    share = round(estimated / rows, 6) if rows else 0.0
    return dg.MaterializeResult(
        metadata={"hours": span_text(hours), "rows": rows, "estimated_share": share, "findings": kinds.total()},
        check_results=[
            dg.AssetCheckResult(
                passed=not kinds,
                check_name=CHECK,
                severity=dg.AssetCheckSeverity.WARN,
                metadata=dict(sorted(kinds.items())),
            )
        ],
    )


def sample_all(site: Site, cluster: str, hours: Iterable[int]) -> Generator[HourSamples]:
    """Compute and store the hours of a run, in order."""
    around = Summaries(site, cluster)
    return abreast(lambda known: sample(site, cluster, *known), ((hour, around.of(hour)) for hour in hours))


def sample(site: Site, cluster: str, hour: int, summaries: Mapping[int, pa.Table]) -> HourSamples:
    """Compute and store one hour's windows and holdings; `summaries` are those of the hours around it."""
    series = site.lake.require("dcgm_series", cluster, hour)
    records = {name: site.lake.require(name, cluster, hour) for name in EVENTS_AND_DEVICES}
    found = sample_hour(cluster, hour, series, summaries, records, site.now_ms(), site.config)
    with ThreadPoolExecutor(max_workers=1) as beside:
        _publish(site, cluster, hour, found, beside.submit(_land, site, cluster, hour, found))
    return found


def _land(site: Site, cluster: str, hour: int, found: HourSamples) -> None:
    for table, field in TABLES.items():
        site.lake.write(table, cluster, hour, getattr(found, field))
        reached(f"{table} landed")


def _publish(site: Site, cluster: str, hour: int, found: HourSamples, landing: Future[None]) -> None:
    """Nothing of it is committed unless it has landed."""
    with site.database.transaction() as connection:
        site.database.hour_lock(connection, cluster, instant_of(hour))
        for table, rows in (("gpu_sample_runs", sample_runs(found.samples)), ("findings", found.findings)):
            site.database.replace_hour(
                connection, table, cluster, [instant_of(hour)], attributed(rows, site.config.platform_tenant)
            )
            reached(f"{table} replaced")
        landing.result()


def stored(site: Site, cluster: str, hour: int) -> HourHoldings:
    """What `sample` stored and the next stage needs."""
    return HourHoldings(**{field: site.lake.require(table, cluster, hour) for table, field in HELD.items()})


class Summaries:
    """Summaries of the hours around an hour, each read once while the run moves on."""

    def __init__(self, site: Site, cluster: str) -> None:
        self._site, self._cluster = site, cluster
        self._read: dict[int, pa.Table | None] = {}

    def of(self, hour: int) -> Mapping[int, pa.Table]:
        reach = range(hour - REACH_HOURS * HOUR_MS, hour + (REACH_HOURS + 1) * HOUR_MS, HOUR_MS)
        self._read = {start: self._read[start] if start in self._read else self._lookup(start) for start in reach}
        return {start: table for start, table in self._read.items() if table is not None}

    def _lookup(self, start: int) -> pa.Table | None:
        """The landed summary; made anew from the readings where the configuration has changed since."""
        lake, config = self._site.lake, self._site.config
        summary = lake.read("dcgm_summary", self._cluster, start)
        if summary is None or not len(summary) or summary["config"][0].as_py() == config.reading_digest:
            return summary
        series = lake.read("dcgm_series", self._cluster, start)
        if series is None:
            return None
        summary = summarise(read_hour(series, start, config), config)
        lake.write("dcgm_summary", self._cluster, start, summary)
        return summary
