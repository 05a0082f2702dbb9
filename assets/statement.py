"""The monthly statement: each tenant's deployments, in money (A30, A33)."""

from datetime import datetime
from typing import Any

import dagster as dg

from finops_pipeline.accounting.exact import instant_of, plain
from finops_pipeline.assets.hours import MONTHS, failing_clearly
from finops_pipeline.resources.postgres.balance import Proof, trial_balance
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.published import first_open_month, month_bounds
from finops_pipeline.resources.postgres.statements import publish_statement
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import Source

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
def gpu_allocation(
    context: dg.AssetExecutionContext,
    ledger: dg.ResourceParam[Database],
    source: dg.ResourceParam[Source],
    watch: dg.ResourceParam[Watch],
) -> dg.MaterializeResult:
    """One row per tenant, deployment and currency of a month: units and the amount to be charged."""
    with failing_clearly(watch):
        period = f"{context.partition_time_window.start:%Y-%m}"
        result = publish(ledger, period, instant_of(source.now_ms()))
        counted = computed_hours(ledger, period)
        wrong = [proof for proof in trial_balance(ledger, period) if not proof.holds]
    return dg.MaterializeResult(
        metadata={
            "period": period,
            "status": result["status"],
            "items": len(result["items"]),
            "corrections": len(result.get("corrections", ())),
            "hours_computed": counted,
            "totals": dg.MetadataValue.table(
                [
                    dg.TableRecord({"currency": t["currency"] or "no price", "amount": t["amount"] or ""})
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


def publish(ledger: Database, period: str, now: datetime) -> dict[str, Any]:
    """Publish a month's statement; if it is final, then that of the open month that lists its corrections (A33)."""
    result = publish_statement(ledger, period, now)
    if result["status"] == "final":
        publish_statement(ledger, first_open_month(ledger, period), now)
    return result


def computed_hours(ledger: Database, period: str) -> int:
    """Hours of the month that are published, over all clusters."""
    found = ledger.query(
        "SELECT count(*) AS hours FROM eai.hour_runs WHERE hour >= %s AND hour < %s", month_bounds(period)
    )
    return int(found["hours"][0].as_py() or 0)


def _shown(wrong: list[Proof]) -> dict[str, Any]:
    """What does not balance, for the UI."""
    shown: dict[str, Any] = {"wrong": len(wrong)}
    for number, proof in enumerate(wrong[:5], 1):
        shown[f"{number}"] = (
            f"{proof.proof}, {proof.tenant_id or 'all tenants'}, {proof.currency or 'no price'}, {proof.measure}: "
            f"{plain(proof.left)} against {plain(proof.right)}{f': {proof.fault}' if proof.fault else ''}"
        )
    return shown
