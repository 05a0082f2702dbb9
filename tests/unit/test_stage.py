"""The loop that all hourly assets share: in order, told of each hour, failures as Dagster should treat them."""

from typing import Any

import dagster as dg
import pytest

from finops_pipeline.accounting.exact import HOUR_MS, ms_of
from finops_pipeline.assets.hours import HOURS, SINGLE_RUN, stage_of
from finops_pipeline.errors import SourceError, UsageError
from finops_pipeline.resources.postgres.client import Database
from finops_pipeline.resources.site import Watch
from finops_pipeline.resources.source import LiveSource

START = "2026-10-01-10:00"
NOON = 1_790_856_000_000
TEN = NOON - 2 * HOUR_MS
SPAN = {"dagster/asset_partition_range_start": START, "dagster/asset_partition_range_end": "2026-10-01-11:00"}


def run(work: Any, *, retries: int = 0, clock: int = NOON) -> tuple[dg.ExecuteInProcessResult, list[tuple[str, int]]]:
    """One asset over two hours of two clusters."""
    seen: list[tuple[str, int]] = []

    @dg.asset(partitions_def=HOURS, backfill_policy=SINGLE_RUN, name="probe")
    def probe(context: dg.AssetExecutionContext) -> None:
        source = LiveSource({"a": None, "b": None}, Database("postgresql://nowhere/x"), lambda: clock)  # type: ignore[dict-item]
        watch = Watch(lambda stage, hour: seen.append((stage, hour)), retries)
        with stage_of(context, source, watch) as stage:
            assert list(stage.each(work, line=lambda result: f"{result} made")) == [1, 1, 1, 1]

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([probe], instance=instance, tags=SPAN, raise_on_error=False)
        result.lines = [  # type: ignore[attr-defined]
            line
            for record in instance.all_logs(result.run_id)
            if record.dagster_event is None
            for line in record.user_message.splitlines()
        ]
    return result, seen


def test_each_hour_of_each_cluster_in_order_with_a_line_and_progress() -> None:
    asked: list[tuple[str, int]] = []

    def work(cluster: str, hour: int) -> int:
        asked.append((cluster, hour))
        return 1

    result, seen = run(work)
    assert result.success
    assert asked == [(cluster, hour) for cluster in "ab" for hour in (TEN, TEN + HOUR_MS)]
    assert seen == [("probe", hour) for _, hour in asked]
    assert result.lines == [  # type: ignore[attr-defined]
        f"{cluster}, 2026-10-01T{hour}:00:00Z: 1 made" for cluster in "ab" for hour in ("10", "11")
    ]


def test_lines_of_hours_that_were_done_survive_a_failure() -> None:
    def work(cluster: str, hour: int) -> int:
        if hour > TEN:
            raise UsageError("a setting is wrong")
        return 1

    result, seen = run(work)
    assert not result.success
    assert seen == [("probe", TEN)]
    assert result.lines[0] == "a, 2026-10-01T10:00:00Z: 1 made"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "tries"),
    [(SourceError("down", transient=True), 2), (SourceError("gone", transient=False), 1), (UsageError("wrong"), 1)],
)
def test_only_what_may_pass_is_tried_again(error: Exception, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finops_pipeline.assets.hours.RETRY_SECONDS", 0)
    asked: list[str] = []

    def work(cluster: str, _hour: int) -> int:
        asked.append(cluster)
        raise error

    result, _ = run(work, retries=1)
    assert not result.success
    assert len(asked) == tries


def test_an_hour_that_has_not_ended_is_refused() -> None:
    result, seen = run(lambda *_: 1, clock=NOON - 1)
    assert not result.success
    assert seen == []
    failure = next(event.step_failure_data for event in result.all_events if event.is_step_failure)
    assert failure.user_failure_data is not None
    assert "2026-10-01T11:00:00Z has not ended" in str(failure.user_failure_data.description)


def test_ten_is_ten() -> None:
    assert ms_of(HOURS.time_window_for_partition_key(START).start) == TEN
