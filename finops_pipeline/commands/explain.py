"""`finops explain`: where an amount comes from, from the ledger back to the raw readings (A35).

What belongs here: finding the events and the hour's tables, and the tree for a person. What does not: what the tables
say (`accounting.audit.explanation`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from finops_pipeline.accounting.audit.explanation import PARTS, TABLES, HourEvidence
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import hour_text, ms_of, plain
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import NOBODY, Bundle
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.database import open_database, require_installation
from finops_pipeline.resources.source import wall_clock_ms
from finops_pipeline.settings import Settings

CREDIT = "credit:"
WIDTH = 120
_KEY = ("cluster", "period_start", "workload_id", "gpu_model", "deployment_id", "tenant_id", "usage_type")
_EVENTS = (
    "SELECT e.event_id, e.cluster, e.period_start, e.workload_id, e.gpu_model, e.deployment_id,"
    " e.tenant_id::text AS tenant_id, e.usage_type, e.document, e.content_sha256, e.booked_at, c.period AS listed_in"
    " FROM eai.usage_events e LEFT JOIN eai.gpu_correction_events c ON c.event_id = e.event_id"
    " WHERE e.usage_type <> 'llm' AND "
)

Explanation = dict[str, Any]


@dataclass(frozen=True)
class Sources:
    """Where explanations come from."""

    database: Database
    lake: Lake
    config: AccountingConfig
    now_ms: int


@contextmanager
def open_sources(settings: Settings, bundle_folder: Path | None, *, existing: bool = True) -> Iterator[Sources]:
    """The sources of an installation; with a bundle its tables of the accounting, and its clock.

    UsageError where none is, unless it need not be `existing`: then it begins here.
    """
    if existing:
        require_installation(settings)
    now_ms = wall_clock_ms()
    if bundle_folder is None:
        config = settings.accounting()
    else:
        bundle = Bundle.open(bundle_folder)
        config = replace(bundle.accounting(str(settings.platform_tenant or NOBODY)), priced=settings.pricing == "on")
        now_ms = now_ms if bundle.now is None else ms_of(bundle.now)
    with open_database(settings, existing=existing) as database:
        yield Sources(database, Lake(settings.lake_folder), config, now_ms)


def explain_event(sources: Sources, event_id: str) -> Explanation:
    """The event, all revisions of its key, and everything behind them. UsageError if there is no such event."""
    with sources.database.transaction(snapshot=True) as connection:
        found = _events(sources, connection, "e.event_id = %s", [event_id])
        if not found:
            raise UsageError(
                f"event {event_id}: the ledger has none with this id; usage_events.jsonl and eai.usage_events have them"
            )
        explained = _explained(sources, connection, [found[0]])
    return {"asked": {"event_id": event_id}, "explained": explained}


def explain_hour(sources: Sources, tenant_id: str, deployment_id: str, hour: datetime) -> Explanation:
    """Everything that a tenant was booked for a deployment in an hour. UsageError if that is nothing."""
    hour = hour.astimezone(UTC)
    with sources.database.transaction(snapshot=True) as connection:
        found = _events(
            sources,
            connection,
            "e.tenant_id = %s AND e.deployment_id = %s AND e.period_start = %s",
            [str(UUID(tenant_id)), deployment_id, hour],
        )
        if not found:
            raise UsageError(
                f"tenant {tenant_id}, deployment {deployment_id}, {hour:%Y-%m-%dT%H:%MZ}: nothing is booked"
            )
        explained = _explained(sources, connection, found)
    asked = {"tenant_id": tenant_id, "deployment_id": deployment_id, "hour": f"{hour:%Y-%m-%dT%H:%M:%SZ}"}
    return {"asked": asked, "explained": explained}


def _events(sources: Sources, connection: Connection, condition: str, params: Sequence[object]) -> list[Explanation]:
    query = f"{_EVENTS}{condition} ORDER BY e.seq"
    return list(sources.database.query(query, list(params), connection=connection).to_pylist())


def _explained(sources: Sources, connection: Connection, events: Iterable[Explanation]) -> list[Explanation]:
    """One explanation for each key of these events."""
    keys = dict.fromkeys(tuple(event[name] for name in _KEY) for event in events)
    hours: dict[tuple[str, datetime], HourEvidence] = {}
    explained = []
    for key in keys:
        cluster, at, workload_id, gpu_model, deployment_id, tenant_id, usage_type = key
        revisions = _events(
            sources, connection, " AND ".join(f"e.{name} IS NOT DISTINCT FROM %s" for name in _KEY), key
        )
        booked = _booked(revisions)
        named = {"cluster": cluster, "hour": hour_text(ms_of(at)), "workload_id": workload_id, "gpu_model": gpu_model}
        named |= {"deployment_id": deployment_id, "tenant_id": tenant_id, "usage_type": usage_type}
        entry: Explanation = {"key": named, "booked": booked}
        if workload_id.startswith(CREDIT):
            entry["credit"] = _credit(sources.database, connection, workload_id.removeprefix(CREDIT))
        else:
            if (cluster, at) not in hours:
                hours[cluster, at] = _evidence(sources, cluster, ms_of(at))
            entry |= hours[cluster, at].of(workload_id, gpu_model, deployment_id, tenant_id, usage_type) or {
                "part": None
            }
            entry["part_is_what_is_booked"] = _same(entry["part"], booked)
        explained.append(entry)
    return explained


def _evidence(sources: Sources, cluster: str, hour_ms: int) -> HourEvidence:
    tables = {name: sources.lake.require(name, cluster, hour_ms) for name in TABLES}
    return HourEvidence(hour_ms, tables, sources.config, sources.now_ms)


def _booked(revisions: Sequence[Explanation]) -> Explanation:
    """A key's revisions, and what they sum to."""
    shown: list[Explanation] = []
    units: dict[str, Decimal] = {}
    amount: dict[str, Decimal] = {}
    for row in revisions:
        event = json.loads(row["document"], parse_float=Decimal, parse_int=Decimal)
        for name, value in event["units"].items():
            units[name] = units.get(name, Decimal(0)) + value
        if event["cost"]:
            currency = event["cost"]["currency"]
            amount[currency] = amount.get(currency, Decimal(0)) + Decimal(event["cost"]["amount"])
        shown.append(
            {
                "event_id": row["event_id"],
                "revision": int(event["revision"]),
                "corrects": event["corrects"],
                "booked_at": f"{row['booked_at'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
                "deployment_id": event["deployment_id"],
                "units": {name: plain(value) for name, value in event["units"].items()},
                "cost": event["cost"],
                "policy_id": event["allocation_policy_id"],
                "estimated": event["estimated"],
                "content_sha256": row["content_sha256"],
                "listed_in": row["listed_in"],
            }
        )
    return {
        "revisions": shown,
        "units": {name: plain(value) for name, value in units.items()},
        "amounts": {currency: plain(value) for currency, value in amount.items()},
    }


