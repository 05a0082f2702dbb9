"""`finops explain` (A35): what it prints recomputes to the amount, for every booked event of several cases.

The recomputation here is a second program: Decimal with 60 digits, from the JSON alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from finops_pipeline.accounting.audit.explanation import TABLES
from finops_pipeline.commands.explain import Sources, explain_event, explain_hour, tree_text
from finops_pipeline.commands.show import json_text
from finops_pipeline.contracts import lake
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.site import Site
from tests.databases import Databases
from tests.services.books import ALICE, Books, Used
from tests.services.case_runs import ran

CASES = Path(__file__).parents[1] / "cases"
RECOMPUTED = ("01-", "03-", "09-", "10-", "11-", "13-", "14-", "15-", "17-", "18-", "24-")
NAMES = sorted(path.name for path in CASES.iterdir() if path.name.startswith(RECOMPUTED))
EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
UNITS = {"gpu_seconds": 3, "gpu_memory_gb_seconds": 3, "energy_wh": 6, "storage_gb_hours": 6}

Told = dict[str, Any]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


def sources_of(site: Site) -> Sources:
    return Sources(site.database, site.lake, site.config, site.source.now_ms())


def number(text: str) -> Decimal:
    """A decimal, or an exact fraction as `n/d`."""
    numerator, _, denominator = text.partition("/")
    return EXACT.divide(Decimal(numerator), Decimal(denominator or 1))


def rounded(value: Decimal, places: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-places), context=EXACT)


def cost_of(cost: Told, usage: Told) -> Decimal:
    """The row's amount by A24, from its published units and the policy."""
    price = {name: Decimal(cost["policy"][name]) for name in (
        "gpu_hourly_cost", "overhead_pct", "energy_kwh_price", "pue", "storage_gb_month_price"
    )}  # fmt: skip
    if "disks" in usage:
        held = sum((number(disk["size_gb"]) * seconds(disk) / 3600 for disk in usage["disks"]), Decimal(0))
        return rounded(EXACT.divide(held * price["storage_gb_month_price"], Decimal(cost["hours_in_month"])), 9)
    gpu = EXACT.divide(Decimal(usage["gpu_seconds"] or 0) * price["gpu_hourly_cost"], Decimal(3600))
    overhead = EXACT.divide(EXACT.multiply(gpu, price["overhead_pct"]), Decimal(100))
    energy = Decimal(usage["energy_wh"] or 0) / 1000 * price["pue"] * price["energy_kwh_price"]
    return rounded(EXACT.add(EXACT.add(gpu, overhead), energy), 9)


def seconds(span: Told) -> Decimal:
    first, past = (datetime.fromisoformat(span[name]) for name in ("from", "to"))
    return Decimal((past - first).seconds) + Decimal((past - first).microseconds) / 10**6 + (past - first).days * 86400


def part_of(whole: Decimal, places: int, split: Told, tenant_id: str, hour: str) -> Decimal:
    """The tenant's part of a row by A29."""
    weights = {row["share_id"]: Fraction(row["weight"]) for row in split["weights"]}
    units, total = int(whole.scaleb(places)), sum(weights.values())
    exact = {share: units * weight / total for share, weight in weights.items()}
    parts = {share: int(value) for share, value in exact.items()}
    order = sorted(
        exact, key=lambda share: (parts[share] - exact[share], hashlib.sha256(f"{share}|{hour}".encode()).hexdigest())
    )
    for share in order[: units - sum(parts.values())]:
        parts[share] += 1
    return Decimal(parts.get(tenant_id, 0)).scaleb(-places)


def check(entry: Told) -> None:
    key, booked, usage, split = entry["key"], entry["booked"], entry["usage"], entry["split"]
    assert entry["part_is_what_is_booked"]
    _check_usage(entry)
    if entry["cost"] is None:
        assert booked["amounts"] == {}
    else:
        whole = cost_of(entry["cost"], usage)
        assert whole == Decimal(entry["cost"]["amount"])
        amount = part_of(whole, 9, split, key["tenant_id"], key["hour"])
        assert {entry["cost"]["currency"]: amount} == {code: Decimal(text) for code, text in booked["amounts"].items()}
        assert sum(Decimal(event["cost"]["amount"]) for event in booked["revisions"]) == amount
        shown = EXACT.quantize(
            sum((Decimal(term["value"]) for term in entry["cost"]["terms"]), Decimal(0)), Decimal("1e-15")
        )
        assert shown == EXACT.quantize(Decimal(entry["cost"]["sum"]), Decimal("1e-15"))
    for name, places in UNITS.items():
        unit = (
            rounded(number(usage["gb_hours"]), 6)
            if name == "storage_gb_hours" and "disks" in usage
            else usage.get(name)
        )
        if unit is not None:
            assert part_of(Decimal(unit), places, split, key["tenant_id"], key["hour"]) == Decimal(
                booked["units"][name]
            )
    assert sum(Decimal(part["amount"] or 0) for part in split["parts"]) == Decimal(
        (entry["cost"] or {}).get("amount", 0)
    )


