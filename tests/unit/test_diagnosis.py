"""What the doctor sees in series: each trap by itself, on the pages that exporters write (tests/data/dcgm)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest

from finops_pipeline.accounting.config import AccountingConfig, CardLimit, Quantity
from finops_pipeline.doctor.diagnosis import Level, Remark, diagnose_series, likely_quantity
from finops_pipeline.settings import accounting_tables
from tests.dcgm_pages import START, Scrapes

MINUTE = 60_000
END = START + 10 * MINUTE
EVERY_15_S = list(range(START, END, 15_000))
PLAIN = "1_whole_gpu_with_pod_and_idle"
MIG = "3_mig_1g10gb_mixed"
COPIES = "4a_timeslicing_2pods_virtual_gpus_before_4.8.2"
PROCESSES = "4b_timeslicing_2pods_virtual_gpus_4.8.2"
ONE_ROW = "4c_timeslicing_2pods_default_flags"
EXPORTED = "5_stored_series_honor_labels_false_exported"
HONORED = "5b_stored_series_honor_labels_true"
GARBAGE = "6_sentinels_and_garbage"
LEGACY = "7_legacy_1x_names"
SLURM = "8_hostname_lowercase_and_hpc_job"
H100, A100, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4"
SETTLED = AccountingConfig(
    platform_tenant="platform",
    card_limits={name: CardLimit(Decimal(700), Decimal(80)) for name in (H100, A100, T4)},
    class_watts={name: Decimal(500) for name in (H100, A100, T4)},
)
Page = tuple[str, list[int], Mapping[str, str]]
Diagnose = Callable[..., list[Remark]]


@pytest.fixture
def scrapes(repository: Path, tmp_path: Path) -> Scrapes:
    return Scrapes(repository / "tests" / "data" / "dcgm", tmp_path)


@pytest.fixture
def diagnose(scrapes: Scrapes) -> Diagnose:
    """Pages (by default scraped every 15 s) -> remarks."""

    def found(*pages: str | Page, config: AccountingConfig = SETTLED) -> list[Remark]:
        series = scrapes.series(*((page, EVERY_15_S, {}) if isinstance(page, str) else page for page in pages))
        return diagnose_table(series, config)

    return found


def diagnose_table(series: pa.Table, config: AccountingConfig = SETTLED) -> list[Remark]:
    return diagnose_series(series, START, END, names_of(series), config).remarks


def names_of(series: pa.Table) -> list[str]:
    return sorted({str(name) for name in series["metric"].to_pylist()})


def changed(page: str, **replaced: str) -> Page:
    return page, EVERY_15_S, replaced


def about(remarks: list[Remark], subject: str, level: Level | None = None) -> list[Remark]:
    return [f for f in remarks if f.subject == subject and level in {None, f.level}]


def the(remarks: list[Remark], subject: str, level: Level) -> Remark:
    (found,) = about(remarks, subject, level)
    return found


def toml_of(remark: Remark, where: str = "in FINOPS_CONFIG: ") -> str:
    """The remedy as a line of the file, which must be read without complaint."""
    assert remark.remedy.startswith(where)
    table, _, entry = remark.remedy.removeprefix(where).partition("] ")
    text = f"{table}]\n{entry.split(' (check')[0]}\n"
    accounting_tables(tomllib.loads(text), "remedy")
    return text


def test_a_cluster_as_it_should_be_has_no_warning(diagnose: Diagnose) -> None:
    remarks = diagnose(PLAIN)
    assert {f.level for f in remarks} == {Level.OK}
    told = {f.subject: f.seen for f in remarks}
    assert told["devices"] == f"2 devices on 2 boards: 2 x {H100}"
    assert told["utilization"] == "DCGM_FI_DEV_GPU_UTIL (2 devices), DCGM_FI_PROF_GR_ENGINE_ACTIVE (2 devices)"
    assert told["exporters"] == (
        "names and labels of dcgm-exporter 3.3.7 to 4.8.2 (Hostname) (2 boards); driver 570.124.06"
    )
    assert told["honorLabels"] == "true, or no clash: the workload is in pod"
    assert told["workload labels"] == "1 of 2 devices without a workload label: they are idle"
    assert told["scrape interval"] == "15 s (2 devices)"


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (PLAIN, "3.3.7 to 4.8.2 (Hostname)"),
        ("2_idle_gpu_old_exporter_empty_labels", "before 3.3.7 (Hostname)"),
        (LEGACY, "1.x (--use-old-namespace)"),
        (SLURM, "after 4.8.2 (hostname)"),
    ],
)
def test_generations_are_told(diagnose: Diagnose, page: str, told: str) -> None:
    assert f"dcgm-exporter {told}" in the(diagnose(page), "exporters", Level.OK).seen


def test_every_page_is_diagnosed(scrapes: Scrapes, diagnose: Diagnose) -> None:
    for path in scrapes.pages.glob("*.prom"):
        remarks = diagnose(path.stem)
        assert not [f for f in remarks if f.level == Level.FAIL]
        assert about(remarks, "devices")
        assert all(f.remedy for f in remarks if f.level == Level.WARN)


def test_nothing_there(diagnose: Diagnose) -> None:
    remark = the(diagnose(), "metrics", Level.FAIL)
    assert remark.seen == "no DCGM metric that is configured has a sample in 10 min, and none under another name"
    assert "FINOPS_PROMETHEUS_URLS" in remark.remedy


def test_only_unknown_names(diagnose: Diagnose) -> None:
    remarks = diagnose(changed(ONE_ROW, DCGM_FI_DEV="my_dcgm"))
    remark = the(remarks, "metrics", Level.FAIL)
    assert "my_dcgm_FB_USED" in remark.seen
    assert "factor" in toml_of(remark)


def test_an_unknown_name_of_what_is_missing_is_proposed(scrapes: Scrapes, diagnose: Diagnose) -> None:
    remarks = diagnose(
        changed(HONORED, DCGM_FI_DEV_POWER_USAGE="DCGM_FI_DEV_SLOT_POWER_W"), config=replace(SETTLED, class_watts={})
    )
    remark = the(remarks, "energy", Level.WARN)
    assert remark.seen.startswith("2 of 2 boards without a valid reading of energy")
    config = tomllib.loads(toml_of(remark))
    assert config == {"metrics": {"DCGM_FI_DEV_SLOT_POWER_W": {"quantity": "power", "factor": 1000}}}
    assert the(remarks, "class_watts", Level.WARN).remedy == f'in FINOPS_CONFIG: [class_watts] "{H100}" = watts'
    assert the(remarks, "other metrics", Level.OK).seen.endswith("DCGM_FI_DEV_SLOT_POWER_W")


def test_an_unknown_name_beside_a_known_one_is_only_told(diagnose: Diagnose) -> None:
    remarks = diagnose(PLAIN, changed(ONE_ROW, DCGM_FI_DEV_POWER_USAGE="DCGM_FI_DEV_POWER_USAGE_INSTANT"))
    assert the(remarks, "other metrics", Level.OK).seen.endswith("DCGM_FI_DEV_POWER_USAGE_INSTANT")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DCGM_FI_DEV_POWER_USAGE_INSTANT", Quantity.POWER),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", None),
        ("DCGM_FI_DEV_POWER_VIOLATION", None),
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_MJ", Quantity.ENERGY),
        ("DCGM_FI_DEV_FB_USED_PERCENT", None),
        ("DCGM_FI_DEV_FB_FREE", None),
        ("nv_dcgm_fb_used", Quantity.MEMORY),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", None),
        ("DCGM_FI_DEV_GPU_UTIL_SAMPLES", Quantity.UTILIZATION_COARSE),
        ("DCGM_FI_DEV_SM_CLOCK", None),
    ],
)
def test_names_that_look_like_a_quantity(name: str, expected: Quantity | None) -> None:
    found = likely_quantity(name)
    assert (found[0] if found else None) == expected


def test_series_without_uuid(diagnose: Diagnose) -> None:
    remark = the(diagnose(changed(HONORED, UUID="gpu_uuid")), "uuid", Level.FAIL)
    assert remark.seen.startswith("6 series of DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_GPU_UTIL, DCGM_FI_DEV_POWER_USAGE")
    assert tomllib.loads(toml_of(remark)) == {"labels": {"uuid": ["UUID", "uuid", "gpu_uuid"]}}
    none = the(diagnose(PLAIN, changed(ONE_ROW, UUID="index", GPU="0")), "uuid", Level.WARN)
    assert "a device cannot be known by its index" in none.remedy


def test_honor_labels_false(diagnose: Diagnose) -> None:
    remarks = diagnose(EXPORTED)
    assert the(remarks, "honorLabels", Level.OK).seen == (
        "false: the workload is in exported_pod, and pod is the exporter; 1 series carry it in pod as well (another job)"
    )
    assert the(remarks, "exporter's pod", Level.OK).seen.startswith("nvidia-dcgm-exporter-9tq4x labels devices")
    remark = the(remarks, "duplicates", Level.WARN)
    assert remark.seen.startswith(
        "1 device stored twice or more, distinguished by job = kubernetes-service-endpoints, nvidia-dcgm-exporter"
    )
    assert "keep one of the scrape jobs" in remark.remedy


def test_replicas(diagnose: Diagnose) -> None:
    replicas = [changed(PLAIN, **{"UUID=": f'prometheus_replica="r{index}",UUID='}) for index in range(2)]
    remark = the(diagnose(*replicas), "duplicates", Level.WARN)
    assert remark.seen.startswith("2 devices stored twice or more, distinguished by prometheus_replica = r0, r1")
    assert "FINOPS_PROMETHEUS_THANOS=true" in remark.remedy


def test_what_follows_in_time_is_no_duplicate(diagnose: Diagnose) -> None:
    half = len(EVERY_15_S) // 2
    remarks = diagnose((PLAIN, EVERY_15_S[:half], {}), (PLAIN, EVERY_15_S[half:], {"570.124.06": "580.65.06"}))
    assert not about(remarks, "duplicates")
    assert the(remarks, "exporters", Level.OK).seen.endswith("driver 570.124.06, 580.65.06")


def test_an_exporter_under_another_name(diagnose: Diagnose) -> None:
    renamed = {"nvidia-dcgm-exporter": "gpu-telemetry"}
    surely = the(diagnose(changed(EXPORTED, **renamed)), "exporter's pod", Level.FAIL)
    assert surely.seen.startswith("gpu-telemetry-9tq4x is the exporter's own pod and is not recognised")
    assert tomllib.loads(toml_of(surely)) == {"labels": {"exporter_pattern": "gpu-telemetry"}}
    perhaps = diagnose(changed(HONORED, **{"nvidia-dcgm-exporter": "gpu-exporter"}))
    assert the(perhaps, "exporter's pod", Level.WARN).seen.startswith("gpu-exporter-9tq4x looks like")
    config = replace(SETTLED, labels=replace(SETTLED.labels, exporter_pattern="gpu-telemetry"))
    assert not about(diagnose(changed(EXPORTED, **renamed), config=config), "exporter's pod", Level.FAIL)


def test_with_honor_labels_no_exporter_is_looked_for_beside_exported_pods(diagnose: Diagnose) -> None:
    renamed = changed(EXPORTED, **{"nvidia-dcgm-exporter": "gpu-telemetry"})
    remarks = diagnose(renamed, config=replace(SETTLED, labels=replace(SETTLED.labels, honor_labels=True)))
    assert not about(remarks, "exporter's pod", Level.FAIL)
    assert the(remarks, "honorLabels", Level.OK).seen.endswith("the workload is in pod")


def test_busy_devices_without_a_label(diagnose: Diagnose) -> None:
    bare = {',container="trainer",namespace="team-nlp",pod="llm-train-worker-0"': ""}
    remark = the(diagnose(changed(PLAIN, **bare)), "workload labels", Level.WARN)
    assert remark.seen.startswith("2 of 2 devices without a workload label, 1 of them busy (GPU-000000a0-")
    assert "DCGM_EXPORTER_KUBERNETES=true" in remark.remedy
    assert "gpu_uuids" in remark.remedy


def test_slurm(diagnose: Diagnose) -> None:
    remarks = diagnose(SLURM)
    assert the(remarks, "Slurm", Level.WARN).seen.startswith("2 jobs in the label hpc_job (481516, 481517)")
    assert not about(remarks, "duplicates")


def test_the_exporter_s_pod_for_a_node(diagnose: Diagnose) -> None:
    page = "2_idle_gpu_old_exporter_empty_labels"
    assert "relabelling" in the(diagnose(page), "nodes", Level.WARN).remedy
    remark = the(diagnose(changed(page, **{"UUID=": 'node="gpu-node-01",UUID='})), "nodes", Level.WARN)
    assert tomllib.loads(toml_of(remark))["labels"]["node"][0] == "node"


def test_mig(diagnose: Diagnose) -> None:
    remarks = diagnose(MIG)
    assert the(remarks, "MIG", Level.OK).seen.startswith("4 instances on 1 board: 3 x 1g.10gb, 1 x 3g.40gb; power")
    assert "a MIG instance is in use" in the(remarks, "class_fraction", Level.WARN).seen
    assert not about(diagnose(MIG, config=replace(SETTLED, class_fraction={"1g": Fraction(1, 7)})), "class_fraction")
    small = diagnose(MIG, config=replace(SETTLED, mig_slices={A100: 4}))
    assert "more slices in use" in the(small, "MIG", Level.WARN).seen
    without = diagnose(changed(MIG, DCGM_FI_PROF_GR_ENGINE_ACTIVE="DCGM_FI_DEV_NOTHING"))
    assert the(without, "utilization", Level.WARN).seen.startswith(
        "4 of 5 devices without a valid reading of utilization"
    )
    both = diagnose(MIG, changed(MIG, **{',GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"': ""}))
    assert "read whole and as instances" in the(both, "MIG", Level.WARN).seen


def test_time_slicing(diagnose: Diagnose) -> None:
    copies = diagnose(COPIES)
    assert the(copies, "sharing", Level.OK).seen == "1 device shared by up to 2 pods at once, one row per pod"
    assert the(copies, "class_fraction", Level.WARN).remedy.endswith('"1/4"')
    assert not about(copies, "duplicates")
    processes = diagnose(PROCESSES)
    assert the(processes, "sharing", Level.OK).seen.endswith("with rows per process")
    assert not about(processes, "sharing", Level.WARN)
    zero = changed(PROCESSES, **{'vgpu="0"} 71': 'vgpu="0"} 0', 'vgpu="2"} 27': 'vgpu="2"} 0'})
    blind = (*zero[:2], {**zero[2], 'vgpu="0"} 7420': 'vgpu="0"} 0', 'vgpu="2"} 3902': 'vgpu="2"} 0'})
    remark = the(diagnose(blind), "sharing", Level.WARN)
    assert remark.remedy == "set hostPID: true on the exporter's pods"


def test_a_label_that_goes_to_and_fro(diagnose: Diagnose) -> None:
    even: Page = (ONE_ROW, EVERY_15_S[::2], {})
    odd = (ONE_ROW, EVERY_15_S[1::2], {"chat-b": "chat-a"})
    remarks = diagnose(even, odd)
    assert "KUBERNETES_VIRTUAL_GPUS=true" in the(remarks, "sharing", Level.WARN).remedy
    assert the(remarks, "scrape interval", Level.OK).seen == "15 s (1 device)"
    once = diagnose((ONE_ROW, EVERY_15_S[:20], {}), (ONE_ROW, EVERY_15_S[20:], {"chat-b": "chat-a"}))
    assert not about(once, "sharing")


def test_models_without_limits(diagnose: Diagnose) -> None:
    bare = AccountingConfig(platform_tenant="platform")
    remarks = diagnose(PLAIN, config=bare)
    assert the(remarks, "card_limits", Level.WARN).remedy == (
        f'in FINOPS_CONFIG: [card_limits] "{H100}" = {{power_w = watts, memory_gb = GB}}'
    )
    assert the(remarks, "class_watts", Level.OK).remedy == f'in FINOPS_CONFIG: [class_watts] "{H100}" = watts'
    half = replace(bare, card_limits={H100: CardLimit(power_w=Decimal(700))})
    assert about(diagnose(PLAIN, config=half), "card_limits", Level.WARN)


def test_models_are_told_by_the_platform_s_name(scrapes: Scrapes) -> None:
    config = replace(SETTLED, models={H100: "H100-80GB"})
    series = scrapes.series(changed(PLAIN))
    assert diagnose_series(series, START, END, names_of(series), config).models == {"H100-80GB"}


def test_garbage(diagnose: Diagnose) -> None:
    remarks = diagnose(GARBAGE)
    remark = the(remarks, "rejected readings", Level.WARN)
    assert "80 above_one of DCGM_FI_DEV_GPU_UTIL (2 devices)" in remark.seen
    assert "80 blank of DCGM_FI_DEV_FB_USED (2 devices)" in remark.seen
    assert the(remarks, "utilization", Level.WARN).seen.startswith("3 of 3 devices without a valid reading")


def test_scrapes_too_far_apart(diagnose: Diagnose) -> None:
    assert the(diagnose((PLAIN, EVERY_15_S[:2], {})), "scrape interval", Level.WARN).seen.startswith("too few")
    assert the(diagnose((PLAIN, list(range(START, END, 60_000)), {})), "scrape interval", Level.OK).seen.startswith(
        "60 s"
    )
    long = the(diagnose((PLAIN, list(range(START, START + 55 * MINUTE, 400_000)), {})), "scrape interval", Level.WARN)
    assert long.seen.startswith("400 s (2 devices): above 300 s")


def test_holes_and_silence(diagnose: Diagnose) -> None:
    holed = [at for at in EVERY_15_S if not START + 3 * MINUTE <= at < START + 5 * MINUTE]
    remarks = diagnose((PLAIN, holed, {}))
    assert the(remarks, "holes", Level.WARN).seen.startswith("2 devices silent for up to 135 s in 10 min")
    assert not about(remarks, "silence")
    ended = diagnose((PLAIN, EVERY_15_S[:20], {}), ONE_ROW)
    assert the(ended, "silence", Level.WARN).seen.startswith("2 devices with samples in 10 min and none now")


def test_power_without_a_counter(diagnose: Diagnose) -> None:
    assert "no energy counter" in the(diagnose(HONORED), "energy", Level.WARN).seen
