"""The door to a bundle: a period's inputs as files (bundle.toml, DCGM dump, CSV files, policies).

What belongs here: reading these files into the lake's input tables and refusing, with file, row, column and value, what
cannot be what it should be. What does not: faults of content, which the accounting sets aside (A5: repeated or
conflicting events, unmatched stops, `gpu_count <= 0`, negative tokens, events of the future); they pass as they are.
Instants are rounded half-even to milliseconds (A1); numbers stay exact.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.contracts.lake import (
    ALLOCATION_POLICIES,
    DCGM_SERIES,
    DEPLOYMENT_STORAGE,
    DEPLOYMENTS,
    GPU_INVENTORY,
    TOKEN_USAGE,
    WORKLOAD_EVENTS,
)
from finops_pipeline.contracts.policy import PolicyError, validate_policy
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.openmetrics import read_series
from finops_pipeline.resources.series import Column
from finops_pipeline.settings import HONOR_LABELS, accounting_tables, read_toml

GIVEN_POLICIES: Final = pa.schema([field.with_nullable(nullable=True) for field in ALLOCATION_POLICIES])
"""Policies as a bundle gives them: what is null, the ledger completes (A22)."""
SETTINGS_FILE: Final = "bundle.toml"
SERIES_FILES: Final = ("dcgm.om", "dcgm.om.gz", "dcgm.parquet")
POLICIES_FILE: Final = "allocation_policies.json"
CSV_TABLES: Final[Mapping[str, pa.Schema]] = {
    "workload_events": WORKLOAD_EVENTS,
    "deployments": DEPLOYMENTS,
    "token_usage": TOKEN_USAGE,
    "deployment_storage": DEPLOYMENT_STORAGE,
    "gpu_inventory": GPU_INVENTORY,
}
OPTIONAL: Final = {"deployments": ("valid_from", "valid_to")}
"""Columns that a file may lack: the platform keeps only the present row."""

_KEYS: Final[tuple[str, ...]] = ("cluster", "from", "to", "now", "window_seconds", "platform_tenant")
_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
_RFC3339_COMMON: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"
_INSTANT_EXPECTED: Final = "an RFC 3339 time like 2026-10-01T10:05:00.250Z"
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TENANTS: Final = frozenset({"tenant_id", "owner_tenant_id"})
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("dedicated", "shared"),
}

Wrong: TypeAlias = Callable[[int, object, str], NoReturn]
"""Raises for a row (index), its value and what was expected."""


NOBODY = "00000000-0000-0000-0000-000000000000"
"""The nil UUID: the platform tenant where neither the bundle nor the environment names one."""


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its settings are read and right; its files are read when asked for."""

    folder: Path
    cluster: str
    start: datetime
    end: datetime
    """whole UTC hours, half-open"""
    now: datetime | None
    """the wall clock to assume (A2); None is the real one"""
    window_seconds: int
    platform_tenant: str | None
    tables: Mapping[str, Any] = field(default_factory=dict)
    """[models], [card_limits], [class_watts], [class_fraction], ... as written, checked"""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads `bundle.toml`. Raises UsageError if there is none, or a key is missing, unknown or wrong."""
        path = folder / SETTINGS_FILE
        if not path.is_file():
            raise UsageError(f"{folder}: is not a bundle: it has no {SETTINGS_FILE}")
        raw = read_toml(path)
        settings = {key: raw.pop(key) for key in _KEYS if key in raw}
        _refuse_unknown_keys(path, raw)
        accounting_tables(raw, str(path))
        _refuse_misspelt_files(folder)
        keys = _Keys(path, settings)
        start, end = keys.hour("from"), keys.hour("to")
        if end <= start:
            keys.wrong("to", "a time after `from`")
        return cls(
            folder=folder,
            cluster=keys.cluster(),
            start=start,
            end=end,
            now=keys.instant("now") if "now" in settings else None,
            window_seconds=keys.window_seconds(),
            platform_tenant=keys.tenant() if "platform_tenant" in settings else None,
            tables=raw,
        )

    def accounting(self, platform_tenant: str = NOBODY) -> AccountingConfig:
        """The configuration of the accounting that the bundle asks for, over the defaults that ship.

        `platform_tenant` is for a bundle that names none.
        """
        tables = accounting_tables(self.tables, str(self.folder / SETTINGS_FILE))
        tenant = self.platform_tenant or platform_tenant
        return AccountingConfig(platform_tenant=tenant, window_seconds=self.window_seconds, **tables)

    def series(self) -> pa.Table:
        """The whole DCGM dump as DCGM_SERIES; no rows without one."""
        found = [self.folder / name for name in SERIES_FILES if (self.folder / name).exists()]
        if len(found) > 1:
            raise UsageError(f"{self.folder}: has {found[0].name} and {found[1].name}: keep one of them")
        return read_series(found[0]) if found else DCGM_SERIES.empty_table()

    def platform(self) -> dict[str, pa.Table]:
        """The platform's records by table name (`contracts.lake`); a missing file is a table without rows."""
        tables = {
            name: _read_csv(self.folder / f"{name}.csv", schema, self.cluster) for name, schema in CSV_TABLES.items()
        }
        return tables | {"allocation_policies": read_policies(self.folder / POLICIES_FILE, self.start)}


