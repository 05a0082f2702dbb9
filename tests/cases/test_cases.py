"""Every case through the whole pipeline: bundle, Postgres, Dagster assets, lake, ledger, files (bundles.md)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from finops_pipeline.commands.audit import verify
from finops_pipeline.commands.export import export
from finops_pipeline.commands.runner import booked_since, last_arrival, run_hours
from finops_pipeline.resources.postgres.balance import trial_balance
from finops_pipeline.resources.site import open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases

CASES = sorted(path.name for path in Path(__file__).parent.iterdir() if (path / "bundle.toml").exists())
EXACT = ("gpu_usage.csv", "allocation.csv", "fleet.csv", "gpu_allocation.json")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


def test_there_are_cases() -> None:
    assert len(CASES) >= 28


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, cases: Path, databases: Databases, tmp_path: Path) -> None:
    expected, out = cases / case / "expected", tmp_path / "out"
    settings = load_settings({"FINOPS_HOME": str(tmp_path / "home"), "EAI_DATABASE_URL": databases.fresh()})
    with open_site(settings, cases / case) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        span = site.source.span
        before = last_arrival(site)
        outcome = run_hours(site, instance, *span)
        export(site, *span, outcome.months, booked_since(site, before), out)
        assert run_hours(site, instance, *span).booked == 0, "the same inputs book nothing twice (A32)"
        assert [proof for proof in trial_balance(site.database) if not proof.holds] == [], "the books balance (A24-A33)"
        assert verify(site.database).findings == [], "the audit log is intact, and tells of everything (A34)"
    for name in EXACT:
        assert (out / name).read_text() == (expected / name).read_text(), name
    assert _quarantine(out / "quarantine.csv") == _quarantine(expected / "quarantine.csv")
    priced = sum(1 for line in (out / "allocation.csv").read_text().splitlines()[1:] if line)
    assert outcome.booked == priced, "the first booking is one event an allocation row (A31)"


def _quarantine(path: Path) -> list[tuple[str, str, str]]:
    """Source, key and reason of each row; the detail is free text."""
    with path.open(newline="") as file:
        return [(row["source"], row["key"], row["reason"]) for row in csv.DictReader(file)]
