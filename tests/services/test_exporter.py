"""An exporter scraped each second by a real Prometheus that is killed for some seconds: the hole is seen and filled.

From the text of the exporter to the hour's usage, with nothing in between but what runs in production.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import DEFAULT_METRICS, AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.hour import account_hour, sample_hour
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.contracts.lake import DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS
from finops_pipeline.doctor import as_text, diagnose
from finops_pipeline.doctor.diagnosis import Level, Remark
from finops_pipeline.resources.prometheus.client import PrometheusDoor
from finops_pipeline.resources.series import window
from tests.services.exporter import HELD, IDLE, MODEL, NAMESPACE, NODE, POD, Exporter
from tests.services.prometheus_server import PrometheusServer, programs

CONFIG = AccountingConfig(platform_tenant="platform", window_seconds=1)
TENANT = "a0000000-0000-4000-8000-00000000000a"
SCRAPES, OUTAGE_SECONDS = 5, 2.0
"""A Prometheus that starts takes five seconds more to its first scrape."""
JITTER_MS = 2_500
"""2.5 scrape intervals of a second (A11)"""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Outage:
    """What Prometheus has after it was killed and started again."""

    series: pa.Table
    killed_ms: int
    back_ms: int
    begin: int
    """of the workload, ms: after the first reading"""
    end: int
    """before the last"""
    remarks: list[Remark]
    """of the doctor, asked while it ran"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for_scrapes(exporter: Exporter, count: int) -> None:
    wanted, deadline = exporter.scrapes + count, time.monotonic() + 40
    while exporter.scrapes < wanted:
        assert time.monotonic() < deadline, f"only {exporter.scrapes} of {wanted} scrapes came"
        time.sleep(0.1)


def instants(series: pa.Table, uuid: str) -> npt.NDArray[np.int64]:
    """Of the power of one device."""
    for row in series.to_pylist():
        if row["metric"] == "DCGM_FI_DEV_POWER_USAGE" and dict(row["labels"])["UUID"] == uuid:
            return np.array([round(at.timestamp() * 1000) for at in row["timestamps"]], dtype=np.int64)
    raise AssertionError(f"no series of {uuid}")


@pytest.fixture(scope="module", params=programs(), ids=lambda path: path.strip("/").replace("/", "-"))
def outage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outage:
    started = now_ms()
    folder = tmp_path_factory.mktemp("live")
    with Exporter() as exporter:
        server = PrometheusServer(folder / "data", request.param, exporter.config()).start()
        try:
            wait_for_scrapes(exporter, SCRAPES)
            server.kill()
            killed = now_ms()
            time.sleep(OUTAGE_SECONDS)
            server.start()
            back = now_ms()
            wait_for_scrapes(exporter, SCRAPES)
            time.sleep(0.3)
            door = PrometheusDoor("c1", server.url)
            series = door.series(started, now_ms(), list(DEFAULT_METRICS), may_be_gone=True)
            remarks = diagnose(
                {
                    "FINOPS_PROMETHEUS_URLS": f"c1={server.url}",
                    "FINOPS_PLATFORM_TENANT": TENANT,
                    "FINOPS_HOME": str(folder / "home"),
                    "FINOPS_WINDOW_SECONDS": "1",
                }
            )
        finally:
            server.stop()
    at = instants(series, HELD)
    return Outage(series, killed, back, int(at[0]) + 1, int(at[-1]) - 1, remarks)


def records(outage: Outage) -> dict[str, pa.Table]:
    """A workload that starts after the first reading and stops before the last."""
    events = [
        {
            "event_id": state,
            "occurred_at": at,
            "workload_id": "train",
            "tenant_id": TENANT,
            "namespace": NAMESPACE,
            "pod": POD,
            "from_state": "starting" if state == "running" else "running",
            "to_state": state,
            "gpu_count": Decimal(1),
            "placed_class": MODEL,
        }
        for at, state in ((outage.begin, "running"), (outage.end, "stopped"))
    ]
    return {
        "workload_events": pa.Table.from_pylist(events, schema=WORKLOAD_EVENTS),
        "deployments": DEPLOYMENTS.empty_table(),
        "gpu_inventory": GPU_INVENTORY.empty_table(),
    }


