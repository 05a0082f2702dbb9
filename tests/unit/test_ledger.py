"""The ledger (A31, A32): differences by hand, and random histories against the simple model "the sum is the latest"."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import AccountingError
from finops_pipeline.accounting.money.ledger import (
    BOOKED,
    EVENT_NAMESPACE,
    booked_sums,
    content_sha256,
    differences,
    event_id,
)
from finops_pipeline.contracts import lake

H10 = 1_790_848_800_000  # 2026-10-01T10:00:00Z
HOUR = datetime(2026, 10, 1, 10, tzinfo=UTC)
UNITS = {"gpu_seconds": 3, "gpu_memory_gb_seconds": 3, "energy_wh": 6, "storage_gb_hours": 6}
NO_QUALITY = {"measured_seconds": None, "estimated_seconds": None, "missing_seconds": None, "methods": ""}
NOTHING = BOOKED.empty_table()

STORAGE = lake.column("storage_gb_hours", pa.decimal128(38, 6), "its part of the disk", "GB-h")
SCHEMA = (
    lake.GPU_COST_ALLOCATION
    if "storage_gb_hours" in lake.GPU_COST_ALLOCATION.names
    else lake.GPU_COST_ALLOCATION.append(STORAGE)
)


def row(**changes: Any) -> dict[str, Any]:
    return {
        "cluster": "dc1",
        "hour": HOUR,
        "workload_id": "wl",
        "gpu_model": "H100",
        "tenant_id": "a",
        "usage_type": "gpu_local",
        "deployment_id": "chat",
        "gpu_seconds": Decimal("3600.000"),
        "gpu_memory_gb_seconds": None,
        "energy_wh": Decimal("500.000000"),
        "storage_gb_hours": None,
        "amount": Decimal("2.100000000"),
        "currency": "EUR",
        "policy_id": "p1",
        "estimated": False,
    } | changes


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def usage_of(**changes: Any) -> pa.Table:
    usage = {
        "cluster": "dc1",
        "hour": HOUR,
        "workload_id": "wl",
        "gpu_model": "H100",
        "tenant_id": "a",
        "deployment_id": "chat",
        "basis": "lifecycle",
        "measured_seconds": Decimal("3599.500"),
        "estimated_seconds": Decimal("0.500"),
        "missing_seconds": Decimal("0.000"),
        "methods": "linear=0.500",
    } | changes
    return pa.Table.from_pylist([usage], schema=lake.GPU_USAGE)


def book(events: list[dict[str, Any]], *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Compute the hour again with these rows: the new events, which join `events`."""
    new = differences(table_of(*rows), usage_of(), booked_sums(events))
    events += new
    return new


def test_first_booking() -> None:
    (event,) = differences(table_of(row()), usage_of(), NOTHING)
    assert event == {
        "schema_version": "1.0",
        "event_id": str(
            uuid.uuid5(EVENT_NAMESPACE, '["dc1","2026-10-01T10:00:00Z","wl","H100","chat","a","gpu_local",1]')
        ),
        "occurred_at": "2026-10-01T10:00:00Z",
        "period_start": "2026-10-01T10:00:00Z",
        "period_end": "2026-10-01T11:00:00Z",
        "tenant_id": "a",
        "usage_type": "gpu_local",
        "source": "finops_pipeline",
        "cluster": "dc1",
        "workload_id": "wl",
        "deployment_id": "chat",
        "model": None,
        "gpu_model": "H100",
        "basis": "lifecycle",
        "units": {"gpu_seconds": 3600, "energy_wh": 500},
        "cost": {"amount": "2.100000000", "currency": "EUR"},
        "allocation_policy_id": "p1",
        "estimated": False,
        "quality": {
            "measured_seconds": 3599.5,
            "estimated_seconds": 0.5,
            "missing_seconds": 0,
            "methods": "linear=0.500",
        },
        "revision": 1,
        "corrects": None,
        "content_sha256": event["content_sha256"],
    }
    content = {name: value for name, value in event.items() if name != "content_sha256"}
    assert event["content_sha256"] == hashlib.sha256(rfc8785.dumps(content)).hexdigest() == content_sha256(event)


def test_ids_and_bytes_are_pinned() -> None:
    """A31: the same inputs give the same bytes on any machine, and in any later version."""
    assert event_id(("dc1", H10, "wl", None, "chat", "a", "gpu_local"), 3) == "d8a30225-caf4-50f3-a3ca-4d7062933c00"
    (event,) = differences(table_of(row()), usage_of(), NOTHING)
    assert event["content_sha256"] == "cb4134a8ae977b028d46274ad4be113febfc437971bff573d47adeb0a9b4ed8f"


