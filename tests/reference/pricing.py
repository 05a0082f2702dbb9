"""The pricing rules a second time: slow, plain, and written from their text alone (A5, A22-A30, bundles.md).

From usage rows as `gpu_usage.csv` has them, idle lines before pricing and the platform's records to the rows of
`allocation.csv` and the statements of `gpu_allocation.json`. Rows are dicts of text cells as in the files (None where a
cell is empty); in between numbers are `Fraction` or whole units, times are integer milliseconds, and every rule is one
function with its number. Nothing here is shared with the pipeline, so that the two agree only where both follow the
text. What does NOT belong here: the usage itself (`tests.reference.reference`), the ledger (A31-A35), and anything that
is fast and therefore hard to read.

AMBIGUITIES (the text allows more than one reading; the choice taken here)

1.  A5: the first arrival of an id is the one that later ones are compared with, also where it is itself quarantined;
    content is compared after the door (values and milliseconds, not their spelling). A copy is reported once, with the
    original; an event has the first reason that fits of `future`, `negative` and `deployment`.
2.  A5: a deployment is unknown to a token event where no row of it counts for the hour that the event is in.
3.  A22: a price that is not given is that of the policy which would price the same row without this one, each price by
    itself, and again without that one if it has none either. One in another currency, or none, is no price: the policy
    is refused, which here is an error. `idle_policy` and `token_weights` are not prices: not given, they are the defaults.
4.  A23: "exact" is a pattern without `*`, `?` and `[`, where the literal prefix of a glob ends; `job[1]` is a glob that
    does not match the deployment `job[1]`. The highest id is the last one in the order of its characters.
5.  A22, A23: a policy is in force in an hour if it is at the hour's start. A retired one is in force in no hour.
6.  A24: "the row is flagged" is `estimated`, and the unit meant is one that has a term: `energy_wh` (case 24 has an idle
    line without memory that is not flagged). A storage row has no units to miss.
7.  A24: a deployment's disks of an hour are one row, rounded once.
8.  A26, A27: an unpriced row of a shared deployment is split with the defaults: weights of 1, `idle_policy` owner.
9.  A27: "their gpu_seconds of that hour" are those of `gpu_local` rows of the same cluster.
10. A36: rows that end with one key are added after each was priced and split: units, amounts, and the flag of either.
11. bundles.md: items and totals are ordered by tenant, deployment and currency, null before any currency.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from . import names

Row = dict[str, Any]

HOUR = 3_600_000
DAY = 24 * HOUR
PLACES = {"gpu_seconds": 3, "gpu_memory_gb_seconds": 3, "energy_wh": 6}
PRICES = ("gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price")
AMOUNT_PLACES = 9
AMOUNT_SCALE: int = 10**AMOUNT_PLACES
MINOR_UNITS = {"EUR": 2, "USD": 2, "CHF": 2, "JPY": 0, "KWD": 3, "CLF": 4}


@dataclass(frozen=True, slots=True)
class Records:
    """What the platform wrote down, as rows of the bundle's files."""

    platform_tenant: str
    deployments: list[Row] = field(default_factory=list)
    tokens: list[Row] = field(default_factory=list)
    policies: list[Row] = field(default_factory=list)
    storage: list[Row] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)


def milliseconds(text: str) -> int:
    """A1: an RFC 3339 instant, rounded half-even to milliseconds."""
    found = re.search(r"\.\d+", text)
    fraction = found[0] if found else ".0"
    seconds = int(datetime.fromisoformat(text.replace(fraction, "")).timestamp())
    return seconds * 1000 + round(Fraction(fraction) * 1000)


def hour_text(at: int) -> str:
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole(text: str | None, places: int) -> int | None:
    """A28: a published number as a whole number of its last place."""
    if text is None:
        return None
    scale: int = 10**places
    units = Fraction(text) * scale
    assert units.denominator == 1
    return units.numerator


def published(units: int | None, places: int) -> str | None:
    """A28: the text of a whole number of units of the last place; zero has no sign."""
    return None if units is None else f"{Decimal(units).scaleb(-places):.{places}f}"


def in_force(row: Row, hour: int) -> bool:
    """Section 2: a deployments row counts for the hours that begin in [valid_from, valid_to)."""
    start, end = row.get("valid_from"), row.get("valid_to")
    return (start is None or milliseconds(start) <= hour) and (end is None or hour < milliseconds(end))


