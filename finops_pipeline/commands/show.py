"""What people read: tables, progress, the demo's report, an SQL prompt.

What belongs here: the looks. What does not: any number that is not already published, and anything that needs Dagster
(so that `finops status` or `finops sql` answer at once).
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from finops_pipeline.accounting.exact import hour_text, plain
from finops_pipeline.accounting.money.statement import statement_json
from finops_pipeline.errors import UsageError
from finops_pipeline.settings import Settings

if TYPE_CHECKING:
    import duckdb
    from rich.progress import TaskID

    from finops_pipeline.resources.postgres.balance import Proof
    from finops_pipeline.resources.site import Site

Told = Callable[[str, int], None]
WIDE = 500
"""Columns of a table that nobody's terminal has to fit."""
QUIET_SECONDS = 10.0
"""Where lines are written instead of a bar, a stage says how far it is this often."""
UNATTRIBUTED_SHOWN = 10
"""Pods that are named."""
PROOFS = {"priced": "usage x price", "booked": "allocated = booked", "stated": "booked = stated"}
"""What the proofs of the trial balance are called."""
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
POLICY_COLUMNS = (
    "id",
    "deployment_pattern",
    "gpu_model",
    "gpu_hourly_cost",
    "currency",
    "effective_from",
    "effective_to",
    "status",
)


@dataclass(frozen=True)
class Report:
    """The same for a program and for a person."""

    data: dict[str, Any]
    text: str


def unattributed_text(pods: Sequence[str]) -> str:
    """A line that names pods which used GPUs and match no deployment; nothing if there are none."""
    if not pods:
        return ""
    named = ", ".join(pods[:UNATTRIBUTED_SHOWN]) + (", ..." if len(pods) > UNATTRIBUTED_SHOWN else "")
    count = "1 pod" if len(pods) == 1 else f"{len(pods)} pods"
    return (
        f"{count} used GPUs and match no deployment, so the platform pays as for idle time: {named}:"
        " add rows to eai.deployments whose namespace and pod_pattern match\n"
    )


@contextmanager
def progress(stages: Sequence[str], hours: int, *, quiet: bool) -> Iterator[Told]:
    """Tells how many of its `hours` each stage has done: bars on a terminal, lines elsewhere, nothing if `quiet`.

    It writes to stderr; results go to stdout.
    """
    if quiet:
        yield lambda _stage, _hour: None
    elif sys.stderr.isatty():
        yield from _bars(stages, hours)
    else:
        yield _lines(hours)


def _bars(stages: Sequence[str], hours: int) -> Iterator[Told]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:20}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[hour]:20}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {stage: bars.add_task(stage, start=False, total=hours, hour="") for stage in stages}
        following = dict(itertools.pairwise(stages))
        bars.start_task(tasks[stages[0]])

        def told(stage: str, hour: int) -> None:
            if not bars.tasks[tasks[stage]].started:
                bars.start_task(tasks[stage])
            bars.update(tasks[stage], advance=1, hour=hour_text(hour))
            if bars.tasks[tasks[stage]].finished and stage in following:
                bars.start_task(tasks[following[stage]])

        yield told


def _lines(hours: int) -> Told:
    done: Counter[str] = Counter()
    begun: dict[str, float] = {}
    lock, last = Lock(), monotonic()

    def told(stage: str, hour: int) -> None:
        nonlocal last
        with lock:
            now = monotonic()
            begun.setdefault(stage, last)
            done[stage] += 1
            if done[stage] == hours:
                typer.echo(f"finops: {stage}: {hours} of {hours} hours, {now - begun[stage]:.1f} s", err=True)
            elif now - last < QUIET_SECONDS:
                return
            else:
                typer.echo(f"finops: {stage}: {done[stage]} of {hours} hours, at {hour_text(hour)}", err=True)
            last = now

    return told


def json_text(data: object) -> str:
    """JSON for a program: times in RFC 3339, decimals as strings with all their digits."""
    return json.dumps(data, default=_json_value, indent=2, ensure_ascii=False) + "\n"