def _check_usage(entry: Told) -> None:
    """The row's units from running intervals and boards (A4, A20, A28), and its device time from its windows' status."""
    usage, devices = entry["usage"], entry["devices"]
    if usage["basis"] == "storage":
        return
    if usage["basis"] == "lifecycle":
        gpu = sum((number(row["gpu_seconds"]) for row in entry["running"]), Decimal(0))
        assert all(row["opened_by"] for row in entry["running"])
    else:
        gpu = Decimal(sum(row["time_ms"] for row in devices)) / 1000
    assert rounded(gpu, 3) == Decimal(usage["gpu_seconds"])
    energies = [row["energy_mj"] for row in devices] + [row.get("modelled_mj") for row in entry["running"]]
    assert _sum(energies, 3_600_000, 6) == _decimal(usage["energy_wh"])
    memory = [row["memory_kib_ms"] for row in devices]
    assert _sum(memory, 1024 * 1024 * 1000, 3) == _decimal(usage["gpu_memory_gb_seconds"])
    if usage["basis"] != "idle":
        for name in ("measured_seconds", "estimated_seconds", "missing_seconds"):
            unseen = sum((number(row["unseen_unit_ms"]) for row in entry["running"]), Decimal(0)) / 1000
            known = sum((Decimal(row[name]) for row in devices), Decimal(0))
            assert Decimal(usage[name]) - known in (Decimal(0), unseen)
    boards = {row["gpu_uuid"] for row in devices}
    assert {row["device"].split("/")[0] for row in entry["windows"]} == boards


def _sum(values: list[int | None], divisor: int, places: int) -> Decimal | None:
    known = [value for value in values if value is not None]
    return rounded(EXACT.divide(Decimal(sum(known)), Decimal(divisor)), places) if known else None


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_recomputes_to_the_amount(name: str, databases: Databases, tmp_path: Path) -> None:
    with ran(CASES / name, tmp_path, databases) as site:
        sources = sources_of(site)
        events = site.database.query("SELECT event_id FROM eai.usage_events WHERE usage_type <> 'llm' ORDER BY seq")
        assert len(events)
        for event_id in events["event_id"].to_pylist():
            told = json.loads(json_text(explain_event(sources, str(event_id))))
            (entry,) = told["explained"]
            assert event_id in [event["event_id"] for event in entry["booked"]["revisions"]]
            check(entry)


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ran(CASES / "03-ten-minute-gap", tmp_path_factory.mktemp("home"), databases) as site:
        yield site


def test_an_hour_of_a_tenant_and_deployment(shared: Site) -> None:
    row = shared.database.query(
        "SELECT tenant_id::text AS tenant_id, deployment_id, period_start FROM eai.usage_events"
        " WHERE usage_type = 'gpu_local' ORDER BY seq LIMIT 1"
    ).to_pylist()[0]
    told = explain_hour(sources_of(shared), row["tenant_id"], row["deployment_id"], row["period_start"])
    assert [entry["key"]["tenant_id"] for entry in told["explained"]] == [row["tenant_id"]] * len(told["explained"])
    (entry,) = told["explained"]
    methods = {(window["method"], window["seconds"]) for window in entry["windows"]}
    assert sum(seconds for _, seconds in methods) == 3600
    assert any(method != "measured" for method, _ in methods), "the case has a gap"
    assert all(reading["samples"] and reading["first"] < reading["last"] for reading in entry["readings"])


def test_the_tree_goes_from_the_amount_down_to_the_readings(shared: Site) -> None:
    event_id = shared.database.query("SELECT event_id FROM eai.usage_events WHERE usage_type = 'gpu_local' LIMIT 1")
    text = tree_text(explain_event(sources_of(shared), str(event_id["event_id"][0])))
    places = [text.index(word) for word in (
        "booked as", "split:", "cost of the row", "policy ", "usage row", "ran ", "windows by device", "raw readings"
    )]  # fmt: skip
    assert places == sorted(places)
    assert "\x1b" not in text


def test_what_is_not_there(shared: Site) -> None:
    sources = sources_of(shared)
    with pytest.raises(UsageError, match="the ledger has none"):
        explain_event(sources, "no-such-event")
    with pytest.raises(UsageError, match="nothing is booked"):
        explain_hour(sources, "a0000000-0000-4000-8000-00000000000a", "chat", datetime(2020, 1, 1, tzinfo=UTC))


def test_an_event_of_several_revisions_explains_their_sum(databases: Databases, tmp_path: Path) -> None:
    """The lake has the latest result, the ledger what led there: the sum is explained, and where each is listed."""
    url = databases.fresh()
    books = Books(url, databases.admin(url), tmp_path)
    october = datetime(2026, 10, 1, tzinfo=UTC)
    books.hour(october, Used(seconds="1800"))
    books.close("2026-10")
    books.hour(october, Used())
    books.publish("2026-11")
    for table in TABLES:
        if books.site.lake.read(table, "c1", round(october.timestamp()) * 1000) is None:
            books.site.lake.write(table, "c1", round(october.timestamp()) * 1000, lake.TABLES[table].empty_table())
    policies = books.database.read_policies()
    books.site.lake.write("allocation_policies", "c1", round(october.timestamp()) * 1000, policies)
    told = explain_hour(sources_of(books.site), ALICE, "chat", october)
    (entry,) = told["explained"]
    assert [(e["revision"], e["listed_in"]) for e in entry["booked"]["revisions"]] == [(1, None), (2, "2026-11")]
    assert entry["booked"]["amounts"] == {"EUR": "2.628528000"}
    assert cost_of(entry["cost"], entry["usage"]) == Decimal("2.628528000")
    assert entry["part_is_what_is_booked"]
    assert "listed in 2026-11" in " ".join(tree_text(told).replace("│", " ").split())
    books.database.close()
