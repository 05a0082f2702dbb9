"""Usage without prices: FINOPS_PRICING=off accounts, closes months and states usage, whatever policies there are."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path

from finops_pipeline.resources.postgres.client import Database
from tests.services.conftest import Finops

SHARED = "01-shared-server-70-30"
UNPRICED = "14-policies"
OFF = {"FINOPS_PRICING": "off"}
UNITS = ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh")


def units(statement: str) -> dict[tuple[str, str], list[object]]:
    (month,) = json.loads(statement, parse_float=Decimal)
    return {(i["tenant_id"], i["deployment_id"]): [i[name] for name in UNITS] for i in month["items"]}


def test_a_month_is_accounted_explained_and_closed_without_prices(finops: Finops, cases: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(cases / SHARED, tmp_path / "bundle"))
    toml = bundle / "bundle.toml"
    toml.write_text(toml.read_text().replace('now = "2026-10-03', 'now = "2026-11-03'))
    settings = OFF | {"FINOPS_BUNDLE": str(bundle)}
    ran = finops("run", "--json", **settings)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert json.loads(ran.stdout)["unpriced"] == 0
    status = finops("status", "--json", **settings)
    assert [day["unpriced"] for day in json.loads(status.stdout)] == [0]
    assert finops("doctor", **settings).stdout.count("FINOPS_PRICING is off") == 1

    dry = finops("close", "2026-10", "--dry-run", **{**settings, "FINOPS_PRICING": "on"})
    assert (dry.returncode, "MISSING  nothing is unpriced" in dry.stdout) == (3, True), dry.stdout
    closed = finops("close", "2026-10", "--json", **settings)
    assert {c["name"]: c["missing"] for c in json.loads(closed.stdout)["conditions"] if not c["holds"]} == {}
    assert (closed.returncode, json.loads(closed.stdout)["status"]) == (0, "final")

    stated = finops("statement", "2026-10", "--format", "json", **settings).stdout
    (month,) = json.loads(stated)
    assert [i["allocated"] for i in month["items"]] == [{"amount": None, "currency": None}] * len(month["items"])
    assert [(total["amount"], total["currency"]) for total in month["totals"]] == [(None, None)]
    (expected,) = json.loads((cases / SHARED / "expected" / "gpu_allocation.json").read_text(), parse_float=Decimal)
    assert units(stated) == {
        (i["tenant_id"], i["deployment_id"]): [i[name] for name in UNITS] for i in expected["items"]
    }, "prices change no unit"
    assert "unpriced" not in finops("statement", "2026-10", **settings).stdout
    balance = finops("balance", **settings)
    assert balance.returncode == 0, balance.stdout
    assert finops("audit", "verify", **settings).returncode == 0

    database = Database(finops.settings["EAI_DATABASE_URL"])
    assert database.query("SELECT 1 AS one FROM eai.allocation_policies").num_rows > 0, "they are there, and not used"
    events = database.query("SELECT event_id FROM eai.usage_events WHERE usage_type <> 'llm' ORDER BY seq").to_pylist()
    database.close()
    explained = finops("explain", events[0]["event_id"], **settings)
    assert explained.returncode == 0, explained.stderr
    assert "no price" in explained.stdout


def test_what_has_no_policy_is_unpriced_only_where_usage_is_priced(finops: Finops, cases: Path) -> None:
    run, all_estimated = ("run", "--bundle", cases / UNPRICED, "--json"), {"FINOPS_MAX_ESTIMATED": "1"}
    priced = finops(*run, **all_estimated)
    assert priced.returncode == 3
    assert json.loads(priced.stdout)["unpriced"] > 0
    off = finops(*run, **all_estimated, **OFF)
    assert off.returncode == 0, off.stdout + off.stderr
    assert json.loads(off.stdout)["unpriced"] == 0
    again = finops(*run, **all_estimated)
    assert json.loads(again.stdout)["unpriced"] == json.loads(priced.stdout)["unpriced"]
    assert finops("balance").returncode == 0, "and everything that was taken back is booked again"
