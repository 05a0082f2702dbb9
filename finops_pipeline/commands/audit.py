"""`finops audit verify`: the audit log against itself, its anchor, and everything that it speaks of (A31, A34).

The log and the ledger are streamed: memory does not grow with them. After the chain (`accounting.audit.chain`):

* every usage event's hash and columns against its document;
* the events of every hour, in the order of their booking, against the entries that booked them;
* policies, statements and published hours against the entry that reports them.

What belongs here: reading, and what entries say about the rest of the database. What does not: the chain itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple, cast

from finops_pipeline.accounting.audit.chain import (
    ChainReport,
    Entry,
    Finding,
    Findings,
    Tampering,
    check_chain,
    parsed,
    policy_sha256,
    sha256_of,
)
from finops_pipeline.accounting.money.statement import statement_sha256
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.published import stored_statement
from finops_pipeline.resources.postgres.usage_rows import AS_IS, INSTANTS, QUALITY, UNITS

BATCH = 2000
"""Rows fetched at a time."""
_ENTRIES = (
    "SELECT seq, to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), kind, previous_sha256,"
    " entry_sha256, document FROM eai.audit_events ORDER BY seq"
)
_BOOKINGS = (
    "SELECT payload ->> 'cluster' AS cluster, payload ->> 'hour' AS hour, seq, payload ->> 'events',"
    " payload ->> 'events_sha256' FROM eai.audit_events WHERE payload ? 'events_sha256'"
    " ORDER BY payload ->> 'cluster' COLLATE \"C\", payload ->> 'hour' COLLATE \"C\", seq"
)
_BOOKED = (
    "SELECT cluster, to_char(period_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS hour,"
    " content_sha256 FROM eai.usage_events WHERE usage_type <> 'llm' ORDER BY cluster COLLATE \"C\", period_start, seq"
)
_STATEMENTS = (
    "SELECT DISTINCT ON (payload ->> 'period') payload ->> 'period', kind, payload ->> 'statement_sha256'"
    " FROM eai.audit_events WHERE kind IN ('statement.published', 'month.closed', 'month.reopened')"
    " ORDER BY payload ->> 'period', seq DESC"
)
_PLAIN = tuple(name for name in AS_IS if name != "content_sha256")
_EVENT_COLUMNS = (
    *_PLAIN,
    *INSTANTS,
    *UNITS,
    *QUALITY,
    "methods",
    "cost_amount",
    "cost_currency",
    "model_provider",
    "model_name",
)


@dataclass(frozen=True)
class Verification:
    """What `finops audit verify` found."""

    chain: ChainReport
    findings: Sequence[Finding]
    more: int
    """findings that are not kept"""
    events: int

    @property
    def worst(self) -> Tampering | None:
        """What the command is about: the first of `Tampering` that was found."""
        found = {finding.tampering for finding in self.findings}
        return next((tampering for tampering in Tampering if tampering in found), None)

    @property
    def exit_code(self) -> int:
        return 0 if self.worst is None else self.worst.exit_code

    @property
    def data(self) -> dict[str, Any]:
        """For a program."""
        last = self.chain.anchor_last
        return {
            "result": "intact" if self.worst is None else self.worst.label,
            "entries": self.chain.entries,
            "events": self.events,
            "anchored": self.chain.anchored,
            "not_anchored_yet": self.chain.not_anchored,
            "anchor_last": None if last is None else {"seq": last.seq, "sha256": last.sha256, "at": last.at},
            "findings": [{"kind": f.tampering.label, "where": f.where, "detail": f.detail} for f in self.findings],
            "more_findings": self.more,
        }

    @property
    def text(self) -> str:
        """For a person."""
        lines = [f"{f.tampering.label:14} {f.where}: {f.detail}" for f in self.findings]
        if self.more:
            lines.append(f"and {self.more} more")
        counted = f"{self.chain.entries} entries, {self.chain.anchored} of them anchored, {self.events} usage events"
        if self.worst is None:
            late = f"; {self.chain.not_anchored} entries are not anchored yet" if self.chain.not_anchored else ""
            return f"intact: {counted}{late}\n"
        return "\n".join([*lines, f"{self.worst.label}: {counted}"]) + "\n"


class _Booking(NamedTuple):
    """An entry that booked events of an hour."""

    seq: int
    events: int
    sha256: str


def verify(database: Database) -> Verification:
    """Verify everything, in one snapshot."""
    with database.transaction(snapshot=True) as connection:
        lines = database.anchor.lines() if database.anchor is not None else None
        chain = check_chain(_stream(connection, _ENTRIES, Entry._make), lines, _Links(connection))
        facts = Findings()
        events = _check_events(connection, facts)
        uncovered = _check_bookings(connection, facts)
        uncovered |= _check_policies(database, connection, facts)
        uncovered |= _check_statements(database, connection, facts)
        uncovered |= _check_hours(connection, facts)
    tail = _missing_tail(chain, uncovered=uncovered)
    findings = [*chain.findings.kept, *tail, *facts.kept]
    return Verification(chain, findings, chain.findings.more + facts.more, events)


def _missing_tail(chain: ChainReport, *, uncovered: bool) -> list[Finding]:
    """The anchor knows entries after the log's end: cut off, or the whole database is an older one."""
    if not chain.ahead or chain.anchor_last is None:
        return []
    where = f"entries {chain.last_seq + 1} to {chain.anchor_last.seq}"
    if uncovered:
        return [
            Finding(
                Tampering.CUT_TAIL,
                where,
                "the anchor knows them, the log ends before, and what they report is still there",
            )
        ]
    return [
        Finding(
            Tampering.RESTORED,
            where,
            "the anchor knows them, and nothing in the database is newer: it is an old backup",
        )
    ]