def _same(part: Explanation | None, booked: Explanation) -> bool:
    """Whether the hour's result in the lake is the sum of what is booked (A32)."""
    here = part or {}
    units = {name: Decimal(here.get(name) or 0) for name in PARTS}
    sums = {name: Decimal(booked["units"].get(name, 0)) for name in PARTS}
    amounts = {currency: Decimal(text) for currency, text in booked["amounts"].items() if Decimal(text)}
    own = {here["currency"]: Decimal(here["amount"])} if here.get("amount") and Decimal(here["amount"]) else {}
    return units == sums and amounts == own


def _credit(database: Database, connection: Connection, credit_id: str) -> Explanation | None:
    """The decision behind a credit."""
    found = database.query(
        "SELECT to_jsonb(c)::text AS credit FROM eai.credit_proposals c WHERE id::text = %s",
        [credit_id],
        connection=connection,
    ).to_pylist()
    return json.loads(found[0]["credit"], parse_float=Decimal) if found else None


# For a person


def tree_text(explanation: Mapping[str, Any]) -> str:
    """The explanation as a tree, from the event down to the readings."""
    console = Console(file=StringIO(), width=WIDTH, color_system=None)
    for entry in explanation["explained"]:
        console.print(_tree(entry))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _tree(entry: Explanation) -> Tree:
    key, booked = entry["key"], entry["booked"]
    amounts = ", ".join(f"{amount} {currency}" for currency, amount in booked["amounts"].items()) or "no price"
    on = f" on {key['gpu_model']}" if key["gpu_model"] else ""
    tree = Tree(
        _line(f"{amounts}  tenant {key['tenant_id']}, {key['workload_id']}{on}, {key['hour']}, {key['cluster']}")
    )
    events = tree.add(_line(f"booked as {len(booked['revisions'])} event(s) (A31, A32)"))
    for event in booked["revisions"]:
        cost = f"{event['cost']['amount']} {event['cost']['currency']}" if event["cost"] else "no price"
        listed = f", listed in {event['listed_in']}" if event["listed_in"] else ""
        events.add(
            _line(f"revision {event['revision']}: {cost}, {_pairs(event['units'])}, {event['event_id']}{listed}")
        )
    if "credit" in entry:
        tree.add(_line(f"credit: {_pairs(entry['credit'] or {})}"))
    elif entry["part"] is None:
        tree.add(_line("the hour's latest result has no such part any more: the revisions cancel each other"))
    else:
        _add_result(tree, entry)
    return tree


