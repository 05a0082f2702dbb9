"""What must hold of telemetry whoever exports it: spellings, second scrapers, scrape intervals, edges of hours and jobs.

One device or board each, through the whole accounting of an hour (A7, A8, A11, A19, A20).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.config import AccountingConfig, CardLimit, LabelNames
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.hour import account_hour, event_pods, sample_hour
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.contracts.lake import DCGM_SERIES, DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS
from tests.reference.profiles import examples

TEN = 1_790_848_800_000  # 2026-10-01T10:00:00Z
MINUTE = 60_000
PROF = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
MEMORY = "DCGM_FI_DEV_FB_USED"
POWER = "DCGM_FI_DEV_POWER_USAGE"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
OLD = {UTIL: "dcgm_gpu_utilization", MEMORY: "dcgm_fb_used", POWER: "dcgm_power_usage"}
H100 = "NVIDIA H100 80GB HBM3"
BASE = {"UUID": "GPU-a", "modelName": H100, "Hostname": "node-1", "job": "dcgm", "instance": "10.0.0.1:9400"}
CONFIG = AccountingConfig(
    platform_tenant="platform",
    models={H100: "H100-80GB"},
    card_limits={H100: CardLimit(Decimal(700), Decimal(80))},
    class_fraction={"quarter": Fraction(1, 4)},
)
UNITS = ("gpu_seconds", "gpu_active_seconds", "gpu_memory_gb_seconds", "energy_wh")
Value = float | Callable[[int], float]


@dataclass
class Cluster:
    """What was exported and recorded; instants are ms from 10:00."""

    series: list[tuple[str, dict[str, str], list[int], list[float]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    config: AccountingConfig = CONFIG

    def read(self, values: dict[str, Value], labels: dict[str, str], instants: Iterable[int]) -> Cluster:
        at = list(instants)
        for metric, value in values.items():
            self.series.append((metric, BASE | labels, at, [value(t) if callable(value) else value for t in at]))
        return self

    def runs(self, workload: str, begin: int, end: int | None = None, **changes: object) -> Cluster:
        row = {"workload_id": workload, "tenant_id": "t", "namespace": "ns", "pod": workload, "gpu_count": Decimal(1)}
        row |= {"placed_class": "H100-80GB", "event_id": f"{workload}+", "to_state": "running"}
        self.events.append(row | {"occurred_at": TEN + begin} | changes)
        if end is not None:
            stop = {"event_id": f"{workload}-", "to_state": "stopped", "from_state": "running", "gpu_count": None}
            self.events.append(row | {"occurred_at": TEN + end} | changes | stop)
        return self

    def usage(self, start: int = TEN) -> dict[tuple[str, str], dict[str, Any]]:
        """Rows of an hour's usage by workload and model."""
        return {(row["workload_id"], row["gpu_model"]): row for row in self.hour(start)[0].to_pylist()}

    def idle(self, start: int = TEN) -> dict[str, dict[str, Any]]:
        """Idle lines of an hour by model."""
        return {row["gpu_model"]: row for row in self.hour(start)[3].to_pylist()}

    def hour(self, start: int = TEN) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        """GPU_USAGE, QUARANTINE, FINDINGS and GPU_IDLE of an hour."""
        events = pa.Table.from_pylist(self.events, WORKLOAD_EVENTS)
        records = {
            "workload_events": events,
            "deployments": DEPLOYMENTS.empty_table(),
            "gpu_inventory": GPU_INVENTORY.empty_table(),
        }
        now = start + 48 * HOUR_MS
        pods = event_pods(events, now, self.config)
        tables = {hour: self._table(hour) for hour in range(start - 3 * HOUR_MS, start + 4 * HOUR_MS, HOUR_MS)}
        summaries = {
            hour: summarise(read_hour(table, hour, self.config, pods), self.config)
            for hour, table in tables.items()
            if len(table)
        }
        sampled = sample_hour("c", start, tables[start], summaries, records, now, self.config)
        found = account_hour("c", start, sampled, records, now, self.config)
        return found.usage, sampled.rejected, sampled.findings, found.idle

    def _table(self, hour: int) -> pa.Table:
        rows = []
        for metric, labels, instants, values in self.series:
            inside = [n for n, at in enumerate(instants) if hour <= TEN + at < hour + HOUR_MS]
            if inside:
                at, value = [TEN + instants[n] for n in inside], [values[n] for n in inside]
                rows.append({"metric": metric, "labels": list(labels.items()), "timestamps": at, "values": value})
        return pa.Table.from_pylist(rows, DCGM_SERIES)


