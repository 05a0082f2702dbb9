"""Imports run one way (design.md): contracts <- accounting <- resources <- assets <- definitions <- cli."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("contracts", "finops_pipeline", "resources", "assets")

# room -> the rooms that it may import, besides itself
ACCOUNTING = {"contracts", "finops_pipeline.accounting"}
SHARED = {"finops_pipeline.errors", "finops_pipeline.settings"}
RESOURCES = ACCOUNTING | SHARED | {"resources"}
ALLOWED: dict[str, set[str]] = {
    "contracts": set(),
    "finops_pipeline.accounting": {"contracts"},
    "finops_pipeline.errors": set(),
    "finops_pipeline.settings": ACCOUNTING | {"finops_pipeline.errors"},
    "finops_pipeline.demo": {"finops_pipeline.errors"},
    "resources": RESOURCES,
    "assets": RESOURCES,
    "finops_pipeline.definitions": RESOURCES | {"assets", "finops_pipeline.notifications"},
    "finops_pipeline.notifications": RESOURCES,
    "finops_pipeline.doctor": RESOURCES,
    "finops_pipeline.runner": RESOURCES | {"assets", "finops_pipeline.definitions"},
    "finops_pipeline.export": RESOURCES | {"assets"},
    "finops_pipeline.replica": RESOURCES | {"finops_pipeline.runner", "finops_pipeline.show"},
    "finops_pipeline.show": RESOURCES | {"assets", "finops_pipeline.runner"},
    "finops_pipeline.oversight": RESOURCES | {"finops_pipeline.show"},
    "finops_pipeline.audit": RESOURCES,
    "finops_pipeline.closing": RESOURCES,
    "finops_pipeline.explain": RESOURCES,
    "finops_pipeline.cli": RESOURCES
    | {f"finops_pipeline.{room}" for room in ("audit", "closing", "definitions", "demo", "doctor", "explain", "export")}
    | {f"finops_pipeline.{room}" for room in ("oversight", "replica", "runner", "show")}
    | {"assets"},
    "finops_pipeline.__main__": {"finops_pipeline.cli"},
}

# What would let I/O, a clock or the orchestrator into rooms that are pure.
IMPURE = {
    "asyncio", "dagster", "duckdb", "httpx", "http", "logging", "os", "pandas", "prometheus_api_client", "psycopg",
    "random", "requests", "shutil", "socket", "sqlalchemy", "subprocess", "tempfile", "threading", "time", "urllib3",
}  # fmt: skip
IMPURE_IN_CONTRACTS = {"dagster", "requests", "pandas", "duckdb", "prometheus_api_client"}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room with the longest matching name; the bare package `finops_pipeline` is no room: it must be empty."""
    rooms = [room for room in ALLOWED if module == room or module.startswith(f"{room}.")]
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
    pure = {"finops_pipeline.accounting": IMPURE, "contracts": IMPURE_IN_CONTRACTS}.get(room, set())
    found = []
    for line, target in imports(source, module, package=package):
        top = target.partition(".")[0]
        if top in PACKAGES and room_of(target) not in ALLOWED[room] | {room}:
            found.append(f"{module}:{line} imports {target}: {room} may import {sorted(ALLOWED[room]) or 'nothing'}")
        if top in pure:
            found.append(f"{module}:{line} imports {target}: {room} is pure")
        if top == "tests":
            found.append(f"{module}:{line} imports {target}")
    return found


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), name_of(path), package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_there_is_something_to_check() -> None:
    assert {room_of(name_of(path)) for path in modules()} >= {"contracts", "finops_pipeline.accounting", "resources"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("contracts.lake", "from finops_pipeline.errors import FinopsError"),
        ("finops_pipeline.accounting.usage", "import resources.lake"),
        ("finops_pipeline.accounting.usage", "def f():\n    from dagster import asset"),
        ("finops_pipeline.accounting.usage", "from finops_pipeline.settings import Settings"),
        ("finops_pipeline.accounting.usage", "from ..settings import Settings"),
        ("finops_pipeline.accounting.usage", "import time"),
        ("resources.lake", "from assets import usage"),
        ("resources.lake", "from finops_pipeline import cli"),
        ("resources.lake", "from finops_pipeline import definitions"),
        ("assets.usage", "from finops_pipeline.definitions import defs"),
        ("finops_pipeline.definitions", "from finops_pipeline.cli import main"),
        ("finops_pipeline.demo.generate", "from resources.lake import Lake"),
        ("finops_pipeline.helpers", '"""A module without a room."""\nx = 1'),
        ("assets.usage", "from tests.unit import helpers"),
    ],
)
def test_the_wrong_way_is_seen(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "finops_pipeline.accounting.usage",
            "from finops_pipeline.accounting import exact\nfrom contracts import lake",
        ),
        ("finops_pipeline.accounting.usage", "from .exact import quantize\nfrom . import exact"),
        ("resources.lake", "from contracts.lake import TABLES\nfrom finops_pipeline.errors import FinopsError"),
        ("finops_pipeline.cli", "from finops_pipeline.definitions import definitions\nimport assets.usage"),
        ("finops_pipeline", '"""Only a docstring."""'),
    ],
)
def test_the_right_way_passes(module: str, source: str) -> None:
    assert not violations(source, module)
