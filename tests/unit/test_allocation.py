"""Allocation (A22-A29) and token cleaning (A5): every case's allocation.csv, hand-worked rows, and properties."""

from __future__ import annotations

import csv
import json
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import HOUR_MS, AccountingError, largest_remainder, rows_of
from finops_pipeline.accounting.holding.deployments import dedicated_owners
from finops_pipeline.accounting.money.allocation import PaidHour, allocate, check_parts, of_hour, payers, priced
from finops_pipeline.accounting.money.policies import PolicyBook
from finops_pipeline.accounting.money.tokens import clean_tokens
from finops_pipeline.accounting.usage.storage import storage_usage
from finops_pipeline.contracts import lake

CASES = Path(__file__).parents[1] / "cases"
CASE_NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())

H10 = 1_790_848_800_000  # 2026-10-01T10:00:00Z
A, B, C = (f"{x}0000000-0000-4000-8000-00000000000{x}" for x in "abc")
OWNER, PLATFORM = "0e000000-0000-4000-8000-0000000000e0", "ff000000-0000-4000-8000-0000000000ff"


def value_of(text: str | None, type_: pa.DataType) -> Any:
    if not text:
        return None
    if pa.types.is_decimal(type_):
        return Decimal(text)
    if pa.types.is_timestamp(type_):
        return datetime.fromisoformat(text)
    if pa.types.is_boolean(type_):
        return text == "true"
    if pa.types.is_integer(type_):
        return int(text)
    return text


def flag_of(usage: Mapping[str, Any]) -> str:
    """Whether a usage row of texts is not all measured (A15)."""
    seconds = (usage.get(name) or 0 for name in ("estimated_seconds", "missing_seconds"))
    return "true" if any(Decimal(value) for value in seconds) else "false"


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows of texts, as a CSV file holds them, in the types of the schema; empty is null, `methods` stays text, and
    usage is `estimated` by its seconds.
    """
    if schema is lake.GPU_USAGE:
        rows = [{"estimated": flag_of(row), **row} for row in rows]
    typed = [
        {f.name: value_of(row.get(f.name), f.type) if f.name != "methods" else row.get("methods", "") for f in schema}
        for row in rows
    ]
    return pa.Table.from_pylist(typed, schema=schema)


def read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    if not path.exists():
        return schema.empty_table()
    with path.open(newline="") as file:
        return table_of(csv.DictReader(file), schema)


def policies_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    texts = [
        {**row, "token_weights": json.dumps(row["token_weights"]) if row["token_weights"] else None} for row in rows
    ]
    return table_of(texts, lake.ALLOCATION_POLICIES)


def policy(**changes: Any) -> dict[str, Any]:
    return {
        "id": "p1",
        "name": "p1",
        "deployment_pattern": "*",
        "gpu_model": None,
        "currency": "EUR",
        "gpu_hourly_cost": "2.10",
        "overhead_pct": "18",
        "energy_kwh_price": "0.21",
        "pue": "1.4",
        "storage_gb_month_price": "0.10",
        "idle_policy": "owner",
        "token_weights": None,
        "effective_from": "2026-01-01T00:00:00Z",
        "effective_to": None,
        "status": "active",
    } | changes


def book_of(*rows: Mapping[str, Any], models: Mapping[str, str] | None = None) -> PolicyBook:
    return PolicyBook.parse(policies_of(rows), models or {})


def csv_text(table: pa.Table) -> str:
    """The table as bundles.md writes it."""

    def text(value: Any) -> str:
        match value:
            case None:
                return ""
            case bool():
                return str(value).lower()
            case datetime():
                return value.strftime("%Y-%m-%dT%H:%M:%SZ")
            case Decimal():
                return f"{value:f}"
            case _:
                return str(value)

    columns = [name for name in table.column_names if name != "storage_gb_hours"]
    lines = [",".join(text(row[name]) for name in columns) for row in table.to_pylist()]
    return "\n".join([",".join(columns), *lines]) + "\n"


def idle_of(allocation: pa.Table) -> pa.Table:
    """GPU_IDLE rebuilt from a published allocation: its idle lines summed over the tenants."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in allocation.to_pylist():
        if row["usage_type"] != "gpu_idle":
            continue
        line = lines.setdefault(
            (row["hour"], row["gpu_model"]), dict.fromkeys(lake.GPU_IDLE.names) | {"estimated": False}
        )
        for name in ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh"):
            if row[name] is not None:
                line[name] = (line[name] or 0) + row[name]
        line |= {name: row[name] for name in ("cluster", "hour", "gpu_model")}
        line["estimated"] |= row["estimated"]
    return pa.Table.from_pylist(list(lines.values()), schema=lake.GPU_IDLE)


