"""The ClickHouse replica of `eai.usage_events`: its tables and views, and which columns are copied.

Belongs here: DDL, one statement a file, and the columns by kind, from which both sides compute the same digest of a
row. Does not: connecting, copying, comparing (resources/clickhouse). Rules: A31, A32.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from types import MappingProxyType
from typing import Final

EVENTS: Final = "usage_events"
"""The replica: ReplacingMergeTree, so that a row that was copied twice counts once."""
NOTES: Final = "usage_events_copied"
"""One note for each batch and comparison; the last one holds the high-water mark."""
VIEWS: Final = ("usage_events_final", "usage_by_day", "usage_by_month", "allocation_by_month")
"""In the order in which they are made. All read with FINAL."""
FRACTION_DIGITS: Final = 12
"""Of every decimal; the ledger has at most 9. A number that does not fit is refused, never rounded."""


class Kind(StrEnum):
    """How a column is typed, and therefore how both sides write its values as text."""

    TEXT = "text"
    UUID = "uuid"
    INSTANT = "instant"
    DECIMAL = "decimal"
    WHOLE = "whole"
    FLAG = "flag"


COLUMNS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "tenant_id": Kind.UUID,
        "event_id": Kind.TEXT,
        "seq": Kind.WHOLE,
        "schema_version": Kind.TEXT,
        "occurred_at": Kind.INSTANT,
        "period_start": Kind.INSTANT,
        "period_end": Kind.INSTANT,
        "usage_type": Kind.TEXT,
        "source": Kind.TEXT,
        "cluster": Kind.TEXT,
        "workload_id": Kind.TEXT,
        "deployment_id": Kind.TEXT,
        "model_provider": Kind.TEXT,
        "model_name": Kind.TEXT,
        "gpu_model": Kind.TEXT,
        "basis": Kind.TEXT,
        "gpu_seconds": Kind.DECIMAL,
        "gpu_memory_gb_seconds": Kind.DECIMAL,
        "energy_wh": Kind.DECIMAL,
        "storage_gb_hours": Kind.DECIMAL,
        "input_tokens": Kind.WHOLE,
        "output_tokens": Kind.WHOLE,
        "cached_tokens": Kind.WHOLE,
        "cost_amount": Kind.DECIMAL,
        "cost_currency": Kind.TEXT,
        "allocation_policy_id": Kind.TEXT,
        "estimated": Kind.FLAG,
        "measured_seconds": Kind.DECIMAL,
        "estimated_seconds": Kind.DECIMAL,
        "missing_seconds": Kind.DECIMAL,
        "methods": Kind.TEXT,
        "revision": Kind.WHOLE,
        "corrects": Kind.TEXT,
        "content_sha256": Kind.TEXT,
        "booked_at": Kind.INSTANT,
    }
)
"""What is copied, in the order of the digest: all of `eai.usage_events` but `document`, which stays the ledger's."""
SUMMED: Final = (
    *("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "storage_gb_hours"),
    *("input_tokens", "output_tokens", "cached_tokens", "cost_amount"),
    *("measured_seconds", "estimated_seconds", "missing_seconds"),
)
"""Columns whose sums are compared beside the digest."""


def statement(name: str, table: str | None = None) -> str:
    """The statement that creates `name` in the current database, a table by default under its own name."""
    text = files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("{table}", table or name)
