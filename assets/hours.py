"""What all hourly assets share: partitions, the loop over clusters and hours, and how a failure reaches the UI."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from threading import Lock
from typing import Final, TypeVar

import dagster as dg

from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, hour_text, instant_of, ms_of
from finops_pipeline.errors import FinopsError, SourceError, UsageError
from finops_pipeline.resources.home import first_hour
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source
from finops_pipeline.settings import environment

for _parameter in ("backfill_policy", "allow_nonexistent_upstream_partitions"):
    # Used on purpose although Dagster calls them beta; an upgrade that changes them shows in the tests.
    warnings.filterwarnings("ignore", message=f"Parameter `{_parameter}`", category=dg.BetaWarning)

Item = TypeVar("Item")
Result = TypeVar("Result")

HOURS_AT_ONCE: Final = 2
"""Hours of one cluster that are computed beside each other, each in some 250 MiB for 1,000 GPUs."""
START = first_hour(environment()).replace(day=1, hour=0)
"""First instant of the first partition, of hours and months alike: that of the installation's first month."""
HOURS = dg.HourlyPartitionsDefinition(start_date=START)
MONTHS = dg.MonthlyPartitionsDefinition(start_date=START, end_offset=1)
"""The running month is there too: its statement is open."""
SINGLE_RUN = dg.BackfillPolicy.single_run()
"""A range of hours is one run, and gives what a run for each hour gives."""


RETRY_SECONDS: Final = 10
"""Before a stage is tried again after a transient failure."""
LOG_SECONDS: Final = 1.0
"""Lines of the log are kept this long and written together: each writing costs Dagster some 15 ms."""


class Stage:
    """One stage of a run: its hours, the loop over them, and what is logged of each."""

    def __init__(self, context: dg.AssetExecutionContext, hours: list[int], source: Source, watch: Watch) -> None:
        self.name = context.asset_key.path[-1]
        self.hours = hours
        self.clusters = source.clusters
        self.run_id = context.run.root_run_id or context.run.run_id
        """the run that this one tries again, if it does: its stages go on with what that one read"""
        self._log, self._watch = context.log, watch
        self._lines: list[str] = []
        self._written, self._lock = time.monotonic(), Lock()

    def begin(self, ledger: Database) -> None:
        """Note that the hours are being worked on, so that they are out of date until this run has published them (A32)."""
        ledger.begin_stage(self.clusters, [instant_of(hour) for hour in self.hours], self.run_id)

    def each(
        self, work: Callable[[str, int], Result], line: Callable[[Result], str] = lambda _: "done"
    ) -> Generator[Result]:
        """What `work` makes of each hour of each cluster, in order; `line` is what the log says of it."""
        for cluster in self.clusters:
            for hour in self.hours:
                result = work(cluster, hour)
                self.done(cluster, hour, line(result))
                yield result

    def done(self, cluster: str, hour: int, what: str) -> None:
        """An hour of a cluster is finished: for whoever watches, and a line of the log. From any thread."""
        with self._lock:
            self._lines.append(f"{cluster}, {hour_text(hour)}: {what}")
        self._watch.progress(self.name, hour)
        if time.monotonic() - self._written > LOG_SECONDS:
            self.write_log()

    def write_log(self) -> None:
        """Write the lines that are kept."""
        with self._lock:
            lines, self._lines = self._lines, []
            self._written = time.monotonic()
        if lines:
            self._log.info("\n".join(lines))


@contextmanager
def stage_of(context: dg.AssetExecutionContext, source: Source, watch: Watch) -> Iterator[Stage]:
    """The stage that an asset is: its hours have ended, its failures reach Dagster as it should treat them."""
    with failing_clearly(watch):
        stage = Stage(context, hours_of(context, source), source, watch)
        try:
            yield stage
        finally:
            stage.write_log()


def hours_of(context: dg.AssetExecutionContext, source: Source) -> list[int]:
    """The hours of the run, by their start in epoch ms; an hour that has not ended is refused (A2)."""
    window = context.partition_time_window
    hours = list(range(ms_of(window.start), ms_of(window.end), HOUR_MS))
    now = source.now_ms()
    late = [hour for hour in hours if hour + HOUR_MS > now]
    if late:
        raise UsageError(
            f"the hour {hour_text(late[0])} has not ended at {hour_text(now)}: ask for it after it has (A2)"
        )
    return hours


@contextmanager
def failing_clearly(watch: Watch) -> Iterator[None]:
    """Errors as Dagster should treat them: another try for transient ones, a plain failure for the others."""
    try:
        yield
    except SourceError as error:
        if error.transient and watch.retries:
            raise dg.RetryRequested(max_retries=watch.retries, seconds_to_wait=RETRY_SECONDS) from error
        raise dg.Failure(str(error), allow_retries=False) from error
    except (FinopsError, AccountingError) as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def abreast(work: Callable[[Item], Result], hours: Iterable[Item], at_once: int = HOURS_AT_ONCE) -> Generator[Result]:
    """What `work` makes of each hour, in order, a few hours at a time; memory holds no more than these and one result.

    The first failure, in the order of the hours, is raised once the hours that have begun are done.
    """
    begun: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="hour") as pool:
        try:
            for hour in hours:
                if len(begun) == at_once:
                    yield begun.popleft().result()
                begun.append(pool.submit(work, hour))
            while begun:
                yield begun.popleft().result()
        finally:
            for waiting in begun:
                waiting.cancel()


def span_text(hours: Sequence[int]) -> str:
    """The hours of a run for a person: first to end."""
    return f"{hour_text(hours[0])} to {hour_text(hours[-1] + HOUR_MS)}"


def gpu_hours(seconds: Decimal) -> float:
    """GPU-hours for a plot or a table of the UI, never for money."""
    return round(float(seconds) / 3600, 3)
