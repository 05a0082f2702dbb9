"""The SQL files of this folder, run by DuckDB on Arrow tables: joins, groups and splits of many hours at once.

This is the one place of `accounting` that opens DuckDB. It stays pure there: the database is in memory, a call sees only
the tables that it is given (views and temporary tables of its own session), and nothing reads files or loads extensions. Results leave as Arrow
(a data frame would turn DECIMAL into float).

Why SQL: an analyst can read who pays what in `sql/`, and `finops sql` and `finops explain` run the same files. Why for a
stretch of hours and not for each: planning a statement costs more than one hour's rows do.

What does not belong here: any rule. Those are in the files, or in the modules that name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
}


@cache
def sql_text(name: str) -> str:
    """The statement in `money/sql/<name>.sql`."""
    return files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


class Queries:
    """Named relations, and the files that are run on them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def keep(self, relation: str, file: str, **parameters: str) -> None:
        """Keep the result of a file as a relation for those after it, in place of an earlier one of that name."""
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {relation} AS {sql_text(file)}", parameters or None)

    def add(self, relation: str, file: str) -> None:
        """Add the result of a file to a relation that is kept."""
        self._connection.execute(f"INSERT INTO {relation} {sql_text(file)}")

    def table(self, file: str, **parameters: str) -> pa.Table:
        """The result of a file, in its order."""
        found: pa.Table = self._connection.sql(sql_text(file), params=parameters or None).to_arrow_table()
        return found


@contextmanager
def queries(**relations: pa.Table) -> Iterator[Queries]:
    """A session of DuckDB with these Arrow tables as relations."""
    with _database().cursor() as connection:
        for name, table in relations.items():
            connection.register(name, table)
        yield Queries(connection)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """An empty database in memory. Imported here: commands that divide nothing need not wait for DuckDB."""
    import duckdb

    return duckdb.connect(":memory:", config=_SETTINGS)


def conformed(table: pa.Table, schema: pa.Schema, **constants: str) -> pa.Table:
    """A result in the columns and types of `schema`; `constants` are whole columns that it lacks."""
    columns: list[Any] = [
        pa.repeat(constants[field.name], len(table)) if field.name in constants else table[field.name]
        for field in schema
    ]
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
