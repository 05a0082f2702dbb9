"""What exporters write, generation by generation (tests/data/dcgm), read into devices, labels and readings (A7-A10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import FINE, AccountingConfig, CardLimit, Quantity, profile_slices
from finops_pipeline.accounting.hour import account_hour, sample_hour
from finops_pipeline.accounting.telemetry.readings import HourReadings, read_hour
from finops_pipeline.contracts.lake import DEPLOYMENTS, GPU_INVENTORY, WORKLOAD_EVENTS
from tests.dcgm_pages import START, Scrapes, once

HOUR = 3_600_000
CONFIG = AccountingConfig(platform_tenant="platform")
H100, A100, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4"
V100, PCIE = "Tesla V100-SXM2-32GB", "NVIDIA A100 80GB PCIe"


def gpu(last: str) -> str:
    """The uuid that ends so."""
    return f"GPU-{last:0>8}-1c2d-4e5f-8a9b-{last:0>12}"


@dataclass(frozen=True)
class Page:
    """What a page says, by hand. Values are in whole units of A28: millionths, KiB, mW, mJ."""

    devices: Mapping[str, tuple[str, str, int]]
    """key -> model, node, slices"""
    labels: Mapping[str, set[str]]
    """of the devices that have any"""
    values: Mapping[Quantity, Mapping[str, int]]
    processes: Mapping[Quantity, Mapping[tuple[str, str], int]] = field(default_factory=dict)
    rejected: Mapping[tuple[str, str], str] = field(default_factory=dict)


A0, A1, B0, B1, C0, C1 = (gpu(last) for last in ("a0", "a1", "b0", "b1", "c0", "c1"))
D0, E2, F0, F1, SLURM = gpu("d0"), gpu("e2"), gpu("f0"), gpu("f1"), gpu("1a0")
FINE_UTIL, UTIL, MEMORY, POWER, ENERGY = Quantity
TRAINER = {A0: {"team-nlp/llm-train-worker-0"}}
TWO_H100 = {A0: (H100, "gpu-node-07", 7), A1: (H100, "gpu-node-07", 7)}
SHARED_T4 = {D0: (T4, "gpu-node-11", 7)}
CHATS = {D0: {"serving/chat-a", "serving/chat-b"}}
SHARED_VALUES = {
    FINE_UTIL: {D0: 714_000},
    UTIL: {D0: 990_000},
    MEMORY: {D0: 11_800 * 1024},
    POWER: {D0: 66_120},
    ENERGY: {D0: 55_491_669_881},
}

PAGES: dict[str, Page] = {
    "1_whole_gpu_with_pod_and_idle": Page(
        devices=TWO_H100,
        labels=TRAINER,
        values={
            FINE_UTIL: {A0: 964_210, A1: 0},
            UTIL: {A0: 970_000, A1: 0},
            MEMORY: {A0: 71_342 * 1024, A1: 4 * 1024},
            POWER: {A0: 641_307, A1: 69_482},
            ENERGY: {A0: 1_483_920_117_745, A1: 203_118_842_019},
        },
    ),
    "2_idle_gpu_old_exporter_empty_labels": Page(
        devices={B0: (V100, "dcgm-exporter-lx7k2", 7), B1: (V100, "dcgm-exporter-lx7k2", 7)},
        labels={B1: {"ds/notebook-a"}},
        values={
            UTIL: {B0: 0, B1: 440_000},
            MEMORY: {B0: 0, B1: 30_111 * 1024},
            POWER: {B0: 43_905, B1: 167_362},
            ENERGY: {B0: 77_201_939_981, B1: 129_931_554_972},
        },
    ),
    "3_mig_1g10gb_mixed": Page(
        devices={
            f"{C0}/2": (A100, "gpu-node-03", 3),
            f"{C0}/7": (A100, "gpu-node-03", 1),
            f"{C0}/8": (A100, "gpu-node-03", 1),
            f"{C0}/9": (A100, "gpu-node-03", 1),
            C1: (A100, "gpu-node-03", 7),
        },
        labels={
            f"{C0}/2": {"team-nlp/finetune-0"},
            f"{C0}/7": {"serving/infer-small-0"},
            f"{C0}/8": {"serving/infer-small-1"},
            C1: {"team-cv/train-big-0"},
        },
        values={
            FINE_UTIL: {
                f"{C0}/2": 731_902,
                f"{C0}/7": 418_833,
                f"{C0}/8": 902_140,
                f"{C0}/9": 0,
                C1: 871_155,
            },
            UTIL: {C1: 880_000},
            MEMORY: {
                f"{C0}/2": 35_877 * 1024,
                f"{C0}/7": 6_230 * 1024,
                f"{C0}/8": 9_012 * 1024,
                f"{C0}/9": 12 * 1024,
                C1: 60_214 * 1024,
            },
            # the board's, the highest of the copies
            POWER: {C0: 288_240, C1: 352_118},
            ENERGY: {C0: 912_272_106_318, C1: 1_022_331_870_441},
        },
    ),
    "4a_timeslicing_2pods_virtual_gpus_before_4.8.2": Page(devices=SHARED_T4, labels=CHATS, values=SHARED_VALUES),
    "4b_timeslicing_2pods_virtual_gpus_4.8.2": Page(
        devices=SHARED_T4,
        labels=CHATS,
        values=SHARED_VALUES,
        processes={
            UTIL: {(D0, "serving/chat-a"): 710_000, (D0, "serving/chat-b"): 270_000},
            MEMORY: {(D0, "serving/chat-a"): 7_420 * 1024, (D0, "serving/chat-b"): 3_902 * 1024},
        },
    ),
    "4c_timeslicing_2pods_default_flags": Page(
        devices=SHARED_T4,
        labels={D0: {"serving/chat-b"}},
        values={quantity: found for quantity, found in SHARED_VALUES.items() if quantity != FINE_UTIL},
    ),
    "5_stored_series_honor_labels_false_exported": Page(
        devices=TWO_H100,
        labels=TRAINER,
        values={
            UTIL: {A0: 970_000, A1: 0},
            POWER: {A0: 641_307, A1: 69_482},
            ENERGY: {A0: 1_483_920_117_745, A1: 203_118_842_019},
        },
    ),
    "5b_stored_series_honor_labels_true": Page(
        devices=TWO_H100,
        labels=TRAINER,
        values={
            UTIL: {A0: 970_000, A1: 0},
            MEMORY: {A0: 71_342 * 1024, A1: 4 * 1024},
            POWER: {A0: 641_307, A1: 69_482},
        },
    ),
    "6_sentinels_and_garbage": Page(
        devices={**TWO_H100, E2: (H100, "gpu-node-07", 7)},
        labels={**TRAINER, E2: {"team-nlp/llm-train-worker-1"}},
        values={ENERGY: {E2: 118_842}},
        rejected={
            (A0, "DCGM_FI_DEV_GPU_UTIL"): "blank",
            (A1, "DCGM_FI_DEV_GPU_UTIL"): "above_one",
            (E2, "DCGM_FI_DEV_GPU_UTIL"): "above_one",
            (A0, "DCGM_FI_DEV_FB_USED"): "blank",
            (A1, "DCGM_FI_DEV_FB_USED"): "blank",
            (A0, "DCGM_FI_DEV_POWER_USAGE"): "blank",
            (A1, "DCGM_FI_DEV_POWER_USAGE"): "blank",
            (A0, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"): "blank",
            (A0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"): "blank",
        },
    ),
    "7_legacy_1x_names": Page(
        devices={F0: (PCIE, "", 7), f"{F1}/1": (PCIE, "", 3)},
        labels={F0: {"team-cv/legacy-train-0"}},
        values={
            UTIL: {F0: 630_000},
            MEMORY: {F0: 20_480 * 1024, f"{F1}/1": 5_011 * 1024},
            POWER: {F0: 201_334, F1: 141_002},
            ENERGY: {F0: 335_491_669_881, F1: 415_491_669_002},
        },
    ),
    "8_hostname_lowercase_and_hpc_job": Page(
        devices={SLURM: (H100, "slurm-gpu-01", 7)},
        labels={},
        values={UTIL: {SLURM: 550_000}, POWER: {SLURM: 420_101}, ENERGY: {SLURM: 88_492_011_774}},
    ),
}


@pytest.fixture
def scrapes(repository: Path, tmp_path: Path) -> Scrapes:
    return Scrapes(repository / "tests" / "data" / "dcgm", tmp_path)


def hour_of(scrapes: Scrapes, *pages: tuple[str, list[int], Mapping[str, str]]) -> HourReadings:
    return read_hour(scrapes.series(*pages), START, CONFIG)


def units(quantity: Quantity, value: int) -> int:
    """A reading's value in whole units; it must be one."""
    whole, rest = (value, 0) if quantity == ENERGY else divmod(value, FINE)
    assert rest == 0
    return whole


