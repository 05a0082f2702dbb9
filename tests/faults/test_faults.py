"""Every bundle on which the numbers were once wrong, through the whole pipeline, against the values worked by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from finops_pipeline.commands.export import export
from finops_pipeline.commands.runner import booked_since, last_arrival, run_hours
from finops_pipeline.resources.postgres.balance import trial_balance
from finops_pipeline.resources.site import open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases
from tests.faults.expected import RIGHT, Right, unmet

HERE = Path(__file__).parent
FILES = ("gpu_usage.csv", "allocation.csv", "fleet.csv", "quarantine.csv")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


def wrong(right: Right, bundle: Path, databases: Databases, folder: Path) -> list[str]:
    """What of `right` a first run of the bundle does not have."""
    out = folder / "out"
    settings = load_settings({"FINOPS_HOME": str(folder / "home"), "EAI_DATABASE_URL": databases.fresh()})
    with open_site(settings, bundle) as site, dg.DagsterInstance.ephemeral() as instance:
        assert site.source.span is not None
        span = site.source.span
        before = last_arrival(site)
        outcome = run_hours(site, instance, *span)
        export(site, *span, outcome.months, booked_since(site, before), out)
        assert run_hours(site, instance, *span).booked == 0, "the same inputs book nothing twice (A32)"
        assert [proof for proof in trial_balance(site.database) if not proof.holds] == [], "the books balance (A24-A33)"
        kinds = site.database.query("SELECT kind, subject, workload_id, detail FROM eai.findings").to_pylist()
        provisional = site.database.query("SELECT bool_or(provisional) AS it FROM eai.hour_runs").to_pylist()[0]["it"]
    files = {}
    for name in FILES:
        with (out / name).open(newline="", encoding="utf-8") as file:
            files[name] = list(csv.DictReader(file))
    statements = json.loads((out / "gpu_allocation.json").read_text(encoding="utf-8"), parse_float=str, parse_int=str)
    items = [item for statement in statements for item in statement["items"]]
    findings = {(row["kind"], f"{row['subject']} {row['workload_id']} {row['detail']}") for row in kinds}
    return unmet(right, files, items, findings, provisional=provisional)


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: f"{right.fault}/{right.bundle}")
def test_fault(right: Right, databases: Databases, tmp_path: Path) -> None:
    assert wrong(right, HERE / right.fault / right.bundle, databases, tmp_path) == []