@pytest.mark.parametrize("case", CASE_NAMES)
def test_case(case: str) -> None:
    folder = CASES / case
    bundle = tomllib.loads((folder / "bundle.toml").read_text())
    start, end, now = (int(datetime.fromisoformat(bundle[name]).timestamp()) * 1000 for name in ("from", "to", "now"))
    usage = read_csv(folder / "expected/gpu_usage.csv", lake.GPU_USAGE)
    expected = read_csv(folder / "expected/allocation.csv", lake.GPU_COST_ALLOCATION)
    deployments = read_csv(folder / "deployments.csv", lake.DEPLOYMENTS)
    storage = read_csv(folder / "deployment_storage.csv", lake.DEPLOYMENT_STORAGE)
    tokens, quarantine = clean_tokens(read_csv(folder / "token_usage.csv", lake.TOKEN_USAGE), now)
    book = PolicyBook.parse(
        policies_of(json.loads((folder / "allocation_policies.json").read_text())), bundle.get("models", {})
    )
    idle = idle_of(expected)
    hours = [
        PaidHour(
            hour_ms,
            usage=of_hour(usage, hour_ms),
            idle=of_hour(idle, hour_ms),
            storage=storage,
            tokens=tokens,
            deployments=deployments,
            book=book,
        )
        for hour_ms in range(start, end, HOUR_MS)
    ]
    allocation = allocate(bundle["cluster"], hours, platform_tenant=bundle["platform_tenant"])
    assert csv_text(allocation) == (folder / "expected/allocation.csv").read_text()

    disks = pa.concat_tables(
        storage_usage(h, bundle["cluster"], storage, deployments) for h in range(start, end, HOUR_MS)
    )
    assert disks.to_pylist() == [row for row in usage.to_pylist() if row["basis"] == "storage"]

    with (folder / "expected/quarantine.csv").open(newline="") as file:
        set_aside = [(r["key"], r["reason"]) for r in csv.DictReader(file) if r["source"] == "token_usage"]
    assert sorted((row["key"], row["reason"]) for row in quarantine.to_pylist()) == set_aside


# --- rows by hand ---------------------------------------------------------------------------------------------------


def usage_row(**changes: Any) -> dict[str, Any]:
    return {
        "cluster": "dc1",
        "hour": "2026-10-01T10:00:00Z",
        "workload_id": "wl",
        "gpu_model": "H100",
        "tenant_id": OWNER,
        "deployment_id": "chat",
        "placed_class": "H100",
        "basis": "lifecycle",
        "gpu_seconds": "3600.000",
        "gpu_memory_gb_seconds": "230400.000",
        "energy_wh": "512.000000",
        "measured_seconds": "3600.000",
        "estimated_seconds": "0.000",
        "missing_seconds": "0.000",
    } | changes


def idle_row(**changes: Any) -> dict[str, Any]:
    return {
        "cluster": "dc1",
        "hour": "2026-10-01T10:00:00Z",
        "gpu_model": "H100",
        "gpu_seconds": "1800.000",
        "energy_wh": "30.000000",
        "estimated": "false",
    } | changes


def token(tenant: str, count: int, **changes: Any) -> dict[str, Any]:
    return {
        "event_id": f"tk-{tenant}-{count}",
        "occurred_at": "2026-10-01T10:15:00Z",
        "tenant_id": tenant,
        "deployment_id": "chat",
        "input_tokens": str(count),
        "output_tokens": "0",
        "cached_tokens": "0",
    } | changes