def told_values(hour: HourReadings) -> dict[Quantity, dict[str, dict[int, int]]]:
    """Quantity -> device (or board) -> instant -> whole units; only what has readings."""
    found: dict[Quantity, dict[str, dict[int, int]]] = {}
    for quantity, readings in hour.values.items():
        owners = hour.boards if quantity in {POWER, ENERGY} else hour.devices.key
        for owner, at, value in zip(
            readings.owner.tolist(), readings.at.tolist(), readings.value.tolist(), strict=True
        ):
            instants = found.setdefault(quantity, {}).setdefault(str(owners[owner]), {})
            assert at not in instants, "one reading an instant (A7)"
            instants[at] = units(quantity, value)
    return found


def told_labels(hour: HourReadings) -> dict[str, dict[int, set[str]]]:
    """Device -> instant -> workload labels; every instant with a sample."""
    found: dict[str, dict[int, set[str]]] = {}
    for device, at, label_set in zip(
        hour.instant_device.tolist(), hour.instant_at.tolist(), hour.instant_set.tolist(), strict=True
    ):
        found.setdefault(str(hour.devices.key[device]), {})[at] = set(hour.sets.members[label_set])
    return found


def told_processes(hour: HourReadings) -> dict[Quantity, dict[tuple[str, str], int]]:
    found: dict[Quantity, dict[tuple[str, str], int]] = {}
    for quantity, rows in hour.processes.items():
        for device, label_set, value in zip(
            rows.device.tolist(), rows.label_set.tolist(), rows.value.tolist(), strict=True
        ):
            (label,) = hour.sets.members[label_set]
            found.setdefault(quantity, {})[str(hour.devices.key[device]), label] = units(quantity, value)
    return found


