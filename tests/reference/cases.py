"""Bundles as the reference's plain data, and its result as the text of the published files (bundles.md).

A second reader of the bundle format (CSV, TOML, JSON, OpenMetrics), as plain as the reference itself. It knows nothing
of the pipeline's doors. `run_bundle` is the whole reference: usage (A1-A21, A36), prices (A22-A30) and statements.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from . import pricing
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
COLUMNS = {
    "gpu_usage.csv": "cluster,hour,workload_id,gpu_model,tenant_id,deployment_id,placed_class,basis,gpu_seconds,"
    "gpu_active_seconds,gpu_memory_gb_seconds,energy_wh,measured_seconds,estimated_seconds,missing_seconds,methods",
    "allocation.csv": "cluster,hour,workload_id,gpu_model,tenant_id,usage_type,deployment_id,gpu_seconds,"
    "gpu_memory_gb_seconds,energy_wh,amount,currency,policy_id,estimated",
    "fleet.csv": "cluster,hour,gpu_model,visible,held,stale,unattributed,idle,no_data,lifecycle,matched,unmatched",
    "quarantine.csv": "source,key,reason,detail",
}
KEYS = {"gpu_usage.csv": 6, "allocation.csv": 7, "fleet.csv": 3, "quarantine.csv": 3}


def milliseconds(text: str) -> int:
    """An RFC 3339 time, rounded half-even to milliseconds (A1)."""
    at = datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 1000 + round(Fraction(at.microsecond, 1000))


def optional_milliseconds(text: str | None) -> int | None:
    return milliseconds(text) if text else None


def samples_of(case: Path) -> list[Sample]:
    """The samples of a bundle's OpenMetrics dump, gzipped or not; none where there is no file."""
    plain, packed = case / "dcgm.om", case / "dcgm.om.gz"
    text = plain.read_text(encoding="utf-8") if plain.exists() else ""
    text += gzip.decompress(packed.read_bytes()).decode() if packed.exists() else ""
    found = []
    for line in text.splitlines():
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
        mig_slices=bundle.get("mig_slices", {}),
        honor_labels=bundle.get("honor_labels", False),
    )


def inventory_of(case: Path, cluster: str) -> list[InventoryEntry]:
    return [
        InventoryEntry(
            row["gpu_uuid"],
            row["model"],
            milliseconds(row["valid_from"]),
            optional_milliseconds(row["valid_to"]),
            row["node"],
        )
        for row in rows_of(case / "gpu_inventory.csv")
        if row["cluster"] == cluster
    ]


def toml_of(case: Path) -> dict[str, Any]:
    return tomllib.loads((case / "bundle.toml").read_text(encoding="utf-8"))


def now_of(bundle: dict[str, Any]) -> int:
    return milliseconds(str(bundle["now"])) if "now" in bundle else int(datetime.now(UTC).timestamp()) * 1000


def hours_of(bundle: dict[str, Any]) -> list[int]:
    return list(range(milliseconds(str(bundle["from"])), milliseconds(str(bundle["to"])), HOUR))


def run_case(case: Path) -> list[Hour]:
    """Every hour of a bundle by the reference, before pricing."""
    bundle = toml_of(case)
    samples = samples_of(case)
    events = [event_of(row) for row in rows_of(case / "workload_events.csv")]
    deployments = [
        Deployment(
            row["deployment_id"],
            row["owner_tenant_id"],
            row["namespace"],
            row["pod_pattern"],
            optional_milliseconds(row.get("valid_from")),
            optional_milliseconds(row.get("valid_to")),
        )
        for row in rows_of(case / "deployments.csv")
    ]
    inventory = inventory_of(case, bundle["cluster"])
    now, settings = now_of(bundle), settings_of(bundle)
    return [
        account(bundle["cluster"], hour, samples, events, deployments, inventory, now, settings)
        for hour in hours_of(bundle)
    ]


@dataclass(frozen=True)
class Run:
    """What a run of a bundle writes: the rows of each file as text cells, the statements as JSON values."""

    hours: list[Hour]
    files: dict[str, list[dict[str, str]]]
    statements: list[dict[str, Any]]

    def text(self, name: str) -> str:
        """A CSV file as it is written."""
        file = io.StringIO()
        writer = csv.DictWriter(file, COLUMNS[name].split(","), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.files[name])
        return file.getvalue()


