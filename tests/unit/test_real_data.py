"""A real recording (tests/data/gpu_nvml_8gpu): eight GPUs, uneven readings, and three holes that nobody planned.

The figures to reach are those that came with the recording: the time that it covers and its energy there, per GPU and hour.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.hour import HourSamples, account_hour, sample_hour
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.contracts.lake import DCGM_SERIES, DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS
from finops_pipeline.resources.series import SeriesBuilder, window

CONFIG = AccountingConfig(platform_tenant="platform")
TENANT = "a0000000-0000-4000-8000-00000000000a"
GPUS = range(8)
HOLES = [752, 131, 144]
"""seconds"""
HOLE_MS = 60_000
METRICS = {"util_pct": "DCGM_FI_DEV_GPU_UTIL", "power_w": "DCGM_FI_DEV_POWER_USAGE"}
Rows = list[dict[str, Any]]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08}-0000-4000-8000-{gpu:012}"


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "tests" / "data" / "gpu_nvml_8gpu"


@pytest.fixture(scope="module")
def recording(folder: Path) -> pa.Table:
    return pq.read_table(folder / "nvml_8gpu.parquet")


@pytest.fixture(scope="module")
def series(recording: pa.Table) -> pa.Table:
    """The recording as a DCGM exporter would have told it."""
    builder = SeriesBuilder()
    gpu = np.asarray(recording["gpu_index"]).astype(np.int64)
    at = np.asarray(recording["timestamp"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()))
    for column, metric in METRICS.items():
        ids = [
            builder.series(metric, {"UUID": uuid(index), "gpu": str(index), "modelName": "H100", "Hostname": "node-1"})
            for index in GPUS
        ]
        builder.add(np.array(ids, dtype=np.int64)[gpu], at, np.asarray(recording[column]).astype(np.float64))
    return builder.table()


@pytest.fixture(scope="module")
def instants(series: pa.Table) -> npt.NDArray[np.int64]:
    """Of the first GPU; all were read together."""
    return np.asarray(series["timestamps"][0].values.cast(pa.int64()))


@pytest.fixture(scope="module")
def stretches(instants: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and last reading of each of the four recordings."""
    breaks = np.flatnonzero(np.diff(instants) > HOLE_MS)
    first, last = np.append(0, breaks + 1), np.append(breaks, len(instants) - 1)
    return list(zip(instants[first].tolist(), instants[last].tolist(), strict=True))


