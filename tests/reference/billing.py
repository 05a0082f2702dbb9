"""Small random months to be priced, from one seed: usage, idle lines, tokens, policies and disks.

A month is plain data for the reference (`pricing.py`) and, through `fast_pricing.py`, for the pipeline: rows of text
cells as in the bundle's files. Names are few and alike, so that patterns overlap and ties are common. What does NOT
belong here: any expectation about the result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from .pricing import DAY, HOUR, Records, Row, hour_text, milliseconds

STARTS = (
    "2026-10-31T22:00:00Z",
    "2026-12-31T22:00:00Z",
    "2027-02-28T21:00:00Z",
    "2028-02-28T22:00:00Z",
    "2028-02-29T21:00:00Z",
    "2026-10-15T09:00:00Z",
)
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
MODELS = {"NVIDIA H100 80GB HBM3": "H100", "Tesla T4": "T4"}
ROW_MODELS = ("H100", "T4", "L40S")
POLICY_MODELS = (None, None, None, *MODELS, *ROW_MODELS, "A30")
DEPLOYMENTS = ("chat-prod", "chat-dev", "chat", "train-1", "train-2", "vector/é", "job[1]", "Chat-dev")
PATTERNS = (
    *("*", "*", "c*", "chat*", "chat-*", "chat-prod", "chat-prod", "chat-?rod", "chat-[pd]*", "chat-[!p]*", "?hat-*"),
    *("*-prod", "chat", "chat-", "train-[0-9]", "train-1", "train-?", "t*", "vector/?", "job[1]", "job*", "job[!2]"),
    *("idle", "idle", "idl*", "id?e", "[i]dle", "idle*", "wl-*", "wl-1", "wl-?", "lab/*", "Chat-*", "*-DEV", "[A-Z]*"),
)
CURRENCIES = ("EUR", "EUR", "EUR", "JPY", "KWD", "CLF")
WEIGHTS = (None, None, "0", "0", "1", "4", "0.1", "0.333333", "2.50", "7.5")


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster's part of a month."""

    cluster: str
    usage: list[Row]
    idle: list[Row]
    records: Records


@dataclass(frozen=True, slots=True)
class Month:
    """Hours (of up to two calendar months) and everything that prices them."""

    hours: list[int]
    now: int
    sites: list[Site]


def instant(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at % 1000:03d}Z"


def price(rng: random.Random, top: int = 30) -> str:
    """A decimal string: none, few or many decimals, often zero."""
    digits = rng.choice((0, 0, 1, 2, 2, 4, 9, 12))
    whole = rng.choice((0, 0, 1, rng.randrange(top), rng.randrange(top)))
    return f"{whole}.{rng.randrange(10**digits):0{digits}d}" if digits else str(whole)


def units(rng: random.Random, places: int, null: float) -> str | None:
    """A published unit: null, zero, a few of the last place, ordinary, or very large."""
    if rng.random() < null:
        return None
    last = rng.choice((0, rng.randrange(5), rng.randrange(7_200_000), rng.randrange(7_200_000), rng.randrange(10**17)))
    return f"{last // 10**places}.{last % 10**places:0{places}d}"


def policy_row(rng: random.Random, number: int, hours: list[int]) -> Row:
    edges = [hours[0] - 40 * DAY, hours[0] - 40 * DAY, *hours, hours[-1] + HOUR]
    weights = {kind: weight for kind in ("input", "output", "cached") if (weight := rng.choice(WEIGHTS)) is not None}
    ends = [None, None, None, rng.choice(edges), rng.choice(edges)]
    effective_from, effective_to = rng.choice(edges), rng.choice(ends)
    if effective_to is not None and effective_to <= effective_from:
        effective_to = None
    return {
        "id": rng.choice((f"p{number}", f"alp_{number}", f"P{number:03d}")),
        "name": "price",
        "deployment_pattern": rng.choice(PATTERNS),
        "gpu_model": rng.choice(POLICY_MODELS),
        "currency": rng.choice(CURRENCIES),
        "gpu_hourly_cost": price(rng),
        "overhead_pct": price(rng, 120),
        "energy_kwh_price": price(rng, 2),
        "pue": price(rng, 3),
        "storage_gb_month_price": price(rng, 2),
        "idle_policy": rng.choice(("owner", "proportional", "platform")),
        "token_weights": rng.choice((None, weights)),
        "effective_from": hour_text(effective_from),
        "effective_to": None if effective_to is None else instant(effective_to),
        "status": "retired" if rng.random() < 0.1 else "active",
    }


def token_rows(rng: random.Random, tenants: list[str], hours: list[int], now: int) -> list[Row]:
    """Token events in order of arrival: of the hours, of the 24 before, at their edges, and faulty ones."""
    rows: list[Row] = []
    edges = [hour + step for hour in hours for step in (0, -1, HOUR - 1, -DAY, -DAY - 1)]
    edges += [now + 300_000, now + 300_001]
    equal, top = rng.random() < 0.3, rng.choice((1000, 1000, 2**63 - 1))
    for number in range(rng.choice((0, 20, 60))):
        if rows and rng.random() < 0.15:
            row = dict(rng.choice(rows))
            if rng.random() < 0.6:
                row[rng.choice(("input_tokens", "output_tokens", "cached_tokens"))] = str(rng.randrange(-5, 50))
            rows.append(row)
            continue
        at = rng.choice((rng.choice(edges), rng.randrange(hours[0] - DAY - HOUR, now + 400_000), rng.choice(hours) + 5))
        at = rng.choice(hours) if equal else at
        counts = (
            ["100"] * 3 if equal else [str(rng.choice((0, 0, 1, 100, rng.randrange(10**6), top))) for _ in range(3)]
        )
        if rng.random() < 0.05:
            counts[rng.randrange(3)] = "-1"
        rows.append(
            {
                "event_id": f"tk-{number}",
                "occurred_at": instant(at),
                "tenant_id": rng.choice(tenants),
                "deployment_id": rng.choice((*DEPLOYMENTS, *DEPLOYMENTS[:3], *DEPLOYMENTS[:3], "unknown", None)),
                "input_tokens": counts[0],
                "output_tokens": counts[1],
                "cached_tokens": counts[2],
            }
        )
    return rows


