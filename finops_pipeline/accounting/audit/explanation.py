"""An hour's amounts on their way back: split, cost, usage, running time, devices, windows and readings (A35).

Everything is taken from what the hour was computed from and left behind, and said so that a reader can recompute it:
units and amounts as exact decimal text, weights as they are divided by. Who pays, by which rule and weight, is asked of
the files that the allocation itself runs (`money.allocation.payers`).

What belongs here: answers as plain dicts (JSON). What does not: where tables come from, and how it looks.
"""

from __future__ import annotations

import calendar
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import (
    HOUR_MS,
    decimal_of,
    hour_text,
    ms_of,
    plain,
    quantize,
    round_half_even,
    rows_of,
)
from finops_pipeline.accounting.holding.deployments import pod_owners
from finops_pipeline.accounting.holding.lifecycle import NANO, OPEN, Intervals, running_intervals
from finops_pipeline.accounting.money.allocation import IDLE_PREFIX, PaidHour, payers
from finops_pipeline.accounting.money.policies import Policy, PolicyBook, TokenWeights
from finops_pipeline.accounting.money.tokens import COUNTS
from finops_pipeline.accounting.telemetry.cards import ModelNames
from finops_pipeline.accounting.telemetry.readings import SeriesColumns
from finops_pipeline.accounting.telemetry.windows import RUNGS
from finops_pipeline.accounting.usage.storage import PREFIX as STORAGE_PREFIX

TABLES = (
    "gpu_cost_allocation",
    "gpu_usage",
    "gpu_idle",
    "token_usage",
    "deployments",
    "allocation_policies",
    "deployment_storage",
    "workload_events",
    "gpu_holdings",
    "gpu_matches",
    "gpu_samples",
    "dcgm_series",
    "rejected_readings",
)
"""Lake tables of the hour that are needed."""
PARTS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "storage_gb_hours")
TERM_PLACES = 18
PRICES = ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price")

Told = dict[str, Any]

_ROW = ("workload_id", "gpu_model", "deployment_id")
_RULES = {
    "event": ("A25", "no known deployment: the event's tenant pays, a disk's platform"),
    "dedicated": ("A25", "deployment {} is dedicated: its owner pays"),
    "tokens": ("A26", "shared: by weighted tokens of the hour"),
    "tokens_before": ("A27", "no tokens, by those of the 24 hours before"),
    "proportional": ("A27", "no tokens, none in the 24 hours before either: the owner pays"),
    "platform": ("A27", "no tokens, idle_policy platform"),
    "owner": ("A27", "no tokens, idle_policy owner"),
    "use": ("A27", "time of nobody: by the GPU-seconds (thousandths) that each tenant was given"),
    "no_use": ("A27", "idle_policy proportional, but nobody used anything: the platform pays"),
    "nobody": ("A27", "time of nobody: the platform pays"),
}
"""What the rules of `sql/shares.sql` and `sql/idle_shares.sql` are."""


_PARTY = ("workload_id", "deployment_id", "tenant_id")


@dataclass(frozen=True)
class _Whole:
    """The usage rows that a part is of, which differ in the tenant of their events alone."""

    workload_id: str
    gpu_model: str | None
    deployment_id: str
    rows: list[Told]

    def holds(self, workload_id: str, deployment_id: str, tenant_id: str) -> bool:
        return any(tuple(row[name] for name in _PARTY) == (workload_id, deployment_id, tenant_id) for row in self.rows)

    def added(self) -> Told:
        """The rows as one: their units added, null where none is known."""
        first, *others = self.rows
        if not others:
            return first
        units = {name: [row[name] for row in self.rows if row[name] is not None] for name in first}
        added = {name: sum(known) for name, known in units.items() if known and isinstance(known[0], Decimal)}
        return {**first, **added, "methods": "; ".join(row["methods"] for row in self.rows if row["methods"])}


