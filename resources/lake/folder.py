"""The lake's files in a local folder.

What belongs here: atomic publication, and reading through the page cache. What does not: what is in a file.

A file is complete or not there: it is written beside its place under a name that ends in `.tmp`, synced, and renamed.
What a killed writer leaves behind is never read, and goes with the next write of the same hour.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs

from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.lake.layout import CLUSTER, FILE, HOUR, viewed, write_parquet

LEFTOVER_SECONDS: Final = 900
"""A temporary file this old has no writer any more: writing one takes seconds."""


class Folder:
    """The files under `root`; paths are relative to it, as `resources.lake_layout` forms them."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._root = root
        self._files = pafs.LocalFileSystem(use_mmap=True)

    def publish(self, path: str, rows: pa.Table, *, synced: bool) -> None:
        """Replace a file: a reader sees the old one or the new one; if `synced`, even after a power failure."""
        target = self._root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target.parent)
            _replace(target, rows, synced=synced)
        except OSError as error:
            raise FinopsError(f"lake: {target} cannot be written: {error.strerror}") from error

    def open(self, path: str) -> pa.NativeFile:
        """A file to read; FileNotFoundError if it is not there."""
        return self._files.open_input_file(f"{self.where}/{path}")

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        target = self._root / path
        target.unlink(missing_ok=True)
        if target.parent.is_dir():
            _sweep(target.parent)
            _sync_folder(target.parent)

    def clusters(self, table: str) -> list[str]:
        """The folders of a table's clusters; some may hold no file."""
        return _folders(self._root / table, CLUSTER)

    def hours(self, folder: str) -> Iterable[str]:
        """The folders of the hours that have a file, under `<table>/<cluster>`."""
        above = self._root / folder
        return (name for name in _folders(above, HOUR) if (above / name / FILE).exists())

    def views(self, connection: duckdb.DuckDBPyConnection, schemas: Mapping[str, pa.Schema]) -> None:
        """Make a view of each table. They see later hours too, of tables that have any hour now."""
        for table, schema in schemas.items():
            connection.execute(self._view(table, schema))

    def _view(self, table: str, schema: pa.Schema) -> str:
        name = '"' + table.replace('"', '""') + '"'
        if any(True for cluster in self.clusters(table) for _ in self.hours(f"{table}/{cluster}")):
            folder = re.sub(r"([*?\[])", r"[\1]", str(self._root / table)).replace("'", "''")
            files = f"{folder}/{CLUSTER}*/{HOUR}*/{FILE}"
            return (
                f"CREATE VIEW {name} AS "  # noqa: S608 - names are ours and quoted
                "SELECT * REPLACE (timezone('UTC', strptime(hour, '%Y-%m-%dT%HZ')) AS hour) FROM "
                f"read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
            )
        columns = ", ".join(f'NULL::{_duckdb_type(field.type)} AS "{field.name}"' for field in viewed(schema))
        return f"CREATE VIEW {name} AS SELECT {columns} WHERE false"


def _folders(folder: Path, prefix: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.startswith(prefix)]
    except FileNotFoundError:
        return []


def _sweep(folder: Path) -> None:
    """Remove temporary files of writers that were killed."""
    oldest = time.time() - LEFTOVER_SECONDS
    for leftover in folder.glob("*.tmp"):
        try:
            if leftover.stat().st_mtime < oldest:
                leftover.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # its writer has just finished


def _replace(target: Path, rows: pa.Table, *, synced: bool) -> None:
    """Write `rows` beside `target` and rename."""
    temporary = target.with_name(f"{FILE}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("wb") as file:
            write_parquet(rows, file)
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
