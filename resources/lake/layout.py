"""Where the lake keeps what, and how a file is encoded, in a folder and in a bucket alike.

    <table>/cluster=<percent-encoded>/hour=2026-10-01T10Z/data.parquet

What belongs here: names, encodings, and the columns of the views. What does not: where bytes go.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from finops_pipeline.accounting.exact import HOUR_MS

FILE: Final = "data.parquet"
CLUSTER: Final = "cluster="
HOUR: Final = "hour="
_HOUR_FOLDER: Final = "hour=%Y-%m-%dT%HZ"


def cluster_folder(cluster: str) -> str:
    return f"{CLUSTER}{quote(cluster, safe='')}"


def cluster_of(folder: str) -> str:
    return unquote(folder.removeprefix(CLUSTER))


def hour_folder(hour_ms: int) -> str:
    """The folder of the hour that starts at `hour_ms`; ValueError if none does."""
    if hour_ms % HOUR_MS:
        raise ValueError(f"{hour_ms} is not the start of an hour in epoch milliseconds")
    return datetime.fromtimestamp(hour_ms // 1000, UTC).strftime(_HOUR_FOLDER)


def hour_of(folder: str) -> datetime:
    return datetime.strptime(folder, _HOUR_FOLDER).replace(tzinfo=UTC)


def write_parquet(rows: pa.Table, sink: Any) -> None:
    """One file: texts by dictionary, whole numbers and instants by their differences, floats split into bytes."""
    dictionaries, encodings = _encodings(rows.schema)
    coded: Any = dictionaries  # the stubs of pyarrow know a flag only
    pq.write_table(rows, sink, compression="zstd", use_dictionary=coded, column_encoding=encodings)


@cache
def _encodings(schema: pa.Schema) -> tuple[list[str], dict[str, str]]:
    """Columns with a dictionary, and how the others are encoded, by their paths."""
    dictionaries, encodings = [], {}
    for path, type_ in (leaf for field in schema for leaf in _leaves(field.name, field.type)):
        if pa.types.is_floating(type_):
            encodings[path] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(type_) or pa.types.is_timestamp(type_):
            encodings[path] = "DELTA_BINARY_PACKED"
        elif not pa.types.is_boolean(type_):
            dictionaries.append(path)
    return dictionaries, encodings


def _leaves(path: str, type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The columns of a file that hold a field."""
    if pa.types.is_list(type_):
        return _leaves(f"{path}.list.element", type_.value_type)
    if pa.types.is_map(type_):
        return [*_leaves(f"{path}.key_value.key", type_.key_type), *_leaves(f"{path}.key_value.value", type_.item_type)]
    return [(path, type_)]


def viewed(schema: pa.Schema) -> pa.Schema:
    """The columns of a table's view: its own, without dictionaries, and the cluster and the hour if it has none."""
    schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
    for name, type_ in (("cluster", pa.string()), ("hour", pa.timestamp("ms", tz="UTC"))):
        if name not in schema.names:
            schema = schema.append(pa.field(name, type_))
    return schema


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
