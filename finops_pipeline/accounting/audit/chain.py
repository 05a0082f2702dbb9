"""Whether the audit log is what it was: a hash chain, and its anchor outside the database (A34).

Every entry names the hash of the one before, so what was done to the chain shows in its links:

* both ends of a broken link are nowhere else: an entry was *changed* and hashed anew, or, if numbers are missing
  there, *removed*;
* an entry that nobody follows and that follows nobody was *inserted*; entries that do follow each other, but elsewhere,
  were *reordered*;
* a chain without a broken link that says something else than the anchor was *rewritten* as a whole, and one that
  ends before the anchor does lost its tail: it was *cut*, or the whole database is a *restored* backup. These two differ
  in what else is in the database, which is not known here.

The chain and the anchor are read once, in order, and never held. What belongs here: judging entries. What does not:
reading them, and what the entries say about events, policies and statements (`finops_pipeline.audit`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, Protocol

import rfc8785

from finops_pipeline.contracts.policy import PRICES

GENESIS = "0" * 64
"""`previous_sha256` of the first entry."""
SHOWN = 50
"""Findings that are kept; the others are counted."""


class Tampering(Enum):
    """What was done, by name and the exit code of `finops audit verify`; of several the first here is the command's."""

    CHANGED = ("changed", 10)
    REMOVED = ("removed", 11)
    INSERTED = ("inserted", 12)
    REORDERED = ("reordered", 13)
    CUT_TAIL = ("cut_tail", 14)
    REWRITTEN = ("rewritten", 15)
    RESTORED = ("restored", 16)
    EVENT_CHANGED = ("event_changed", 17)
    EVENT_REMOVED = ("event_removed", 18)
    EVENT_ADDED = ("event_added", 19)
    FACT_CHANGED = ("fact_changed", 20)
    NO_ANCHOR = ("no_anchor", 21)

    def __init__(self, label: str, exit_code: int) -> None:
        self.label = label
        self.exit_code = exit_code


class Entry(NamedTuple):
    """A row of eai.audit_events."""

    seq: int
    occurred_at: str
    """as the document has it"""
    kind: str
    previous_sha256: str
    entry_sha256: str
    document: str


class AnchorLine(NamedTuple):
    """A line of the anchor file."""

    seq: int
    sha256: str
    at: str


class Finding(NamedTuple):
    """One thing that is not as it was."""

    tampering: Tampering
    where: str
    detail: str


class Links(Protocol):
    """Where else in the log a link leads, by hash; asked only where a link is broken."""

    def entry(self, sha256: str) -> int | None:
        """`seq` of the row with this `entry_sha256`."""
        ...

    def follower(self, sha256: str) -> int | None:
        """`seq` of a row with this `previous_sha256`."""
        ...


@dataclass
class Findings:
    """Findings in the order in which they were made; how many were not kept."""

    kept: list[Finding] = field(default_factory=list)
    more: int = 0

    def add(self, tampering: Tampering, where: str, detail: str) -> None:
        if len(self.kept) < SHOWN:
            self.kept.append(Finding(tampering, where, detail))
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self.kept)

    def worst(self) -> Tampering | None:
        """The first of `Tampering` that was found."""
        found = {finding.tampering for finding in self.kept}
        return next((tampering for tampering in Tampering if tampering in found), None)


@dataclass
class ChainReport:
    """What the chain and the anchor alone show."""

    findings: Findings = field(default_factory=Findings)
    entries: int = 0
    last_seq: int = 0
    anchored: int = 0
    """entries that the anchor confirms"""
    ahead: int = 0
    """lines of the anchor after the chain's end: the tail is missing"""
    anchor_last: AnchorLine | None = None

    @property
    def not_anchored(self) -> int:
        """Entries after the anchor's end: written after a crash, or by somebody else, before the anchor caught up."""
        return max(0, self.last_seq - (self.anchor_last.seq if self.anchor_last else 0))


def check_chain(entries: Iterable[Entry], anchor: Iterable[AnchorLine] | None, links: Links) -> ChainReport:
    """Judge the log, `entries` in order of `seq`, against itself and the anchor's lines (None: there is no anchor)."""
    report = ChainReport()
    lines = _Lines(anchor or ())
    chain = _Chain(report.findings, links)
    first_other: tuple[int, int] | None = None
    misplaced: int | None = None
    for entry in entries:
        report.entries += 1
        sha256, number = chain.judge(entry)
        misplaced = number if misplaced is None and number != entry.seq else misplaced
        known = lines.of(number)
        chain.anchored = None if known is None else known.sha256
        if known is not None and known.sha256 == sha256:
            report.anchored += 1
        elif known is not None:
            first_other = (number, 1) if first_other is None else (first_other[0], first_other[1] + 1)
        report.last_seq = max(report.last_seq, number)
    report.ahead = lines.rest(report.last_seq)
    report.anchor_last = lines.last
    if misplaced is not None and not report.findings:
        report.findings.add(Tampering.CHANGED, f"entry {misplaced}", "its column seq is not that of its document")
    if first_other is not None and not report.findings:
        number, count = first_other
        report.findings.add(
            Tampering.REWRITTEN,
            f"entry {number}",
            f"the chain is consistent, but from here on {count} of its entries are not those that the anchor knows",
        )
    if anchor is None and report.entries:
        report.findings.add(Tampering.NO_ANCHOR, "the anchor file", "it is missing: a cut tail could not be seen")
    return report


