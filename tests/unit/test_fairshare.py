"""Usage against quotas, and fair share as docs/fairshare.md works it out by hand."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import AccountingError
from finops_pipeline.accounting.money.fair_share import FairShareError, Node, decayed, fair_shares
from finops_pipeline.accounting.money.quotas import against_quotas, gpu_hours, quota_used, tenant_hours
from finops_pipeline.contracts.lake import GPU_COST_ALLOCATION, GPU_USAGE

WEEK = 7 * 24 * 3600
HOUR = 1_790_848_800_000
TREE = [
    Node("research", None, 60), Node("product", None, 40), Node("alice", "research", 1), Node("bob", "research", 3),
    Node("carol", "product", 1),
]  # fmt: skip


def raw(*aged: tuple[float, float]) -> float:
    """GPU-hours and their age in weeks."""
    return sum(decayed(hours * 3600, weeks * WEEK) for hours, weeks in aged)


def test_the_example_of_the_documentation(repository: Path) -> None:
    usage = {"alice": raw((100, 0), (200, 1)), "bob": raw((100, 0), (400, 2)), "carol": raw((400, 1))}
    assert usage == pytest.approx(dict.fromkeys(usage, 200 * 3600))
    found = {share.name: share for share in fair_shares(TREE, usage)}
    text = (repository / "docs" / "fairshare.md").read_text(encoding="utf-8")
    rows = {
        row[0]: row[1:]
        for row in re.findall(
            r"^\| (\w+) \|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|$", text, re.MULTILINE
        )
    }
    for name in ("research", "product", "alice", "bob", "carol"):
        share = found[name]
        worked = [float(cell.split("=")[-1]) for cell in rows[name]]
        ratio = share.effective_usage / share.norm_shares
        computed = [share.norm_shares, share.norm_usage, share.effective_usage, ratio, share.factor]
        assert computed == pytest.approx(worked, abs=5.1e-7), name
    assert list(found) == ["product", "research", "carol", "alice", "bob"]


def test_a_half_life_halves() -> None:
    assert decayed(80, 0) == 80
    assert decayed(80, WEEK) == 40
    assert decayed(80, 3 * WEEK) == 10
    assert decayed(80, 24 * 3600, half_life_days=1) == 40
    assert decayed(80, -5) == 80


def test_exactly_its_share_is_a_half_and_no_usage_is_one() -> None:
    found = fair_shares([Node("a", None, 1), Node("b", None, 3), Node("c", None, 0)], {"a": 25, "b": 75})
    assert [(share.name, share.factor) for share in found] == [("a", 0.5), ("b", 0.5), ("c", 0.0)]
    assert [share.factor for share in fair_shares([Node("a", None, 1)], {})] == [1.0]


def test_who_is_not_listed_has_one_share() -> None:
    found = {share.name: share for share in fair_shares([Node("a", None, 1)], {"a": 1, "x": 1})}
    assert found["x"].norm_shares == 0.5
    assert found["x"].factor == 0.5


def test_dampening_softens() -> None:
    (share,) = fair_shares([Node("a", None, 1)], {"a": 1}, dampening=2)
    assert share.factor == pytest.approx(2**-0.5)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node("a", "nowhere", 1)], "a belongs to nowhere, which has no shares itself"),
        ([Node("a", "b", 1), Node("b", "a", 1), Node("c", None, 1)], "a, b belong to each other in a circle"),
        ([Node("a", None, -1)], "a has -1 shares"),
    ],
)
def test_what_is_no_tree(nodes: list[Node], message: str) -> None:
    with pytest.raises(FairShareError, match=message):
        fair_shares(nodes, {})


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1e9)), min_size=1, max_size=8))
def test_the_whole_is_one_and_more_usage_is_never_better(given_: list[tuple[int, float]]) -> None:
    nodes = [Node(f"{n}", None, float(shares)) for n, (shares, _) in enumerate(given_)]
    usage = {f"{n}": used for n, (_, used) in enumerate(given_)}
    found = fair_shares(nodes, usage)
    assert sum(share.norm_usage for share in found) == pytest.approx(1.0 if any(usage.values()) else 0.0)
    assert all(0 <= share.factor <= 1 for share in found)
    more = fair_shares(nodes, usage | {"0": usage["0"] + 1e9})
    assert {s.name: s for s in more}["0"].factor <= {s.name: s for s in found}["0"].factor + 1e-12


# Usage and quotas


def test_tenant_hours_take_the_class_of_the_usage_row() -> None:
    tenants = ("a", "b")
    usage: list[dict[str, Any]] = [
        {"workload_id": "w", "gpu_model": "H100", "placed_class": "gold"},
        {"workload_id": "w", "gpu_model": "gold", "placed_class": "gold"},
        {"workload_id": "ns/nb", "gpu_model": "T4", "placed_class": None},
        {"workload_id": "storage:d", "gpu_model": None, "placed_class": None},
    ]
    rows: list[dict[str, Any]] = [
        {"workload_id": "w", "gpu_model": "H100", "tenant_id": "a", "gpu_seconds": Decimal("1800.5")},
        {"workload_id": "w", "gpu_model": "H100", "tenant_id": "b", "gpu_seconds": Decimal(600)},
        {"workload_id": "w", "gpu_model": "gold", "tenant_id": "a", "gpu_seconds": Decimal("0.5")},
        {"workload_id": "ns/nb", "gpu_model": "T4", "tenant_id": "a", "gpu_seconds": Decimal(3600)},
        {"workload_id": "storage:d", "gpu_model": None, "tenant_id": "a", "gpu_seconds": None},
        {
            "workload_id": "idle:T4",
            "gpu_model": "T4",
            "tenant_id": "a",
            "gpu_seconds": Decimal(9),
            "usage_type": "gpu_idle",
        },
    ]
    key: dict[str, Any] = {"cluster": "c", "hour": HOUR, "deployment_id": "d", "methods": "", "estimated": False}
    table = tenant_hours(
        pa.Table.from_pylist([key | {"usage_type": "gpu_local"} | row for row in rows], GPU_COST_ALLOCATION),
        pa.Table.from_pylist([key | row for row in usage], GPU_USAGE),
    )
    found = [(r["tenant_id"], r["placed_class"], r["gpu_seconds"]) for r in table.to_pylist()]
    assert found == [("a", "T4", Decimal(3600)), ("a", "gold", Decimal(1801)), ("b", "gold", Decimal(600))]
    assert {name for name, _, _ in found} == set(tenants)


def test_usage_against_quotas() -> None:
    used: list[dict[str, Any]] = [
        {"tenant_id": "a", "period": "2026-10", "placed_class": name, "gpu_seconds": Decimal(seconds)}
        for name, seconds in (("gold", 36_000), ("T4", 3600))
    ]
    quotas: list[dict[str, Any]] = [
        {"tenant_id": "a", "placed_class": None, "period": "month", "gpu_hours": Decimal(22)},
        {"tenant_id": "a", "placed_class": "gold", "period": "month", "gpu_hours": Decimal(8)},
        {"tenant_id": "a", "placed_class": "T4", "period": "day", "gpu_hours": Decimal(1)},
    ]
    rows = against_quotas(used, quotas, "month")
    assert [(r["placed_class"], r["gpu_hours"], r["quota_gpu_hours"], r["quota_used"]) for r in rows] == [
        (None, Decimal(11), Decimal(22), Decimal("0.5000")),
        ("T4", Decimal(1), None, None),
        ("gold", Decimal(10), Decimal(8), Decimal("1.2500")),
    ]


def test_gpu_hours_and_parts_are_rounded_half_even_once() -> None:
    assert gpu_hours(Decimal("1.8")) == Decimal("0.000")  # 0.0005
    assert gpu_hours(Decimal("5.4")) == Decimal("0.002")  # 0.0015
    assert quota_used(Decimal(3600), Decimal(3)) == Decimal("0.3333")
    assert quota_used(Decimal(3600), Decimal(0)) is None
    with pytest.raises(AccountingError):
        quota_used(Decimal(1), Decimal(-1))
