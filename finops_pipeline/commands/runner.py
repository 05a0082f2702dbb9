"""Running hours and months in this process, through the Dagster assets, and reporting how it went.

The same assets, instance and events as the UI's; only the executor is this process, which saves the daemon.
What belongs here: launching and summing up. What does not: arguments and printing (`cli`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy.exc
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.execution.plan.objects import ErrorSource
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG, MAX_RETRIES_TAG

from finops_pipeline.accounting.exact import instant_of
from finops_pipeline.assets.hours import START
from finops_pipeline.commands.spans import Span, check_span, hours_of
from finops_pipeline.definitions import EXTERNAL, HOURLY, KEY, MONTHLY, REPLICA, parts_of
from finops_pipeline.errors import FinopsError, UsageError
from finops_pipeline.resources.site import Site
from finops_pipeline.settings import Settings

STAGES = tuple(asset.key.path[-1] for asset in HOURLY)
PROCESS_TAG = "finops/process"
"""Host and process that run it, on a run that no launcher looks after."""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
INSTANCE_SETTINGS = Path(__file__).parents[1] / "dagster.yaml"


@dataclass(frozen=True)
class Outcome:
    """What runs of hours came to, read back from what they published."""

    cluster_hours: int
    booked: int
    provisional: int
    unpriced: int
    quarantined: int
    """inputs that were set aside, each once"""
    device_seconds: Decimal
    estimated_seconds: Decimal
    missing_seconds: Decimal
    """of them: nothing is known of them, not even an estimate"""
    unattributed: tuple[str, ...]
    """pods that used GPUs and match no deployment"""
    months: tuple[str, ...]

    @property
    def estimated_share(self) -> Decimal:
        """Part of the device time that is estimated."""
        return self.estimated_seconds / self.device_seconds if self.device_seconds else Decimal(0)

    @property
    def missing_share(self) -> Decimal:
        """Part of the device time that is missing."""
        return self.missing_seconds / self.device_seconds if self.device_seconds else Decimal(0)

    @property
    def known_as(self) -> str:
        """How much of the device time is not measured, for a person."""
        missing = f", {self.missing_share:.2%} missing" if self.missing_seconds else ""
        return f"{self.estimated_share:.2%} of device time estimated{missing}"

    def doubts(self, limit: Decimal) -> list[str]:
        """Why it is not complete: more not measured than `limit`, unpriced rows, inputs set aside. Empty if it is."""
        found = {
            f"{self.unpriced} rows are unpriced (finops policies add)": self.unpriced,
            f"{self.quarantined} inputs are set aside (eai.quarantine)": self.quarantined,
            f"{self.known_as}, more than {limit:.2%}": self.estimated_share + self.missing_share > limit,
        }
        return [text for text, holds in found.items() if holds]


def dagster_home(settings: Settings) -> Path:
    """The folder of the Dagster instance under FINOPS_HOME, with its settings in place."""
    folder = (settings.home / "dagster").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "dagster.yaml").exists():
        shutil.copyfile(INSTANCE_SETTINGS, folder / "dagster.yaml")
    return folder


@contextmanager
def instance_of(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The instance whose runs and events the UI shows. FinopsError where its storage cannot be written."""
    try:
        with _opened(settings) as instance:
            _end_killed_runs(instance)
            yield instance
    except OSError as error:
        raise FinopsError(
            f"{error.filename or settings.home}: {error.strerror}: make room under FINOPS_HOME"
        ) from error
    except sqlalchemy.exc.DatabaseError as error:
        if not isinstance(error.orig, sqlite3.Error):
            raise
        raise FinopsError(
            f"Dagster's storage under {settings.home}: {error.orig}: make room, or move it away"
        ) from error


def _opened(settings: Settings) -> dg.DagsterInstance:
    """One process at a time: two that create Dagster's tables at once would fail each other."""
    (settings.home / "dagster").mkdir(parents=True, exist_ok=True)
    with (settings.home / "dagster" / "start.lock").open("ab") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return dg.DagsterInstance.from_config(str(dagster_home(settings)))


def _end_killed_runs(instance: dg.DagsterInstance) -> None:
    """A run whose process was killed would count as running for hours, and hold up the queue of the UI's daemon."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        host, _, pid = run.tags.get(PROCESS_TAG, "").rpartition(":")
        if host == socket.gethostname() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            instance.report_run_failed(run, f"Its process {pid} was killed.")


def _process(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def run_hours(site: Site, instance: dg.DagsterInstance, first: datetime, past: datetime) -> Outcome:
    """Compute and publish the hours of `[first, past)` in one run, then the statements of the months they touch."""
    check_span(site.source, first, past)
    if first < START:
        raise UsageError(
            f"{first:%Y-%m-%dT%H:%MZ} is before {START:%Y-%m-%dT%H:%MZ}, where this installation's hours begin: "
            "set FINOPS_FIRST_HOUR to it"
        )
    before = last_arrival(site)
    last = past - timedelta(hours=1)
    tags = {ASSET_PARTITION_RANGE_START_TAG: f"{first:{KEY}}", ASSET_PARTITION_RANGE_END_TAG: f"{last:{KEY}}"}
    _run(site, instance, HOURLY, None, tags)
    for month in months_of(first, past):
        _run(site, instance, MONTHLY, f"{month}-01", {})
    return outcome_of(site, [(first, past)], before)


def run_replica(site: Site, instance: dg.DagsterInstance) -> None:
    """Bring the ledger's copy in ClickHouse up to date, whether or not every run does."""
    _run(site, instance, REPLICA, None, {})


