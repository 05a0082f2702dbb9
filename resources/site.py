"""One installation: where readings come from, where results go, and what time it is.

Assets get exactly one resource, this one. What belongs here: opening the doors that the settings name.
What does not: the doors themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import NOBODY, Bundle
from finops_pipeline.resources.clickhouse.client import Replica
from finops_pipeline.resources.lake.lake import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.database import open_database
from finops_pipeline.resources.prometheus.client import PrometheusDoor
from finops_pipeline.resources.series import window
from finops_pipeline.settings import Settings


class SeriesDoor(Protocol):
    """Where the DCGM series of a cluster come from."""

    def series(self, start_ms: int, end_ms: int, metrics: Sequence[str], *, may_be_gone: bool = False) -> pa.Table:
        """Raw samples with `start <= t < end`, schema DCGM_SERIES.

        A span before all that is kept is a SourceError, unless it `may_be_gone`.
        """
        ...


@dataclass(frozen=True)
class FileDoor:
    """The series of a bundle."""

    table: pa.Table = field(repr=False)

    def series(
        self,
        start_ms: int,
        end_ms: int,
        metrics: Sequence[str],  # noqa: ARG002
        *,
        may_be_gone: bool = False,  # noqa: ARG002
    ) -> pa.Table:
        return window(self.table, start_ms, end_ms)


def _untold(_stage: str, _hour: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Site:
    """Everything outside that the assets touch."""

    lake: Lake
    database: Database
    doors: Mapping[str, SeriesDoor]
    """by cluster; the first is the default one"""
    config: AccountingConfig
    now_ms: Callable[[], int]
    bundle: Bundle | None = None
    """set where the doors are a bundle's files, which never grow: then each run lands them afresh"""
    progress: Callable[[str, int], None] = _untold
    """told of each hour that a stage has finished"""
    retries: int = 3
    """how often a stage is tried again after a transient failure, beyond the tries of the door itself"""
    replica: Replica = field(default_factory=Replica)
    """where the ledger's copy in ClickHouse is"""
    default_cluster: str | None = None
    """whose rows without a cluster are, if not the first door's"""

    def is_default(self, cluster: str) -> bool:
        """Whether rows without a cluster are this one's."""
        return cluster == (self.default_cluster or next(iter(self.doors)))


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _tenant(settings: Settings) -> str:
    return str(settings.platform_tenant or NOBODY)


def _stopped(now: datetime) -> Callable[[], int]:
    return lambda: round(now.timestamp() * 1000)


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
    )


@contextmanager
def open_site(settings: Settings, bundle_folder: Path | None = None) -> Iterator[Site]:
    """The installation that the settings describe, or a bundle on top of its storage.

    Raises UsageError for what is not set or wrong, SourceError where a system cannot be reached.
    """
    lake, replica = Lake(settings.lake_folder), Replica.of(settings)
    if bundle_folder is not None:
        bundle = Bundle.open(bundle_folder)
        config, series, records = bundle.accounting(_tenant(settings)), bundle.series(), bundle.platform()
        clock = wall_clock_ms if bundle.now is None else _stopped(bundle.now)
        with open_database(settings) as database:
            database.follow_anchor()
            database.load_platform(bundle.cluster, records)
            yield Site(lake, database, {bundle.cluster: FileDoor(series)}, config, clock, bundle, replica=replica)
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
        yield Site(
            lake, database, doors, config, wall_clock_ms, replica=replica, default_cluster=settings.default_cluster
        )
