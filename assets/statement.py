"""The monthly statement: each tenant's deployments, in money (A30, A33)."""

from decimal import Decimal
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.hours import MONTHS, failing_clearly
from resources.postgres_arrow import Connection
from resources.published import month_bounds, read_statement
from resources.site import Site

ITEM_ROWS = pa.schema(
    [pa.field(name, pa.string()) for name in ("period", "tenant_id", "deployment_id", "currency", "policy_id")]
    + [pa.field(name, pa.decimal128(38, 9)) for name in ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "amount")]
    + [pa.field("estimated", pa.bool_())]
)
TOTAL_ROWS = pa.schema(
    [field for field in ITEM_ROWS if field.name not in {"tenant_id", "deployment_id", "policy_id", "estimated"}]
)


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
)
def gpu_allocation(context: dg.AssetExecutionContext, site: dg.ResourceParam[Site]) -> dg.MaterializeResult:
    """One row per tenant, deployment and currency of a month: units and the amount to be charged."""
    with failing_clearly(site):
        period = f"{context.partition_time_window.start:%Y-%m}"
        result = publish_statement(site, period)
        counted = computed_hours(site, period)
    return dg.MaterializeResult(
        metadata={
            "period": period,
            "items": len(result["items"]),
            "hours_computed": counted,
            "totals": dg.MetadataValue.table(
                [
                    dg.TableRecord({"currency": t["currency"] or "unpriced", "amount": t["amount"] or ""})
                    for t in result["totals"]
                ],
                dg.TableSchema([dg.TableColumn("currency", "string"), dg.TableColumn("amount", "string")]),
            ),
        }
    )


def publish_statement(site: Site, period: str) -> dict[str, Any]:
    """Compute a month's statement from what is published of it, and store it; a final one stays as it is (A33)."""
    with site.database.transaction() as connection:
        result = read_statement(site.database, period, connection)
        if result["status"] == "open":
            _store(site, connection, period, result)
    return result


def _store(site: Site, connection: Connection, period: str, result: dict[str, Any]) -> None:
    connection.execute(
        "INSERT INTO eai.gpu_statements (period, status, computed_at) VALUES (%s, 'open', now())"
        " ON CONFLICT (period) DO UPDATE SET computed_at = excluded.computed_at",
        (period,),
    )
    items = [{"period": period, **item, **item["allocated"]} for item in result["items"]]
    totals = [{"period": period, **total} for total in result["totals"]]
    for table, rows, schema in (("gpu_allocation", items, ITEM_ROWS), ("gpu_allocation_totals", totals, TOTAL_ROWS)):
        records = [{name: _value(row, name, schema) for name in schema.names} for row in rows]
        site.database.replace(connection, table, pa.Table.from_pylist(records, schema=schema), period=period)


def _value(row: dict[str, Any], name: str, schema: pa.Schema) -> Any:
    value = row[name]
    return Decimal(str(value)) if value is not None and pa.types.is_decimal(schema.field(name).type) else value


def computed_hours(site: Site, period: str) -> int:
    """Hours of the month that are published, over all clusters."""
    found = site.database.query(
        "SELECT count(*) AS hours FROM eai.hour_runs WHERE hour >= %s AND hour < %s", month_bounds(period)
    )
    return int(found["hours"][0].as_py() or 0)
