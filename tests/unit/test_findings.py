"""Each kind of finding on the smallest hour that shows it, its seconds worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import AccountingConfig, FindingLimits
from finops_pipeline.accounting.exact import HOUR_MS
from finops_pipeline.accounting.findings.context import listed, stretches
from finops_pipeline.accounting.findings.kinds import Kind
from finops_pipeline.accounting.findings.liveness import tells_failure
from finops_pipeline.accounting.hour import account_hour, sample_hour
from finops_pipeline.accounting.telemetry.readings import read_hour
from finops_pipeline.accounting.telemetry.summaries import summarise
from finops_pipeline.contracts.lake import DCGM_SERIES, DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS
from tests.reference.fast import config_of, records_of, series_of
from tests.reference.fleets import fleet_of

TEN = 1_790_848_800_000  # 2026-10-01T10:00:00Z
A, B, OWNER = (f"{n}0000000-0000-4000-8000-00000000000{n}" for n in "abc")
CONFIG = AccountingConfig(
    platform_tenant="ff000000-0000-4000-8000-0000000000ff",
    class_fraction={"T4-quarter": Fraction(1, 4), "H100-2g": Fraction(2, 7)},
)
PROF, POWER, ENERGY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
Curve = Callable[[int], float]


def at(clock: str) -> int:
    """Milliseconds from 10:00 to a time of that day."""
    hours, minutes, *seconds = map(int, clock.split(":"))
    return ((hours - 10) * 3600 + minutes * 60 + sum(seconds)) * 1000


class World:
    """A little cluster: what was read and what was told of it."""

    def __init__(self, config: AccountingConfig = CONFIG) -> None:
        self.config, self.rows, self.events, self.deployments = config, [], [], []  # type: ignore[var-annotated]

    def read(
        self,
        uuid: str,
        first: str = "10:00",
        past: str = "11:00",
        *,
        pod: str | None = None,
        util: float | Curve = 0.5,
        power: float | Curve | None = None,
        energy: Curve | None = None,
        instance: str | None = None,
        profile: str = "",
        model: str = "H100",
    ) -> World:
        """A device is read every 15 s of [first, past)."""
        labels = {"UUID": uuid, "modelName": model, "Hostname": "n1"}
        labels |= {"GPU_I_ID": instance, "GPU_I_PROFILE": profile} if instance else {}
        labels |= {"exported_namespace": "ns", "exported_pod": pod, "exported_container": "c"} if pod else {}
        instants = list(range(at(first), at(past), 15_000))
        for metric, value in ((PROF, util), (POWER, power), (ENERGY, energy)):
            if value is not None:
                values = [value(t) if callable(value) else value for t in instants]
                self.rows.append((metric, labels, instants, values))
        return self

    def event(self, clock: str, workload: str, state: str = "running", **changes: object) -> World:
        row = {
            "event_id": f"{workload}@{clock}", "occurred_at": TEN + at(clock), "workload_id": workload, "tenant_id": A,
            "namespace": "ns", "pod": workload, "from_state": None, "to_state": state, "gpu_count": Decimal(1),
            "placed_class": "H100",
        }  # fmt: skip
        self.events.append({**row, **changes})
        return self

    def findings(self, kind: Kind | None = None, hour: int = 0) -> list[dict[str, Any]]:
        """The rows of a kind, or all, of the hour that is `hour` hours after 10:00."""
        series: dict[int, pa.Table] = {}
        for begin in {TEN + t // HOUR_MS * HOUR_MS for *_, instants, _ in self.rows for t in instants}:
            rows = []
            for metric, labels, instants, values in self.rows:
                inside = [i for i, t in enumerate(instants) if begin <= TEN + t < begin + HOUR_MS]
                rows.append(
                    {
                        "metric": metric,
                        "labels": list(labels.items()),
                        "timestamps": [TEN + instants[i] for i in inside],
                        "values": [values[i] for i in inside],
                    }
                )
            series[begin] = pa.Table.from_pylist([row for row in rows if row["values"]], DCGM_SERIES)
        start = TEN + hour * HOUR_MS
        records = {
            "workload_events": pa.Table.from_pylist(self.events, WORKLOAD_EVENTS),
            "deployments": pa.Table.from_pylist(self.deployments, DEPLOYMENTS),
            "gpu_inventory": GPU_INVENTORY.empty_table(),
        }
        summaries = {begin: summarise(read_hour(t, begin, self.config), self.config) for begin, t in series.items()}
        own = series.get(start, DCGM_SERIES.empty_table())
        found = sample_hour("c1", start, own, summaries, records, TEN + 48 * HOUR_MS, self.config).findings
        return [row for row in found.to_pylist() if kind is None or row["kind"] == kind.code]


def told(rows: list[dict[str, Any]]) -> list[tuple[str, str | None, str | None, str, str, str]]:
    """Subject, workload, tenant, from, to and seconds."""
    return [
        (
            row["subject"],
            row["workload_id"],
            row["tenant_id"],
            f"{row['first_at']:%H:%M:%S}",
            f"{row['last_at']:%H:%M:%S}",
            f"{row['seconds']}",
        )
        for row in rows
    ]


def idle(first: str, past: str) -> Curve:
    """Below 1 % in [first, past), busy otherwise."""
    return lambda t: 0.002 if at(first) <= t < at(past) else 0.8


def test_nothing_is_found_where_all_is_well() -> None:
    world = World().event("09:00", "w", tenant_id=A, deployment_id="d").event("10:30", "w", "stopped", gpu_count=None)
    world.deployments.append({"deployment_id": "d", "mode": "dedicated", "owner_tenant_id": A})
    world.read("GPU-a", "10:00", "10:30", pod="w", power=500, energy=lambda t: 500 * t + 7)
    world.read(
        "GPU-a", "10:30", "11:00", util=0.0, power=70, energy=lambda t: 500 * at("10:30") + 70 * (t - at("10:30"))
    )
    assert told(world.findings()) == []


# Signs of life


def test_held_but_idle_counts_only_long_stretches() -> None:
    def use(t: int) -> float:
        return 0.9 if at("10:40") <= t < at("10:41") else 0.009

    rows = World().event("09:00", "w").read("GPU-a", pod="w", util=use).findings(Kind.HELD_BUT_IDLE)
    assert told(rows) == [("GPU-a", "w", A, "10:00:00", "10:40:00", "2400.000")]  # not 10:41 to 11:00


def test_half_an_hour_is_long_and_one_window_less_is_not() -> None:
    long = World().event("09:00", "w").read("GPU-a", pod="w", util=idle("10:10", "10:40"))
    short = World().event("09:00", "w").read("GPU-a", pod="w", util=idle("10:10", "10:39:45"))
    assert told(long.findings(Kind.HELD_BUT_IDLE)) == [("GPU-a", "w", A, "10:10:00", "10:40:00", "1800.000")]
    assert short.findings(Kind.HELD_BUT_IDLE) == []


def test_a_device_at_the_threshold_is_busy() -> None:
    assert World().event("09:00", "w").read("GPU-a", pod="w", util=0.01).findings(Kind.HELD_BUT_IDLE) == []


def test_the_threshold_and_the_minutes_are_the_sites() -> None:
    limits = FindingLimits(idle_utilization=Decimal("0.6"), idle_minutes=59)
    config = AccountingConfig(platform_tenant="p", findings=limits)
    rows = World(config).event("09:00", "w").read("GPU-a", pod="w").findings(Kind.HELD_BUT_IDLE)
    assert [row["seconds"] for row in rows] == [Decimal("3600.000")]


def test_an_outage_says_nothing_about_idleness() -> None:
    """Readings of two hours ago are no measurement, nor is the mean of readings far apart."""
    world = World().event("05:00", "w").read("GPU-a", "07:00", "07:30", pod="w", util=0.0)
    assert world.read("GPU-a", "12:00", "12:30", pod="w", util=0.0).findings(Kind.HELD_BUT_IDLE) == []


def test_no_sign_of_life_since_its_label_went() -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:20", util=0.0)
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:20:00", "11:00:00", "2400.000")]


def test_no_sign_of_life_until_the_end_by_its_events() -> None:
    world = World().event("09:00", "w").event("10:45:30", "w", "stopped", gpu_count=None)
    world.read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:20", util=0.0)
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:20:00", "10:45:30", "1530.000")]


def test_who_works_on_without_a_label_lives() -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w")
    world.read("GPU-a", "10:20", util=lambda t: 0.7 if t < at("10:50") else 0.0)
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:50:00", "11:00:00", "600.000")]


@pytest.mark.parametrize("last", ["10:51", "10:59"])
def test_less_than_ten_minutes_is_an_ordinary_end(last: str) -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", last, pod="w").read("GPU-a", last, util=0.0)
    assert world.findings(Kind.NO_SIGN_OF_LIFE) == []


def test_the_last_minutes_of_an_hour_count_where_the_next_hour_is_silent_too() -> None:
    world = (
        World().event("09:00", "w").read("GPU-a", "10:00", "10:55", pod="w").read("GPU-a", "10:55", "12:00", util=0.0)
    )
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:55:00", "11:00:00", "300.000")]
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE, 1)) == [("w", "w", A, "11:00:00", "12:00:00", "3600.000")]


def test_a_label_that_comes_back_is_a_sign_of_life() -> None:
    world = (
        World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:20", "11:30", util=0.0)
    )
    world.read("GPU-a", "11:30", "12:00", pod="w")
    assert world.findings(Kind.NO_SIGN_OF_LIFE) == []


def test_somebody_else_at_work_on_its_device_is_no_sign_of_life() -> None:
    world = (
        World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:20", "10:40", util=0.0)
    )
    world.read("GPU-a", "10:40", pod="other")
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:20:00", "11:00:00", "2400.000")]


def test_a_silent_device_tells_nothing() -> None:
    assert World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w").findings(Kind.NO_SIGN_OF_LIFE) == []


def test_after_an_outage_the_last_sign_is_the_last_reading_with_its_label() -> None:
    world = (
        World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:50", "11:30", util=0.0)
    )
    assert told(world.findings(Kind.NO_SIGN_OF_LIFE)) == [("w", "w", A, "10:20:00", "11:00:00", "2400.000")]


def test_one_of_two_devices_with_the_label_is_a_sign_of_life() -> None:
    world = World().event("09:00", "w", gpu_count=Decimal(2)).read("GPU-a", pod="w", util=0.0)
    world.read("GPU-b", "10:00", "10:20", pod="w").read("GPU-b", "10:20", util=0.0)
    assert world.findings(Kind.NO_SIGN_OF_LIFE) == []


def test_a_part_of_a_gpu_may_work_behind_its_neighbours_label() -> None:
    """Old exporters show one of the sharing pods."""
    part: dict[str, Any] = {"gpu_count": Decimal(1), "placed_class": "T4-quarter"}
    world = World().event("09:00", "w", **part).event("09:00", "v", **part)
    world.read("GPU-a", "10:00", "10:20", pod="w").read("GPU-a", "10:20", pod="v")
    assert world.findings(Kind.NO_SIGN_OF_LIFE) == []


def test_node_failure_from_the_last_label_to_the_event() -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w")
    world.event("10:32:30", "w", "failed", gpu_count=None, reason="Xid 79: fallen off the bus")
    assert told(world.findings(Kind.NODE_FAILURE)) == [("w", "w", A, "10:20:00", "10:32:30", "750.000")]


def test_node_failure_whose_last_label_was_in_the_hour_before() -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", "10:50", pod="w")
    world.event("11:05", "w", "failed", gpu_count=None, reason="NodeLost")
    assert told(world.findings(Kind.NODE_FAILURE, 1)) == [("w", "w", A, "10:50:00", "11:05:00", "300.000")]
    assert world.findings(Kind.NODE_FAILURE, 0) == []


@pytest.mark.parametrize(
    ("state", "reason"), [("failed", "out of memory"), ("stopped", "node drained"), ("failed", None)]
)
def test_other_ends_are_no_node_failure(state: str, reason: str | None) -> None:
    world = World().event("09:00", "w").read("GPU-a", "10:00", "10:20", pod="w")
    assert world.event("10:32:30", "w", state, gpu_count=None, reason=reason).findings(Kind.NODE_FAILURE) == []


@pytest.mark.parametrize(
    ("reason", "failure"),
    [("NodeLost", True), ("node lost", True), ("Xid79", True), ("GPU_ERROR", True), ("ECC on gpu 3", True),
     ("nodeSelector", True), ("unknown", False), ("gpus are fine", False), ("oom", False)],
)  # fmt: skip
def test_words_of_a_failure(reason: str, failure: bool) -> None:
    assert tells_failure(reason, FindingLimits().failure_words) is failure


# Labels


def test_stale_label_after_the_end() -> None:
    world = (
        World().event("09:00", "w").event("10:45:30", "w", "stopped", gpu_count=None).read("GPU-a", pod="w", util=0.0)
    )
    assert told(world.findings(Kind.STALE_LABEL)) == [("GPU-a", "w", A, "10:45:30", "11:00:00", "870.000")]


def test_label_drop_of_a_workload_and_of_a_pod_without_events() -> None:
    world = World().event("09:00", "w")
    for uuid, pod in (("GPU-a", "w"), ("GPU-b", "nb")):
        world.read(uuid, "10:00", "10:24", pod=pod).read(uuid, "10:24", "10:32").read(uuid, "10:32", pod=pod)
    assert told(world.findings(Kind.LABEL_DROP)) == [
        ("GPU-a", "w", A, "10:24:00", "10:32:00", "480.000"),
        ("GPU-b", "ns/nb", None, "10:24:00", "10:32:00", "480.000"),
    ]


def test_a_named_device_needs_no_label() -> None:
    world = World().event("09:00", "w", gpu_uuids=["GPU-a"], pod=None)
    assert world.read("GPU-a").findings() == []


def test_a_busy_device_that_nobody_pays_for() -> None:
    rows = World().read("GPU-a", util=lambda t: 0.5 if at("10:10") <= t < at("10:20") else 0.0).findings()
    assert told(rows) == [("GPU-a", None, None, "10:10:00", "10:20:00", "600.000")]
    assert [row["kind"] for row in rows] == ["unattributed_busy"]


def test_a_busy_pod_of_no_deployment_and_one_of_a_deployment() -> None:
    world = World().read("GPU-a", pod="nb").read("GPU-b", pod="chat-0")
    world.deployments.append(
        {"deployment_id": "chat", "mode": "dedicated", "owner_tenant_id": B, "namespace": "ns", "pod_pattern": "chat-*"}
    )
    (row,) = world.findings()
    assert told([row]) == [("GPU-a", None, None, "10:00:00", "11:00:00", "3600.000")]
    assert row["detail"] == "works, and nobody pays: unattributed 3600 s"


def test_more_devices_than_asked() -> None:
    world = World().event("09:00", "w").read("GPU-a", pod="w").read("GPU-b", "10:00", "10:30", pod="w")
    world.read("GPU-b", "10:30", util=0.0)
    assert told(world.findings(Kind.MORE_DEVICES_THAN_ASKED)) == [("w", "w", A, "10:00:00", "10:30:00", "1800.000")]


def test_a_fraction_of_two_devices_may_show_on_two() -> None:
    world = World().event("09:00", "w", gpu_count=Decimal("1.5")).read("GPU-a", pod="w").read("GPU-b", pod="w")
    assert world.findings(Kind.MORE_DEVICES_THAN_ASKED) == []


# Capacity


def test_unmatched_has_a_label_and_units_on_no_device() -> None:
    world = World().event("09:00", "w", gpu_count=Decimal(3)).read("GPU-a", pod="w")
    assert told(world.findings(Kind.UNMATCHED)) == [("w", "w", A, "10:00:00", "11:00:00", "7200.000")]


def test_unmatched_names_a_device_that_is_not_there() -> None:
    world = World().event("10:30", "w", gpu_uuids=["GPU-z"], pod=None, placed_class="H100-2g", gpu_count=Decimal(7))
    assert told(world.findings(Kind.UNMATCHED)) == [("w", "w", A, "10:30:00", "11:00:00", "3600.000")]  # 7 x 2/7 x 1800


def test_a_vm_is_not_unmatched() -> None:
    assert World().event("09:00", "w", pod=None).findings() == []


def test_unsold_part_of_a_shared_card() -> None:
    world = World().event("09:00", "w", gpu_count=Decimal(3), placed_class="T4-quarter").read("GPU-a", pod="w")
    assert told(world.findings(Kind.UNSOLD_PART)) == [("GPU-a", "w", A, "10:00:00", "11:00:00", "900.000")]


def test_unsold_part_of_a_second_card() -> None:
    world = World().event("09:00", "w", gpu_count=Decimal("1.5")).read("GPU-a", pod="w").read("GPU-b", pod="w")
    assert told(world.findings(Kind.UNSOLD_PART)) == [("GPU-b", "w", A, "10:00:00", "11:00:00", "1800.000")]


def test_unsold_part_beside_two_tenants_is_nobodys() -> None:
    part: dict[str, Any] = {"placed_class": "T4-quarter", "gpu_uuids": ["GPU-a"], "pod": None}
    world = World().event("09:00", "w", **part).event("10:30", "v", **part, tenant_id=B).read("GPU-a")
    assert told(world.findings(Kind.UNSOLD_PART)) == [
        ("GPU-a", None, None, "10:30:00", "11:00:00", "900.000"),  # 2/4 of 1800
        ("GPU-a", "w", A, "10:00:00", "10:30:00", "1350.000"),  # 3/4 of 1800
    ]


def test_oversold_card() -> None:
    whole: dict[str, Any] = {"gpu_uuids": ["GPU-a"], "pod": None}
    world = World().event("09:00", "w", **whole).event("10:30", "v", **whole).read("GPU-a")
    (row,) = world.findings(Kind.OVERSOLD)
    assert told([row]) == [("GPU-a", None, None, "10:30:00", "11:00:00", "1800.000")]
    assert row["detail"] == "up to 2 GPUs sold on it, to 2 at once"


def test_four_quarters_are_a_card_and_five_are_more() -> None:
    part: dict[str, Any] = {"gpu_uuids": ["GPU-a"], "pod": None, "placed_class": "T4-quarter"}
    world = World().read("GPU-a")
    for number in range(4):
        world.event("09:00", f"w{number}", **part)
    assert world.findings() == []
    (row,) = world.event("10:59", "w5", **part).findings()
    assert (row["kind"], row["seconds"]) == ("oversold", Decimal("60.000"))
    assert row["detail"] == "up to 1.25 GPUs sold on it, to 5 at once"


def test_instances_that_sum_to_more_than_their_card() -> None:
    """Two units of a whole GPU on two instances of one card: somebody forgot the class's fraction."""
    world = World()
    for number, pod in (("1", "w"), ("2", "v")):
        world.event("09:00", pod).read("GPU-a", instance=number, profile="3g.40gb", pod=pod)
    assert told(world.findings(Kind.OVERSOLD)) == [("GPU-a", None, None, "10:00:00", "11:00:00", "3600.000")]