def test_the_same_result_again_books_nothing() -> None:
    events: list[dict[str, Any]] = []
    book(events, row())
    assert book(events, row()) == []


def test_a_restatement_books_the_difference_and_names_what_it_corrects() -> None:
    events: list[dict[str, Any]] = []
    (first,) = book(events, row())
    (second,) = book(events, row(energy_wh=Decimal("499.999999"), amount=Decimal("2.000000000"), estimated=True))
    assert second["units"] == {"gpu_seconds": 0, "energy_wh": -0.000001}
    assert second["cost"] == {"amount": "-0.100000000", "currency": "EUR"}
    assert (second["revision"], second["corrects"], second["estimated"]) == (2, first["event_id"], True)
    assert second["event_id"] != first["event_id"]


def test_a_key_that_vanished_is_reversed_once_and_may_come_back() -> None:
    events: list[dict[str, Any]] = []
    book(events, row())
    (reversal,) = book(events)
    assert reversal["units"] == {"gpu_seconds": -3600, "energy_wh": -500}
    assert reversal["cost"] == {"amount": "-2.100000000", "currency": "EUR"}
    assert (reversal["basis"], reversal["quality"]) == ("lifecycle", NO_QUALITY)
    assert book(events) == []
    (again,) = book(events, row())
    assert (again["revision"], again["units"]) == (3, {"gpu_seconds": 3600, "energy_wh": 500})


@pytest.mark.parametrize(
    "changes",
    [{"currency": "USD"}, {"deployment_id": "other"}, {"currency": None, "amount": None, "policy_id": None}],
    ids=["currency", "deployment", "unpriced"],
)
def test_another_account_is_a_reversal_and_a_booking(changes: dict[str, Any]) -> None:
    """So that sums by currency and by deployment stay right, in both directions."""
    events: list[dict[str, Any]] = []
    for latest in (row(), row(**changes), row()):
        book(events, latest)
        sums: dict[Any, Decimal] = defaultdict(Decimal)
        for event in events:
            sums[event["deployment_id"], (event["cost"] or {}).get("currency")] += Decimal(
                str(event["units"]["gpu_seconds"])
            )
        assert {account: total for account, total in sums.items() if total} == {
            (latest["deployment_id"], latest["currency"]): 3600
        }
    for deployment_id in {event["deployment_id"] for event in events}:
        mine = [event for event in events if event["deployment_id"] == deployment_id]
        assert [event["revision"] for event in mine] == [*range(1, len(mine) + 1)]
        assert [event["corrects"] for event in mine] == [None, *(event["event_id"] for event in mine[:-1])]


@pytest.mark.parametrize("changes", [{"estimated": True}, {"policy_id": "p2"}])
def test_a_changed_flag_or_policy_is_an_event_of_zeros(changes: dict[str, Any]) -> None:
    """A15: the flag is never dropped, and never kept for longer than it is true."""
    events: list[dict[str, Any]] = []
    book(events, row())
    (event,) = book(events, row(**changes))
    assert event["units"] == {"gpu_seconds": 0, "energy_wh": 0}
    assert event["cost"] == {"amount": "0.000000000", "currency": "EUR"}
    assert book(events, row(**changes)) == []


def test_a_unit_that_becomes_known_as_zero_is_booked_and_one_that_is_lost_is_taken_back() -> None:
    events: list[dict[str, Any]] = []
    book(events, row(energy_wh=None))
    (known,) = book(events, row(energy_wh=Decimal("0.000000")))
    assert known["units"] == {"gpu_seconds": 0, "energy_wh": 0}
    book(events, row())
    (lost,) = book(events, row(energy_wh=None))
    assert lost["units"] == {"gpu_seconds": 0, "energy_wh": -500}
    assert book(events, row(energy_wh=None)) == []


def test_a_disk_carries_its_gb_hours() -> None:
    disk = row(
        workload_id="storage:chat",
        gpu_model=None,
        gpu_seconds=None,
        energy_wh=None,
        storage_gb_hours=Decimal("250.500000"),
    )
    (event,) = differences(
        table_of(disk),
        usage_of(
            workload_id="storage:chat",
            gpu_model=None,
            basis="storage",
            measured_seconds=None,
            estimated_seconds=None,
            missing_seconds=None,
            methods="",
        ),
        NOTHING,
    )
    assert (event["units"], event["basis"], event["quality"]) == ({"storage_gb_hours": 250.5}, "storage", NO_QUALITY)


