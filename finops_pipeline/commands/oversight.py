"""Findings, credits, usage, quotas and fair shares, as people and programs ask for them.

What belongs here: questions to Postgres, small changes with their audit entry, and how the answers look. What does
not: finding, proposing and deciding (`accounting`, `assets`), and arguments (`cli`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.findings.kinds import Kind
from finops_pipeline.accounting.money.fair_share import FairShare, FairShareError, Node, decayed, fair_shares
from finops_pipeline.accounting.money.quotas import against_quotas, gpu_hours
from finops_pipeline.commands.show import table_text
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.client import Database

SHOWN = 200
"""Rows that a person gets to see; `--json` has all."""
DECAY_HALF_LIVES = 12
"""Older usage counts for less than a quarter of a thousandth and is not read."""


def findings(
    database: Database, first: datetime | None, past: datetime | None, kind: str | None
) -> list[dict[str, Any]]:
    """Findings of the hours of `[first, past)`; by default those of the last 24 hours before `past` that there are.

    UsageError for a kind that does not exist.
    """
    if kind is not None and kind not in {known.code for known in Kind}:
        raise UsageError(f"--kind {kind}: use one of {', '.join(known.code for known in Kind)}")
    if first is None:
        found = database.query(
            "SELECT max(hour) AS last FROM eai.hour_runs WHERE hour < coalesce(%s::timestamptz, 'infinity')", (past,)
        )
        last = found["last"][0].as_py()
        if last is None:
            return []
        first = last - timedelta(hours=23)
    rows = database.query(
        "SELECT cluster, hour, kind, subject, workload_id, CASE WHEN attributed THEN tenant_id::text END AS tenant_id,"
        " first_at, last_at, seconds, detail FROM eai.findings"
        " WHERE hour >= %s AND hour < coalesce(%s::timestamptz, 'infinity') AND kind = coalesce(%s, kind)"
        " ORDER BY hour, cluster, kind, subject, first_at",
        (first, past, kind),
    )
    return [plain(row) for row in rows.to_pylist()]


def findings_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of each kind, then the rows."""
    if not rows:
        return "nothing was found\n"
    counts = Counter(row["kind"] for row in rows)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) + "\n\n"
    shown = [(r["hour"][:16] + "Z", r["kind"], r["subject"], r["seconds"], r["detail"]) for r in rows[:SHOWN]]
    text += table_text(("hour", "kind", "subject", "seconds", "what was seen"), shown)
    if len(rows) > SHOWN:
        text += f"{len(rows) - SHOWN} more: narrow it with --from, --to and --kind, or use --json\n"
    return text


