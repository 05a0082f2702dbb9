"""The ledger's copy in ClickHouse, brought up to date after hours were booked."""

from collections.abc import Sequence

import dagster as dg

from finops_pipeline.assets.hours import failing_clearly
from finops_pipeline.resources.clickhouse.client import Replica
from finops_pipeline.resources.clickhouse.replication import Difference, flat, sync
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch

AGREES = "replica_agrees"
SHOWN = 50


@dg.asset(
    group_name="replica",
    kinds={"clickhouse"},
    deps=["usage_events", "token_usage"],
    check_specs=[
        dg.AssetCheckSpec(
            AGREES,
            asset="usage_events_replica",
            description="Count, sums and hashes of each tenant's day are those of the ledger, without a repair.",
        )
    ],
)
def usage_events_replica(
    ledger: dg.ResourceParam[Database], replica: dg.ResourceParam[Replica], watch: dg.ResourceParam[Watch]
) -> dg.MaterializeResult:
    """One row per usage event, in ClickHouse: copied from the high-water mark on, compared, repaired.

    Compared are the days for which something arrived, and everything once a day.
    """
    with failing_clearly(watch), replica.open() as copy:
        synced = sync(ledger, copy, everything=False)
    return dg.MaterializeResult(
        metadata={
            "where": copy.where,
            "copied": synced.copied,
            "compared": synced.compared,
            "compared_since": f"{synced.since:%Y-%m-%dT%H:%M:%SZ}" if synced.since else "ever",
        },
        check_results=[
            dg.AssetCheckResult(
                passed=not synced.differences,
                check_name=AGREES,
                severity=dg.AssetCheckSeverity.WARN,
                description="Differences were found, and repaired." if synced.differences else None,
                metadata={
                    "differing_tenant_days": len(synced.differences),
                    "repaired": difference_table(synced.differences),
                },
            )
        ],
    )


def difference_table(differences: Sequence[Difference]) -> dg.TableMetadataValue:
    """The first differences, for the UI."""
    columns = ("tenant_id", "day", "ledger_rows", "replica_rows", "ledger_cost", "replica_cost")
    return dg.MetadataValue.table(
        [dg.TableRecord(dict(zip(columns, flat(difference), strict=True))) for difference in differences[:SHOWN]],
        dg.TableSchema([dg.TableColumn(name, "int" if name.endswith("rows") else "string") for name in columns]),
    )
