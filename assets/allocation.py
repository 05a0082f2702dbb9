"""Fifth stage: who pays what for each row of usage (A22-A29)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal

import dagster as dg
import pyarrow as pa

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import AccountingError, instant_of, plain
from finops_pipeline.accounting.money.allocation import PaidHour, allocate, of_hour
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.accounting.money.quotas import tenant_hours
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, span_text, stage_of
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

DAY = 24
"""Hours that are divided at once: memory is bounded, and planning a statement an hour would cost more than its rows."""
CHECK = "parts_make_the_whole"
PRICED = "everything_is_priced"
CLEAN = "nothing_is_quarantined"


@dg.asset(
    partitions_def=HOURS,
    backfill_policy=SINGLE_RUN,
    group_name="hourly",
    kinds={"parquet", "postgres"},
    deps=["gpu_usage", "platform_records"],
    check_specs=[
        dg.AssetCheckSpec(
            CHECK,
            asset="gpu_cost_allocation",
            blocking=True,
            description="The tenants' parts of each row sum exactly to the row, for every unit and the cost (A29).",
        ),
        dg.AssetCheckSpec(
            PRICED,
            asset="gpu_cost_allocation",
            description="Every row has a policy in force (A23), if usage is priced.",
        ),
        dg.AssetCheckSpec(
            CLEAN, asset="gpu_cost_allocation", description="No input of these hours was set aside (A5, A10)."
        ),
    ],
)
def gpu_cost_allocation(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    rules: dg.ResourceParam[AccountingConfig],
    watch: dg.ResourceParam[Watch],
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """One row per tenant's part of a usage row: units, amount, currency, policy, and whether estimated."""
    cost: dict[str, Decimal] = defaultdict(Decimal)
    rows = unpriced = quarantined = 0
    with stage_of(context, source, watch) as stage:
        stage.begin(ledger)
        try:
            for cluster in stage.clusters:
                for hour, allocation in price(lake, ledger, rules, cluster, stage.hours):
                    aside = len(lake.set_aside(cluster, hour))
                    rows += len(allocation)
                    unpriced += unpriced_rows(allocation, rules)
                    quarantined += aside
                    for sums in allocation.group_by("currency").aggregate([("amount", "sum")]).to_pylist():
                        if sums["currency"]:
                            cost[sums["currency"]] += sums["amount_sum"]
                    stage.done(cluster, hour, f"{len(allocation)} rows priced, {aside} inputs set aside")
        except AccountingError as error:
            yield dg.AssetCheckResult(passed=False, check_name=CHECK, metadata={"error": str(error)})
            raise
    warn = dg.AssetCheckSeverity.WARN
    yield dg.MaterializeResult(
        metadata={
            "hours": span_text(stage.hours),
            "rows": rows,
            "unpriced_rows": unpriced,
            **{f"cost_{currency}": plain(amount) for currency, amount in sorted(cost.items())},
        },
        check_results=[
            dg.AssetCheckResult(passed=True, check_name=CHECK),
            dg.AssetCheckResult(passed=not unpriced, check_name=PRICED, severity=warn, metadata={"rows": unpriced}),
            dg.AssetCheckResult(
                passed=not quarantined, check_name=CLEAN, severity=warn, metadata={"rows": quarantined}
            ),
        ],
    )


def unpriced_rows(allocation: pa.Table, rules: AccountingConfig) -> int:
    """Rows for which a policy is missing (A23): none where usage is not priced at all."""
    return allocation["amount"].null_count if rules.priced else 0


def price(
    lake: Lake, ledger: Database, rules: AccountingConfig, cluster: str, hours: Sequence[int]
) -> Iterator[tuple[int, pa.Table]]:
    """Compute and store the allocation of each hour, and what was set aside on the way; a day is computed at once."""
    for first in range(0, len(hours), DAY):
        stretch = [_inputs(lake, rules, cluster, hour) for hour in hours[first : first + DAY]]
        allocated = allocate(cluster, stretch, platform_tenant=rules.platform_tenant)
        used = tenant_hours(allocated, pa.concat_tables(inputs.usage for inputs in stretch))
        for inputs in stretch:
            allocation = of_hour(allocated, inputs.hour_ms)
            _store(lake, ledger, cluster, inputs.hour_ms, allocation, of_hour(used, inputs.hour_ms))
            yield inputs.hour_ms, allocation


def _inputs(lake: Lake, rules: AccountingConfig, cluster: str, hour: int) -> PaidHour:
    return PaidHour(
        hour,
        usage=lake.require("gpu_usage", cluster, hour),
        idle=lake.require("gpu_idle", cluster, hour),
        storage=lake.require("deployment_storage", cluster, hour),
        tokens=lake.require("token_usage", cluster, hour),
        deployments=lake.require("deployments", cluster, hour),
        book=PolicyBook.parse(lake.require("allocation_policies", cluster, hour), rules.models),
    )


def _store(lake: Lake, ledger: Database, cluster: str, hour: int, allocation: pa.Table, tenant_hours: pa.Table) -> None:
    lake.write("gpu_cost_allocation", cluster, hour, allocation)
    reached("allocation landed")
    lake.write("tenant_hours", cluster, hour, tenant_hours)
    with ledger.transaction() as connection:
        ledger.hour_lock(connection, cluster, instant_of(hour))
        ledger.replace_hour(connection, "gpu_cost_allocation", cluster, [instant_of(hour)], allocation)
        reached("allocation replaced")
        ledger.replace_hour(connection, "tenant_hours", cluster, [instant_of(hour)], tenant_hours)
        ledger.replace_hour(connection, "quarantine", cluster, [instant_of(hour)], lake.set_aside(cluster, hour))