def storage_rows(rng: random.Random, hours: list[int]) -> list[Row]:
    rows = []
    for _ in range(rng.randrange(6)):
        odd = f"{rng.randrange(10**5)}.{rng.randrange(10**9):09d}"
        start = rng.choice((hours[0] - 3 * DAY, rng.choice(hours), rng.choice(hours) + rng.randrange(HOUR)))
        end = rng.choice((None, None, start, start + rng.randrange(3 * HOUR), rng.choice(hours)))
        rows.append(
            {
                "deployment_id": rng.choice((*DEPLOYMENTS, "unknown")),
                "size_gb": rng.choice(("0", "500", "0.000000001", odd)),
                "valid_from": instant(start),
                "valid_to": None if end is None else instant(end),
            }
        )
    return rows


def usage_rows(rng: random.Random, cluster: str, hour: int, tenants: list[str], owners: dict[str, str]) -> list[Row]:
    rows = []
    for number in range(rng.randrange(7)):
        samples = rng.random() < 0.3
        workload_id = f"lab/nb-{number}" if samples else f"wl-{number}"
        if samples:
            deployment_id = rng.choice((*owners, workload_id))
            tenant_id = owners.get(deployment_id)
        else:
            deployment_id = rng.choice((*owners, *owners, "unknown", workload_id))
            tenant_id = rng.choice((owners.get(deployment_id, tenants[0]), rng.choice(tenants)))
        for model in rng.sample((*ROW_MODELS, None), rng.choice((1, 1, 2))):
            measured, estimated, missing = (rng.choice((0, 0, rng.randrange(3_600_000))) for _ in range(3))
            rows.append(
                {
                    "cluster": cluster,
                    "hour": hour_text(hour),
                    "workload_id": workload_id,
                    "gpu_model": model,
                    "tenant_id": tenant_id,
                    "deployment_id": deployment_id,
                    "placed_class": None if samples else model,
                    "basis": "samples" if samples else "lifecycle",
                    "gpu_seconds": units(rng, 3, 0),
                    "gpu_active_seconds": units(rng, 3, 0.3),
                    "gpu_memory_gb_seconds": units(rng, 3, 0.3),
                    "energy_wh": units(rng, 6, 0.2),
                    "measured_seconds": f"{measured / 1000:.3f}",
                    "estimated_seconds": f"{estimated / 1000:.3f}",
                    "missing_seconds": f"{missing / 1000:.3f}",
                    "methods": "",
                }
            )
    return rows


def idle_rows(rng: random.Random, cluster: str, hour: int) -> list[Row]:
    return [
        {
            "cluster": cluster,
            "hour": hour_text(hour),
            "gpu_model": model,
            "gpu_seconds": units(rng, 3, 0),
            "gpu_memory_gb_seconds": units(rng, 3, 0.3),
            "energy_wh": units(rng, 6, 0.2),
            "estimated": rng.choice(("true", "false")),
        }
        for model in rng.sample(ROW_MODELS, rng.randrange(3))
    ]


def month_of(seed: int) -> Month:
    """The month of a seed: up to two clusters under the same policies; in plain ones all rows are alike (A30 ties)."""
    rng = random.Random(seed)
    start = milliseconds(rng.choice(STARTS))
    hours = [start + index * HOUR for index in range(rng.randrange(1, 5))]
    now = hours[-1] + HOUR + rng.randrange(HOUR)
    tenants = [f"{rng.getrandbits(128):032x}" for _ in range(rng.randrange(1, 7))] + [PLATFORM]
    policies = [policy_row(rng, number, hours) for number in range(rng.choice((0, 3, 12, 40, 40)))]
    if rng.random() < 0.7:
        everything = {"deployment_pattern": "*", "gpu_model": None, "effective_to": None, "status": "active"}
        policies.append(policy_row(rng, len(policies), [hours[0] - 40 * DAY]) | everything)
    plain = rng.random() < 0.3
    sites = []
    for cluster in rng.choice((["dc1"], ["dc1", "dc2"])):
        known = rng.sample(DEPLOYMENTS, rng.randrange(1, len(DEPLOYMENTS)))
        owners = {name: rng.choice(tenants) for name in known}
        deployments: list[Row] = [
            {"deployment_id": name, "mode": rng.choice(("shared", "shared", "dedicated")), "owner_tenant_id": owner}
            for name, owner in owners.items()
        ]
        records = Records(PLATFORM, deployments, token_rows(rng, tenants, hours, now), policies, [], MODELS)
        usage = [row for hour in hours for row in usage_rows(rng, cluster, hour, tenants, owners)]
        if plain:
            usage = [row | {"gpu_seconds": "1234.567", "energy_wh": "500.000000"} for row in usage]
        idle = [row for hour in hours for row in idle_rows(rng, cluster, hour)]
        sites.append(Site(cluster, usage, idle, replace(records, storage=storage_rows(rng, hours))))
    return Month(hours, now, sites)