class _Links:
    """Looks up where a link leads; see `accounting.audit.chain.Links`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def entry(self, sha256: str) -> int | None:
        return self._first("SELECT min(seq) FROM eai.audit_events WHERE entry_sha256 = %s", sha256)

    def follower(self, sha256: str) -> int | None:
        return self._first("SELECT min(seq) FROM eai.audit_events WHERE previous_sha256 = %s", sha256)

    def _first(self, statement: str, sha256: str) -> int | None:
        row = self._connection.execute(cast("Any", statement), [sha256]).fetchone()
        return None if row is None or row[0] is None else int(row[0])


def _stream(connection: Connection, statement: str, make: Any = tuple) -> Iterator[Any]:
    """Rows of a query through a cursor on the server."""
    with connection.cursor(name=f"audit_{hashlib.sha256(statement.encode()).hexdigest()[:8]}") as cursor:
        cursor.itersize = BATCH
        cursor.execute(cast("Any", statement))
        yield from map(make, cursor)


def _check_events(connection: Connection, found: Findings) -> int:
    """Each event's hash and columns against its document."""
    statement = (
        f"SELECT seq, content_sha256, document, {', '.join(_EVENT_COLUMNS)} FROM eai.usage_events"  # noqa: S608
        " WHERE usage_type <> 'llm' ORDER BY seq"
    )
    count = 0
    for seq, content_sha256, document, *columns in _stream(connection, statement):
        count += 1
        row = dict(zip(_EVENT_COLUMNS, columns, strict=True))
        fault = _event_fault(content_sha256, document, row)
        if fault:
            found.add(Tampering.EVENT_CHANGED, f"event {row['event_id']} (arrival {seq})", fault)
    return count


def _event_fault(content_sha256: str, document: str, row: Mapping[str, Any]) -> str | None:
    if sha256_of(document) != content_sha256:
        return "its document does not hash to content_sha256"
    expected = columns_of(parsed(document))
    for name, value in row.items():
        stored = str(value) if name == "tenant_id" else value
        if stored != expected[name]:
            return f"its column {name} is {value}, its document says {expected[name]}"
    return None


def columns_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the columns of eai.usage_events must be for a document, written down a second time, on purpose."""
    cost, quality, model = document.get("cost") or {}, document.get("quality") or {}, document.get("model") or {}
    units = document.get("units") or {}
    return {
        **{name: document.get(name) for name in _PLAIN},
        **{name: _instant(document.get(name)) for name in INSTANTS},
        **{name: _decimal(units.get(name)) for name in UNITS},
        **{name: _decimal(quality.get(name)) for name in QUALITY},
        "methods": quality.get("methods"),
        "cost_amount": _decimal(cost.get("amount")),
        "cost_currency": cost.get("currency"),
        "model_provider": model.get("provider"),
        "model_name": model.get("name"),
    }


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def _check_bookings(connection: Connection, found: Findings) -> bool:
    """Every event against the entry that booked it, hour by hour; whether there are more than the entries report."""
    with connection.cursor(name="audit_hours") as cursor:
        cursor.itersize = BATCH
        cursor.execute(cast("Any", _BOOKINGS))
        logged = _Ahead(groupby(cursor, key=lambda row: (row[0], row[1])))
        uncovered = False
        for hour, rows in groupby(_stream(connection, _BOOKED), key=lambda row: (row[0], row[1])):
            for early in logged.before(hour):
                _missing(early, found)
            hashes = [row[2] for row in rows]
            uncovered |= _check_hour(hour, hashes, logged.at(hour), found)
        for late in logged.rest():
            _missing(late, found)
    return uncovered


class _Ahead:
    """Groups of bookings by hour, read along with the events."""

    def __init__(self, groups: Iterator[tuple[tuple[str, str], Iterator[Any]]]) -> None:
        self._groups = groups
        self._next = self._read()

    def _read(self) -> tuple[tuple[str, str], list[_Booking]] | None:
        for key, rows in self._groups:
            return key, [_Booking(int(row[2]), int(row[3]), row[4]) for row in rows]
        return None

    def before(self, hour: tuple[str, str]) -> Iterator[tuple[tuple[str, str], list[_Booking]]]:
        while self._next is not None and self._next[0] < hour:
            yield self._next
            self._next = self._read()

    def at(self, hour: tuple[str, str]) -> list[_Booking]:
        if self._next is None or self._next[0] != hour:
            return []
        bookings = self._next[1]
        self._next = self._read()
        return bookings

    def rest(self) -> Iterator[tuple[tuple[str, str], list[_Booking]]]:
        while self._next is not None:
            yield self._next
            self._next = self._read()


def _missing(logged: tuple[tuple[str, str], list[_Booking]], found: Findings) -> None:
    """Entries of an hour of which there is no event at all: right if they booked none."""
    hour, bookings = logged
    count = sum(booking.events for booking in bookings)
    if count:
        found.add(Tampering.EVENT_REMOVED, f"{hour[0]}, {hour[1]}", f"{count} events were booked, none is there")


def _check_hour(hour: tuple[str, str], hashes: Sequence[str], logged: Sequence[_Booking], found: Findings) -> bool:
    """The hour's events against its bookings; whether it has more events than those."""
    where = f"{hour[0]}, {hour[1]}"
    booked = sum(booking.events for booking in logged)
    if len(hashes) != booked:
        kind = Tampering.EVENT_REMOVED if len(hashes) < booked else Tampering.EVENT_ADDED
        found.add(kind, where, f"the audit log booked {booked} events, {len(hashes)} are there")
        return len(hashes) > booked
    begin = 0
    for booking in logged:
        some = hashes[begin : begin + booking.events]
        begin += booking.events
        if hashlib.sha256("".join(some).encode()).hexdigest() != booking.sha256:
            found.add(
                Tampering.EVENT_CHANGED, where, f"the events of audit entry {booking.seq} are not those it booked"
            )
            break
    return False


