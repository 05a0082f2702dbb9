"""The `finops` command.

What belongs here: arguments, exit codes, and what a person or a program reads. Everything else is imported
when a command needs it, so that `finops --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import UUID

import typer

from finops_pipeline.commands.replica import keep_up, replica_app
from finops_pipeline.errors import FinopsError, UsageError

if TYPE_CHECKING:
    from finops_pipeline.commands.runner import Outcome
    from finops_pipeline.commands.spans import Span
    from finops_pipeline.resources.site import Site
    from finops_pipeline.resources.source import Source
    from finops_pipeline.settings import Settings

INCOMPLETE = 3
INTERRUPTED = 130
"""What a shell expects of a program that was interrupted."""
EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong use, 3 done but incomplete (more estimated than FINOPS_MAX_ESTIMATED, "
    "unpriced, or an input set aside), 130 interrupted. Settings come from the environment and .env: see the README."
)

app = typer.Typer(
    name="finops",
    help="GPU usage and cost per tenant: from DCGM series and lifecycle events to usage events and statements.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
policies_app = typer.Typer(help="What a GPU-hour, a kWh and a GB-month cost.", no_args_is_help=True)
app.add_typer(policies_app, name="policies")
app.add_typer(replica_app, name="replica")
audit_app = typer.Typer(help="The hash-chained log of all that was published and decided.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")


credits_app = typer.Typer(help="Time that was charged without working, to give back.", no_args_is_help=True)
app.add_typer(credits_app, name="credits")
quotas_app = typer.Typer(help="How many GPU-hours a tenant may use.", no_args_is_help=True)
app.add_typer(quotas_app, name="quotas")
fairshare_app = typer.Typer(help="Who used less than its share, and who more.")
app.add_typer(fairshare_app, name="fairshare")


class Period(StrEnum):
    """What usage is summed by, and quotas are for."""

    DAY = "day"
    MONTH = "month"


class CreditStatus(StrEnum):
    """How far a credit is."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"


class Format(StrEnum):
    """How a statement is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


class Layout(StrEnum):
    """How a table for a person is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    HTML = "html"


Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of text for a person.")]
As = Annotated[Layout, typer.Option("--format", help="How the table is written: for a terminal, a ticket or a mail.")]
BundleFolder = Annotated[
    Path | None,
    typer.Option("--bundle", metavar="DIR", help="Take the inputs from this bundle of files (FINOPS_BUNDLE)."),
]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write the results as files.")]
From = Annotated[str | None, typer.Option("--from", metavar="HOUR", help="First hour, like 2026-10-01T10:00Z.")]
To = Annotated[str | None, typer.Option("--to", metavar="HOUR", help="Hour to end before, like 2026-10-02T00:00Z.")]
CreditId = Annotated[str, typer.Argument(metavar="ID", help="As `finops credits list` shows it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; the audit log keeps it.")]
DecidedBy = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides; your login by default.")]


class StoppedError(FinopsError):
    """Somebody pressed Ctrl-C, or the machine shuts down."""

    exit_code = INTERRUPTED


def main() -> None:
    """Run the command; what a user can fix is one line on stderr."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    told = logging.StreamHandler()
    told.setFormatter(logging.Formatter("finops: %(message)s"))
    logging.getLogger("finops_pipeline").addHandler(told)
    try:
        code = app(standalone_mode=False)
    except FinopsError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            raise SystemExit(error.exit_code) from None
        _fail(error.format_message().replace("Value error, ", ""), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}", 1)
    if code == INTERRUPTED:
        _fail("interrupted", INTERRUPTED)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"finops: {' '.join(message.split())}", err=True)
    raise SystemExit(code)


def _version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        typer.echo(f"finops {version('finops-pipeline')}")
        raise typer.Exit


@app.callback()
def common(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What holds for every command."""


