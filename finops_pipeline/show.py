"""What people read: tables, progress, the demo's report, an SQL prompt.

What belongs here: the looks. What does not: any number that is not already published.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from assets.statement import read_statement
from finops_pipeline.accounting.exact import hour_text
from finops_pipeline.accounting.statement import statement_json
from finops_pipeline.errors import UsageError
from finops_pipeline.runner import Outcome
from finops_pipeline.settings import Settings
from resources.bundle import Bundle
from resources.lake import Lake
from resources.postgres import Database
from resources.site import Site

Told = Callable[[str, int], None]
WIDTH = 120
ITEM_COLUMNS = (
    "tenant_id",
    "deployment_id",
    "gpu_seconds",
    "gpu_memory_gb_seconds",
    "energy_wh",
    "amount",
    "currency",
    "policy_id",
    "estimated",
)


@dataclass(frozen=True)
class Report:
    data: dict[str, Any]
    text: str


@contextmanager
def progress(quiet: bool) -> Iterator[Told]:
    """A bar on a terminal, a line a stage elsewhere, both on stderr; nothing if `quiet`."""
    if quiet:
        yield lambda _stage, _hour: None
    elif sys.stderr.isatty():
        bar = Progress(
            TextColumn("{task.description:20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[hour]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        tasks: dict[str, Any] = {}
        with bar:

            def told(stage: str, hour: int) -> None:
                if stage not in tasks:
                    first = next(iter(tasks.values()), None)
                    total = bar.tasks[first].completed if first is not None else None
                    tasks[stage] = bar.add_task(stage, total=total, hour="")
                bar.update(tasks[stage], advance=1, hour=hour_text(hour))

            yield told
    else:
        last: list[str] = []

        def line(stage: str, hour: int) -> None:
            if last != [stage]:
                last[:] = [stage]
                typer.echo(f"finops: {stage}, from {hour_text(hour)}", err=True)

        yield line


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> str:
    """A table for a person: numbers right, null as a dash."""
    listed = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", expand=False)
    for place, name in enumerate(columns):
        numeric = any(
            isinstance(row[place], int | Decimal | float) and not isinstance(row[place], bool) for row in listed
        )
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*("-" if value is None else f"{value}" for value in row))
    console = Console(file=StringIO(), width=WIDTH)
    console.print(table)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def status_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no hour is computed yet: finops run, or finops backfill --from HOUR\n"
    return table_text(
        ("cluster", "day", "computed", "missing", "provisional", "unpriced", "set aside", "highest estimated"),
        (
            (
                row["cluster"],
                row["day"],
                row["computed"],
                24 - row["computed"],
                row["provisional"],
                row["unpriced"],
                row["quarantined"],
                _percent(row["highest_estimated_share"]),
            )
            for row in rows
        ),
    )


def policies_table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = (
        "id",
        "deployment_pattern",
        "gpu_model",
        "gpu_hourly_cost",
        "currency",
        "effective_from",
        "effective_to",
        "status",
    )
    return table_text([name.replace("_", " ") for name in names], ([row[name] for name in names] for row in rows))


def _percent(share: object) -> str | None:
    return None if share is None else f"{Decimal(str(share)):.2%}"


def statement_text(database: Database, period: str, tenant: str | None, format_: str) -> str:
    """A month's statement as a table, JSON (as gpu_allocation.json) or CSV."""
    result = read_statement(database, period)
    if not result["items"]:
        raise UsageError(f"{period}: no hour of this month is computed yet; finops backfill --from {period}-01T00:00Z")
    if tenant is not None:
        result["items"] = [item for item in result["items"] if item["tenant_id"] == tenant]
    if format_ == "json":
        return statement_json([result])
    return statement_csv(result) if format_ == "csv" else statement_table(result)


