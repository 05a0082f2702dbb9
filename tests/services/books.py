"""Short months, booked for real: hours with a few rows go through pricing, Postgres, the ledger and the audit log.

What does not come from here is the usage itself: a test says what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.money.allocation import PaidHour, allocate
from finops_pipeline.accounting.money.closing import Life
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.assets.events import book
from finops_pipeline.commands.closing import Closing, Request, close_month
from finops_pipeline.contracts import lake
from finops_pipeline.resources.anchor import Anchor
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database, attributed
from finops_pipeline.resources.postgres.published import month_bounds
from finops_pipeline.resources.postgres.statements import publish_statement
from finops_pipeline.resources.site import Site
from finops_pipeline.resources.source import LiveSource

ALICE = "a0000000-0000-4000-8000-00000000000a"
BOB = "b0000000-0000-4000-8000-00000000000b"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
HOUR = timedelta(hours=1)
NOW = datetime(2027, 6, 1, tzinfo=UTC)
POLICY = {
    "id": "alp_1", "name": "all", "deployment_pattern": "*", "currency": "EUR", "gpu_hourly_cost": "2.10",
    "overhead_pct": "18",
    "energy_kwh_price": "0.21", "pue": "1.4", "storage_gb_month_price": "0.10", "effective_from": "2026-01-01T00:00:00Z",
}  # fmt: skip


@dataclass(frozen=True)
class Used:
    """A workload's hour."""

    tenant: str = ALICE
    seconds: str = "3600"
    wh: str | None = "512"
    workload: str = "wl"
    deployment: str = "chat"
    missing: str = "0"


class Books:
    """One cluster's books in a database of their own."""

    def __init__(self, url: str, admin_url: str, home: Path, *, policies: Sequence[dict[str, Any]] = (POLICY,)) -> None:
        self.url, self.admin_url = url, admin_url
        self.anchor = Anchor(home / "audit.anchor")
        self.database = Database(url, anchor=self.anchor)
        self.site = Site(
            Lake(home / "lake"),
            self.database,
            LiveSource({}, self.database, lambda: _ms(NOW)),
            AccountingConfig(platform_tenant=PLATFORM),
        )
        self.price(*policies)

    def price(self, *policies: dict[str, Any]) -> None:
        if policies:
            with self.database.transaction() as connection:
                self.database.add_policies(connection, list(policies), "test")

    def hour(self, at: datetime, *used: Used, cluster: str = "c1", provisional: bool = False) -> int:
        """Compute an hour (again): what was used, priced and booked. How many events that made."""
        hour, write = _ms(at), self.site.lake.write
        self.database.begin_reading(cluster, [at], "run")
        usage = pa.Table.from_pylist([_usage_row(cluster, at, row) for row in used], lake.GPU_USAGE)
        book_of = PolicyBook.parse(self.database.read_policies(), {})
        nothing = {name: lake.TABLES[name].empty_table() for name in lake.TABLES}
        paid = PaidHour(
            hour,
            usage=usage,
            idle=nothing["gpu_idle"],
            storage=nothing["deployment_storage"],
            tokens=nothing["token_usage"],
            deployments=nothing["deployments"],
            book=book_of,
        )
        allocation = allocate(cluster, [paid], platform_tenant=PLATFORM)
        seconds = sum((Decimal(row.seconds) for row in used), Decimal(0))
        fleet = dict.fromkeys(("stale", "unattributed", "idle", "no_data", "unmatched"), Decimal(0)) | dict.fromkeys(
            ("visible", "held", "lifecycle", "matched", "visible_gpu", "priced"), seconds
        )
        fleets = [{"cluster": cluster, "hour": at, "gpu_model": "H100", **fleet}] if used else []
        stored = {
            "gpu_usage": attributed(usage, PLATFORM),
            "fleet_hours": pa.Table.from_pylist(fleets, lake.FLEET_HOURS),
            "gpu_cost_allocation": allocation,
        }
        facts = {"provisional": provisional, "devices": 1, "readings": 1, "rejected": 0}
        write("hour_facts", cluster, hour, pa.Table.from_pylist([facts], lake.HOUR_FACTS))
        for name in ("rejected_records", "rejected_readings", "workload_events"):
            write(name, cluster, hour, nothing[name])
        write("gpu_usage", cluster, hour, usage)
        write("gpu_cost_allocation", cluster, hour, allocation)
        with self.database.transaction() as connection:
            for table, rows in stored.items():
                self.database.replace_hour(connection, table, cluster, [at], rows)
        return book(self.site.lake, self.database, self.site.config, cluster, hour, _ms(NOW), "run").events

    def publish(self, period: str) -> dict[str, Any]:
        return publish_statement(self.database, period, NOW)

    def close(self, period: str, *, hours: int = 1, dry_run: bool = False, **request: Any) -> Closing:
        """Close a month in which cluster c1 lived for its first `hours`."""
        first, _ = month_bounds(period)
        lives = {"c1": Life(None, _ms(first + hours * HOUR))}
        return close_month(self.database, Request(period, **{"lives": lives, **request}), NOW, dry_run=dry_run)

    def tamper(self, *statements: str, lifted: bool = True) -> None:
        """Do as a superuser what nobody else can: triggers off, and with `lifted` without the log's constraints."""
        with psycopg.connect(self.admin_url) as connection:
            connection.execute("SET session_replication_role = replica")
            if lifted:
                for name in ("hash", "link", "seq", "no_fork"):
                    connection.execute(f"ALTER TABLE eai.audit_events DROP CONSTRAINT IF EXISTS audit_events_{name}")
                connection.execute("ALTER TABLE eai.usage_events DROP CONSTRAINT IF EXISTS usage_events_hash")
            for statement in statements:
                connection.execute(statement)

    def ask(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.admin_url) as connection:
            return connection.execute(statement, params).fetchall()

    def audited(self, kind: str) -> list[dict[str, Any]]:
        return [row[0] for row in self.ask("SELECT payload FROM eai.audit_events WHERE kind = %s ORDER BY seq", kind)]


def _usage_row(cluster: str, at: datetime, used: Used) -> dict[str, Any]:
    return {
        "cluster": cluster, "hour": at, "workload_id": used.workload, "gpu_model": "H100", "tenant_id": used.tenant,
        "deployment_id": used.deployment, "placed_class": "H100", "basis": "lifecycle",
        "gpu_seconds": Decimal(used.seconds), "gpu_active_seconds": None, "gpu_memory_gb_seconds": None,
        "energy_wh": None if used.wh is None else Decimal(used.wh),
        "measured_seconds": Decimal(used.seconds) - Decimal(used.missing), "estimated_seconds": Decimal(0),
        "missing_seconds": Decimal(used.missing), "estimated": Decimal(used.missing) > 0, "methods": "",
    }  # fmt: skip


def _ms(at: datetime) -> int:
    return round(at.timestamp()) * 1000
