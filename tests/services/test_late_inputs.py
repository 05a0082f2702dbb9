"""What is written after an hour was read, told by the installed command: reported, waited for, booked once (A32, A33).

The bundles are in tests/faults. A policy of 2.00 EUR an hour, 7.20 EUR per GB-month (0.01 EUR per GB-hour in a month of
720 hours); two workloads of one GPU for two hours are 8.00 EUR, a disk of 1,000 GB for an hour is 10.00 EUR.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.services.conftest import Finops

FAULTS = Path(__file__).parents[1] / "faults"
A, B, C = (f"{name * 8}-0000-4000-8000-00000000000{name}" for name in "abc")
LIVED = ("--began", "c1=2026-09-10T10:00Z", "--ended")


def statement(finops: Finops, period: str) -> dict[str, Any]:
    run = finops("statement", period, "--format", "json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    [month] = found if isinstance(found, list) else [found]
    return dict(month)


def total(finops: Finops, period: str = "2026-09") -> Decimal:
    return sum((Decimal(line["amount"]) for line in statement(finops, period)["totals"]), Decimal(0))


def out_of_date(finops: Finops) -> list[str]:
    rows = json.loads(finops("status", "--json").stdout)
    return [reason for row in rows for reason in row["reasons"]]


def done(finops: Finops, *args: str | Path) -> None:
    """A command that did its work; what has no telemetry is estimated, and says so by exit code 3."""
    run = finops(*args)
    assert run.returncode in {0, 3}, (run.stdout, run.stderr)


def test_a_change_of_owner_leaves_the_hours_before_it(finops: Finops) -> None:
    """4 EUR of a final September moved from A to B, because d1 is B's today; only d9's half an hour was late (1.00)."""
    bundles = FAULTS / "owner_change_rewrites_history"
    done(finops, "run", "--bundle", bundles / "t4a")
    done(finops, "close", "2026-09", *LIVED, "c1=2026-09-10T13:00Z")
    closed = statement(finops, "2026-09")
    done(finops, "backfill", "--bundle", bundles / "t4b")
    assert statement(finops, "2026-09") == closed
    lines = statement(finops, "2026-10")["corrections"]
    assert [(line["tenant_id"], line["deployment_id"], Decimal(line["allocated"]["amount"])) for line in lines] == [
        (C, "d9", Decimal("1.00"))
    ]
    assert {item["tenant_id"] for item in closed["items"]} == {A}


def test_a_late_disk_is_reported_waited_for_and_charged(finops: Finops) -> None:
    """The run that brings the disk computes hour 11 only; the disk has been held since 10:00."""
    bundles = FAULTS / "late_disk_never_charged"
    done(finops, "run", "--bundle", bundles / "t1a")
    done(finops, "run", "--bundle", bundles / "t1e")
    assert total(finops) == Decimal("18.00")
    assert out_of_date(finops) == ["a disk was recorded"]
    refused = finops("close", "2026-09", *LIVED, "c1=2026-09-10T12:00Z", "--json")
    assert refused.returncode != 0
    [changed] = [c["missing"] for c in json.loads(refused.stdout)["conditions"] if not c["holds"]]
    assert changed == [{"cluster": "c1", "hour": "2026-09-10T10:00:00Z", "what": "a disk was recorded"}]
    done(finops, "backfill", "--bundle", bundles / "t1d")
    assert out_of_date(finops) == []
    assert total(finops) == Decimal("28.00")
    done(finops, "close", "2026-09", *LIVED, "c1=2026-09-10T12:00Z")
    charged = {item["deployment_id"]: Decimal(item["allocated"]["amount"]) for item in statement(finops, "2026-09")["items"]
               if item["deployment_id"] == "d1"}  # fmt: skip
    assert charged == {"d1": Decimal("24.00")}


def test_a_run_that_was_killed_between_allocation_and_booking(finops: Finops) -> None:
    """The next backfill repairs it: until then the hours are out of date."""
    bundles = FAULTS / "crash_rerun_backfill_nothing_to_do"
    done(finops, "run", "--bundle", bundles / "t1a")
    killed = finops("run", "--bundle", bundles / "t1d", FINOPS_FAIL_AT="events booked")
    assert killed.returncode != 0
    assert out_of_date(finops)
    assert finops("close", "2026-09", *LIVED, "c1=2026-09-10T12:00Z").returncode != 0
    done(finops, "backfill", "--bundle", bundles / "t1d")
    assert out_of_date(finops) == []
    assert total(finops) == Decimal("28.00")
    assert finops("balance", "2026-09").returncode == 0


def test_a_conflict_is_one_row_that_says_how_many_there_were(finops: Finops, tmp_path: Path) -> None:
    """One id with three contents: the first counts, the two later ones are one row of the quarantine (A5)."""
    done(finops, "run", "--bundle", FAULTS / "bundles_quarantine_conflict_twice", "--out", tmp_path / "out")
    header, *rows = (tmp_path / "out" / "quarantine.csv").read_text(encoding="utf-8").splitlines()
    assert header == "source,key,reason,detail"
    [row] = [row for row in rows if row.startswith("workload_events,")]
    assert row == 'workload_events,e1,conflict,"same event_id, other content (2 times)"'