def test_stranded_slices() -> None:
    world = World().read("GPU-a", instance="1", profile="3g.40gb", util=0.0)
    world.read("GPU-a", instance="5", profile="2g.20gb", util=0.0)
    (row,) = world.findings()
    assert told([row]) == [("GPU-a", None, None, "10:00:00", "11:00:00", "1028.571")]  # 2/7 of 3600
    assert row["detail"] == "2 of 7 slices are in no visible instance"


def test_foreign_tenant() -> None:
    world = World().event("10:15", "w", deployment_id="d", gpu_count=Decimal(2), tenant_id=B)
    world.event("10:15", "mine", deployment_id="d", tenant_id=OWNER, pod=None)
    world.deployments.append({"deployment_id": "d", "mode": "dedicated", "owner_tenant_id": OWNER})
    assert told(world.findings(Kind.FOREIGN_TENANT)) == [("w", "w", OWNER, "10:15:00", "11:00:00", "5400.000")]
    world.deployments[0]["mode"] = "shared"
    assert world.findings(Kind.FOREIGN_TENANT) == []


# Telemetry


def still(first: str, past: str) -> tuple[Curve, Curve]:
    """Power and counter that stand still in [first, past]."""

    def moving(t: int) -> int:
        return at(first) if at(first) <= t <= at(past) else t

    return (lambda t: 400 + moving(t) / 15_000 % 7), (lambda t: 400.0 * moving(t))


