"""What the telemetry says of random fleets, against the slow second implementation of the same rules (A7-A13, A19, A20).

Below the holders: intervals, gaps, labels, values, counters, models and profiles window by window, and what is set aside.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.arrays import Ints, texts
from finops_pipeline.accounting.config import AccountingConfig, Quantity
from finops_pipeline.accounting.holding.lifecycle import running_intervals
from finops_pipeline.accounting.hour import event_pods
from finops_pipeline.accounting.telemetry.energy import WindowCounter, counter_of
from finops_pipeline.accounting.telemetry.readings import HourReadings, Readings, read_hour
from finops_pipeline.accounting.telemetry.summaries import Timeline, combined_utilization, lay_together, summarise
from finops_pipeline.accounting.telemetry.windows import Method, fill
from finops_pipeline.accounting.usage.pieces import _seen_by_devices, places
from finops_pipeline.contracts.lake import DCGM_SERIES, WORKLOAD_EVENTS
from tests.reference.fast import config_of, event_row, series_of
from tests.reference.fleets import FEATURES, Fleet, fleet_of
from tests.reference.profiles import examples
from tests.reference.reference import (
    DAY,
    ENERGY,
    HOUR,
    MEMORY,
    PROF,
    UTIL,
    Cards,
    Device,
    Telemetry,
    device_of_name,
    half_even,
    intervals_of,
    screened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = {
    "measured": Method.MEASURED,
    "linear": Method.LINEAR,
    "profile": Method.PROFILE,
    "one_side": Method.HELD,
    "never": Method.MISSING,
}


class Both:
    """One hour of a fleet, read by the pipeline and by the reference."""

    def __init__(self, fleet: Fleet, start: int) -> None:
        self.start = start
        self.config = config_of(fleet)
        events = pa.Table.from_pylist([event_row(event) for event in fleet.events], schema=WORKLOAD_EVENTS)
        pods = event_pods(events, fleet.now, self.config)
        tables = {hour: table for hour, table in series_of(fleet.samples).items() if abs(hour - start) <= DAY}
        summaries = {hour: summarise(read_hour(t, hour, self.config, pods), self.config) for hour, t in tables.items()}
        self.hour = read_hour(tables.get(start, DCGM_SERIES.empty_table()), start, self.config, pods)
        running = running_intervals(events, fleet.now, self.config).running_in(start, start + HOUR)
        spellings = {name for name in running.placed_class.tolist() if name}
        self.timeline = lay_together(self.hour, summaries, {}, spellings, self.config)
        good, _ = screened(fleet.events, fleet.now)
        named = {(event.namespace, event.pod) for event in good if event.namespace and event.pod}
        self.telemetry = Telemetry(fleet.samples, start, fleet.settings, named)
        self.cards = Cards(self.telemetry, [], intervals_of(good, fleet.settings))

    def devices(self) -> Iterator[tuple[int, Device]]:
        return ((place, device_of_name(key)) for place, key in enumerate(self.timeline.devices.key.tolist()))

    def windows(self) -> list[int]:
        return [self.start + number * self.config.window_ms for number in range(self.config.windows)]


def painted(timeline: Timeline, config: AccountingConfig) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Devices x windows: measured, and the label set."""
    shape = (len(timeline.devices), config.windows)
    measured, labels = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
    for device, first, last, label in zip(
        *(getattr(timeline.runs, name).tolist() for name in ("device", "first", "last", "label_set")), strict=True
    ):
        here = slice(max(first, 0), max(last + 1, 0))
        measured[device, here], labels[device, here] = True, label
    return measured, labels


def quarantined(hour: HourReadings) -> Counter[tuple[str, str, str]]:
    return Counter(
        {
            (row["source"], row["key"], row["reason"]): int(row["detail"].removeprefix("readings="))
            for row in hour.rejected.to_pylist()
        }
    )


def board_readings(both: Both, quantity: Quantity) -> Readings:
    readings = both.hour.values[quantity]
    return Readings(places(both.hour.boards, both.timeline.boards)[readings.owner], readings.at, readings.value)


def assert_same(fleet: Fleet) -> None:
    for start in fleet.hours:
        both = Both(fleet, start)
        assert [device for _, device in both.devices()] == both.telemetry.devices
        assert quarantined(both.hour) == both.telemetry.quarantine
        assert_windows(both)
        assert_cards(both)
        assert_values(both)
        assert_counters(both)
        assert_processes(both)