@app.command(short_help="Run a bundled day of a small cluster, and show who pays what.")
def demo(json_output: Json = False) -> None:
    """Run a bundled day of a GPU cluster through the whole pipeline, embedded, and show who pays what.

    Nothing is needed but this program. Everything lies under FINOPS_HOME (.finops); running it again books nothing.
    """
    from finops_pipeline.commands.show import demo_report, unattributed_text
    from finops_pipeline.commands.unattributed import told_apart
    from finops_pipeline.resources.postgres.published import read_statement
    from finops_pipeline.settings import demo_folder

    settings = _settings()
    for variable, value in (("EAI_DATABASE_URL", settings.database_url), ("FINOPS_LAKE_URL", settings.lake_url)):
        if value is not None:
            raise UsageError(f"{variable} is set, and the demo would write into it: unset it, the demo brings its own")
    with _site(settings, _demo_bundle(demo_folder(settings.home))) as (site, span):
        outcome = _run(settings, site, [span], None, quiet=json_output)
        statement = told_apart(site.database, read_statement(site.database, outcome.months[0]))
        report = demo_report(site, statement, outcome.cluster_hours, outcome.booked, settings)
    _print(report.data, report.text + unattributed_text(outcome.unattributed), json_output)


@app.command(short_help="Compute hours, and book what is new.")
def run(
    from_: From = None, to: To = None, bundle: BundleFolder = None, out: OutFolder = None, json_output: Json = False
) -> None:
    """Compute hours and book what is new; without --from and --to the last hour, or all of a bundle.

    An hour may be computed as often as wanted: only the difference to what is booked is booked.
    """
    settings = _settings()
    with _site(settings, bundle, from_, to, out) as (site, span):
        outcome = _run(settings, site, [span], out, quiet=json_output)
        keep_up(settings, site)
    _report(outcome, settings, json_output)


@app.command(short_help="Compute the hours of a span that are missing.")
def backfill(from_: From = None, to: To = None, bundle: BundleFolder = None, json_output: Json = False) -> None:
    """Compute the hours of a span that are missing or provisional, a day at a time.

    Without --to up to the last hour that has ended. Stopped, the same command goes on where it was.
    """
    settings = _settings()
    if from_ is None and bundle is None and settings.bundle is None:
        raise UsageError("--from is missing: name the first hour, like --from 2026-10-01T00:00Z")
    with _site(settings, bundle, from_, to) as (site, span):
        from finops_pipeline.commands.runner import missing_hours
        from finops_pipeline.commands.spans import days_of

        outcome = _run(settings, site, list(days_of(missing_hours(site, *span))), None, quiet=json_output)
        keep_up(settings, site)
    _report(outcome, settings, json_output)


@app.command(short_help="What is computed, missing, provisional, out of date, unpriced or set aside.")
def status(json_output: Json = False) -> None:
    """What is computed, missing, provisional, out of date, unpriced or set aside, by cluster and day.

    A cluster of FINOPS_PROMETHEUS_URLS should be computed up to the last hour that has ended, any other one up to its
    last published hour.
    """
    from finops_pipeline.commands.show import status_table
    from finops_pipeline.resources.postgres.database import open_database
    from finops_pipeline.resources.postgres.published import status as rows_of

    settings = _settings()
    with open_database(settings, existing=True) as database:
        rows = rows_of(database, list(settings.prometheus_urls), _now(settings))
    _print(rows, status_table(rows), json_output)


@app.command(short_help="A month's statement: each tenant's deployments, in money.")
def statement(
    period: Annotated[str, typer.Argument(metavar="MONTH", help="Like 2026-10.")],
    tenant: Annotated[UUID | None, typer.Option(metavar="UUID", help="Only this tenant's items.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="How it is written.")] = Format.TABLE,
) -> None:
    """A month's statement: each tenant's deployments, in money, summed from the published hours."""
    from finops_pipeline.commands.show import statement_text
    from finops_pipeline.commands.unattributed import told_apart
    from finops_pipeline.resources.postgres.database import open_database
    from finops_pipeline.resources.postgres.published import of_tenant, read_statement

    month = _month(period)
    with open_database(_settings(), existing=True) as database:
        result = read_statement(database, month)
        if format_ not in {Format.JSON, Format.CSV}:
            result = told_apart(database, result)
    if not result["items"] and "corrections" not in result:
        raise UsageError(f"{month}: no hour of this month is computed yet; finops backfill --from {month}-01T00:00Z")
    typer.echo(statement_text(result if tenant is None else of_tenant(result, str(tenant)), format_), nl=False)


@app.command("close", short_help="Make a month final, or say exactly what is missing.")
def close_period(
    period: Annotated[str, typer.Argument(metavar="MONTH", help="Like 2026-10.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only judge the month.")] = False,
    began: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER=HOUR", help="This cluster's first hour lies in the month.")
    ] = None,
    ended: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER=HOUR", help="This cluster ended in the month, at this hour.")
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Accept this input in conflict (needs --reason).")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; the audit log keeps it.")] = None,
    json_output: Json = False,
) -> None:
    """Make a month final if nothing is missing (A33); its statement never changes again.

    What is booked into it later is listed in the next open month's statement. Exit code 3: something is missing.
    """
    from finops_pipeline.commands.closing import Request, close_month, lives_of, lives_of_bundle
    from finops_pipeline.resources.bundle.files import Bundle
    from finops_pipeline.resources.postgres.database import open_database

    settings = _settings()
    lives = lives_of(_cluster_hours("--began", began), _cluster_hours("--ended", ended))
    with open_database(settings, existing=True) as database:
        if settings.bundle is not None:
            lives = lives_of_bundle(database, Bundle.open(settings.bundle)) | lives
        asked = Request(
            _month(period),
            clusters=tuple(settings.prometheus_urls),
            min_coverage=settings.min_coverage,
            priced=settings.pricing == "on",
            lives=lives,
            accepted=tuple(accept or ()),
            reason=reason,
        )
        closing = close_month(database, asked, _now(settings), dry_run=dry_run)
    _print(closing.data, closing.text, json_output)
    if not closing.gate.open:
        raise SystemExit(INCOMPLETE)


