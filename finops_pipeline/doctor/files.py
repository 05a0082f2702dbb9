"""A bundle: its files, the series of its last hour and the platform's records in it.

What belongs here: opening it for the doctor. What does not: judging series and records, which is done as for live ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from finops_pipeline.accounting.arrays import Ints, ints, texts, whole
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS, hour_text, ms_of
from finops_pipeline.doctor.database import record_remarks
from finops_pipeline.doctor.diagnosis import Level, Remark, diagnose_series
from finops_pipeline.doctor.report import guarded
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.health import Platform
from finops_pipeline.resources.series import window
from finops_pipeline.settings import accounting_tables


def bundle_remarks(folder: Path, now: int, *, priced: bool) -> Iterable[Remark]:
    bundle = Bundle.open(folder)
    start, end = (ms_of(instant) for instant in (bundle.start, bundle.end))
    yield Remark(Level.OK, "bundle.toml", f"cluster {bundle.cluster}, {hour_text(start)} to {hour_text(end)}")
    if bundle.platform_tenant is None:
        yield Remark(Level.WARN, "platform tenant", "the bundle names none", "platform_tenant in bundle.toml")
    config = AccountingConfig(
        platform_tenant=bundle.platform_tenant or "",
        window_seconds=bundle.window_seconds,
        **accounting_tables(bundle.tables, str(folder)),
    )
    models: set[str] = set()
    yield from guarded("bundle", "series", lambda: _bundle_series(bundle.series(), start, end, config, models))
    yield from guarded("bundle", "records", lambda: _bundle_records(bundle, models, now, priced=priced))


def _bundle_series(
    series: pa.Table, start: int, end: int, config: AccountingConfig, models: set[str]
) -> Iterable[Remark]:
    """The last hour of the bundle's own that has samples."""
    at = ints(whole(series["timestamps"]).flatten())
    at = at[(at >= start) & (at < end)]
    if not len(at):
        yield Remark(
            Level.WARN, "series", "no sample in its hours: only events are accounted", "dcgm.om, or dcgm.parquet"
        )
        return
    hour = int(np.max(at)) // HOUR_MS * HOUR_MS
    found = window(series, hour, hour + HOUR_MS)
    diagnosis = diagnose_series(
        found, hour, min(hour + HOUR_MS, int(np.max(at)) + 1), sorted(set(texts(found["metric"]).tolist())), config
    )
    models |= diagnosis.models
    yield Remark(Level.OK, "series", f"{len(at)} samples in its hours; looked at {hour_text(hour)}")
    for remark in diagnosis.remarks:
        yield replace(remark, remedy=remark.remedy.replace("FINOPS_CONFIG", "bundle.toml"))


def _bundle_records(bundle: Bundle, models: set[str], now: int, *, priced: bool) -> Iterable[Remark]:
    records = bundle.platform()
    clock = ms_of(bundle.now) if bundle.now else now
    instants = {name: np.sort(ints(records[name]["occurred_at"])) for name in ("workload_events", "token_usage")}
    limit = clock + 300_000
    past = {name: at[at <= limit] for name, at in instants.items()}
    modes = records["deployments"]["mode"].to_pylist()
    policies = records["allocation_policies"].select(
        ["id", "deployment_pattern", "gpu_model", "status", "effective_from", "effective_to"]
    )
    yield from record_remarks(
        Platform(
            policies=policies.to_pylist(),
            deployments=len(modes),
            shared=modes.count("shared"),
            last_event=_last(past["workload_events"]),
            future_events=int((instants["workload_events"] > limit).sum()),
            event_clusters=frozenset(),
            last_tokens=_last(past["token_usage"]),
        ),
        models,
        bundle.start,
        bundle.end,
        [bundle.cluster],
        priced=priced,
    )


def _last(at: Ints) -> datetime | None:
    return datetime.fromtimestamp(int(at[-1]) / 1000, UTC) if len(at) else None