def assert_windows(both: Both) -> None:
    """A8, A11: scrape intervals, gaps and labels."""
    measured, labels = painted(both.timeline, both.config)
    members = both.timeline.sets.members
    for place, device in both.devices():
        assert both.timeline.scrape_ms[place] == both.telemetry.scrape_interval(device, both.start), device
        for number, window in enumerate(both.windows()):
            assert measured[place, number] != both.telemetry.is_gap(device, window), (device, number)
            expected = {"/".join(pair) for pair in both.telemetry.window_labels(device, window)}
            assert set(members[labels[place, number]]) == expected, (device, number)


def assert_cards(both: Both) -> None:
    """Section 2, A7, A19: models and profiles."""
    timeline = both.timeline
    for place, device in both.devices():
        assert timeline.devices.model[place] == both.cards.model(device)
        assert timeline.card[place] == both.cards.slices_of_card(device)
        for number, window in enumerate(both.windows() if device[1] else ()):
            assert timeline.profile[place, number] == (both.cards.profile(device, window) or 0), (device, number)


def assert_values(both: Both) -> None:
    """A9, A11, A13: the value of each window, and how it was found."""
    hour, timeline = both.hour, both.timeline
    place_of = places(hour.devices.key, timeline.devices.key)
    for name, quantity in (
        ("utilization", Quantity.UTILIZATION),
        ("memory", Quantity.MEMORY),
        ("power", Quantity.POWER),
    ):
        edges = timeline.before[quantity], timeline.after[quantity]
        if quantity == Quantity.POWER:
            series = _seen_by_devices(board_readings(both, quantity), *edges, timeline)
        else:
            readings = combined_utilization(hour, both.config) if name == "utilization" else hour.values[quantity]
            series = (Readings(place_of[readings.owner], readings.at, readings.value), *edges)
        filled = fill(*series, both.start, timeline.scrape_ms, both.config)
        for place, device in both.devices():
            for number, window in enumerate(both.windows()):
                rung, value = both.telemetry.value(device, name, window)
                assert filled.method[place, number] == METHODS[rung], (name, device, number)
                assert filled.value[place, number] == (0 if value is None else half_even(value)), (name, device, number)


def assert_counters(both: Both) -> None:
    """A20: what the counter says of each window, and for how long power decides."""
    timeline = both.timeline
    limits: Ints = np.zeros(len(timeline.boards), dtype=np.int64)
    for board, model in zip(timeline.board.tolist(), timeline.devices.model.tolist(), strict=True):
        limits[board] = int((both.config.limit(model).power_w or 0) * 1000)
    counter = counter_of(
        board_readings(both, Quantity.ENERGY),
        timeline.before[Quantity.ENERGY],
        timeline.after[Quantity.ENERGY],
        limits,
        board_readings(both, Quantity.POWER),
        timeline.standing,
    )
    found = WindowCounter.of(counter, len(timeline.boards), both.start, both.config.windows, both.config.window_ms)
    risen, unsound = np.diff(found.risen, axis=1), np.diff(found.unsound, axis=1)
    for place, device in both.devices():
        board, model = timeline.board[place], both.cards.model(device)
        for number, window in enumerate(both.windows()):
            spans = both.telemetry.counter_spans(device, model, window, window + both.config.window_ms)
            assert unsound[board, number] == sum(b - a for a, b, rise in spans if rise is None), (device, number)
            assert risen[board, number] == sum(rise for *_, rise in spans if rise is not None), (device, number)


def assert_processes(both: Both) -> None:
    """A19: which rows are a process's own, copies left out."""
    hour = both.hour
    names = {PROF: Quantity.UTILIZATION, UTIL: Quantity.UTILIZATION_COARSE, MEMORY: Quantity.MEMORY}
    for metric, quantity in names.items():
        rows = hour.processes[quantity]
        keys = hour.devices.key[rows.device].tolist()
        labels = [next(iter(hour.sets.members[number])) for number in rows.label_set.tolist()]
        found = set(zip(keys, labels, rows.at.tolist(), rows.value.tolist(), strict=True))
        expected = {
            ("/".join(filter(None, device)), "/".join(pair), at, half_even(value * 1_000_000))
            for (device, name, pair), values in both.telemetry.process.items()
            for at, value in values.items()
            if name == metric and both.start <= at < both.start + HOUR
        }
        assert found == expected, metric
    assert ENERGY not in names
    assert texts(hour.rejected["source"]).tolist() == ["dcgm"] * len(hour.rejected)


@given(st.integers(0, 2**31))
@examples(60)
def test_random_fleets(seed: int) -> None:
    assert_same(fleet_of(seed, FEATURES))


@given(st.integers(0, 2**31), st.sets(st.sampled_from(sorted(FEATURES)), max_size=6))
@examples(40)
def test_random_fleets_with_few_faults(seed: int, features: set[str]) -> None:
    assert_same(fleet_of(seed, frozenset(features)))
