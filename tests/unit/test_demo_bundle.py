from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finops_pipeline.accounting.config import AccountingConfig
from finops_pipeline.demo import generate, tokens
from finops_pipeline.settings import accounting_tables, read_toml

TABLES_OF_THE_RUN = {"cluster", "from", "to", "now", "window_seconds", "platform_tenant"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.generate(tmp_path_factory.mktemp("demo") / "bundle")


@pytest.fixture(scope="module")
def series(bundle: Path) -> dict[tuple[str, str], list[tuple[dict[str, str], Any, Any]]]:
    """(uuid, metric) -> (labels, instants in ms, values) of each of its series."""
    found: dict[tuple[str, str], list[tuple[dict[str, str], Any, Any]]] = {}
    file = pq.ParquetFile(bundle / "dcgm.parquet")
    for index in range(file.num_row_groups):
        rows = file.read_row_group(index)
        labels = dict(rows["labels"][0].as_py())
        instants = np.asarray(rows["timestamp"].cast(pa.int64())) // 1000
        key = (labels["UUID"], rows["metric"][0].as_py())
        found.setdefault(key, []).append((labels, instants, np.asarray(rows["value"])))
    return found


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def config(bundle: Path) -> AccountingConfig:
    raw = read_toml(bundle / "bundle.toml")
    tables = accounting_tables({name: raw[name] for name in set(raw) - TABLES_OF_THE_RUN}, "bundle.toml")
    return AccountingConfig(platform_tenant=raw["platform_tenant"], **tables)


def test_the_same_bytes_every_time(bundle: Path, tmp_path: Path) -> None:
    again = generate.generate(tmp_path)
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in bundle.iterdir())
    for path in bundle.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_the_tokens_are_those_of_the_real_log(repository: Path, bundle: Path) -> None:
    log = pq.read_table(repository / "tests" / "data" / "tokens_llm" / "requests.parquet")
    assert pq.read_table(tokens.FILE).equals(tokens.daily_tokens(log)), "run python -m finops_pipeline.demo.tokens"
    # Sums of the log, by another route: request counts are those that its publishers state.
    frame = log.to_pandas().groupby("service")[["input_tokens", "output_tokens"]].sum()
    rows = read(bundle / "token_usage.csv")
    for service, (tenant, _) in tokens.RHYTHM.items():
        of_tenant = [row for row in rows if row["tenant_id"] == tenant]
        assert sum(int(row["input_tokens"]) for row in of_tenant) == frame.loc[service, "input_tokens"]
        assert sum(int(row["output_tokens"]) for row in of_tenant) == frame.loc[service, "output_tokens"]
    counts = Counter[str]()
    for row in pq.read_table(tokens.FILE).to_pylist():
        counts[row["tenant_id"]] += row["requests"]
    assert sorted(counts.values()) == [8_819, 12_031, 19_366]


def test_token_events_are_unique_and_leave_one_hour_without_any(bundle: Path) -> None:
    rows = read(bundle / "token_usage.csv")
    assert len({row["event_id"] for row in rows}) == len(rows)
    assert {row["occurred_at"][:13] for row in rows} == {f"2026-10-01T{h:02}" for h in range(24)} - {"2026-10-01T03"}


def test_sixteen_gpus_of_two_models_on_three_nodes(bundle: Path, series: Any) -> None:
    inventory = {row["gpu_uuid"]: (row["node"], row["model"]) for row in read(bundle / "gpu_inventory.csv")}
    seen = {
        uuid: (labels["Hostname"], labels["modelName"]) for (uuid, _), parts in series.items() for labels, _, _ in parts
    }
    assert seen == inventory
    assert len(seen) == 16
    assert len({node for node, _ in seen.values()}) == 3
    assert {config(bundle).platform_model(model) for _, model in seen.values()} == {"H100-80GB", "L40S"}