@app.command("reopen", short_help="Make a final month open again, for a reason.")
def reopen_period(
    period: Annotated[str, typer.Argument(metavar="MONTH", help="Like 2026-10.")],
    reason: Annotated[str, typer.Option(help="Why; the audit log keeps it.")],
    json_output: Json = False,
) -> None:
    """Make a final month open again; the audit log keeps the reason."""
    from finops_pipeline.resources.postgres.database import open_database
    from finops_pipeline.resources.postgres.statements import reopen

    month = _month(period)
    if not reason.strip():
        raise UsageError("--reason is empty: say why the month is reopened")
    settings = _settings()
    with open_database(settings, existing=True) as database:
        reopen(database, month, reason, _now(settings))
    _print({"period": month, "status": "open", "reason": reason}, f"{month} is open again\n", json_output)


@audit_app.command("verify", short_help="Verify the audit log, its anchor, and the ledger against both.")
def verify_audit(json_output: Json = False) -> None:
    """Verify the audit log, its anchor, and the ledger against both (A34).

    Exit codes: 0 intact; 10 an entry was changed, 11 removed, 12 inserted, 13 reordered; 14 the tail was cut off,
    15 the chain was rewritten, 16 an old backup was restored; 17 a usage event was changed, 18 removed, 19 added;
    20 a policy, statement or hour is not what the log says; 21 the anchor file is missing. Of several, the first.
    """
    from finops_pipeline.commands.audit import verify
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings(), existing=True) as database:
        found = verify(database)
    _print(found.data, found.text, json_output)
    if found.exit_code:
        raise SystemExit(found.exit_code)


@app.command("balance", short_help="Prove usage x price = booked = stated, in SQL alone.")
def trial_balance(
    period: Annotated[str | None, typer.Argument(metavar="[MONTH]", help="Like 2026-10; without it, all.")] = None,
    json_output: Json = False,
) -> None:
    """Prove usage x price = allocated = booked = stated, per tenant and in total, in SQL from Postgres alone.

    Exit code 1: something does not balance.
    """
    from dataclasses import asdict

    from finops_pipeline.commands.show import balance_table
    from finops_pipeline.resources.postgres.balance import trial_balance as proofs_of
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings(), existing=True) as database:
        proofs = proofs_of(database, None if period is None else _month(period))
    _print([asdict(proof) for proof in proofs], balance_table(proofs), json_output)
    wrong = sum(not proof.holds for proof in proofs)
    if wrong:
        _fail(f"{wrong} of {len(proofs)} proofs do not hold", 1)


@app.command("findings", short_help="What a person should look at, hour by hour.")
def list_findings(
    from_: From = None,
    to: To = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind, like held_but_idle.")] = None,
    layout: As = Layout.TABLE,
    json_output: Json = False,
) -> None:
    """What a person should look at: idle, lost and doubtful capacity; by default of the last 24 published hours."""
    from finops_pipeline.commands.findings import findings, findings_text
    from finops_pipeline.resources.postgres.database import open_database

    first, past = (_hour(option, text) if text else None for option, text in (("--from", from_), ("--to", to)))
    with open_database(_settings(), existing=True) as database:
        rows = findings(database, first, past, kind)
    _print(rows, findings_text(rows, layout), json_output)