def test_frozen_series() -> None:
    power, energy = still("10:10", "10:13")
    (row,) = World().event("09:00", "w").read("GPU-a", pod="w", power=power, energy=energy).findings(Kind.FROZEN_SERIES)
    assert told([row]) == [("GPU-a", None, None, "10:10:00", "10:13:00", "180.000")]
    assert POWER in row["detail"]
    assert ENERGY in row["detail"]


def test_four_collections_of_thirty_seconds_are_not_more_than_four() -> None:
    power, energy = still("10:10", "10:12")
    assert (
        World().event("09:00", "w").read("GPU-a", pod="w", power=power, energy=energy).findings(Kind.FROZEN_SERIES)
        == []
    )


def test_a_device_that_nobody_holds_may_stand_still() -> None:
    power, energy = still("10:10", "10:50")
    assert World().read("GPU-a", power=power, energy=energy).findings(Kind.FROZEN_SERIES) == []


def test_power_alone_may_stand_still() -> None:
    world = World().event("09:00", "w").read("GPU-a", pod="w", power=500, energy=lambda t: 500.0 * t)
    assert world.findings() == []


def test_only_the_held_part_of_a_frozen_stretch_counts() -> None:
    power, energy = still("10:10", "10:50")
    world = World().event("10:40", "w").read("GPU-a", "10:00", "10:40", power=power, energy=energy, util=0.0)
    rows = world.read("GPU-a", "10:40", pod="w", power=power, energy=energy).findings(Kind.FROZEN_SERIES)
    assert told(rows) == [("GPU-a", None, None, "10:10:00", "10:50:00", "600.000")]