def test_every_reading_is_believable(bundle: Path, series: Any) -> None:
    """None is a reason for quarantine (A10)."""
    rules = config(bundle)
    for (uuid, metric), parts in series.items():
        for labels, instants, values in parts:
            limit = rules.limit(labels["modelName"])
            assert limit.power_w is not None
            assert limit.memory_gb is not None
            highest = {
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1,
                "DCGM_FI_DEV_GPU_UTIL": 100,
                "DCGM_FI_DEV_FB_USED": float(limit.memory_gb) * 1024,
                "DCGM_FI_DEV_POWER_USAGE": float(limit.power_w),
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1e13,
            }[metric]
            assert values.min() >= 0, (uuid, metric)
            assert values.max() <= highest, (uuid, metric)
            assert (np.diff(instants) > 0).all()


def test_counters_rise_with_the_power_and_one_starts_again(series: Any) -> None:
    resets = 0
    for (uuid, metric), parts in series.items():
        if metric != "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":
            continue
        instants, counter = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        order = np.argsort(instants)
        instants, counter = instants[order], counter[order]
        others = series[(uuid, "DCGM_FI_DEV_POWER_USAGE")]
        power = np.concatenate([part[2] for part in others])[np.argsort(np.concatenate([part[1] for part in others]))]
        rise = np.diff(counter)
        resets += int((rise < 0).sum())
        spans = np.diff(instants)
        steady = (rise >= 0) & (spans < 20_000)
        assert rise[steady].sum() == pytest.approx((power[:-1] * spans)[steady].sum(), rel=1e-6)
    assert resets == 1


def test_one_node_is_silent_for_twenty_minutes_and_no_other_has_a_gap(series: Any) -> None:
    longest: dict[str, float] = {}
    for parts in series.values():
        instants = np.sort(np.concatenate([part[1] for part in parts]))
        node = parts[0][0]["Hostname"]
        longest[node] = max(longest.get(node, 0), np.diff(instants).max() / 1000)
        assert instants[0] < ms("2026-10-01T00:00:00Z")
        assert instants[-1] > ms("2026-10-02T00:00:00Z")
    assert longest["gpu-h100-01"] == pytest.approx(1200, abs=16)
    assert max(longest["gpu-l40s-01"], longest["gpu-l40s-02"]) < 37.5


def test_labels_tell_what_the_events_tell_but_for_the_lag(bundle: Path, series: Any) -> None:
    events = [row for row in read(bundle / "workload_events.csv") if row["pod"]]
    pods = {row["pod"] for row in events if row["to_state"] == "running"}
    labelled: dict[str, list[int]] = {}
    for parts in series.values():
        for labels, instants, _ in parts:
            pod = labels.get("exported_pod") or labels["pod"]
            if "dcgm-exporter" not in pod:
                labelled.setdefault(pod, []).extend((int(instants[0]), int(instants[-1])))
    assert set(labelled) == pods | {"notebook-lea-0"}
    for pod in pods:
        start = next(ms(row["occurred_at"]) for row in events if row["pod"] == pod and row["to_state"] == "running")
        stops = [ms(row["occurred_at"]) for row in events if row["pod"] == pod and row["from_state"] == "running"]
        assert min(labelled[pod]) >= start
        assert all(max(labelled[pod]) <= stop + 60_000 for stop in stops)


def test_deployments_cover_every_pod_and_a_price_changes_at_noon(bundle: Path, series: Any) -> None:
    deployments = read(bundle / "deployments.csv")
    for parts in series.values():
        for labels, _, _ in parts:
            pod = labels.get("exported_pod") or labels["pod"]
            namespace = labels.get("exported_namespace") or labels["namespace"]
            if "dcgm-exporter" not in pod:
                matching = [d for d in deployments if d["namespace"] == namespace and fnmatch(pod, d["pod_pattern"])]
                assert len(matching) == 1
    policies = json.loads((bundle / "allocation_policies.json").read_text())
    assert [p["gpu_model"] for p in policies if p["effective_from"] == "2026-10-01T12:00:00Z"] == ["H100-80GB"]
    assert [p["idle_policy"] for p in policies if p["deployment_pattern"] == "idle"] == ["platform"]