@credits_app.command("list")
def list_credits(
    status_: Annotated[CreditStatus | None, typer.Option("--status", help="Only these.")] = None,
    layout: As = Layout.TABLE,
    json_output: Json = False,
) -> None:
    """All proposed credits, what was decided, and what was given back."""
    from finops_pipeline.commands.credits import credits_json, credits_text
    from finops_pipeline.resources.credits import listed
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings(), existing=True) as database:
        rows = listed(database, status_)
    _print(credits_json(rows), credits_text(rows, layout), json_output)


@credits_app.command("approve", short_help="Give back what was charged for the time.")
def approve_credit(credit_id: CreditId, reason: Reason, by: DecidedBy = None, json_output: Json = False) -> None:
    """Give back what was charged for the time; booked once, never more than is charged, audited."""
    _decide(credit_id, reason, by, json_output, approve=True)


@credits_app.command("reject")
def reject_credit(credit_id: CreditId, reason: Reason, by: DecidedBy = None, json_output: Json = False) -> None:
    """Give nothing back; audited, and not proposed again."""
    _decide(credit_id, reason, by, json_output, approve=False)


@app.command("usage", short_help="GPU-hours of each tenant and class, against its quotas.")
def tenant_usage(
    by: Annotated[Period, typer.Option(help="Sum by UTC day or month.")] = Period.MONTH,
    tenant: Annotated[UUID | None, typer.Option(metavar="UUID", help="Only this tenant.")] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="DAY", help="First day, like 2026-10-01.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Day to end before.")] = None,
    layout: As = Layout.TABLE,
    json_output: Json = False,
) -> None:
    """GPU-hours that each tenant was given, by UTC day or month and class, and how much of its quotas that is."""
    from finops_pipeline.commands.show import json_row
    from finops_pipeline.commands.usage import usage, usage_text
    from finops_pipeline.resources.postgres.database import open_database

    first, past = (_hour(option, text).date() if text else None for option, text in (("--from", from_), ("--to", to)))
    with open_database(_settings(), existing=True) as database:
        rows = usage(database, by, None if tenant is None else str(tenant), first, past)
    _print([json_row(row) for row in rows], usage_text(rows, layout), json_output)


@quotas_app.command("set", short_help="Set how many GPU-hours a tenant may be given.")
def set_tenant_quota(
    tenant: Annotated[UUID, typer.Argument(metavar="TENANT")],
    hours: Annotated[str, typer.Argument(metavar="GPU-HOURS", help="Like 500, or `none` to take the quota away.")],
    period: Annotated[Period, typer.Option(help="Per UTC day or month.")] = Period.MONTH,
    placed_class: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Only for this class.")] = None,
    json_output: Json = False,
) -> None:
    """Set how many GPU-hours a tenant may be given; whoever places workloads enforces it."""
    from finops_pipeline.commands.quotas import quotas, quotas_text, set_quota
    from finops_pipeline.commands.show import json_row
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings()) as database:
        set_quota(database, str(tenant), placed_class, period, None if hours == "none" else _decimal(hours))
        rows = quotas(database)
    _print([json_row(row) for row in rows], quotas_text(rows), json_output)


@quotas_app.command("list")
def list_quotas(json_output: Json = False) -> None:
    """All quotas."""
    from finops_pipeline.commands.quotas import quotas, quotas_text
    from finops_pipeline.commands.show import json_row
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings(), existing=True) as database:
        rows = quotas(database)
    _print([json_row(row) for row in rows], quotas_text(rows), json_output)


@fairshare_app.callback(invoke_without_command=True)
def list_fair_shares(
    context: typer.Context,
    half_life: Annotated[
        float, typer.Option("--half-life", min=0.01, metavar="DAYS", help="Usage so old counts half.")
    ] = 7.0,
    json_output: Json = False,
) -> None:
    """Who used less than its share, as Slurm's classic algorithm defines it: above 0.5 is less, below is more."""
    from finops_pipeline.commands.fair_share import fairshare, fairshare_json, fairshare_text
    from finops_pipeline.resources.postgres.database import open_database

    if context.invoked_subcommand is not None:
        return
    settings = _settings()
    with open_database(settings, existing=True) as database:
        rows = fairshare(database, _now(settings), half_life)
    _print(fairshare_json(rows), fairshare_text(rows), json_output)