@dataclass(frozen=True)
class HourEvidence:
    """One hour of one cluster, as it lies in the lake."""

    hour_ms: int
    tables: Mapping[str, pa.Table]
    config: AccountingConfig
    now_ms: int

    def of(
        self, workload_id: str, gpu_model: str | None, deployment_id: str, tenant_id: str, usage_type: str
    ) -> Told | None:
        """Everything about a tenant's part of a row; None if the hour's result has no such part (any more)."""
        part = self._part(workload_id, gpu_model, deployment_id, tenant_id, usage_type)
        if part is None:
            return None
        whole = self._whole(workload_id, gpu_model, deployment_id, tenant_id)
        row = self._row(whole)
        policy = None if part["policy_id"] is None else self._book[part["policy_id"]]
        return {
            "part": _texts(part, "estimated", "deployment_id"),
            "split": self._split(workload_id, gpu_model, part["deployment_id"], policy),
            "cost": None if policy is None else self._cost(workload_id, policy, row),
            "usage": row,
            "running": list(self._running(whole, row)),
            "devices": list(self._devices(whole)),
            "windows": list(self._windows(whole)),
            "readings": list(self._readings(whole)),
        }

    # The part, the row, the split

    def _part(self, *wanted: str | None) -> Told | None:
        names = ("workload_id", "gpu_model", "deployment_id", "tenant_id", "usage_type")
        return next((part for part in self._parts if tuple(part[name] for name in names) == wanted), None)

    @cached_property
    def _parts(self) -> list[Told]:
        return list(self.tables["gpu_cost_allocation"].to_pylist())

    def _whole(self, workload_id: str, gpu_model: str | None, deployment_id: str, payer: str) -> _Whole:
        """The usage rows that a part is of: several where a workload ran for several tenants in the hour (A4, A36)."""
        rows = [
            row
            for row in self.tables["gpu_usage"].to_pylist()
            if (row["workload_id"], row["gpu_model"], row["deployment_id"]) == (workload_id, gpu_model, deployment_id)
        ]
        known = {name for (name,) in rows_of(self.tables["deployments"], "deployment_id")}
        own = [row for row in rows if row["tenant_id"] == payer and deployment_id not in known]
        return _Whole(workload_id, gpu_model, deployment_id, own or rows)

    def _row(self, whole: _Whole) -> Told:
        """The whole row: usage of a workload, nobody's time, or the disks of a deployment."""
        if whole.workload_id.startswith(IDLE_PREFIX):
            (row,) = (r for r in self.tables["gpu_idle"].to_pylist() if r["gpu_model"] == whole.gpu_model)
            return {"basis": "idle", **_texts(row, "estimated")}
        row, workload_id = whole.added(), whole.workload_id
        told = _texts(row, "tenant_id", "deployment_id", "placed_class", "basis", "methods")
        if workload_id.startswith(STORAGE_PREFIX):
            told["disks"] = list(self._disks(row["deployment_id"]))
            told["gb_hours"] = str(sum((Fraction(disk["gb_hours"]) for disk in told["disks"]), Fraction(0)))
        return told

    def _disks(self, deployment_id: str) -> Iterator[Told]:
        end = self.hour_ms + HOUR_MS
        for name, size, begin, past in rows_of(
            self.tables["deployment_storage"], "deployment_id", "size_gb", "valid_from", "valid_to"
        ):
            first, last = max(begin, self.hour_ms), min(end, end if past is None else past)
            if name == deployment_id and last > first:
                held = Fraction(size) * (last - first) / HOUR_MS
                yield {"size_gb": plain(size), **_span(first, last), "gb_hours": str(held)}

    def _split(self, workload_id: str, gpu_model: str | None, deployment_id: str, policy: Policy | None) -> Told:
        """Who pays the row, by which rule and weights, and every part (A25-A27, A29)."""
        row = (workload_id, gpu_model, deployment_id)
        shares = [share for share in self._payers if tuple(share[name] for name in _ROW) == row]
        parts = [part for part in self._parts if tuple(part[name] for name in _ROW) == row]
        rule, says = _RULES[shares[0]["rule"]]
        return {
            "rule": rule,
            "says": says.format(deployment_id),
            **self._counted(shares[0]["rule"], policy),
            "weights": [_weight(share) for share in shares],
            "ties_by": f"sha256(share_id|{hour_text(self.hour_ms)})",
            "parts": [{"tenant_id": part["tenant_id"], **_texts(part)} for part in parts],
        }

    @cached_property
    def _payers(self) -> list[Told]:
        names = ("usage", "idle", "storage", "tokens", "deployments")
        stored = ("gpu_usage", "gpu_idle", "deployment_storage", "token_usage", "deployments")
        tables = {name: self.tables[table] for name, table in zip(names, stored, strict=True)}
        hour = PaidHour(self.hour_ms, **tables, book=self._book)
        return list(payers(hour, platform_tenant=self.config.platform_tenant).to_pylist())

    def _counted(self, rule: str, policy: Policy | None) -> Told:
        """Which tokens count, and for what, where tokens decide (A26, A27)."""
        if rule not in ("tokens", "tokens_before"):
            return {}
        begin, end = (0, HOUR_MS) if rule == "tokens" else (-24 * HOUR_MS, 0)
        per = TokenWeights() if policy is None else policy.token_weights
        weights = {kind: str(getattr(per, kind)) for kind in ("input", "output", "cached")}
        return {**_span(self.hour_ms + begin, self.hour_ms + end), "token_weights": weights}

    # The cost

    @cached_property
    def _book(self) -> PolicyBook:
        return PolicyBook.parse(self.tables["allocation_policies"], self.config.models)

    def _cost(self, workload_id: str, policy: Policy, row: Told) -> Told:
        """The terms of A24 from the published units, exactly, and rounded once."""
        (raw,) = (p for p in self.tables["allocation_policies"].to_pylist() if p["id"] == policy.id)
        terms: dict[str, tuple[str, Fraction]] = {}
        told: Told = {}
        if workload_id.startswith(STORAGE_PREFIX):
            hours = _hours_in_month(self.hour_ms)
            told["hours_in_month"] = hours
            held = Fraction(row["gb_hours"]) * policy.storage_gb_month_price / hours
            terms["storage"] = ("gb_hours x storage_gb_month_price / hours_in_month", held)
        else:
            seconds, energy = Fraction(row["gpu_seconds"] or 0), Fraction(row["energy_wh"] or 0)
            gpu = seconds / 3600 * policy.gpu_hourly_cost
            terms["gpu"] = ("gpu_seconds / 3600 x gpu_hourly_cost", gpu)
            terms["overhead"] = ("gpu x overhead_pct / 100", gpu * policy.overhead_pct / 100)
            spent = energy / 1000 * policy.pue * policy.energy_kwh_price
            terms["energy"] = ("energy_wh / 1000 x pue x energy_kwh_price", spent)
        whole = sum((value for _, value in terms.values()), Fraction(0))
        version = {"id": policy.id, "name": raw["name"], "deployment_pattern": policy.deployment_pattern}
        version |= {"gpu_model": policy.gpu_model, "currency": policy.currency, **{name: raw[name] for name in PRICES}}
        version |= {"idle_policy": policy.idle_policy, "effective_from": hour_text(policy.effective_from)}
        version["effective_to"] = None if policy.effective_to is None else hour_text(policy.effective_to)
        return {
            "policy": version,
            **told,
            "terms": [
                {"name": name, "formula": formula, "value": plain(quantize(value, TERM_PLACES))}
                for name, (formula, value) in terms.items()
            ],
            "sum": plain(quantize(whole, TERM_PLACES)),
            "amount": plain(quantize(whole, 9)),
            "currency": policy.currency,
        }

    # What the row is made of

    @cached_property
    def _intervals(self) -> Intervals:
        found = running_intervals(self.tables["workload_events"], self.now_ms, self.config)
        return found.running_in(self.hour_ms, self.hour_ms + HOUR_MS)

    def _running(self, whole: _Whole, row: Told) -> Iterator[Told]:
        """Running intervals clipped to the hour, and their units on the row's model (A3, A4, A21)."""
        workload_id, gpu_model = whole.workload_id, whole.gpu_model
        names = ModelNames.of([gpu_model or "", *(name or "" for name in self._intervals.placed_class)], self.config)
        intervals, fractions = self._intervals, self._intervals.fractions(self.config)
        matched: dict[tuple[str, str], Decimal] = {
            (event_id, model): ms
            for event_id, model, ms in rows_of(self.tables["gpu_matches"], "event_id", "gpu_model", "unit_ms")
        }
        for number in range(len(intervals)):
            deployment_id = intervals.deployment[number] or intervals.workloads[intervals.workload[number]]
            if not whole.holds(
                intervals.workloads[intervals.workload[number]], deployment_id, intervals.tenant[number]
            ):
                continue
            event_id, placed = intervals.event_id[number], intervals.placed_class[number] or ""
            begin = max(int(intervals.start[number]), self.hour_ms)
            end = min(int(intervals.end[number]), self.hour_ms + HOUR_MS)
            count = Fraction(int(intervals.gpu_count[number]), NANO)
            here = Fraction(matched.get((event_id, gpu_model or ""), Decimal(0)))
            seen = sum((Fraction(ms) for (event, _), ms in matched.items() if event == event_id), Fraction(0))
            unseen = count * (end - begin) - seen if names.named(placed) == gpu_model else Fraction(0)
            told: Told = {
                **_span(begin, end),
                "opened_by": event_id,
                "closed_by": self._closing(workload_id, int(intervals.end[number])),
                "gpu_count": str(count),
                "placed_class": placed,
                "class_fraction": str(fractions[number]),
                "matched_unit_ms": str(here),
                "unseen_unit_ms": str(unseen),
                "gpu_seconds": str((here + unseen) * fractions[number] / 1000),
            }
            watts = self.config.watts(placed)
            if unseen and "pooled=" in row["methods"]:
                told |= {"pooled": "the idle line of the model gave what it had (A36)"}
            elif unseen and watts is not None:
                energy = Fraction(watts) * unseen
                told |= {
                    "modelled_watts": plain(watts),
                    "modelled_mj": round_half_even(energy.numerator, energy.denominator),
                }
            yield told

    def _closing(self, workload_id: str, end: int) -> str | None:
        """The event that ended a running interval; None while it runs."""
        if end == OPEN:
            return None
        events = rows_of(self.tables["workload_events"], "workload_id", "occurred_at", "event_id")
        return min(
            (event_id for workload, at, event_id in events if (workload, at) == (workload_id, end)), default=None
        )

    def _holdings(self, whole: _Whole) -> list[Told]:
        """GPU_HOLDINGS of a row; nobody's row also has the pods of no deployment (A18)."""
        rows = [row for row in self.tables["gpu_holdings"].to_pylist() if row["gpu_model"] == whole.gpu_model]
        if not whole.workload_id.startswith(IDLE_PREFIX):
            return [
                row
                for row in rows
                if row["workload_id"] == whole.workload_id
                and (row["basis"] != "lifecycle" or whole.holds(*(row[name] for name in _PARTY)))
            ]
        pods = {row["workload_id"] for row in rows if row["basis"] == "samples"}
        owners = pod_owners(sorted(pods), self.tables["deployments"])
        return [
            row
            for row in rows
            if row["basis"] == "idle" or (row["basis"] == "samples" and owners[row["workload_id"]] is None)
        ]

    def _devices(self, whole: _Whole) -> Iterator[Told]:
        """What the row had and used of each board, in whole units (A28), and by status and rung in seconds."""
        for row in self._holdings(whole):
            first, last = (ms_of(row[name]) for name in ("first_at", "last_at"))
            times = {name: row[f"{name}_ms"] for name in ("measured", "estimated", "missing")}
            rungs = {rung.name.lower(): row[f"{rung.name.lower()}_ms"] for rung in RUNGS}
            yield {
                "gpu_uuid": row["gpu_uuid"],
                "holder": row["workload_id"],
                **_span(first, last),
                "time_ms": row["time"],
                "activity_millionths_ms": row["activity"],
                "memory_kib_ms": row["memory"],
                "energy_mj": row["energy"],
                **{f"{name}_seconds": _seconds(ms) for name, ms in times.items()},
                "methods": {name: _seconds(ms) for name, ms in rungs.items() if ms},
            }

    def _windows(self, whole: _Whole) -> Iterator[Told]:
        """Windows of the row's boards while it had them, by device and method (A11, A13)."""
        width = self.config.window_ms
        reach: dict[str, tuple[int, int]] = {}
        for row in self._holdings(whole):
            first, last = (ms_of(row[name]) for name in ("first_at", "last_at"))
            begin, end = reach.get(row["gpu_uuid"], (first, last))
            reach[row["gpu_uuid"]] = min(begin, first), max(end, last)
        counts: dict[tuple[str, str, str], int] = defaultdict(int)
        samples = self.tables["gpu_samples"]
        samples = samples.filter(pc.is_in(samples["gpu_uuid"], value_set=pa.array(sorted(reach), pa.string())))
        for uuid, instance, at, method in rows_of(samples, "gpu_uuid", "mig_instance", "window_start", "method"):
            if reach[uuid][0] < at + width and at < reach[uuid][1]:
                counts[uuid, instance, method] += 1
        for (uuid, instance, method), count in sorted(counts.items()):
            yield {
                "device": _device(uuid, instance),
                "method": method,
                "windows": count,
                "seconds": count * self.config.window_seconds,
            }

    def _readings(self, whole: _Whole) -> Iterator[Told]:
        """Raw readings of the row's boards in the hour, by device and metric, and what was rejected of them (A10)."""
        boards = {row["gpu_uuid"] for row in self._holdings(whole)}
        series = self.tables["dcgm_series"]
        columns = SeriesColumns.of(series, self.config)
        spans: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        instants: Any = series["timestamps"]
        for number in np.flatnonzero(columns.usable & np.isin(columns.uuid, list(boards))).tolist():
            at = instants[number].values
            if at is not None and len(at):
                ends: Any = pc.min_max(at.cast(pa.int64())).as_py()
                spans[columns.key[number], columns.metric[number]].append((len(at), ends["min"], ends["max"]))
        rejected: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for key, reason, detail in rows_of(self.tables["rejected_readings"], "key", "reason", "detail"):
            device, _, metric = key.rpartition(":")
            rejected[device, metric][reason] = detail
        for (device, metric), some in sorted(spans.items()):
            counts, firsts, lasts = zip(*some, strict=True)
            yield {
                "device": device,
                "metric": metric,
                "series": len(some),
                "samples": sum(counts),
                "first": _instant(min(firsts)),
                "last": _instant(max(lasts)),
                "rejected": rejected.get((device, metric), {}),
            }


