"""The same data gives the same readings, whichever server keeps it: Prometheus 2 and 3, VictoriaMetrics.

Every server found here is tested and none is skipped: the `prometheus` on the PATH always, more of them where
`TEST_PROMETHEUS_PROGRAMS` names them, and VictoriaMetrics where it is installed (`victoria_server`). The report's head
names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import DEFAULT_METRICS, AccountingConfig
from finops_pipeline.accounting.telemetry.readings import HourReadings, read_hour
from finops_pipeline.contracts.lake import DCGM_SERIES
from finops_pipeline.doctor.cluster import METRICS_LIKE
from finops_pipeline.errors import SourceError
from finops_pipeline.resources.bundle.openmetrics import read_series
from finops_pipeline.resources.prometheus.client import PrometheusDoor
from finops_pipeline.resources.series import window
from tests.services.prometheus_server import PrometheusServer, load_blocks, programs
from tests.services.victoria_server import VictoriaServer, program, sample_lines

START = 1_790_848_800_000
HOUR = 3_600_000
CONFIG = AccountingConfig(platform_tenant="platform")
CASES = (
    "01-shared-server-70-30",
    "06-honor-labels-false",
    "07-duplicates-and-the-edge",
    "08-blanks-and-garbage",
    "09-mig-four-instances",
    "16-counter-reset",
    "20-slower-scrapes",
)
Opened = Callable[[Path, pa.Table], AbstractContextManager[PrometheusDoor]]


@contextmanager
def prometheus(name: str, folder: Path, series: pa.Table) -> Iterator[PrometheusDoor]:
    text = folder / "dcgm.om"
    text.write_text("\n".join([*sample_lines(series, per_second=1), "# EOF", ""]), encoding="utf-8")
    load_blocks(text, folder / "data")
    with PrometheusServer(folder / "data", name) as running:
        yield PrometheusDoor("c1", running.url)


@contextmanager
def victoria(name: str, folder: Path, series: pa.Table) -> Iterator[PrometheusDoor]:
    with VictoriaServer(folder / "data", name) as running:
        running.load(series)
        yield PrometheusDoor("c1", running.url)


def servers() -> dict[str, Opened]:
    found: dict[str, Opened] = {path.strip("/").replace("/", "-"): partial(prometheus, path) for path in programs()}
    if (path := program()) is not None:
        found["victoria-metrics"] = partial(victoria, path)
    return found


@pytest.fixture(scope="module")
def stored(cases: Path) -> pa.Table:
    """The dumps of several cases at once, distinguished by a label `case`."""
    tables = []
    for case in CASES:
        table = read_series(cases / case / "dcgm.om.gz")
        labels = [[*row, ("case", case)] for row in labels_of(table)]
        tables.append(table.set_column(1, DCGM_SERIES.field("labels"), pa.array(labels, DCGM_SERIES.field(1).type)))
    return pa.concat_tables(tables)


@pytest.fixture(scope="module", params=servers().items(), ids=lambda item: item[0])
def door(
    stored: pa.Table, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusDoor]:
    with request.param[1](tmp_path_factory.mktemp("server"), stored) as opened:
        yield opened


def of_case(table: pa.Table, case: str) -> pa.Table:
    return table.filter(pa.array([("case", case) in row for row in labels_of(table)], pa.bool_()))


def labels_of(table: pa.Table) -> list[list[tuple[str, str]]]:
    column: Any = table["labels"]
    found: list[list[tuple[str, str]]] = column.to_pylist()
    return found


def told(hour: HourReadings) -> list[Any]:
    """Devices, instants with their labels, readings and refusals; NaN is not kept by every server, and is no reading."""
    labels = [sorted(hour.sets.members[number]) for number in hour.instant_set.tolist()]
    values = {quantity: (r.owner.tolist(), r.at.tolist(), r.value.tolist()) for quantity, r in hour.values.items()}
    refused = [row for row in hour.rejected.to_pylist() if row["reason"] != "nan"]
    instants = list(zip(hour.instant_device.tolist(), hour.instant_at.tolist(), labels, strict=True))
    return [hour.devices.key.tolist(), hour.devices.model.tolist(), instants, values, refused]


@pytest.mark.parametrize("case", CASES)
def test_the_readings_are_those_of_the_file(door: PrometheusDoor, stored: pa.Table, case: str) -> None:
    found = door.series(START - HOUR, START + 2 * HOUR, list(DEFAULT_METRICS), match=f'case="{case}"')
    expected = of_case(stored, case)
    for start in (START - HOUR, START, START + HOUR):
        got, wanted = (read_hour(window(table, start, start + HOUR), start, CONFIG) for table in (found, expected))
        assert told(got) == told(wanted)


def test_the_samples_are_those_of_the_file_to_the_last_bit(door: PrometheusDoor, stored: pa.Table) -> None:
    """But for the case of garbage: VictoriaMetrics drops NaN and rounds numbers of 19 digits."""
    found = door.series(START, START + HOUR, list(DEFAULT_METRICS), match='case!="08-blanks-and-garbage"')
    wanted = [row for row in window(stored, START, START + HOUR).to_pylist() if ("case", CASES[3]) not in row["labels"]]
    rows = found.to_pylist()

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["metric"], sorted(row["labels"])

    assert [key(row) for row in rows] == sorted(key(row) for row in wanted)
    by_key = {str(key(row)): row for row in wanted}
    for row in rows:
        expected = by_key[str(key(row))]
        assert row["timestamps"] == expected["timestamps"]
        assert np.array_equal(np.array(row["values"]).view(np.int64), np.array(expected["values"]).view(np.int64))


def test_the_server_tells_its_version_and_metric_names(door: PrometheusDoor, stored: pa.Table) -> None:
    health = door.ping()
    print(f"version {health.version}, retention {health.retention or 'not reported'}")  # noqa: T201
    assert health.version
    names = door.names(METRICS_LIKE, START - HOUR, START + 2 * HOUR)
    assert names == sorted({str(name) for name in stored["metric"].to_pylist()})
    assert door.names("nothing.*", START, START + HOUR) == []


def test_an_hour_before_all_that_is_kept_is_an_error(door: PrometheusDoor) -> None:
    with pytest.raises(SourceError, match="older than its retention"):
        door.series(START - 40 * HOUR, START - 39 * HOUR, list(DEFAULT_METRICS))
    assert door.series(START - 40 * HOUR, START - 39 * HOUR, list(DEFAULT_METRICS), may_be_gone=True).num_rows == 0


def test_an_hour_without_samples_is_empty(door: PrometheusDoor) -> None:
    assert door.series(START + 9 * HOUR, START + 10 * HOUR, list(DEFAULT_METRICS)).num_rows == 0
