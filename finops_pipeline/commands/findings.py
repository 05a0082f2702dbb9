"""What a person should look at, as people and programs ask for it: `finops findings`.

What belongs here: the question to Postgres, and how the answer looks. What does not: finding
(`accounting.findings`), and arguments (`cli`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from finops_pipeline.accounting.findings.kinds import Kind
from finops_pipeline.commands.show import json_row
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.postgres.client import Database

SHOWN = 200
"""Rows that a person gets to see; `--json` has all."""


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
    return [json_row(row) for row in rows.to_pylist()]


def findings_text(rows: Sequence[Mapping[str, Any]], layout: str = "table") -> str:
    """How many of each kind, then the rows."""
    from finops_pipeline.commands.tables import written

    if not rows:
        return "nothing was found\n"
    counts = Counter(row["kind"] for row in rows)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) + "\n\n"
    shown = [(r["hour"][:16] + "Z", r["kind"], r["subject"], r["seconds"], r["detail"]) for r in rows[:SHOWN]]
    text += written(layout, ("hour", "kind", "subject", "seconds", "what was seen"), shown)
    if len(rows) > SHOWN:
        text += f"{len(rows) - SHOWN} more: narrow it with --from, --to and --kind, or use --json\n"
    return text
