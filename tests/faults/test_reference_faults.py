"""The reference gives the right value for every bundle on which the numbers were once wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.expected import RIGHT, STEPS, Right, unmet
from tests.reference.cases import Run, run_bundle
from tests.reference.pricing import milliseconds, policy_of

HERE = Path(__file__).parent


def check(right: Right, run: Run) -> list[str]:
    findings = {finding for hour in run.hours for finding in hour.findings}
    items = [item for statement in run.statements for item in statement["items"]]
    return unmet(right, run.files, items, findings, provisional=any(hour.provisional for hour in run.hours))


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: f"{right.fault}/{right.bundle}")
def test_reference_is_right(right: Right) -> None:
    assert check(right, run_bundle(HERE / right.fault / right.bundle)) == []


def test_every_bundle_has_its_right_value() -> None:
    folders = {path.parent for path in HERE.rglob("bundle.toml")}
    assert folders == {HERE / right.fault / right.bundle for right in RIGHT}
    faults = {path.parent.name for path in HERE.glob("*/README.md")}
    assert faults == {right.fault for right in RIGHT} | set(STEPS)


def test_labels_of_honor_labels_name_the_pod_itself(tmp_path: Path) -> None:
    bundle = HERE / "label_spoof" / "bundle"
    for path in bundle.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    toml = (bundle / "bundle.toml").read_text(encoding="utf-8")
    (tmp_path / "bundle.toml").write_text(f"honor_labels = true\n{toml}", encoding="utf-8")
    assert [row["workload_id"] for row in run_bundle(tmp_path).files["gpu_usage.csv"]] == ["a/mine-0"]


def test_a_policy_that_has_ended_gives_way_to_the_next(tmp_path: Path) -> None:
    folder = HERE / "policy_cannot_be_ended"
    ended = json.loads((folder / "pol_end.json").read_text(encoding="utf-8"))
    everywhere = ended[0] | {"id": "p0", "effective_from": "2025-01-01T00:00:00Z", "effective_to": None}
    retired = json.loads((folder / "pol_retired_new.json").read_text(encoding="utf-8"))
    applied = [
        policy_of("d1", None, milliseconds(hour), [*ended, *retired, everywhere], {})
        for hour in ("2026-09-30T23:00:00Z", "2026-10-01T00:00:00Z")
    ]
    assert [policy and policy["id"] for policy in applied] == ["p1", "p0"]