def instant_ms(text: str) -> int:
    """An RFC 3339 time as UTC milliseconds since 1970, rounded half-even (A1). Raises ValueError."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"not {_INSTANT_EXPECTED}")
    day, clock, fraction, sign, hours, minutes = found.groups()
    local = datetime.fromisoformat(f"{day}T{clock}+00:00")
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta(0)
    whole = (local - _EPOCH - (-offset if sign == "-" else offset)) // timedelta(milliseconds=1)
    return whole + round(Fraction(int(fraction) * 1000, 10 ** len(fraction))) if fraction else whole


def policy_documents(path: Path) -> list[Any]:
    """Policies (A22) as a file has them: a JSON list, or one policy, the body of a request. Raises UsageError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, object_pairs_hook=_once)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: is not valid JSON: {error}") from error
    if isinstance(raw, dict):
        return [raw]
    if not isinstance(raw, list):
        raise UsageError(f"{path}: expected a list of policies")
    return raw


def read_policies(path: Path, first_hour: datetime) -> pa.Table:
    """A bundle's policies, in force from its first hour where they do not say; prices that are not given are null (A22).

    Raises UsageError naming the policy and the field.
    """
    if not path.exists():
        return GIVEN_POLICIES.empty_table()
    try:
        rows = [validate_policy(document, str(path)) for document in policy_documents(path)]
    except PolicyError as error:
        raise UsageError(str(error)) from None
    ids = [row["id"] for row in rows if row["id"]]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise UsageError(f"{path}: policy {twice}: the id is there twice: a new version needs a new id (A22)")
    rows = [row | {"effective_from": row["effective_from"] or first_hour} for row in rows]
    return pa.Table.from_pylist(rows, schema=GIVEN_POLICIES)


class _Keys:
    """The keys of bundle.toml with their place."""

    def __init__(self, path: Path, raw: Mapping[str, Any]) -> None:
        self._path = path
        self._raw = raw

    def wrong(self, key: str, expected: str) -> NoReturn:
        if key not in self._raw:
            raise UsageError(f"{self._path}: `{key}` is missing: expected {expected}")
        value = self._raw[key]
        shown = value.isoformat() if hasattr(value, "isoformat") else repr(value)
        raise UsageError(f"{self._path}: {key} = {shown}: expected {expected}")

    def cluster(self) -> str:
        value = self._raw.get("cluster")
        if not isinstance(value, str) or not _CLUSTER.fullmatch(value):
            self.wrong("cluster", "a name of letters, digits, `.`, `_`, `-`")
        return value

    def instant(self, key: str) -> datetime:
        value = self._raw.get(key)
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.isoformat()
        try:
            return _EPOCH + timedelta(milliseconds=instant_ms(value if isinstance(value, str) else ""))
        except (ValueError, OverflowError):
            self.wrong(key, _INSTANT_EXPECTED)

    def hour(self, key: str) -> datetime:
        value = self.instant(key)
        if value.minute or value.second or value.microsecond:
            self.wrong(key, "a whole UTC hour like 2026-10-01T10:00:00Z (A1)")
        return value

    def window_seconds(self) -> int:
        value = self._raw.get("window_seconds", 15)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or 3600 % value:
            self.wrong("window_seconds", "whole seconds that divide 3600 (A11)")
        return value

    def tenant(self) -> str:
        value = self._raw.get("platform_tenant")
        if not isinstance(value, str) or not _UUID.fullmatch(value):
            self.wrong("platform_tenant", "a uuid")
        return str(UUID(value))


def _refuse_unknown_keys(path: Path, tables: Mapping[str, Any]) -> None:
    """A key that is no table is an unknown key; unknown tables are refused by the accounting's own reader."""
    for key, value in tables.items():
        if not isinstance(value, dict) and key != HONOR_LABELS:
            raise UsageError(f"{path}: unknown key `{key}`: expected {', '.join(_KEYS)} or a table of the accounting")


def _refuse_misspelt_files(folder: Path) -> None:
    """A misspelt file would be a missing one, and a missing one means no rows."""
    known = [SETTINGS_FILE, *SERIES_FILES, POLICIES_FILE, *(f"{name}.csv" for name in CSV_TABLES)]
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in known:
            near = difflib.get_close_matches(path.name.lower(), known, n=1, cutoff=0.85)
            if near:
                raise UsageError(f"{path}: is not a file of a bundle: did you mean {near[0]}?")


