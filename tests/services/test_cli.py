"""The installed `finops` as people and programs use it: what it prints, how it ends, and what stays when it is stopped.

Every call is a process of its own, on databases of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import dagster as dg
import pytest
import typer.main

from finops_pipeline.cli import app
from finops_pipeline.commands.runner import STAGES
from finops_pipeline.resources.embedded import server as embedded
from finops_pipeline.resources.postgres.client import Database
from tests.databases import Databases
from tests.services.conftest import FINOPS, Finops
from tests.services.prometheus_server import free_port
from tests.services.small_day import a_day

CASE = "01-shared-server-70-30"
FILES = ("gpu_usage.csv", "allocation.csv", "fleet.csv", "gpu_allocation.json", "quarantine.csv")
NOON = ("--from", "2026-10-01T12:00Z", "--to", "2026-10-01T14:00Z")
"""Of the demo: a price rises, a node's scrapes fail."""
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
PROGRESS = re.compile(r"finops: ([a-z_]+): (\d+) of \d+ hours, (?:at .*Z|\d+\.\d s)")


def commands() -> list[tuple[str, ...]]:
    """Every command and group, by the words that name it."""

    def below(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from below(child, (*path, name))

    return list(below(typer.main.get_command(app), ()))


def one_line(run: subprocess.CompletedProcess[str], code: int) -> str:
    """The error of a command that failed as it should."""
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    told = [line for line in run.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    assert len(told) == 1, run.stderr
    assert told[0].startswith("finops: ")
    return told[0]


def stages_done(stderr: str, hours: int) -> list[str]:
    """The stages that said they have done all their hours."""
    return [found[1] for line in stderr.splitlines() if (found := PROGRESS.fullmatch(line)) and found[2] == str(hours)]


def written(database_url: str) -> dict[str, int]:
    """Rows of what a run publishes."""
    database = Database(database_url)
    tables = ("gpu_samples", "gpu_usage", "gpu_cost_allocation", "hour_runs", "audit_events", "allocation_policies")
    found = {table: len(database.query(f"SELECT 1 AS one FROM eai.{table}")) for table in tables}
    database.close()
    return found


@pytest.fixture
def case(cases: Path, tmp_path: Path) -> Path:
    """A case's bundle, to be spoiled."""
    return Path(shutil.copytree(cases / CASE, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def computed(databases: Databases, cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Finops:
    """An installation in which a case was run."""
    found = Finops(tmp_path_factory.mktemp("computed") / "home", {"EAI_DATABASE_URL": databases.fresh()})
    ran = found("run", "--bundle", cases / CASE, "--json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "--json is silent"
    facts = json.loads(ran.stdout)
    assert facts["cluster_hours"] == 2
    assert facts["complete"] is True
    assert facts["months"] == ["2026-10"]
    return found


# Help


@pytest.mark.parametrize("command", commands(), ids=lambda command: " ".join(command) or "finops")
def test_help(command: tuple[str, ...]) -> None:
    before = time.monotonic()
    run = subprocess.run([FINOPS, *command, "--help"], capture_output=True, text=True, check=False, timeout=60)
    print(f"finops {' '.join(command)} --help: {time.monotonic() - before:.2f} s")  # noqa: T201
    assert run.returncode == 0
    assert run.stderr == ""
    assert run.stdout.startswith(f"Usage: {' '.join(('finops', *command))} ")
    assert "..." not in run.stdout.partition("Commands:")[2], "a short help is cut off"
    assert all(len(line) <= 100 for line in run.stdout.splitlines())


def test_help_needs_no_heavy_import() -> None:
    code = "import sys, finops_pipeline.cli; print(sorted({'dagster', 'pyarrow', 'sqlalchemy'} & set(sys.modules)))"
    run = subprocess.run([FINOPS.with_name("python"), "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_version() -> None:
    run = subprocess.run([FINOPS, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"finops \d+\.\d+\.\d+\n", run.stdout)


def test_completion_knows_the_commands() -> None:
    script = subprocess.run([FINOPS, "--show-completion", "bash"], capture_output=True, text=True, check=True).stdout
    assert "complete -o default -F _finops_completion finops" in script
    asked = {"_FINOPS_COMPLETE": "complete_bash", "COMP_WORDS": "finops sta", "COMP_CWORD": "1"}
    found = subprocess.run([FINOPS], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["status", "statement"]


# What it does


def test_demo_twice(tmp_path: Path) -> None:
    finops = Finops(tmp_path / "home")
    first, second = finops("demo"), finops("demo")
    for run in (first, second):
        assert run.returncode == 0, run.stderr
        assert stages_done(run.stderr, 24) == list(STAGES)
        assert "Statement of 2026-10 (open)" in run.stdout
        assert re.search(
            r"gpu-h100-01 +2026-10-01T13:07:30Z +2026-10-01T13:27:30Z +8 +9600 +counter, linear", run.stdout
        )
        assert re.search(r"vm-render-7 +L40S-VM .* modelled", run.stdout)
        assert f"{FINOPS} dev" in run.stdout
        assert f"{FINOPS} sql" in run.stdout
    assert re.search(r"24 hours computed, [1-9]\d* usage events booked\.", first.stdout)
    assert "24 hours computed, 0 usage events booked" in second.stdout
    statements = [run.stdout.partition("24 hours computed")[0] for run in (first, second)]
    assert statements[0] == statements[1]
    shown = next(line for line in first.stdout.splitlines() if " sql " in line).partition("FINOPS_HOME")[2]
    asked = subprocess.run(
        ["bash", "-c", f"FINOPS_HOME{shown}"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "workload_id" in asked.stdout, "what it proposes works"


def test_demo_keeps_away_from_a_database_that_is_not_its_own(finops: Finops) -> None:
    assert "EAI_DATABASE_URL is set" in one_line(finops("demo"), 2)
    assert set(written(finops.settings["EAI_DATABASE_URL"]).values()) == {0}
    assert not finops.home.exists()


@pytest.mark.parametrize(("name", "code"), [("18-storage", 0), ("17-lifecycle-event-faults", 3)])
def test_run_writes_what_the_case_expects(name: str, code: int, cases: Path, finops: Finops, tmp_path: Path) -> None:
    run = finops("run", "--bundle", cases / name, "--out", tmp_path / "out")
    assert run.returncode == code, run.stderr
    for file in FILES[:4]:
        assert (tmp_path / "out" / file).read_text() == (cases / name / "expected" / file).read_text(), file
    assert len((tmp_path / "out" / "usage_events.jsonl").read_text().splitlines()) > 0
    assert stages_done(run.stderr, 2) == list(STAGES)
    assert ("set aside" in run.stderr.splitlines()[-1]) == (code == 3)


def test_status(computed: Finops) -> None:
    text = computed("status")
    assert text.returncode == 0
    assert re.search(r"dc1-gpu +2026-10-01 +2 +0 +0 +0 +0 +0 +0\.00%", text.stdout)
    rows = json.loads(computed("status", "--json").stdout)
    assert [(row["cluster"], row["day"], row["computed"], row["missing"]) for row in rows] == [
        ("dc1-gpu", "2026-10-01", 2, 0)
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", rows[0]["published_at"])


@pytest.mark.parametrize("command", ["--help", "status", "policies list", "quotas list", "status --json"])
def test_a_command_that_answers_at_once_does_not_wait_for_pandas(command: str, computed: Finops) -> None:
    """pyarrow imports pandas with the first column of Python objects: 0.5 s for nothing."""
    code = (
        "import sys\nfrom finops_pipeline.cli import main\n"
        "try:\n    main()\nfinally:\n    print(sorted({'pandas', 'dagster'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run(
        [FINOPS.with_name("python"), "-c", code, *command.split()],
        env=computed.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout
    assert run.stderr.strip() == "[]"


def test_status_of_nothing_says_what_to_do(finops: Finops) -> None:
    run = finops("status")
    assert (run.returncode, run.stderr) == (0, "")
    assert "finops backfill --from" in run.stdout


def test_statement_formats(computed: Finops, cases: Path) -> None:
    table, text, rows = (computed("statement", "2026-10", "--format", name) for name in ("table", "json", "csv"))
    assert [run.returncode for run in (table, text, rows)] == [0, 0, 0]
    assert text.stdout == (cases / CASE / "expected" / "gpu_allocation.json").read_text()
    whole = json.loads(text.stdout)[0]
    assert rows.stdout.splitlines()[0].startswith("tenant_id,deployment_id,gpu_seconds,")
    assert len(rows.stdout.splitlines()) == 1 + len(whole["items"])
    assert whole["totals"][0]["amount"] in table.stdout
    assert all(line == line.rstrip() for line in table.stdout.splitlines())
    for name, cell in (("markdown", " {} | EUR |"), ("html", "<td>{}</td>")):
        shown = computed("statement", "2026-10", "--format", name)
        assert cell.format(whole["totals"][0]["amount"]) in shown.stdout, shown.stderr


def test_statement_of_one_tenant_holds_nothing_of_the_others(computed: Finops) -> None:
    whole = json.loads(computed("statement", "2026-10", "--format", "json").stdout)[0]
    item = whole["items"][0]
    assert len({other["tenant_id"] for other in whole["items"]}) > 1
    run = computed("statement", "2026-10", "--tenant", item["tenant_id"].upper(), "--format", "json")
    part = json.loads(run.stdout)[0]
    assert {other["tenant_id"] for other in part["items"]} == {item["tenant_id"]}
    assert part["totals"][0]["amount"] == item["allocated"]["amount"]
    table = computed("statement", "2026-10", "--tenant", item["tenant_id"]).stdout
    assert whole["totals"][0]["amount"] not in table
    nobody = computed("statement", "2026-10", "--tenant", PLATFORM.replace("f", "9"))
    assert nobody.returncode == 0
    assert "no items" in nobody.stdout


def test_policies(computed: Finops, cases: Path, tmp_path: Path) -> None:
    listed = computed("policies", "list")
    assert "pol-default-1" in listed.stdout
    shown = json.loads(computed("policies", "show", "pol-default-1", "--json").stdout)
    assert shown["gpu_hourly_cost"] == "2.10"
    assert shown["effective_from"] == "2026-01-01T00:00:00Z"
    again = computed("policies", "add", cases / CASE / "allocation_policies.json")
    assert again.stdout == "0 of 1 policies are new\n"
    other = tmp_path / "more.json"
    given = json.loads((cases / CASE / "allocation_policies.json").read_text())[0]
    other.write_text(json.dumps([given | {"id": "pol-late", "effective_from": "2027-01-01T00:00:00Z"}]))
    assert json.loads(computed("policies", "add", other, "--json").stdout) == {
        "added": 1,
        "given": 1,
        "policies": [{"id": "pol-late", "status": "active"}],
    }
    assert len(json.loads(computed("policies", "list", "--json").stdout)) == 2
    assert "pol-nothing" in one_line(computed("policies", "show", "pol-nothing"), 2)


def test_sql(computed: Finops) -> None:
    table = computed("sql", "SELECT count(*) AS hours, sum(gpu_seconds) AS s FROM gpu_usage")
    assert table.stdout.split()[0:2] == ["hours", "s"]
    rows = json.loads(computed("sql", "--json", "SELECT hour, gpu_seconds FROM gpu_usage ORDER BY ALL").stdout)
    assert rows[0] == {"hour": "2026-10-01T10:00:00Z", "gpu_seconds": "3600.000"}
    several = computed("sql", stdin="SELECT ';' AS a;\nSELECT 1 +\n 1 AS b;\nSELECT 3 AS c")
    assert several.stdout.split() == ["a", "─", ";", "b", "─", "2", "c", "─", "3"]
    assert "selekt" in one_line(computed("sql", "selekt 1"), 2)
    head = subprocess.run(
        ["bash", "-c", f"'{FINOPS}' sql 'FROM dcgm_series' | head -1"],
        env=computed.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert head.stderr == ""


def test_output_for_a_terminal_of_another_time(computed: Finops) -> None:
    run = computed("status", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (run.returncode, run.stderr) == (0, "")
    assert "2026-10-01" in run.stdout


# Bad input


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "told"),
    [
        (["nonsense"], {}, 2, "No such command 'nonsense'"),
        (["run", "--nonsense"], {}, 2, "No such option: --nonsense"),
        (["statement"], {}, 2, "Missing argument 'MONTH'"),
        (["statement", "2026-13"], {}, 2, "2026-13: not a month"),
        (["statement", "2026-10", "--format", "xml"], {}, 2, "'xml' is not one of 'table', 'json', 'csv'"),
        (["statement", "2026-10", "--tenant", "me"], {}, 2, "'--tenant'"),
        (["statement", "2026-10"], {}, 2, "no hour of this month is computed yet"),
        (["run"], {}, 2, "FINOPS_PROMETHEUS_URLS is not set"),
        (["backfill"], {}, 2, "--from is missing"),
        (["run", "--bundle", "nowhere"], {}, 2, "nowhere: is not a bundle"),
        (["run", "--bundle", CASE, "--from", "yesterday"], {}, 2, "--from yesterday: not a time"),
        (["run", "--bundle", CASE, "--from", "2026-10-01T10:30Z"], {}, 2, "10:30:00Z is not a whole hour"),
        (["run", "--bundle", CASE, "--from", "2026-10-01T12:00Z", "--to", "2026-10-01T11:00Z"], {}, 2, "is not after"),
        (["run", "--bundle", CASE, "--to", "2026-10-09T00:00Z"], {}, 2, "--to 2026-10-09T00:00Z is beyond the bundle"),
        (["run", "--bundle", CASE, "--out", "/proc/nowhere"], {}, 2, "--out /proc/nowhere: no file can be written"),
        (["policies", "add", "nowhere.json"], {}, 2, "nowhere.json: there is no such file"),
        (["status"], {"FINOPS_WINDOW_SECONDS": "7"}, 2, "FINOPS_WINDOW_SECONDS is '7'"),
        (["status"], {"FINOPS_WINDOWS_SECONDS": "15"}, 2, "did you mean FINOPS_WINDOW_SECONDS?"),
        (["run"], {"FINOPS_PROMETHEUS_URLS": "prod=ftp://x"}, 2, "FINOPS_PROMETHEUS_URLS is 'prod=ftp://x'"),
        (["run"], {"FINOPS_PROMETHEUS_URLS": "prod=http://127.0.0.1:1"}, 2, "FINOPS_PLATFORM_TENANT is not set"),
        (["status"], {"FINOPS_HOME": "/proc/nowhere", "EAI_DATABASE_URL": ""}, 2, "/proc/nowhere: there is no install"),
        (["run", "--bundle", CASE], {"FINOPS_HOME": "/proc/nowhere", "EAI_DATABASE_URL": ""}, 1, "/proc/nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_use_is_one_line(
    arguments: list[str], settings: dict[str, str], code: int, told: str, finops: Finops, cases: Path
) -> None:
    given = [str(cases / CASE) if argument == CASE else argument for argument in arguments]
    assert told in one_line(finops(*given, **settings), code)


def spoil_line(bundle: Path) -> None:
    lines = gzip.decompress((bundle / "dcgm.om.gz").read_bytes()).decode().splitlines(keepends=True)
    lines[99] = "DCGM_FI_DEV_POWER_USAGE{gpu=0} 1 2\n"
    (bundle / "dcgm.om.gz").unlink()
    (bundle / "dcgm.om").write_text("".join(lines))


def cut_off(bundle: Path) -> None:
    packed = (bundle / "dcgm.om.gz").read_bytes()
    (bundle / "dcgm.om.gz").write_bytes(packed[: len(packed) // 2])


def spoil(file: str, before: str, after: str) -> Callable[[Path], None]:
    def spoiled(bundle: Path) -> None:
        text = (bundle / file).read_text()
        assert before in text
        (bundle / file).write_text(text.replace(before, after, 1))

    return spoiled


@pytest.mark.parametrize(
    ("spoiled", "told"),
    [
        (spoil_line, r"dcgm\.om: line 100: "),
        (cut_off, r"dcgm\.om\.gz: cannot be read"),
        (
            spoil("workload_events.csv", "2026-10-01T", "1 October "),
            r"workload_events\.csv: row \d+, column occurred_at",
        ),
        (spoil("token_usage.csv", "\n", ",\n"), r"token_usage\.csv: row 1: unknown column ''"),
        (spoil("deployments.csv", "shared", "share"), r"deployments\.csv: row 2, column mode: 'share'"),
        (lambda bundle: (bundle / "bundle.toml").unlink(), r"is not a bundle: it has no bundle\.toml"),
        (
            lambda bundle: (bundle / "token_usage.csv").rename(bundle / "tokens_usage.csv"),
            "did you mean token_usage.csv",
        ),
        (spoil("bundle.toml", "window_seconds = 15", "window_seconds = 7"), r"bundle\.toml: window_seconds = 7"),
        (
            spoil("allocation_policies.json", '"2.10"', '"-2.10"'),
            r"policy pol-default-1: gpu_hourly_cost must not be negative, is '-2\.10'",
        ),
        (
            spoil("allocation_policies.json", '"EUR"', '"EUX"'),
            r"policy pol-default-1: currency must be an ISO 4217 code",
        ),
        (spoil("allocation_policies.json", "[", ""), r"allocation_policies\.json: is not valid JSON"),
    ],
    ids=[
        "a broken line",
        "a cut file",
        "a broken time",
        "a column too many",
        "an unknown mode",
        "no bundle.toml",
        "a misspelt file",
        "a wrong window",
        "a negative price",
        "an unknown currency",
        "broken json",
    ],
)
def test_a_spoiled_bundle_is_one_line_and_leaves_nothing(
    spoiled: Callable[[Path], None], told: str, case: Path, finops: Finops
) -> None:
    spoiled(case)
    assert re.search(told, one_line(finops("run", "--bundle", case, "--out", case.parent / "out"), 2))
    assert not (case.parent / "out").exists()
    assert set(written(finops.settings["EAI_DATABASE_URL"]).values()) == {0}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("gpu_hourly_cost", "-2.10", "gpu_hourly_cost must not be negative, is '-2.10'"),
        ("currency", "EUX", "currency must be an ISO 4217 code like EUR, is 'EUX'"),
        ("pue", True, "pue"),
        ("effective_from", "2026-01-01T00:30:00Z", "a whole UTC hour"),
    ],
)
def test_a_wrong_policy_is_one_line_and_adds_none(
    field: str, value: object, told: str, case: Path, finops: Finops
) -> None:
    file = case / "allocation_policies.json"
    good = json.loads(file.read_text())[0]
    file.write_text(json.dumps([good, {**good, "id": "pol-bad", field: value}]))
    line = one_line(finops("policies", "add", file), 2)
    assert f"{file}: policy pol-bad: " in line
    assert told in line
    assert written(finops.settings["EAI_DATABASE_URL"])["allocation_policies"] == 0


def test_a_policy_that_changes_is_refused(case: Path, finops: Finops) -> None:
    file = case / "allocation_policies.json"
    assert finops("policies", "add", file).returncode == 0
    spoil("allocation_policies.json", '"2.10"', '"2.20"')(case)
    for run in (finops("policies", "add", file), finops("run", "--bundle", case)):
        line = one_line(run, 2)
        assert "pol-default-1: gpu_hourly_cost is 2.20, but this policy exists with 2.10" in line
    assert written(finops.settings["EAI_DATABASE_URL"])["hour_runs"] == 0


def test_prometheus_cannot_be_reached(finops: Finops) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    live = {
        "FINOPS_PROMETHEUS_URLS": f"prod={url}",
        "FINOPS_PLATFORM_TENANT": PLATFORM,
        "FINOPS_PROMETHEUS_PATIENCE_SECONDS": "0",
    }
    line = one_line(finops("run", "--from", "2026-10-01T10:00Z", "--to", "2026-10-01T12:00Z", **live), 1)
    assert f"cluster prod: Prometheus at {url}: the connection failed" in line
    assert set(written(finops.settings["EAI_DATABASE_URL"]).values()) == {0}
    tomorrow = time.strftime("%Y-%m-%dT00:00Z", time.gmtime(time.time() + 2 * 86_400))
    assert "has not ended" in one_line(finops("backfill", "--from", "2026-10-01T10:00Z", "--to", tomorrow, **live), 2)


@pytest.mark.parametrize("command", ["status", "run"])
def test_a_wrong_password_is_one_line_without_it(command: str, finops: Finops, cases: Path) -> None:
    parts = urlsplit(finops.settings["EAI_DATABASE_URL"])
    secret = "not-the-password"
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:{secret}@{parts.hostname}:{parts.port}"))
    bundle = ["--bundle", str(cases / CASE)] if command == "run" else []
    run = finops(command, *bundle, EAI_DATABASE_URL=url)
    line = one_line(run, 2)
    assert "wrong user or password" in line
    assert f"{parts.username}@{parts.hostname}:{parts.port}" in line
    assert secret not in run.stdout + run.stderr


# Stopped


def wait_for(stream: IO[str], text: str) -> list[str]:
    """Lines of a running command up to the one that contains `text`."""
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"no line with {text!r}: {lines}")


@pytest.fixture(scope="module")
def undisturbed(demo: Path, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two hours of the demo."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finops = Finops(folder / "home", {"EAI_DATABASE_URL": databases.fresh()})
    ran = finops("run", "--bundle", demo, *NOON, "--out", folder / "out")
    assert ran.returncode == 3, "an outage: more is estimated than usual"
    return folder / "out"


def test_interrupted_runs_go_on(cases: Path, finops: Finops, tmp_path: Path) -> None:
    bundle = cases / "21-three-hour-outage"
    for moment in ("dcgm_series: 5 of 5", "gpu_cost_allocation: 5 of 5"):
        running = finops.start("run", "--bundle", bundle)
        assert running.stderr is not None
        wait_for(running.stderr, moment)
        running.send_signal(signal.SIGINT)
        rest = running.communicate(timeout=60)[1]
        assert running.returncode == 130, rest
        assert rest.splitlines()[-1] == (
            "finops: interrupted: published hours stay, the same command again does the rest"
        )
        assert "Traceback" not in rest
    finops("run", "--bundle", bundle, "--out", tmp_path / "out")
    for name in FILES[:4]:
        assert (tmp_path / "out" / name).read_text() == (bundle / "expected" / name).read_text(), name


def test_killed_runs_go_on(demo: Path, undisturbed: Path, tmp_path: Path) -> None:
    """With the embedded Postgres, whose server outlives the killed process."""
    finops = Finops(tmp_path / "home")
    for moment in ("dcgm_series: 2 of 2", "gpu_samples: 2 of 2", "gpu_cost_allocation: 2 of 2"):
        running = finops.start("run", "--bundle", demo, *NOON)
        assert running.stderr is not None
        wait_for(running.stderr, moment)
        running.kill()
        running.communicate(timeout=60)
    assert finops("run", "--bundle", demo, *NOON, "--out", tmp_path / "out").returncode == 3
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (undisturbed / name).read_bytes(), name
    with embedded.start(tmp_path / "home" / "postgres") as server:
        database = Database(server.url)
        found = database.query("SELECT document FROM eai.usage_events WHERE usage_type <> 'llm' ORDER BY seq")
        database.close()
    booked = [json.loads(line) for line in (undisturbed / "usage_events.jsonl").read_text().splitlines()]
    for event in booked:
        del event["content_sha256"]
    assert [json.loads(str(text)) for text in found["document"].to_pylist()] == booked
    with dg.DagsterInstance.from_config(str(tmp_path / "home" / "dagster")) as instance:
        assert not instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])), "the queue is not held up"


def test_two_runs_at_once_give_what_one_gives(finops: Finops, cases: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("a", "b")]
    running = [finops.start("run", "--bundle", cases / CASE, "--out", out) for out in outs]
    for process in running:
        assert stages_done(process.communicate(timeout=120)[1], 2) == list(STAGES)
        assert process.returncode == 0
    for out in outs:
        for name in FILES[:4]:
            assert (out / name).read_text() == (cases / CASE / "expected" / name).read_text(), name
    expected = len((cases / CASE / "expected" / "allocation.csv").read_text().splitlines()) - 1
    database = Database(finops.settings["EAI_DATABASE_URL"])
    assert len(database.query("SELECT 1 AS one FROM eai.usage_events WHERE usage_type <> 'llm'")) == expected
    database.close()


def test_a_stopped_backfill_goes_on(finops: Finops, tmp_path: Path) -> None:
    bundle = a_day(tmp_path / "day")
    first = finops("run", "--bundle", bundle, "--from", "2026-10-01T02:00Z", "--to", "2026-10-01T03:00Z")
    assert first.returncode in {0, 3}
    span = ("--bundle", bundle, "--from", "2026-10-01T00:00Z", "--to", "2026-10-01T08:00Z")
    running = finops.start("backfill", *span)
    database = Database(finops.settings["EAI_DATABASE_URL"])

    def published() -> int:
        return len(database.query("SELECT hour FROM eai.hour_runs"))

    while published() < 2 and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert "interrupted" in running.communicate(timeout=60)[1]
    assert running.returncode == 130
    before = published()
    database.close()
    assert 2 <= before < 8, "some hours are published, some are not"
    rest = json.loads(finops("backfill", *span, "--json").stdout)
    assert rest["cluster_hours"] == 8 - before
    assert [row["computed"] for row in json.loads(finops("status", "--json").stdout)] == [8]
    nothing = finops("backfill", *span)
    assert nothing.returncode == 0
    assert "nothing to do" in nothing.stdout