SHARED = [{"deployment_id": "chat", "mode": "shared", "owner_tenant_id": OWNER}]
DEDICATED = [{"deployment_id": "chat", "mode": "dedicated", "owner_tenant_id": OWNER}]


def run(
    usage: list[dict[str, Any]],
    *,
    idle: list[dict[str, Any]] | None = None,
    storage: list[dict[str, Any]] | None = None,
    tokens: list[dict[str, Any]] | None = None,
    deployments: list[dict[str, Any]] | None = None,
    book: PolicyBook | None = None,
) -> pa.Table:
    hour = paid(
        usage, idle=idle, storage=storage, tokens=tokens, deployments=deployments, book=book or book_of(policy())
    )
    return allocate("dc1", [hour], platform_tenant=PLATFORM)


def paid(
    usage: list[dict[str, Any]],
    *,
    idle: list[dict[str, Any]] | None = None,
    storage: list[dict[str, Any]] | None = None,
    tokens: list[dict[str, Any]] | None = None,
    deployments: list[dict[str, Any]] | None = None,
    book: PolicyBook | None = None,
) -> PaidHour:
    return PaidHour(
        H10,
        usage=table_of(usage, lake.GPU_USAGE),
        idle=table_of(idle or [], lake.GPU_IDLE),
        storage=table_of(storage or [], lake.DEPLOYMENT_STORAGE),
        tokens=table_of(tokens or [], lake.TOKEN_USAGE),
        deployments=table_of(deployments or SHARED, lake.DEPLOYMENTS),
        book=book or book_of(policy()),
    )


def by_tenant(table: pa.Table, column: str) -> dict[str, Any]:
    return dict(rows_of(table, "tenant_id", column))


def test_worked_example_70_30() -> None:
    """accounting.md section 10: 2.628528 EUR, 70 % and 30 % of it to the last digit."""
    table = run([usage_row()], tokens=[token(A, 700), token(B, 300)])
    assert by_tenant(table, "amount") == {A: Decimal("1.839969600"), B: Decimal("0.788558400")}
    assert by_tenant(table, "gpu_seconds") == {A: Decimal("2520.000"), B: Decimal("1080.000")}
    assert by_tenant(table, "energy_wh") == {A: Decimal("358.400000"), B: Decimal("153.600000")}


def test_dedicated_goes_to_the_owner_whoever_the_event_names() -> None:
    """A25."""
    usage, deployments = [usage_row(tenant_id=A)], DEDICATED
    assert by_tenant(run(usage, deployments=deployments), "amount") == {OWNER: Decimal("2.628528000")}
    assert list(dedicated_owners(table_of(deployments, lake.DEPLOYMENTS)).values()) == [OWNER]


def test_unknown_deployment_goes_to_the_event_tenant() -> None:
    """A25."""
    assert by_tenant(run([usage_row(deployment_id="wl", tenant_id=B)]), "amount").keys() == {B}


def test_unattributed_pod_has_no_part() -> None:
    """A18: its time is in the idle line."""
    assert run([usage_row(tenant_id="", basis="samples", deployment_id="lab/nb")]).num_rows == 0


def test_unpriced_is_null_and_its_units_are_still_split() -> None:
    """A23: never zero, never a default."""
    table = run([usage_row()], tokens=[token(A, 1), token(B, 1)], book=book_of(policy(deployment_pattern="x")))
    assert by_tenant(table, "amount") == {A: None, B: None}
    assert set(table["currency"].to_pylist() + table["policy_id"].to_pylist()) == {None}
    assert by_tenant(table, "gpu_seconds") == {A: Decimal("1800.000"), B: Decimal("1800.000")}


def test_unknown_energy_adds_no_term_and_flags_the_row() -> None:
    """A24: 2.10 x 1.18."""
    table = run([usage_row(energy_wh="")], deployments=DEDICATED)
    assert table["amount"].to_pylist() == [Decimal("2.478000000")]
    assert table["energy_wh"].to_pylist() == [None]
    assert table["estimated"].to_pylist() == [True]


