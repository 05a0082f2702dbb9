"""Re-times a real request log onto the demo day: tokens per tenant and minute (A26).

What belongs here: the mapping of services to tenants and each tenant's rhythm of the day. What does not: the
events that the gateway would have written from it, which `finops_pipeline.demo.generate` makes.

    python -m finops_pipeline.demo.tokens REQUESTS.parquet    rewrites tokens.parquet beside this file

The requests of a service keep their order and their token counts; only their times are new. The log covers one
hour, so each service's requests are spread over 24 h in proportion to the tenant's hourly weights. Integers only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finops_pipeline.accounting.exact import HOUR_MS

FILE: Final = Path(__file__).with_name("tokens.parquet")

ASSISTANT: Final = "a0000000-0000-4000-8000-00000000000a"
COPILOT: Final = "b0000000-0000-4000-8000-00000000000b"
RESEARCH: Final = "c0000000-0000-4000-8000-00000000000c"

RHYTHM: Final = {
    # service of the log -> tenant, and how busy each hour of its day is. Hour 3 is the gateway's maintenance: nobody.
    "azure-2023-conv": (ASSISTANT, (4, 3, 2, 0, 2, 3, 5, 8, 10, 12, 13, 13, 11, 12, 13, 13, 12, 11, 9, 8, 8, 7, 6, 5)),
    "azure-2023-code": (COPILOT, (1, 1, 0, 0, 0, 1, 2, 5, 10, 13, 14, 13, 9, 12, 14, 13, 12, 9, 5, 3, 2, 2, 1, 1)),
    "mooncake-conversation": (RESEARCH, (8, 9, 9, 0, 6, 4, 3, 3, 4, 6, 7, 7, 6, 7, 7, 7, 6, 5, 5, 6, 7, 8, 8, 8)),
}

COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("tenant_id", pa.string()),
    ("minute", pa.int16()),  # of the day
    ("requests", pa.int32()),
    ("input_tokens", pa.int32()),
    ("output_tokens", pa.int32()),
]
SCHEMA: Final = pa.schema(COLUMNS)


def daily_tokens(requests: pa.Table) -> pa.Table:
    """Requests (`service, timestamp, seq, input_tokens, output_tokens`) as SCHEMA, one row per tenant and busy minute."""
    parts = []
    for service, (tenant, weights) in RHYTHM.items():
        rows = requests.take(np.flatnonzero(np.asarray(requests["service"]) == service))
        rows = rows.sort_by([("timestamp", "ascending"), ("seq", "ascending")])
        minutes = _day_ms(rows.num_rows, weights) // 60_000
        busy, first = np.unique(minutes, return_index=True)
        counts = np.diff(np.append(first, rows.num_rows))
        sums = [np.add.reduceat(np.asarray(rows[name], dtype=np.int64), first) for name in SCHEMA.names[3:]]
        columns = [pa.array([tenant] * len(busy)), *(pa.array(column) for column in (busy, counts, *sums))]
        parts.append(pa.Table.from_arrays(columns, names=SCHEMA.names).cast(SCHEMA))
    return pa.concat_tables(parts)


def _day_ms(count: int, weights: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The millisecond of the day of each of `count` requests, evenly spaced within every hour's weight."""
    hourly = np.array(weights, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(hourly)])
    position = (2 * np.arange(count, dtype=np.int64) + 1) * starts[-1] * HOUR_MS // (2 * count)
    hour = np.searchsorted(starts * HOUR_MS, position, side="right") - 1
    return np.asarray(hour * HOUR_MS + (position - starts[hour] * HOUR_MS) // hourly[hour], dtype=np.int64)


if __name__ == "__main__":
    pq.write_table(daily_tokens(pq.read_table(sys.argv[1])), FILE, compression="zstd")