def credits_json(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Proposals for a program; evidence as an object."""
    return [plain(row) | {"evidence": json.loads(row["evidence"])} for row in rows]


def credits_text(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no credit is proposed\n"
    columns = (
        "id",
        "status",
        "reason",
        "workload",
        "from",
        "to",
        "GPU-seconds",
        "amount",
        "",
        "given back",
        "decided by",
    )
    return table_text(
        columns,
        [
            (
                row["id"],
                row["status"],
                row["reason"],
                row["workload_id"],
                f"{row['window_from']:%Y-%m-%dT%H:%M:%SZ}",
                f"{row['window_to']:%Y-%m-%dT%H:%M:%SZ}",
                row["gpu_seconds"],
                row["amount"],
                row["currency"],
                row["given_back"] if row["status"] == "approved" else None,
                row["decided_by"],
            )
            for row in rows
        ],
    )


def usage(
    database: Database, by: str, tenant: str | None, first: date | None, past: date | None
) -> list[dict[str, Any]]:
    """Each tenant's GPU-hours by day or month and class, against its quotas; all days by default."""
    used = database.query(
        "SELECT tenant_id::text, CASE WHEN %(by)s = 'day' THEN day::text ELSE month END AS period, placed_class,"
        " sum(gpu_seconds) AS gpu_seconds FROM eai.tenant_usage"
        " WHERE tenant_id = coalesce(%(tenant)s::uuid, tenant_id) AND day >= coalesce(%(first)s::date, '-infinity')"
        " AND day < coalesce(%(past)s::date, 'infinity') GROUP BY 1, 2, 3",
        {"by": by, "tenant": tenant, "first": first, "past": past},
    )
    return against_quotas(used.to_pylist(), quotas(database), by)


def usage_text(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no usage is computed yet: finops run, or finops backfill --from HOUR\n"
    return table_text(
        ("tenant", "period", "class", "GPU-hours", "quota", "used"),
        [
            (
                row["tenant_id"],
                row["period"],
                row["placed_class"] or "all together",
                row["gpu_hours"],
                None if row["quota_gpu_hours"] is None else row["quota_gpu_hours"].normalize(),
                None if row["quota_used"] is None else f"{row['quota_used']:.1%}",
            )
            for row in rows
        ],
    )


def quotas(database: Database) -> list[dict[str, Any]]:
    """All quotas, by tenant, class and period."""
    found = database.query(
        "SELECT tenant_id::text, placed_class, period, gpu_hours FROM eai.quotas"
        ' ORDER BY tenant_id, placed_class COLLATE "C" NULLS FIRST, period'
    )
    return list(found.to_pylist())


def set_quota(database: Database, tenant: str, placed_class: str | None, period: str, hours: Decimal | None) -> None:
    """Set a quota, or with None take it away; the audit log keeps it."""
    if hours is not None and (not hours.is_finite() or hours < 0 or hours != round(hours, 9)):
        raise UsageError(f"{hours}: a quota is a number of GPU-hours that is not negative, with at most 9 decimals")
    with database.transaction() as connection:
        connection.execute(
            "DELETE FROM eai.quotas WHERE tenant_id = %s AND placed_class IS NOT DISTINCT FROM %s AND period = %s",
            (tenant, placed_class, period),
        )
        if hours is not None:
            connection.execute(
                "INSERT INTO eai.quotas (tenant_id, placed_class, period, gpu_hours) VALUES (%s, %s, %s, %s)",
                (tenant, placed_class, period, hours),
            )
        payload = {"tenant_id": tenant, "placed_class": placed_class, "period": period}
        payload["gpu_hours"] = None if hours is None else f"{hours:f}"
        database.append_audit(connection, "quota.set", payload, datetime.now(UTC))


def quotas_text(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "no tenant has a quota: finops quotas set TENANT GPU-HOURS\n"
    return table_text(
        ("tenant", "class", "period", "GPU-hours"),
        [
            (row["tenant_id"], row["placed_class"] or "all together", row["period"], row["gpu_hours"].normalize())
            for row in rows
        ],
    )


def set_share(database: Database, node: str, parent: str | None, shares: Decimal) -> None:
    """Give an account or tenant shares among its siblings; the audit log keeps it. UsageError for a tree that is none."""
    if not shares.is_finite() or shares < 0:
        raise UsageError(f"{shares}: shares are a number that is not negative")
    if parent == node:
        raise UsageError(f"{node} cannot belong to itself")
    with database.transaction() as connection:
        connection.execute(
            "INSERT INTO eai.fair_shares (node, parent, shares) VALUES (%s, %s, %s)"
            " ON CONFLICT (node) DO UPDATE SET parent = excluded.parent, shares = excluded.shares",
            (node, parent, shares),
        )
        rows = connection.execute("SELECT node, parent, shares FROM eai.fair_shares").fetchall()
        try:
            fair_shares([Node(name, above, float(part)) for name, above, part in rows], {})
        except FairShareError as error:
            raise UsageError(f"fair shares: {error}") from None
        payload = {"node": node, "parent": parent, "shares": f"{shares:f}"}
        database.append_audit(connection, "share.set", payload, datetime.now(UTC))


def fairshare(database: Database, now: datetime, half_life_days: float) -> list[FairShare]:
    """Every account and tenant with what it used, weighted by age: an hour's age is since its end."""
    used = database.query(
        "SELECT tenant_id::text AS tenant_id, hour, sum(gpu_seconds) AS gpu_seconds FROM eai.tenant_hours"
        " WHERE hour >= %s AND hour < %s GROUP BY 1, 2",
        (now - timedelta(days=half_life_days * DECAY_HALF_LIVES), now),
    )
    raw: dict[str, float] = Counter()  # type: ignore[assignment]
    for row in used.to_pylist():
        age = (now - row["hour"] - timedelta(hours=1)).total_seconds()
        raw[row["tenant_id"]] += decayed(float(row["gpu_seconds"]), age, half_life_days)
    nodes = database.query("SELECT node, parent, shares FROM eai.fair_shares").to_pylist()
    tree = [Node(row["node"], row["parent"], float(row["shares"])) for row in nodes]
    try:
        return fair_shares(tree, raw)
    except FairShareError as error:
        raise UsageError(f"fair shares: {error}") from None


def fairshare_json(rows: Sequence[FairShare]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def fairshare_text(rows: Sequence[FairShare]) -> str:
    if not rows:
        return "nobody has used anything, and nobody has shares\n"
    return table_text(
        ("account or tenant", "shares", "norm shares", "raw GPU-hours", "norm usage", "effective usage", "fair share"),
        [
            (
                f"{'  ' * (row.parent is not None)}{row.name}",
                f"{row.shares:g}",
                f"{row.norm_shares:.6f}",
                gpu_hours(Decimal(f"{row.raw_usage:.3f}")),
                f"{row.norm_usage:.6f}",
                f"{row.effective_usage:.6f}",
                f"{row.factor:.6f}",
            )
            for row in rows
        ],
    )


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Instants in RFC 3339, numbers that are exact as text."""
    return {
        name: f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
        if isinstance(value, datetime)
        else f"{value:f}"
        if isinstance(value, Decimal)
        else value
        for name, value in row.items()
    }
