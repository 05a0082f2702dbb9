"""The `finops` command.

What belongs here: arguments, exit codes, and what a person or a program reads. Everything else is imported
when a command needs it, so that `finops --help` answers at once.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 done but incomplete (estimated above the limit, unpriced, set aside).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finops_pipeline.errors import FinopsError, UsageError

if TYPE_CHECKING:
    from finops_pipeline.runner import Outcome
    from finops_pipeline.settings import Settings
    from resources.site import Site

INCOMPLETE = 3

app = typer.Typer(
    name="finops",
    help="GPU usage and cost per tenant: from DCGM series and lifecycle events to usage events and statements.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policies_app = typer.Typer(
    help="Allocation policies: what a GPU-hour, a kWh and a GB-month cost.", no_args_is_help=True
)
app.add_typer(policies_app, name="policies")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of text for a person.")]
BundleFolder = Annotated[
    Path | None, typer.Option("--bundle", metavar="DIR", help="Take the inputs from this bundle of files.")
]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write the results as files.")]
From = Annotated[str | None, typer.Option("--from", metavar="HOUR", help="First hour, like 2026-10-01T10:00Z.")]
To = Annotated[str | None, typer.Option("--to", metavar="HOUR", help="End, exclusive.")]


def main() -> None:
    """Run the command; what a user can mend is one line on stderr."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    try:
        app()
    except FinopsError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; what was published stays, run it again to go on", 1)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


def _fail(message: str, code: int) -> None:
    typer.echo(f"finops: {' '.join(message.split())}", err=True)
    raise SystemExit(code)


@app.command()
def demo(json_output: Json = False) -> None:
    """Run a bundled day of a GPU cluster through the whole pipeline, embedded, and show what it cost whom."""
    from finops_pipeline.demo.generate import generate
    from finops_pipeline.show import demo_report
    from resources.bundle import Bundle

    settings = _settings()
    folder = settings.home / "demo"
    if not (folder / "bundle.toml").exists():
        generate(folder)
    with _site(settings, folder, json_output) as site:
        outcome = _run(settings, site, *_span(site, None, None), None)
        report = demo_report(site, Bundle.open(folder), outcome, settings)
    _print(report.data, report.text, json_output)


@app.command()
def run(
    from_: From = None, to: To = None, bundle: BundleFolder = None, out: OutFolder = None, json_output: Json = False
) -> None:
    """Compute hours and book what is new; without --from and --to the last hour, or all of a bundle."""
    settings = _settings()
    with _site(settings, bundle, json_output) as site:
        first, past = _span(site, from_, to)
        outcome = _run(settings, site, first, past, out)
    _report(outcome, settings, json_output)


@app.command()
def backfill(from_: From = None, to: To = None, bundle: BundleFolder = None, json_output: Json = False) -> None:
    """Compute the hours of a span that are missing or provisional, a day at a time; a stopped backfill goes on."""
    from finops_pipeline.runner import check_hours, missing_hours

    settings = _settings()
    if from_ is None and bundle is None:
        raise UsageError("--from is missing: name the first hour, like --from 2026-10-01T00:00Z")
    outcomes: list[Outcome] = []
    with _site(settings, bundle, json_output) as site:
        first, past = _span(site, from_, to)
        check_hours(site, first, past)
        for begin, end in _days(missing_hours(site, first, past)):
            outcomes.append(_run(settings, site, begin, end, None))
    _report(_joined(outcomes), settings, json_output)


@app.command()
def status(json_output: Json = False) -> None:
    """What is computed, provisional, missing, unpriced or set aside, by cluster and day."""
    from finops_pipeline.runner import status as rows_of
    from finops_pipeline.show import status_table
    from resources.site import open_database

    with open_database(_settings()) as database:
        rows = rows_of(database)
    _print(rows, status_table(rows), json_output)


