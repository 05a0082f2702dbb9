"""The trial balance: Postgres alone proves usage x price + corrections + credits = ledger = statements (A24-A33).

The proof is `sql/trial_balance.sql`, which shares no arithmetic with the program. What belongs here: asking it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.money.policies import minor_digits
from finops_pipeline.resources.postgres.client import Database, sql_file
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.published import month_bounds


@dataclass(frozen=True)
class Proof:
    """`left` = `right` within `tolerance`; no tenant is all of them, no currency is unpriced."""

    proof: str
    """priced, booked or stated: see the SQL"""
    period: str
    tenant_id: str | None
    currency: str | None
    measure: str
    """amount, gpu_seconds, gpu_memory_gb_seconds or energy_wh"""
    left: Decimal
    right: Decimal
    difference: Decimal
    tolerance: Decimal
    holds: bool
    fault: str | None
    """the first row that is wrong, where single rows were judged"""


def trial_balance(database: Database, period: str | None = None) -> list[Proof]:
    """All proofs of a month, or of all months, in one snapshot; ordered by month, proof, tenant, currency, measure."""
    with database.transaction(snapshot=True) as connection:
        bounds = (None, None) if period is None else month_bounds(period)
        found = database.query(
            sql_file("trial_balance"),
            {
                "first": bounds[0],
                "past": bounds[1],
                "digits": json.dumps({code: minor_digits(code) for code in _currencies(database, connection)}),
            },
            connection=connection,
        )
    return [_proof(**row) for row in found.to_pylist()]


def _currencies(database: Database, connection: Connection) -> list[str]:
    found = database.query("SELECT DISTINCT currency FROM eai.allocation_policies", connection=connection)
    return list(texts(found["currency"]))


def _proof(left_side: Decimal | None, right_side: Decimal | None, **row: Any) -> Proof:
    return Proof(left=left_side or Decimal(0), right=right_side or Decimal(0), **row)
