"""The hash chain (A34): every way to change it, by hand and at random, is found and named; the anchor file."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.audit.chain import (
    GENESIS,
    AnchorLine,
    ChainReport,
    Entry,
    Tampering,
    check_chain,
    policy_sha256,
)
from finops_pipeline.resources.anchor import Anchor, AnchorError

AT = "2026-11-02T03:00:00.000Z"


def entry_of(seq: int, previous: str, payload: dict[str, Any], *, place: int | None = None) -> Entry:
    """An entry that says `seq`, in the row `place`."""
    document = rfc8785.dumps(
        {
            "schema_version": "1.0",
            "seq": seq,
            "occurred_at": AT,
            "kind": "hour.published",
            "payload": payload,
            "previous_sha256": previous,
        }
    ).decode()
    digest = hashlib.sha256(document.encode()).hexdigest()
    return Entry(seq if place is None else place, AT, "hour.published", previous, digest, document)


def chain_of(length: int, first: int = 1, previous: str = GENESIS, word: str = "hour") -> list[Entry]:
    entries: list[Entry] = []
    for seq in range(first, first + length):
        entries.append(entry_of(seq, entries[-1].entry_sha256 if entries else previous, {word: seq}))
    return entries


def anchor_of(entries: Sequence[Entry]) -> list[AnchorLine]:
    return [AnchorLine(entry.seq, entry.entry_sha256, AT) for entry in entries]


class InMemory:
    """Links of a log that is a list."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def entry(self, sha256: str) -> int | None:
        return min((entry.seq for entry in self._entries if entry.entry_sha256 == sha256), default=None)

    def follower(self, sha256: str) -> int | None:
        return min((entry.seq for entry in self._entries if entry.previous_sha256 == sha256), default=None)


def checked(entries: Sequence[Entry], anchor: Sequence[AnchorLine] | None) -> ChainReport:
    return check_chain(sorted(entries, key=lambda entry: entry.seq), anchor, InMemory(entries))


def kinds(report: ChainReport) -> set[Tampering]:
    return {finding.tampering for finding in report.findings.kept}


def wheres(report: ChainReport) -> list[str]:
    return [finding.where for finding in report.findings.kept]


def moved(entry: Entry, place: int) -> Entry:
    return entry._replace(seq=place)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_an_untouched_chain_is_intact(length: int) -> None:
    chain = chain_of(length)
    report = checked(chain, anchor_of(chain))
    assert not report.findings
    assert (report.entries, report.anchored, report.ahead, report.not_anchored) == (length, length, 0, 0)


def test_entries_after_the_anchor_are_not_anchored_yet() -> None:
    chain = chain_of(5)
    report = checked(chain, anchor_of(chain[:3]))
    assert not report.findings
    assert report.not_anchored == 2


def test_a_document_that_was_edited_in_place() -> None:
    chain = chain_of(6)
    edited = chain[2]._replace(document=chain[2].document.replace('"hour":3', '"hour":9'))
    report = checked([*chain[:2], edited, *chain[3:]], anchor_of(chain))
    assert (kinds(report), wheres(report)) == ({Tampering.CHANGED}, ["entry 3"])


@pytest.mark.parametrize("anchored", [True, False])
def test_an_entry_that_was_edited_and_hashed_anew(anchored: bool) -> None:
    chain = chain_of(6)
    edited = entry_of(3, chain[1].entry_sha256, {"hour": 9})
    report = checked([*chain[:2], edited, *chain[3:]], anchor_of(chain if anchored else chain[:1]))
    assert (kinds(report), wheres(report)) == ({Tampering.CHANGED}, ["entry 3"])


def test_the_anchor_tells_which_side_of_a_link_was_changed() -> None:
    chain = chain_of(6)
    edited = entry_of(4, "ab" * 32, {"hour": 4})
    report = checked([*chain[:3], edited, *chain[4:]], anchor_of(chain))
    assert (kinds(report), wheres(report)) == ({Tampering.CHANGED}, ["entry 4"])


