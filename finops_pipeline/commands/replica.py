"""The ledger's copy in ClickHouse from the command line: `finops replica`, and after `finops run`.

The commands do without Dagster, so that they answer at once.

What belongs here: the commands, and what a person or a program reads. What does not: how it is done
(`resources.replication`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finops_pipeline.errors import FinopsError

if TYPE_CHECKING:
    from finops_pipeline.resources.clickhouse.client import ClickHouse
    from finops_pipeline.resources.clickhouse.replication import Difference, Synced
    from finops_pipeline.resources.postgres.client import Database
    from finops_pipeline.resources.site import Site
    from finops_pipeline.settings import Settings

INCOMPLETE = 3
COLUMNS = ("tenant_id", "day", "ledger_rows", "replica_rows", "ledger_cost", "replica_cost")
SHOWN = 20
QUIET_SECONDS = 10.0
"""A long copy says how far it is this often."""

replica_app = typer.Typer(help="The copy of the usage events in ClickHouse.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of text for a person.")]


@replica_app.command("status", short_help="Whether the replica holds what the ledger holds.")
def show_status(json_output: Json = False) -> None:
    """Compare the replica with the ledger, each tenant's day, and change nothing; exit code 3 if they differ."""
    from finops_pipeline.resources.clickhouse.replication import status

    with _doors() as (database, replica):
        found = status(database, replica)
    data = {
        "where": replica.where,
        "agrees": found.agrees,
        "ledger_rows": found.ledger_rows,
        "replica_rows": found.replica_rows,
        "not_copied_yet": found.behind,
        "written_at": found.written_at,
        "compared_at": found.compared_at,
        "differences": _records(found.differences),
    }
    text = (
        f"{replica.where}: {found.replica_rows} events, {found.ledger_rows} in the ledger,"
        f" {found.behind} of them not copied yet;"
        f" written {_at(found.written_at)}, compared and repaired {_at(found.compared_at)}\n"
    )
    _print(data, text + _listed(found.differences, "What is copied is the same to the last digit."), json_output)
    if not found.agrees:
        raise SystemExit(INCOMPLETE)


@replica_app.command("sync", short_help="Copy new events, compare all, repair.")
def sync_now(json_output: Json = False) -> None:
    """Copy the events that are new, compare every tenant's day with the ledger, and repair what differs."""
    from finops_pipeline.resources.clickhouse.replication import sync

    with _doors() as (database, replica):
        _report(replica, sync(database, replica, progress=_reporter(json_output)), json_output)


@replica_app.command("rebuild", short_help="Build the replica again from the ledger.")
def rebuild_now(json_output: Json = False) -> None:
    """Copy the whole ledger to a new table, compare, and put it in the replica's place in one step."""
    from finops_pipeline.resources.clickhouse.replication import rebuild

    with _doors() as (database, replica):
        _report(replica, rebuild(database, replica, progress=_reporter(json_output)), json_output)


def keep_up(settings: Settings, site: Site) -> None:
    """After a run, where that is asked for, bring the replica up to date, as a run that Dagster shows.

    A failure is reported on stderr and is not the run's: what is booked is booked, and the next time does the rest.
    """
    if not site.replica.automatic:
        return
    from finops_pipeline.commands.runner import instance_of, run_replica

    try:
        with instance_of(settings) as instance:
            run_replica(site, instance)
    except FinopsError as error:
        typer.echo(f"finops: the replica is behind the ledger: {error}; finops replica sync tries again", err=True)


@contextmanager
def _doors() -> Iterator[tuple[Database, ClickHouse]]:
    from finops_pipeline.resources.clickhouse.client import Replica
    from finops_pipeline.resources.postgres.database import open_database
    from finops_pipeline.settings import environment, load_settings

    settings = load_settings(environment())
    with open_database(settings, existing=True) as database, Replica.of(settings).open() as replica:
        yield database, replica


def _report(replica: ClickHouse, synced: Synced, json_output: bool) -> None:
    data = {
        "where": replica.where,
        "copied": synced.copied,
        "compared": synced.compared,
        "repaired": _records(synced.differences),
    }
    text = f"{replica.where}: {synced.copied} events copied, {synced.compared} compared\n"
    _print(data, text + _listed(synced.differences, "The same to the last digit."), json_output)


def _at(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}" if instant else "never"


def _listed(differences: Sequence[Difference], otherwise: str) -> str:
    from finops_pipeline.commands.show import table_text
    from finops_pipeline.resources.clickhouse.replication import flat

    if not differences:
        return f"{otherwise}\n"
    more = f"and {len(differences) - SHOWN} more\n" if len(differences) > SHOWN else ""
    return table_text(COLUMNS, map(flat, differences[:SHOWN]), f"{len(differences)} tenant's days differed:") + more


def _records(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    from finops_pipeline.resources.clickhouse.replication import flat

    return [dict(zip(COLUMNS, flat(difference), strict=True)) for difference in differences]


def _reporter(quiet: bool) -> Callable[[int, int], None]:
    """Says on stderr how many of how many events are copied, now and then."""
    last = time.monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last
        if not quiet and time.monotonic() - last >= QUIET_SECONDS:
            last = time.monotonic()
            typer.echo(f"finops: {done} of {of} events copied", err=True)

    return report


def _print(data: object, text: str, as_json: bool) -> None:
    from finops_pipeline.commands.show import json_text

    typer.echo(json_text(data) if as_json else text, nl=False)