def pod(name: str) -> dict[str, str]:
    return {"namespace": "ns", "pod": name, "container": "main"}


def every(seconds: int, offset: int = 0, begin: int = -HOUR_MS, end: int = 2 * HOUR_MS) -> range:
    return range(begin + offset, end, seconds * 1000)


STEADY: dict[str, Value] = {PROF: 0.5, MEMORY: 10_240.0, POWER: 300.0, ENERGY: lambda t: 300 * (t + HOUR_MS)}


@given(
    offsets=st.tuples(st.integers(0, 14_999), st.integers(0, 59_999)),
    begin=st.integers(-1000, HOUR_MS - 60_000),
    length=st.integers(30_000, HOUR_MS),
    counter=st.booleans(),
)
@examples(25)
def test_a_steady_load_is_the_same_at_15_s_and_at_60_s(
    offsets: tuple[int, int], begin: int, length: int, counter: bool
) -> None:
    """A11, A19, A20: no unit changes by more than one window, whatever the pods are read by."""
    values = {name: value for name, value in STEADY.items() if counter or name != ENERGY}
    found = []
    for seconds, offset in zip((15, 60), offsets, strict=True):
        instants = every(seconds, offset)
        cluster = Cluster().runs("w", begin, begin + length).read(values, pod("w"), instants)
        found.append(cluster.usage()["w", "H100-80GB"])
    assert found[0]["gpu_seconds"] == found[1]["gpu_seconds"]
    for unit, rate in zip(UNITS[1:], ("0.5", "10", str(300 / 3600)), strict=True):
        assert abs(found[0][unit] - found[1][unit]) <= 15 * Decimal(rate), unit
    assert found[1]["estimated_seconds"] == found[1]["missing_seconds"] == 0


@given(st.integers(0, 59_999), st.sampled_from((15, 30, 60)))
@examples(25)
def test_per_process_rows_are_divided_alike_at_every_scrape_interval(offset: int, seconds: int) -> None:
    """A19: own values between their readings too, also over the hour's edges."""
    cluster = Cluster()
    for name, share in (("a", 0.75), ("b", 0.25)):
        cluster.runs(name, -HOUR_MS, placed_class="quarter")
        cluster.read({MEMORY: 16_384 * share, UTIL: 40 * share}, pod(name), every(seconds, offset))
    cluster.read({MEMORY: 16_384.0, UTIL: 40.0, POWER: 300.0}, {}, every(seconds, offset))
    usage = cluster.usage()
    assert usage["a", "H100-80GB"]["gpu_memory_gb_seconds"] == 12 * 3600
    assert usage["b", "H100-80GB"]["gpu_memory_gb_seconds"] == 4 * 3600
    assert usage["a", "H100-80GB"]["gpu_active_seconds"] == Decimal("0.3") * 3600


def test_in_a_gap_of_the_processes_each_has_an_equal_part() -> None:
    """A19: 20 minutes without their rows; the device itself is read all the time."""
    cluster = Cluster().read({MEMORY: 16_384.0}, {}, every(15))
    outside = [t for t in every(15) if not 10 * MINUTE <= t < 30 * MINUTE]
    for name, share in (("a", 0.75), ("b", 0.25)):
        cluster.runs(name, -HOUR_MS, placed_class="quarter").read({MEMORY: 16_384 * share}, pod(name), outside)
    # The last own reading is at 9:45 min, the first after it at 30 min: 80 windows by halves of 16 GB, the others by own.
    assert cluster.usage()["a", "H100-80GB"]["gpu_memory_gb_seconds"] == 12 * 2400 + 8 * 1200


@given(st.integers(0, 59_999), st.integers(0, 59_999), st.sampled_from((15, 60)), st.sampled_from((15, 60)))
@examples(25)
def test_a_second_scraper_changes_nothing(first: int, second: int, one: int, other: int) -> None:
    """A7, A11: not an amount, nor what is measured."""

    def scraped(*jobs: tuple[str, int, int]) -> dict[tuple[str, str], dict[str, Any]]:
        cluster = Cluster().runs("w", 61_234, 55 * MINUTE + 789)
        for job, seconds, offset in jobs:
            cluster.read(STEADY, pod("w") | {"job": job}, every(seconds, offset))
        return cluster.usage()

    assert scraped(("a", one, first), ("b", other, second)) == scraped(("a", one, first))


