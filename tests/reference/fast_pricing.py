"""A month priced by the pipeline's own accounting, in the shape of the reference's result."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.money.allocation import PaidHour, allocate
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.accounting.money.statement import statement, statement_json
from finops_pipeline.accounting.money.tokens import clean_tokens
from finops_pipeline.contracts import lake

from .billing import Month, Site
from .pricing import Row, milliseconds


@dataclass(frozen=True, slots=True)
class Priced:
    """One cluster's hours: GPU_COST_ALLOCATION, and the token events set aside."""

    allocation: pa.Table
    quarantine: set[tuple[str, str, str]]


def typed(text: Any, type_: pa.DataType) -> Any:
    if text is None:
        return None
    if pa.types.is_decimal(type_):
        return Decimal(text)
    if pa.types.is_timestamp(type_):
        return milliseconds(text)
    if pa.types.is_integer(type_):
        return int(text)
    return text == "true" if pa.types.is_boolean(type_) else text


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows of text cells in the types of the schema."""
    return pa.Table.from_pylist([{f.name: typed(row.get(f.name), f.type) for f in schema} for row in rows], schema)


def flag_of(usage: Row) -> str:
    """Whether a usage row is not all measured (A15)."""
    seconds = (usage.get(name) or 0 for name in ("estimated_seconds", "missing_seconds"))
    return "true" if any(Decimal(value) for value in seconds) else "false"


def price_site(site: Site, hours: list[int], now: int) -> Priced:
    """Every hour of one cluster by the pipeline."""
    records = site.records
    tokens, quarantine = clean_tokens(table_of(records.tokens, lake.TOKEN_USAGE), now)
    deployments = table_of(records.deployments, lake.DEPLOYMENTS)
    weighed = [
        row | {"token_weights": None if row["token_weights"] is None else json.dumps(row["token_weights"])}
        for row in records.policies
    ]
    book = PolicyBook.parse(table_of(weighed, lake.ALLOCATION_POLICIES), records.models)
    usage = {hour: [row for row in site.usage if milliseconds(row["hour"]) == hour] for hour in hours}
    idle = {hour: [row for row in site.idle if milliseconds(row["hour"]) == hour] for hour in hours}
    allocation = allocate(
        site.cluster,
        [
            PaidHour(
                hour,
                usage=table_of([{"estimated": flag_of(row), **row} for row in usage[hour]], lake.GPU_USAGE),
                idle=table_of(idle[hour], lake.GPU_IDLE),
                storage=table_of(records.storage, lake.DEPLOYMENT_STORAGE),
                tokens=tokens,
                deployments=deployments,
                book=book,
            )
            for hour in hours
        ],
        platform_tenant=records.platform_tenant,
    )
    aside = {(row["source"], row["key"], row["reason"]) for row in quarantine.to_pylist()}
    return Priced(allocation, aside)


def price_month(month: Month) -> list[Priced]:
    return [price_site(site, month.hours, month.now) for site in month.sites]


def statements(priced: list[Priced], periods: Iterable[str]) -> Any:
    """The statements of all clusters together, with the numbers of their JSON text as they are written."""
    rows = pa.concat_tables(site.allocation for site in priced)
    months = [f"{at:%Y-%m}" for at in rows["hour"].to_pylist()]
    found = [
        statement(period, "open", rows.filter(pa.array([month == period for month in months], pa.bool_())))
        for period in periods
    ]
    return json.loads(statement_json(found), parse_float=str, parse_int=str)


def cells(allocation: pa.Table) -> list[Row]:
    """The rows of GPU_COST_ALLOCATION as the cells of `allocation.csv`."""

    def cell(value: Any) -> Any:
        if isinstance(value, datetime):
            return f"{value:%Y-%m-%dT%H:%M:%SZ}"
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:f}" if isinstance(value, Decimal) else value

    rows = allocation.drop_columns(["storage_gb_hours"]).to_pylist()
    return [{name: cell(value) for name, value in row.items()} for row in rows]
