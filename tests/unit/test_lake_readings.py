"""Summaries in the lake: made anew where they are of no use any more, and for one hour where an event names a pod (A8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.telemetry.summaries import summary_digest
from finops_pipeline.contracts.lake import DCGM_SERIES, DCGM_SUMMARY, TABLES
from finops_pipeline.resources.lake.readings import Summaries, labels_of, landed_summary, write_readings
from finops_pipeline.resources.lake.store import EarlierFormatError, Lake

if TYPE_CHECKING:
    from pathlib import Path

TEN = 1_790_848_800_000
RULES = AccountingConfig(platform_tenant="platform")
EXPORTER = "train/my-dcgm-exporter-test"


def series(hour: int) -> pa.Table:
    labels = {"UUID": "GPU-a", "modelName": "H100", "namespace": "train", "pod": "my-dcgm-exporter-test"}
    at = list(range(hour + 7000, hour + HOUR_MS, 60_000))
    row = {"metric": "DCGM_FI_DEV_GPU_UTIL", "labels": list(labels.items()), "timestamps": at, "values": [50.0] * 60}
    return pa.Table.from_pylist([row], DCGM_SERIES)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for hour in (TEN - HOUR_MS, TEN):
        write_readings(lake, RULES, "c", hour, series(hour))
    return lake


def test_a_pod_that_an_event_names_is_summed_up_anew_for_its_hour_alone(lake: Lake) -> None:
    around = Summaries(lake, RULES, "c")
    assert {hour: table["first_labels"][0].as_py() for hour, table in around.of(TEN).items()} == {
        TEN - HOUR_MS: "",
        TEN: "",
    }
    named = around.of(TEN, frozenset({EXPORTER}))
    assert {table["first_labels"][0].as_py() for table in named.values()} == {EXPORTER}
    assert {table["config"][0].as_py() for table in named.values()} == {summary_digest(RULES, {EXPORTER})}
    assert {table["first_labels"][0].as_py() for table in around.of(TEN).values()} == {""}
    assert around.of(TEN, frozenset({"train/other-dcgm-exporter"})).keys() == named.keys()


def test_what_was_taken_for_an_exporter_is_looked_up_among_the_events(lake: Lake) -> None:
    assert EXPORTER in labels_of(lake, RULES, "c", TEN)
    assert labels_of(lake, RULES, "c", TEN + HOUR_MS) == frozenset()


def test_a_summary_of_an_earlier_format_is_made_anew(tmp_path: Path, lake: Lake) -> None:
    columns = ["slices" if name == "node" else name for name in DCGM_SUMMARY.names]
    fields = [field.with_name(name) for field, name in zip(DCGM_SUMMARY, columns, strict=True)]
    former = Lake(tmp_path, {**TABLES, "dcgm_summary": pa.schema(fields)})
    current = lake.require("dcgm_summary", "c", TEN)
    former.write("dcgm_summary", "c", TEN, current.rename_columns(columns))
    with pytest.raises(EarlierFormatError, match="written by an earlier version: compute the hour again"):
        lake.read("dcgm_summary", "c", TEN)
    made = landed_summary(lake, RULES, "c", TEN)
    assert made is not None
    assert made.equals(current)
    assert lake.require("dcgm_summary", "c", TEN).equals(current)


def test_a_summary_of_another_configuration_is_made_anew(lake: Lake) -> None:
    other = replace(RULES, window_seconds=60)
    made = landed_summary(lake, other, "c", TEN)
    assert made is not None
    assert made["config"][0].as_py() == summary_digest(other) != summary_digest(RULES)
