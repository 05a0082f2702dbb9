"""Fourth stage: hourly usage of workloads, idle capacity, and the fleet identity (A4, A18-A21)."""

from collections.abc import Iterator
from decimal import Decimal

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import AccountingError, hour_text, instant_of, rows_of
from finops_pipeline.accounting.hour import account_hour
from finops_pipeline.accounting.usage.storage import storage_usage
from finops_pipeline.accounting.usage.workload_hours import HourUsage
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, gpu_hours, span_text, stage_of
from finops_pipeline.assets.samples import stored
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database, attributed
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

CHECK = "fleet_identity"
PRICED_ONCE = "priced_once"
LISTED = 20
"""so many hours and models a check lists"""


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"parquet", "postgres"},
    deps=["gpu_samples", "platform_records"],
    check_specs=[
        dg.AssetCheckSpec(
            CHECK,
            asset="gpu_usage",
            blocking=True,
            description="Visible device time is held, stale, unattributed, idle or without data; "
            "allocated time is matched or unmatched (A21).",
        ),
        dg.AssetCheckSpec(
            PRICED_ONCE,
            asset="gpu_usage",
            description="No more GPU-seconds are priced than visible devices give (A36). The hours are published, and "
            "their month cannot become final.",
        ),
    ],
)
def gpu_usage(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """One row per workload, hour, model, tenant and deployment: allocated, active and memory seconds, energy, and how well known."""
    seconds = energy = Decimal(0)
    rows = 0
    excess: dict[str, float] = {}
    with stage_of(context, source, watch) as stage:
        stage.begin(ledger)
        try:
            for found in stage.each(
                lambda cluster, hour: use(lake, ledger, rules, cluster, hour, source.now_ms()),
                line=lambda found: f"{len(found.usage)} rows of usage",
            ):
                rows += len(found.usage)
                seconds += pc.sum(found.usage["gpu_seconds"]).as_py() or 0
                energy += pc.sum(found.usage["energy_wh"]).as_py() or 0
                excess |= priced_twice(found.fleet)
        except AccountingError as error:
            yield dg.AssetCheckResult(passed=False, check_name=CHECK, metadata={"error": str(error)})
            raise
    yield dg.MaterializeResult(
        metadata={
            "hours": span_text(stage.hours),
            "rows": rows,
            "gpu_hours": gpu_hours(seconds),
            "energy_kwh": round(float(energy) / 1000, 3),
        },
        check_results=[
            dg.AssetCheckResult(passed=True, check_name=CHECK),
            dg.AssetCheckResult(
                passed=not excess,
                check_name=PRICED_ONCE,
                severity=dg.AssetCheckSeverity.ERROR,
                metadata=dict(sorted(excess.items())[:LISTED]) | {"hours and models": len(excess)},
            ),
        ],
    )


def priced_twice(fleet: pa.Table) -> dict[str, float]:
    """GPU-seconds that are priced beyond those of visible devices (A36), by hour, cluster and model (FLEET_HOURS)."""
    over = fleet.filter(pc.greater(fleet["priced"], fleet["visible_gpu"]))
    columns = rows_of(over, "hour", "cluster", "gpu_model", "priced", "visible_gpu")
    return {
        f"{hour_text(hour)} {cluster} {model}": float(priced - visible)
        for hour, cluster, model, priced, visible in columns
    }


def use(lake: Lake, ledger: Database, rules: AccountingConfig, cluster: str, hour: int, now_ms: int) -> HourUsage:
    """Compute and store one hour's usage; raises before anything is stored if an identity fails (A21)."""
    records = {name: lake.require(name, cluster, hour) for name in ("workload_events", "deployments")}
    found = account_hour(cluster, hour, stored(lake, cluster, hour), records, now_ms, rules)
    disks = lake.require("deployment_storage", cluster, hour)
    usage = pa.concat_tables([found.usage, storage_usage(hour, cluster, disks, records["deployments"])])
    usage = usage.sort_by([(name, "ascending") for name in ("workload_id", "gpu_model", "deployment_id", "tenant_id")])
    tables = {"gpu_usage": usage, "gpu_idle": found.idle, "fleet_hours": found.fleet}
    for table, rows in tables.items():
        lake.write(table, cluster, hour, rows)
    reached("usage landed")
    tables["gpu_usage"] = attributed(usage, rules.platform_tenant)
    with ledger.transaction() as connection:
        ledger.hour_lock(connection, cluster, instant_of(hour))
        for table, rows in tables.items():
            ledger.replace_hour(connection, table, cluster, [instant_of(hour)], rows)
            reached(f"{table} replaced")
    return HourUsage(usage, found.idle, found.fleet)
