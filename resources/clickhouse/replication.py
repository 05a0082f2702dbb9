"""Keeping the ClickHouse replica equal to the ledger: copy in order of arrival, compare every tenant's day, repair.

The replica is derived and can be rebuilt at any time. A row may be copied twice; it counts once (FINAL). The order of
arrival only makes it quick: what is complete is decided by the comparison. The days for which something arrived are
compared each time, and all of the ledger once a day, or when somebody asks.

Belongs here: the order of the steps between the two doors. Does not: the doors (ledger_source.py, clickhouse.py), and
when it happens (assets/replica.py, finops_pipeline/definitions.py). Rules: A31, A32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from finops_pipeline.errors import SourceError
from finops_pipeline.resources.clickhouse import ledger_source
from finops_pipeline.resources.clickhouse.client import ClickHouse
from finops_pipeline.resources.clickhouse.ledger_source import Day, State
from finops_pipeline.resources.postgres.client import Database

ROUNDS = 3
"""Repairs before a difference counts as one that stays."""
BATCH_ROWS = 50_000
"""Rows that are copied, or repaired, at a time."""
REMOVED_DAYS = 2_000
"""Tenant's days of one deletion: it takes ClickHouse about a second, and a query has at most 256 KiB."""
WHOLE_EVERY = timedelta(days=1)
WRITTEN, COMPARED = ("copied", "repaired", "rebuilt"), ("compared", "rebuilt")
NOTHING = State(0, "-", "")


@dataclass(frozen=True)
class Difference:
    """A tenant's day on which the replica did not hold what the ledger holds."""

    day: Day
    ledger: State
    replica: State


@dataclass(frozen=True)
class Synced:
    """What a synchronisation did, and found."""

    copied: int
    """rows that had arrived since the last one"""
    compared: int
    """rows of the ledger that the replica was compared with"""
    since: datetime | None
    """compared is what occurred since then; None: all of the ledger"""
    differences: tuple[Difference, ...]
    """found after the copy, and repaired"""


@dataclass(frozen=True)
class Status:
    """How the replica stands to the ledger."""

    ledger_rows: int
    replica_rows: int
    behind: int
    """rows of the ledger that arrived after the high-water mark"""
    written_at: datetime | None
    """when a row was last written to it"""
    compared_at: datetime | None
    """when all of it was last compared, and repaired"""
    differences: tuple[Difference, ...]
    """among what is copied"""

    @property
    def agrees(self) -> bool:
        """Everything is there, and is the same."""
        return not self.differences and not self.behind


Progress = Callable[[int, int], None]
"""Called with each batch: how many of how many rows are copied."""


def _quiet(_done: int, _of: int) -> None:
    """Nobody watches."""


def status(database: Database, replica: ClickHouse) -> Status:
    """Compare what is copied, and change nothing."""
    replica.require_current()
    mark = replica.mark()
    differences, rows = compare(database, replica, mark)
    behind = ledger_source.count(database, mark)
    written, compared = replica.noted(*WRITTEN), replica.noted(*COMPARED)
    return Status(rows + behind, replica.count(), behind, written and written[1], compared and compared[1], differences)


def sync(database: Database, replica: ClickHouse, progress: Progress = _quiet, *, everything: bool = True) -> Synced:
    """Copy what has arrived, compare, repair what differs.

    Not `everything` compares the days for which something arrived, unless all was last compared a day ago. SourceError,
    transient, while another process does it, and permanent if a difference outlives the repair.
    """
    with ledger_source.only_copier(database):
        replica.require_current()
        upto = ledger_source.settled(database)
        mark = replica.mark()
        if mark > upto:  # the ledger was restored from a backup: what it has lost is only in the replica
            mark, everything = upto, True
            replica.note("reset", mark, 0, replica.next_copied_at())
        copied = copy(database, replica, mark, upto, progress)
        whole, seen = replica.noted(*COMPARED), replica.noted(*COMPARED, "checked")
        if everything or whole is None or seen is None or whole[1] < datetime.now(UTC) - WHOLE_EVERY:
            since = None
        elif (since := ledger_source.oldest_since(database, seen[0], upto)) is None:
            return Synced(copied, 0, datetime.now(UTC), ())
        differences, compared = repaired(database, replica, upto, since)
        replica.note("checked" if since else "compared", upto, compared, replica.next_copied_at())
    return Synced(copied, compared, since, differences)