def _weight(share: Told) -> Told:
    counts = {name: int(share[name]) for name in COUNTS if share[name] is not None}
    return {"share_id": share["tenant_id"], "weight": str(int(share["weight"])), **counts}


def _texts(row: Mapping[str, Any], *names: str) -> Told:
    """Numbers of a row as exact text, and the columns named; unknown units stay null."""
    told: Told = {name: row[name] for name in names}
    for name, value in row.items():
        if isinstance(value, Decimal):
            told[name] = plain(value)
        elif value is None and (name in PARTS or name == "amount"):
            told[name] = None
    for name in ("currency", "policy_id"):
        if name in row:
            told[name] = row[name]
    return told


def _span(begin: int, end: int) -> Told:
    return {"from": _instant(begin), "to": _instant(end)}


def _instant(ms: int) -> str:
    text = hour_text(ms)
    return f"{text[:-1]}.{ms % 1000:03d}Z" if ms % 1000 else text


def _seconds(ms: int) -> str:
    return plain(decimal_of(ms, 3))


def _device(uuid: str, instance: str) -> str:
    return f"{uuid}/{instance}" if instance else uuid


def _hours_in_month(hour_ms: int) -> int:
    year, month = map(int, hour_text(hour_ms)[:7].split("-"))
    return 24 * calendar.monthrange(year, month)[1]