def accounted(outage: Outage) -> tuple[Rows, Rows]:
    """Windows and usage of the hour of the outage, or of two where the clock struck meanwhile."""
    hours = range(outage.begin // HOUR_MS * HOUR_MS, outage.end + 1, HOUR_MS)
    tables = {start: window(outage.series, start, start + HOUR_MS) for start in hours}
    summaries = {start: summarise(read_hour(table, start, CONFIG), CONFIG) for start, table in tables.items()}
    windows: Rows = []
    usage: Rows = []
    platform, later = records(outage), outage.end + HOUR_MS
    for start, table in tables.items():
        sampled = sample_hour("c1", start, table, summaries, platform, later, CONFIG)
        windows += sampled.samples.to_pylist()
        usage += account_hour("c1", start, sampled, platform, later, CONFIG).usage.to_pylist()
    return windows, usage


def start_of(row: dict[str, Any]) -> int:
    start: datetime = row["window_start"]
    return round(start.timestamp() * 1000)


def silent_windows(at: npt.NDArray[np.int64]) -> list[int]:
    """Whole seconds inside the distances that are too long for jitter."""
    return [
        start
        for before, after in zip(at[:-1].tolist(), at[1:].tolist(), strict=True)
        if after - before > JITTER_MS
        for start in range((before // 1000 + 1) * 1000, after // 1000 * 1000, 1000)
    ]


def test_the_hole_shows_in_the_raw_samples(outage: Outage) -> None:
    for uuid in (HELD, IDLE):
        at = instants(outage.series, uuid)
        longest = int(np.argmax(np.diff(at)))
        before, after = int(at[longest]), int(at[longest + 1])
        # Prometheus stamps a scrape when it begins it
        assert outage.killed_ms - JITTER_MS < before <= outage.killed_ms
        assert outage.killed_ms + OUTAGE_SECONDS * 1000 < after < outage.back_ms + 20_000
        assert len(at) >= 2 * SCRAPES - 2


def test_the_hole_is_filled_and_flagged(outage: Outage) -> None:
    windows, _ = accounted(outage)
    for uuid in (HELD, IDLE):
        at = instants(outage.series, uuid)
        rows = {start_of(row): row for row in windows if row["gpu_uuid"] == uuid}
        silent = silent_windows(at)
        inside = [start for start in rows if at[0] <= start + 999 and start < at[-1]]
        assert len(silent) >= OUTAGE_SECONDS
        assert sorted(start for start in inside if rows[start]["estimated"]) == silent
        for start in silent:
            row = rows[start]
            assert row["method"] == "counter+linear"
            assert row["power_w"] > 60
            assert row["memory_used_gb"] > 0
            assert row["utilization"] is not None
        assert {rows[start]["method"] for start in inside if start not in set(silent)} == {"measured"}
    held = [row for row in windows if row["tenant_id"] == TENANT]
    assert {(row["gpu_uuid"], row["node"]) for row in held} == {(HELD, NODE)}
    assert {(row["namespace"], row["pod"]) for row in held if not row["estimated"]} == {(NAMESPACE, POD)}
    assert all(row["utilization"] > 0 for row in held)


def test_the_hole_costs_neither_time_nor_energy(outage: Outage) -> None:
    _, usage = accounted(outage)
    rows = [row for row in usage if row["workload_id"] == "train"]
    silent = len(silent_windows(instants(outage.series, HELD)))
    assert sum(row["gpu_seconds"] for row in rows) == Decimal(outage.end - outage.begin) / 1000
    assert sum(row["estimated_seconds"] for row in rows) == silent
    assert sum(row["missing_seconds"] for row in rows) == 0
    # the counter's own difference: the two milliseconds at the edges are less than a reading's rounding
    counter = next(
        row["values"]
        for row in outage.series.to_pylist()
        if "ENERGY" in row["metric"] and dict(row["labels"])["UUID"] == HELD
    )
    energy = float(sum(row["energy_wh"] for row in rows)) * 3_600_000
    assert energy == pytest.approx(counter[-1] - counter[0], abs=2 * 600 + 2)


def test_the_doctor_sees_what_is_scraped(outage: Outage) -> None:
    told = {(remark.level, remark.subject): remark.seen for remark in outage.remarks if remark.where == "cluster c1"}
    text = as_text(outage.remarks)
    assert told[Level.OK, "scrape interval"].startswith("1 s (2 devices)"), text
    assert told[Level.OK, "honorLabels"] == "false: the workload is in exported_pod, and pod is the exporter"
    assert told[Level.OK, "exporter's pod"].startswith("nvidia-dcgm-exporter-9tq4x labels devices without")
    assert told[Level.OK, "clock"] == "it agrees with ours"
    assert told[Level.WARN, "holes"].startswith("2 devices silent for up to")
    assert told[Level.WARN, "retention"].startswith("it has samples since")
    assert MODEL in told[Level.WARN, "card_limits"]
    assert not [remark for remark in outage.remarks if remark.level == Level.FAIL], text