def rebuild(database: Database, replica: ClickHouse, progress: Progress = _quiet) -> Synced:
    """Copy the whole ledger to a new table, compare, and only then put it in the replica's place."""
    with ledger_source.only_copier(database):
        upto = ledger_source.settled(database)
        with replica.rebuilt() as fresh:
            copied_at = replica.next_copied_at()
            copied, of = 0, ledger_source.count(database)
            for _, rows in _batches(database, fresh, 0, upto, copied_at):
                copied += rows
                progress(copied, of)
            differences, rows = compare(database, fresh, upto)
            if differences:
                raise SourceError(
                    f"{replica.where}: the rebuilt table differs from the ledger: {summary(differences)};"
                    " the replica stays as it was",
                    transient=False,
                )
        replica.note("rebuilt", upto, copied, copied_at)
    return Synced(copied, rows, None, ())


def copy(database: Database, replica: ClickHouse, after: int, upto: int, progress: Progress = _quiet) -> int:
    """Copy the rows that arrived in (after, upto], moving the high-water mark with each batch; how many they were."""
    copied, of, copied_at = 0, ledger_source.count(database, after), replica.next_copied_at()
    for mark, rows in _batches(database, replica, after, upto, copied_at):
        replica.note("copied", mark, rows, copied_at)
        copied += rows
        progress(copied, of)
    return copied


def _batches(
    database: Database, replica: ClickHouse, after: int, upto: int, copied_at: datetime
) -> Iterator[tuple[int, int]]:
    """Write batch after batch; the last order of arrival of each, once it is stored, and its rows."""
    while (batch := ledger_source.read(database, after, upto, BATCH_ROWS)).num_rows:
        replica.write(batch, copied_at)
        after = batch["seq"][-1].as_py()
        yield after, batch.num_rows


def compare(
    database: Database, replica: ClickHouse, upto: int, since: datetime | None = None
) -> tuple[tuple[Difference, ...], int]:
    """The tenants' days that differ, and how many rows of the ledger were looked at.

    Of the ledger: what arrived up to `upto`. Of both: what occurred at or after `since`.
    """
    ledger, copies = ledger_source.states(database, upto, since), replica.states(since)
    return differing(ledger, copies), sum(state.rows for state in ledger.values())


def differing(ledger: Mapping[Day, State], copies: Mapping[Day, State]) -> tuple[Difference, ...]:
    """The days whose states are not equal, in order; a day that one side lacks is empty there."""
    return tuple(
        Difference(day, ledger.get(day, NOTHING), copies.get(day, NOTHING))
        for day in sorted(ledger.keys() | copies.keys())
        if ledger.get(day) != copies.get(day)
    )


def repaired(
    database: Database, replica: ClickHouse, upto: int, since: datetime | None
) -> tuple[tuple[Difference, ...], int]:
    """Make the replica hold what the ledger holds; the differences that there were, and the rows; see `compare`."""
    found, rows = compare(database, replica, upto, since)
    left = found
    for _ in range(ROUNDS):
        if not left:
            return found, rows
        _repair(database, replica, left, upto)
        left, rows = compare(database, replica, upto, since)
    if left:
        raise SourceError(
            f"{replica.where}: still differs from the ledger after {ROUNDS} repairs: {summary(left)};"
            " does something else write to it? finops replica rebuild",
            transient=False,
        )
    return found, rows


def _repair(database: Database, replica: ClickHouse, differences: Sequence[Difference], upto: int) -> None:
    """Write these days once more, then delete their older copies and whatever else is there, in this order."""
    copied_at, mark, written = replica.next_copied_at(), replica.mark(), 0
    for part in _parts(differences):
        rows = ledger_source.read_days(database, [difference.day for difference in part], upto)
        replica.write(rows, copied_at)
        written += rows.num_rows
    stale = sorted((d.day for d in differences if d.replica.rows), key=lambda day: day.day)
    for first in range(0, len(stale), REMOVED_DAYS):
        replica.remove(stale[first : first + REMOVED_DAYS], keep=copied_at)
    replica.note("repaired", mark, written, copied_at)


def _parts(differences: Sequence[Difference]) -> Iterator[list[Difference]]:
    """What is written at a time: neighbouring days, of not too many rows."""
    part: list[Difference] = []
    rows = 0
    for difference in sorted(differences, key=lambda difference: difference.day.day):
        if part and (rows + difference.ledger.rows > BATCH_ROWS or len(part) == BATCH_ROWS):
            yield part
            part, rows = [], 0
        part.append(difference)
        rows += difference.ledger.rows
    yield part


def summary(differences: Sequence[Difference]) -> str:
    """The first difference and how many there are, for one line."""
    first = differences[0]
    more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
    return (
        f"tenant {first.day.tenant_id} on {first.day.day} has {first.replica.rows} rows, cost {first.replica.cost},"
        f" and in the ledger {first.ledger.rows} rows, cost {first.ledger.cost}{more}"
    )


def flat(difference: Difference) -> tuple[str, str, int, int, str, str]:
    """Tenant, day, then rows and cost of the ledger and of the replica."""
    ledger, replica = difference.ledger, difference.replica
    return (*difference.day, ledger.rows, replica.rows, ledger.cost, replica.cost)