def tokens_that_count(
    tokens: list[Row], now: int, deployments: list[Row]
) -> tuple[list[Row], Counter[tuple[str, str, str]]]:
    """A5: the token events that count, in order of arrival, and how often (source, key, reason) of the others."""
    first: dict[str, Row] = {}
    quarantine: Counter[tuple[str, str, str]] = Counter()
    for event in tokens:
        content = {
            "occurred_at": milliseconds(event["occurred_at"]),
            "tenant_id": event["tenant_id"],
            "deployment_id": event["deployment_id"],
            "input": int(event["input_tokens"]),
            "output": int(event["output_tokens"]),
            "cached": int(event["cached_tokens"]),
        }
        if event["event_id"] not in first:
            first[event["event_id"]] = content
        elif content != first[event["event_id"]]:
            quarantine["token_usage", event["event_id"], "conflict"] += 1
    good = []
    for event_id, content in first.items():
        hour = content["occurred_at"] // HOUR * HOUR
        known = {row["deployment_id"] for row in deployments if in_force(row, hour)}
        if content["occurred_at"] > now + 5 * 60_000:
            quarantine["token_usage", event_id, "future"] += 1
        elif min(content["input"], content["output"], content["cached"]) < 0:
            quarantine["token_usage", event_id, "negative"] += 1
        elif content["deployment_id"] not in known:
            quarantine["token_usage", event_id, "deployment"] += 1
        else:
            good.append(content)
    return good, quarantine


def literal_prefix(pattern: str) -> int:
    """A23: how many characters of a glob stand before its first wildcard."""
    length = 0
    for character in pattern:
        if character in "*?[":
            break
        length += 1
    return length


def best_policy(
    deployment_id: str, model: str | None, hour: int, policies: list[Row], models: dict[str, str]
) -> Row | None:
    """A23: the policy that matches a deployment's row in an hour best; `model` None is storage (A24)."""
    candidates = []
    for policy in policies:
        wanted = policy.get("gpu_model")
        if (policy.get("status") or "active") != "active" or milliseconds(policy["effective_from"]) > hour:
            continue
        if policy.get("effective_to") is not None and milliseconds(policy["effective_to"]) <= hour:
            continue
        if not fnmatchcase(deployment_id, policy["deployment_pattern"]):
            continue
        if wanted is not None and (model is None or names.identity(model, models) != names.identity(wanted, models)):
            continue
        prefix = literal_prefix(policy["deployment_pattern"])
        specificity = (
            prefix == len(policy["deployment_pattern"]),
            prefix,
            wanted is not None,
            milliseconds(policy["effective_from"]),
            policy["id"],
        )
        candidates.append((specificity, policy))
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def policy_of(
    deployment_id: str, model: str | None, hour: int, policies: list[Row], models: dict[str, str]
) -> Row | None:
    """A22, A23: the policy that prices a row, with the prices that it inherits (choice 3)."""
    policy = best_policy(deployment_id, model, hour, policies, models)
    missing = [price for price in PRICES if policy is not None and policy.get(price) is None]
    if policy is None or not missing:
        return policy
    others = [other for other in policies if other["id"] != policy["id"]]
    without = policy_of(deployment_id, model, hour, others, models)
    if without is None or without["currency"] != policy["currency"]:
        raise ValueError(f"A22: policy {policy['id']} gives no {missing[0]}, and none that it could inherit")
    return policy | {price: without[price] for price in missing}


def cost_of_usage(row: Row, policy: Row | None) -> int | None:
    """A24: the cost of a row's published units in billionths; null where nothing prices it."""
    if policy is None:
        return None
    total = Fraction(0)
    if row["gpu_seconds"] is not None:
        gpu = Fraction(row["gpu_seconds"]) / 3600 * Fraction(policy["gpu_hourly_cost"])
        total += gpu + gpu * Fraction(policy["overhead_pct"]) / 100
    if row["energy_wh"] is not None:
        energy = Fraction(row["energy_wh"]) / 1000 * Fraction(policy["pue"]) * Fraction(policy["energy_kwh_price"])
        total += energy
    return round(total * AMOUNT_SCALE)


