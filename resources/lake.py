"""The Parquet lake: one file per table, cluster and hour, replaced as a whole.

What belongs here: paths, atomic writes, validation against `contracts.lake.TABLES`, reading one hour fast, and a
DuckDB connection with a view per table. What does not: what a table means, and which hours there should be.

    <root>/<table>/cluster=<percent-encoded>/hour=2026-10-01T10Z/data.parquet

A file is complete or not there: it is written beside its place under a name that ends in `.tmp`, synced, and renamed.
What a killed writer leaves behind is never read, and goes with the next write of the same hour.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from contracts.lake import TABLES
from finops_pipeline.errors import FinopsError

HOUR_MS: Final = 3_600_000
FILE: Final = "data.parquet"
HOUR_FOLDER: Final = "hour=%Y-%m-%dT%HZ"
LEFTOVER_SECONDS: Final = 900
"""A temporary file this old has no writer any more: writing one takes seconds."""


DERIVED: Final = frozenset(
    {
        "dcgm_summary",
        "rejected_records",
        "rejected_readings",
        "hour_facts",
        "gpu_samples",
        "gpu_holdings",
        "gpu_matches",
        "fleet_states",
        "findings",
        "gpu_usage",
        "gpu_idle",
        "fleet_hours",
        "tenant_hours",
        "gpu_cost_allocation",
    }
)
"""Tables that are computed from others: a power failure may cost their last files, which a rerun writes again. What was
read from outside is synced to the disk, for the source may not have it any more."""


class Lake:
    """The tables of `contracts.lake` in a local folder.

    Reads go through `pyarrow.fs`; only the publication of a file knows that the file system is a local one.
    """

    def __init__(self, root: Path | str, schemas: Mapping[str, pa.Schema] = TABLES) -> None:
        self.root = Path(root).absolute()
        self._schemas = schemas
        self._files = pafs.LocalFileSystem(use_mmap=True)

    def write(self, table: str, cluster: str, hour_ms: int, rows: pa.Table) -> None:
        """Replace what the lake has of one hour of a table by `rows`; no rows is a valid content.

        Raises `ValueError` if `rows` do not fit the table's schema: names, lossless types, no nulls where none may be.
        """
        checked = conform(rows, self._schemas[table], table)
        target = self._path(table, cluster, hour_ms)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._sweep(target.parent)
            _replace(target, checked, synced=table not in DERIVED)
        except OSError as error:
            raise FinopsError(
                f"lake: cannot write {table} of {cluster}, {_hour_text(hour_ms)}, under {self.root}: {error.strerror}"
            ) from error

    def read(self, table: str, cluster: str, hour_ms: int, columns: Sequence[str] | None = None) -> pa.Table | None:
        """One hour of a table in its schema, or only `columns` of it; None if it has not landed."""
        schema = self._schemas[table]
        path = self._path(table, cluster, hour_ms)
        try:
            source = self._files.open_input_file(str(path))
        except FileNotFoundError:
            return None
        try:
            with source, pq.ParquetFile(source) as file:
                rows = file.read(None if columns is None else list(columns))
        except (OSError, pa.ArrowInvalid) as error:
            raise FinopsError(f"lake: {path} cannot be read: {error}: compute the hour again to replace it") from error
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        return rows.select(wanted.names).cast(wanted)

    def require(self, table: str, cluster: str, hour_ms: int) -> pa.Table:
        """One hour of a table that an earlier stage has landed; FinopsError if it has not."""
        rows = self.read(table, cluster, hour_ms)
        if rows is None:
            raise FinopsError(
                f"lake: {table} of {cluster}, {_hour_text(hour_ms)}, has not landed: compute the stages before it first"
            )
        return rows

    def hours(self, table: str, cluster: str) -> list[int]:
        """The hours of a table that have landed, as epoch milliseconds, ascending."""
        folder = self.root / table / _cluster_folder(cluster)
        starts = (datetime.strptime(name, HOUR_FOLDER).replace(tzinfo=UTC) for name in _landed(folder))
        return sorted(int(start.timestamp()) * 1000 for start in starts)

    def clusters(self, table: str) -> list[str]:
        """The clusters that have landed hours of a table, in order of their names."""
        return sorted(
            unquote(name.removeprefix("cluster="))
            for name in _folders(self.root / table, "cluster=")
            if any(_landed(self.root / table / name))
        )

    def drop(self, table: str, cluster: str, hour_ms: int) -> None:
        """Forget one hour of a table; nothing happens if it is not there."""
        folder = self._path(table, cluster, hour_ms).parent
        (folder / FILE).unlink(missing_ok=True)
        if folder.is_dir():
            self._sweep(folder)
            _sync_folder(folder)

    def connect(self, tables: Iterable[str] | None = None) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with a view per table (or only `tables`), each with its `cluster` and `hour` (UTC).

        A filter on `cluster` or `hour` opens only the files that it needs. The views see what landed before the call,
        and later hours of tables that were not empty then. Nothing is ever installed or loaded from outside.
        """
        connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        connection.execute("SET TimeZone = 'UTC'")
        for table in self._schemas if tables is None else tables:
            connection.execute(self._view(table))
        return connection

    def _view(self, table: str) -> str:
        name = '"' + table.replace('"', '""') + '"'
        if any(self.clusters(table)):
            folder = re.sub(r"([*?\[])", r"[\1]", str(self.root / table)).replace("'", "''")
            files = f"{folder}/cluster=*/hour=*/{FILE}"
            return (
                f"CREATE VIEW {name} AS "  # noqa: S608 - names are ours and quoted
                "SELECT * REPLACE (timezone('UTC', strptime(hour, '%Y-%m-%dT%HZ')) AS hour) FROM "
                f"read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
            )
        schema = self._schemas[table]
        for column, type_ in (("cluster", pa.string()), ("hour", pa.timestamp("ms", tz="UTC"))):
            if column not in schema.names:
                schema = schema.append(pa.field(column, type_))
        columns = ", ".join(f'NULL::{_duckdb_type(field.type)} AS "{field.name}"' for field in schema)
        return f"CREATE VIEW {name} AS SELECT {columns} WHERE false"

    def _path(self, table: str, cluster: str, hour_ms: int) -> Path:
        if table not in self._schemas:
            raise KeyError(f"the lake has no table {table!r}")
        if hour_ms % HOUR_MS:
            raise ValueError(f"{hour_ms} is not the start of an hour in epoch milliseconds")
        hour = datetime.fromtimestamp(hour_ms // 1000, UTC).strftime(HOUR_FOLDER)
        return self.root / table / _cluster_folder(cluster) / hour / FILE

    @staticmethod
    def _sweep(folder: Path) -> None:
        """Remove temporary files of writers that were killed."""
        oldest = time.time() - LEFTOVER_SECONDS
        for leftover in folder.glob("*.tmp"):
            try:
                if leftover.stat().st_mtime < oldest:
                    leftover.unlink(missing_ok=True)
            except FileNotFoundError:
                continue  # its writer has just finished


def conform(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """`rows` in the order and the types of `schema`, without any loss.

    Raises `ValueError` naming the table and the column: a missing or unknown one, a value that its type cannot hold,
    a float for a decimal (money never comes from floats), a null where none may be.
    """
    names = rows.column_names
    if set(names) != set(schema.names) or len(names) != len(schema):
        missing = [name for name in schema.names if name not in names]
        raise ValueError(f"{table}: columns {names} are not those of the contract (missing: {missing})")
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if pa.types.is_decimal(field.type) and pa.types.is_floating(column.type):
            raise ValueError(f"{table}.{field.name}: {column.type} for {field.type}: floats are no amounts")
        try:
            column = column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{table}.{field.name}: {column.type} does not fit {field.type}: {error}") from error
        if column.null_count and not field.nullable:
            raise ValueError(f"{table}.{field.name}: {column.null_count} nulls, none may be")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _cluster_folder(cluster: str) -> str:
    return f"cluster={quote(cluster, safe='')}"


def _hour_text(hour_ms: int) -> str:
    return datetime.fromtimestamp(hour_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _folders(folder: Path, prefix: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.startswith(prefix)]
    except FileNotFoundError:
        return []


def _landed(cluster_folder: Path) -> Iterable[str]:
    return (name for name in _folders(cluster_folder, "hour=") if (cluster_folder / name / FILE).exists())


def _replace(target: Path, rows: pa.Table, *, synced: bool) -> None:
    """Write `rows` beside `target` and rename: a reader sees the old file or the new one.

    `synced` makes that hold for a power failure too.
    """
    temporary = target.with_name(f"{FILE}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(rows, file, compression="zstd")
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """A rename survives a power failure only once its folder is synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _duckdb_type(type_: pa.DataType) -> str:
    """The type that DuckDB gives a Parquet column of an Arrow type, so that an empty view looks like a full one."""
    if pa.types.is_list(type_):
        return f"{_duckdb_type(type_.value_type)}[]"
    if pa.types.is_map(type_):
        return f"MAP({_duckdb_type(type_.key_type)}, {_duckdb_type(type_.item_type)})"
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ"
    return _DUCKDB_TYPES[type_]


_DUCKDB_TYPES: Final = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
}
