"""The Parquet lake: one file per table, cluster and hour, replaced as a whole, in a local folder or in a bucket.

What belongs here: validation against `contracts.lake.TABLES`, reading one hour fast, and a DuckDB connection with a
view per table. What does not: what a table means, which hours there should be, and how files are kept
(`folder`, `bucket`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from finops_pipeline.accounting.exact import hour_text, ms_of
from finops_pipeline.contracts.lake import TABLES
from finops_pipeline.errors import FinopsError
from finops_pipeline.resources.lake.bucket import SCHEME, Bucket
from finops_pipeline.resources.lake.folder import Folder
from finops_pipeline.resources.lake.layout import FILE, cluster_folder, cluster_of, hour_folder, hour_of

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

SET_ASIDE: Final = ("rejected_records", "rejected_readings")


class EarlierFormatError(FinopsError):
    """A file of the lake lacks columns that its table has by now."""


class Lake:
    """The tables of `contracts.lake` under a local folder, or under `s3://bucket/prefix`.

    Every method raises SourceError if a bucket's store refuses or does not answer.
    """

    def __init__(self, root: Path | str, schemas: Mapping[str, pa.Schema] = TABLES) -> None:
        in_bucket = isinstance(root, str) and root.startswith(SCHEME)
        self._files = Bucket(str(root)) if in_bucket else Folder(Path(root).absolute())
        self._schemas = schemas

    @property
    def where(self) -> str:
        """The folder's path or the bucket's URL."""
        return self._files.where

    def write(self, table: str, cluster: str, hour_ms: int, rows: pa.Table) -> None:
        """Replace what the lake has of one hour of a table by `rows`; no rows is a valid content.

        Raises `ValueError` if `rows` do not fit the table's schema: names, lossless types, no nulls where none may be.
        """
        checked = conform(rows, self._schemas[table], table)
        self._files.publish(self._path(table, cluster, hour_ms), checked, synced=table not in DERIVED)

    def read(self, table: str, cluster: str, hour_ms: int, columns: Sequence[str] | None = None) -> pa.Table | None:
        """One hour of a table in its schema, or only `columns` of it; None if it has not landed."""
        schema = self._schemas[table]
        path = self._path(table, cluster, hour_ms)
        try:
            source = self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            with source, pq.ParquetFile(source) as file:
                rows = file.read(None if columns is None else list(columns))
        except (OSError, pa.ArrowInvalid) as error:
            raise FinopsError(
                f"lake: {self.where}/{path} cannot be read: {error}: compute the hour again to replace it"
            ) from error
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        if not set(wanted.names) <= set(rows.column_names):
            raise EarlierFormatError(
                f"lake: {self.where}/{path} was written by an earlier version: compute the hour again to replace it"
            )
        return rows.select(wanted.names).cast(wanted)

    def require(self, table: str, cluster: str, hour_ms: int) -> pa.Table:
        """One hour of a table that an earlier stage has landed; FinopsError if it has not."""
        rows = self.read(table, cluster, hour_ms)
        if rows is None:
            raise FinopsError(
                f"lake: {table} of {cluster}, {hour_text(hour_ms)}, has not landed: compute the stages before it first"
            )
        return rows

    def set_aside(self, cluster: str, hour_ms: int) -> pa.Table:
        """Records and readings of one hour that were set aside (A5, A10); FinopsError if they have not landed."""
        return pa.concat_tables([self.require(table, cluster, hour_ms) for table in SET_ASIDE])

    def hours(self, table: str, cluster: str) -> list[int]:
        """The hours of a table that have landed, as epoch milliseconds, ascending."""
        starts = map(hour_of, self._files.hours(f"{table}/{cluster_folder(cluster)}"))
        return sorted(ms_of(start) for start in starts)

    def clusters(self, table: str) -> list[str]:
        """The clusters that have landed hours of a table, in order of their names."""
        folders = self._files.clusters(table)
        return sorted(cluster_of(folder) for folder in folders if any(self._files.hours(f"{table}/{folder}")))

    def drop(self, table: str, cluster: str, hour_ms: int) -> None:
        """Forget one hour of a table; nothing happens if it is not there."""
        self._files.remove(self._path(table, cluster, hour_ms))

    def connect(self, tables: Iterable[str] | None = None) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with a view per table (or only `tables`), each with its `cluster` and `hour` (UTC).

        A filter on `cluster` or `hour` opens only the files that it needs. The views see what landed before the call,
        and in a folder also later hours of tables that were not empty then. Nothing is ever installed or loaded from
        outside.
        """
        connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        connection.execute("SET TimeZone = 'UTC'")
        names = self._schemas if tables is None else tables
        self._files.views(connection, {name: self._schemas[name] for name in names})
        return connection

    def _path(self, table: str, cluster: str, hour_ms: int) -> str:
        if table not in self._schemas:
            raise KeyError(f"the lake has no table {table!r}")
        return f"{table}/{cluster_folder(cluster)}/{hour_folder(hour_ms)}/{FILE}"


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