def test_counter_and_power_that_disagree() -> None:
    (row,) = World().read("GPU-a", util=0.0, power=500, energy=lambda t: 400.0 * t).findings()
    assert row["kind"] == "counter_disagrees"
    assert row["seconds"] == Decimal("3585.000")  # the counter is not read after 10:59:45
    assert row["detail"].startswith("398.333 Wh by the counter, 497.917 Wh by power")


@pytest.mark.parametrize(("watts", "found"), [(420.0, 0), (420.1, 1), (379.9, 1), (380.0, 0)])
def test_five_per_cent_of_the_counter_are_tolerated(watts: float, found: int) -> None:
    assert len(World().read("GPU-a", util=0.0, power=watts, energy=lambda t: 400.0 * t).findings()) == found


def test_ten_minutes_are_needed_for_a_comparison() -> None:
    assert World().read("GPU-a", "10:00", "10:10", util=0.0, power=500, energy=lambda t: 400.0 * t).findings() == []


# Whatever a fleet does


@pytest.mark.parametrize("seed", range(16))
def test_findings_of_a_random_fleet_fit_its_hours(seed: int) -> None:
    fleet = fleet_of(seed)
    config, records, series = config_of(fleet), records_of(fleet), series_of(fleet.samples)
    summaries = {hour: summarise(read_hour(table, hour, config), config) for hour, table in series.items()}
    for start in fleet.hours:
        near = {hour: table for hour, table in summaries.items() if abs(hour - start) <= 24 * HOUR_MS}
        own = series.get(start, DCGM_SERIES.empty_table())
        sampled = sample_hour("c1", start, own, near, records, fleet.now, config)
        rows = sampled.findings.to_pylist()
        for row in rows:
            first, last = (round(row[name].timestamp() * 1000) - start for name in ("first_at", "last_at"))
            assert row["seconds"] > 0, row
            assert first < last <= HOUR_MS, row
            assert first >= 0 or row["kind"] == "node_failure", row
            assert (row["tenant_id"] is None) <= (row["workload_id"] is None or "/" in row["workload_id"]), row
        keys = [(row["kind"], row["subject"], row["workload_id"], row["first_at"], row["detail"]) for row in rows]
        assert len(set(keys)) == len(keys)
        used = account_hour("c1", start, sampled, records, fleet.now, config)
        fleet_hours = used.fleet.to_pylist()
        of_nobody = sum(row[state] for row in fleet_hours for state in ("stale", "unattributed", "idle"))
        assert total(rows, Kind.UNATTRIBUTED_BUSY) <= of_nobody
        # seconds of each row are rounded once
        slack = Decimal("0.001") * len(rows) + Decimal("0.001") * len(fleet_hours)
        assert total(rows, Kind.UNMATCHED) <= sum(row["unmatched"] for row in fleet_hours) + slack
        stale = {row["subject"]: row["seconds"] for row in rows if row["kind"] == Kind.STALE_LABEL.code}
        assert sum(stale.values()) <= sum(row["stale"] for row in fleet_hours)


def total(rows: list[dict[str, Any]], kind: Kind) -> Decimal:
    return sum((row["seconds"] for row in rows if row["kind"] == kind.code), Decimal(0))


# Helpers, and the documentation


def test_stretches_break_where_something_is_missing() -> None:
    key = np.array([1, 1, 1, 2], dtype=np.int64)
    begin, end = np.array([0, 30, 15, 0], dtype=np.int64), np.array([15, 45, 30, 15], dtype=np.int64)
    found = stretches((key,), begin, end)
    assert [part.tolist() for part in found[1:]] == [[0, 0], [45, 15], [45, 15]]
    assert listed([f"d{n}" for n in range(6)]) == "d0, d1, d2, d3 and 2 more"


def test_every_kind_is_documented_word_for_word(repository: Path) -> None:
    text = (repository / "docs" / "findings.md").read_text(encoding="utf-8")
    for kind in Kind:
        assert f"| `{kind.code}` | {kind.value} |" in text, kind.code
    assert text.count("\n| `") == len(Kind) + len(FindingLimits.__dataclass_fields__)


def test_ten_is_ten() -> None:
    assert datetime.fromtimestamp(TEN / 1000, UTC).isoformat() == "2026-10-01T10:00:00+00:00"
