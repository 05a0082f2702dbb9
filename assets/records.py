"""Second stage: what the platform recorded, as it was read for each hour (A3, A5, A22).

It lands in the lake so that a result can be explained and recomputed from what was known then.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
import pyarrow as pa

from finops_pipeline.accounting.arrays import texts, whole
from finops_pipeline.accounting.config import REACH_HOURS
from finops_pipeline.accounting.exact import HOUR_MS, instant_of
from finops_pipeline.accounting.holding.arrivals import first_arrivals
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.money.tokens import clean_tokens
from finops_pipeline.accounting.records import events_of_hour, tokens_of_hour, within
from finops_pipeline.accounting.telemetry.summaries import SEPARATOR
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, failing_clearly, hours_of, span_text
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.site import Site

ALL_TIME = (datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""A bundle is read whole, so that whatever is wrong in it is set aside."""
WHOLE_TABLES = ("deployments", "allocation_policies", "deployment_storage", "gpu_inventory")
DAY_HOURS = 24
SOURCES = ("workload_events", "token_usage", *WHOLE_TABLES)


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"postgres", "parquet"},
    deps=["dcgm_series", *SOURCES],
)
def platform_records(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One copy per hour of the lifecycle events, tokens, deployments, policies, storage and inventory it needs."""
    with failing_clearly(site):
        hours = hours_of(context, site)
        rejected = sum(land_records(site, cluster, hours) for cluster in site.doors)
    return dg.MaterializeResult(metadata={"hours": span_text(hours), "quarantined": rejected})


def land_records(site: Site, cluster: str, hours: Sequence[int]) -> int:
    """Read the run's days one after the other, cut them into hours; how many records were set aside (A5)."""
    step = len(hours) if site.bundle else DAY_HOURS
    return sum(_land_some(site, cluster, hours, hours[at : at + step]) for at in range(0, len(hours), step))


def _land_some(site: Site, cluster: str, run: Sequence[int], hours: Sequence[int]) -> int:
    """Some hours of a run, from one look at the database."""
    now, read_at = site.now_ms(), site.database.clock()
    reach = range(hours[0] - REACH_HOURS * HOUR_MS, hours[-1] + (REACH_HOURS + 1) * HOUR_MS, HOUR_MS)
    labels = {hour: _labels(site, cluster, hour) for hour in reach}
    first, past = ALL_TIME if site.bundle else (instant_of(hours[0]), instant_of(hours[-1] + HOUR_MS))
    read = site.database.read_platform(
        cluster,
        first,
        past,
        default_cluster=site.is_default(cluster),
        labels=frozenset().union(*labels.values()),
        billable=site.config.billable_states,
    )
    count = 0
    events, _ = first_arrivals(read["workload_events"])
    tokens, bad_tokens = clean_tokens(read["token_usage"], now)
    bad_events = running_intervals(read["workload_events"], now, site.config).quarantine
    for hour in hours:
        begin, end = _span_of_rejections(site, hour, run)
        rejected = pa.concat_tables(
            [
                within(bad_events, "key", read["workload_events"], begin, end),
                within(bad_tokens, "key", read["token_usage"], begin, end),
            ]
        )
        count += len(rejected)
        near = (labels[hour + offset * HOUR_MS] for offset in range(-REACH_HOURS, REACH_HOURS + 1))
        mine = events_of_hour(events, hour, frozenset().union(*near), site.config)
        site.lake.write("workload_events", cluster, hour, mine)
        site.lake.write("token_usage", cluster, hour, tokens_of_hour(tokens, hour))
        site.lake.write("rejected_records", cluster, hour, rejected)
        reached("records half landed")
        for table in WHOLE_TABLES:
            site.lake.write(table, cluster, hour, read[table])
        site.progress("platform_records", hour)
    site.database.note_read(cluster, [instant_of(hour) for hour in hours], read_at)
    return count


def _span_of_rejections(site: Site, hour: int, hours: Sequence[int]) -> tuple[int, int]:
    """A record set aside shows in its own hour; in a bundle, those beyond the run show in its first or last hour."""
    far = 1 << 60
    begin = -far if site.bundle and hour == hours[0] else hour
    return begin, far if site.bundle and hour == hours[-1] else hour + HOUR_MS


def _labels(site: Site, cluster: str, hour: int) -> frozenset[str]:
    """Every workload label of an hour, as far as it has landed."""
    summary = site.lake.read("dcgm_summary", cluster, hour, ["run_labels"])
    if summary is None:
        return frozenset()
    sets = texts(whole(summary["run_labels"]).flatten().unique())
    return frozenset(label for joined in sets for label in joined.split(SEPARATOR))
