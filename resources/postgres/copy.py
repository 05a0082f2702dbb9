"""Arrow tables to and from Postgres by COPY: in bulk, exact, without a Python object per value.

Belongs here: how a type looks on its way. Does not: which statement, in which transaction (postgres.py).
Decimals travel as text, instants as whole microseconds, floats in their shortest exact form.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.abc import Params
from pyarrow import csv

from finops_pipeline.errors import UsageError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Column: TypeAlias = "pa.ChunkedArray[Any]"

TEXT = pa.string()

_BATCH_ROWS = 65_536
_NUMERIC, _TIMESTAMPTZ = 1700, 1184
_ARRAYS = frozenset({1000, 1005, 1007, 1009, 1014, 1015, 1016, 1021, 1022, 1115, 1182, 1185, 1231, 2951})
_ARROW_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int64(),
    23: pa.int64(),
    26: pa.int64(),
    700: pa.float64(),
    701: pa.float64(),
    1082: pa.date32(),
}


def select(
    connection: Connection, statement: str | sql.Composable, params: Params | None, schema: pa.Schema | None
) -> pa.Table:
    """The rows of a SELECT; see `Database.query`."""
    query = statement if isinstance(statement, sql.Composable) else sql.SQL(statement)
    described = connection.execute(sql.SQL("SELECT * FROM ({}\n) AS q LIMIT 0").format(query), params).description or []
    columns = [(column.name, column.type_code) for column in described]
    command = sql.SQL("COPY (SELECT {} FROM ({}\n) AS q) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(_rendered(name, oid) for name, oid in columns), query
    )
    received = io.BytesIO()
    with connection.cursor().copy(command, params) as copy:
        for block in copy:
            received.write(block)
    table = _parsed(received, columns)
    if schema is None:
        return table
    return pa.Table.from_arrays([_cast(table[field.name], field) for field in schema], schema=schema)


@contextmanager
def incoming(connection: Connection, table: str, data: pa.Table, *, ordered: bool = False) -> Iterator[sql.Composed]:
    """`data` as temporary table `incoming` with the types of `eai.<table>`; yields its columns.

    `ordered` adds `ordinal`, the order of the rows.

    UsageError where a value is not one of the column's type.
    """
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in data.schema.names)
    connection.execute(
        sql.SQL("CREATE TEMP TABLE incoming ON COMMIT DROP AS SELECT {} FROM eai.{} WITH NO DATA").format(
            columns, sql.Identifier(table)
        )
    )
    if ordered:
        connection.execute("ALTER TABLE incoming ADD COLUMN ordinal bigint GENERATED ALWAYS AS IDENTITY")
    try:
        with connection.cursor().copy(sql.SQL("COPY incoming ({}) FROM STDIN (FORMAT csv)").format(columns)) as copy:
            for batch in _as_text(data).to_batches(max_chunksize=_BATCH_ROWS):
                sink = io.BytesIO()
                csv.write_csv(batch, sink, csv.WriteOptions(include_header=False, quoting_style="needed"))
                copy.write(sink.getbuffer())
    except psycopg.DataError as error:
        raise UsageError(_bad_value(table, error)) from None
    yield columns
    connection.execute("DROP TABLE incoming")


def with_constant(data: pa.Table, name: str, value: object, type_: pa.DataType = TEXT) -> pa.Table:
    """`data` with a column of one value, unless it has that column."""
    if name in data.schema.names:
        return data
    return data.append_column(pa.field(name, type_), pa.array(repeat(value, data.num_rows), type_))


def _bad_value(table: str, error: psycopg.DataError) -> str:
    place = re.search(r"line (\d+), column (\w+)", error.diag.context or "")
    where = f"{table}: row {place[1]}: {place[2]}" if place else table
    return f"{where}: {error.diag.message_primary}"


def _as_text(data: pa.Table) -> pa.Table:
    """Lists as Postgres array literals; `write_csv` renders every other type exactly."""
    for index, field in enumerate(data.schema):
        if pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
            literals = [_array_literal(values) for values in data[field.name].to_pylist()]
            data = data.set_column(index, field.name, pa.array(literals, pa.string()))
        elif pa.types.is_list(field.type):
            data = data.set_column(index, field.name, _plain_literals(data[field.name]))
        elif pa.types.is_dictionary(field.type):
            data = data.set_column(index, field.name, data[field.name].cast(field.type.value_type))
    return data


def _array_literal(values: Sequence[str | None] | None) -> str | None:
    if values is None:
        return None
    escaped = [None if value is None else value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return "{" + ",".join("NULL" if value is None else f'"{value}"' for value in escaped) + "}"


def _plain_literals(column: Column) -> Column:
    """Lists of numbers or truth values, none of them null, in bulk."""
    lists: Any = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    texts = pc.fill_null(lists.flatten().cast(TEXT), "NULL")
    offsets = np.append(0, np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False)))
    joined: Any = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts), ",")
    literals: Column = pc.binary_join_element_wise("{", joined, "}", "")
    return literals


def _rendered(name: str, oid: int) -> sql.Composable:
    column = sql.Identifier(name)
    if oid == _TIMESTAMPTZ:
        return sql.SQL("(extract(epoch from {0}) * 1000000)::bigint AS {0}").format(column)
    if oid in _ARRAYS:
        return sql.SQL("to_jsonb({0})::text AS {0}").format(column)
    return column


def _parsed(received: io.BytesIO, columns: Sequence[tuple[str, int]]) -> pa.Table:
    types = {name: pa.int64() if oid == _TIMESTAMPTZ else _ARROW_TYPES.get(oid, pa.string()) for name, oid in columns}
    if received.tell() == 0:
        table = pa.schema(list(types.items())).empty_table()
    else:
        received.seek(0)
        table = csv.read_csv(
            received,
            csv.ReadOptions(column_names=list(types), use_threads=False),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    return pa.Table.from_arrays([_typed(table[name], oid) for name, oid in columns], names=list(types))


def _typed(column: Column, oid: int) -> Column:
    if oid == _TIMESTAMPTZ:
        return column.cast(pa.timestamp("us", tz="UTC"))
    if oid == _NUMERIC:
        digits = pc.utf8_length(pc.replace_substring_regex(column, r"^[^.]*\.?", ""))
        return column.cast(pa.decimal128(38, pc.max(digits).as_py() or 0))
    if oid in _ARRAYS:
        values = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return pa.chunked_array([pa.array(values, pa.list_(pa.string()))])
    return column


def _cast(column: Column, field: pa.Field[Any]) -> Column | pa.Array[Any]:
    if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(column.type) and field.type.unit == "ms":
        return _milliseconds(column).cast(field.type)
    if pa.types.is_decimal(field.type) and not pa.types.is_decimal(column.type):
        return column.cast(pa.string()).cast(field.type)
    return column.cast(field.type)


def _milliseconds(column: Column) -> pa.Array[Any]:
    """Microseconds rounded half-even to whole milliseconds (A1)."""
    micros = column.cast(pa.int64()).combine_chunks()
    whole, rest = np.divmod(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    up = (rest > 500) | ((rest == 500) & (whole % 2 == 1))
    return pa.array(whole + up, pa.int64(), mask=micros.is_null().to_numpy(zero_copy_only=False))
