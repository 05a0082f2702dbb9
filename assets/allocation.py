"""Fifth stage: who pays what for each row of usage (A22-A29)."""

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

import dagster as dg
import pyarrow as pa

from finops_pipeline.accounting.exact import AccountingError, instant_of
from finops_pipeline.accounting.money.allocation import allocate
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.accounting.money.quotas import tenant_hours
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, failing_clearly, hours_of, span_text
from finops_pipeline.resources.failpoints import reached
from finops_pipeline.resources.site import Site

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
        dg.AssetCheckSpec(PRICED, asset="gpu_cost_allocation", description="Every row has a policy in force (A23)."),
        dg.AssetCheckSpec(
            CLEAN, asset="gpu_cost_allocation", description="No input of these hours was set aside (A5, A10)."
        ),
    ],
)
def gpu_cost_allocation(
    context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """One row per tenant's part of a usage row: units, amount, currency, policy, and whether estimated."""
    cost: dict[str, Decimal] = defaultdict(Decimal)
    rows = unpriced = quarantined = 0
    with failing_clearly(site):
        hours = hours_of(context, site)
        try:
            for cluster in site.doors:
                for hour in hours:
                    allocation = price(site, cluster, hour)
                    rows += len(allocation)
                    unpriced += allocation["amount"].null_count
                    quarantined += len(quarantine(site, cluster, hour))
                    for sums in allocation.group_by("currency").aggregate([("amount", "sum")]).to_pylist():
                        if sums["currency"]:
                            cost[sums["currency"]] += sums["amount_sum"]
                    site.progress("gpu_cost_allocation", hour)
        except AccountingError as error:
            yield dg.AssetCheckResult(passed=False, check_name=CHECK, metadata={"error": str(error)})
            raise
    warn = dg.AssetCheckSeverity.WARN
    yield dg.MaterializeResult(
        metadata={
            "hours": span_text(hours),
            "rows": rows,
            "unpriced_rows": unpriced,
            **{f"cost_{currency}": str(amount) for currency, amount in sorted(cost.items())},
        },
        check_results=[
            dg.AssetCheckResult(passed=True, check_name=CHECK),
            dg.AssetCheckResult(passed=not unpriced, check_name=PRICED, severity=warn, metadata={"rows": unpriced}),
            dg.AssetCheckResult(
                passed=not quarantined, check_name=CLEAN, severity=warn, metadata={"rows": quarantined}
            ),
        ],
    )


def price(site: Site, cluster: str, hour: int) -> pa.Table:
    """Compute and store one hour's allocation, and what was set aside on the way."""
    usage = site.lake.require("gpu_usage", cluster, hour)
    book = PolicyBook.parse(site.lake.require("allocation_policies", cluster, hour), site.config.models)
    allocation = allocate(
        hour,
        cluster,
        usage=usage,
        idle=site.lake.require("gpu_idle", cluster, hour),
        storage=site.lake.require("deployment_storage", cluster, hour),
        tokens=site.lake.require("token_usage", cluster, hour),
        deployments=site.lake.require("deployments", cluster, hour),
        book=book,
        platform_tenant=site.config.platform_tenant,
    )
    hours = tenant_hours(cluster, hour, allocation, usage)
    site.lake.write("gpu_cost_allocation", cluster, hour, allocation)
    reached("allocation landed")
    site.lake.write("tenant_hours", cluster, hour, hours)
    with site.database.transaction() as connection:
        site.database.hour_lock(connection, cluster, instant_of(hour))
        site.database.replace_hour(connection, "gpu_cost_allocation", cluster, [instant_of(hour)], allocation)
        reached("allocation replaced")
        site.database.replace_hour(connection, "tenant_hours", cluster, [instant_of(hour)], hours)
        site.database.replace_hour(
            connection, "quarantine", cluster, [instant_of(hour)], quarantine(site, cluster, hour)
        )
    return allocation


def quarantine(site: Site, cluster: str, hour: int) -> pa.Table:
    """Records and readings of the hour that were set aside."""
    return pa.concat_tables(
        [site.lake.require(table, cluster, hour) for table in ("rejected_records", "rejected_readings")]
    )
