"""What Dagster is given: a change of the graph, a group, a check, a schedule or a sensor shows here, in review."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg

from finops_pipeline.assets.hours import HOURS, MONTHS, SINGLE_RUN
from finops_pipeline.definitions import EXTERNAL, HOURLY, MONTHLY, PARTS, REPLICA, build, definitions

SOURCES = "allocation_policies deployment_storage deployments gpu_inventory token_usage workload_events"
ASSETS = f"""
dcgm_series | hourly | parquet prometheus | hours | single_run | from prometheus
platform_records | hourly | parquet postgres | hours | single_run | from {SOURCES.replace(" ", " dcgm_series ", 1)}
gpu_samples | hourly | parquet postgres | hours | single_run | from dcgm_series platform_records | warns findings
gpu_usage | hourly | parquet postgres | hours | single_run | from gpu_samples platform_records | blocks fleet_identity \
| warns priced_once
gpu_cost_allocation | hourly | parquet postgres | hours | single_run | from gpu_usage platform_records \
| blocks parts_make_the_whole | warns everything_is_priced | warns nothing_is_quarantined
usage_events | hourly | postgres | hours | single_run | from gpu_cost_allocation gpu_usage | warns little_is_estimated
gpu_allocation | monthly | postgres | months | - | from gpu_cost_allocation | warns trial_balance
usage_events_replica | replica | clickhouse | - | - | from token_usage usage_events | warns replica_agrees
"""
SCHEDULES = """
hourly_schedule | 10 * * * * | UTC | RUNNING | hourly
monthly_schedule | 0 3 2 * * | UTC | RUNNING | monthly
"""
SENSORS = """
held_but_idle | 300 s | RUNNING
recompute_sensor | 300 s | RUNNING
replica_sensor | 60 s | RUNNING
"""


def described(asset: dg.AssetsDefinition) -> str:
    """Name, group, kinds, partitions, backfill policy, upstream assets and checks of an asset."""
    (spec,) = asset.specs
    names: dict[dg.PartitionsDefinition[str] | None, str] = {HOURS: "hours", MONTHS: "months", None: "-"}
    policy = "-" if asset.backfill_policy is None else asset.backfill_policy.policy_type.value.lower()
    checks = sorted(f"{'blocks' if check.blocking else 'warns'} {check.name}" for check in asset.check_specs)
    upstream = " ".join(sorted(dep.asset_key.to_user_string() for dep in spec.deps))
    parts = [
        spec.key.to_user_string(),
        str(spec.group_name),
        " ".join(sorted(spec.kinds)),
        names[spec.partitions_def],
        policy,
    ]
    return " | ".join([*parts, f"from {upstream}", *checks])


def test_assets() -> None:
    assert [described(asset) for asset in (*HOURLY, *MONTHLY, *REPLICA)] == ASSETS.strip().splitlines()
    assert {spec.key.to_user_string() for spec in EXTERNAL} == {"prometheus", *SOURCES.split()}
    assert all(spec.description for asset in (*HOURLY, *MONTHLY, *REPLICA) for spec in asset.specs)


def test_schedules_and_sensors() -> None:
    repository = definitions.get_repository_def()
    schedules = [
        f"{s.name} | {s.cron_schedule} | {s.execution_timezone} | {s.default_status.value} | {s.job_name}"
        for s in repository.schedule_defs
    ]
    assert sorted(schedules) == SCHEDULES.strip().splitlines()
    sensors = [f"{s.name} | {s.minimum_interval_seconds} s | {s.default_status.value}" for s in repository.sensor_defs]
    assert sorted(sensors) == SENSORS.strip().splitlines()


def test_a_job_for_each_partitions_definition() -> None:
    repository = definitions.get_repository_def()
    assert repository.get_job("hourly").partitions_def is HOURS
    assert repository.get_job("monthly").partitions_def is MONTHS
    assert repository.get_job("replica").partitions_def is None


def test_hourly_assets_share_one_partitions_object_and_policy_and_so_a_run() -> None:
    for asset in HOURLY:
        assert asset.partitions_def is HOURS
        assert asset.backfill_policy is SINGLE_RUN
    assert dg.BackfillPolicy.single_run() == SINGLE_RUN


def test_what_an_hour_reads_is_computed_before_it() -> None:
    """Lineage ends at external sources only: nothing is read that no asset writes or no source is."""
    known = {spec.key for spec in EXTERNAL}
    for asset in (*HOURLY, *MONTHLY, *REPLICA):
        for spec in asset.specs:
            assert {dep.asset_key for dep in spec.deps} <= known, spec.key
            known.add(spec.key)


def test_assets_name_the_resources_that_they_use() -> None:
    """The UI shows them at each asset."""
    used = {
        asset.key.path[-1]: " ".join(sorted(asset.required_resource_keys - {"io_manager"}))
        for asset in (*HOURLY, *MONTHLY, *REPLICA)
    }
    assert used == {
        "dcgm_series": "lake rules source watch",
        "platform_records": "lake ledger rules source watch",
        "gpu_samples": "lake ledger rules source watch",
        "gpu_usage": "lake ledger rules source watch",
        "gpu_cost_allocation": "lake ledger rules source watch",
        "usage_events": "lake ledger rules source watch",
        "gpu_allocation": "ledger source watch",
        "usage_events_replica": "ledger replica watch",
    }
    shown = definitions.get_repository_def().get_top_level_resources()
    assert set(shown) == {"site", *PARTS}
    assert all(resource.description for resource in shown.values())


def test_blocking_checks_stop_what_comes_after() -> None:
    """A blocking check must be on an asset that something is made from, else it stops nothing."""
    upstream = {dep.asset_key for asset in (*HOURLY, *MONTHLY) for spec in asset.specs for dep in spec.deps}
    blocking = {check.asset_key for asset in HOURLY for check in asset.check_specs if check.blocking}
    assert len(blocking) == 2
    assert blocking <= upstream


def test_another_site_can_be_put_in() -> None:
    built = build(site=dg.ResourceDefinition.none_resource())
    assert len(list(built.get_repository_def().asset_graph.executable_asset_keys)) == len(ASSETS.strip().splitlines())


def test_definitions_load_without_settings_and_open_nothing(tmp_path: Path, repository: Path) -> None:
    code = """
import socket, subprocess, sqlite3, dagster
def refuse(*_, **__):
    raise AssertionError("importing the definitions opened something")
socket.socket.connect = subprocess.Popen.__init__ = sqlite3.connect = refuse
import finops_pipeline.definitions
print(len(finops_pipeline.definitions.HOURLY))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "PYTHONPATH": str(repository), "FINOPS_WINDOW_SECONDS": "nonsense"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "6\n", run.stderr
    assert run.stderr == ""
    assert list(tmp_path.iterdir()) == []