@pytest.mark.parametrize(
    ("column", "flag"), [("estimated_seconds", True), ("missing_seconds", True), ("measured_seconds", False)]
)
def test_estimated_is_true_unless_all_is_measured(column: str, flag: bool) -> None:
    """A15."""
    assert run([usage_row(**{column: "0.001"})])["estimated"].to_pylist() == [flag]


def test_cost_is_rounded_once_half_even_after_its_terms() -> None:
    """A28: 0.001 s at 0.0018 EUR/h is 5 x 10^-10, half a unit: to the even 0; 0.003 s is 1.5 units: to 2."""
    book = book_of(policy(gpu_hourly_cost="0.0018", overhead_pct="0"))
    rows = [usage_row(workload_id=f"w{n}", gpu_seconds=f"0.00{n}", energy_wh="") for n in (1, 3)]
    assert run(rows, book=book)["amount"].to_pylist() == [Decimal(0), Decimal("0.000000002")]


def test_two_halves_of_different_terms_are_added_before_rounding() -> None:
    """A28: 0.4 + 0.4 units of 1e-9 round to one, not to none."""
    book = book_of(policy(gpu_hourly_cost="0.00144", overhead_pct="0", energy_kwh_price="0.4", pue="1"))
    table = run([usage_row(gpu_seconds="0.001", energy_wh="0.000001")], book=book)
    assert table["amount"].to_pylist() == [Decimal("0.000000001")]


def test_zero_weight_has_no_part() -> None:
    """A26: cached tokens that weigh nothing."""
    weights = {"cached": "0"}
    table = run(
        [usage_row()],
        tokens=[token(A, 5), token(B, 0, cached_tokens="99")],
        book=book_of(policy(token_weights=weights)),
    )
    assert by_tenant(table, "gpu_seconds") == {A: Decimal("3600.000")}


def test_only_weightless_tokens_are_an_hour_without_tokens() -> None:
    """A27."""
    book = book_of(policy(token_weights={"cached": "0"}, idle_policy="platform"))
    table = run([usage_row()], tokens=[token(B, 0, cached_tokens="99")], book=book)
    assert by_tenant(table, "gpu_seconds") == {PLATFORM: Decimal("3600.000")}


def test_proportional_without_tokens_in_the_day_before_goes_to_the_owner() -> None:
    """A27: tokens of the next hour, and of more than 24 hours before, do not count."""
    tokens = [token(A, 1, occurred_at="2026-10-01T11:00:00Z"), token(A, 2, occurred_at="2026-09-30T09:59:59.999Z")]
    table = run([usage_row()], tokens=tokens, book=book_of(policy(idle_policy="proportional")))
    assert by_tenant(table, "gpu_seconds") == {OWNER: Decimal("3600.000")}


def test_idle_without_users_goes_to_the_platform_even_if_proportional() -> None:
    """A27: `none: platform tenant`; a disk has no GPU-seconds."""
    disk = {"deployment_id": "chat", "size_gb": "10", "valid_from": "2026-01-01T00:00:00Z"}
    table = run([], idle=[idle_row()], storage=[disk], book=book_of(policy(idle_policy="proportional")))
    assert by_tenant(table, "usage_type") == {OWNER: "gpu_local", PLATFORM: "gpu_idle"}


def test_idle_is_spread_by_gpu_seconds_of_all_models_not_by_energy() -> None:
    """A27: A used 1 h and 3 h of two models, the platform 4 h; 1800 s split 1 : 1."""
    rows = [
        usage_row(workload_id="w1", deployment_id="w1", tenant_id=A, gpu_seconds="3600.000", energy_wh="1.000000"),
        usage_row(workload_id="w1", deployment_id="w1", tenant_id=A, gpu_model="L40S", gpu_seconds="10800.000"),
        usage_row(workload_id="w2", deployment_id="w2", tenant_id=PLATFORM, gpu_seconds="14400.000", energy_wh=""),
    ]
    table = run(rows, idle=[idle_row()], book=book_of(policy(idle_policy="proportional")))
    lines = table.filter(pc.equal(table["usage_type"], pa.scalar("gpu_idle")))
    assert by_tenant(lines, "gpu_seconds") == {A: Decimal("900.000"), PLATFORM: Decimal("900.000")}