def _check_policies(database: Database, connection: Connection, found: Findings) -> bool:
    """Policies against the entries that added or ended them; whether one was added without an entry."""
    logged: dict[str, str] = {}
    for (policies,) in connection.execute(
        "SELECT payload -> 'policies' FROM eai.audit_events WHERE kind IN ('policy.added', 'policy.ended') ORDER BY seq"
    ):
        logged |= policies or {}
    there = {row["id"]: policy_sha256(row) for row in database.read_policies(connection).to_pylist()}
    for policy_id in sorted(logged.keys() - there.keys()):
        found.add(Tampering.FACT_CHANGED, f"policy {policy_id}", "it was added, and is not there any more")
    for policy_id in sorted(there.keys() & logged.keys()):
        if there[policy_id] != logged[policy_id]:
            found.add(Tampering.FACT_CHANGED, f"policy {policy_id}", "it is not what was added or ended")
    unknown = sorted(there.keys() - logged.keys())
    for policy_id in unknown:
        found.add(Tampering.FACT_CHANGED, f"policy {policy_id}", "no audit entry added it")
    return bool(unknown)


def _check_statements(database: Database, connection: Connection, found: Findings) -> bool:
    """Stored statements against the last entry that reports them; whether one is newer than its entry."""
    logged = {row[0]: (row[1], row[2]) for row in connection.execute(_STATEMENTS)}
    newer = False
    rows = connection.execute(
        "SELECT period, status, content_sha256 FROM eai.gpu_statements ORDER BY period"
    ).fetchall()
    for period, status, content_sha256 in rows:
        kind, sha256 = logged.get(period, (None, None))
        where = f"statement of {period}"
        if kind is None:
            found.add(Tampering.FACT_CHANGED, where, "no audit entry published it")
        elif statement_sha256(stored_statement(database, period, connection)) != content_sha256:
            found.add(Tampering.FACT_CHANGED, where, "its lines are not those that were published")
            continue
        elif sha256 != content_sha256:
            found.add(Tampering.FACT_CHANGED, where, "it is not what its last audit entry published")
        elif (status == "final") != (kind == "month.closed"):
            found.add(Tampering.FACT_CHANGED, where, f"it is {status}, its last audit entry is {kind}")
        else:
            continue
        newer = True
    for period in sorted(logged.keys() - {row[0] for row in rows}):
        found.add(Tampering.FACT_CHANGED, f"statement of {period}", "it was published, and is not there any more")
    return newer


def _check_hours(connection: Connection, found: Findings) -> bool:
    """Published hours that no entry reports; whether there are any."""
    rows = connection.execute(
        "SELECT h.cluster, to_char(h.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS hour"
        " FROM eai.hour_runs h LEFT JOIN (SELECT DISTINCT payload ->> 'cluster' AS cluster, payload ->> 'hour' AS hour"
        "   FROM eai.audit_events WHERE payload ? 'events_sha256') a ON a.cluster = h.cluster"
        "   AND a.hour = to_char(h.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
        " WHERE a.hour IS NULL ORDER BY 1, 2"
    ).fetchall()
    for cluster, hour in rows:
        found.add(Tampering.FACT_CHANGED, f"{cluster}, {hour}", "it is published, and no audit entry reports it")
    return bool(rows)
