"""The ledger as its replica reads it: rows in order of arrival, and a state per tenant and UTC day to compare.

Belongs here: Postgres' half of the replication. Does not: ClickHouse's half (clickhouse.py), and what to do about a
difference (replication.py). Rules: A31, A32.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from finops_pipeline.contracts.clickhouse import COLUMNS, FRACTION_DIGITS, SUMMED, Kind
from finops_pipeline.errors import SourceError
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection

PATIENCE_SECONDS = 30.0

_ARROW = {
    Kind.TEXT: pa.string(),
    Kind.UUID: pa.string(),
    Kind.INSTANT: pa.timestamp("us", tz="UTC"),
    Kind.DECIMAL: pa.decimal128(38, FRACTION_DIGITS),
    Kind.WHOLE: pa.int64(),
    Kind.FLAG: pa.bool_(),
}
ROWS = pa.schema([pa.field(name, _ARROW[kind]) for name, kind in COLUMNS.items()])
"""Rows on their way to the replica."""

_DAY = sql.SQL("(coalesce(period_start, occurred_at) AT TIME ZONE 'UTC')::date")
_COLUMNS = sql.SQL(", ").join(sql.Identifier(name) for name in COLUMNS)


class Day(NamedTuple):
    """A tenant's UTC day, the grain of the comparison."""

    tenant_id: str
    day: str


class State(NamedTuple):
    """What one side holds of a day. Both sides write `digest` alike: equal texts are equal rows."""

    rows: int
    cost: str
    """exact sum over all currencies, a checksum"""
    digest: str
    """count, sums of 2 x 32 bits of each row's SHA-256, and the exact sum of each unit"""


@contextmanager
def only_copier(database: Database) -> Iterator[None]:
    """Be the only process that writes to the replica of this database, or raise a transient SourceError."""
    with database.transaction() as connection:
        row = connection.execute("SELECT pg_try_advisory_xact_lock(hashtextextended('eai|replica', 0))").fetchone()
        if row is None or not row[0]:
            raise SourceError("the replica is being written by another process: wait until it is done", transient=True)
        yield


def settled(database: Database, patience: float = PATIENCE_SECONDS) -> int:
    """The highest order of arrival so far, once all transactions that might hold a lower one have ended.

    An order of arrival is given before its transaction commits, so a lower one may become visible after a higher one.
    Who has inserted, or is about to, holds a lock on the table until then. After `patience` seconds the rest is left
    to the comparison of the next time.
    """
    deadline = time.monotonic() + patience
    with database.transaction(snapshot=True) as connection:
        last = _last(connection)
    waiting = _writers(database)
    while waiting and time.monotonic() < deadline:
        time.sleep(0.1)
        waiting &= _writers(database)
    return last


def read(database: Database, after: int, upto: int, limit: int) -> pa.Table:
    """The next rows (ROWS) that arrived in (after, upto], at most `limit`, in order of arrival."""
    return _rows(
        database,
        sql.SQL("FROM eai.usage_events WHERE seq > {} AND seq <= {} ORDER BY seq LIMIT {}").format(after, upto, limit),
    )


def read_days(database: Database, days: Collection[Day], upto: int) -> pa.Table:
    """All rows (ROWS) of these days that arrived up to `upto`."""
    tenants, dates = [day.tenant_id for day in days], [day.day for day in days]
    return _rows(
        database,
        sql.SQL(
            "FROM eai.usage_events AS e WHERE seq <= {}"
            " AND EXISTS (SELECT FROM unnest({}::uuid[], {}::date[]) AS d (tenant_id, day)"
            " WHERE d.tenant_id = e.tenant_id AND d.day = {})"
        ).format(upto, tenants, dates, _DAY),
    )


def count(database: Database, after: int = 0) -> int:
    """How many rows arrived after `after`."""
    found = database.query("SELECT count(*) AS rows FROM eai.usage_events WHERE seq > %s", (after,))
    return int(found["rows"][0].as_py())


def oldest_since(database: Database, after: int, upto: int) -> datetime | None:
    """Start of the first UTC day that rows arrived for in (after, upto]; None if none did."""
    with database.transaction(snapshot=True) as connection:
        row = connection.execute(
            "SELECT date_trunc('day', min(occurred_at)) FROM eai.usage_events WHERE seq > %s AND seq <= %s",
            (after, upto),
        ).fetchone()
    return row[0] if row else None