def _json_value(value: object) -> str:
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(timespec="auto") if value.tzinfo else value.isoformat()
        return text.replace("+00:00", "Z")
    return plain(value) if isinstance(value, Decimal) else str(value)


def json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a program: instants in RFC 3339 to the millisecond, exact numbers as text."""
    return {
        name: f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
        if isinstance(value, datetime)
        else plain(value)
        if isinstance(value, Decimal)
        else value
        for name, value in row.items()
    }


def table_text(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str | None = None,
    *,
    totals: Sequence[Sequence[object]] = (),
) -> str:
    """A table for a person: numbers right, null as a dash, the totals below a line."""
    listed = [list(row) for row in rows]
    table = Table(header_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        numeric = any(isinstance(row[place], int | Decimal | float) for row in listed)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*map(cell_text, row))
    if totals:
        table.add_section()
    for total in totals:
        table.add_row(*map(cell_text, total))
    console = Console(file=StringIO(), width=_width(), highlight=False, markup=False)
    console.print(table)
    lines = str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in [title or "", *lines] if line.strip())


def _width() -> int:
    return Console().width if sys.stdout.isatty() else WIDE


def cell_text(value: object) -> str:
    """A value of a table for a person: null as a dash, an instant in RFC 3339, a Decimal with all its digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | Decimal):
        return _json_value(value)
    return f"{value}"


def fields_text(row: Mapping[str, object]) -> str:
    """One thing's fields, a line each."""
    return "".join(f"{name:24} {cell_text(value)}\n" for name, value in row.items())


def status_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Days and how far they are; days that follow each other with nothing to do in them are one line."""
    if not rows:
        return "no hour is computed yet: finops run, or finops backfill --from HOUR\n"
    stretches = [[*days] for _, days in itertools.groupby(enumerate(rows), _stretch)]
    table = table_text(
        (
            "cluster",
            "day",
            "computed",
            "missing",
            "provisional",
            "out of date",
            "unpriced",
            "set aside",
            "most estimated",
        ),
        (_status_line([row for _, row in days]) for days in stretches),
    )
    stale = sum(row["out_of_date"] for row in rows)
    if stale:
        reasons = ", ".join(sorted({reason for row in rows for reason in row["reasons"]}))
        table += f"\n{stale} published hours are out of date ({reasons}): finops backfill computes them again\n"
    return table


def _stretch(numbered: tuple[int, Mapping[str, Any]]) -> tuple[object, ...]:
    """Equal for days that may share a line."""
    place, row = numbered
    done = not any(row[name] for name in ("missing", "provisional", "out_of_date", "unpriced", "quarantined"))
    return (row["cluster"], None if done else place)


def _status_line(days: Sequence[Mapping[str, Any]]) -> tuple[object, ...]:
    first, last = days[0]["day"], days[-1]["day"]
    shares = [row["highest_estimated_share"] for row in days if row["highest_estimated_share"] is not None]
    return (
        days[0]["cluster"],
        first if first == last else f"{first} to {last}",
        *(sum(row[name] for row in days) for name in ("computed", "missing", "provisional", "out_of_date")),
        *(sum(row[name] for row in days) for name in ("unpriced", "quarantined")),
        _percent(max(shares, default=None)),
    )


def policies_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Policies, the columns that distinguish them."""
    if not rows:
        return "there are no policies: finops policies add FILE\n"
    return table_text(
        [name.replace("_", " ") for name in POLICY_COLUMNS], ([row[name] for name in POLICY_COLUMNS] for row in rows)
    )


def _percent(share: object) -> str | None:
    return None if share is None else f"{Decimal(str(share)):.2%}"


def statement_text(result: Mapping[str, Any], format_: str) -> str:
    """A statement as a table for a terminal, in Markdown or HTML, as JSON (as gpu_allocation.json) or CSV."""
    if format_ == "json":
        return statement_json([result])
    return statement_csv(result) if format_ == "csv" else statement_table(result, format_)


