"""The door to ClickHouse, where a copy of `eai.usage_events` is kept for analytics.

One client for both: a server over HTTP(S) (EAI_CLICKHOUSE_URL), or chDB, the same engine in this process, whose folder
serves one process at a time. All calls are repeated on transient failures, so each must be safe to happen twice.

Belongs here: ClickHouse's half of the replication. Does not: DDL (contracts/clickhouse), the ledger's half
(ledger_source.py), and what to do about a difference (replication.py). Rules: A31, A32.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import SecretStr
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from finops_pipeline.contracts.clickhouse import COLUMNS, EVENTS, NOTES, SUMMED, VIEWS, Kind, statement
from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.clickhouse.ledger_source import Day, State
from finops_pipeline.settings import Settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

DATABASE = "eai"
ATTEMPTS = 4
WAIT_SECONDS = 0.5
"""before the second try, and twice as long before each further one"""
INSTALL = "pip install 'finops-pipeline[clickhouse]'"

_T = TypeVar("_T")
_REBUILT = f"{EVENTS}_rebuilt"
_TYPES = {
    Kind.TEXT: "String",
    Kind.UUID: "UUID",
    Kind.INSTANT: "DateTime64(6, 'UTC')",
    Kind.DECIMAL: "Decimal(38, 12)",
    Kind.WHOLE: "Int64",
    Kind.FLAG: "Bool",
}
# Wait until the rows are stored; a null where none may be is an error, not a default.
_INSERT = {"async_insert": 0, "input_format_null_as_default": 0}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MUTATION = {"mutations_sync": 2}


@dataclass(frozen=True)
class Replica:
    """Where the replica of an installation is. Opening it is what costs."""

    mode: str = "off"
    url: SecretStr | None = field(default=None, repr=False)
    ca_file: Path | None = None
    folder: Path = Path()

    @classmethod
    def of(cls, settings: Settings) -> Replica:
        """The replica that the settings describe."""
        return cls(settings.replica, settings.clickhouse_url, settings.clickhouse_ca_file, settings.home / "clickhouse")

    @property
    def automatic(self) -> bool:
        """Whether every run brings it up to date: `on`, or `auto` with a server."""
        return self.mode == "on" or (self.mode == "auto" and self.url is not None)

    @contextmanager
    def open(self) -> Iterator[ClickHouse]:
        """The replica with its tables in place.

        UsageError where it is off, not installed or not accepted; SourceError where it cannot be reached, or where
        another process has the folder.
        """
        if self.mode == "off":
            raise UsageError("the ClickHouse replica is off: set FINOPS_REPLICA to on or auto")
        needed = "clickhouse_connect" if self.url else "chdb"
        if any(importlib.util.find_spec(name) is None for name in (needed, "clickhouse_connect")):
            advice = "" if self.url else ", or set EAI_CLICKHOUSE_URL to a server"
            raise UsageError(f"the ClickHouse replica needs the package {needed}: {INSTALL}{advice}")
        logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)
        with self._server() if self.url else self._embedded() as replica:
            replica.prepare()
            yield replica

    @contextmanager
    def _server(self) -> Iterator[ClickHouse]:
        address = urlsplit(self.url.get_secret_value() if self.url else "")
        database = address.path.strip("/") or DATABASE
        if not re.fullmatch(r"[A-Za-z_]\w*", database):
            raise UsageError("EAI_CLICKHOUSE_URL: after the port comes the database, letters, digits and _ only")
        if address.query or address.fragment:
            raise UsageError("EAI_CLICKHOUSE_URL: nothing may follow the database; EAI_CLICKHOUSE_CA_FILE is a setting")
        port = address.port or (8443 if address.scheme == "https" else 8123)
        yield from _connected(
            f"ClickHouse {address.hostname}:{port}/{database}",
            database,
            interface=address.scheme,
            host=address.hostname,
            port=port,
            username=unquote(address.username or "default"),
            password=unquote(address.password or ""),
            ca_cert=None if self.ca_file is None else str(self.ca_file),
            autogenerate_session_id=False,  # a session is locked by a query whose client has gone
        )

    @contextmanager
    def _embedded(self) -> Iterator[ClickHouse]:
        folder = self.folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder.with_name(f"{folder.name}.lock"), folder):
            yield from _connected(f"chDB in {folder}", DATABASE, interface="chdb", path=str(folder))


class ClickHouse:
    """An open replica. `where` is what messages call it, without user and password."""

    def __init__(self, client: Client, where: str, database: str, table: str = EVENTS) -> None:
        self.where = where
        self._client = client
        self._database = database
        self._table = table

    def prepare(self) -> None:
        """Create the database and the tables that are missing."""
        if not self._rows("SELECT 1 FROM system.databases WHERE name = {name:String}", name=self._database):
            self._command(f"CREATE DATABASE IF NOT EXISTS {self._database}")
        self._client.database = self._database
        present = self._present()
        for name in (EVENTS, NOTES):
            if name not in present:
                self._command(statement(name))

    def require_current(self) -> None:
        """Create the views that are missing; UsageError where the table is of another version of this program."""
        if (stale := self._stale()) is not None:
            raise UsageError(f"{self.where}: {stale}: finops replica rebuild")
        present = self._present()
        for name in VIEWS:
            if name not in present:
                self._command(statement(name))

    def _present(self) -> set[str]:
        found = self._rows("SELECT name FROM system.tables WHERE database = {name:String}", name=self._database)
        return {name for (name,) in found}

    def _stale(self) -> str | None:
        """The first column that is not what this program writes."""
        found = self._rows(
            "SELECT name, type FROM system.columns WHERE database = {database:String} AND table = {table:String}",
            database=self._database,
            table=EVENTS,
        )
        types = {name: re.sub(r"^Nullable\((.*)\)$", r"\1", type_) for name, type_ in found}
        wrong = (name for name, kind in COLUMNS.items() if types.get(name) != _TYPES[kind])
        return next(
            (f"{EVENTS}.{n} is {types.get(n, 'not there')}, this program needs {_TYPES[COLUMNS[n]]}" for n in wrong),
            None,
        )

    # Progress

    def mark(self) -> int:
        """All rows up to this order of arrival were copied."""
        last = self._last_note()
        return 0 if last is None else int(last[1])

    def noted(self, *events: str) -> tuple[int, datetime] | None:
        """High-water mark and instant of the last note of one of these kinds."""
        last = self._last_note(*events)
        return None if last is None else (int(last[1]), _instant(last[2]))

    def next_copied_at(self) -> datetime:
        """An instant for new copies: now, or later than the last if the clock has gone back."""
        now, last = datetime.now(UTC), self._last_note()
        return now if last is None else max(now, _instant(last[2]) + timedelta(microseconds=1))

    def note(self, event: str, mark: int, rows: int, copied_at: datetime) -> None:
        """Note what was written, after it is stored: what a kill leaves between the two is copied once more."""
        last = self._last_note()
        step = 1 if last is None else int(last[0]) + 1
        notes = pa.table(
            {
                "step": pa.array([step], pa.uint64()),
                "seq": pa.array([mark], pa.int64()),
                "event": [event],
                "rows": pa.array([rows], pa.uint64()),
                "copied_at": pa.array([copied_at], pa.timestamp("us", tz="UTC")),
            }
        )
        self._insert(NOTES, notes)

    def _last_note(self, *events: str) -> list[Any] | None:
        found = self._rows(
            f"SELECT step, seq, toUnixTimestamp64Micro(copied_at) FROM {NOTES}"  # noqa: S608
            " WHERE empty({events:Array(String)}) OR has({events:Array(String)}, event) ORDER BY step DESC LIMIT 1",
            events=list(events),
        )
        return found[0] if found else None

    # Rows

    def write(self, rows: pa.Table, copied_at: datetime) -> None:
        """Append copies of ledger rows (ledger_source.ROWS); of two copies of a row the later one counts.

        A month is one insert, and an insert is stored as a whole or not at all.
        """
        instants = pc.coalesce(rows["period_start"], rows["occurred_at"])
        months: Any = pc.add(pc.multiply(pc.year(instants), 100), pc.month(instants))
        copies = rows.append_column(
            pa.field("copied_at", pa.timestamp("us", tz="UTC")),
            pa.array([copied_at] * rows.num_rows, pa.timestamp("us", tz="UTC")),
        )
        for month in sorted(months.unique().to_pylist()):
            self._insert(self._table, copies.filter(pc.equal(months, month)))

    def remove(self, days: Collection[Day], keep: datetime) -> None:
        """Delete the rows of these days, not more than a few thousand, but for the copies made at `keep`."""
        pairs = ", ".join(f"(toUUID('{tenant}'), toDate32('{day}'))" for tenant, day in sorted(days))
        self._command(
            f"ALTER TABLE {self._table} DELETE WHERE (tenant_id, day) IN ({pairs})"
            f" AND toUnixTimestamp64Micro(copied_at) != {_micros(keep)}",
            _MUTATION,
        )

    def count(self) -> int:
        """How many events it holds, copies counted once."""
        return int(self._rows(f"SELECT count() FROM {self._table} FINAL")[0][0])  # noqa: S608

    def states(self, since: datetime | None = None) -> dict[Day, State]:
        """The state of each tenant's day; see `ledger_source.states`. A month at a time: FINAL holds it in memory."""
        recent = "1" if since is None else f"toUnixTimestamp64Micro(occurred_at) >= {_micros(since)}"
        months = self._rows(f"SELECT DISTINCT toYYYYMM(day) FROM {self._table} WHERE {recent}")  # noqa: S608
        sums = ", ".join(f"ifNull(toString(sum({name})), '-')" for name in SUMMED)
        row = ", ".join(f"ifNull({_text(name, kind)}, char(1))" for name, kind in COLUMNS.items())
        found = (
            state
            for (month,) in sorted(months)
            for state in self._rows(
                "SELECT toString(tenant_id), toString(day), count() AS number,"  # noqa: S608
                " ifNull(toString(sum(cost_amount)), '-'), concatWithSeparator('|', toString(number),"
                " toString(sum(reinterpretAsUInt32(reverse(substring(sha, 1, 4))))),"
                f" toString(sum(reinterpretAsUInt32(reverse(substring(sha, 5, 4))))), {sums})"
                f" FROM (SELECT *, day, SHA256(concatWithSeparator(char(31), {row})) AS sha FROM {self._table} FINAL"
                f" WHERE toYYYYMM(day) = {month} AND {recent}) GROUP BY tenant_id, day"
            )
        )
        return {Day(tenant, day): State(number, cost, digest) for tenant, day, number, cost, digest in found}

    # Rebuilding

    @contextmanager
    def rebuilt(self) -> Iterator[ClickHouse]:
        """An empty table beside the replica; at the end it takes the replica's place in one step.

        Readers see the old rows until then. After an error the replica stays as it was. An administrator's engine
        (ReplicatedReplacingMergeTree) is kept, unless the table is of another version.
        """
        self._drop_rebuilt()
        current = self._stale() is None
        self._command(f"CREATE TABLE IF NOT EXISTS {_REBUILT} AS {EVENTS}" if current else statement(EVENTS, _REBUILT))
        yield ClickHouse(self._client, self.where, self._database, _REBUILT)
        self._exchange()
        self._drop_rebuilt()
        for name in VIEWS:
            self._command(statement(name))

    def _exchange(self) -> None:
        """The only command that undoes itself if it is repeated: each try looks first whether it has happened."""
        query = "SELECT uuid FROM system.tables WHERE database = {database:String} AND name = {name:String}"
        ((fresh,),) = self._rows(query, database=self._database, name=_REBUILT)

        def once() -> None:
            parameters = {"database": self._database, "name": EVENTS}
            if [fresh] not in map(list, self._client.query(query, parameters).result_rows):
                self._client.command(f"EXCHANGE TABLES {_REBUILT} AND {EVENTS}")

        self._tried(once)

    def _drop_rebuilt(self) -> None:
        """DROP alone keeps the data for minutes, and DROP ... SYNC never ends in chDB."""
        self._command(f"TRUNCATE TABLE IF EXISTS {_REBUILT}")
        self._command(f"DROP TABLE IF EXISTS {_REBUILT}")

    # Calls

    def _rows(self, query: str, **parameters: object) -> list[list[Any]]:
        return self._tried(lambda: [list(row) for row in self._client.query(query, parameters).result_rows])

    def _command(self, command: str, settings: dict[str, Any] | None = None) -> None:
        self._tried(lambda: self._client.command(command, settings=settings))

    def _insert(self, table: str, rows: pa.Table) -> None:
        self._tried(lambda: self._client.insert_arrow(table, rows, settings=_INSERT))

    def _tried(self, call: Callable[[], _T]) -> _T:
        return _tried(self.where, call)


