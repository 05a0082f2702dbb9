"""`finops policies add` and `end`: what a new policy or an end would change, before it does (A22).

A policy that reaches into hours that are computed prices them anew, a final month's too. It is refused unless somebody says
so, with a reason that the audit log keeps. What belongs here: that judgement, and what it would cost. What does not: what a
policy is (`contracts.policy`), how it is stored (`resources.postgres`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from finops_pipeline.accounting.exact import hour_text, instant_of, ms_of, plain, rows_of
from finops_pipeline.accounting.money.allocation import PaidHour, allocate
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.commands.explain import Sources
from finops_pipeline.contracts import lake
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import policy_documents
from finops_pipeline.resources.postgres.copy import Connection
from finops_pipeline.resources.postgres.published import final_months

DAY = 24

Sums = dict[tuple[str, str | None], Decimal]
"""Amounts by tenant and currency."""


def add(sources: Sources, file: Path, *, retroactive: bool, reason: str | None, dry_run: bool) -> dict[str, Any]:
    """Add a file's policies, all or none; `reason` is for those that reach into computed hours. With `dry_run` none is.

    UsageError for one that does without being `retroactive`.
    """
    if retroactive and not dry_run and not (reason and reason.strip()):
        raise UsageError('--retroactive needs a reason, which the audit log keeps: --reason "..."')
    documents, database = policy_documents(file), sources.database
    with database.transaction(snapshot=dry_run) as connection:
        if not dry_run:
            database.policies_lock(connection)
        now = instant_of(sources.now_ms)
        ids, new = database.new_policies(connection, documents, str(file), sources.config.models, now)
        reached = list(_reached(connection, new))
        result = {"added": len(new), "given": len(ids), "policies": [{"id": name, "status": "active"} for name in ids]}
        if dry_run:
            return result | _consequences(sources, connection, reached, new)
        if reached and not retroactive:
            raise UsageError(
                f"{file}: policy {new[0]['id']} reaches into {len(reached)} computed hours, from"
                f" {hour_text(min(hour for _, hour in reached))}: give a later effective_from, or see with --dry-run what it"
                ' changes and add it with --retroactive --reason "..."'
            )
        database.store_policies(connection, new, reason if reached else None)
    return result


def summary(result: Mapping[str, Any]) -> str:
    """What `add` found, for a person."""
    lines = [f"{result['added']} of {result['given']} policies are new"]
    if "hours" in result:
        lines[0] = f"{result['added']} of {result['given']} policies would be new; nothing was written"
        lines.append(f"computed hours that they reach: {result['hours']}")
        lines.append(f"final months among them: {', '.join(result['final_months']) or 'none'}")
        lines += [
            f"tenant {d['tenant_id']}: {d['difference']} {d['currency'] or '(unpriced rows)'}"
            for d in result["differences"]
        ]
    return "\n".join(lines) + "\n"


def _reached(connection: Connection, policies: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Clusters and computed hours in which a policy would be in force."""
    spans = [(policy["effective_from"], policy["effective_to"]) for policy in policies]
    found: set[tuple[str, datetime]] = set()
    for begin, end in spans:
        found.update(
            connection.execute(
                "SELECT cluster, hour FROM eai.hour_runs WHERE hour >= %s AND hour < coalesce(%s::timestamptz, 'infinity')",
                (begin, end),
            ).fetchall()
        )
    yield from sorted((cluster, ms_of(hour)) for cluster, hour in found)


def _consequences(
    sources: Sources, connection: Connection, reached: Sequence[tuple[str, int]], new: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Hours, final months, and the difference in money by tenant and currency, from the inputs that the lake kept."""
    stored = sources.database.read_policies(connection)
    policies = pa.concat_tables([stored, pa.Table.from_pylist(list(new), lake.ALLOCATION_POLICIES)])
    book = PolicyBook.parse(policies if sources.config.priced else policies.slice(0, 0), sources.config.models)
    differences: Sums = defaultdict(Decimal)
    by_cluster: dict[str, list[int]] = defaultdict(list)
    for cluster, hour in reached:
        by_cluster[cluster].append(hour)
    for cluster, hours in by_cluster.items():
        for first in range(0, len(hours), DAY):
            some = hours[first : first + DAY]
            anew = allocate(
                cluster,
                [_paid(sources, cluster, hour, book) for hour in some],
                platform_tenant=sources.config.platform_tenant,
            )
            _add(differences, anew, 1)
            for hour in some:
                _add(differences, sources.lake.require("gpu_cost_allocation", cluster, hour), -1)
    months = {hour_text(hour)[:7] for _, hour in reached}
    return {
        "hours": len(reached),
        "final_months": sorted(months & final_months(sources.database, connection)),
        "differences": [
            {"tenant_id": tenant, "currency": currency, "difference": plain(amount)}
            for (tenant, currency), amount in sorted(differences.items(), key=str)
            if amount
        ],
    }


def _paid(sources: Sources, cluster: str, hour: int, book: PolicyBook) -> PaidHour:
    names = ("usage", "idle", "storage", "tokens", "deployments")
    tables = ("gpu_usage", "gpu_idle", "deployment_storage", "token_usage", "deployments")
    read = {name: sources.lake.require(table, cluster, hour) for name, table in zip(names, tables, strict=True)}
    return PaidHour(hour, **read, book=book)


def _add(sums: Sums, allocation: pa.Table, sign: int) -> None:
    groups = allocation.group_by(["tenant_id", "currency"]).aggregate([("amount", "sum")])
    for tenant, currency, amount in rows_of(groups, "tenant_id", "currency", "amount_sum"):
        sums[tenant, currency] += sign * (amount or 0)
