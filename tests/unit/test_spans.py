"""The hours that somebody asks for: judged, and cut into days."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import ms_of
from finops_pipeline.commands.runner import Outcome, months_of
from finops_pipeline.commands.spans import DAY, HOUR, check_span, days_of, hours_of, span_of
from finops_pipeline.contracts.lake import DCGM_SERIES
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import Bundle
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.source import BundleSource, LiveSource, clock_of

TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
NOWHERE = Database("postgresql://nobody@127.0.0.1:1/nowhere")
LIVE = LiveSource({}, NOWHERE, lambda: ms_of(TEN + 3 * HOUR) - 1)


@pytest.fixture
def files(cases: Path) -> BundleSource:
    bundle = Bundle.open(cases / "01-shared-server-70-30")
    return BundleSource(bundle, DCGM_SERIES.empty_table(), NOWHERE, clock_of(bundle))


def test_what_is_asked_for_by_default(files: BundleSource) -> None:
    assert span_of(files, None, None) == files.span
    assert span_of(LIVE, None, None) == (TEN + HOUR, TEN + 2 * HOUR), "the last hour that has ended"
    assert span_of(LIVE, TEN, None) == (TEN, TEN + 2 * HOUR)
    assert span_of(files, None, TEN + HOUR) == (files.bundle.start, TEN + HOUR)


@pytest.mark.parametrize(
    ("first", "past", "told"),
    [
        (TEN + HOUR / 2, TEN + HOUR, "--from 2026-10-01T10:30:00Z is not a whole hour"),
        (TEN, TEN + HOUR / 2, "--to 2026-10-01T10:30:00Z is not a whole hour"),
        (TEN, TEN, "--to 2026-10-01T10:00Z is not after --from"),
        (TEN, TEN + 3 * HOUR, "the hour 2026-10-01T12:00:00Z has not ended at 2026-10-01T12:59:59Z"),
    ],
)
def test_spans_that_are_refused(first: datetime, past: datetime, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_span(LIVE, first, past)


def test_a_span_that_can_be_computed() -> None:
    check_span(LIVE, TEN, TEN + 2 * HOUR)


def test_a_bundle_has_no_hours_beyond_its_own(files: BundleSource) -> None:
    start, end = files.span
    check_span(files, start, end)
    for first, past, told in (
        (start - HOUR, end, f"--from {start - HOUR:%Y-%m-%dT%H:%MZ} is beyond the bundle"),
        (start, end + HOUR, f"--to {end + HOUR:%Y-%m-%dT%H:%MZ} is beyond the bundle"),
        (end, end + HOUR, "is beyond the bundle"),
        (start - 2 * HOUR, start - HOUR, "is beyond the bundle"),
    ):
        with pytest.raises(UsageError, match=told):
            check_span(files, first, past)


@given(st.sets(st.integers(0, 200)))
def test_days_hold_each_hour_once(numbers: set[int]) -> None:
    hours = [TEN + number * HOUR for number in sorted(numbers)]
    days = list(days_of(hours))
    assert [hour for first, past in days for hour in hours_of(first, past)] == hours
    assert all(timedelta_ok for first, past in days for timedelta_ok in [HOUR <= past - first <= DAY])


def test_neighbouring_hours_are_one_span() -> None:
    hours = [*hours_of(TEN, TEN + 30 * HOUR), TEN + 40 * HOUR]
    assert list(days_of(hours)) == [
        (TEN, TEN + DAY),
        (TEN + DAY, TEN + 30 * HOUR),
        (TEN + 40 * HOUR, TEN + 41 * HOUR),
    ]


def test_months_of_a_span() -> None:
    assert months_of(datetime(2026, 11, 30, 23, tzinfo=UTC), datetime(2027, 1, 1, 1, tzinfo=UTC)) == (
        "2026-11",
        "2026-12",
        "2027-01",
    )


CLEAN = Outcome(
    cluster_hours=24,
    booked=1,
    provisional=0,
    unpriced=0,
    quarantined=0,
    device_seconds=Decimal(1000),
    estimated_seconds=Decimal(100),
    missing_seconds=Decimal(0),
    unattributed=(),
    months=("2026-10",),
)


def test_what_is_not_measured_is_named_for_what_it_is() -> None:
    assert CLEAN.known_as == "10.00% of device time estimated"
    missing = replace(CLEAN, estimated_seconds=Decimal(40), missing_seconds=Decimal(70))
    assert missing.known_as == "4.00% of device time estimated, 7.00% missing"
    assert missing.doubts(Decimal("0.10")) == [
        "4.00% of device time estimated, 7.00% missing, more than 10.00%",
    ]
    assert missing.doubts(Decimal("0.11")) == []


def test_an_outcome_at_the_limit_is_complete() -> None:
    assert CLEAN.doubts(Decimal("0.10")) == []
    assert CLEAN.doubts(Decimal("0.09")) == ["10.00% of device time estimated, more than 9.00%"]
    assert replace(CLEAN, device_seconds=Decimal(0), estimated_seconds=Decimal(0)).estimated_share == 0
    assert replace(CLEAN, unpriced=2, quarantined=1).doubts(Decimal("0.10")) == [
        "2 rows are unpriced (finops policies add)",
        "1 inputs are set aside (eai.quarantine)",
    ]
