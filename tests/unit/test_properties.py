"""What always holds of an hour's accounting, on random fleets (A4, A7, A13, A15, A18, A20, A21)."""

from __future__ import annotations

import random
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.reference.fast import account_fleet, series_of
from tests.reference.fleets import FEATURES, RAW, START, Fleet, fleet_of
from tests.reference.profiles import examples
from tests.reference.reference import (
    DAY,
    ENERGY,
    HOUR,
    MEMORY,
    POWER,
    PROF,
    Event,
    Hour,
    Interval,
    Sample,
    Settings,
    intervals_of,
    label_pair,
    screened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SEEDS = st.integers(0, 2**31)
MILLI = Decimal("0.001")


def tables(hours: list[Hour]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, for comparison."""
    return [
        (kind, *sorted(row.items(), key=lambda item: item[0]))
        for hour in hours
        for kind, rows in (("usage", hour.usage), ("fleet", hour.fleet), ("idle", hour.idle))
        for row in sorted(rows, key=lambda row: (row.get("workload_id", ""), row["gpu_model"]))
    ]


def lifecycle_seconds(hours: list[Hour]) -> dict[tuple[int, str], Decimal]:
    """GPU-seconds of each workload with events, by hour, over all models."""
    found: dict[tuple[int, str], Decimal] = defaultdict(Decimal)
    for hour in hours:
        for row in hour.usage:
            if row["basis"] == "lifecycle":
                found[row["hour"], row["workload_id"]] += row["gpu_seconds"]
    return found


def intervals(fleet: Fleet) -> list[Interval]:
    return intervals_of(screened(fleet.events, fleet.now)[0], fleet.settings)


def running_ms(interval: Interval, hour: int) -> int:
    end = hour + HOUR if interval.end is None else min(interval.end, hour + HOUR)
    return max(end - max(interval.start, hour), 0)


def assert_alike(left: dict[tuple[int, str], Decimal], right: dict[tuple[int, str], Decimal]) -> None:
    """Equal up to the rounding of rows: a workload has a few rows, each rounded once to a millisecond."""
    assert left.keys() == right.keys()
    for key, seconds in left.items():
        assert abs(seconds - right[key]) <= 3 * MILLI, key


@given(SEEDS, st.integers(0, 2**31))
@examples(25)
def test_shuffled_duplicated_and_split_series_change_nothing(seed: int, order: int) -> None:
    """A7: an exporter's upgrade, a second scrape of the same series or another order of rows is the same hour."""
    fleet, rng = fleet_of(seed), random.Random(order)
    series = series_of(fleet.samples)
    changed = {}
    for hour, table in series.items():
        rows: list[dict[str, Any]] = []
        for row in table.to_pylist():
            rows.append(row)
            if rng.random() < 0.2:
                rows.append(row)
            if rng.random() < 0.3:
                rows.pop()
                halves = [rng.random() < 0.5 for _ in row["timestamps"]]
                for half in (True, False):
                    labels = [*row["labels"], ("pod_template_hash", str(half))]
                    part = {
                        name: [v for v, which in zip(row[name], halves, strict=True) if which == half]
                        for name in ("timestamps", "values")
                    }
                    rows.append({**row, **part, "labels": labels})
        rng.shuffle(rows)
        changed[hour] = pa.Table.from_pylist(rows, schema=table.schema)
    assert tables(account_fleet(fleet, changed)) == tables(account_fleet(fleet, series))


@given(SEEDS, st.integers(0, 2**31), st.sampled_from([0.02, 0.3, 0.9]))
@examples(25)
def test_removed_readings_never_change_allocated_time(seed: int, order: int, share: float) -> None:
    """A4: what DCGM lost is never taken from or given to a workload with events."""
    fleet, rng = fleet_of(seed), random.Random(order)
    fewer = fleet.without(samples=[sample for sample in fleet.samples if rng.random() >= share])
    assert_alike(lifecycle_seconds(account_fleet(fewer)), lifecycle_seconds(account_fleet(fleet)))


@given(SEEDS)
@examples(25)
def test_without_dcgm_allocated_time_is_the_same(seed: int) -> None:
    """A4, A13: a whole cluster without telemetry still bills its workloads, as estimated or missing."""
    fleet = fleet_of(seed)
    dark = account_fleet(fleet.without(samples=[], inventory=[]))
    assert_alike(lifecycle_seconds(dark), lifecycle_seconds(account_fleet(fleet)))
    assert all(row["basis"] == "lifecycle" and row["measured_seconds"] == 0 for hour in dark for row in hour.usage)
    assert not any(hour.idle for hour in dark)


@given(SEEDS)
@examples(25)
def test_allocated_time_is_that_of_the_events(seed: int) -> None:
    """A4: seconds x gpu_count x class_fraction, hour by hour."""
    fleet = fleet_of(seed)
    expected: dict[tuple[int, str], Fraction] = defaultdict(Fraction)
    for hour in fleet.hours:
        for interval in intervals(fleet):
            if ms := running_ms(interval, hour):
                expected[hour, interval.workload_id] += ms * interval.gpu_count * interval.fraction
    found = lifecycle_seconds(account_fleet(fleet))
    assert found.keys() == expected.keys()
    for key, gpu_ms in expected.items():
        assert abs(Fraction(found[key]) - gpu_ms / 1000) <= Fraction(3, 1000), key


@given(SEEDS)
@examples(40)
def test_device_time_is_measured_estimated_or_missing(seed: int) -> None:
    """A15: of workloads that hold whole units only, device time is gpu_count x running time, however it was read."""
    fleet = fleet_of(seed)
    whole = {
        name
        for name in {i.workload_id for i in intervals(fleet)}
        if all(
            i.gpu_count == 1 or (i.gpu_count.denominator == 1 and i.fraction == 1)
            for i in intervals(fleet)
            if i.workload_id == name
        )
    }
    assume(whole)
    hours = account_fleet(fleet)
    for hour in hours:
        for name in sorted(whole):
            expected = sum(
                (
                    running_ms(i, start) * i.gpu_count
                    for start in {row["hour"] for row in hour.usage}
                    for i in intervals(fleet)
                    if i.workload_id == name
                ),
                Fraction(0),
            )
            rows = [row for row in hour.usage if row["workload_id"] == name]
            assert sum(device_seconds(row) for row in rows) * 1000 == expected
    for hour in hours:
        for row in hour.usage:
            if row["basis"] == "samples":
                assert device_seconds(row) >= row["gpu_seconds"] - MILLI


def device_seconds(row: dict[str, Any]) -> Decimal:
    return Decimal(row["measured_seconds"] + row["estimated_seconds"] + row["missing_seconds"])


@given(
    st.lists(st.integers(0, 60_000_000), min_size=61, max_size=61),
    st.integers(0, 59),
    st.integers(0, 59),
    st.booleans(),
)
@examples(40)
def test_energy_over_a_gap_is_the_counters_rise(rises: list[int], first: int, length: int, power: bool) -> None:
    """A13 rung 1: however long the scrape was down, an hour's energy is the counter's difference over it."""
    labels = {"UUID": "GPU-1", "modelName": RAW["H100"], "namespace": "train", "pod": "w-0"}
    samples, counter = [], 10**9
    for minute, rise in enumerate(rises):
        if not first <= minute - 1 < first + length or minute in {0, 60}:
            samples.append(Sample(ENERGY, labels, START + minute * 60_000, float(counter)))
            if power:
                samples.append(Sample(POWER, labels, START + minute * 60_000, 333.0))
        counter += rise
    event = Event("e", START - DAY, "w", "tenant", "running", namespace="train", pod="w-0", placed_class="H100")
    fleet = Fleet(samples, [event], [], [], Settings(window_seconds=60), [START], START + DAY)
    (row,) = account_fleet(fleet)[0].usage
    assert row["energy_wh"] == Decimal(round(Fraction(sum(rises[:60]), 3_600_000) * 10**6)).scaleb(-6)


OTHER_PODS = {"no_uuid", "exporter_names", "two_pods"}
"""Rows whose pod is not the one of their first labels, or of no device (A7, A8)."""


@given(SEEDS)
@examples(25)
def test_without_events_pods_are_accounted_by_their_samples(seed: int) -> None:
    """A18: each labelled pod has a row, and nobody else has."""
    fleet = fleet_of(seed, FEATURES - OTHER_PODS).without(events=[])
    for hour, start in zip(account_fleet(fleet), fleet.hours, strict=True):
        assert all(row["basis"] == "samples" and row["placed_class"] is None for row in hour.usage)
        rows = {row["workload_id"] for row in hour.usage}
        assert rows <= set(pods(fleet.samples))
        labelled = first_labels(fleet, start)
        assert labelled <= rows
        assert all(row["lifecycle"] == 0 for row in hour.fleet)


def pods(samples: Iterable[Sample]) -> list[str]:
    return ["/".join(pair) for sample in samples if (pair := label_pair(sample.labels))]


def first_labels(fleet: Fleet, start: int) -> set[str]:
    """Pods of the earliest instant of each window and device that has any (A11)."""
    earliest: dict[tuple[str, str, int], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for sample in fleet.samples:
        if start <= sample.at < start + HOUR and (pair := label_pair(sample.labels)):
            window = sample.at // (fleet.settings.window_seconds * 1000)
            device = (sample.labels.get("UUID") or sample.labels["uuid"], sample.labels.get("GPU_I_ID", ""), window)
            earliest[device][sample.at].add("/".join(pair))
    return {pod for instants in earliest.values() for pod in instants[min(instants)]}


@given(SEEDS)
@examples(25)
def test_fleet_identity(seed: int) -> None:
    """A21: every visible device-second is somebody's or nobody's, every allocated GPU-second is matched or not."""
    for hour in account_fleet(fleet_of(seed)):
        for row in hour.fleet:
            parts = ("held", "stale", "unattributed", "idle", "no_data")
            assert row["visible"] == sum(row[name] for name in parts)
            assert abs(row["lifecycle"] - row["matched"] - row["unmatched"]) <= MILLI
        seconds = sum((row["gpu_seconds"] for row in hour.usage if row["basis"] == "lifecycle"), Decimal(0))
        allocated = sum((row["lifecycle"] for row in hour.fleet), Decimal(0))
        assert abs(seconds - allocated) <= MILLI * (len(hour.usage) + len(hour.fleet))


@given(
    st.sets(st.integers(0, 59), max_size=59),
    st.integers(0, 50),
    st.integers(0, 8),
    st.sets(st.integers(0, 59)),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_an_uninvited_pod_changes_no_amount(
    seen: set[int], first: int, dropped: int, guests: set[int], named: bool
) -> None:
    """A17: whatever is read, in gaps and where the label drops, a pod without events takes nothing of a whole card."""
    device = {"UUID": "GPU-1", "modelName": RAW["H100"]}
    alone, visited = [], []
    for minute in sorted({0, first, min(first + dropped + 1, 59)} | seen):
        own = {} if first < minute <= first + dropped else {"namespace": "train", "pod": "w-0"}
        for metric, value in ((POWER, 300.0 + minute), (MEMORY, 9000.0), (PROF, 0.5)):
            at = START + minute * 60_000
            alone.append(Sample(metric, device | own, at, value))
            if minute in guests:
                guest = {"namespace": "monitoring", "pod": "health"}
                visited += [Sample(metric, device | labels, at, value) for labels in ([own, guest] if own else [guest])]
            else:
                visited.append(alone[-1])
    uuids = ("GPU-1",) if named else None
    event = Event(
        "e",
        START - HOUR,
        "w",
        "tenant",
        "running",
        namespace="train",
        pod="w-0",
        placed_class="H100-80GB",
        gpu_uuids=uuids,
    )
    config = Settings(window_seconds=60, models={RAW["H100"]: "H100-80GB"})
    one, two = (
        account_fleet(Fleet(rows, [event], [], [], config, [START], START + DAY))[0] for rows in (alone, visited)
    )
    assert (one.usage, one.idle, one.fleet) == (two.usage, two.idle, two.fleet)


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, HOUR - 1), st.integers(1, HOUR), st.integers(1, 5)), max_size=4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_card_is_never_priced_twice(boards: int, runs: list[tuple[int, int, int]], labelled: bool) -> None:
    """A36: priced GPU-seconds are at most the visible ones and what stays unmatched; what the fleet draws is on rows."""
    samples = [
        Sample(POWER, {"UUID": f"GPU-{board}", "modelName": RAW["H100"], "Hostname": "n"} | pod, START + at, 250.0)
        for board in range(boards)
        for pod in ({"namespace": "train", "pod": f"w-{board}"} if labelled else {},)
        for at in range(0, HOUR, 60_000)
    ]
    events = []
    for number, (begin, length, halves) in enumerate(runs):
        for name, at, state in (("a", begin, "running"), ("b", begin + length, "stopped")):
            events.append(
                Event(
                    f"{number}{name}", START + at, f"wl-{number}", "tenant", state, gpu_count=Fraction(halves, 2),
                    namespace="train", pod=f"w-{number}", placed_class="H100-80GB",
                )
            )  # fmt: skip
    config = Settings(window_seconds=60, models={RAW["H100"]: "H100-80GB"})
    (hour,) = account_fleet(Fleet(samples, events, [], [], config, [START], START + DAY))
    assert hour.overpriced == {}
    paid = [row for row in (*hour.usage, *hour.idle) if row.get("tenant_id", "nobody's")]
    priced = sum((row["gpu_seconds"] for row in paid), Decimal(0))
    visible = sum((row["visible"] for row in hour.fleet), Decimal(0))
    stayed = sum((row["missing_seconds"] for row in hour.usage), Decimal(0))
    assert priced <= visible + stayed + MILLI * (len(runs) + 1)
    energy = sum((row["energy_wh"] or 0 for row in paid), Decimal(0))
    assert abs(energy - 250 * boards) <= Decimal("0.00001"), "what the fleet draws is on rows, once"
