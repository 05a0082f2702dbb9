"""Case bundles as the reference's plain data, and its result as the text of the published files.

A second reader of the bundle format (CSV, TOML, OpenMetrics), as plain as the reference itself. It knows nothing of
the pipeline's doors.
"""

from __future__ import annotations

import csv
import gzip
import re
import tomllib
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .reference import (
    HOUR,
    Deployment,
    Event,
    Hour,
    InventoryEntry,
    Sample,
    Settings,
    account,
    hour_text,
)

if TYPE_CHECKING:
    from pathlib import Path

SERIES = re.compile(r"^(?P<metric>[a-zA-Z_:][\w:]*)\{(?P<labels>.*)\} (?P<value>\S+) (?P<at>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def milliseconds(text: str) -> int:
    """An RFC 3339 time, rounded half-even to milliseconds (A1)."""
    at = datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 1000 + round(Fraction(at.microsecond, 1000))


def samples_of(path: Path) -> list[Sample]:
    """The samples of a gzipped OpenMetrics dump; none where there is no file."""
    if not path.exists():
        return []
    found = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        if match := SERIES.match(line):
            at = round(Fraction(Decimal(match["at"])) * 1000)
            found.append(Sample(match["metric"], dict(LABEL.findall(match["labels"])), at, float(match["value"])))
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, empty cells as None."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]


def event_of(row: dict[str, Any]) -> Event:
    row = dict(row)
    at = milliseconds(row.pop("occurred_at"))
    count, uuids = row.pop("gpu_count"), row.pop("gpu_uuids")
    return Event(
        at=at,
        gpu_count=Fraction(count) if count else None,
        gpu_uuids=tuple(uuids.split(";")) if uuids else None,
        **row,
    )


def settings_of(bundle: dict[str, Any]) -> Settings:
    def number(value: Any) -> Fraction | None:
        return None if value is None else Fraction(str(value))

    return Settings(
        window_seconds=bundle.get("window_seconds", 15),
        models=bundle.get("models", {}),
        card_limits={
            name: (number(limit.get("power_w")), number(limit.get("memory_gb")))
            for name, limit in bundle.get("card_limits", {}).items()
        },
        class_watts={name: Fraction(str(watts)) for name, watts in bundle.get("class_watts", {}).items()},
        class_fraction={name: Fraction(str(part)) for name, part in bundle.get("class_fraction", {}).items()},
    )


def run_case(case: Path) -> list[Hour]:
    """Every hour of a bundle by the reference."""
    bundle = tomllib.loads((case / "bundle.toml").read_text(encoding="utf-8"))
    samples = samples_of(case / "dcgm.om.gz")
    events = [event_of(row) for row in rows_of(case / "workload_events.csv")]
    deployments = [
        Deployment(row["deployment_id"], row["owner_tenant_id"], row["namespace"], row["pod_pattern"])
        for row in rows_of(case / "deployments.csv")
    ]
    inventory = [
        InventoryEntry(
            row["gpu_uuid"],
            row["model"],
            milliseconds(row["valid_from"]),
            milliseconds(row["valid_to"]) if row["valid_to"] else None,
        )
        for row in rows_of(case / "gpu_inventory.csv")
    ]
    start, end, now = (milliseconds(str(bundle[key])) for key in ("from", "to", "now"))
    return [
        account(bundle["cluster"], hour, samples, events, deployments, inventory, now, settings_of(bundle))
        for hour in range(start, end, HOUR)
    ]


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as a CSV file shows it (bundles.md)."""

    def cell(name: str, value: Any) -> str:
        if value is None:
            return ""
        if name == "hour":
            return hour_text(value)
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:f}" if isinstance(value, Decimal) else str(value)

    return {name: cell(name, value) for name, value in row.items()}
