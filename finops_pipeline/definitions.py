"""The composition root: assets, jobs, schedules and the one resource, put together for Dagster.

What belongs here: wiring. What does not: what an asset does, or where a setting comes from.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG, MAX_RETRIES_TAG

from finops_pipeline.assets.allocation import gpu_cost_allocation
from finops_pipeline.assets.events import usage_events
from finops_pipeline.assets.records import SOURCES, platform_records
from finops_pipeline.assets.replica import usage_events_replica
from finops_pipeline.assets.samples import gpu_samples
from finops_pipeline.assets.series import dcgm_series
from finops_pipeline.assets.statement import gpu_allocation
from finops_pipeline.assets.usage import gpu_usage
from finops_pipeline.errors import UsageError
from finops_pipeline.notifications import held_but_idle_sensor
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.clickhouse.client import Replica
from finops_pipeline.resources.postgres.database import open_database
from finops_pipeline.resources.site import Site, open_site
from finops_pipeline.settings import CLUSTER_NAME, Settings, environment, load_settings

PREFIX = "FINOPS_ASSET_PREFIX"
"""Variable with the first part of the asset keys, where several code locations share a Dagster instance: to Dagster
equal keys are one asset, so that an hour computed by one location would be done for all."""


def under_prefix(prefix: str, *groups: Sequence[dg.AssetsDefinition]) -> Iterator[list[dg.AssetsDefinition]]:
    """Groups of assets, with `prefix` before their keys; the sources, which the locations share, stay as they are."""
    if prefix and not CLUSTER_NAME.fullmatch(prefix):
        raise UsageError(f"{PREFIX} is {prefix!r}: expected letters, digits, `.`, `_`, `-`, like a cluster's name")
    keys = {asset.key: asset.key.with_prefix(prefix) for group in groups for asset in group if prefix}
    for group in groups:
        yield [asset.with_attributes(asset_key_replacements=keys) if keys else asset for asset in group]


HOURLY, MONTHLY, REPLICA = under_prefix(
    environment().get(PREFIX, "").strip(),
    [dcgm_series, platform_records, gpu_samples, gpu_usage, gpu_cost_allocation, usage_events],
    [gpu_allocation],
    [usage_events_replica],
)
BOOKED = HOURLY[-1].key
"""The last stage: an hour that has it is computed."""
EXTERNAL = [
    dg.AssetSpec("prometheus", description="DCGM series of each cluster, raw samples.", group_name="sources"),
    *(
        dg.AssetSpec(name, description=f"Table eai.{name} of the platform.", group_name="sources")
        for name in SOURCES
        if name != "token_usage"
    ),
    dg.AssetSpec(
        "token_usage", description="Token counts of the inference gateway, in eai.usage_events.", group_name="sources"
    ),
]
"""Where the data comes from: the lineage starts there."""
LOOK_BACK_HOURS = 48
"""A schedule does not catch up after downtime by itself: each tick looks this far back."""
KEY = "%Y-%m-%d-%H:%M"
"""Partition key of an hour."""


PARTS = {
    "lake": "The Parquet lake: every table of every hour, as it was computed.",
    "ledger": "Postgres, schema `eai`: results, usage events, statements, audit log.",
    "source": "Where inputs come from: Prometheus and the platform's tables, or a bundle of files; and what time it is.",
    "rules": "The accounting's configuration: models, limits, labels, the platform tenant.",
    "replica": "The ledger's copy in ClickHouse.",
    "watch": "Who follows a run, and how often a stage is tried again.",
}
"""Resource -> what it is."""
FIELDS = {"ledger": "database", "rules": "config"}
"""Resource -> its field of `Site`, where the names differ."""


@dg.resource(description="The installation that the environment describes; the other resources are its parts.")
def configured_site(context: dg.InitResourceContext) -> Iterator[Site]:
    """The installation that the environment describes; opened when a run starts, closed when it ends."""
    with ExitStack() as opened:
        with _not_retried(context):
            settings = load_settings(environment())
            site = opened.enter_context(open_site(settings, settings.bundle))
        yield site


@contextmanager
def _not_retried(context: dg.InitResourceContext) -> Iterator[None]:
    """What a person must set right does not get right by itself: the daemon does not run it again."""
    try:
        yield
    except UsageError:
        if context.instance is not None and context.run is not None:
            context.instance.add_run_tags(context.run.run_id, {MAX_RETRIES_TAG: "0"})
        raise


def parts_of(site: Site) -> dict[str, object]:
    """The resources of the assets, from an opened installation."""
    return {name: getattr(site, FIELDS.get(name, name)) for name in PARTS}


def _part(name: str) -> dg.ResourceDefinition:
    def of(context: dg.InitResourceContext) -> object:
        return parts_of(context.resources.site)[name]

    return dg.ResourceDefinition(of, description=PARTS[name], required_resource_keys={"site"})


hourly_job = dg.define_asset_job(
    "hourly", selection=dg.AssetSelection.assets(*HOURLY), description="Account hours: from readings to booked events."
)
monthly_job = dg.define_asset_job(
    "monthly", selection=dg.AssetSelection.assets(*MONTHLY), description="Compute a month's statement."
)


replica_job = dg.define_asset_job(
    "replica", selection=dg.AssetSelection.assets(*REPLICA), description="Copy new events to ClickHouse, and compare."
)


@dg.schedule(
    job=hourly_job,
    cron_schedule="10 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def hourly_schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """At ten past each hour: the ended hours that are not computed, of the last two days and since the first that is.

    A stretch of them is one run, but the newest hour is its own: an older one whose readings are gone by now fails, and
    must not hold it up. A new installation starts with the newest hour; what is before is for a backfill. A bundle's hours end with it.
    """
    tick = context.scheduled_execution_time.astimezone(UTC)
    end = tick.replace(minute=0, second=0, microsecond=0)
    bundle = load_settings(environment()).bundle
    if bundle is not None:
        end = min(end, Bundle.open(bundle).end)
    *earlier, newest = (f"{end - timedelta(hours=back):{KEY}}" for back in range(LOOK_BACK_HOURS, 0, -1))
    done = context.instance.get_materialized_partitions(BOOKED)
    since = min(done, default=newest)
    asked = [*stretches([key for key in earlier if key >= since and key not in done])]
    asked += [(newest, newest)] if newest not in done else []
    if not asked:
        yield dg.SkipReason(f"the {LOOK_BACK_HOURS} hours before {end:{KEY}} UTC are computed")
    for first, last in asked:
        yield request(first, last, f"{tick:{KEY}}")


def request(first: str, last: str, reason: str) -> dg.RunRequest:
    """One run for the hours `first` to `last` (partition keys), both included."""
    if first == last:
        return dg.RunRequest(run_key=f"{first}@{reason}", partition_key=first)
    tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
    return dg.RunRequest(run_key=f"{first}..{last}@{reason}", tags=tags)


@dg.schedule(
    job=monthly_job,
    cron_schedule="0 3 2 * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def monthly_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """On the 2nd at 03:00: the month before."""
    tick = context.scheduled_execution_time.astimezone(UTC)
    last = tick.replace(day=1) - timedelta(days=1)
    return dg.RunRequest(partition_key=f"{last:%Y-%m}-01")


@dg.sensor(job=hourly_job, minimum_interval_seconds=300, default_status=dg.DefaultSensorStatus.RUNNING)
def recompute_sensor(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Computes hours again that were provisional (A16), or that records written since then belong to (A32).

    Of the clusters that are set here: another code location looks after its own.
    """
    settings = load_settings(environment())
    here = clusters_of(settings)
    with open_database(settings) as database:
        stale = [row for row in database.hours_to_recompute() if row["cluster"] in here]
    if not stale:
        yield dg.SkipReason("no published hour is out of date")
        return
    keys = sorted({f"{row['hour']:{KEY}}" for row in stale})
    context.log.info("%d hours to compute again, because %s", len(keys), sorted({row["reason"] for row in stale}))
    published = max(row["published_at"] for row in stale)
    for first, last in stretches(keys):
        yield request(first, last, f"{published.isoformat()}")