@pytest.mark.parametrize("column", ["kind", "occurred_at"])
def test_a_column_that_was_changed(column: str) -> None:
    chain = chain_of(3)
    report = checked([chain[0], Entry(**{**chain[1]._asdict(), column: "x"}), chain[2]], anchor_of(chain))
    assert (kinds(report), wheres(report)) == ({Tampering.CHANGED}, ["entry 2"])


def test_numbers_that_were_moved_as_a_whole() -> None:
    chain = chain_of(3)
    report = checked([moved(entry, entry.seq + 10) for entry in chain], anchor_of(chain))
    assert kinds(report) == {Tampering.CHANGED}


@pytest.mark.parametrize("gone", [{1}, {4}, {3, 4}, {2, 5}])
@pytest.mark.parametrize("renumbered", [False, True])
def test_entries_that_were_removed(gone: set[int], renumbered: bool) -> None:
    chain = chain_of(7)
    left = [entry for entry in chain if entry.seq not in gone]
    if renumbered:
        left = [moved(entry, place) for place, entry in enumerate(left, 1)]
    report = checked(left, anchor_of(chain))
    assert kinds(report) == {Tampering.REMOVED}


@pytest.mark.parametrize("previous", ["own", "unknown"])
def test_an_entry_that_was_inserted(previous: str) -> None:
    chain = chain_of(6)
    forged = entry_of(4, chain[2].entry_sha256 if previous == "own" else "cd" * 32, {"forged": 1})
    rows = [*chain[:3], forged, *(moved(entry, entry.seq + 1) for entry in chain[3:])]
    report = checked(rows, anchor_of(chain))
    assert (kinds(report), wheres(report)) == ({Tampering.INSERTED}, ["entry 4"])


@pytest.mark.parametrize(("one", "other"), [(2, 3), (1, 2), (2, 5), (5, 6), (1, 6)])
def test_entries_that_were_swapped(one: int, other: int) -> None:
    chain = chain_of(6)
    rows = [moved(entry, {one: other, other: one}.get(entry.seq, entry.seq)) for entry in chain]
    assert kinds(checked(rows, anchor_of(chain))) == {Tampering.REORDERED}


def test_a_tail_that_is_missing() -> None:
    chain = chain_of(6)
    report = checked(chain[:4], anchor_of(chain))
    assert not report.findings, "the rest of the database tells whether it was cut or an old backup restored"
    assert (report.ahead, report.last_seq) == (2, 4)


@pytest.mark.parametrize("start", [1, 4, 6])
def test_a_chain_that_was_rewritten_from_somewhere_on(start: int) -> None:
    chain = chain_of(6)
    previous = chain[start - 2].entry_sha256 if start > 1 else GENESIS
    report = checked([*chain[: start - 1], *chain_of(7 - start, start, previous, "forged")], anchor_of(chain))
    assert (kinds(report), wheres(report)) == ({Tampering.REWRITTEN}, [f"entry {start}"])


def test_no_anchor() -> None:
    assert kinds(checked(chain_of(2), None)) == {Tampering.NO_ANCHOR}
    assert not checked([], None).findings, "an empty log needs none"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_done_to_rows_is_found(data: st.DataObject) -> None:
    """Drop, duplicate, swap, edit and rehash rows at random: unless the rows are the same, something is found."""
    chain = chain_of(data.draw(st.integers(2, 9)))
    rows = list(chain)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(rows) - 1)))
        if not rows:
            break
        match data.draw(st.sampled_from(["drop", "swap", "edit", "forge"])):
            case "drop":
                del rows[at]
            case "swap":
                other = data.draw(st.integers(0, len(rows) - 1))
                rows[at], rows[other] = rows[other], rows[at]
            case "edit":
                rows[at] = entry_of(rows[at].seq, rows[at].previous_sha256, {"edited": data.draw(st.integers(0, 9))})
            case "forge":
                rows.insert(at, entry_of(at + 1, rows[at - 1].entry_sha256 if at else GENESIS, {"forged": 1}))
    rows = [moved(entry, place) for place, entry in enumerate(rows, 1)]
    report = checked(rows, anchor_of(chain))
    assert bool(report.findings) or report.ahead or rows == chain