def _connected(where: str, database: str, **arguments: Any) -> Iterator[ClickHouse]:
    import clickhouse_connect

    client = _tried(where, lambda: clickhouse_connect.get_client(**arguments))
    try:
        yield ClickHouse(client, where, database)
    finally:
        client.close()


def _tried(where: str, call: Callable[[], _T]) -> _T:
    """The result of `call`, tried again while its failures are transient."""
    from finops_pipeline.resources.clickhouse.errors import translated

    def once() -> _T:
        with translated(where):
            return call()

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=WAIT_SECONDS, max=30),
        retry=retry_if_exception(lambda error: isinstance(error, SourceError) and error.transient),
        reraise=True,
    )
    return retrying(once)


@contextmanager
def _alone(path: Path, folder: Path) -> Iterator[None]:
    """Hold the lock file of a chDB folder; the kernel frees it whatever happens to the process."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            raise SourceError(
                f"chDB in {folder} is in use by process {holder}, and serves one process at a time: wait until it is"
                " done, or use a ClickHouse server (EAI_CLICKHOUSE_URL)",
                transient=True,
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _text(name: str, kind: Kind) -> str:
    """A column as text, as `ledger_source.py` writes it too."""
    return f"toString(toUnixTimestamp64Micro({name}))" if kind is Kind.INSTANT else f"toString({name})"


def _micros(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
