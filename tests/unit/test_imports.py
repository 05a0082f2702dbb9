"""Imports run one way (docs/architecture.md): contracts <- accounting <- resources <- assets <- definitions <- cli.

Within accounting they run from what comes later in the data's way to what comes before it:
telemetry <- holding <- usage <- findings <- money <- audit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
AT_THE_TOP = ("contracts", "resources", "assets")
"""Folders at the top of the repository that are parts of `finops_pipeline` by a link."""

# room -> the rooms that it may import, besides itself
ACCOUNTING_ROOMS = ("telemetry", "holding", "usage", "findings", "money", "audit")
"""In the order of the data: each may import those before it."""
BASE = {"contracts", "accounting.arrays", "accounting.config", "accounting.exact", "accounting.spans"}
BEFORE = list(accumulate(({f"accounting.{room}"} for room in ACCOUNTING_ROOMS), set.union, initial=set[str]()))
ACCOUNTING = BASE | BEFORE[-1] | {"accounting"}
SHARED = {"errors", "settings"}
POSTGRES = (
    ACCOUNTING | SHARED | {"resources.anchor", "resources.failpoints", "resources.embedded", "resources.postgres"}
)
RESOURCES = POSTGRES | {"resources"} | {f"resources.{room}" for room in ("bundle", "clickhouse", "lake", "prometheus")}
ALLOWED: dict[str, set[str]] = {
    "contracts": set(),
    "accounting": ACCOUNTING,  # the sequence (`hour`)
    "accounting.arrays": set(),
    "accounting.config": set(),
    "accounting.exact": set(),
    "accounting.spans": {"accounting.arrays"},
    **{f"accounting.{room}": BASE | before for room, before in zip(ACCOUNTING_ROOMS, BEFORE, strict=False)},
    "errors": set(),
    "settings": ACCOUNTING | {"errors"},
    "demo": {"accounting.exact", "errors"},
    "resources": RESOURCES,
    "resources.anchor": ACCOUNTING | SHARED,
    "resources.failpoints": set(),
    "resources.series": BASE,
    "resources.embedded": SHARED,
    "resources.lake": BASE | SHARED | {"accounting.telemetry", "resources.failpoints"},
    "resources.prometheus": BASE | SHARED | {"resources.series"},
    "resources.bundle": BASE | SHARED | {"resources.series"},
    "resources.postgres": POSTGRES,
    "resources.clickhouse": BASE | SHARED | {"resources.postgres"},
    "assets": RESOURCES | {"resources.series"},
    "notifications": RESOURCES,
    "definitions": RESOURCES | {"assets", "notifications"},
    "doctor": RESOURCES | {"resources.series"},
    "commands": RESOURCES | {"assets", "definitions"},
    "cli": RESOURCES | {"commands", "definitions", "demo", "doctor"},
    "__main__": {"cli"},
}
RESOURCES |= {"resources.series"}

# What would let I/O, a clock or the orchestrator into rooms that are pure.
IMPURE = {
    "asyncio", "dagster", "duckdb", "httpx", "http", "logging", "os", "pandas", "prometheus_api_client", "psycopg",
    "random", "requests", "shutil", "socket", "sqlalchemy", "subprocess", "tempfile", "threading", "time", "urllib3",
}  # fmt: skip
PURE_ALL_THE_SAME = {("accounting.money.queries", "duckdb")}
"""In memory, on the tables that it is given, without files or extensions: see the module."""
IMPURE_IN_CONTRACTS = {"dagster", "requests", "pandas", "duckdb", "prometheus_api_client"}


def modules() -> list[Path]:
    return sorted(path for folder in ("finops_pipeline", *AT_THE_TOP) for path in (REPOSITORY / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    parts = ("finops_pipeline", *parts) if parts[0] in AT_THE_TOP else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room with the longest matching name; the bare package `finops_pipeline` is no room: it must be empty."""
    inside = module.removeprefix("finops_pipeline.")
    rooms = [room for room in ALLOWED if inside == room or inside.startswith(f"{room}.")]
    return max(rooms, key=len, default=None)


