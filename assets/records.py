"""Second stage: what the platform recorded, as it was read for each hour (A3, A5, A22).

It lands in the lake so that a result can be explained and recomputed from what was known then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg
import pyarrow as pa

from finops_pipeline.accounting.config import REACH_HOURS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, instant_of
from finops_pipeline.accounting.holding.arrivals import first_arrivals
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.tokens import clean_tokens
from finops_pipeline.accounting.records import deployments_of_hour, events_of_hour, tokens_of_hour, within
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, span_text, stage_of
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.readings import labels_of
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

WHOLE_TABLES = ("deployments", "allocation_policies", "deployment_storage", "gpu_inventory")
SOURCES = ("workload_events", "token_usage", *WHOLE_TABLES)


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"postgres", "parquet"},
    deps=["dcgm_series", *SOURCES],
)
def platform_records(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> dg.MaterializeResult:
    """One copy per hour of the lifecycle events, tokens, deployments, policies, storage and inventory it needs."""
    with stage_of(context, source, watch) as stage:
        reading = Reading(lake, ledger, source, rules, stage.run_id)
        rejected = sum(reading.of(cluster, stage.hours, stage.done) for cluster in stage.clusters)
    return dg.MaterializeResult(metadata={"hours": span_text(stage.hours), "quarantined": rejected})


@dataclass(frozen=True)
class Reading:
    """The platform's records on their way to the lake."""

    lake: Lake
    ledger: Database
    source: Source
    rules: AccountingConfig
    run_id: str = ""

    def of(self, cluster: str, hours: Sequence[int], done: Callable[[str, int, str], None] = lambda *_: None) -> int:
        """Read what a run's hours need, a batch after the other, cut into hours; how many records were set aside (A5)."""
        return sum(self._batch(cluster, hours, batch, done) for batch in self.source.batches(hours))

    def _batch(
        self, cluster: str, run: Sequence[int], hours: Sequence[int], done: Callable[[str, int, str], None]
    ) -> int:
        """Some hours of a run, from one look at the database."""
        now = self.source.now_ms()
        self.ledger.begin_reading(cluster, [instant_of(hour) for hour in hours], self.run_id)
        reach = range(hours[0] - REACH_HOURS * HOUR_MS, hours[-1] + (REACH_HOURS + 1) * HOUR_MS, HOUR_MS)
        labels = {hour: labels_of(self.lake, self.rules, cluster, hour) for hour in reach}
        known = frozenset[str]().union(*labels.values())
        read = self.source.records(cluster, hours, known, self.rules.billable_states)
        if not self.rules.priced:
            read = {**read, "allocation_policies": read["allocation_policies"].slice(0, 0)}
        count = 0
        events, _ = first_arrivals(read["workload_events"])
        tokens, bad_tokens = clean_tokens(read["token_usage"], read["deployments"], now)
        bad_events = running_intervals(read["workload_events"], now, self.rules).quarantine
        for hour in hours:
            begin, end = self.source.set_aside_in(hour, run)
            rejected = pa.concat_tables(
                [
                    within(bad_events, "key", read["workload_events"], begin, end),
                    within(bad_tokens, "key", read["token_usage"], begin, end),
                ]
            )
            count += len(rejected)
            near = (labels[hour + offset * HOUR_MS] for offset in range(-REACH_HOURS, REACH_HOURS + 1))
            mine = events_of_hour(events, hour, frozenset().union(*near), self.rules)
            self.lake.write("workload_events", cluster, hour, mine)
            self.lake.write("token_usage", cluster, hour, tokens_of_hour(tokens, hour))
            self.lake.write("rejected_records", cluster, hour, rejected)
            reached("records half landed")
            for table in WHOLE_TABLES:
                whole = read[table]
                self.lake.write(
                    table, cluster, hour, deployments_of_hour(whole, hour) if table == "deployments" else whole
                )
            done(cluster, hour, f"{len(mine)} events, {len(rejected)} records set aside")
        return count
