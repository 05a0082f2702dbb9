"""What every test has: none of the developer's own settings, and no telemetry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")
for variable in [name for name in os.environ if name.startswith(("EAI_", "FINOPS_")) or name == "DAGSTER_HOME"]:
    del os.environ[variable]
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
os.environ["FINOPS_HOME"] = str(Path(__file__).with_name("no-installation"))
"""A demo that the developer ran in this folder is not about the tests."""


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def cases(repository: Path) -> Path:
    """The folder of the case bundles."""
    return repository / "tests" / "cases"