def test_exit_codes_differ_and_are_in_order() -> None:
    codes = [tampering.exit_code for tampering in Tampering]
    assert codes == sorted(set(codes))
    assert min(codes) >= 10


def test_a_policy_is_known_by_its_values() -> None:
    from datetime import UTC, datetime

    policy = dict.fromkeys(
        ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price"), "2.10"
    ) | {"id": "p", "effective_from": datetime(2026, 10, 1, tzinfo=UTC), "effective_to": None}
    assert policy_sha256(policy) == policy_sha256(policy | {"pue": "2.1"})
    assert policy_sha256(policy) != policy_sha256(policy | {"pue": "2.11"})


def followed(anchor: Anchor, entries: Sequence[Entry]) -> int:
    return anchor.follow(lambda seq: ((entry.seq, entry.entry_sha256) for entry in entries if entry.seq >= seq))


def lines(anchor: Anchor) -> list[AnchorLine]:
    found: Iterator[AnchorLine] | None = anchor.lines()
    assert found is not None
    return list(found)


def test_the_anchor_follows_and_catches_up(tmp_path: Path) -> None:
    anchor, chain = Anchor(tmp_path / "deep" / "audit.anchor"), chain_of(5)
    assert anchor.lines() is None
    assert followed(anchor, chain[:2]) == 2
    assert followed(anchor, chain[:2]) == 0
    assert followed(anchor, chain) == 3, "a crash between commit and anchor is made up for by the next writer"
    assert [line.sha256 for line in lines(anchor)] == [entry.entry_sha256 for entry in chain]


@pytest.mark.parametrize("cut", [1, 40, 80])
def test_a_line_that_was_not_written_whole_is_written_again(cut: int, tmp_path: Path) -> None:
    anchor, chain = Anchor(tmp_path / "audit.anchor"), chain_of(3)
    followed(anchor, chain)
    anchor.path.write_bytes(anchor.path.read_bytes()[:-cut])
    assert [line.seq for line in lines(anchor)] == [1, 2]
    assert followed(anchor, chain) == 1
    assert [line.seq for line in lines(anchor)] == [1, 2, 3]


@pytest.mark.parametrize("log", ["older", "another"])
def test_the_anchor_refuses_a_log_that_is_not_its_own(log: str, tmp_path: Path) -> None:
    anchor, chain = Anchor(tmp_path / "audit.anchor"), chain_of(3)
    followed(anchor, chain)
    with pytest.raises(AnchorError, match="restored, rewritten or is another one"):
        followed(anchor, chain[:2] if log == "older" else chain_of(4, word="forged"))


@pytest.mark.parametrize("text", ["nonsense\n", "1 abc 2026\n", "2 {0} {1}\n1 {0} {1}\n", "1 {0} {1}\n3 {0} {1}\n"])
def test_an_anchor_that_was_edited_is_no_evidence(text: str, tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "audit.anchor")
    anchor.path.write_text(text.format("ab" * 32, "2026-11-02T03:00:00Z"))
    with pytest.raises(AnchorError, match="the file was changed"):
        lines(anchor)


def test_an_anchor_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnchorError, match="FINOPS_ANCHOR_FILE"):
        followed(Anchor(tmp_path / "file" / "audit.anchor"), chain_of(1))


def test_processes_that_follow_at_once_write_each_line_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path, length = tmp_path / "audit.anchor", 12
    followed(Anchor(path), chain_of(length))
    longer = chain_of(40)
    workers = [context.Process(target=_follow_all, args=(path, 40)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert [line.seq for line in lines(Anchor(path))] == [entry.seq for entry in longer]


def _follow_all(path: Path, length: int) -> None:
    for count in range(12, length + 1):
        try:
            followed(Anchor(path), chain_of(count))
        except AnchorError:
            continue  # another process is further on than this one's view of the log