def hours_of(series: pa.Table) -> dict[int, pa.Table]:
    column: Any = series["timestamps"].combine_chunks()
    at = np.asarray(column.flatten().cast(pa.int64()))
    starts = range(int(at.min()) // HOUR_MS * HOUR_MS, int(at.max()) + 1, HOUR_MS)
    return {start: window(series, start, start + HOUR_MS) for start in starts}


def records(*running: tuple[int, int]) -> dict[str, pa.Table]:
    """A workload that holds all eight GPUs in each of these spans."""
    events = []
    for begin, end in running:
        for at, state in ((begin, "running"), (end, "stopped")):
            events.append(
                {
                    "event_id": f"{at}-{state}",
                    "occurred_at": at,
                    "workload_id": "train",
                    "tenant_id": TENANT,
                    "from_state": "running" if state == "stopped" else "starting",
                    "to_state": state,
                    "gpu_count": Decimal(len(GPUS)),
                    "placed_class": "H100",
                    "gpu_uuids": [uuid(index) for index in GPUS],
                }
            )
    return {
        "workload_events": pa.Table.from_pylist(events, schema=WORKLOAD_EVENTS),
        "deployments": DEPLOYMENTS.empty_table(),
        "gpu_inventory": GPU_INVENTORY.empty_table(),
    }


def sampled(series: pa.Table, platform: dict[str, pa.Table]) -> Iterator[tuple[int, HourSamples]]:
    hours = hours_of(series)
    summaries = {start: summarise(read_hour(table, start, CONFIG), CONFIG) for start, table in hours.items()}
    now = max(hours) + 2 * HOUR_MS
    for start, table in hours.items():
        yield start, sample_hour("c1", start, table, summaries, platform, now, CONFIG)


def accounted(series: pa.Table, platform: dict[str, pa.Table]) -> tuple[Rows, Rows, Rows]:
    """Usage rows, nobody's rows and windows of both hours."""
    usage: Rows = []
    idle: Rows = []
    windows: Rows = []
    for start, samples in sampled(series, platform):
        found = account_hour("c1", start, samples, platform, start + 9 * HOUR_MS, CONFIG)
        usage += found.usage.to_pylist()
        idle += found.idle.to_pylist()
        windows += samples.samples.to_pylist()
    return usage, idle, windows


def told(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "expected" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_recording_is_what_its_readme_says(
    recording: pa.Table, stretches: list[tuple[int, int]], folder: Path
) -> None:
    assert len(recording) == 60_040
    assert [round((after[0] - before[1]) / 1000) for before, after in pairwise(stretches)] == (HOLES)
    covered = sum(end - begin for begin, end in stretches)
    assert {Decimal(row["covered_s"]) for row in told(folder, "per_gpu.csv")} == {Decimal(covered) / 1000}


def test_energy_of_what_was_measured_is_the_recording_s(
    series: pa.Table, stretches: list[tuple[int, int]], folder: Path
) -> None:
    """A job that ran exactly while the recorder did: nothing of a hole is in it."""
    platform = records(*stretches)
    usage, _, _ = accounted(series, platform)
    boards: dict[tuple[int, str], int] = {}
    for start, samples in sampled(series, platform):
        for row in samples.holdings.to_pylist():
            if row["workload_id"] == "train":
                boards[start, row["gpu_uuid"]] = row["energy"]
    expected = told(folder, "by_utc_hour_gpu.csv")
    assert len(boards) == len(expected) == 2 * len(GPUS)
    for row in expected:
        energy = boards[ms(row["hour_utc"]), uuid(int(row["gpu_index"]))] / 3_600_000
        assert energy == pytest.approx(float(row["energy_wh_locf"]), rel=1e-3)
    whole = float(sum(row["energy_wh"] for row in usage))
    for column in ("energy_wh_locf", "energy_wh_trapezoid"):
        assert whole == pytest.approx(sum(float(row[column]) for row in told(folder, "per_gpu.csv")), rel=1e-3)
    covered = sum(Decimal(row["covered_s"]) for row in told(folder, "per_gpu.csv"))
    assert sum(row["gpu_seconds"] for row in usage) == covered
    assert sum(row["measured_seconds"] for row in usage) == covered


def test_every_hole_is_flagged_and_none_is_zero(series: pa.Table, stretches: list[tuple[int, int]]) -> None:
    """One job from the first reading to the last: the holes are estimated, and allocated like the rest."""
    begin, end = stretches[0][0], stretches[-1][1]
    usage, _, windows = accounted(series, records((begin, end)))
    held = [row for row in windows if row["tenant_id"] == TENANT]
    estimated: dict[str, set[int]] = defaultdict(set)
    for row in held:
        if row["estimated"]:
            estimated[row["gpu_uuid"]].add(round(row["window_start"].timestamp() * 1000))
            assert row["method"] == "linear"
            assert row["power_w"] > 50
            assert row["utilization"] is not None
    # the whole windows between the recordings, of every GPU
    width = CONFIG.window_ms
    silent = {
        start
        for before, after in pairwise(stretches)
        for start in range((before[1] // width + 1) * width, after[0] // width * width, width)
    }
    assert estimated == {uuid(index): silent for index in GPUS}
    assert {row["window_start"] for row in held if row["method"] == "missing"} == set()
    assert sum(row["gpu_seconds"] for row in usage) == len(GPUS) * Decimal(end - begin) / 1000
    assert sum(row["estimated_seconds"] for row in usage) == len(GPUS) * Decimal(len(silent) * width) / 1000
    assert sum(row["missing_seconds"] for row in usage) == 0
    assert sum(row["measured_seconds"] + row["estimated_seconds"] + row["missing_seconds"] for row in usage) == sum(
        row["gpu_seconds"] for row in usage
    )


def test_a_hole_has_the_energy_of_the_line_over_it(
    series: pa.Table, stretches: list[tuple[int, int]], folder: Path
) -> None:
    begin, end = stretches[0][0], stretches[-1][1]
    with_holes = float(sum(row["energy_wh"] for row in accounted(series, records((begin, end)))[0]))
    measured = sum(float(row["energy_wh_trapezoid"]) for row in told(folder, "per_gpu.csv"))
    lines = 0.0
    for row in series.to_pylist():
        if row["metric"] == METRICS["power_w"]:
            at = [round(instant.timestamp() * 1000) for instant in row["timestamps"]]
            for index in np.flatnonzero(np.diff(at) > HOLE_MS).tolist():
                watts = (row["values"][index] + row["values"][index + 1]) / 2
                lines += watts * (at[index + 1] - at[index]) / 3_600_000
    assert lines > 300
    # the two windows at a hole's edges are measured, and last to its inside
    assert with_holes == pytest.approx(measured + lines, rel=3e-3)


def test_without_anybody_it_is_all_idle_and_flagged_the_same(
    series: pa.Table, stretches: list[tuple[int, int]]
) -> None:
    usage, idle, windows = accounted(series, records())
    assert usage == []
    assert [row["estimated"] for row in idle] == [False, True], "the first hour has no hole"
    assert sum(row["energy_wh"] for row in idle) > 0
    inside = [row for row in windows if row["window_start"] < datetime.fromtimestamp(stretches[-1][1] / 1000, UTC)]
    assert sum(row["method"] == "linear" for row in inside) == len(GPUS) * sum(
        after[0] // CONFIG.window_ms - before[1] // CONFIG.window_ms - 1 for before, after in pairwise(stretches)
    )
    assert all(row["power_w"] > 50 for row in inside)


def test_the_series_is_a_valid_lake_table(series: pa.Table) -> None:
    assert series.schema.equals(DCGM_SERIES, check_metadata=False)
    assert len(series) == len(GPUS) * len(METRICS)
