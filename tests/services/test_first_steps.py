"""The first ten minutes: what the README and the hints print works, and a wrong step leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import RunFailureReason
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.storage.tags import RUN_FAILURE_REASON_TAG

from finops_pipeline.commands.runner import INSTANCE_SETTINGS
from finops_pipeline.definitions import build
from finops_pipeline.resources.postgres.client import Database
from tests.databases import Databases
from tests.services.conftest import Finops
from tests.services.prometheus_server import free_port
from tests.services.small_day import DAY, a_day
from tests.services.test_cli import CASE, PLATFORM, one_line, written

UNATTRIBUTED = "13-idle-unattributed-no-data"
POD = "scratch/notebook-0"
QUESTIONS = (
    "status",
    "statement 2026-10",
    "close 2026-10",
    "close 2026-10 --dry-run",
    "reopen 2026-10 --reason x",
    "balance",
    "audit verify",
    "policies list",
    "policies show p",
    "quotas list",
    "usage",
    "fairshare",
    "credits list",
    "explain 00000000-0000-4000-8000-000000000000",
    "replica status",
    "sql FROM(gpu_usage)",
)


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Finops:
    """A folder in which the demo was run, with nothing set but FINOPS_HOME."""
    found = Finops(tmp_path_factory.mktemp("demo") / "home")
    ran = found("demo")
    assert ran.returncode == 0, ran.stderr
    return found


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_in_a_wrong_folder_makes_nothing_and_names_it(question: str, tmp_path: Path) -> None:
    finops = Finops(tmp_path / "home")
    line = one_line(finops(*question.split()), 2)
    assert f"{tmp_path / 'home'}" in line
    assert "no installation here" in line or "no lake here" in line
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_in_a_wrong_folder_makes_nothing(tmp_path: Path) -> None:
    assert Finops(tmp_path / "home")("doctor").returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demos_day_is_clean(demo_home: Finops) -> None:
    (day,) = json.loads(demo_home("status", "--json").stdout)
    assert (day["cluster"], day["computed"]) == ("demo", 24)
    assert [day[name] for name in ("missing", "provisional", "out_of_date", "unpriced", "quarantined")] == [0] * 5
    again = demo_home("backfill")
    assert (again.returncode, again.stdout) == (0, "no hour is missing or provisional: nothing to do\n")


def test_the_demo_can_be_checked_and_explained(demo_home: Finops) -> None:
    assert demo_home("doctor").returncode == 0
    shown = demo_home("statement", "2026-10")
    assert "chat-prod" in shown.stdout
    asked = ("--tenant", "c0000000-0000-4000-8000-00000000000c", "--deployment", "chat-prod")
    told = demo_home("explain", *asked, "--hour", "2026-10-01T10:00Z")
    assert told.returncode == 0, told.stderr
    assert "chat-prod" in told.stdout


def test_what_the_demo_proposes_is_short(demo_home: Finops) -> None:
    shown = demo_home("demo").stdout
    assert "FINOPS_BUNDLE" not in shown
    assert re.search(r"finops close 2026-10\n", shown)


def test_whoever_names_a_database_does_not_mean_the_demo(
    demo_home: Finops, databases: Databases, tmp_path: Path
) -> None:
    other = {"EAI_DATABASE_URL": databases.fresh(), "FINOPS_ANCHOR_FILE": str(tmp_path / "anchor")}
    line = one_line(demo_home("run", **other), 2)
    assert "FINOPS_PROMETHEUS_URLS is not set" in line
    live = {"FINOPS_PROMETHEUS_URLS": f"prod=http://127.0.0.1:{free_port()}", "FINOPS_PLATFORM_TENANT": PLATFORM}
    line = one_line(demo_home("run", FINOPS_PROMETHEUS_PATIENCE_SECONDS="0", **other, **live), 1)
    assert "cluster prod" in line


def test_the_demos_month_can_be_closed(demo_home: Finops) -> None:
    """The last of the demo's tests: its month stays final."""
    closed = demo_home("close", "2026-10")
    assert closed.returncode == 0, closed.stdout
    assert re.search(r"2026-10 is final: \d+\.\d\d EUR", closed.stdout)
    assert "Statement of 2026-10 (final)" in demo_home("statement", "2026-10").stdout


# A bundle's own time


def moved(bundle: Path, years: int) -> Path:
    """The same bundle, years later or earlier; the days of October stay what they are."""
    shift = round((DAY.replace(year=DAY.year + years) - DAY).total_seconds())
    for path in bundle.iterdir():
        text = path.read_text()
        if path.name == "dcgm.om":
            text = re.sub(r" (\d{10})$", lambda found: f" {int(found[1]) + shift}", text, flags=re.MULTILINE)
        path.write_text(re.sub(r"2026-(0[19]|1\d)-", lambda found: f"{2026 + years}-{found[1]}-", text))
    return bundle


@pytest.mark.parametrize("years", [10, -10])
def test_a_bundle_of_another_time_runs_and_closes_by_its_own_clock(years: int, finops: Finops, tmp_path: Path) -> None:
    """The machine's clock may be before a bundle's hours, and an installation's hours may begin before any default."""
    bundle = moved(a_day(tmp_path / "day"), years)
    toml = bundle / "bundle.toml"
    toml.write_text(toml.read_text().replace(f"{2026 + years}-10-02T06:00:00Z", f"{2026 + years}-11-02T06:00:00Z"))
    first, past = (f"{2026 + years}-10-01T{hour:02d}:00Z" for hour in (0, 3))
    ran = finops("run", "--bundle", bundle, "--from", first, "--to", past, "--json")
    assert ran.returncode in {0, 3}, ran.stderr
    assert json.loads(ran.stdout)["cluster_hours"] == 3
    assert (finops.home / "first_hour").read_text() == f"{first}\n"
    rest = finops("backfill", "--bundle", bundle)
    assert rest.returncode in {0, 3}, rest.stderr
    closed = finops("close", f"{2026 + years}-10", FINOPS_BUNDLE=str(bundle))
    assert "ok       the month is over (A2)" in closed.stdout
    assert "ok       every hour of every cluster is computed" in closed.stdout
    assert closed.returncode == 0, closed.stdout