def statement_csv(result: Mapping[str, Any]) -> str:
    """Lines of a statement, a row each; corrections have their hour in a column of their own."""
    corrections = result.get("corrections", ())
    columns = [*ITEM_COLUMNS, "hour"] if corrections else ITEM_COLUMNS
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for line in (*result["items"], *corrections):
        row = {"hour": None, **line, **line["allocated"], "estimated": str(line["estimated"]).lower()}
        writer.writerow([_field(row[name]) for name in columns])
    return text.getvalue()


def _field(value: object) -> object:
    if value is None:
        return ""
    return plain(value) if isinstance(value, Decimal) else value


def statement_table(result: Mapping[str, Any], layout: str = "table") -> str:
    """Items, corrections and totals of a statement."""
    from finops_pipeline.commands.tables import written

    corrections = result.get("corrections", ())
    if not result["items"] and not corrections:
        return f"Statement of {result['period']} ({result['status']}): no items\n"
    return written(
        layout,
        ("tenant", "deployment", "GPU-hours", "GB-hours", "kWh", "amount", "", "estimated"),
        (
            [
                line["tenant_id"],
                f"{line['deployment_id']}, correction of {line['hour']}" if "hour" in line else line["deployment_id"],
                *_amounts(line, line["allocated"]),
                "partly" if line["estimated"] else "no",
            ]
            for line in (*result["items"], *corrections)
        ),
        f"Statement of {result['period']} ({result['status']})",
        totals=[["total", "", *_amounts(total, total), ""] for total in result["totals"]],
    )


def balance_table(proofs: Sequence[Proof]) -> str:
    """The amounts of a trial balance, and every proof that does not hold."""
    shown = [proof for proof in proofs if proof.measure == "amount" or not proof.holds]
    if not shown:
        return "nothing is published yet\n"
    table = table_text(
        ("month", "proof", "tenant", "", "left", "right", "difference", "holds"),
        (
            [
                proof.period,
                PROOFS[proof.proof] if proof.measure == "amount" else f"{PROOFS[proof.proof]}, {proof.measure}",
                proof.tenant_id or "all",
                proof.currency or "no price",
                *(f"{value:.9f}" for value in (proof.left, proof.right, proof.difference)),
                "yes" if proof.holds else "NO",
            ]
            for proof in shown
        ),
    )
    return table + "".join(f"{proof.period}, {proof.proof}: {proof.fault}\n" for proof in shown if proof.fault)


def _amounts(units: Mapping[str, Any], cost: Mapping[str, Any]) -> list[object]:
    return [
        _scaled(units["gpu_seconds"], 3600),
        _scaled(units["gpu_memory_gb_seconds"], 3600),
        _scaled(units["energy_wh"], 1000),
        "no price" if cost["amount"] is None else Decimal(cost["amount"]),
        cost["currency"] or "",
    ]


def _scaled(value: Decimal | None, divisor: int) -> Decimal | None:
    return None if value is None else (value / divisor).quantize(Decimal("0.001"))


def demo_report(site: Site, statement: Mapping[str, Any], hours: int, booked: int, settings: Settings) -> Report:
    """The statement, where the gaps were and how they were filled, and where to look next."""
    gaps, estimated = _gaps(site), _estimated(site)
    text = statement_table(statement) + "\n"
    text += table_text(
        ("node", "from", "to", "devices", "device-seconds", "filled by"),
        ([gap[name] for name in ("node", "first", "past", "devices", "device_seconds", "method")] for gap in gaps),
        "Gaps in the readings, and how they were filled (A13)",
    )
    text += "\n" + table_text(
        ("workload", "model", "hours", "estimated", "filled by"),
        ([row[name] for name in ("workload_id", "gpu_model", "hours", "estimated", "methods")] for row in estimated),
        "Device hours that are estimated: never a zero, always flagged (A15)",
    )
    again = "" if booked else " (the same inputs book nothing twice)"
    home = "" if settings.home == Path(".finops") else f"FINOPS_HOME={settings.home} "
    command = sys.argv[0]
    text += (
        f"\n{hours} hours computed, {booked} usage events booked{again}.\n\n"
        f"Look further:\n"
        f"  Dagster's UI      {home}{command} dev\n"
        f"  SQL on the lake   {home}{command} sql 'FROM gpu_usage LIMIT 5'\n"
        f"  the statement     {home}{command} statement {statement['period']} --format json\n"
        f"  close the month   {home}{command} close {statement['period']}\n"
    )
    return Report({"hours": hours, "booked": booked, "gaps": gaps, "estimated": estimated}, text)


