"""Proposed credits, as people and programs read them: `finops credits list`.

What belongs here: how they look. What does not: proposing and deciding (`accounting.money.credits`,
`resources.credits`), and arguments (`cli`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finops_pipeline.commands.show import json_row


def credits_json(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Proposals for a program; evidence as an object."""
    return [json_row(row) | {"evidence": json.loads(row["evidence"])} for row in rows]


def credits_text(rows: Sequence[Mapping[str, Any]], layout: str = "table") -> str:
    from finops_pipeline.commands.tables import written

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
    return written(
        layout,
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