def months_of(first: datetime, past: datetime) -> tuple[str, ...]:
    """Months that hours of `[first, past)` lie in, like `2026-10`."""
    last = past - timedelta(hours=1)
    count = (last.year - first.year) * 12 + last.month - first.month + 1
    starts = [first.year * 12 + first.month - 1 + offset for offset in range(count)]
    return tuple(f"{start // 12:04d}-{start % 12 + 1:02d}" for start in starts)


def _run(
    site: Site,
    instance: dg.DagsterInstance,
    assets: Sequence[dg.AssetsDefinition],
    partition_key: str | None,
    tags: dict[str, str],
) -> None:
    as_of = max(instant_of(site.source.now_ms()), datetime.now(UTC))
    with partition_loading_context(effective_dt=as_of):  # a bundle's time may be ahead of the machine's
        result = dg.materialize(
            [*EXTERNAL, *assets],
            instance=instance,
            resources=parts_of(replace(site, watch=replace(site.watch, retries=0))),
            partition_key=partition_key,
            tags={**tags, PROCESS_TAG: _process(os.getpid()), MAX_RETRIES_TAG: "0"},
            run_config=QUIET,
            raise_on_error=False,
        )
    if not result.success:
        raise _failure(result)


def _failure(result: dg.ExecuteInProcessResult) -> BaseException:
    """The error of the step that failed: what a user can fix as one line, a defect with its traceback."""
    for event in result.all_events:
        failure = event.step_failure_data if event.is_step_failure else None
        if failure is not None and failure.error_source == ErrorSource.INTERRUPT:
            return KeyboardInterrupt()
        if failure is not None and failure.user_failure_data is not None:
            return FinopsError(failure.user_failure_data.description or f"{event.step_key} failed")
        if failure is not None and failure.error is not None:
            return RuntimeError(f"{event.step_key}: {failure.error.to_string()}")
    return RuntimeError("the run failed before any step did")


def last_arrival(site: Site) -> int:
    """The ledger's high-water mark."""
    return int(_one(site, "SELECT coalesce(max(seq), 0) AS seq FROM eai.usage_events", ())["seq"])


def _one(site: Site, statement: str, params: tuple[object, ...]) -> dict[str, Any]:
    """The only row of an aggregate."""
    return dict(site.database.query(statement, params).to_pylist()[0])


def outcome_of(site: Site, spans: Sequence[Span], before: int) -> Outcome:
    """What the hours of these spans came to; `before` is the ledger's high-water mark before they were run."""
    hours = [hour for first, past in spans for hour in hours_of(first, past)]
    at = (list(site.source.clusters), hours)
    found = _one(
        site,
        "SELECT count(*) AS computed, count(*) FILTER (WHERE provisional) AS provisional,"
        " coalesce(sum(unpriced), 0)::bigint AS unpriced"
        " FROM eai.hour_runs WHERE cluster = ANY(%s) AND hour = ANY(%s)",
        at,
    )
    aside = _one(
        site,
        "SELECT count(*) AS inputs FROM (SELECT DISTINCT cluster, source, key FROM eai.quarantine"
        " WHERE cluster = ANY(%s) AND hour = ANY(%s)) AS q",
        at,
    )
    times = _one(
        site,
        "SELECT coalesce(sum(estimated_seconds), 0) AS estimated, coalesce(sum(missing_seconds), 0) AS missing,"
        " coalesce(sum(measured_seconds + estimated_seconds + missing_seconds), 0) AS whole,"
        " coalesce(array_agg(DISTINCT workload_id) FILTER (WHERE basis = 'samples' AND NOT attributed), '{}') AS pods"
        " FROM eai.gpu_usage WHERE cluster = ANY(%s) AND hour = ANY(%s)",
        at,
    )
    booked = _one(
        site,
        "SELECT count(*) AS events FROM eai.usage_events WHERE usage_type <> 'llm'"
        " AND cluster = ANY(%s) AND period_start = ANY(%s) AND seq > %s",
        (*at, before),
    )
    return Outcome(
        cluster_hours=found["computed"],
        booked=booked["events"],
        provisional=found["provisional"],
        unpriced=found["unpriced"],
        quarantined=aside["inputs"],
        device_seconds=times["whole"],
        estimated_seconds=times["estimated"],
        missing_seconds=times["missing"],
        unattributed=tuple(sorted(times["pods"])),
        months=tuple(sorted({month for span in spans for month in months_of(*span)})),
    )


def booked_since(site: Site, seq: int) -> list[str]:
    """Documents of the events booked after arrival `seq`, in order, as canonical JSON with their hash."""
    found = site.database.query(
        "SELECT document, content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' AND seq > %s ORDER BY seq",
        (seq,),
    )
    return [f'{row["document"][:-1]},"content_sha256":"{row["content_sha256"]}"}}' for row in found.to_pylist()]


def missing_hours(site: Site, first: datetime, past: datetime) -> list[datetime]:
    """Hours of `[first, past)` that are not published for every cluster, only provisionally (A16), or out of date."""
    clusters = list(site.source.clusters)
    with site.database.transaction(snapshot=True) as connection:
        rows = connection.execute(
            "SELECT hour FROM eai.hour_runs WHERE cluster = ANY(%s) AND hour >= %s AND hour < %s AND NOT provisional"
            " GROUP BY hour HAVING count(*) = %s",
            (clusters, first, past, len(clusters)),
        ).fetchall()
    stale = {row["hour"] for row in site.database.hours_to_recompute() if row["cluster"] in site.source.clusters}
    done = {row[0].astimezone(UTC) for row in rows} - stale
    return [hour for hour in hours_of(first, past) if hour not in done]
