"""Where inputs come from: what a Prometheus beside tables and a bundle of files each say of themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from finops_pipeline.accounting.exact import HOUR_MS, ms_of
from finops_pipeline.contracts.lake import DCGM_SERIES, TABLES
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.lake.store import Lake
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.source import BundleSource, LiveSource, Source, clock_of, now_of
from finops_pipeline.settings import load_settings
from tests.doors import FileDoor

TEN = ms_of(datetime(2026, 10, 1, 10, tzinfo=UTC))
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
READINGS = pa.Table.from_pylist(
    [
        {
            "metric": "A",
            "labels": [("UUID", "GPU-1")],
            "timestamps": [TEN - 1, TEN, TEN + HOUR_MS - 1, TEN + HOUR_MS],
            "values": [1.0, 2.0, 3.0, 4.0],
        }
    ],
    DCGM_SERIES,
)


@pytest.fixture
def live() -> LiveSource:
    return LiveSource({"a": FileDoor(READINGS), "b": FileDoor(READINGS)}, Database(NOWHERE), lambda: TEN + 5)


@pytest.fixture
def files(cases: Path) -> BundleSource:
    bundle = Bundle.open(cases / "01-shared-server-70-30")
    return BundleSource(bundle, READINGS, Database(NOWHERE), clock_of(bundle))


def test_both_cut_readings_alike(live: LiveSource, files: BundleSource) -> None:
    for source in (live, files):
        found = source.series(source.clusters[0], TEN, TEN + HOUR_MS, ["A"])
        assert found["values"].to_pylist() == [[2.0, 3.0]]


def test_files_have_a_span_and_their_own_time(files: BundleSource) -> None:
    assert files.span == (files.bundle.start, files.bundle.end)
    assert files.bundle.now is not None
    assert files.now_ms() == ms_of(files.bundle.now)
    assert files.clusters == ("dc1-gpu",)
    assert files.is_default("dc1-gpu")


def test_an_installation_has_the_time_of_its_bundle(cases: Path) -> None:
    bundle = cases / "01-shared-server-70-30"
    assert now_of(load_settings({"FINOPS_BUNDLE": str(bundle)})) == Bundle.open(bundle).now
    before = datetime.now(UTC)
    assert before - timedelta(seconds=1) <= now_of(load_settings({})) <= datetime.now(UTC) + timedelta(seconds=1)


def test_what_is_live_goes_on_with_the_clock(live: LiveSource) -> None:
    assert live.span is None
    assert live.now_ms() == live.readings_end() == TEN + 5
    assert (live.is_default("a"), live.is_default("b")) == (True, False)
    other = LiveSource(live.doors, live.database, live.clock, default_cluster="b")
    assert (other.is_default("a"), other.is_default("b")) == (False, True)


def test_landed_hours_are_asked_for_again_only_of_files(live: LiveSource, files: BundleSource, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for cluster in ("a", "dc1-gpu"):
        lake.write("dcgm_series", cluster, TEN, READINGS)
    assert live.landed(lake, "a") == {TEN}
    assert files.landed(lake, "dc1-gpu") == set()


def test_live_records_are_read_a_day_at_a_time(live: LiveSource, files: BundleSource) -> None:
    month = range(TEN, TEN + 49 * HOUR_MS, HOUR_MS)
    batches = live.batches(month)
    assert [len(batch) for batch in batches] == [24, 24, 1]
    assert [hour for batch in batches for hour in batch] == list(month)
    assert files.batches(month) == [month]


def test_each_record_set_aside_shows_in_one_hour_of_a_run(live: LiveSource, files: BundleSource) -> None:
    run = list(range(TEN, TEN + 3 * HOUR_MS, HOUR_MS))
    for source in (live, files):
        spans = [source.set_aside_in(hour, run) for hour in run]
        assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]], "no hole and no overlap"
    assert files.set_aside_in(run[0], run)[0] < 0, "what lies before a bundle's run shows in its first hour"
    assert live.set_aside_in(run[0], run) == (TEN, TEN + HOUR_MS)


def test_a_lake_keeps_what_was_set_aside(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for table in ("rejected_records", "rejected_readings"):
        rows = [{"source": table, "key": "k", "reason": "nan", "detail": "1"}]
        lake.write(table, "a", TEN, pa.Table.from_pylist(rows, TABLES[table]))
    assert lake.set_aside("a", TEN)["source"].to_pylist() == ["rejected_records", "rejected_readings"]


def test_both_are_sources(live: LiveSource, files: BundleSource) -> None:
    found: list[Source] = [live, files]
    assert [len(source.clusters) for source in found] == [2, 1]