def told_rejections(hour: HourReadings) -> dict[tuple[str, str], str]:
    rows = hour.rejected.to_pylist()
    assert all(row["source"] == "dcgm" and row["detail"] == "readings=1" for row in rows)
    assert hour.rejections == len(rows)
    found = {(str(row["key"]).rpartition(":")[0], str(row["key"]).rpartition(":")[2]): row["reason"] for row in rows}
    assert len(found) == len(rows)
    return found


def told_devices(hour: HourReadings) -> dict[str, tuple[str, str, int]]:
    devices = hour.devices
    profiles = dict(zip(hour.profiles.device.tolist(), hour.profiles.text.tolist(), strict=True))
    slices = [
        profile_slices(profiles.get(device, "")) or 0 if instance else CONFIG.slices(model)
        for device, (instance, model) in enumerate(zip(devices.instance.tolist(), devices.model.tolist(), strict=True))
    ]
    facts = zip(devices.model.tolist(), devices.node.tolist(), slices, strict=True)
    return dict(zip(devices.key.tolist(), facts, strict=True))


def test_every_page_is_tested(scrapes: Scrapes) -> None:
    assert sorted(path.stem for path in scrapes.pages.glob("*.prom")) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_read_as_written_by_hand(scrapes: Scrapes, name: str) -> None:
    page, hour = PAGES[name], hour_of(scrapes, once(name))
    assert told_devices(hour) == page.devices
    assert list(told_devices(hour)) == list(page.devices), "in order of uuid and instance (A17)"
    assert told_labels(hour) == {key: {START: set(page.labels.get(key, ()))} for key in page.devices}
    assert told_values(hour) == {
        quantity: {owner: {START: value} for owner, value in values.items()} for quantity, values in page.values.items()
    }
    assert told_processes(hour) == page.processes
    assert told_rejections(hour) == page.rejected


