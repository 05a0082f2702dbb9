"""`python -m tests.bench.ledger`: a year of usage events, and what booking an hour and a tenant's month cost beside it.

Two million rows of 200 tenants are written by SQL, as an administrator; then one more hour is booked as the pipeline
books it, and a tenant's monthly query is explained as the reader runs it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psycopg

from tests.databases import Databases

YEAR = """
INSERT INTO eai.usage_events (event_id, schema_version, occurred_at, period_start, period_end, tenant_id, usage_type,
    source, cluster, workload_id, deployment_id, gpu_model, basis, gpu_seconds, cost_amount, cost_currency, estimated,
    methods, revision, content_sha256, document)
SELECT md5('e' || n)::uuid::text, '1.0', hour, hour, hour + interval '1 hour', md5('t' || n %% 200)::uuid, 'gpu_local',
    'bench', 'bench', 'wl-' || n %% 229, 'dep-' || n %% 50, 'H100-80GB', 'lifecycle', 3600, 2.1, 'EUR', false, '', 1,
    encode(sha256(convert_to(document, 'UTF8')), 'hex'), document
FROM (SELECT n, timestamptz '2025-10-01Z' + n / 229 * interval '1 hour' AS hour, '{"n":' || n || '}' AS document
      FROM generate_series(0, %s) AS n) AS made
"""
HOURS = """
INSERT INTO eai.hour_runs (cluster, hour, published_at, provisional, estimated_share, unpriced, quarantined,
    input_fingerprint)
SELECT cluster, hour, hour + interval '70 minutes', false, 0.01, 0, 0, ''
FROM unnest(ARRAY['dc1', 'dc2']) AS cluster,
     generate_series(timestamptz '2025-10-01Z', '2026-09-30 23:00Z', '1 hour') AS hour
"""
MONTH = """
SELECT deployment_id, sum(gpu_seconds), sum(cost_amount) FROM eai.usage_events
WHERE tenant_id = md5('t7')::uuid AND occurred_at >= '2026-03-01Z' AND occurred_at < '2026-04-01Z' GROUP BY 1
"""


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(prog="python -m tests.bench.ledger", description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    rows = arguments.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="finops-ledger-") as folder, Databases(Path(folder)) as databases:
        url = databases.fresh()
        size = fill_a_year(databases.admin(url), rows)
        print(f"{rows} events of 200 tenants, {size} with indexes")
        print(f"booking an hour of 500 workloads: {book_an_hour(url, Path(folder)):.3f} s in the database")
        print("a tenant's month, as eai_reader:")
        for line in tenant_month(databases.admin(url)):
            print(f"  {line}")


def fill_a_year(admin_url: str, rows: int) -> str:
    """Write the events by SQL, without triggers; returns the table's size in words."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(YEAR, [rows - 1])
        connection.execute("ANALYZE eai.usage_events")
        size = connection.execute("SELECT pg_size_pretty(pg_total_relation_size('eai.usage_events'))").fetchone()
    return str(size[0]) if size else "?"


def fill_a_year_of_hours(admin_url: str) -> None:
    """Mark every hour of a year as published, for two clusters."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(HOURS)
        connection.execute("ANALYZE eai.hour_runs")


def tenant_month(admin_url: str) -> list[str]:
    """How a tenant's monthly query ran as `eai_reader`, under row-level security."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("SET ROLE eai_reader")
        connection.execute("SELECT set_config('app.tenant_id', md5('t7')::uuid::text, false)")
        return [line for (line,) in connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {MONTH}")]


def book_an_hour(url: str, home: Path) -> float:
    """Seconds of one hour's booking, from the ledger's lock to its commit."""
    from contextlib import ExitStack

    from finops_pipeline.accounting.config import AccountingConfig
    from finops_pipeline.resources.lake.store import Lake
    from finops_pipeline.resources.postgres.client import Database
    from finops_pipeline.resources.site import Site
    from finops_pipeline.resources.source import LiveSource
    from tests.bench import fleet
    from tests.bench.stages import Stages
    from tests.doors import FileDoor

    with ExitStack() as stack:
        database = Database(url)
        stack.callback(database.close)
        database.load_platform(fleet.CLUSTER, fleet.records(1000))
        now = fleet.START + fleet.HOUR_MS + 600_000
        config = AccountingConfig(platform_tenant=fleet.PLATFORM)
        door = FileDoor(fleet.hour_series(1000, fleet.START))
        source = LiveSource({fleet.CLUSTER: door}, database, lambda: now)
        stages = Stages(Site(Lake(home / "lake"), database, source, config), fleet.CLUSTER)
        stages.land([fleet.START])
        stages.read([fleet.START])
        stages.sample([fleet.START])
        stages.use(fleet.START)
        stages.price(fleet.START)
        began = time.perf_counter()
        stages.book(fleet.START)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