def test_an_idle_line_is_known_from_samples() -> None:
    line = row(workload_id="idle:H100", usage_type="gpu_idle", deployment_id="idle")
    (event,) = differences(table_of(line), usage_of(), NOTHING)
    assert (event["usage_type"], event["basis"], event["quality"]) == ("gpu_idle", "samples", NO_QUALITY)


def test_digits_that_a_json_number_cannot_carry_are_refused() -> None:
    with pytest.raises(AccountingError, match="cannot be a JSON number"):
        differences(table_of(row(energy_wh=Decimal("9007199254740.123457"))), usage_of(), NOTHING)


def test_a_key_twice_is_an_error() -> None:
    with pytest.raises(AccountingError, match="comes twice"):
        differences(table_of(row(), row()), usage_of(), NOTHING)


# --- histories ------------------------------------------------------------------------------------------------------

results = st.builds(
    lambda key, seconds, energy, price, deployment, estimated: row(
        workload_id=key[0],
        tenant_id=key[1],
        gpu_seconds=Decimal(seconds).scaleb(-3),
        energy_wh=None if energy is None else Decimal(energy).scaleb(-6),
        deployment_id=deployment,
        estimated=estimated,
        amount=None if price is None else Decimal(price[0]).scaleb(-9),
        currency=None if price is None else price[1],
        policy_id=None if price is None else price[2],
    ),
    st.tuples(st.sampled_from(["w1", "w2"]), st.sampled_from("ab")),
    st.integers(0, 10**7),
    st.none() | st.integers(0, 10**10),
    st.none() | st.tuples(st.integers(0, 10**12), st.sampled_from(["EUR", "USD"]), st.sampled_from(["p1", "p2"])),
    st.sampled_from(["chat", "chat", "other"]),
    st.booleans(),
)
histories = st.lists(
    st.lists(results, max_size=4, unique_by=lambda r: (r["workload_id"], r["tenant_id"])), min_size=1, max_size=6
)


def summed(events: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Decimal]]:
    """Sums per key, deployment and currency, added up as any reader would; what is all zero is left out."""
    sums: dict[tuple[Any, ...], dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for event in events:
        cost = event["cost"] or {"amount": "0", "currency": None}
        place = sums[event["workload_id"], event["tenant_id"], event["deployment_id"], cost["currency"]]
        place["amount"] += Decimal(cost["amount"])
        for name, value in event["units"].items():
            place[name] += Decimal(str(value))
    return {place: dict(values) for place, values in sums.items() if any(values.values())}


def latest_of(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Decimal]]:
    latest = {
        (r["workload_id"], r["tenant_id"], r["deployment_id"], r["currency"]): {
            name: r[name] or Decimal(0) for name in (*UNITS, "amount")
        }
        for r in rows
    }
    return {place: values for place, values in latest.items() if any(values.values())}


def nonzero(sums: dict[tuple[Any, ...], dict[str, Decimal]]) -> dict[tuple[Any, ...], dict[str, Decimal]]:
    return {place: {name: value for name, value in values.items() if value} for place, values in sums.items()}


@settings(deadline=None, max_examples=150)
@given(histories, st.randoms(use_true_random=False))
def test_the_sum_over_revisions_is_always_the_latest_truth(history: list[list[dict[str, Any]]], shuffler: Any) -> None:
    events: list[dict[str, Any]] = []
    for rows in history:
        new = book(events, *rows)
        assert nonzero(summed(events)) == nonzero(latest_of(rows))
        assert book(events, *rows) == [], "the same restatement twice books nothing"
        for event in new:
            assert json.loads(rfc8785.dumps(event)) == event, "a document survives its canonical form"

    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_key[event["workload_id"], event["deployment_id"], event["tenant_id"]].append(event)
    for revisions in by_key.values():
        assert [event["revision"] for event in revisions] == list(range(1, len(revisions) + 1))
        assert [event["corrects"] for event in revisions] == [None, *(event["event_id"] for event in revisions[:-1])]
    assert len({event["event_id"] for event in events}) == len(events)

    booked = sorted(booked_sums(events).to_pylist(), key=str)
    shuffler.shuffle(events)
    assert sorted(booked_sums(events).to_pylist(), key=str) == booked


@settings(deadline=None)
@given(st.lists(results, max_size=4, unique_by=lambda r: (r["workload_id"], r["tenant_id"])))
def test_order_of_rows_changes_no_byte(rows: list[dict[str, Any]]) -> None:
    events = [differences(table_of(*order), usage_of(), NOTHING) for order in (rows, rows[::-1])]
    assert events[0] == events[1]
