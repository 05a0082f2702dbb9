"""The pipeline's accounting against the slow second implementation of the same rules (A1-A21, A28, A29).

The reference must give every case's expected files, and both must give the same rows, column by column, on random
fleets with everything that goes wrong in real ones (`tests.reference.fleets`).
"""

from __future__ import annotations

import csv
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.cases import cells, run_case
from tests.reference.fast import CLUSTER, account_fleet
from tests.reference.fleets import FEATURES, OPEN, Fleet, fleet_of
from tests.reference.profiles import examples
from tests.reference.reference import Hour, account, hour_text

if TYPE_CHECKING:
    from pathlib import Path

CASES = (
    "01-shared-server-70-30",
    "02-dedicated-odd-milliseconds",
    "03-ten-minute-gap",
    "04-gap-across-the-hour",
    "05-busy-or-idle-costs-the-same",
    "06-honor-labels-false",
    "07-duplicates-and-the-edge",
    "08-blanks-and-garbage",
    "09-mig-four-instances",
    "10-time-slicing",
    "11-vm-without-dcgm",
    "12-label-lags-and-drops",
    "13-idle-unattributed-no-data",
    "14-policies",
    "15-three-equal-tenants",
    "16-counter-reset",
    "17-lifecycle-event-faults",
    "18-storage",
    "19-time-slicing-label-flips",
    "20-slower-scrapes",
    "21-three-hour-outage",
    "22-pods-without-events-in-gaps",
    "23-profile-held-missing",
    "24-idle-policies-and-weights",
    "25-no-pod-labels",
    "26-mig-cut-anew-with-the-same-ids",
    "27-uninvited-pod",
    "28-per-process-rows-at-60-s",
)
ROUNDING_MS = 10
SEEDS = st.integers(0, 2**31)


def published(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def in_order(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    names = ("hour", "workload_id", "gpu_model", "tenant_id", "deployment_id")
    return sorted(rows, key=lambda row: [row.get(name, "") for name in names])


def by_reference(fleet: Fleet) -> list[Hour]:
    return [
        account(
            CLUSTER, hour, fleet.samples, fleet.events, fleet.deployments, fleet.inventory, fleet.now, fleet.settings
        )
        for hour in fleet.hours
    ]


def keyed(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    names = ("hour", "workload_id", "gpu_model", "tenant_id", "deployment_id")
    return {tuple(str(row.get(name)) for name in names): row for row in rows}


def assert_same(fleet: Fleet) -> None:
    """Every row and column of usage, fleet, idle and quarantine, the flags, and where more is priced than there is."""
    for reference, fast in zip(by_reference(fleet), account_fleet(fleet), strict=True):
        assert keyed(fast.usage) == keyed(reference.usage)
        assert keyed(fast.fleet) == keyed(reference.fleet)
        assert keyed(fast.idle) == keyed(reference.idle)
        assert fast.quarantine == reference.quarantine
        assert fast.estimated == reference.estimated
        for model in fast.overpriced.keys() | reference.overpriced.keys():
            difference = fast.overpriced.get(model, Fraction(0)) - reference.overpriced.get(model, Fraction(0))
            assert abs(difference) <= ROUNDING_MS, "each board counts up to a whole millisecond, its shares are rounded"


@pytest.mark.parametrize("name", CASES)
def test_reference_matches_case(cases: Path, name: str) -> None:
    case = cases / name
    hours = run_case(case)
    usage = [row for row in published(case / "expected" / "gpu_usage.csv") if row["basis"] != "storage"]
    assert in_order([cells(row) for hour in hours for row in hour.usage]) == in_order(usage)
    fleet = published(case / "expected" / "fleet.csv")
    assert in_order([cells(row) for hour in hours for row in hour.fleet]) == in_order(fleet)
    quarantine = {(row["source"], row["key"], row["reason"]) for row in published(case / "expected" / "quarantine.csv")}
    assert set().union(*(hour.quarantine for hour in hours)) == {row for row in quarantine if row[0] != "token_usage"}


@pytest.mark.parametrize("name", CASES)
def test_reference_matches_idle_lines_of_case(cases: Path, name: str) -> None:
    units = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")
    expected: dict[tuple[str, str], dict[str, Any]] = {}
    for row in published(cases / name / "expected" / "allocation.csv"):
        if row["usage_type"] == "gpu_idle":
            line = expected.setdefault((row["hour"], row["gpu_model"]), dict.fromkeys(units))
            line["estimated"] = row["estimated"]
            for unit in units:
                if row[unit]:
                    line[unit] = (line[unit] or Decimal(0)) + Decimal(row[unit])
    found = {
        (hour_text(row["hour"]), row["gpu_model"]): {unit: row[unit] for unit in units}
        | {"estimated": cells(row)["estimated"]}
        for hour in run_case(cases / name)
        for row in hour.idle
    }
    assert found == expected


def test_every_case_is_listed(cases: Path) -> None:
    assert sorted(path.name for path in cases.iterdir() if path.is_dir()) == list(CASES)


@given(SEEDS)
@examples(60)
def test_random_fleets(seed: int) -> None:
    assert_same(fleet_of(seed, FEATURES - OPEN))


@given(SEEDS, st.sets(st.sampled_from(sorted(FEATURES - OPEN)), max_size=6))
@examples(40)
def test_random_fleets_with_few_faults(seed: int, features: set[str]) -> None:
    assert_same(fleet_of(seed, frozenset(features)))