@fairshare_app.command("set")
def set_fair_share(
    node: Annotated[str, typer.Argument(metavar="NAME", help="An account, or a tenant's uuid.")],
    shares: Annotated[str, typer.Argument(metavar="SHARES", help="Against those with the same parent; 1 if not set.")],
    parent: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="The account that it belongs to.")] = None,
) -> None:
    """Give an account or a tenant its shares."""
    from finops_pipeline.accounting.exact import plain
    from finops_pipeline.commands.fair_share import set_share
    from finops_pipeline.resources.postgres.database import open_database

    given = _decimal(shares)
    with open_database(_settings()) as database:
        set_share(database, node, parent, given)
    typer.echo(f"{node} has {plain(given)} shares{f' in {parent}' if parent else ''}")


@app.command("explain", short_help="Where an amount comes from, back to the raw readings.")
def explain_amount(
    event_id: Annotated[str | None, typer.Argument(metavar="[EVENT]", help="Id of a usage event.")] = None,
    tenant: Annotated[UUID | None, typer.Option(metavar="UUID", help="Or: a tenant,")] = None,
    deployment: Annotated[
        str | None, typer.Option(metavar="ID", help="a deployment (`idle` for nobody's time),")
    ] = None,
    hour: Annotated[str | None, typer.Option(metavar="HOUR", help="and an hour, like 2026-10-01T10:00Z.")] = None,
    bundle: BundleFolder = None,
    json_output: Json = False,
) -> None:
    """Where an amount comes from: event, split, cost and policy, usage, lifecycle events, windows, readings (A35).

    What it prints recomputes to the amount.
    """
    from finops_pipeline.commands.explain import explain_event, explain_hour, open_sources, tree_text

    wanted = [value is not None for value in (tenant, deployment, hour)]
    if any(wanted) != all(wanted) or (event_id is None) != all(wanted):
        raise UsageError("name the id of an event, or all of --tenant, --deployment and --hour")
    settings = _settings()
    with open_sources(settings, bundle or settings.bundle) as sources:
        if event_id is not None:
            told = explain_event(sources, event_id)
        else:
            told = explain_hour(sources, str(tenant), str(deployment), _hour("--hour", str(hour)))
    _print(told, tree_text(told), json_output)


@policies_app.command("add", short_help="Add policies from a file.")
def add_policies(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON: a list, as in allocation_policies.json, or one policy.")
    ],
    retroactive: Annotated[
        bool, typer.Option("--retroactive", help="Also price computed hours anew; needs a reason.")
    ] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report hours, final months and the difference in money; add nothing.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Add policies from a file, all or none; one whose id is known must have the same content (A22).

    Only name, deployment_pattern and currency must be given: an id is chosen (alp_1, alp_2, ...), the first hour is the
    next one, and a price is that of the policy that would apply otherwise.
    """
    from finops_pipeline.commands.explain import open_sources
    from finops_pipeline.commands.policies import add, summary
    from finops_pipeline.resources.bundle.files import NOBODY

    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    settings = _settings()
    if not dry_run and settings.platform_tenant is None:  # only a trial computes anything
        settings = settings.model_copy(update={"platform_tenant": NOBODY})
    with open_sources(settings, settings.bundle, existing=dry_run) as sources:
        result = add(sources, file, retroactive=retroactive, reason=reason, dry_run=dry_run)
    _print(result, summary(result), json_output)


@policies_app.command("end", short_help="End a policy from an hour on.")
def end_policy(
    policy_id: Annotated[str, typer.Argument(metavar="ID")],
    begin: Annotated[str, typer.Option("--from", metavar="HOUR", help="First hour that it does not price any more.")],
    json_output: Json = False,
) -> None:
    """End a policy, once, from an hour that has not begun; the next policy that matches applies from then on (A22)."""
    from finops_pipeline.accounting.exact import instant_of
    from finops_pipeline.commands.explain import open_sources
    from finops_pipeline.resources.bundle.files import NOBODY

    settings, end = _settings(), _hour("--from", begin)
    settings = settings.model_copy(update={"platform_tenant": settings.platform_tenant or NOBODY})
    with open_sources(settings, settings.bundle) as sources, sources.database.transaction() as connection:
        sources.database.end_policy(connection, policy_id, end, instant_of(sources.now_ms))
    ended = {"id": policy_id, "effective_to": end}
    _print(ended, f"policy {policy_id} ends at {end:%Y-%m-%dT%H:%M:%SZ}\n", json_output)


@policies_app.command("list")
def list_policies(json_output: Json = False) -> None:
    """All policies."""
    from finops_pipeline.commands.show import policies_table

    rows = _policies()
    _print(rows, policies_table(rows), json_output)


@policies_app.command("show")
def show_policy(policy_id: Annotated[str, typer.Argument(metavar="ID")], json_output: Json = False) -> None:
    """One policy, with all its fields."""
    from finops_pipeline.commands.show import fields_text

    found = next((row for row in _policies() if row["id"] == policy_id), None)
    if found is None:
        raise UsageError(f"policy {policy_id}: there is none with this id; `finops policies list` shows all")
    _print(found, fields_text(found), json_output)


@app.command(short_help="Query the lake with SQL.")
def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Like 'FROM gpu_usage LIMIT 5'; without it, stdin is read.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Query the lake with DuckDB's SQL; every table is a view: gpu_usage, gpu_cost_allocation, dcgm_series, SHOW TABLES."""
    from finops_pipeline.commands.show import sql_session

    sql_session(_settings(), query, as_json=json_output)


