"""Third stage: windows of every device, who held it, and how gaps were filled (A7-A20)."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import instant_of
from finops_pipeline.accounting.hour import HourHoldings, HourSamples, event_pods, sample_hour
from finops_pipeline.accounting.telemetry.readings import NO_PODS
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, abreast, span_text, stage_of
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.readings import Summaries
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database, attributed
from finops_pipeline.resources.postgres.sample_runs import sample_runs
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

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
def gpu_samples(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> dg.MaterializeResult:
    """One row per window and visible device: utilization, memory, power, whether estimated, and by which method."""
    rows = estimated = 0
    kinds: Counter[str] = Counter()
    with stage_of(context, source, watch) as stage:
        stage.begin(ledger)
        for cluster in stage.clusters:
            sampling = Sampling(lake, ledger, rules, cluster, source.now_ms())
            with closing(sampling.all(stage.hours)) as sampled:
                for hour, found in zip(stage.hours, sampled, strict=True):
                    rows += len(found.samples)
                    estimated += pc.sum(found.samples["estimated"]).as_py() or 0
                    kinds.update(texts(found.findings["kind"]).tolist())
                    stage.done(cluster, hour, f"{len(found.samples)} windows, {len(found.findings)} findings")
    share = round(estimated / rows, 6) if rows else 0.0
    return dg.MaterializeResult(
        metadata={"hours": span_text(stage.hours), "rows": rows, "estimated_share": share, "findings": kinds.total()},
        check_results=[
            dg.AssetCheckResult(
                passed=not kinds,
                check_name=CHECK,
                severity=dg.AssetCheckSeverity.WARN,
                metadata=dict(sorted(kinds.items())),
            )
        ],
    )


@dataclass(frozen=True)
class Sampling:
    """A cluster's windows and holdings, from the lake's readings to the lake and the ledger."""

    lake: Lake
    ledger: Database
    rules: AccountingConfig
    cluster: str
    now_ms: int

    def all(self, hours: Iterable[int]) -> Generator[HourSamples]:
        """Compute and store the hours of a run, in order."""
        around = Summaries(self.lake, self.rules, self.cluster)
        return abreast(lambda known: self.of(*known), ((hour, around.of(hour, self._named(hour))) for hour in hours))

    def _named(self, hour: int) -> frozenset[str]:
        """Pods of the hour's events that are called like the exporter's own, which is rare (A8)."""
        events = self.lake.read("workload_events", self.cluster, hour, ["pod"])
        pattern = self.rules.labels.exporter_pattern
        if events is None or not pc.any(pc.match_substring(events["pod"], pattern)).as_py():
            return NO_PODS
        return event_pods(self.lake.require("workload_events", self.cluster, hour), self.now_ms, self.rules)

    def of(self, hour: int, summaries: Mapping[int, pa.Table]) -> HourSamples:
        """Compute and store one hour's windows and holdings; `summaries` are those of the hours around it."""
        series = self.lake.require("dcgm_series", self.cluster, hour)
        records = {name: self.lake.require(name, self.cluster, hour) for name in EVENTS_AND_DEVICES}
        found = sample_hour(self.cluster, hour, series, summaries, records, self.now_ms, self.rules)
        with ThreadPoolExecutor(max_workers=1) as beside:
            self._publish(hour, found, beside.submit(self._land, hour, found))
        return found

    def _land(self, hour: int, found: HourSamples) -> None:
        for table, field in TABLES.items():
            self.lake.write(table, self.cluster, hour, getattr(found, field))
            reached(f"{table} landed")

    def _publish(self, hour: int, found: HourSamples, landing: Future[None]) -> None:
        """Nothing of it is committed unless it has landed."""
        with self.ledger.transaction() as connection:
            self.ledger.hour_lock(connection, self.cluster, instant_of(hour))
            for table, rows in (("gpu_sample_runs", sample_runs(found.samples)), ("findings", found.findings)):
                self.ledger.replace_hour(
                    connection, table, self.cluster, [instant_of(hour)], attributed(rows, self.rules.platform_tenant)
                )
                reached(f"{table} replaced")
            landing.result()


def stored(lake: Lake, cluster: str, hour: int) -> HourHoldings:
    """What `Sampling` stored and the next stage needs."""
    return HourHoldings(**{field: lake.require(table, cluster, hour) for table, field in HELD.items()})
