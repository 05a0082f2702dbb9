"""The monthly statement: each tenant's deployments, in money (A30, A33)."""

from typing import Any

import dagster as dg

from finops_pipeline.accounting.exact import instant_of
from finops_pipeline.assets.hours import MONTHS, failing_clearly
from finops_pipeline.resources.postgres.balance import Proof, trial_balance
from finops_pipeline.resources.postgres.published import first_open_month, month_bounds
from finops_pipeline.resources.postgres.statements import publish_statement
from finops_pipeline.resources.site import Site

CHECK = "trial_balance"


@dg.asset(
    partitions_def=MONTHS,
    group_name="monthly",
    kinds={"postgres"},
    deps=[
        dg.AssetDep(
            "gpu_cost_allocation",
            partition_mapping=dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True),
        )
    ],
    check_specs=[
        dg.AssetCheckSpec(
            CHECK,
            asset="gpu_allocation",
            description="Usage x price = what is allocated = what is booked = the statement, in SQL from Postgres alone "
            "(A24, A28-A33).",
        )
    ],
)
def gpu_allocation(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One row per tenant, deployment and currency of a month: units and the amount to be charged."""
    with failing_clearly(site):
        period = f"{context.partition_time_window.start:%Y-%m}"
        result = publish(site, period)
        counted = computed_hours(site, period)
        wrong = [proof for proof in trial_balance(site.database, period) if not proof.holds]
    return dg.MaterializeResult(
        metadata={
            "period": period,
            "status": result["status"],
            "items": len(result["items"]),
            "corrections": len(result.get("corrections", ())),
            "hours_computed": counted,
            "totals": dg.MetadataValue.table(
                [
                    dg.TableRecord({"currency": t["currency"] or "unpriced", "amount": t["amount"] or ""})
                    for t in result["totals"]
                ],
                dg.TableSchema([dg.TableColumn("currency", "string"), dg.TableColumn("amount", "string")]),
            ),
        },
        check_results=[
            dg.AssetCheckResult(
                passed=not wrong, check_name=CHECK, severity=dg.AssetCheckSeverity.WARN, metadata=_shown(wrong)
            )
        ],
    )


def publish(site: Site, period: str) -> dict[str, Any]:
    """Publish a month's statement; if it is final, then that of the open month that lists its corrections (A33)."""
    now = instant_of(site.now_ms())
    result = publish_statement(site.database, period, now)
    if result["status"] == "final":
        publish_statement(site.database, first_open_month(site.database, period), now)
    return result


def computed_hours(site: Site, period: str) -> int:
    """Hours of the month that are published, over all clusters."""
    found = site.database.query(
        "SELECT count(*) AS hours FROM eai.hour_runs WHERE hour >= %s AND hour < %s", month_bounds(period)
    )
    return int(found["hours"][0].as_py() or 0)


def _shown(wrong: list[Proof]) -> dict[str, Any]:
    """What does not balance, for the UI."""
    shown: dict[str, Any] = {"wrong": len(wrong)}
    for number, proof in enumerate(wrong[:5], 1):
        shown[f"{number}"] = (
            f"{proof.proof}, {proof.tenant_id or 'all tenants'}, {proof.currency or 'unpriced'}, {proof.measure}: "
            f"{proof.left:f} against {proof.right:f}{f': {proof.fault}' if proof.fault else ''}"
        )
    return shown