def run_bundle(case: Path) -> Run:
    """A bundle through all rules (A1-A30, A36)."""
    bundle, hours = toml_of(case), run_case(case)
    policies = case / "allocation_policies.json"
    records = pricing.Records(
        platform_tenant=bundle.get("platform_tenant", ""),
        deployments=rows_of(case / "deployments.csv"),
        tokens=rows_of(case / "token_usage.csv"),
        # A22: numbers at their shortest text, never as floats.
        policies=json.loads(policies.read_text("utf-8"), parse_float=str, parse_int=str) if policies.exists() else [],
        storage=rows_of(case / "deployment_storage.csv"),
        models=bundle.get("models", {}),
    )
    usage = [priced(row, flagged=flag_of(row) in hour.estimated) for hour in hours for row in hour.usage]
    idle = [priced(row, flagged=row["estimated"]) for hour in hours for row in hour.idle]
    allocation, _ = pricing.allocate(bundle["cluster"], hours_of(bundle), usage, idle, records, now_of(bundle))
    _, tokens = pricing.tokens_that_count(records.tokens, now_of(bundle), records.deployments)
    counts: Counter[tuple[str, str, str]] = Counter()
    for number, hour in enumerate(hours):
        # Faulty events are the same in every hour, rejected readings are each hour's own (A5).
        counts.update({key: n for key, n in hour.counts.items() if number == 0 or key[0] == "dcgm"})
    quarantine = [
        {"source": source, "key": key, "reason": reason, "detail": str(count)}
        for (source, key, reason), count in (counts + tokens).items()
    ]
    files = {
        "gpu_usage.csv": [cells(row) for hour in hours for row in hour.usage]
        + [cells(row) for hour in hours_of(bundle) for row in storage_rows(bundle["cluster"], hour, records)],
        "allocation.csv": [cells(row) for row in allocation],
        "fleet.csv": [cells(row) for hour in hours for row in hour.fleet],
        "quarantine.csv": quarantine,
    }
    months = sorted({hour_text(hour)[:7] for hour in hours_of(bundle)})
    return Run(hours, in_order(files), [pricing.statement(allocation, month) for month in months])


def in_order(files: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """bundles.md: rows sorted by their key, which is the first columns."""
    found = {}
    for name, rows in files.items():
        columns = COLUMNS[name].split(",")
        ordered = [{column: row[column] for column in columns} for row in rows]
        found[name] = sorted(ordered, key=lambda row, n=KEYS[name]: list(row.values())[:n])  # type: ignore[misc]
    return found


def flag_of(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return row["workload_id"], row["gpu_model"], row["tenant_id"] or "", row["deployment_id"]


def priced(row: dict[str, Any], *, flagged: bool) -> dict[str, Any]:
    """A row as pricing reads it: text cells, None where a cell is empty, and its flag (A15)."""
    return {name: value or None for name, value in cells(row | {"estimated": flagged}).items()}


def storage_rows(cluster: str, hour: int, records: pricing.Records) -> list[dict[str, Any]]:
    """bundles.md: an hour's storage in `gpu_usage.csv`; the owner's, or the platform's where nobody knows it (A24)."""
    owners = {
        row["deployment_id"]: row["owner_tenant_id"] for row in records.deployments if pricing.in_force(row, hour)
    }
    empty = dict.fromkeys(COLUMNS["gpu_usage.csv"].split(","))
    return [
        empty
        | {
            "cluster": cluster,
            "hour": hour,
            "workload_id": f"storage:{deployment_id}",
            "tenant_id": owners.get(deployment_id, records.platform_tenant),
            "deployment_id": deployment_id,
            "basis": "storage",
        }
        for deployment_id in pricing.storage_held(hour, records.storage)
    ]


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as a CSV file shows it (bundles.md)."""

    def cell(name: str, value: Any) -> str:
        if value is None:
            return ""
        if name == "hour" and isinstance(value, int):
            return hour_text(value)
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:f}" if isinstance(value, Decimal) else str(value)

    return {name: cell(name, value) for name, value in row.items()}


def differences(case: Path, run: Run | None = None) -> list[str]:
    """How a run differs from the case's expected files; `detail` of the quarantine is free text."""
    run = run or run_bundle(case)
    found = []
    for name in COLUMNS:
        with (case / "expected" / name).open(newline="", encoding="utf-8") as file:
            expected = list(csv.DictReader(file))
        for rows, sign in ((expected, "-"), (run.files[name], "+")):
            other = run.files[name] if sign == "-" else expected
            shown = [{key: value for key, value in row.items() if key != "detail"} for row in rows]
            others = [{key: value for key, value in row.items() if key != "detail"} for row in other]
            found += [f"{name} {sign} {','.join(row.values())}" for row in shown if row not in others]
        if not found and name != "quarantine.csv" and run.text(name) != (case / "expected" / name).read_text("utf-8"):
            found.append(f"{name}: other order or text")
    text = (case / "expected" / "gpu_allocation.json").read_text(encoding="utf-8")
    statements = json.loads(text, parse_float=str, parse_int=str)
    if statements != run.statements:
        found.append(f"gpu_allocation.json\n- {statements}\n+ {run.statements}")
    return found