def hours_in_month(hour: int) -> int:
    """A24: the hours of the month that an hour is in."""
    start = datetime.fromtimestamp(hour // 1000, UTC).replace(day=1, hour=0)
    after = (start + timedelta(days=32)).replace(day=1)
    return (after - start).days * 24


def storage_held(hour: int, storage: list[Row]) -> dict[str, Fraction]:
    """A24: GB-hours of each deployment with a disk in the hour."""
    held: dict[str, Fraction] = defaultdict(Fraction)
    for disk in storage:
        start = max(hour, milliseconds(disk["valid_from"]))
        end = hour + HOUR
        if disk["valid_to"] is not None:
            end = min(end, milliseconds(disk["valid_to"]))
        if start < end:
            held[disk["deployment_id"]] += Fraction(disk["size_gb"]) * Fraction(end - start, HOUR)
    return held


def cost_of_storage(gb_hours: Fraction, hour: int, policy: Row | None) -> int | None:
    """A24: the cost of an hour's storage in billionths."""
    if policy is None:
        return None
    amount = gb_hours * Fraction(policy["storage_gb_month_price"]) / hours_in_month(hour)
    return round(amount * AMOUNT_SCALE)


def weighted_tokens(
    deployment_id: str, start: int, end: int, policy: Row | None, tokens: list[Row]
) -> dict[str, Fraction]:
    """A26: each tenant's weighted tokens of a deployment in [start, end); only tenants that have some."""
    weights = {"input": Fraction(1), "output": Fraction(1), "cached": Fraction(1)}
    if policy is not None and policy.get("token_weights") is not None:
        for kind, weight in policy["token_weights"].items():
            weights[kind] = Fraction(weight)
    total: dict[str, Fraction] = defaultdict(Fraction)
    for event in tokens:
        if event["deployment_id"] == deployment_id and start <= event["occurred_at"] < end:
            for kind, weight in weights.items():
                total[event["tenant_id"]] += event[kind] * weight
    return {tenant: weight for tenant, weight in total.items() if weight > 0}


def payers_of_deployment(
    deployment: Row, hour: int, policy: Row | None, tokens: list[Row], platform_tenant: str
) -> dict[str, Fraction]:
    """A25-A27: the tenants of a known deployment's row and their weights."""
    deployment_id, owner = deployment["deployment_id"], {deployment["owner_tenant_id"]: Fraction(1)}
    if deployment["mode"] == "dedicated":
        return owner
    served = weighted_tokens(deployment_id, hour, hour + HOUR, policy, tokens)
    if served:
        return served
    idle_policy = (policy or {}).get("idle_policy") or "owner"
    if idle_policy == "platform":
        return {platform_tenant: Fraction(1)}
    if idle_policy == "proportional":
        return weighted_tokens(deployment_id, hour - DAY, hour, policy, tokens) or owner
    return owner


def payers_of_idle(policy: Row | None, local: list[Row], platform_tenant: str) -> dict[str, Fraction]:
    """A27: the tenants of an idle line and their weights, from the hour's split rows."""
    if policy is not None and policy.get("idle_policy") == "proportional":
        total: dict[str, Fraction] = defaultdict(Fraction)
        for row in local:
            total[row["tenant_id"]] += Fraction(row["gpu_seconds"] or 0)
        spread = {tenant: seconds for tenant, seconds in total.items() if seconds > 0}
        if spread:
            return spread
    return {platform_tenant: Fraction(1)}


def digest(share_id: str, period: str) -> str:
    return hashlib.sha256(f"{share_id}|{period}".encode()).hexdigest()


def split(total: int | None, weights: dict[str, Fraction], period: str) -> dict[str, int | None]:
    """A29: whole units by the largest remainder; an unknown total has unknown parts."""
    if total is None:
        return dict.fromkeys(weights)
    everything = sum(weights.values())
    assert everything > 0
    exact = {share: total * weight / everything for share, weight in weights.items()}
    parts = {share: part.numerator // part.denominator for share, part in exact.items()}
    order = sorted(weights, key=lambda share: (parts[share] - exact[share], digest(share, period)))
    for share in order[: total - sum(parts.values())]:
        parts[share] += 1
    return dict(parts)


def parts_of(row: Row, cost: int | None, policy: Row | None, payers: dict[str, Fraction]) -> list[Row]:
    """A26: a row's units and cost, each split over its payers."""
    units = {name: split(whole(row[name], places), payers, row["hour"]) for name, places in PLACES.items()}
    amounts = split(cost, payers, row["hour"])
    return [
        {name: row[name] for name in ("cluster", "hour", "workload_id", "gpu_model")}
        | {"tenant_id": tenant, "usage_type": row["usage_type"], "deployment_id": row["deployment_id"]}
        | {name: published(units[name][tenant], places) for name, places in PLACES.items()}
        | {
            "amount": published(amounts[tenant], AMOUNT_PLACES),
            "currency": policy and policy["currency"],
            "policy_id": policy and policy["id"],
            "estimated": str(row["estimated"]).lower(),
        }
        for tenant in payers
    ]


def allocate_usage(usage: list[Row], hour: int, records: Records, tokens: list[Row]) -> list[Row]:
    """A23-A27: the hour's usage rows, priced and split; pods that belong to nobody are in the idle lines (A18)."""
    deployments = {row["deployment_id"]: row for row in records.deployments if in_force(row, hour)}
    found = []
    for row in usage:
        if row["basis"] == "storage" or (row["basis"] == "samples" and row["tenant_id"] is None):
            continue
        deployment_id = row["deployment_id"] or row["workload_id"]
        policy = policy_of(deployment_id, row["gpu_model"], hour, records.policies, records.models)
        if row["deployment_id"] in deployments:
            deployment = deployments[row["deployment_id"]]
            payers = payers_of_deployment(deployment, hour, policy, tokens, records.platform_tenant)
        else:
            payers = {row["tenant_id"]: Fraction(1)}
        # A15: what is estimated for less than a millisecond is flagged, too; the printed seconds do not tell.
        flagged = row.get("estimated") == "true" or Fraction(row["estimated_seconds"]) > 0
        flagged |= Fraction(row["missing_seconds"]) > 0
        line = row | {"usage_type": "gpu_local", "deployment_id": deployment_id}
        line["estimated"] = flagged or row["energy_wh"] is None
        found += parts_of(line, cost_of_usage(row, policy), policy, payers)
    return found


def allocate_storage(cluster: str, hour: int, records: Records, tokens: list[Row]) -> list[Row]:
    """A24-A27: the hour's storage rows."""
    deployments = {row["deployment_id"]: row for row in records.deployments if in_force(row, hour)}
    found = []
    for deployment_id, gb_hours in storage_held(hour, records.storage).items():
        policy = policy_of(deployment_id, None, hour, records.policies, records.models)
        payers = {records.platform_tenant: Fraction(1)}
        if deployment_id in deployments:
            deployment = deployments[deployment_id]
            payers = payers_of_deployment(deployment, hour, policy, tokens, records.platform_tenant)
        line = {
            "cluster": cluster,
            "hour": hour_text(hour),
            "workload_id": f"storage:{deployment_id}",
            "gpu_model": None,
            "usage_type": "gpu_local",
            "deployment_id": deployment_id,
            "estimated": False,
        } | dict.fromkeys(PLACES)
        found += parts_of(line, cost_of_storage(gb_hours, hour, policy), policy, payers)
    return found


def allocate_idle(idle: list[Row], hour: int, records: Records, local: list[Row]) -> list[Row]:
    """A27: the hour's idle lines, one a model, priced as the pseudo-deployment `idle`."""
    found = []
    for row in idle:
        policy = policy_of("idle", row["gpu_model"], hour, records.policies, records.models)
        line = row | {
            "workload_id": f"idle:{row['gpu_model']}",
            "usage_type": "gpu_idle",
            "deployment_id": "idle",
            "estimated": row["estimated"] == "true" or row["energy_wh"] is None,
        }
        payers = payers_of_idle(policy, local, records.platform_tenant)
        found += parts_of(line, cost_of_usage(row, policy), policy, payers)
    return found


def allocate(
    cluster: str, hours: list[int], usage: list[Row], idle: list[Row], records: Records, now: int
) -> tuple[list[Row], set[tuple[str, str, str]]]:
    """The rows of `allocation.csv` in the order of their key, and the token events set aside."""
    tokens, quarantine = tokens_that_count(records.tokens, now, records.deployments)
    found = []
    for hour in hours:
        of_hour = [row for row in usage if milliseconds(row["hour"]) == hour]
        local = allocate_usage(of_hour, hour, records, tokens)
        local += allocate_storage(cluster, hour, records, tokens)
        found += local
        found += allocate_idle([row for row in idle if milliseconds(row["hour"]) == hour], hour, records, local)
    return added(found), set(quarantine)


def key_of(row: Row) -> list[str]:
    """A31: the key of a row, in the order of the file's columns."""
    key = ("cluster", "hour", "workload_id", "gpu_model", "tenant_id", "usage_type", "deployment_id")
    return [row[name] or "" for name in key]


def added(rows: list[Row]) -> list[Row]:
    """A36: rows that end with one key are added; in the order of the key."""
    found: list[Row] = []
    for row in sorted(rows, key=key_of):
        if not found or key_of(found[-1]) != key_of(row):
            found.append(row)
            continue
        last = found.pop()
        sums = {name: sum_of([last, row], name) for name in PLACES}
        amounts = [whole(each["amount"], AMOUNT_PLACES) for each in (last, row)]
        known = [amount for amount in amounts if amount is not None]
        sums["amount"] = published(sum(known), AMOUNT_PLACES) if known else None
        either = "true" if "true" in {last["estimated"], row["estimated"]} else "false"
        found.append(last | sums | {"estimated": either})
    return found


def sum_of(rows: list[Row], name: str) -> str | None:
    """bundles.md: the sum of the rows that have the unit; null where none has it."""
    known = [units for row in rows if (units := whole(row[name], PLACES[name])) is not None]
    return published(sum(known), PLACES[name]) if known else None


def round_amounts(exact: dict[tuple[str, str], Fraction], currency: str, month: str) -> dict[tuple[str, str], int]:
    """A30: each item's amount in minor units; together they are the currency's rounded total."""
    scale = 10 ** MINOR_UNITS[currency]
    minor = {item: amount * scale for item, amount in exact.items()}
    cut = {item: amount.numerator // amount.denominator for item, amount in minor.items()}
    missing = round(sum(minor.values(), Fraction(0))) - sum(cut.values())
    order = sorted(minor, key=lambda item: (cut[item] - minor[item], digest("|".join(item), month)))
    for item in order[:missing]:
        cut[item] += 1
    return cut


def latest_policy(rows: list[Row]) -> str | None:
    """bundles.md: the policy of an item's latest priced hour, of several in it the highest id."""
    priced = [(row["hour"], row["policy_id"]) for row in rows if row["policy_id"] is not None]
    return max(priced)[1] if priced else None


def statement(allocation: list[Row], month: str) -> Row:
    """A30, bundles.md: a month's statement from its allocation rows; units are the text of their JSON numbers."""
    items: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in sorted(allocation, key=lambda row: [row["hour"], *key_of(row)]):
        if row["hour"][:7] == month:
            items[row["tenant_id"], row["deployment_id"], row["currency"] or ""].append(row)
    amounts: dict[tuple[str, str, str], str] = {}
    totals = {}
    for currency in sorted({item[2] for item in items}):
        total = None
        if currency:
            exact = {
                item[:2]: sum((Fraction(row["amount"]) for row in rows), Fraction(0))
                for item, rows in items.items()
                if item[2] == currency
            }
            rounded = round_amounts(exact, currency, month)
            for pair, units in rounded.items():
                amounts[*pair, currency] = f"{Decimal(units).scaleb(-MINOR_UNITS[currency]):f}"
            total = f"{Decimal(sum(rounded.values())).scaleb(-MINOR_UNITS[currency]):f}"
        of_currency = [row for item, rows in items.items() if item[2] == currency for row in rows]
        totals[currency] = {"currency": currency or None, "amount": total} | {
            name: sum_of(of_currency, name) for name in PLACES
        }
    return {
        "period": month,
        "status": "open",
        "items": [
            {"tenant_id": item[0], "deployment_id": item[1]}
            | {name: sum_of(rows, name) for name in PLACES}
            | {
                "allocated": {"amount": amounts.get(item), "currency": item[2] or None},
                "policy_id": latest_policy(rows),
                "estimated": any(row["estimated"] == "true" for row in rows),
            }
            for item, rows in sorted(items.items())
        ],
        "totals": list(totals.values()),
    }
