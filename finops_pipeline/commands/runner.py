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
from dagster._core.execution.plan.objects import ErrorSource
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG, MAX_RETRIES_TAG

from finops_pipeline.accounting.exact import HOUR_MS, hour_text, instant_of
from finops_pipeline.assets.hours import START
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
    """What a run of hours came to, read back from what it published."""

    cluster_hours: int
    booked: int
    provisional: int
    unpriced: int
    quarantined: int
    estimated_share: Decimal
    """of all device time of these hours"""
    months: tuple[str, ...]

    def doubts(self, limit: Decimal) -> list[str]:
        """Why it is not complete: more estimated than `limit`, unpriced rows, inputs set aside. Empty if it is."""
        found = {
            f"{self.unpriced} rows are unpriced (finops policies add)": self.unpriced,
            f"{self.quarantined} inputs are set aside (eai.quarantine)": self.quarantined,
            f"{self.estimated_share:.2%} of device time is estimated, more than {limit:.2%}": (
                self.estimated_share > limit
            ),
        }
        return [text for text, holds in found.items() if holds]


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """What several runs came to; of the estimated shares the highest."""
    return Outcome(
        cluster_hours=sum(o.cluster_hours for o in outcomes),
        booked=sum(o.booked for o in outcomes),
        provisional=sum(o.provisional for o in outcomes),
        unpriced=sum(o.unpriced for o in outcomes),
        quarantined=sum(o.quarantined for o in outcomes),
        estimated_share=max((o.estimated_share for o in outcomes), default=Decimal(0)),
        months=tuple(sorted({month for o in outcomes for month in o.months})),
    )


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


def check_hours(site: Site, first: datetime, past: datetime) -> None:
    """Refuse a span that is empty, not of whole hours, before the first partition, or not over yet (A2)."""
    for name, instant in (("--from", first), ("--to", past)):
        if instant != instant.replace(minute=0, second=0, microsecond=0):
            raise UsageError(f"{name} {instant:%Y-%m-%dT%H:%M:%SZ} is not a whole hour (A1)")
    if past <= first:
        raise UsageError(f"--to {past:%Y-%m-%dT%H:%MZ} is not after --from {first:%Y-%m-%dT%H:%MZ}")
    if first < START:
        raise UsageError(f"--from {first:%Y-%m-%dT%H:%MZ}: hours begin at {START:%Y-%m-%dT%H:%MZ}")
    now = site.source.now_ms()
    if past > instant_of(now):
        last = past - timedelta(hours=1)
        raise UsageError(
            f"the hour {last:%Y-%m-%dT%H:00:00Z} has not ended at {hour_text(now)}: ask for hours that are over (A2)"
        )


def run_hours(site: Site, instance: dg.DagsterInstance, first: datetime, past: datetime) -> Outcome:
    """Compute and publish the hours of `[first, past)` in one run, then the statements of the months they touch."""
    check_hours(site, first, past)
    before = last_arrival(site)
    last = past - timedelta(hours=1)
    tags = {ASSET_PARTITION_RANGE_START_TAG: f"{first:{KEY}}", ASSET_PARTITION_RANGE_END_TAG: f"{last:{KEY}}"}
    _run(site, instance, HOURLY, None, tags)
    months = months_of(first, past)
    for month in months:
        _run(site, instance, MONTHLY, f"{month}-01", {})
    return _outcome(site, first, past, before, months)


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


def _outcome(site: Site, first: datetime, past: datetime, before: int, months: tuple[str, ...]) -> Outcome:
    span = (list(site.source.clusters), first, past)
    hours = _one(
        site,
        "SELECT count(*) AS computed, count(*) FILTER (WHERE provisional) AS provisional,"
        " coalesce(sum(unpriced), 0) AS unpriced, coalesce(sum(quarantined), 0) AS quarantined"
        " FROM eai.hour_runs WHERE cluster = ANY(%s) AND hour >= %s AND hour < %s",
        span,
    )
    times = _one(
        site,
        "SELECT coalesce(sum(measured_seconds), 0) AS measured,"
        " coalesce(sum(measured_seconds + estimated_seconds + missing_seconds), 0) AS whole"
        " FROM eai.gpu_usage WHERE cluster = ANY(%s) AND hour >= %s AND hour < %s",
        span,
    )
    booked = _one(
        site,
        "SELECT count(*) AS events FROM eai.usage_events WHERE usage_type <> 'llm'"
        " AND cluster = ANY(%s) AND period_start >= %s AND period_start < %s AND seq > %s",
        (*span, before),
    )
    return Outcome(
        cluster_hours=hours["computed"],
        booked=booked["events"],
        provisional=hours["provisional"],
        unpriced=int(hours["unpriced"]),
        quarantined=int(hours["quarantined"]),
        estimated_share=1 - times["measured"] / times["whole"] if times["whole"] else Decimal(0),
        months=months,
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
    hours = [first + timedelta(hours=index) for index in range(int((past - first) / timedelta(milliseconds=HOUR_MS)))]
    return [hour for hour in hours if hour not in done]