def test_disk_of_an_unknown_deployment_goes_to_the_platform() -> None:
    disk = {"deployment_id": "lost", "size_gb": "744", "valid_from": "2026-01-01T00:00:00Z"}
    table = run([], storage=[disk])
    assert by_tenant(table, "amount") == {PLATFORM: Decimal("0.100000000")}


def test_disks_of_a_deployment_are_one_row_by_the_millisecond() -> None:
    """A24: 744 GB for 30 min and 744 GB for 1 ms, at 0.10 per GB-month of 744 h."""
    disks = [
        {"deployment_id": "chat", "size_gb": "744", "valid_from": "2026-10-01T10:30:00Z"},
        {
            "deployment_id": "chat",
            "size_gb": "744",
            "valid_from": "2026-09-01T00:00:00Z",
            "valid_to": "2026-10-01T10:00:00.001Z",
        },
        {"deployment_id": "chat", "size_gb": "999", "valid_from": "2026-10-01T11:00:00Z"},
    ]
    table = run([], storage=disks)
    assert table["amount"].to_pylist() == [Decimal("0.050000028")]  # 0.05 + 0.1 / 3 600 000 = 2.78e-8
    assert table["gpu_seconds"].to_pylist() == [None]


def test_disk_is_priced_by_a_policy_without_model() -> None:
    """A24."""
    book = book_of(policy(deployment_pattern="chat", gpu_model="H100", storage_gb_month_price="9"), policy(id="p2"))
    disk = {"deployment_id": "chat", "size_gb": "744", "valid_from": "2026-01-01T00:00:00Z"}
    assert run([], storage=[disk], book=book)["policy_id"].to_pylist() == ["p2"]


@pytest.mark.parametrize("column", ["gpu_seconds", "energy_wh", "amount"])
def test_a_part_that_was_changed_is_found(column: str) -> None:
    """A29: the sum of parts is the whole."""
    rows, tokens = [usage_row()], [token(A, 700), token(B, 300)]
    table = run(rows, tokens=tokens)
    changed = table.to_pylist()
    changed[0][column] += Decimal("0.001")
    with pytest.raises(AccountingError, match=r"2026-10-01T10:00:00Z, row wl on H100: parts .*A29"):
        check(pa.Table.from_pylist(changed, schema=table.schema), rows)


def test_a_part_that_was_lost_or_invented_is_found() -> None:
    rows = [usage_row(), usage_row(workload_id="w2")]
    table = run(rows)
    with pytest.raises(AccountingError, match="row w2 on H100: was allocated to nobody"):
        check(table.slice(1), rows)
    with pytest.raises(AccountingError, match="row w2 on H100: is not usage"):
        check(table, rows[:1])


def check(table: pa.Table, usage: list[dict[str, Any]]) -> None:
    check_parts(table, priced([paid(usage)]))


def test_what_no_128_bits_hold_is_refused_by_name() -> None:
    """A29: exact or not at all, and the message says where to look."""
    weights = book_of(policy(token_weights={"input": "999999999999"}))
    tokens = [token(A, 2**63 - 1), token(B, 2**63 - 1)]
    with pytest.raises(AccountingError, match=r"2026-10-01T10:00:00Z, deployment chat: .* too large .*token counts"):
        run([usage_row()], tokens=tokens, book=weights)


