"""Where the lake keeps what, in a folder and in a bucket alike.

    <table>/cluster=<percent-encoded>/hour=2026-10-01T10Z/data.parquet

What belongs here: names, and the columns of the views. What does not: any file.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa

HOUR_MS: Final = 3_600_000
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


def viewed(schema: pa.Schema) -> pa.Schema:
    """The columns of a table's view: its own, without dictionaries, and the cluster and the hour if it has none."""
    schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
    for name, type_ in (("cluster", pa.string()), ("hour", pa.timestamp("ms", tz="UTC"))):
        if name not in schema.names:
            schema = schema.append(pa.field(name, type_))
    return schema


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