@app.command(short_help="Check every connection, label and permission, and say what to set.")
def doctor(bundle: BundleFolder = None, json_output: Json = False) -> None:
    """Ask each Prometheus, Postgres and the lake (or a bundle), change nothing, and say what to set; 1 if a check fails."""
    from finops_pipeline.doctor import as_json, as_text, diagnose, failed
    from finops_pipeline.settings import environment

    remarks = diagnose(environment(), bundle)
    _print(as_json(remarks), as_text(remarks), json_output)
    if failed(remarks):
        raise SystemExit(1)


@app.command(short_help="Start Dagster's UI and daemon.")
def dev(port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the UI, on 127.0.0.1.")] = 3000) -> None:
    """Start Dagster's UI and its daemon on FINOPS_HOME, until interrupted: backfills, schedules, lineage, checks."""
    from finops_pipeline.resources.home import begin_now

    settings = _settings()
    begin_now(settings, _now(settings))
    from finops_pipeline.commands.runner import dagster_home, instance_of

    with instance_of(settings):
        os.environ["DAGSTER_HOME"] = str(dagster_home(settings))
    os.environ["FINOPS_HOME"] = str(settings.home.absolute())
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Function `dev_command` is superseded")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ["PYTHONSAFEPATH"] = "1"  # a file of the current folder must not stand in for a module of Dagster
    program = str(Path(sys.executable).with_name("dagster"))
    # Dagster looks for modules in its working directory first: ours, where nothing stands in for them
    ours = ("-m", "finops_pipeline.definitions", "-d", os.environ["DAGSTER_HOME"])
    os.execv(program, [program, "dev", *ours, "-h", "127.0.0.1", "-p", str(port)])  # noqa: S606


def _decide(credit_id: str, reason: str, by: str | None, json_output: bool, *, approve: bool) -> None:
    import getpass
    from dataclasses import asdict

    from finops_pipeline.accounting.exact import plain
    from finops_pipeline.resources.credits import decide
    from finops_pipeline.resources.postgres.database import open_database

    settings = _settings()
    decided_by, now = by or getpass.getuser(), _now(settings)
    with open_database(settings, existing=True) as database:
        made = decide(database, credit_id, approve=approve, reason=reason, decided_by=decided_by, now=now)
    text = f"{made.id} is {made.status}: {plain(made.amount)} {made.currency} given back, {made.booked} events booked now\n"
    _print(asdict(made), text, json_output)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{text}: not a number") from None


def _settings() -> Settings:
    from finops_pipeline.settings import environment, load_settings

    return load_settings(environment())


def _now(settings: Settings) -> datetime:
    """What time it is: a bundle's own, where one is the source."""
    if settings.bundle is None:
        return datetime.now(UTC)
    from finops_pipeline.resources.source import now_of

    return now_of(settings)


def _demo_bundle(folder: Path) -> Path:
    """The demo's bundle, written at first use; a folder of this name is a whole one."""
    if not folder.exists():
        from finops_pipeline.demo.generate import generate

        unfinished = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        generate(unfinished).rename(folder)
    return folder


@contextmanager
def _site(
    settings: Settings, bundle: Path | None, from_: str | None = None, to: str | None = None, out: Path | None = None
) -> Iterator[tuple[Site, Span]]:
    """The opened installation (a bundle's if one is named, else the one that the settings describe), and the span asked for.

    Nothing is loaded of a bundle unless the span can be computed and `out` can be written.
    """
    from finops_pipeline.commands.export import prepare
    from finops_pipeline.commands.spans import check_span, span_of
    from finops_pipeline.resources.home import remember_first_hour
    from finops_pipeline.resources.site import open_site

    given = [_hour(option, text) if text else None for option, text in (("--from", from_), ("--to", to))]

    def check(source: Source) -> None:
        check_span(source, *span_of(source, *given))
        if out is not None:
            prepare(out)

    with open_site(settings, bundle or settings.bundle, check=check) as site:
        span = span_of(site.source, *given)
        remember_first_hour(settings, span[0])
        yield site, span


def _run(settings: Settings, site: Site, spans: Sequence[Span], out: Path | None, *, quiet: bool) -> Outcome:
    """Run spans of hours one after the other, with progress over all of them; their files go to `out`."""
    from finops_pipeline.commands.export import export
    from finops_pipeline.commands.runner import STAGES, booked_since, instance_of, last_arrival, outcome_of, run_hours
    from finops_pipeline.commands.show import progress

    hours = sum((past - first) // timedelta(hours=1) for first, past in spans) * len(site.source.clusters)
    before = last_arrival(site)
    try:
        with instance_of(settings) as instance, progress(STAGES, hours, quiet=quiet) as told:
            watched = replace(site, watch=replace(site.watch, progress=told))
            for first, past in spans:
                run_hours(watched, instance, first, past)
    except KeyboardInterrupt:
        raise StoppedError("interrupted: published hours stay, the same command again does the rest") from None
    outcome = outcome_of(site, spans, before)
    if out is not None:
        export(site, *spans[0], outcome.months, booked_since(site, before), out)
    return outcome


def _hour(option: str, text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: not a time like 2026-10-01T10:00Z") from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _cluster_hours(option: str, texts: list[str] | None) -> dict[str, datetime]:
    """`CLUSTER=HOUR` options; UsageError for one that is none."""
    hours: dict[str, datetime] = {}
    for text in texts or ():
        cluster, equals, hour = text.partition("=")
        if not cluster or not equals:
            raise UsageError(f"{option} {text}: write CLUSTER=HOUR, like edge=2026-10-14T06:00Z")
        hours[cluster] = _hour(option, hour)
    return hours


def _month(text: str) -> str:
    try:
        return f"{datetime.strptime(text, '%Y-%m').replace(tzinfo=UTC):%Y-%m}"
    except ValueError:
        raise UsageError(f"{text}: not a month like 2026-10") from None


def _report(outcome: Outcome, settings: Settings, json_output: bool) -> None:
    """Say how it went, and end with the exit code for what is not complete."""
    from dataclasses import asdict

    from finops_pipeline.commands.show import unattributed_text

    doubts = outcome.doubts(settings.max_estimated)
    text = "no hour is missing or provisional: nothing to do\n"
    if outcome.cluster_hours:
        text = (
            f"{outcome.cluster_hours} hours computed, {outcome.booked} usage events booked, {outcome.known_as}, "
            f"{outcome.provisional} hours provisional\n"
        )
    text += unattributed_text(outcome.unattributed)
    facts = {
        "estimated_share": round(outcome.estimated_share, 6),
        "missing_share": round(outcome.missing_share, 6),
        "complete": not doubts,
    }
    _print(asdict(outcome) | facts, text, json_output)
    if doubts:
        _fail(f"done, but incomplete: {'; '.join(doubts)}", INCOMPLETE)


def _policies() -> list[dict[str, Any]]:
    from finops_pipeline.resources.postgres.database import open_database

    with open_database(_settings(), existing=True) as database:
        return database.policies()


def _print(data: object, text: str, as_json: bool) -> None:
    from finops_pipeline.commands.show import json_text

    typer.echo(json_text(data) if as_json else text, nl=False)