def test_card_limits_reject_what_no_card_can_do(scrapes: Scrapes) -> None:
    table = scrapes.series(once("1_whole_gpu_with_pod_and_idle"))
    limits = {H100: CardLimit(power_w=Decimal("427.5"), memory_gb=Decimal("69.67"))}
    hour = read_hour(table, START, AccountingConfig(platform_tenant="platform", card_limits=limits))
    # 641.307 W is above 1.5 x 427.5 W = 641.25 W; 71342 MiB is above 69.67 GB = 71342.08 MiB: not quite
    assert told_rejections(hour) == {(A0, "DCGM_FI_DEV_POWER_USAGE"): "above_limit"}
    assert told_values(hour)[MEMORY][A0] == {START: 71_342 * 1024}


def test_either_honor_labels_and_a_second_job_give_the_readings_of_the_exporter(scrapes: Scrapes) -> None:
    plain = hour_of(scrapes, once("1_whole_gpu_with_pod_and_idle"))
    for name in ("5_stored_series_honor_labels_false_exported", "5b_stored_series_honor_labels_true"):
        stored = hour_of(scrapes, once(name))
        assert told_devices(stored) == told_devices(plain)
        assert told_labels(stored) == told_labels(plain)
        assert told_values(stored) == {quantity: told_values(plain)[quantity] for quantity in told_values(stored)}


def test_all_ways_to_store_one_scrape_together_are_one_reading(scrapes: Scrapes) -> None:
    names = (
        "1_whole_gpu_with_pod_and_idle",
        "5_stored_series_honor_labels_false_exported",
        "5b_stored_series_honor_labels_true",
    )
    replicas = [
        (name, [START], {"UUID=": f'prometheus_replica="{replica}",UUID='}) for name in names for replica in "ab"
    ]
    hour, plain = hour_of(scrapes, *replicas), hour_of(scrapes, once(names[0]))
    assert told_devices(hour) == told_devices(plain)
    assert told_labels(hour) == told_labels(plain)
    assert told_values(hour) == told_values(plain)
    assert not any(told_processes(hour).values())