def _add_result(tree: Tree, entry: Explanation) -> None:
    split, cost, usage = entry["split"], entry["cost"], entry["usage"]
    at = tree.add(_line(f"split: {split['says']} ({split['rule']})"))
    for weight in split["weights"]:
        rest = {name: value for name, value in weight.items() if name not in {"share_id", "weight"}}
        at.add(_line(f"{weight['share_id']}: weight {weight['weight']} {f'({_pairs(rest)})' if rest else ''}"))
    if cost is None:
        at = at.add(_line("cost: no policy was in force, so it has no price (A23)"))
    else:
        policy = cost["policy"]
        at = at.add(_line(f"cost of the row: {cost['amount']} {cost['currency']} (A24)"))
        prices = {name: policy[name] for name in policy if name not in {"id", "name"} and policy[name] is not None}
        at.add(_line(f"policy {policy['id']}: {_pairs(prices)}"))
        for term in cost["terms"]:
            at.add(_line(f"{term['name']} = {term['formula']} = {term['value']}"))
    at = at.add(_line(f"usage row: {_pairs({n: v for n, v in usage.items() if n != 'disks' and v not in (None, '')})}"))
    for disk in usage.get("disks", ()):
        at.add(_line(f"disk: {_pairs(disk)}"))
    if entry["running"]:
        running = at.add(_line(f"ran {len(entry['running'])} time(s) in the hour, by its lifecycle events (A3, A4)"))
        for row in entry["running"]:
            running.add(_line(_pairs({name: value for name, value in row.items() if value is not None})))
    if entry["devices"]:
        devices = at.add(_line("what it had of each board (A17-A20)"))
        for row in entry["devices"]:
            devices.add(_line(_pairs({name: value for name, value in row.items() if value not in (None, {})})))
    if entry["windows"]:
        windows = at.add(_line("windows by device and method (A11-A15)"))
        for row in entry["windows"]:
            windows.add(_line(f"{row['device']}: {row['windows']} {row['method']}, {row['seconds']} s"))
    if entry["readings"]:
        readings = at.add(_line("raw readings (A7-A10)"))
        for row in entry["readings"]:
            rejected = f", rejected: {_pairs(row['rejected'])}" if row["rejected"] else ""
            readings.add(
                _line(
                    f"{row['device']} {row['metric']}: {row['samples']} samples in {row['series']} series,"
                    f" {row['first']} to {row['last']}{rejected}"
                )
            )
    if not entry["part_is_what_is_booked"]:
        tree.add(_line("the hour's latest result is not booked yet: finops run"))


def _line(text: str) -> Text:
    """Plain text: brackets and numbers mean nothing to the console."""
    return Text(text)


def _pairs(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in row.items())


def _value(value: object) -> object:
    if isinstance(value, Mapping):
        return _pairs(value)
    return plain(value) if isinstance(value, Decimal) else value