def _read_csv(path: Path, schema: pa.Schema, cluster: str) -> pa.Table:
    """A CSV file with the columns of a schema, in any order. Row numbers in errors count the header as row 1.

    An inventory may have a column `cluster`; rows of other clusters are left out.
    """
    if not path.exists():
        return schema.empty_table()
    broken: list[csv.InvalidRow] = []

    def invalid(row: csv.InvalidRow) -> Literal["skip", "error"]:
        broken.append(row)
        return "skip"

    try:
        columns = _header(path, schema)
        raw = csv.read_csv(
            path,
            csv.ReadOptions(use_threads=False),
            csv.ParseOptions(newlines_in_values=True, invalid_row_handler=invalid),
            csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path}: cannot be read as CSV in UTF-8: {str(error).splitlines()[0]}") from error
    if broken:
        row = broken[0]
        raise UsageError(f"{path}: row {row.number}: has {row.actual_columns} fields of {row.expected_columns}")
    table = pa.table(
        [
            _column(path, raw[name].combine_chunks(), schema.field(name))
            if name in columns
            else pa.nulls(len(raw), schema.field(name).type)
            for name in schema.names
        ],
        schema=schema,
    )
    return table.filter(pc.is_in(raw["cluster"], pa.array(["", cluster]))) if "cluster" in columns else table


def _header(path: Path, schema: pa.Schema) -> list[str]:
    """The names in the first row: those of the schema, each once, and for the inventory also `cluster` (section 2)."""
    with path.open(encoding="utf-8-sig") as file:
        names = [name.strip('"') for name in file.readline().rstrip("\r\n").split(",")]
    allowed = [*schema.names, "cluster"] if schema is GPU_INVENTORY else schema.names
    expected = f"expected {', '.join(schema.names)}"
    for name in names:
        if name not in allowed:
            raise UsageError(f"{path}: row 1: unknown column {name!r}: {expected}")
        if names.count(name) > 1:
            raise UsageError(f"{path}: row 1: column {name!r} is there twice: {expected}")
    for name in schema.names:
        if name not in (*names, *OPTIONAL.get(path.stem, ())):
            raise UsageError(f"{path}: row 1: column {name!r} is missing: {expected}")
    return names


def _column(path: Path, texts: Column, column: pa.Field[Any]) -> Column:
    """A column of texts as its type; the empty text is null."""

    def wrong(index: int, value: object, expected: str) -> NoReturn:
        raise UsageError(f"{path}: row {index + 2}, column {column.name}: {value!r}: expected {expected}")

    given = pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, pa.string()), texts)
    if not column.nullable and given.null_count:
        wrong(given.is_null().index(True).as_py(), "", "a value: it must not be empty")
    if pa.types.is_timestamp(column.type):
        return _instants(given, wrong).cast(column.type)
    if pa.types.is_integer(column.type):
        return _each(given, _whole, wrong, "a whole number", column.type)
    if pa.types.is_decimal(column.type):
        if column.name == "size_gb":
            return _each(given, _size, wrong, "a number with at most 9 decimals, not negative", column.type)
        return _each(given, _nine_places, wrong, "a number with at most 9 decimals", column.type)
    if pa.types.is_list(column.type):
        return _each(given, _parts, wrong, "devices separated by `;`", column.type)
    if column.name in _TENANTS:
        return _each(given, _uuid, wrong, "a uuid", column.type)
    if column.name in _CHOICES:
        choices = _CHOICES[column.name]
        _each(given, choices.index, wrong, " or ".join(choices), pa.int64())
    return given


def _each(texts: Column, convert: Callable[[str], Any], wrong: Wrong, expected: str, kind: pa.DataType) -> Column:
    """Converts each distinct text once; `wrong` is called for the first row that cannot be converted."""
    encoded = texts.dictionary_encode()
    converted: list[Any] = []
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            converted.append(convert(text))
        except (ValueError, ArithmeticError):
            wrong(pc.index(encoded.indices, pa.scalar(code, encoded.indices.type)).as_py(), text, expected)
    return pa.array(converted, type=kind).take(encoded.indices)


def _instants(texts: Column, wrong: Wrong) -> Column:
    """RFC 3339 times as milliseconds (int64), half-even; the common form at once, any other one by one."""
    try:
        nanos = np.asarray(texts.cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).fill_null(0))
        common = pc.all(pc.match_substring_regex(texts, _RFC3339_COMMON)).as_py() is not False
    except pa.ArrowInvalid:
        common = False
    if not common:
        return _each(texts, instant_ms, wrong, _INSTANT_EXPECTED, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    whole, rest = np.divmod(nanos, 1_000_000)
    millis = whole + ((rest > 500_000) | ((rest == 500_000) & (whole % 2 == 1)))
    return pa.array(millis, mask=np.asarray(texts.is_null())).cast(pa.timestamp("ms", "UTC"))


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError
    return int(text)


def _nine_places(text: str) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    number = Decimal(text)
    if number != number.quantize(Decimal("1e-9")):
        raise ValueError
    return number


def _size(text: str) -> Decimal:
    number = _nine_places(text)
    if number < 0:
        raise ValueError
    return number


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError
    return text.lower()


def _parts(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(";")) if part]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is there twice in one object")
    return found
