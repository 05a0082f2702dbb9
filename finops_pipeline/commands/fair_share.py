"""Who used less than its share, and who more, as people ask for it: `finops fairshare`.

What belongs here: the question to Postgres, the small change with its audit entry, and how the answer looks. What
does not: the algorithm (`accounting.money.fair_share`), and arguments (`cli`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from finops_pipeline.accounting.exact import plain
from finops_pipeline.accounting.money.fair_share import FairShare, FairShareError, Node, decayed, fair_shares
from finops_pipeline.accounting.money.quotas import gpu_hours
from finops_pipeline.commands.show import table_text
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.client import Database

DECAY_HALF_LIVES = 12
"""Older usage counts for less than a quarter of a thousandth and is not read."""


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
        payload = {"node": node, "parent": parent, "shares": plain(shares)}
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