def statement_csv(result: Mapping[str, Any]) -> str:
    """Items of a statement, a line each."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ITEM_COLUMNS)
    for item in result["items"]:
        row = {**item, **item["allocated"], "estimated": str(item["estimated"]).lower()}
        writer.writerow(["" if row[name] is None else row[name] for name in ITEM_COLUMNS])
    return text.getvalue()


def statement_table(result: Mapping[str, Any]) -> str:
    """Items and totals of a statement."""
    columns = ("tenant", "deployment", "GPU-hours", "GB-hours", "kWh", "amount", "", "estimated")
    rows: list[list[object]] = [
        [
            item["tenant_id"],
            item["deployment_id"],
            *_amounts(item),
            item["allocated"]["amount"] or "unpriced",
            item["allocated"]["currency"] or "",
            "partly" if item["estimated"] else "no",
        ]
        for item in result["items"]
    ]
    rows += [["total", "", *_amounts(t), t["amount"] or "unpriced", t["currency"] or "", ""] for t in result["totals"]]
    return table_text(columns, rows, f"Statement of {result['period']} ({result['status']})")


def _amounts(units: Mapping[str, Any]) -> list[object]:
    return [
        _scaled(units["gpu_seconds"], 3600),
        _scaled(units["gpu_memory_gb_seconds"], 3600),
        _scaled(units["energy_wh"], 1000),
    ]


def _scaled(value: Decimal | None, divisor: int) -> Decimal | None:
    return None if value is None else (value / divisor).quantize(Decimal("0.001"))


def gaps(site: Site, first: datetime, past: datetime) -> list[dict[str, Any]]:
    """Where windows were estimated: by node and method, from, to, devices and seconds."""
    found = site.database.query(
        "SELECT cluster, node, method, min(window_start) AS first, max(window_start) AS last,"
        " count(DISTINCT (gpu_uuid, mig_instance)) AS devices, sum(window_seconds)::bigint AS device_seconds"
        " FROM eai.gpu_samples WHERE estimated AND window_start >= %s AND window_start < %s"
        " GROUP BY 1, 2, 3 ORDER BY 4, 2, 3",
        (first, past),
    )
    return list(found.to_pylist())


def demo_report(site: Site, bundle: Bundle, outcome: Outcome, settings: Settings) -> Report:
    """The statement, where the gaps were, and where to look next."""
    text = statement_text(site.database, outcome.months[0], None, "table")
    rows = gaps(site, bundle.start, bundle.end)
    text += table_text(
        ("node", "from", "to", "devices", "device-seconds", "filled by"),
        (
            (
                r["node"],
                f"{r['first']:%H:%M:%S}",
                f"{r['last']:%H:%M:%S}",
                r["devices"],
                r["device_seconds"],
                r["method"],
            )
            for r in rows
        ),
        "Gaps, and how they were filled",
    )
    home = "" if settings.home == Path(".finops") else f"FINOPS_HOME={settings.home} "
    text += (
        f"\n{outcome.cluster_hours} hours, {outcome.booked} events booked"
        f"{' (nothing is new: the same inputs book once)' if not outcome.booked else ''}.\n\n"
        f"Look further:\n"
        f"  the Dagster UI     {home}FINOPS_BUNDLE={bundle.folder} .venv/bin/finops dev\n"
        f"  SQL on the lake    {home}.venv/bin/finops sql 'FROM gpu_usage LIMIT 5'\n"
        f"  the statement      {home}.venv/bin/finops statement {outcome.months[0]} --format json\n"
    )
    return Report({"booked": outcome.booked, "hours": outcome.cluster_hours, "gaps": rows}, text)


def sql_session(settings: Settings, query: str | None, as_json: bool) -> None:
    """Answer one query, or those of stdin, each ended by `;`."""
    import duckdb

    connection = Lake(settings.lake_folder).connect()
    for text in [query] if query is not None else _statements():
        try:
            found = connection.sql(text)
            if found is None:
                continue
            rows = found.fetchall()
        except duckdb.Error as error:
            message = " ".join(str(error).split())
            if query is not None or not sys.stdin.isatty():
                raise UsageError(f"sql: {message}") from None
            typer.echo(message, err=True)
            continue
        if as_json:
            typer.echo(json.dumps([dict(zip(found.columns, row, strict=True)) for row in rows], default=str, indent=2))
        else:
            typer.echo(table_text(found.columns, rows), nl=False)


def _statements() -> Iterator[str]:
    """SQL statements from stdin, with a prompt on a terminal."""
    asking = sys.stdin.isatty()
    pending = ""
    while True:
        if asking:
            typer.echo("finops> " if not pending else "   ...> ", nl=False, err=True)
        line = sys.stdin.readline()
        pending += line
        if ";" in pending or not line:
            *whole, pending = pending.split(";")
            yield from (text for text in whole if text.strip())
            if not line:
                if pending.strip():
                    yield pending
                return
