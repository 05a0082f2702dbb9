"""What a run leaves in a folder: the files of bundles.md, byte for byte the same for the same result.

What belongs here: the text of those files. What does not: computing any of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.exact import HOUR_MS, ms_of
from finops_pipeline.accounting.money.statement import statement_json
from finops_pipeline.contracts.lake import FLEET_HOURS, GPU_COST_ALLOCATION, GPU_USAGE, QUARANTINE
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.site import Site

TABLES = {
    "gpu_usage.csv": ("gpu_usage", GPU_USAGE, ("estimated",)),
    "allocation.csv": ("gpu_cost_allocation", GPU_COST_ALLOCATION, ("storage_gb_hours",)),
    "fleet.csv": ("fleet_hours", FLEET_HOURS, ("visible_gpu", "priced")),
}
"""Each file, its table, the table's columns, which begin with its key, and those that bundles.md does not have."""
OFFLINE: Mapping[str, str] = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
COPY = (
    "COPY (SELECT * FROM rows ORDER BY ALL NULLS FIRST)"
    " TO $path (FORMAT csv, HEADER, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%SZ')"
)


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
    for name, (table, schema, unpublished) in TABLES.items():
        rows = [site.lake.require(table, cluster, hour) for cluster in sorted(site.source.clusters) for hour in hours]
        write_csv(pa.concat_tables([schema.empty_table(), *rows]), out / name, unpublished)
    aside = [site.lake.set_aside(cluster, hour) for cluster in sorted(site.source.clusters) for hour in hours]
    write_csv(_once(pa.concat_tables([QUARANTINE.empty_table(), *aside])), out / "quarantine.csv")
    _write(out / "gpu_allocation.json", statement_json([read_statement(site.database, month) for month in months]))
    _write(out / "usage_events.jsonl", "".join(f"{document}\n" for document in booked))


def write_csv(table: pa.Table, path: Path, unpublished: Sequence[str] = ()) -> None:
    """CSV with a header, rows in the order of their columns, empty for null, RFC 3339 times, line feeds.

    `unpublished` columns are left out. UsageError if it cannot be written.
    """
    rows = _blank_as_null(table.drop_columns([*unpublished]))
    temporary = _beside(path)
    with duckdb.connect(config=dict(OFFLINE)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        try:
            connection.execute(COPY, {"path": str(temporary)})
        except duckdb.IOException as error:
            raise UsageError(f"{path}: cannot be written ({error})") from None
    temporary.replace(path)


def _blank_as_null(table: pa.Table) -> pa.Table:
    """Empty texts as null: `COPY` would quote them to tell the two apart."""
    nothing = pa.scalar(None, pa.string())
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = table[field.name]
            table = table.set_column(place, field.name, pc.if_else(pc.equal(texts, pa.scalar("")), nothing, texts))
    return table


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
    temporary = _beside(path)
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
