"""Where the inputs of the hours come from: readings, and what the platform recorded; and what time it is there.

What belongs here: how a Prometheus beside the platform's tables differs from a bundle of files, all of it. What does
not: the doors themselves (`prometheus`, `bundle`, `postgres`), and what is made of the inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from finops_pipeline.accounting.exact import HOUR_MS, instant_of, ms_of
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.series import window
from finops_pipeline.settings import Settings

if TYPE_CHECKING:
    from finops_pipeline.resources.lake.store import Lake

FAR_MS: Final = 1 << 60
"""Before it and after its negative lies every instant."""
ALL_TIME: Final = (datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
DAY_HOURS: Final = 24

Clock = Callable[[], int]
"""What time it is, in UTC milliseconds."""


class SeriesDoor(Protocol):
    """Where the DCGM series of a cluster come from."""

    def series(self, start_ms: int, end_ms: int, metrics: Sequence[str], *, may_be_gone: bool = False) -> pa.Table:
        """Raw samples with `start <= t < end`, schema DCGM_SERIES.

        A span before all that is kept is a SourceError, unless it `may_be_gone`.
        """
        ...


class Source(Protocol):
    """Where the inputs of the hours come from."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters whose hours are computed."""
        ...

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """The hours that it has, half-open; None where they go on with the clock."""
        ...

    def now_ms(self) -> int:
        """What time it is (A2)."""
        ...

    def is_default(self, cluster: str) -> bool:
        """Whether rows without a cluster are this one's."""
        ...

    def series(
        self, cluster: str, start_ms: int, end_ms: int, metrics: Sequence[str], *, may_be_gone: bool = False
    ) -> pa.Table:
        """Raw samples of a cluster with `start <= t < end`, as `SeriesDoor.series`."""
        ...

    def landed(self, lake: Lake, cluster: str) -> set[int]:
        """Hours whose readings need not be asked for again because the lake has them."""
        ...

    def readings_end(self) -> int:
        """Instant (UTC milliseconds) up to which it can have readings by now; an hour that ends by then is whole."""
        ...

    def batches(self, hours: Sequence[int]) -> list[Sequence[int]]:
        """The hours of a run, in order, as they share one look at the records."""
        ...

    def records(
        self, cluster: str, hours: Sequence[int], labels: Collection[str], billable: Collection[str]
    ) -> dict[str, pa.Table]:
        """What the platform recorded that these hours can need, as `Database.read_platform`."""
        ...

    def set_aside_in(self, hour: int, run: Sequence[int]) -> tuple[int, int]:
        """Half-open span (UTC milliseconds) of the records that, set aside, show in this hour of a run (A5)."""
        ...


@dataclass(frozen=True)
class LiveSource:
    """The Prometheus of each cluster, and the platform's tables in Postgres. It goes on with the clock."""

    doors: Mapping[str, SeriesDoor]
    """by cluster"""
    database: Database
    clock: Clock
    default_cluster: str | None = None
    """whose rows without a cluster are, if not the first door's"""

    @property
    def clusters(self) -> tuple[str, ...]:
        return tuple(self.doors)

    @property
    def span(self) -> None:
        return None

    def now_ms(self) -> int:
        return self.clock()

    def is_default(self, cluster: str) -> bool:
        return cluster == (self.default_cluster or next(iter(self.doors)))

    def series(
        self, cluster: str, start_ms: int, end_ms: int, metrics: Sequence[str], *, may_be_gone: bool = False
    ) -> pa.Table:
        return self.doors[cluster].series(start_ms, end_ms, metrics, may_be_gone=may_be_gone)

    def landed(self, lake: Lake, cluster: str) -> set[int]:
        return set(lake.hours("dcgm_series", cluster))

    def readings_end(self) -> int:
        return self.clock()

    def batches(self, hours: Sequence[int]) -> list[Sequence[int]]:
        """A day at a time: memory stays bounded."""
        return [hours[at : at + DAY_HOURS] for at in range(0, len(hours), DAY_HOURS)]

    def records(
        self, cluster: str, hours: Sequence[int], labels: Collection[str], billable: Collection[str]
    ) -> dict[str, pa.Table]:
        return self.database.read_platform(
            cluster,
            instant_of(hours[0]),
            instant_of(hours[-1] + HOUR_MS),
            default_cluster=self.is_default(cluster),
            labels=labels,
            billable=billable,
        )

    def set_aside_in(self, hour: int, run: Sequence[int]) -> tuple[int, int]:  # noqa: ARG002
        return hour, hour + HOUR_MS


@dataclass(frozen=True)
class BundleSource:
    """A bundle's files, whose records are loaded into Postgres. They never grow, so each run lands them afresh."""

    bundle: Bundle
    readings: pa.Table = field(repr=False)
    """the bundle's DCGM_SERIES"""
    database: Database
    clock: Clock
    """the bundle's `now`, which never moves, or the real one"""

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.bundle.cluster,)

    @property
    def span(self) -> tuple[datetime, datetime]:
        return self.bundle.start, self.bundle.end

    def now_ms(self) -> int:
        return self.clock()

    def is_default(self, cluster: str) -> bool:
        return cluster == self.bundle.cluster

    def series(
        self,
        cluster: str,  # noqa: ARG002
        start_ms: int,
        end_ms: int,
        metrics: Sequence[str],  # noqa: ARG002
        *,
        may_be_gone: bool = False,  # noqa: ARG002
    ) -> pa.Table:
        return window(self.readings, start_ms, end_ms)

    def landed(self, lake: Lake, cluster: str) -> set[int]:  # noqa: ARG002
        return set()

    def readings_end(self) -> int:
        return FAR_MS

    def batches(self, hours: Sequence[int]) -> list[Sequence[int]]:
        return [hours]

    def records(
        self,
        cluster: str,
        hours: Sequence[int],  # noqa: ARG002
        labels: Collection[str],
        billable: Collection[str],
    ) -> dict[str, pa.Table]:
        """All of them, so that whatever is wrong in the files is set aside."""
        return self.database.read_platform(
            cluster, *ALL_TIME, default_cluster=self.is_default(cluster), labels=labels, billable=billable
        )

    def set_aside_in(self, hour: int, run: Sequence[int]) -> tuple[int, int]:
        """Records beyond the run show in its first or last hour."""
        return (-FAR_MS if hour == run[0] else hour), (FAR_MS if hour == run[-1] else hour + HOUR_MS)


def wall_clock_ms() -> int:
    """The machine's time."""
    return time.time_ns() // 1_000_000


def clock_of(bundle: Bundle | None) -> Clock:
    """A bundle's own time; the machine's without a bundle, or where it says nothing."""
    if bundle is None or bundle.now is None:
        return wall_clock_ms
    stopped = ms_of(bundle.now)
    return lambda: stopped


def now_of(settings: Settings) -> datetime:
    """What time it is for an installation: its bundle's own time, where it has one."""
    return instant_of(clock_of(Bundle.open(settings.bundle) if settings.bundle else None)())
