"""`finops policies add` and `end` against an installation whose hours are computed (A22)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.databases import Databases
from tests.services.conftest import Finops
from tests.services.test_cli import one_line

PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
CASE = "01-shared-server-70-30"
SEED = {
    "name": "local-gpu-default",
    "deployment_pattern": "*",
    "currency": "EUR",
    "gpu_hourly_cost": "2.10",
    "overhead_pct": "18",
    "energy_kwh_price": "0.21",
    "pue": "1.4",
    "storage_gb_month_price": "0.02",
}
BACKDATED = {"id": "dear", "name": "dear", "deployment_pattern": "*", "currency": "EUR", "gpu_hourly_cost": "20"}

Write = Callable[[Any], Path]


@pytest.fixture(scope="module")
def computed(databases: Databases, cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Finops:
    found = Finops(
        tmp_path_factory.mktemp("policies") / "home",
        {"EAI_DATABASE_URL": databases.fresh(), "FINOPS_PLATFORM_TENANT": PLATFORM},
    )
    ran = found("run", "--bundle", cases / CASE, "--json")
    assert ran.returncode == 0, ran.stderr
    return found


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writing(document: Any) -> Path:
        path = tmp_path / "policies.json"
        path.write_text(json.dumps(document))
        return path

    return writing


def as_json(finops: Finops, *args: str | Path) -> Any:
    ran = finops(*args, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_body_of_a_request_is_a_policy_from_the_next_hour(computed: Finops, write: Write) -> None:
    added = as_json(computed, "policies", "add", write(SEED))
    assert added == {"added": 1, "given": 1, "policies": [{"id": "alp_1", "status": "active"}]}
    again = as_json(computed, "policies", "add", write(SEED))
    assert again == added | {"added": 0}


def test_what_reaches_into_computed_hours_is_refused_unless_asked_for(computed: Finops, write: Write) -> None:
    """A price backdated into computed hours is nothing that happens by the way."""
    file = write(BACKDATED | {"effective_from": "2026-10-01T10:00:00Z"})
    refused = one_line(computed("policies", "add", file), 2)
    assert "policy dear reaches into 2 computed hours, from 2026-10-01T10:00:00Z" in refused
    assert "--reason" in one_line(computed("policies", "add", file, "--retroactive"), 2)
    trial = as_json(computed, "policies", "add", file, "--dry-run")
    assert (trial["added"], trial["hours"], trial["final_months"]) == (1, 2, [])
    assert all(float(row["difference"]) > 0 for row in trial["differences"])
    assert "dear" not in computed("policies", "list").stdout
    assert "nothing was written" in computed("policies", "add", file, "--dry-run").stdout
    done = as_json(computed, "policies", "add", file, "--retroactive", "--reason", "agreed with finance")
    assert done["added"] == 1
    shown = as_json(computed, "policies", "show", "dear")
    assert (shown["gpu_hourly_cost"], shown["pue"]) == ("20", "1.4")
    assert computed("audit", "verify").returncode == 0


def test_a_policy_ends_once_from_an_hour_that_has_not_begun(computed: Finops, write: Write) -> None:
    """The policy of the case cannot be retired or changed; its end may be set, and the log of it verifies."""
    policy = as_json(computed, "policies", "show", "pol-default-1")
    refused = one_line(computed("policies", "add", write([policy | {"status": "retired"}])), 2)
    assert "finops policies end pol-default-1" in refused
    new = SEED | {"id": "p1c", "status": "retired", "effective_from": "2036-01-01T00:00:00Z"}
    assert "a new policy is active" in one_line(computed("policies", "add", write(new)), 2)
    past = computed("policies", "end", "pol-default-1", "--from", "2026-10-01T10:00:00Z")
    assert "has begun" in one_line(past, 2)
    assert as_json(computed, "policies", "end", "pol-default-1", "--from", "2036-01-01T00:00:00Z") == {
        "id": "pol-default-1",
        "effective_to": "2036-01-01T00:00:00Z",
    }
    again = computed("policies", "end", "pol-default-1", "--from", "2037-01-01T00:00:00Z")
    assert "ends at 2036-01-01T00:00:00Z already" in one_line(again, 2)
    assert "there is none" in one_line(computed("policies", "end", "nothing", "--from", "2037-01-01T00:00:00Z"), 2)
    assert as_json(computed, "policies", "show", "pol-default-1")["effective_to"] == "2036-01-01T00:00:00Z"
    assert computed("audit", "verify").returncode == 0
