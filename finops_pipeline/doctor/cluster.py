"""A cluster's Prometheus: connection, clock, retention, and the DCGM series of the last minutes.

What belongs here: asking through the door and judging the server. What does not: judging series
(`doctor.diagnosis`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from finops_pipeline.accounting.arrays import texts
from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.doctor.diagnosis import Level, Remark, diagnose_series, likely_quantity
from finops_pipeline.doctor.report import clock_remark, guarded, utc_text
from finops_pipeline.resources.prometheus.client import Health, PrometheusDoor
from finops_pipeline.resources.site import prometheus_door
from finops_pipeline.settings import Settings

SPAN_MS: Final = 15 * 60_000
"""How much of the present is looked at."""
DAY_MS: Final = 24 * HOUR_MS
METRICS_LIKE: Final = "(?i).*dcgm.*"
ATTEMPTS, TIMEOUT_SECONDS = 2, 30.0
KEPT_AT_LEAST: Final = timedelta(hours=48)
"""An hour needs the 24 hours around it (A12), and a backfill after a weekend more."""


def cluster_remarks(
    settings: Settings, cluster: str, config: AccountingConfig, now: int, models: set[str]
) -> list[Remark]:
    """Everything about one cluster's Prometheus; nothing more where it cannot be reached."""
    where = f"cluster {cluster}"
    reached: list[PrometheusDoor] = []

    def reach() -> Iterable[Remark]:
        door = prometheus_door(settings, cluster)
        door = replace(door, attempts=ATTEMPTS, patience=0.0, timeout=min(door.timeout, TIMEOUT_SECONDS))
        health = door.ping()
        reached.append(door)
        yield from _server_remarks(settings, door, health, now)

    remarks = guarded(where, "connection", reach)
    for door in reached:
        remarks += guarded(where, "metrics", lambda: _series(door, config, now, models))  # noqa: B023
    return remarks


def _server_remarks(settings: Settings, door: PrometheusDoor, health: Health, now: int) -> Iterable[Remark]:
    yield Remark(
        Level.OK,
        "connection",
        f"{door.url} answers, version {health.version or 'unknown'}, {_authentication(settings)}",
    )
    parts = urlsplit(door.url)
    secret = settings.prometheus_token or settings.prometheus_token_file or settings.prometheus_user
    if secret and parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        yield Remark(
            Level.WARN, "connection", "the secret travels unencrypted", "an https address in FINOPS_PROMETHEUS_URLS"
        )
    if health.version.startswith("0.") and not settings.prometheus_thanos:
        yield Remark(
            Level.WARN,
            "Thanos",
            f"version {health.version} looks like Thanos: it may answer with downsampled, doubled or partial data",
            "FINOPS_PROMETHEUS_THANOS=true",
        )
    yield clock_remark(health.clock_skew_seconds)
    yield _retention(health, now)


def _authentication(settings: Settings) -> str:
    if settings.prometheus_token_file or settings.prometheus_token:
        return "and accepts the bearer token"
    return f"and accepts the user {settings.prometheus_user}" if settings.prometheus_user else "without a login"


def _retention(health: Health, now: int) -> Remark:
    kept = f" (its retention is {health.retention})" if health.retention else ""
    if health.oldest_ms is None:
        return Remark(Level.OK, "retention", f"it does not report its oldest sample{kept}")
    since = f"it has samples since {utc_text(health.oldest_ms)}{kept}"
    if now - health.oldest_ms < KEPT_AT_LEAST / timedelta(milliseconds=1):
        return Remark(
            Level.WARN,
            "retention",
            f"{since}: earlier hours cannot be computed from it",
            "if it is not just young, raise --storage.tsdb.retention.time to two days or more",
        )
    return Remark(Level.OK, "retention", since)


def _series(door: PrometheusDoor, config: AccountingConfig, now: int, models: set[str]) -> Iterable[Remark]:
    start = now - SPAN_MS
    present = door.names(METRICS_LIKE, start, now)
    others = [name for name in config.metrics if "dcgm" not in name.lower()]
    series = door.series(start, now, [*_pullable(present, config), *others], may_be_gone=True)
    found = diagnose_series(series, start, now, sorted({*present, *texts(series["metric"]).tolist()}), config)
    models |= found.models
    yield from found.remarks
    if not found.models:
        earlier = door.names(METRICS_LIKE, now - DAY_MS, now)
        if earlier:
            yield Remark(
                Level.FAIL,
                "silence",
                f"there were DCGM metrics within a day ({', '.join(earlier[:3])}) and there are none now",
                "the exporter or its scrape job is down: look at the /targets page of this Prometheus",
            )


def _pullable(names: Iterable[str], config: AccountingConfig) -> list[str]:
    """Metrics worth their samples: configured ones, and those that look as if they should be."""
    return [name for name in names if name in config.metrics or likely_quantity(name)]
