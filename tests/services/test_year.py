"""Beside a year of two million events of 200 tenants, booking an hour and a tenant's month touch only what they need."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest

from tests.bench.ledger import book_an_hour, fill_a_year, tenant_month
from tests.databases import Databases


@pytest.fixture(scope="module")
def year(databases: Databases) -> str:
    """The URL of a ledger that holds 2,000,000 events."""
    url = databases.fresh()
    fill_a_year(databases.admin(url), 2_000_000)
    return url


def test_booking_an_hour_reads_by_index(year: str, databases: Databases, tmp_path: Path) -> None:
    """Its time does not grow with the ledger; it is told, not asserted."""

    def scans() -> tuple[int, int]:
        with psycopg.connect(databases.admin(year), autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT seq_scan, n_live_tup FROM pg_stat_user_tables"
                " WHERE schemaname = 'eai' AND relname = 'usage_events'"
            ).fetchone()
        assert row is not None
        return row[0], row[1]

    sequential, _ = scans()
    seconds = book_an_hour(year, tmp_path)
    sys.stdout.write(f"an hour of 500 workloads booked in {seconds:.3f} s\n")
    after, events = scans()
    assert after == sequential
    assert events > 2_000_000


def test_a_tenants_month_is_read_by_index(year: str, databases: Databases) -> None:
    plan = tenant_month(databases.admin(year))
    sys.stdout.write("\n".join(plan) + "\n")
    assert any("Index Scan on usage_events_tenant" in line for line in plan)
    assert not any("Seq Scan" in line for line in plan)
