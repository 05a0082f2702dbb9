"""Usage events as rows of eai.usage_events.

What belongs here: the columns of a document (contracts/v1/usage-event.schema.json). What does not: making one
(accounting/money/ledger.py), and storing it (`client`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import rfc8785

from finops_pipeline.contracts import lake

UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "storage_gb_hours")
QUALITY = ("measured_seconds", "estimated_seconds", "missing_seconds")
AS_IS = (
    "event_id",
    "schema_version",
    "tenant_id",
    "usage_type",
    "source",
    "cluster",
    "workload_id",
    "deployment_id",
    "gpu_model",
    "basis",
    "allocation_policy_id",
    "estimated",
    "revision",
    "corrects",
    "content_sha256",
)
INSTANTS = ("occurred_at", "period_start", "period_end")
EVENT_ROWS = pa.schema(
    [lake.text(name, "") for name in AS_IS if name not in {"estimated", "revision"}]
    + [pa.field("estimated", pa.bool_()), pa.field("revision", pa.int32())]
    + [pa.field(name, lake.INSTANT) for name in INSTANTS]
    + [pa.field(name, pa.decimal128(38, 9)) for name in (*UNITS, *QUALITY, "cost_amount")]
    + [lake.text(name, "") for name in ("methods", "cost_currency", "document")]
)


def event_rows(events: Sequence[dict[str, Any]]) -> pa.Table:
    """Usage events as columns of eai.usage_events."""
    return pa.Table.from_pylist([_event_row(event) for event in events], schema=EVENT_ROWS)


def _event_row(event: dict[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in event.items() if name != "content_sha256"}
    cost, quality = event["cost"] or {}, event["quality"] or {}
    return {
        **{name: event[name] for name in AS_IS},
        **{name: datetime.fromisoformat(event[name]) for name in INSTANTS},
        **{name: _decimal(event["units"].get(name)) for name in UNITS},
        **{name: _decimal(quality.get(name)) for name in QUALITY},
        "cost_amount": _decimal(cost.get("amount")),
        "cost_currency": cost.get("currency"),
        "methods": quality.get("methods", ""),
        "document": rfc8785.dumps(content).decode(),
    }


def _decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))
