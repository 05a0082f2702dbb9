"""The package beside others of the same names: installed from a wheel, and started in a folder with an `assets/` of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from finops_pipeline.definitions import HOURLY
from tests.services.conftest import FINOPS
from tests.services.dagster_server import DagsterServer

NAMES = ("assets", "contracts", "resources")
FOREIGN = 'raise ImportError("this package is not ours")\n'
IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
import finops_pipeline
names = [m.name for m in pkgutil.walk_packages(finops_pipeline.__path__, "finops_pipeline.")]
names = [name for name in names if "__main__" not in name and not name.endswith("migrations.env")]
for name in names:
    importlib.import_module(name)
foreign = {name for name in ("assets", "contracts", "resources") if name in sys.modules}
assert not foreign, foreign
print(len(names), pathlib.Path(finops_pipeline.__file__).parent)
"""


def foreign_packages(folder: Path) -> None:
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(FOREIGN)


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, what it depends on, and foreign packages of the names of our folders."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).with_name("uv")
    build: list[str | Path] = [
        uv,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--offline",
        "-q",
        "--out-dir",
        folder,
        repository,
    ]
    subprocess.run(build, check=True, env={"PATH": str(uv.parent), "HOME": str(folder)})
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install: list[str | Path] = [uv, "pip", "install", "--offline", "--no-deps", "-q", "--python", python, wheel]
    subprocess.run(install, check=True, env={"PATH": str(uv.parent), "HOME": str(folder)})
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "what_it_depends_on.pth").write_text(f"{ours}\n")  # a path alone: its own .pth files do not count
    foreign_packages(site)
    return python


def test_everything_imports_from_a_wheel_beside_packages_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    foreign_packages(tmp_path)
    run = subprocess.run(
        [installed, "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert run.returncode == 0, run.stderr
    count, where = run.stdout.split()
    assert int(count) > 100
    assert Path(where).parents[3] == installed.parents[1], "the wheel's, not the working copy"


def test_the_command_runs_from_a_wheel(installed: Path, cases: Path, tmp_path: Path) -> None:
    foreign_packages(tmp_path)
    policies = cases / "01-shared-server-70-30" / "allocation_policies.json"
    run = subprocess.run(
        [installed.with_name("finops"), "policies", "add", policies],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "FINOPS_HOME": str(tmp_path / "home")},
    )
    assert (run.returncode, run.stdout) == (0, "1 of 1 policies are new\n"), run.stderr


@dataclass
class FinopsDev(DagsterServer):
    """`finops dev` in the folder `home`."""

    def program(self) -> Sequence[str]:
        return [str(FINOPS), "dev", "--port", str(self.port)]


def test_dev_in_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    foreign_packages(tmp_path)
    for name in ("settings.py", "definitions.py"):
        (tmp_path / name).write_text(FOREIGN)
    with FinopsDev(tmp_path, {"FINOPS_HOME": ".finops"}) as server:
        server.wait()
        asked = "{ assetNodes { assetKey { path } isExecutable partitionStats { numPartitions } } }"
        found = server.ask(asked)["assetNodes"]
    assert server.processes() == []
    assert {node["assetKey"]["path"][-1] for node in found if node["isExecutable"]} >= {
        asset.key.path[-1] for asset in HOURLY
    }
    hours = {node["partitionStats"]["numPartitions"] for node in found if node["assetKey"]["path"] == ["gpu_usage"]}
    assert hours < set(range(28 * 24, 62 * 24 + 1)), "a new installation begins with the month before"
    assert "this package is not ours" not in server.log.read_text()