def clusters_of(settings: Settings) -> set[str]:
    """The clusters whose hours these settings compute."""
    return {Bundle.open(settings.bundle).cluster} if settings.bundle else set(settings.prometheus_urls)


def stretches(keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Sorted partition keys as runs of neighbouring hours, first and last."""
    hours = [datetime.strptime(key, KEY).replace(tzinfo=UTC) for key in keys]
    for _, group in groupby(enumerate(hours), key=lambda pair: pair[1] - pair[0] * timedelta(hours=1)):
        run = [hour for _, hour in group]
        yield f"{run[0]:{KEY}}", f"{run[-1]:{KEY}}"


@dg.asset_sensor(
    asset_key=BOOKED,
    job=replica_job,
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def replica_sensor(_context: dg.SensorEvaluationContext, _event: dg.EventLogEntry) -> dg.RunRequest | dg.SkipReason:
    """Brings the ClickHouse replica up to date after hours were booked, whichever run did it."""
    if not Replica.of(load_settings(environment())).automatic:
        return dg.SkipReason("FINOPS_REPLICA does not ask for it: `on`, or `auto` with EAI_CLICKHOUSE_URL")
    return dg.RunRequest()


def build(site: object = configured_site) -> dg.Definitions:
    """All definitions; `site` may be another resource, for tests and for bundles."""
    return dg.Definitions(
        assets=[*EXTERNAL, *HOURLY, *MONTHLY, *REPLICA],
        jobs=[hourly_job, monthly_job, replica_job],
        schedules=[hourly_schedule, monthly_schedule],
        sensors=[recompute_sensor, replica_sensor, held_but_idle_sensor],
        resources={"site": site, **{name: _part(name) for name in PARTS}},
        executor=dg.in_process_executor,
    )


definitions = build()