def parsed(document: str) -> Mapping[str, Any]:
    """A document as JSON; empty if it is none."""
    try:
        found = json.loads(document)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_canonical(document: str) -> bool:
    """Whether a text is its own canonical JSON (RFC 8785)."""
    try:
        return rfc8785.dumps(json.loads(document)).decode() == document
    except (ValueError, rfc8785.CanonicalizationError):
        return False


def policy_sha256(policy: Mapping[str, Any]) -> str:
    """What the audit log knows a policy (a row of ALLOCATION_POLICIES) by: prices by value, instants in UTC."""
    content = dict(policy)
    for name in PRICES:
        content[name] = f"{Decimal(content[name]).normalize():f}"
    for name in ("effective_from", "effective_to"):
        instant = content[name]
        content[name] = instant and instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return hashlib.sha256(rfc8785.dumps(content)).hexdigest()


class _Chain:
    """The walk along the links."""

    def __init__(self, findings: Findings, links: Links) -> None:
        self._findings = findings
        self._links = links
        self._tip = {GENESIS}
        """hashes that the next entry may follow"""
        self._before = set[str]()
        """those that the last entry could follow"""
        self._last = 0
        self._blamed = False
        """whether the last entry was found guilty already"""
        self.anchored: str | None = None
        """what the anchor says of the last entry"""

    def judge(self, entry: Entry) -> tuple[str, int]:
        """Judge the next entry; its hash, and the number that it gives itself."""
        document = parsed(entry.document)
        sha256 = sha256_of(entry.document)
        number = document["seq"] if isinstance(document.get("seq"), int) else entry.seq
        fault = _own_fault(entry, document, sha256)
        if fault:
            self._findings.add(Tampering.CHANGED, f"entry {number}", fault)
        blamed = bool(fault)
        previous = document.get("previous_sha256", entry.previous_sha256)
        if previous in self._tip or (fault and entry.previous_sha256 in self._tip):
            if number != self._last + 1 and not fault:
                self._findings.add(Tampering.CHANGED, f"entry {number}", f"it follows entry {self._last}")
                blamed = True
            self._move(number, {sha256, entry.entry_sha256})
        elif previous in self._before and self._blamed:
            blamed = True
            self._move(number, {sha256, entry.entry_sha256})
        elif previous in self._before:
            self._findings.add(Tampering.INSERTED, f"entry {self._last}", f"entry {number} follows the one before it")
            self._move(number, {sha256, entry.entry_sha256})
        else:
            blamed = self._broken(entry, number, previous, sha256) or blamed
        self._blamed = blamed
        return sha256, number

    def _move(self, number: int, tip: set[str]) -> None:
        self._before, self._tip, self._last = self._tip, tip, number

    def _broken(self, entry: Entry, number: int, previous: str, sha256: str) -> bool:
        """A link that does not hold; whether this entry is to blame."""
        ahead = next((seq for tip in sorted(self._tip) if (seq := self._links.follower(tip)) is not None), None)
        elsewhere = self._links.entry(previous) is not None or (
            previous == GENESIS and self._links.follower(GENESIS) == entry.seq
        )
        where = f"entry {number}"
        blamed = elsewhere
        if ahead is not None and not elsewhere:
            self._findings.add(Tampering.INSERTED, where, f"nothing is before it, and entry {self._last} goes on later")
            return True
        if elsewhere:
            self._findings.add(Tampering.REORDERED, where, f"it follows entry {self._last}, but belongs after another")
        elif number > self._last + 1:
            gone = f"entries {self._last + 1} to {number - 1}" if number > self._last + 2 else f"entry {number - 1}"
            self._findings.add(Tampering.REMOVED, gone, f"entry {number} follows entry {self._last}")
        elif not self._blamed:
            mine = self.anchored is not None and self.anchored in self._tip
            changed = number if mine else self._last
            self._findings.add(
                Tampering.CHANGED, f"entry {changed}", f"entry {number} does not name the hash of entry {self._last}"
            )
            blamed = mine
        self._move(number, {sha256, entry.entry_sha256})
        return blamed


def _own_fault(entry: Entry, document: Mapping[str, Any], sha256: str) -> str | None:
    """What is wrong with an entry by itself."""
    if not document:
        return "its document is not JSON"
    if sha256 != entry.entry_sha256:
        return f"its document hashes to {sha256[:16]}, it says {entry.entry_sha256[:16]}"
    if not is_canonical(entry.document):
        return "its document is not canonical JSON"
    for name in ("kind", "occurred_at", "previous_sha256"):
        if document.get(name) != getattr(entry, name):
            return f"its column {name} is {getattr(entry, name)}, its document says {document.get(name)}"
    return None


class _Lines:
    """The anchor's lines, read along with the chain."""

    def __init__(self, lines: Iterable[AnchorLine]) -> None:
        self._lines: Iterator[AnchorLine] = iter(lines)
        self._next = next(self._lines, None)
        self.last: AnchorLine | None = None

    def of(self, seq: int) -> AnchorLine | None:
        while self._next is not None and self._next.seq < seq:
            self._advance()
        return self._next if self._next is not None and self._next.seq == seq else None

    def rest(self, seq: int) -> int:
        """How many lines there are after `seq`; reads them all."""
        count = 0
        while self._next is not None:
            count += self._next.seq > seq
            self._advance()
        return count

    def _advance(self) -> None:
        self.last = self._next
        self._next = next(self._lines, None)