MINUTE = 60_000
BEFORE = [START + step * 15_000 for step in range(120)]
AFTER = [START + HOUR // 2 + 5 * MINUTE + step * 15_000 for step in range(100)]
UPGRADES: dict[str, tuple[str, Mapping[str, str], str, Mapping[str, str]]] = {
    "a driver": (
        "1_whole_gpu_with_pod_and_idle",
        {},
        "1_whole_gpu_with_pod_and_idle",
        {"570.124.06": "580.65.06"},
    ),
    "an exporter that renames the host's label and the metrics": (
        "1_whole_gpu_with_pod_and_idle",
        {},
        "1_whole_gpu_with_pod_and_idle",
        {
            "Hostname": "hostname",
            "DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_DEV_GPU_UTIL_RATIO",
            "DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_BOARD_POWER_WATTS",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        },
    ),
    "an exporter that had empty labels and its pod for a host": (
        "1_whole_gpu_with_pod_and_idle",
        {
            'pci_bus_id="00000000:18:00.0",': "",
            'pci_bus_id="00000000:2A:00.0",': "",
            'Hostname="gpu-node-07"': 'Hostname="dcgm-exporter-lx7k2"',
            ',DCGM_FI_DRIVER_VERSION="570.124.06"}': ',container="",namespace="",pod=""}',
        },
        "1_whole_gpu_with_pod_and_idle",
        {},
    ),
    "honorLabels": (
        "5b_stored_series_honor_labels_true",
        {},
        "5_stored_series_honor_labels_false_exported",
        {"nvidia-dcgm-exporter-9tq4x": "nvidia-dcgm-exporter-v8zzz"},
    ),
    "the shape of time slicing": (
        "4a_timeslicing_2pods_virtual_gpus_before_4.8.2",
        {},
        "4b_timeslicing_2pods_virtual_gpus_4.8.2",
        {},
    ),
    "the old names": (
        "7_legacy_1x_names",
        {},
        "7_legacy_1x_names",
        {
            "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
            "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
            "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
            "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "uuid=": 'Hostname="gpu-node-01",UUID=',
            "pod_namespace": "namespace",
            "pod_name": "pod",
            "container_name": "container",
        },
    ),
}


@pytest.mark.parametrize("change", UPGRADES)
def test_a_change_in_the_hour_leaves_one_device(scrapes: Scrapes, change: str) -> None:
    """The series are new ones; devices, labels and values go on (A7)."""
    old, old_changes, new, new_changes = UPGRADES[change]
    hour = hour_of(scrapes, (old, BEFORE, old_changes), (new, AFTER, new_changes))
    alone = hour_of(scrapes, once(new, **new_changes))
    assert told_devices(hour) == told_devices(alone), "the later model and node"
    assert told_labels(hour) == {
        key: dict.fromkeys([*BEFORE, *AFTER], labels[START]) for key, labels in told_labels(alone).items()
    }
    common = set(told_values(alone)) & set(told_values(hour_of(scrapes, once(old, **old_changes))))
    values = told_values(hour)
    for quantity in common:
        assert values[quantity] == {
            owner: dict.fromkeys([*BEFORE, *AFTER], found[START])
            for owner, found in told_values(alone)[quantity].items()
        }


def records(*events: Mapping[str, Any]) -> dict[str, pa.Table]:
    return {
        "workload_events": pa.Table.from_pylist([dict(event) for event in events], schema=WORKLOAD_EVENTS),
        "deployments": DEPLOYMENTS.empty_table(),
        "gpu_inventory": GPU_INVENTORY.empty_table(),
    }


def test_an_upgrade_with_five_minutes_of_silence_is_one_gap_and_costs_nothing(scrapes: Scrapes) -> None:
    name = "1_whole_gpu_with_pod_and_idle"
    series = scrapes.series((name, BEFORE, {}), (name, AFTER, {"570.124.06": "580.65.06", "Hostname": "hostname"}))
    trains = {
        "event_id": "e1",
        "occurred_at": START - HOUR,
        "workload_id": "train",
        "tenant_id": "a0000000-0000-4000-8000-00000000000a",
        "namespace": "team-nlp",
        "pod": "llm-train-worker-0",
        "to_state": "running",
        "gpu_count": Decimal(1),
    }
    sampled = sample_hour("c1", START, series, {}, records(trains), START + HOUR, CONFIG)
    usage = account_hour("c1", START, sampled, records(trains), START + HOUR, CONFIG).usage.to_pylist()
    assert [(row["workload_id"], row["gpu_seconds"]) for row in usage] == [("train", Decimal(3600))]
    # 20 windows: the last reading before is at 29:45, the first after at 35:00
    assert usage[0]["estimated_seconds"] == Decimal(300)
    assert usage[0]["measured_seconds"] == Decimal(3300)
    assert {row["model"] for row in sampled.samples.to_pylist()} == {H100}
    assert len({row["gpu_uuid"] for row in sampled.samples.to_pylist()}) == 2