# A bundle that is refused


@pytest.mark.parametrize(
    ("arguments", "now", "told"),
    [
        (("--to", "2026-10-01T15:00Z"), None, "--to 2026-10-01T15:00Z is beyond the bundle"),
        (("--from", "2026-10-01T05:00Z"), None, "--from 2026-10-01T05:00Z is beyond the bundle"),
        ((), "2026-10-01T11:30:00Z", "the hour 2026-10-01T11:00:00Z has not ended"),
        (("--out", "/proc/nowhere"), None, "--out /proc/nowhere: no file can be written"),
    ],
)
def test_a_refused_bundle_leaves_nothing_behind(
    arguments: tuple[str, ...], now: str | None, told: str, cases: Path, finops: Finops, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(cases / CASE, tmp_path / "bundle"))
    toml = (bundle / "bundle.toml").read_text()
    if now is not None:
        (bundle / "bundle.toml").write_text(re.sub(r'now = "[^"]*"', f'now = "{now}"', toml))
    assert told in one_line(finops("run", "--bundle", bundle, *arguments), 2)
    assert set(written(finops.settings["EAI_DATABASE_URL"]).values()) == {0}
    database = Database(finops.settings["EAI_DATABASE_URL"])
    for table in ("workload_events", "usage_events", "deployments", "deployment_storage", "gpu_inventory"):
        assert len(database.query(f"SELECT 1 AS one FROM eai.{table}")) == 0, table
    database.close()
    assert not (finops.home / "first_hour").exists()
    # the corrected bundle, whose rows differ, meets no conflict
    (bundle / "bundle.toml").write_text(toml)
    events = bundle / "workload_events.csv"
    events.write_text(events.read_text().replace("2026-10-01T09:", "2026-10-01T08:"))
    assert finops("run", "--bundle", bundle).returncode == 0


# Pods of no deployment


def test_pods_of_no_deployment_are_a_line_of_their_own(cases: Path, finops: Finops) -> None:
    ran = finops("run", "--bundle", cases / UNATTRIBUTED)
    assert re.search(rf"1 pod used GPUs and match.* no deployment.*: {POD}: add rows to eai.deployments", ran.stdout)
    table = finops("statement", "2026-10").stdout
    amounts = {
        found[1]: (found[2], found[3])
        for found in re.finditer(r"(idle|unattributed) +([\d.]+) +[\d.]+ +[\d.]+ +([\d.]+) +EUR", table)
    }
    assert amounts == {"idle": ("1.000", "0.94"), "unattributed": ("1.000", "0.94")}
    assert re.search(r"total +2\.000 +8\.000 +0\.260 +1\.88 +EUR", table), "the total is as it was"
    written_out = finops("statement", "2026-10", "--format", "json").stdout
    assert written_out == (cases / UNATTRIBUTED / "expected" / "gpu_allocation.json").read_text()
    told = finops("doctor", "--bundle", cases / UNATTRIBUTED).stdout
    assert re.search(rf"pods: used GPUs .*: {POD} \(A18\)", " ".join(told.split()))


def test_an_input_set_aside_in_many_hours_is_one(finops: Finops, tmp_path: Path) -> None:
    bundle = a_day(tmp_path / "day")
    lines = (bundle / "dcgm.om").read_text().splitlines()
    busy = [place for place, line in enumerate(lines) if 'GPU_UTIL{UUID="GPU-0"' in line]
    for place in (busy[100], busy[250], busy[251]):
        labels, _, rest = lines[place].partition("} ")
        lines[place] = f"{labels}}} NaN {rest.split()[1]}"
    (bundle / "dcgm.om").write_text("\n".join(lines) + "\n")
    ran = finops("run", "--bundle", bundle, "--from", "2026-10-01T00:00Z", "--to", "2026-10-01T06:00Z")
    assert ran.returncode == 3
    assert "1 inputs are set aside" in ran.stderr.splitlines()[-1]
    (day,) = json.loads(finops("status", "--json").stdout)
    assert (day["computed"], day["quarantined"]) == (6, 1)


# What Dagster tries again


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"FINOPS_WINDOW_SECONDS": "7"}, False),
        ({"FINOPS_PROMETHEUS_URLS": "a=http://127.0.0.1:1"}, False),
        ({"FINOPS_BUNDLE": "nowhere"}, False),
        ({"EAI_DATABASE_URL": "postgresql://u:p@127.0.0.1:{port}/x", "FINOPS_BUNDLE": "{case}"}, True),
    ],
    ids=["a wrong value", "no tenant", "no bundle", "no server"],
)
def test_a_wrong_setting_is_not_tried_again(
    settings: dict[str, str], again: bool, cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(port=free_port(), case=cases / CASE))
    shutil.copyfile(INSTANCE_SETTINGS, tmp_path / "dagster.yaml")
    job = build().get_repository_def().get_job("hourly")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        result = job.execute_in_process(instance=instance, partition_key="2026-10-01-10:00", raise_on_error=False)
        assert not result.success
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        reason = run.tags.get(RUN_FAILURE_REASON_TAG)
        found = auto_reexecution_should_retry_run(instance, run, RunFailureReason(reason) if reason else None)
    assert found is again
