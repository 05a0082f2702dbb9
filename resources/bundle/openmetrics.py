"""Reads DCGM series from files: OpenMetrics text (plain or gzip) and Parquet, as bundles carry them.

What belongs here: turning such a file into `contracts.lake.DCGM_SERIES`, fast, and refusing a broken or cut one with
its line. What does not: which metrics matter, what a value means or whether it is plausible (A7-A10: that is
`finops_pipeline.accounting`).

Text is cut column-wise: in a block of bytes the last two spaces of each line part the series, the value and the
instant, which are then handled as three columns. The distinct series are few, and each is parsed once and exactly.
Every line that does not come out whole that way (exemplars, tabs, odd numbers, real faults) is parsed alone, by
`_sample`, which decides.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.series import Column, Millis, SeriesBuilder, Values

BLOCK_BYTES: Final = 32 << 20
PARQUET_ROWS: Final = 1 << 20

Bytes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Number = TypeVar("Number", Values, Millis)

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"\\": "\\", '"': '"', "n": "\n"}
_FIELD: Final = re.compile(r"[^ \t]+")
_VALUE: Final = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
_INSTANT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_PLAIN_VALUE: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|[+-]Inf")
_PLAIN_INSTANT: Final = re.compile(rb"-?[0-9]{1,12}(?:\.[0-9]{1,9})?")
_EXACT_SECONDS: Final = pa.decimal128(24, 9)
_LAST_MS: Final = 253_402_300_800_000
"""The end of the year 9999: a later instant was not written in seconds."""
_PARQUET_COLUMNS: Final = ["metric", "labels", "timestamp", "value"]


class LineError(ValueError):
    """Why a line cannot be read; the caller adds file and line."""


def read_series(path: Path) -> pa.Table:
    """The whole of a `dcgm.om`, `dcgm.om.gz` or `dcgm.parquet` as DCGM_SERIES: one row per series, instants ascending.

    Seconds are rounded half-even to milliseconds from their decimal text. Raises UsageError for a file that cannot be
    read, is cut (no `# EOF`), or has a broken line, which it names.
    """
    try:
        if path.name.endswith(".parquet"):
            return _read_parquet(path)
        if path.name.endswith(".gz"):
            with gzip.open(path, "rb") as stream:
                return _read_text(cast(BinaryIO, stream), str(path))
        with path.open("rb") as stream:
            return _read_text(stream, str(path))
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise UsageError(f"{path}: cannot be read ({_first_line(error)}): write the file again") from error


def _read_text(stream: BinaryIO, name: str) -> pa.Table:
    reader = _TextReader(name)
    for block in _blocks(stream):
        reader.read(block)
    return reader.finish()


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Pieces of whole lines; only the last may lack its line end."""
    rest = b""
    while piece := stream.read(BLOCK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield rest + piece[:cut]
            rest = piece[cut:]
        else:
            rest += piece
    if rest:
        yield rest


class _TextReader:
    """One pass over an OpenMetrics text, block by block."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._builder = SeriesBuilder()
        self._known: dict[bytes, int] = {}
        self._lines = 0
        self._ended = False

    def read(self, block: bytes) -> None:
        """Takes the samples of a block of whole lines."""
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        if not len(ends) or ends[-1] != len(data) - 1:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        filled = ends > starts
        comments = filled.copy()
        comments[filled] = data[starts[filled]] == ord("#")
        sampled = np.flatnonzero(filled & ~comments)
        self._find_end(block, starts, ends, np.flatnonzero(comments), sampled)
        if len(sampled):
            self._samples(block, data, starts[sampled], ends[sampled], sampled)
        self._lines += len(ends)

    def finish(self) -> pa.Table:
        """The table of everything read; the text must have ended with `# EOF`."""
        if not self._ended:
            raise UsageError(
                f"{self._name}: does not end with `# EOF` (line {self._lines}): the file is cut off; write it again"
            )
        return self._builder.table()

    def _find_end(
        self, block: bytes, starts: Positions, ends: Positions, comments: Positions, sampled: Positions
    ) -> None:
        """Notes `# EOF` and refuses what follows it."""
        after = -1 if self._ended else None
        for line in comments.tolist():
            if after is None and block[starts[line] : ends[line]].rstrip() == b"# EOF":
                after = line
                self._ended = True
        if after is not None:
            follows = np.concatenate([comments, sampled])
            follows = follows[follows > after]
            if len(follows):
                raise self._fault(int(follows.min()), "text after `# EOF`: the file is two files in one")

    def _samples(self, block: bytes, data: Bytes, starts: Positions, ends: Positions, lines: Positions) -> None:
        spaces = np.flatnonzero(data == ord(" "))
        last = np.searchsorted(spaces, ends) - 1
        whole = last >= 1
        whole[whole] = spaces[last[whole] - 1] > starts[whole]
        fast = np.flatnonzero(whole)
        second, first = spaces[last[fast]], spaces[last[fast] - 1]
        names, values, seconds = _columns(block, starts[fast], first, second, ends[fast])
        encoded = names.dictionary_encode()
        ids = np.array([self._series(text) for text in encoded.dictionary.to_pylist()], dtype=np.int64)
        codes = np.asarray(encoded.indices)
        rows = ids[codes] if len(ids) else np.empty(0, dtype=np.int64)
        numbers, good_numbers = _converted(values, _PLAIN_VALUE, _floats)
        instants, good_instants = _converted(seconds, _PLAIN_INSTANT, _millis)
        good = (rows >= 0) & good_numbers & good_instants & (np.abs(instants) < _LAST_MS)
        self._builder.add(rows[good], instants[good], numbers[good])
        alone = np.setdiff1d(np.arange(len(lines)), fast[good], assume_unique=True)
        for index in alone.tolist():
            self._alone(block[starts[index] : ends[index]], int(lines[index]))

    def _series(self, text: bytes) -> int:
        """The id of a distinct series text; -1 if it is not one series and nothing else."""
        known = self._known.get(text)
        if known is None:
            known = -1
            try:
                decoded = text.decode()
                metric, labels, end = _parse_series(decoded)
                if end == len(decoded):
                    known = self._builder.series(metric, labels)
            except ValueError:
                pass
            self._known[text] = known
        return known

    def _alone(self, raw: bytes, line: int) -> None:
        """One line by itself."""
        try:
            text = raw.decode().rstrip("\r")
            if not text.strip():
                return
            metric, labels, value, instant = _sample(text)
        except UnicodeDecodeError as error:
            raise self._fault(line, "not UTF-8") from error
        except LineError as error:
            raise self._fault(line, str(error)) from error
        ids = np.array([self._builder.series(metric, labels)], dtype=np.int64)
        self._builder.add(ids, np.array([instant], dtype=np.int64), np.array([value], dtype=np.float64))

    def _fault(self, line: int, reason: str) -> UsageError:
        return UsageError(f"{self._name}: line {self._lines + line + 1}: {reason}")


def _columns(
    block: bytes, starts: Positions, first: Positions, second: Positions, ends: Positions
) -> tuple[Column, Column, Column]:
    """The three columns of lines (series, value, seconds), cut out of the block without looking at a line twice."""
    if not len(starts):
        return pa.array([], pa.large_binary()), pa.array([], pa.large_string()), pa.array([], pa.large_string())
    cuts = np.stack([starts, first, first + 1, second, second + 1, ends], axis=1).ravel()
    offsets = pa.py_buffer(np.append(cuts, ends[-1]).data)
    pieces = pa.Array.from_buffers(pa.large_binary(), len(cuts), [None, offsets, pa.py_buffer(block)])
    rows = np.arange(0, len(cuts), 6)
    names, values, seconds = (pieces.take(rows + column) for column in (0, 2, 4))
    return names, values.view(pa.large_string()), seconds.view(pa.large_string())


def _floats(texts: Column) -> Values:
    return np.asarray(texts.cast(pa.float64()))


def _millis(texts: Column) -> Millis:
    """Decimal seconds, rounded half-even to milliseconds without ever being a binary fraction."""
    rounded = pc.round(texts.cast(_EXACT_SECONDS), 3, round_mode="half_to_even").cast(pa.decimal128(18, 3))
    return np.frombuffer(rounded.buffers()[1], dtype=np.int64)[::2][: len(texts)]


def _converted(texts: Column, plain: re.Pattern[bytes], convert: Callable[[Column], Number]) -> tuple[Number, Mask]:
    """The column as numbers, and where that could be done; elsewhere the number is meaningless."""
    try:
        return convert(texts), np.ones(len(texts), dtype=np.bool_)
    except pa.ArrowInvalid:
        good = [plain.fullmatch(text) is not None for text in texts.view(pa.large_binary()).to_pylist()]
        mask = np.array(good, dtype=np.bool_)
        return convert(pc.if_else(pa.array(mask), texts.view(pa.large_binary()), b"0").view(pa.large_string())), mask


def _sample(text: str) -> tuple[str, dict[str, str], float, int]:
    """One line: metric, labels, value and instant in milliseconds. Raises LineError with the reason."""
    metric, labels, at = _parse_series(text)
    if at < len(text) and text[at] not in " \t":
        raise LineError(f"unexpected {text[at]!r} after the series (character {at + 1})")
    fields = _FIELD.findall(text, at)
    if not fields:
        raise LineError("the sample has no value")
    if not _VALUE.fullmatch(fields[0]):
        raise LineError(f"value {fields[0]!r} is not a number")
    if len(fields) == 1 or fields[1] == "#":
        raise LineError("the sample has no timestamp")
    if not _INSTANT.fullmatch(fields[1]):
        raise LineError(f"timestamp {fields[1]!r} is not a number of seconds")
    if len(fields) > 2 and fields[2] != "#":
        raise LineError(f"unexpected {fields[2]!r} after the timestamp")
    instant = round(Fraction(fields[1]) * 1000)
    if abs(instant) >= _LAST_MS:
        raise LineError(f"timestamp {fields[1]!r} is beyond the year 9999: timestamps are in seconds")
    return metric, labels, float(fields[0]), instant


def _parse_series(text: str) -> tuple[str, dict[str, str], int]:
    """The series at the start of a text: metric, labels, and where it ends. Raises LineError."""
    name = _NAME.match(text)
    metric, end = (name.group(), name.end()) if name else ("", 0)
    labels: dict[str, str] = {}
    at = _skip(text, end)
    if text.startswith("{", at):
        at = _skip(text, at + 1)
        while not text.startswith("}", at):
            key, value, at = _parse_label(text, at)
            if value is None or key == "__name__":
                if metric:
                    raise LineError(f"a second metric name {value or key!r}")
                metric = value or key
            elif key in labels:
                raise LineError(f"label {key!r} is there twice")
            else:
                labels[key] = value
            if text.startswith(",", at):
                at = _skip(text, at + 1)
            elif not text.startswith("}", at):
                raise LineError(f"the label set is not closed (character {at + 1})")
        end = at + 1
    if not metric:
        raise LineError("no metric name at its start")
    return metric, labels, end


def _parse_label(text: str, at: int) -> tuple[str, str | None, int]:
    """A label at a position: name, value, and the next position; a quoted text alone is a metric name (no value)."""
    quoted = _QUOTED.match(text, at)
    name = quoted or _LABEL_NAME.match(text, at)
    if name is None:
        raise LineError(f"a label name is missing or the label set is not closed (character {at + 1})")
    key = _unescape(quoted.group(1)) if quoted else name.group()
    at = _skip(text, name.end())
    if not text.startswith("=", at):
        if quoted is None:
            raise LineError(f"label {key!r} has no value")
        return key, None, at
    value = _QUOTED.match(text, _skip(text, at + 1))
    if value is None:
        raise LineError(f"the value of label {key!r} has no quotes or is not closed")
    return key, _unescape(value.group(1)), _skip(text, value.end())


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found.group(1), found.group()), text) if "\\" in text else text


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _read_parquet(path: Path) -> pa.Table:
    """Rows (metric, labels, timestamp, value), grouped by series."""
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    _check_columns(path, schema)
    builder = SeriesBuilder()
    row = 0
    for batch in file.iter_batches(PARQUET_ROWS, columns=_PARQUET_COLUMNS):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count:
                bad = row + column.is_null().index(True).as_py() + 1
                raise UsageError(f"{path}: row {bad}: `{name}` is null: every sample needs one")
        metrics = _plain(batch["metric"]).dictionary_encode()
        codes, sets = _label_sets(path, batch["labels"])
        flat = np.asarray(metrics.indices, dtype=np.int64) * max(len(sets), 1) + codes
        present, inverse = np.unique(flat, return_inverse=True)
        names = metrics.dictionary.to_pylist()
        ids = [builder.series(names[pair // len(sets)], sets[pair % len(sets)]) for pair in present.tolist()]
        builder.add(
            np.array(ids, dtype=np.int64)[inverse],
            _parquet_millis(batch["timestamp"]),
            np.asarray(batch["value"].cast(pa.float64())),
        )
        row += batch.num_rows
    return builder.table()


def _check_columns(path: Path, schema: pa.Schema) -> None:
    """Refuses a file without the four columns of bundles.md, or with other types than theirs."""
    for name in _PARQUET_COLUMNS:
        if name not in schema.names:
            raise UsageError(f"{path}: has no column `{name}`: it needs {', '.join(_PARQUET_COLUMNS)}")
    types = {name: schema.field(name).type for name in _PARQUET_COLUMNS}
    wanted = {
        "metric": (_is_text(types["metric"]), "text"),
        "labels": (
            pa.types.is_map(types["labels"])
            and _is_text(types["labels"].key_type)
            and _is_text(types["labels"].item_type),
            "a map of text to text",
        ),
        "timestamp": (
            pa.types.is_timestamp(types["timestamp"]) and types["timestamp"].tz is not None,
            "an instant in UTC",
        ),
        "value": (pa.types.is_floating(types["value"]) or pa.types.is_integer(types["value"]), "a number"),
    }
    for name, (good, expected) in wanted.items():
        if not good:
            raise UsageError(f"{path}: column `{name}` is {types[name]}: it must be {expected}")


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner))


def _plain(texts: Column) -> Column:
    return texts.cast(pa.string())


def _label_sets(path: Path, column: Column) -> tuple[Positions, list[dict[str, str]]]:
    """For each row the number of its label set, and the distinct sets, compared by their pairs of codes."""
    offsets = np.asarray(column.offsets, dtype=np.int64)
    keys = _plain(column.keys[offsets[0] : offsets[-1]]).dictionary_encode()
    items = _plain(column.items[offsets[0] : offsets[-1]]).fill_null("").dictionary_encode()
    pairs = np.stack([np.asarray(keys.indices), np.asarray(items.indices)], axis=1).astype(np.int32)
    starts = pa.py_buffer((offsets - offsets[0]) * pairs.itemsize * 2)
    rows = pa.Array.from_buffers(pa.large_binary(), len(column), [None, starts, pa.py_buffer(pairs.tobytes())])
    encoded: Column = rows.dictionary_encode()
    names, values = keys.dictionary.to_pylist(), items.dictionary.to_pylist()
    sets: list[dict[str, str]] = []
    for raw in encoded.dictionary.to_pylist():
        found = np.frombuffer(raw, dtype=np.int32).reshape(-1, 2).tolist()
        labels = {names[key]: values[item] for key, item in found}
        if len(labels) != len(found):
            raise UsageError(f"{path}: a label is twice in one label set: {sorted(names[key] for key, _ in found)}")
        sets.append(labels)
    return np.asarray(encoded.indices, dtype=np.int64), sets


def _parquet_millis(column: Column) -> Millis:
    """Instants as milliseconds, finer ones rounded half-even."""
    counts = np.asarray(column.cast(pa.int64()))
    per_ms = {"s": 0, "ms": 1, "us": 1000, "ns": 1_000_000}[column.type.unit]
    if per_ms == 0:
        return counts * 1000
    whole, rest = np.divmod(counts, per_ms)
    up: Mask = (2 * rest > per_ms) | ((2 * rest == per_ms) & (whole % 2 == 1))
    return whole + up


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