def states(database: Database, upto: int, since: datetime | None = None) -> dict[Day, State]:
    """The state of each tenant's day, of the rows that arrived up to `upto`, and occurred at or after `since`."""
    found = database.query(
        sql.SQL(
            "SELECT tenant_id::text, to_char(day, 'YYYY-MM-DD') AS day, count(*) AS rows, coalesce(trim_scale(sum(cost_amount))::text, '-')"
            " AS cost, concat_ws('|', count(*), sum(('x' || substr(sha, 1, 8))::bit(32)::bigint),"
            " sum(('x' || substr(sha, 9, 8))::bit(32)::bigint), {sums}) AS digest"
            " FROM (SELECT *, {day} AS day, encode(substr(sha256(convert_to({row}, 'UTF8')), 1, 8), 'hex') AS sha"
            " FROM eai.usage_events WHERE seq <= {upto} AND {since}) AS e GROUP BY 1, 2"
        ).format(
            sums=sql.SQL(", ").join(
                sql.SQL("coalesce(trim_scale(sum({}))::text, '-')").format(sql.Identifier(name)) for name in SUMMED
            ),
            day=_DAY,
            row=sql.SQL("concat_ws(chr(31), {})").format(
                sql.SQL(", ").join(
                    sql.SQL("coalesce({}, chr(1))").format(_text(name, kind)) for name, kind in COLUMNS.items()
                )
            ),
            upto=upto,
            since=sql.SQL("true") if since is None else sql.SQL("occurred_at >= {}").format(since),
        )
    )
    columns = (found[name].to_pylist() for name in ("tenant_id", "day", "rows", "cost", "digest"))
    return {
        Day(tenant, day): State(rows, cost, digest) for tenant, day, rows, cost, digest in zip(*columns, strict=True)
    }


def _text(name: str, kind: Kind) -> sql.Composable:
    """A column as text, as `clickhouse.py` writes it too."""
    column = sql.Identifier(name)
    match kind:
        case Kind.DECIMAL:
            return sql.SQL("trim_scale({})::text").format(column)
        case Kind.INSTANT:
            return sql.SQL("(extract(epoch from {}) * 1000000)::bigint::text").format(column)
        case _:
            return sql.SQL("{}::text").format(column)


def _last(connection: Connection) -> int:
    row = connection.execute("SELECT coalesce(max(seq), 0) FROM eai.usage_events").fetchone()
    return int(row[0]) if row else 0


def _writers(database: Database) -> set[str]:
    """Transactions that have inserted into the ledger or are about to, and have not ended."""
    found = database.query(
        "SELECT virtualtransaction AS writer FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted"
        " AND relation = 'eai.usage_events'::regclass"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return {str(writer) for writer in found["writer"].to_pylist()}


def _rows(database: Database, source: sql.Composable) -> pa.Table:
    statement = sql.SQL("SELECT {} {}").format(_COLUMNS, source)
    try:
        rows = database.query(statement, schema=ROWS)
    except pa.ArrowInvalid as error:
        raise SourceError(_misfit(database, source) or str(error), transient=False) from None
    for name in (name for name, kind in COLUMNS.items() if kind is Kind.INSTANT):
        _require_in_range(rows, name)
    return rows


def _require_in_range(rows: pa.Table, name: str) -> None:
    """ClickHouse would move an instant that it cannot hold to the nearest that it can."""
    years = pc.year(rows[name]).to_pylist()
    outside = [
        seq for seq, year in zip(rows["seq"].to_pylist(), years, strict=True) if year and not 1900 <= year < 2299
    ]
    if outside:
        raise SourceError(
            f"eai.usage_events seq {outside[0]}: {name} is not within the years 1900 to 2298, which ClickHouse can"
            " hold: the replica stops before it",
            transient=False,
        )


def _misfit(database: Database, source: sql.Composable) -> str | None:
    """The first number that the replica cannot hold exactly."""
    decimals = [name for name, kind in COLUMNS.items() if kind is Kind.DECIMAL]
    found = database.query(
        sql.SQL(
            "SELECT seq, name, value::text AS value FROM (SELECT {} {}) AS e, {} AS n (name, value) WHERE {}"
        ).format(
            _COLUMNS,
            source,
            sql.SQL("LATERAL (VALUES {})").format(
                sql.SQL(", ").join(sql.SQL("({}, {})").format(name, sql.Identifier(name)) for name in decimals)
            ),
            sql.SQL(
                "value IN ('NaN', 'Infinity', '-Infinity') OR scale(trim_scale(value)) > {} OR abs(value) >= 1e{}"
                " ORDER BY seq LIMIT 1"
            ).format(FRACTION_DIGITS, sql.SQL(str(38 - FRACTION_DIGITS))),
        )
    ).to_pylist()
    if not found:
        return None
    return (
        f"eai.usage_events seq {found[0]['seq']}: {found[0]['name']} {found[0]['value']} does not fit Decimal(38,"
        f" {FRACTION_DIGITS}): the replica stops before it, and never rounds"
    )