@given(st.integers(1, 10**12), st.integers(0, 10**26), st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
@settings(deadline=None, max_examples=50)
def test_products_beyond_128_bits_are_divided_exactly(weight: int, total: int, first: int, second: int) -> None:
    """A29: by the same formula in integers without bounds."""
    book = book_of(policy(token_weights={"input": str(weight // 10**6 or 1)}))
    seconds = f"{Decimal(total).scaleb(-3):f}"
    table = run([usage_row(gpu_seconds=seconds)], tokens=[token(A, first), token(B, second)], book=book)
    expected = largest_remainder(total, {A: first, B: second}, "2026-10-01T10:00:00Z")
    assert by_tenant(table, "gpu_seconds") == {t: Decimal(n).scaleb(-3) for t, n in expected.items()}


def test_hours_of_a_stretch_do_not_touch_each_other() -> None:
    """Each hour has its own deployments, tokens and policies."""
    later = replace(paid([usage_row(tenant_id=A)], deployments=DEDICATED), hour_ms=H10 + HOUR_MS)
    both = allocate("dc1", [paid([usage_row()], tokens=[token(A, 1), token(B, 1)]), later], platform_tenant=PLATFORM)
    assert by_tenant(of_hour(both, H10), "gpu_seconds") == {A: Decimal(1800), B: Decimal(1800)}
    assert by_tenant(of_hour(both, H10 + HOUR_MS), "gpu_seconds") == {OWNER: Decimal(3600)}
    assert allocate("dc1", [later], platform_tenant=PLATFORM).equals(of_hour(both, H10 + HOUR_MS))


def test_payers_say_by_which_rule() -> None:
    hour = paid(
        [usage_row(), usage_row(workload_id="w2", deployment_id="w2", tenant_id=B)],
        tokens=[token(A, 7), token(B, 3)],
        idle=[idle_row()],
    )
    found = {
        (r["workload_id"], r["tenant_id"]): (r["rule"], int(r["weight"]))
        for r in payers(hour, platform_tenant=PLATFORM).to_pylist()
    }
    assert found == {
        ("wl", A): ("tokens", 7),
        ("wl", B): ("tokens", 3),
        ("w2", B): ("event", 1),
        ("idle:H100", PLATFORM): ("nobody", 1),
    }


def test_mode_must_be_known() -> None:
    with pytest.raises(AccountingError, match="deployment chat: mode must be dedicated or shared, not 'common'"):
        run([usage_row()], deployments=[{**SHARED[0], "mode": "common"}])


# --- tokens (A5) ----------------------------------------------------------------------------------------------------


def cleaned(*rows: dict[str, Any]) -> tuple[list[int], list[tuple[Any, ...]]]:
    clean, quarantine = clean_tokens(table_of(rows, lake.TOKEN_USAGE), H10 + HOUR_MS)
    return [count for (count,) in rows_of(clean, "input_tokens")], list(rows_of(quarantine, "key", "reason"))


def test_tokens_count_once_in_order_of_arrival() -> None:
    rows = [
        token(A, n, event_id=key)
        for key, n in (("t2", 2), ("t1", 1), ("t2", 2), ("t1", 9), ("t1", 1), ("t1", 9), ("t1", 8))
    ]
    assert cleaned(*rows) == ([2, 1], [("t1", "conflict")]), "one row for each key and reason (A5)"


def test_tokens_are_in_the_future_only_after_five_minutes() -> None:
    rows = [token(A, 1, occurred_at="2026-10-01T11:05:00Z"), token(A, 2, occurred_at="2026-10-01T11:05:00.001Z")]
    assert cleaned(*rows) == ([1], [(f"tk-{A}-2", "future")])


@pytest.mark.parametrize("column", ["input_tokens", "output_tokens", "cached_tokens"])
def test_any_negative_count_is_set_aside(column: str) -> None:
    assert cleaned(token(A, 1, **{column: "-1"})) == ([], [(f"tk-{A}-1", "negative")])


# --- properties -----------------------------------------------------------------------------------------------------

counts = st.integers(0, 10**9)
amounts = st.integers(0, 10**12)
usages = st.lists(
    st.builds(
        lambda n, model, deployment, gpu, memory, energy: usage_row(
            workload_id=f"w{n}",
            gpu_model=model,
            deployment_id=deployment,
            tenant_id=OWNER,
            gpu_seconds=str(Decimal(gpu).scaleb(-3)),
            gpu_memory_gb_seconds="" if memory is None else str(Decimal(memory).scaleb(-3)),
            energy_wh="" if energy is None else str(Decimal(energy).scaleb(-6)),
        ),
        st.integers(0, 9),
        st.sampled_from(["H100", "A100"]),
        st.sampled_from(["chat", "solo", "nowhere"]),
        amounts,
        st.none() | amounts,
        st.none() | amounts,
    ),
    max_size=8,
    unique_by=lambda row: (row["workload_id"], row["gpu_model"]),
)
token_lists = st.lists(
    st.builds(token, st.sampled_from([A, B, C]), counts), max_size=6, unique_by=lambda row: row["event_id"]
)
prices = st.integers(0, 10**6).map(lambda n: str(Decimal(n).scaleb(-4)))
books = st.builds(
    lambda gpu, kwh, idle_policy: book_of(policy(gpu_hourly_cost=gpu, energy_kwh_price=kwh, idle_policy=idle_policy)),
    prices,
    prices,
    st.sampled_from(["owner", "proportional", "platform"]),
)
DEPLOYMENTS = [*SHARED, {"deployment_id": "solo", "mode": "dedicated", "owner_tenant_id": B}]


@settings(deadline=None, max_examples=60)
@given(usages, token_lists, books, st.randoms(use_true_random=False))
def test_parts_sum_exactly_and_order_changes_nothing(
    usage: list[dict[str, Any]], tokens: list[dict[str, Any]], book: PolicyBook, shuffler: Any
) -> None:
    idle = [idle_row(), idle_row(gpu_model="A100", gpu_seconds="0.001", energy_wh="")]
    table = run(usage, idle=idle, tokens=tokens, deployments=DEPLOYMENTS, book=book)
    wholes = {(row["workload_id"], row["gpu_model"]): row for row in usage}
    sums: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for row in table.to_pylist():
        assert all(
            row[n] is None or row[n] >= 0 for n in ("gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "amount")
        )
        sums[row["workload_id"], row["gpu_model"]] += Fraction(row["gpu_seconds"])
    assert all(sums[key] == Fraction(whole["gpu_seconds"]) for key, whole in wholes.items())

    deployments = list(DEPLOYMENTS)
    for rows in (usage, idle, tokens, deployments):
        shuffler.shuffle(rows)
    assert run(usage, idle=idle, tokens=tokens, deployments=deployments, book=book).equals(table)


@settings(deadline=None, max_examples=60)
@given(amounts, st.integers(1, 10**6))
def test_seventy_thirty(gpu: int, scale: int) -> None:
    """A26: to the last unit, whatever the amount; 70 % of the total within one unit of the last place."""
    usage = [usage_row(gpu_seconds=str(Decimal(gpu).scaleb(-3)))]
    table = run(usage, tokens=[token(A, 70 * scale), token(B, 30 * scale)])
    parts = by_tenant(table, "amount")
    total = sum(parts.values())
    assert abs(parts[A] - total * 7 / 10) < Decimal("0.000000001")
    assert sum(by_tenant(table, "gpu_seconds").values()) == Decimal(gpu).scaleb(-3)


def test_five_thousand_workloads_in_an_hour_are_quick() -> None:
    """Half of them shared by three tenants; the budget is generous for a loaded machine."""
    usage = table_of(
        [usage_row(workload_id=f"w{n}", deployment_id=f"chat-{n}" if n % 2 else f"solo-{n}") for n in range(5000)],
        lake.GPU_USAGE,
    )
    deployments = table_of(
        [
            {"deployment_id": f"chat-{n}", "mode": "shared", "owner_tenant_id": OWNER}
            if n % 2
            else {"deployment_id": f"solo-{n}", "mode": "dedicated", "owner_tenant_id": A}
            for n in range(5000)
        ],
        lake.DEPLOYMENTS,
    )
    tokens = table_of(
        [token(t, 7 + n, deployment_id=f"chat-{n}", event_id=f"{t}{n}") for n in range(1, 5000, 2) for t in (A, B, C)],
        lake.TOKEN_USAGE,
    )
    book = book_of(policy(), *(policy(id=f"q{n}", deployment_pattern=f"team{n}-*") for n in range(200)))
    begun = time.process_time()
    hour = PaidHour(
        H10,
        usage=usage,
        idle=lake.GPU_IDLE.empty_table(),
        storage=lake.DEPLOYMENT_STORAGE.empty_table(),
        tokens=tokens,
        deployments=deployments,
        book=book,
    )
    table = allocate("dc1", [hour], platform_tenant=PLATFORM)
    seconds = time.process_time() - begun
    assert table.num_rows == 2500 + 3 * 2500
    assert seconds < 2, f"{seconds:.3f} s"
