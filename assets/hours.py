"""What all hourly assets share: partitions, the hours of a run, and how a failure reaches the UI."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, TypeVar

import dagster as dg

from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, hour_text
from finops_pipeline.errors import FinopsError, SourceError, UsageError
from finops_pipeline.resources.site import Site

for _parameter in ("backfill_policy", "allow_nonexistent_upstream_partitions"):
    # Used on purpose although Dagster calls them beta; an upgrade that changes them shows in the tests.
    warnings.filterwarnings("ignore", message=f"Parameter `{_parameter}`", category=dg.BetaWarning)

Item = TypeVar("Item")
Result = TypeVar("Result")

HOURS_AT_ONCE: Final = 2
"""Hours of one cluster that are computed beside each other, each in some 250 MiB for 1,000 GPUs."""
START = datetime(2020, 1, 1, tzinfo=UTC)
"""First instant of the first partition, of hours and months alike."""
HOURS = dg.HourlyPartitionsDefinition(start_date=START)
MONTHS = dg.MonthlyPartitionsDefinition(start_date=START, end_offset=1)
"""The running month is there too: its statement is open."""
SINGLE_RUN = dg.BackfillPolicy.single_run()
"""A range of hours is one run, and gives what a run for each hour gives."""


def hours_of(context: dg.AssetExecutionContext, site: Site) -> list[int]:
    """The hours of the run, by their start in epoch ms; an hour that has not ended is refused (A2)."""
    window = context.partition_time_window
    hours = list(range(_ms(window.start), _ms(window.end), HOUR_MS))
    now = site.now_ms()
    late = [hour for hour in hours if hour + HOUR_MS > now]
    if late:
        raise UsageError(
            f"the hour {hour_text(late[0])} has not ended at {hour_text(now)}: ask for it after it has (A2)"
        )
    return hours


def _ms(instant: datetime) -> int:
    return int(instant.timestamp()) * 1000


@contextmanager
def failing_clearly(site: Site) -> Iterator[None]:
    """Errors as Dagster should treat them: another try for transient ones, a plain failure for the others."""
    try:
        yield
    except SourceError as error:
        if error.transient and site.retries:
            raise dg.RetryRequested(max_retries=site.retries, seconds_to_wait=10) from error
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