@app.command()
def statement(
    period: Annotated[str, typer.Argument(metavar="MONTH", help="Like 2026-10.")],
    tenant: Annotated[str | None, typer.Option(metavar="UUID", help="Only this tenant's items.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
) -> None:
    """A month's statement: each tenant's deployments, in money."""
    from finops_pipeline.show import statement_text
    from resources.site import open_database

    if format_ not in {"table", "json", "csv"}:
        raise UsageError(f"--format {format_}: use table, json or csv")
    with open_database(_settings()) as database:
        typer.echo(statement_text(database, _month(period), tenant, format_), nl=False)


@policies_app.command("add")
def add_policies(
    file: Annotated[Path, typer.Argument(help="JSON: one policy or a list, as in allocation_policies.json.")],
    json_output: Json = False,
) -> None:
    """Add policies; one whose id is known must have the same content (A22)."""
    from resources.bundle import read_policies
    from resources.site import open_database

    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    policies = read_policies(file)
    with open_database(_settings()) as database, database.transaction() as connection:
        added = database.add_policies(connection, policies.to_pylist(), str(file))
    _print({"added": added, "given": len(policies)}, f"{added} of {len(policies)} policies are new\n", json_output)


@policies_app.command("list")
def list_policies(json_output: Json = False) -> None:
    """All policies."""
    from finops_pipeline.show import policies_table

    rows = _policies()
    _print(rows, policies_table(rows), json_output)


@policies_app.command("show")
def show_policy(policy_id: Annotated[str, typer.Argument(metavar="ID")], json_output: Json = False) -> None:
    """One policy."""
    found = next((row for row in _policies() if row["id"] == policy_id), None)
    if found is None:
        raise UsageError(f"policy {policy_id}: there is none with this id; `finops policies list` shows all")
    _print(
        found, "".join(f"{name:24} {'' if value is None else value}\n" for name, value in found.items()), json_output
    )


@app.command()
def sql(
    query: Annotated[str | None, typer.Argument(help="DuckDB SQL; without it, statements are read from stdin.")] = None,
    json_output: Json = False,
) -> None:
    """Ask the lake: every table is a view (gpu_usage, gpu_cost_allocation, dcgm_series, ...)."""
    from finops_pipeline.show import sql_session

    sql_session(_settings(), query, json_output)


@app.command()
def dev(port: Annotated[int, typer.Option(help="Port of the UI, on 127.0.0.1.")] = 3000) -> None:
    """Start the Dagster UI and its daemon on FINOPS_HOME, until interrupted."""
    from finops_pipeline.runner import dagster_home

    settings = _settings()
    os.environ["DAGSTER_HOME"] = str(dagster_home(settings))
    os.environ["FINOPS_HOME"] = str(settings.home.absolute())
    program = str(Path(sys.executable).with_name("dagster"))
    os.execv(  # noqa: S606
        program, [program, "dev", "-m", "finops_pipeline.definitions", "-h", "127.0.0.1", "-p", str(port)]
    )


def _settings() -> Settings:
    from finops_pipeline.settings import environment, load_settings

    return load_settings(environment())


@contextmanager
def _site(settings: Settings, bundle: Path | None, quiet: bool) -> Iterator[Site]:
    """The opened installation, with progress on a terminal, plain lines elsewhere, or nothing."""
    from dataclasses import replace

    from finops_pipeline.show import progress
    from resources.site import open_site

    with open_site(settings, bundle or settings.bundle) as site, progress(quiet) as told:
        yield replace(site, progress=told)


def _run(settings: Settings, site: Site, first: datetime, past: datetime, out: Path | None) -> Outcome:
    from finops_pipeline.export import export
    from finops_pipeline.runner import booked_since, check_hours, instance_of, last_arrival, run_hours

    check_hours(site, first, past)
    before = last_arrival(site)
    with instance_of(settings) as instance:
        outcome = run_hours(site, instance, first, past)
    if out is not None:
        export(site, first, past, outcome.months, booked_since(site, before), out)
    return outcome


def _span(site: Site, from_: str | None, to: str | None) -> tuple[datetime, datetime]:
    """The hours asked for; by default a bundle's own, or the last hour that has ended."""
    now = datetime.fromtimestamp(site.now_ms() / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    past = _hour("--to", to) if to else (site.bundle.end if site.bundle else now)
    first = _hour("--from", from_) if from_ else (site.bundle.start if site.bundle else past - timedelta(hours=1))
    return first, past


def _hour(option: str, text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: not a time like 2026-10-01T10:00Z") from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _month(text: str) -> str:
    try:
        datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{text}: not a month like 2026-10") from None
    return text


def _days(hours: list[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """Neighbouring hours together, at most a day of them."""
    begin: datetime | None = None
    for index, hour in enumerate(hours):
        begin = begin or hour
        after = hour + timedelta(hours=1)
        if index + 1 == len(hours) or hours[index + 1] != after or after - begin >= timedelta(days=1):
            yield begin, after
            begin = None


def _joined(outcomes: list[Outcome]) -> Outcome:
    from finops_pipeline.runner import Outcome

    return Outcome(
        cluster_hours=sum(o.cluster_hours for o in outcomes),
        booked=sum(o.booked for o in outcomes),
        provisional=sum(o.provisional for o in outcomes),
        unpriced=sum(o.unpriced for o in outcomes),
        quarantined=sum(o.quarantined for o in outcomes),
        estimated_share=max((o.estimated_share for o in outcomes), default=Decimal(0)),
        months=tuple(sorted({month for o in outcomes for month in o.months})),
    )


def _report(outcome: Outcome, settings: Settings, json_output: bool) -> None:
    from dataclasses import asdict

    data = asdict(outcome) | {"estimated_share": f"{outcome.estimated_share:.6f}", "months": list(outcome.months)}
    text = (
        f"{outcome.cluster_hours} hours computed, {outcome.booked} events booked, "
        f"{outcome.estimated_share:.2%} of device time estimated, {outcome.provisional} hours provisional, "
        f"{outcome.unpriced} rows unpriced, {outcome.quarantined} inputs set aside\n"
    )
    _print(data, text, json_output)
    if not outcome.complete(settings.max_estimated):
        raise SystemExit(INCOMPLETE)


def _policies() -> list[dict[str, Any]]:
    from resources.site import open_database

    with open_database(_settings()) as database:
        found = database.read_policies()
    return [
        {name: f"{v:%Y-%m-%dT%H:%M:%SZ}" if isinstance(v, datetime) else v for name, v in row.items()}
        for row in found.to_pylist()
    ]


def _print(data: object, text: str, as_json: bool) -> None:
    typer.echo(json.dumps(data, default=str, indent=2) if as_json else text, nl=as_json)
