"""What a run leaves in a folder: the files of bundles.md, byte for byte the same for the same result.

What belongs here: the text of those files. What does not: computing any of it.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile

import pyarrow as pa

from finops_pipeline.accounting.exact import HOUR_MS, hour_text, ms_of, plain
from finops_pipeline.accounting.money.statement import statement_json
from finops_pipeline.contracts.lake import FLEET_HOURS, GPU_COST_ALLOCATION, GPU_USAGE, QUARANTINE
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.site import Site

TABLES = {
    "gpu_usage.csv": ("gpu_usage", GPU_USAGE, ("cluster", "hour", "workload_id", "gpu_model", "tenant_id")),
    "allocation.csv": (
        "gpu_cost_allocation",
        GPU_COST_ALLOCATION,
        ("cluster", "hour", "workload_id", "gpu_model", "tenant_id", "usage_type"),
    ),
    "fleet.csv": ("fleet_hours", FLEET_HOURS, ("cluster", "hour", "gpu_model")),
}


UNPUBLISHED = ("storage_gb_hours",)
"""Columns that the files of bundles.md do not have; the usage events carry them."""


def prepare(out: Path) -> None:
    """Make the folder `out`, before hours of work for it are done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(f"--out {out}: no file can be written there ({error.strerror})") from None


def export(
    site: Site, first: datetime, past: datetime, months: Sequence[str], booked: Sequence[str], out: Path
) -> None:
    """Write the files of the hours of `[first, past)` into `out`; each appears complete or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    hours = range(ms_of(first), ms_of(past), HOUR_MS)
    for name, (table, schema, key) in TABLES.items():
        rows = [site.lake.require(table, cluster, hour) for cluster in sorted(site.source.clusters) for hour in hours]
        _write(out / name, csv_text(pa.concat_tables([schema.empty_table(), *rows]), key))
    aside = [site.lake.set_aside(cluster, hour) for cluster in sorted(site.source.clusters) for hour in hours]
    _write(
        out / "quarantine.csv", csv_text(_once(pa.concat_tables([QUARANTINE.empty_table(), *aside])), QUARANTINE.names)
    )
    _write(out / "gpu_allocation.json", statement_json([read_statement(site.database, month) for month in months]))
    _write(out / "usage_events.jsonl", "".join(f"{document}\n" for document in booked))


def csv_text(table: pa.Table, key: Sequence[str]) -> str:
    """CSV with a header, rows sorted by key, empty for null, RFC 3339 times, line feeds."""
    table = table.drop_columns([name for name in UNPUBLISHED if name in table.schema.names])
    rows = [[_text(value) for value in row.values()] for row in table.to_pylist()]
    places = [table.schema.get_field_index(name) for name in key]
    rows.sort(key=lambda row: [row[place] for place in places])
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.schema.names)
    writer.writerows(rows)
    return text.getvalue()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return hour_text(ms_of(value))
    return plain(value) if isinstance(value, Decimal) else str(value)


def _once(rows: pa.Table) -> pa.Table:
    """One row a source, key and reason; counts of several hours stand side by side in the detail."""
    seen: dict[tuple[str, str, str], str] = {}
    for row in rows.to_pylist():
        key = (row["source"], row["key"], row["reason"])
        seen[key] = row["detail"] if key not in seen or seen[key] == row["detail"] else f"{seen[key]}; {row['detail']}"
    return pa.Table.from_pylist(
        [dict(zip(QUARANTINE.names, (*key, detail), strict=True)) for key, detail in seen.items()], schema=QUARANTINE
    )


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)