def imports(source: str, module: str, *, package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever in the file; relative imports resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, module: str, *, package: bool = False) -> list[str]:
    room = room_of(module)
    if room is None:
        return [] if not ast.parse(source).body[1:] else [f"{module} has no room in design.md: give it one in ALLOWED"]
    pure = {"accounting": IMPURE, "contracts": IMPURE_IN_CONTRACTS}.get(room.partition(".")[0], set())
    found = []
    for line, target in imports(source, module, package=package):
        top = target.partition(".")[0]
        if top in AT_THE_TOP:
            found.append(f"{module}:{line} imports {target}: say finops_pipeline.{target}")
        if top == "finops_pipeline" and room_of(target) not in ALLOWED[room] | {room}:
            found.append(f"{module}:{line} imports {target}: {room} may import {sorted(ALLOWED[room]) or 'nothing'}")
        if top in pure and (module.removeprefix("finops_pipeline."), top) not in PURE_ALL_THE_SAME:
            found.append(f"{module}:{line} imports {target}: {room} is pure")
        if top == "tests":
            found.append(f"{module}:{line} imports {target}")
    return found


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), name_of(path), package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_there_is_something_to_check() -> None:
    assert {room_of(name_of(path)) for path in modules()} >= ALLOWED.keys() - {"__main__"}


@pytest.mark.parametrize("folder", AT_THE_TOP)
def test_folders_at_the_top_are_parts_of_the_package(folder: str) -> None:
    assert (REPOSITORY / "finops_pipeline" / folder).resolve() == REPOSITORY / folder


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("contracts.lake", "from finops_pipeline.errors import FinopsError"),
        ("accounting.usage.shares", "import finops_pipeline.resources.lake"),
        ("accounting.usage.shares", "def f():\n    from dagster import asset"),
        ("accounting.usage.shares", "from finops_pipeline.settings import Settings"),
        ("accounting.usage.shares", "from ...settings import Settings"),
        ("accounting.usage.shares", "import time"),
        ("accounting.money.allocation", "import duckdb"),
        ("accounting.usage.shares", "from finops_pipeline.accounting.money import policies"),
        ("accounting.telemetry.windows", "from finops_pipeline.accounting.holding import holders"),
        ("accounting.money.policies", "from finops_pipeline.accounting.audit import chain"),
        ("accounting.money.policies", "from finops_pipeline.accounting import hour"),
        ("resources.lake.store", "from finops_pipeline.assets import usage"),
        ("resources.lake.store", "from assets import usage"),
        ("resources.lake.store", "from finops_pipeline.resources.postgres import client"),
        ("resources.postgres.client", "from finops_pipeline.resources import site"),
        ("resources.site", "from finops_pipeline import cli"),
        ("resources.site", "from finops_pipeline import definitions"),
        ("assets.usage", "from finops_pipeline.definitions import defs"),
        ("definitions", "from finops_pipeline.cli import main"),
        ("demo.generate", "from finops_pipeline.resources.lake.store import Lake"),
        ("helpers", '"""A module without a room."""\nx = 1'),
        ("assets.usage", "from tests.unit import helpers"),
    ],
)
def test_the_wrong_way_is_seen(module: str, source: str) -> None:
    assert violations(source, f"finops_pipeline.{module}")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "finops_pipeline.accounting.usage.shares",
            "from finops_pipeline.accounting import exact\nfrom finops_pipeline.contracts import lake",
        ),
        ("finops_pipeline.accounting.usage.shares", "from .pieces import Pieces\nfrom . import pieces"),
        (
            "finops_pipeline.resources.lake.store",
            "from finops_pipeline.contracts.lake import TABLES\nfrom finops_pipeline.errors import FinopsError",
        ),
        (
            "finops_pipeline.cli",
            "from finops_pipeline.definitions import definitions\nimport finops_pipeline.commands.show",
        ),
        ("finops_pipeline", '"""Only a docstring."""'),
    ],
)
def test_the_right_way_passes(module: str, source: str) -> None:
    assert not violations(source, module)