def _gaps(site: Site) -> list[dict[str, Any]]:
    """Neighbouring windows of a node that were estimated by the same method."""
    found = site.database.query(
        "WITH windows AS (SELECT node, method, window_start, window_seconds, count(*) AS devices"
        "   FROM eai.gpu_samples WHERE estimated AND cluster = ANY(%s) GROUP BY 1, 2, 3, 4),"
        " gaps AS (SELECT *, make_interval(secs => window_seconds) AS length, window_start - row_number() OVER"
        "   (PARTITION BY node, method, window_seconds ORDER BY window_start) * make_interval(secs => window_seconds)"
        "   AS gap FROM windows)"
        " SELECT node, min(window_start) AS first, max(window_start + length) AS past, max(devices) AS devices,"
        " sum(devices * window_seconds)::bigint AS device_seconds, replace(method, '+', ', ') AS method"
        " FROM gaps GROUP BY node, method, gap ORDER BY first, node, method",
        (list(site.source.clusters),),
    )
    return list(found.to_pylist())


def _estimated(site: Site) -> list[dict[str, Any]]:
    """Workloads with estimated device time, in hours."""
    found = site.database.query(
        "SELECT workload_id, gpu_model,"
        " round(sum(measured_seconds + estimated_seconds + missing_seconds) / 3600, 3) AS hours,"
        " round(sum(estimated_seconds) / 3600, 3) AS estimated,"
        " (SELECT string_agg(DISTINCT split_part(part, '=', 1), ', ') FROM unnest(string_to_array("
        "   string_agg(nullif(methods, ''), ';'), ';')) AS part) AS methods"
        " FROM eai.gpu_usage WHERE cluster = ANY(%s) GROUP BY 1, 2 HAVING sum(estimated_seconds) > 0 ORDER BY 1, 2",
        (list(site.source.clusters),),
    )
    return list(found.to_pylist())


def sql_session(settings: Settings, query: str | None, *, as_json: bool) -> None:
    """Answer a query, or those of stdin as they come; UsageError for one that fails, unless somebody can fix it."""
    import duckdb

    from finops_pipeline.resources.lake.store import Lake

    if isinstance(settings.lake_folder, Path) and not settings.lake_folder.is_dir():
        raise UsageError(
            f"{settings.lake_folder.absolute()}: there is no lake here: go to the installation's folder, or name it by "
            "FINOPS_HOME or FINOPS_LAKE_URL"
        )
    connection = Lake(settings.lake_folder).connect()
    asking = query is None and sys.stdin.isatty()
    for text in [query] if query is not None else _statements(prompt=asking):
        try:
            for statement in connection.extract_statements(text):
                _answer(connection.sql(statement.query), as_json=as_json)
        except duckdb.Error as error:
            message = f"sql: {' '.join(str(error).split())}"
            if not asking:
                raise UsageError(message) from None
            typer.echo(message, err=True)


def _answer(found: duckdb.DuckDBPyRelation | None, *, as_json: bool) -> None:
    if found is None:
        return
    rows = found.fetchall()
    if as_json:
        typer.echo(json_text([dict(zip(found.columns, row, strict=True)) for row in rows]), nl=False)
    else:
        typer.echo(table_text(found.columns, rows), nl=False)


def _statements(*, prompt: bool) -> Iterator[str]:
    """SQL from stdin, up to a line that ends with `;` at a time."""
    pending = ""
    while True:
        if prompt:
            typer.echo("   ...> " if pending else "finops> ", nl=False, err=True)
        line = sys.stdin.readline()
        pending += line
        if pending.strip() and (not line or line.rstrip().endswith(";")):
            yield pending
            pending = ""
        if not line:
            return
