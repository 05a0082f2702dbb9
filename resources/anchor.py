"""The anchor file: which audit entries there were, written where the database's owner does not write (A34).

A line an entry: `seq sha256 time`, appended and synced after the commit that made the entry. A crash in between leaves
the file behind the database, and the next writer catches up; a line that was not written whole is written again.
Keep the file on another machine or a write-once store, and back it up: it is what an old or rewritten database is
recognised by.

What belongs here: the file. What does not: judging the chain by it (`accounting.audit.chain`).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from finops_pipeline.accounting.audit.chain import AnchorLine
from finops_pipeline.errors import FinopsError

_LINE = re.compile(rb"(\d{1,18}) ([0-9a-f]{64}) (\S{20,30})\n")
_LONGEST = 256


class AnchorError(FinopsError):
    """The anchor file cannot be read or written, or disagrees with the database."""


class Anchor:
    """The file at `path`; it and its folder are made when the first line is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Anchor({self.path})"

    def follow(self, entries_from: Callable[[int], Iterable[tuple[int, str]]]) -> int:
        """Append what is missing; how many lines.

        `entries_from(seq)` gives (seq, entry_sha256) of the entries from `seq` on, ascending. Raises AnchorError if the
        last line is not an entry of the log: then the log is not the one that the file is about.
        """
        with self._locked() as file:
            last = _last_line(file, self.path)
            entries = iter(entries_from(last.seq if last else 1))
            if last is not None:
                found = next(entries, None)
                if found != (last.seq, last.sha256):
                    raise AnchorError(
                        f"{self.path}: its last line is entry {last.seq} ({last.sha256[:16]}), the database has"
                        f" {'none' if found is None or found[0] != last.seq else found[1][:16]}: it was restored, rewritten"
                        " or is another one; finops audit verify shows which. To go on with this database, keep the"
                        " file elsewhere as evidence and start a new one"
                    )
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            lines = [f"{seq} {sha256} {now}\n" for seq, sha256 in entries]
            if lines:
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())
        return len(lines)

    def lines(self) -> Iterator[AnchorLine] | None:
        """The lines, one at a time; None if there is no file. AnchorError at a line that is none."""
        return self._read() if self.path.exists() else None

    def _read(self) -> Iterator[AnchorLine]:
        try:
            with self.path.open("rb") as file:
                before: int | None = None
                for number, text in enumerate(file, 1):
                    if not text.endswith(b"\n"):
                        continue
                    line = _parsed(text, f"{self.path}, line {number}")
                    if before is not None and line.seq != before + 1:
                        raise AnchorError(
                            f"{self.path}, line {number}: entry {line.seq} after {before}: the file was changed"
                        )
                    yield line
                    before = line.seq
        except OSError as error:
            raise AnchorError(f"{self.path}: the audit anchor cannot be read: {error.strerror}") from None

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        try:
            new = not self.path.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            if new:
                _sync_folder(self.path.parent)
        except OSError as error:
            raise AnchorError(
                f"{self.path}: the audit anchor cannot be written: {error.strerror}; what was booked stays, and the next"
                " run catches up (FINOPS_ANCHOR_FILE names the file)"
            ) from None


def _last_line(file: BinaryIO, path: Path) -> AnchorLine | None:
    """The last whole line; the beginning of one that was not finished is cut off."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - _LONGEST)
    file.seek(start)
    tail = file.read(end - start)
    whole, newline, torn = tail.rpartition(b"\n")
    if torn:
        file.truncate(end - len(torn))
    if not newline:
        return None
    return _parsed(whole.rpartition(b"\n")[2] + b"\n", f"{path}, last line")


def _parsed(line: bytes, where: str) -> AnchorLine:
    found = _LINE.fullmatch(line)
    if found is None:
        raise AnchorError(f"{where}: not a line of an audit anchor (seq, sha256, time): the file was changed")
    seq, sha256, at = found.groups()
    return AnchorLine(int(seq), sha256.decode(), at.decode())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
