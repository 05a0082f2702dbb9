"""Held but idle GPUs, reported to people: once per workload and UTC day.

What belongs here: what is reported, and the sensor that does it. What does not: delivering (`resources.webhook`).
A notification and the note that it was sent are one transaction: what was not taken is posted at the next tick. A
receiver that took it and failed to say so gets it again, with the same id.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import dagster as dg

from finops_pipeline.accounting.findings.kinds import Kind
from finops_pipeline.accounting.money.quotas import gpu_hours
from finops_pipeline.errors import FinopsError, SourceError
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.postgres.database import open_database
from finops_pipeline.resources.source import now_of
from finops_pipeline.resources.webhook import Webhook
from finops_pipeline.settings import environment, load_settings

NAMESPACE = uuid.UUID("0d3a3b53-6d3e-4c25-8f0a-4a8b5c1f2c11")
KIND = Kind.HELD_BUT_IDLE.code
FRESH = timedelta(days=2)
"""Older hours, which a backfill computes, are not reported."""
BUDGET_SECONDS = 40.0
"""Dagster gives a sensor a minute."""


@dataclass(frozen=True)
class Posted:
    """What came of one round."""

    sent: int
    waiting: int
    """for the next round"""
    problem: str | None
    """the last failure, for a person"""


def post_new(database: Database, webhook: Webhook, now: datetime) -> Posted:
    """Post what was not posted yet; a receiver that is down ends the round, one that refuses a document does not."""
    pending = _pending(database, now)
    sent, problem = 0, None
    until = time.monotonic() + BUDGET_SECONDS
    for notice in pending:
        if time.monotonic() > until:
            break
        try:
            sent += _post(database, webhook, notice)
        except SourceError as error:
            problem = str(error)
            if error.transient:
                break
    return Posted(sent, len(pending) - sent, problem)


def _post(database: Database, webhook: Webhook, notice: dict[str, Any]) -> bool:
    """Whether this call posted it; another process may just have done so."""
    with database.transaction() as connection:
        noted = connection.execute(
            "INSERT INTO eai.notifications (id, kind, cluster, workload_id, day) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING id",
            tuple(notice[name] for name in ("id", "kind", "cluster", "workload_id", "day")),
        ).fetchone()
        if noted is not None:
            webhook.post(notice, notice["id"])
    return noted is not None


def _pending(database: Database, now: datetime) -> list[dict[str, Any]]:
    found = database.query(
        "SELECT f.cluster, f.workload_id, (f.hour AT TIME ZONE 'UTC')::date AS day,"
        " min(f.tenant_id::text) FILTER (WHERE f.attributed) AS tenant_id, sum(f.seconds) AS seconds,"
        " array_agg(DISTINCT f.subject ORDER BY f.subject) AS devices"
        " FROM eai.findings f WHERE f.kind = %s AND f.hour >= %s AND f.workload_id IS NOT NULL AND NOT EXISTS ("
        "   SELECT FROM eai.notifications n WHERE n.kind = f.kind AND n.cluster = f.cluster"
        "   AND n.workload_id = f.workload_id AND n.day = (f.hour AT TIME ZONE 'UTC')::date)"
        " GROUP BY 1, 2, 3 ORDER BY 3, 1, 2",
        (KIND, now - FRESH),
    )
    return [_notice(row) for row in found.to_pylist()]


def _notice(row: dict[str, Any]) -> dict[str, Any]:
    day = f"{row['day']:%Y-%m-%d}"
    name = json.dumps([KIND, row["cluster"], row["workload_id"], day], separators=(",", ":"))
    devices: list[str] = row["devices"]
    hours = gpu_hours(Decimal(row["seconds"]))
    return {
        "id": str(uuid.uuid5(NAMESPACE, name)),
        "kind": KIND,
        "cluster": row["cluster"],
        "workload_id": row["workload_id"],
        "tenant_id": row["tenant_id"],
        "day": day,
        "devices": devices,
        "seconds": float(row["seconds"]),
        "text": f"{row['workload_id']} on {row['cluster']} holds {len(devices)} GPU{'s' * (len(devices) != 1)} "
        f"without using {'them' if len(devices) != 1 else 'it'}: {hours} idle GPU-hours on {day} so far",
    }


@dg.sensor(
    name="held_but_idle",
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports to a webhook the workloads that hold GPUs without using them, once per workload and UTC day.",
)
def held_but_idle_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Never starts a run, and no failure of the receiver or of this sensor fails one."""
    settings = load_settings(environment())
    if settings.webhook_url is None:
        return dg.SkipReason("FINOPS_WEBHOOK_URL is not set: nothing is reported")
    try:
        with open_database(settings) as database:
            posted = post_new(database, Webhook(settings.webhook_url), now_of(settings))
    except FinopsError as error:
        context.log.warning(str(error))
        return dg.SkipReason(f"nothing was reported: {error}")
    if posted.problem is not None:
        context.log.warning(posted.problem)
    return dg.SkipReason(
        f"{posted.sent} idle workloads reported"
        + (f", {posted.waiting} wait: {posted.problem}" if posted.waiting else "")
    )
