"""One installation: where readings come from, where results go, and what time it is.

What belongs here: opening the doors that the settings name. What does not: the doors themselves, and how a source of
live data differs from files (`source`). Assets get its parts as resources of their own, each by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import NOBODY, Bundle
from finops_pipeline.resources.clickhouse.client import Replica
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.database import open_database
from finops_pipeline.resources.prometheus.client import PrometheusDoor
from finops_pipeline.resources.source import BundleSource, LiveSource, Source, clock_of, wall_clock_ms
from finops_pipeline.settings import Settings


def _nothing_to_check(_source: Source) -> None:
    """Whatever the source is, it will do."""


def _nobody_watches(_stage: str, _hour: int) -> None:
    """Nothing is reported."""


@dataclass(frozen=True)
class Watch:
    """Who follows a run, and what becomes of a stage that failed."""

    progress: Callable[[str, int], None] = _nobody_watches
    """called with each hour that a stage has finished"""
    retries: int = 3
    """how often a stage is tried again after a transient failure, beyond the tries of the door itself"""


@dataclass(frozen=True)
class Site:
    """Everything outside that the assets touch."""

    lake: Lake
    database: Database
    source: Source
    config: AccountingConfig
    replica: Replica = field(default_factory=Replica)
    """where the ledger's copy in ClickHouse is"""
    watch: Watch = field(default_factory=Watch)


def prometheus_door(settings: Settings, cluster: str) -> PrometheusDoor:
    """The door to the Prometheus of a configured cluster."""
    token = settings.bearer_token()
    return PrometheusDoor(
        cluster=cluster,
        url=settings.prometheus_urls[cluster],
        bearer_token=token.get_secret_value() if token else None,
        username=settings.prometheus_user,
        password=settings.prometheus_password.get_secret_value() if settings.prometheus_password else None,
        ca_file=settings.prometheus_ca_file,
        thanos=settings.prometheus_thanos,
        timeout=float(settings.prometheus_timeout_seconds),
        patience=float(settings.prometheus_patience_seconds),
    )


@contextmanager
def open_site(
    settings: Settings, bundle_folder: Path | None = None, *, check: Callable[[Source], None] = _nothing_to_check
) -> Iterator[Site]:
    """The installation that the settings describe, or a bundle on top of its storage.

    `check` may refuse what is asked of the source; nothing of a bundle that is refused, by it or for what is in the
    files, is left behind. Raises UsageError for what is not set or wrong, SourceError where a system cannot be reached.
    """
    lake, replica = Lake(settings.lake_folder), Replica.of(settings)
    if bundle_folder is not None:
        bundle = Bundle.open(bundle_folder)
        config = replace(bundle.accounting(str(settings.platform_tenant or NOBODY)), priced=settings.pricing == "on")
        readings, records = bundle.series(), bundle.platform()
        with open_database(settings) as database:
            source = BundleSource(bundle, readings, database, clock_of(bundle))
            check(source)
            database.follow_anchor()
            database.load_platform(bundle.cluster, records, now=bundle.now)
            yield Site(lake, database, source, config, replica)
        return
    if not settings.prometheus_urls:
        raise UsageError(
            "FINOPS_PROMETHEUS_URLS is not set: name at least one cluster, like prod=http://prometheus:9090, "
            "or run a bundle of files (finops run --bundle DIR)"
        )
    config = settings.accounting()
    doors = {cluster: prometheus_door(settings, cluster) for cluster in settings.prometheus_urls}
    with open_database(settings) as database:
        database.follow_anchor()
        live = LiveSource(doors, database, wall_clock_ms, settings.default_cluster)
        check(live)
        yield Site(lake, database, live, config, replica)