@given(
    st.lists(
        st.sampled_from((H100, "nvidia-h100-80gb-hbm3", "NVIDIA_H100-80GB HBM3", "h100 80GB")), min_size=3, max_size=3
    )
)
@examples(25)
def test_spellings_of_a_model_change_nothing(names: list[str]) -> None:
    """Section 2: exporters' flags for dashes, an upgrade in the hour; limits and prices go on."""

    def spelled(*models: str) -> dict[tuple[str, str], dict[str, Any]]:
        cluster = Cluster().runs("w", -HOUR_MS)
        for number, model in enumerate(models):
            part = [t for t in every(15) if min(max(t, 0) // (20 * MINUTE), 2) == number]
            cluster.read(STEADY | {MEMORY: 90_000.0}, pod("w") | {"modelName": model}, part)
        return cluster.usage()

    assert spelled(*names) == spelled(H100, H100, H100)
    assert spelled(*names)["w", "H100-80GB"]["gpu_memory_gb_seconds"] is None, "above the card's memory (A10)"


def test_cards_under_one_name_of_the_platform_keep_their_own_limits() -> None:
    """A10: two names of DCGM, one of the platform's; each spelling finds its own entry first."""
    names = {"NVIDIA A100-SXM4-40GB": "A100", "NVIDIA A100-SXM4-80GB": "A100"}
    limits = {name: CardLimit(Decimal(400), Decimal(size)) for name, size in zip(names, (40, 80), strict=True)}
    cluster = Cluster(config=replace(CONFIG, models=names, card_limits=limits)).runs("w", -HOUR_MS)
    cluster.read({MEMORY: 61_440.0}, pod("w") | {"modelName": "nvidia_a100_sxm4_80gb"}, every(15))
    assert cluster.usage()["w", "A100"]["gpu_memory_gb_seconds"] == 60 * 3600
    assert len(cluster.hour()[1]) == 0


def test_an_unlisted_model_has_the_smallest_spelling_of_the_hour() -> None:
    cluster = Cluster(config=replace(CONFIG, models={})).runs("w", -HOUR_MS, placed_class="any")
    for model, part in (("X_9", every(15, end=1000)), ("x 9", every(15, begin=1000))):
        cluster.read(STEADY, pod("w") | {"modelName": model}, part)
    assert list(cluster.usage()) == [("w", "X_9")]
    assert list(cluster.usage(TEN + HOUR_MS)) == [("w", "x 9")], "the other spelling is not of that hour"


def test_a_device_is_the_model_of_most_of_its_windows() -> None:
    """A7: 25 minutes of one, 35 of the other; a gap counts as the nearer reading."""
    cluster = Cluster().runs("w", -HOUR_MS)
    for model, begin, end in (("A", -HOUR_MS, 20 * MINUTE), ("B", 30 * MINUTE, 2 * HOUR_MS)):
        cluster.read({PROF: 0.5}, pod("w") | {"modelName": model}, every(15, begin=begin, end=end))
    assert list(cluster.usage()) == [("w", "B")]


@given(st.booleans(), st.booleans())
@examples(25)
def test_exporters_of_all_ages_tell_the_same(old: bool, honored: bool) -> None:
    """A7, A8: names of metrics and labels."""
    group = {"exported_namespace": "ns", "exported_pod": "w", "exported_container": "exporter"}
    exporter = {"namespace": "gpu", "pod": "nvidia-dcgm-exporter-x", "container": "exporter"}
    labels = pod("w") | {"container": "exporter"} if honored else group | exporter
    if old:
        labels = {"uuid": "GPU-a", "UUID": "", "pod_name": "w", "pod_namespace": "ns", "container_name": "exporter"}
    values: dict[str, Value] = {UTIL: 50.0, MEMORY: 10_240.0, POWER: 300.0}
    plain = Cluster().read(values, pod("w"), every(15))
    other = Cluster().read({OLD[n] if old else n: v for n, v in values.items()}, labels, every(15))
    assert other.usage() == plain.usage()
    assert list(plain.usage()) == [("ns/w", "H100-80GB")]


def test_a_pod_that_an_event_names_is_no_exporter() -> None:
    """A8, also in the hours around: the label holds the device through a gap at the hour's edge."""
    name = "my-dcgm-exporter-test"
    cluster = Cluster().read(STEADY, pod(name), [t for t in every(15) if not -5 * MINUTE < t < 5 * MINUTE])
    assert cluster.usage() == {}
    row = cluster.runs("w", -HOUR_MS, pod=name).usage()["w", "H100-80GB"]
    assert (row["gpu_seconds"], row["energy_wh"]) == (3600, 300)
    assert row["estimated_seconds"] == 300


def test_two_pods_in_a_row_are_found_and_honor_labels_decides() -> None:
    """A8."""
    labels = pod("mine") | {"exported_namespace": "b", "exported_pod": "victim"}
    cluster = Cluster().read(STEADY, labels, every(15, begin=30 * MINUTE))
    assert list(cluster.usage()) == [("b/victim", "H100-80GB")]
    (found,) = (row for row in cluster.hour()[2].to_pylist() if row["kind"] == "two_pods")
    assert (found["subject"], found["seconds"]) == ("GPU-a", 1800)
    assert "b/victim, which counts, and ns/mine" in found["detail"]
    cluster.config = replace(CONFIG, labels=LabelNames(honor_labels=True))
    assert list(cluster.usage()) == [("ns/mine", "H100-80GB")]
    assert "two_pods" not in cluster.hour()[2]["kind"].to_pylist()


def test_rows_without_a_uuid_are_counted() -> None:
    """A7: only those of the hour, by node, index and metric."""
    cluster = Cluster().read({PROF: 0.5, "DCGM_FI_OTHER": 1.0}, {"UUID": "", "gpu": "2"}, every(60))
    (row,) = cluster.hour()[1].to_pylist()
    assert row == {"source": "dcgm", "key": f"node-1/2:{PROF}", "reason": "no_uuid", "detail": "readings=60"}


def mig(instance: str, profile: str, name: str) -> dict[str, str]:
    return pod(name) | {"GPU_I_ID": instance, "GPU_I_PROFILE": profile}


@pytest.mark.parametrize(
    ("profiles", "slices"),
    [
        (("MIG 3g.40gb", "1c.3g.40gb"), (3, 3)),
        (("3G.40GB", "1g.10gb+me"), (3, 1)),
        (("3g.40gb", "odd"), (3, 4)),
        (("", "?"), (Fraction(7, 2), Fraction(7, 2))),
        (("1g.5gb", "a", "b", "40gb"), (1, 2, 2, 2)),
        (("7g.80gb", "odd"), (7, 0)),
    ],
)
def test_profiles_are_read_or_take_what_is_left(profiles: tuple[str, ...], slices: tuple[Fraction, ...]) -> None:
    """A19: time and activity by slices of the card, energy by those of the board's instances."""
    cluster = Cluster()
    for number, profile in enumerate(profiles):
        cluster.read(STEADY, mig(str(number + 1), profile, f"p{number}"), every(15))
    usage = cluster.usage()
    for number, share in enumerate(slices):
        row = usage[f"ns/p{number}", "H100-80GB"]
        assert abs(row["gpu_seconds"] - Decimal(float(3600 * share / 7))) < Decimal("0.0015")
        assert abs(row["energy_wh"] - 300 * Decimal(float(share / sum(slices)))) < Decimal("0.000002")
    assert abs(sum(row["energy_wh"] for row in usage.values()) - 300) <= Decimal("0.000002"), "parts make the whole"
    odd = [row["subject"] for row in cluster.hour()[2].to_pylist() if row["kind"] == "unknown_profile"]
    unknown = [f"GPU-a/{n + 1}" for n, profile in enumerate(profiles) if profile in {"", "?", "odd", "a", "b", "40gb"}]
    assert odd == unknown


@pytest.mark.parametrize(
    ("model", "slices", "known"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 4, True),
        ("NVIDIA-A30", 4, True),
        ("GRID A100-10C", 7, True),
        ("NVIDIA GB200", 7, True),
        ("NVIDIA A300", 7, False),
        ("Future 9000", 7, False),
        ("My Card", 5, True),
    ],
)
def test_slices_of_a_card_are_known_or_found_missing(model: str, slices: int, known: bool) -> None:
    """A19: the shipped table by words of the name, the configured one by any spelling."""
    cluster = Cluster(config=replace(CONFIG, mig_slices={"my_card": 5}))
    cluster.read(STEADY, mig("1", "1g.1gb", "p") | {"modelName": model}, every(15))
    assert cluster.usage()["ns/p", model]["gpu_seconds"] == round(Decimal(3600) / slices, 3)
    found = [row["subject"] for row in cluster.hour()[2].to_pylist() if row["kind"] == "unknown_card"]
    assert found == ([] if known else [model])


@pytest.mark.parametrize("last", [9, 10])
def test_few_distances_in_the_hour_are_completed_by_those_around(last: int) -> None:
    """A11: with ten instants or less in the hour a slow scrape is still measured; alone it is not."""
    inside = [t for t in every(120) if 0 <= t <= last * 120_000]
    found = Cluster().runs("w", 0, 20 * MINUTE).read(STEADY, pod("w"), inside + [t for t in every(120) if t < 0])
    assert found.usage()["w", "H100-80GB"]["measured_seconds"] == Decimal(last * 120 + 15 if last < 10 else 1200)
    alone = Cluster().runs("w", 0, 20 * MINUTE).read(STEADY, pod("w"), inside)
    expected = 15 * 10 if last < 10 else 1200
    assert alone.usage()["w", "H100-80GB"]["measured_seconds"] == expected


@given(st.integers(0, 14_999), st.integers(0, 30), st.booleans())
@examples(25)
def test_a_counter_that_stands_still_gives_way_to_power(offset: int, back: int, drawn: bool) -> None:
    """A20: nine readings, 120 s, are believed; one more is not, wherever the hour ends among them."""
    for length, still in ((8, False), (9, True)):
        instants = list(every(15, offset))
        first = next(n for n, t in enumerate(instants) if t >= 0) - back
        edge = instants[first], instants[first + length]

        def counter(t: int, edge: tuple[int, int] = edge) -> float:
            return 10**9 + 300 * (t - max(0, min(t, edge[1]) - edge[0]))

        power = 300.0 if drawn else 0.0
        cluster = Cluster().runs("w", -HOUR_MS).read({ENERGY: counter, POWER: power}, pod("w"), instants)
        lost = max(0, edge[1] - max(edge[0], 0)) if not (still and drawn) else 0
        found = cluster.usage()["w", "H100-80GB"]["energy_wh"]
        assert abs(found - Decimal(300 * (HOUR_MS - lost)) / 3_600_000) <= Decimal("0.000001")


def test_a_standstill_is_followed_over_whole_hours() -> None:
    """A20: the counter stands from 09:30 to 12:10, and power is read for one minute of 09:40 only."""
    standing = Cluster().runs("w", -HOUR_MS)
    standing.read({ENERGY: lambda t: 10**9 + 300.0 * (min(t, -30 * MINUTE) + max(t - 130 * MINUTE, 0))}, pod("w"),
                  every(15, end=3 * HOUR_MS))  # fmt: skip
    standing.read({POWER: 300.0}, pod("w"), every(15, begin=-20 * MINUTE, end=-19 * MINUTE))
    row = standing.usage()["w", "H100-80GB"]
    assert row["energy_wh"] == 300, "the one reading of power is held"
    assert row["methods"] == "held=3600.000"


JOB_MS = 90_000


def short_run(begin: int, offset: int, *, counter: bool) -> tuple[Decimal, Decimal]:
    """Wh of a job of 90 s and 400 W on a card that idles at 60 W, and of the whole card in the hour."""

    def drawn(t: int) -> float:
        return 400.0 if begin <= t < begin + JOB_MS else 60.0

    def counted(t: int) -> float:
        return 10**9 + 60 * t + 340 * min(max(t - begin, 0), JOB_MS)

    cluster = Cluster().runs("w", begin, begin + JOB_MS)
    values: dict[str, Value] = {POWER: drawn, ENERGY: counted} if counter else {POWER: drawn}
    cluster.read(values, pod("w"), every(15, offset))
    job, idle = cluster.usage()["w", "H100-80GB"]["energy_wh"], cluster.idle()["H100-80GB"]["energy_wh"]
    return job, job + idle


def test_the_energy_of_a_short_run_is_as_far_off_as_the_documents_say() -> None:
    """A20: 90 s, windows and scrapes of 15 s; docs/dcgm.md has these figures."""
    edges = [(600_000 + begin, offset) for begin in (0, 1500, 7500, 13_500) for offset in (0, 3000, 7500, 12_000)]
    integral, card = Decimal(10), Decimal(60 * HOUR_MS + 340 * JOB_MS) / 3_600_000
    power = [short_run(begin, offset, counter=False)[0] / integral for begin, offset in edges]
    assert (min(power), max(power)) == (Decimal("0.8725"), Decimal(1))
    counted = [short_run(begin, offset, counter=True) for begin, offset in edges]
    assert min(job for job, _ in counted) / integral >= Decimal("0.929")
    assert max(job for job, _ in counted) / integral == 1
    assert {whole for _, whole in counted} == {card}, "with a counter nothing of the card is lost or made"
    on_edges = [short_run(600_000 + begin, begin, counter=True)[0] for begin in (0, 1500, 7500, 13_500)]
    assert set(on_edges) == {integral}, "read at both edges, the counter is exact"
