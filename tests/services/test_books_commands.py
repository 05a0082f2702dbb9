"""`finops close`, `reopen`, `balance`, `statement` and `explain` as a person or a script calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from finops_pipeline import cli
from finops_pipeline.errors import UsageError
from tests.databases import Databases
from tests.services.books import ALICE, POLICY, Books, Used

OCTOBER = datetime(2021, 10, 1, tzinfo=UTC)
"""Over on any machine: these commands go by the wall clock."""


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def books(databases: Databases, tmp_path: Path) -> Iterator[Books]:
    url = databases.fresh()
    opened = Books(url, databases.admin(url), tmp_path, policies=(POLICY | {"effective_from": "2020-01-01T00:00:00Z"},))
    opened.hour(OCTOBER, Used())
    yield opened
    opened.database.close()


def finops(books: Books, *arguments: str) -> tuple[int, str]:
    """Exit code and output; what a user can mend is raised."""
    env = {"EAI_DATABASE_URL": books.url, "FINOPS_HOME": str(books.anchor.path.parent), "FINOPS_CONFIG": None}
    done = CliRunner().invoke(cli.app, arguments, env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def as_json(books: Books, *arguments: str) -> tuple[int, Any]:
    code, text = finops(books, *arguments, "--json")
    return code, json.loads(text)


def test_a_month_from_open_to_final_and_back(books: Books) -> None:
    code, text = finops(books, "close", "2021-10")
    assert (code, text.splitlines()[-1]) == (3, "2021-10 cannot be closed yet")
    assert "MISSING  every hour of every cluster is computed" in text
    ended = ("--ended", "c1=2021-10-01T01:00Z")
    code, data = as_json(books, "close", "2021-10", "--dry-run", *ended)
    assert (code, data["status"], data["closed_now"]) == (0, "open", False)
    code, data = as_json(books, "close", "2021-10", *ended)
    assert (code, data["status"], data["totals"][0]["amount"]) == (0, "final", "2.63")
    assert finops(books, "close", "2021-10") == (0, "2021-10 is final already: 2.63 EUR\n")
    books.hour(OCTOBER, Used(seconds="1800"))
    code, text = finops(books, "statement", "2021-11", "--format", "csv")
    assert text.splitlines()[1].split(",")[:2] == [ALICE, "chat"]
    assert text.splitlines()[1].endswith(",2021-10-01T00:00:00Z")
    code, text = finops(books, "statement", "2021-11")
    assert "correction of" in text
    books.publish("2021-11")
    code, proofs = as_json(books, "balance")
    assert code == 0
    assert all(proof["holds"] for proof in proofs)
    assert finops(books, "reopen", "2021-10", "--reason", "ticket 9") == (0, "2021-10 is open again\n")
    assert as_json(books, "audit", "verify")[1]["result"] == "intact"
    books.tamper("UPDATE eai.gpu_cost_allocation SET amount = amount + 1")
    code, text = finops(books, "balance", "2021-10")
    assert code == 1
    assert "costs something else" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("close", "2021-13"), "not a month"),
        (("close", "2021-10", "--ended", "c1"), "CLUSTER=HOUR"),
        (("close", "2021-10", "--began", "c1=2021-10-01T00:30Z"), "not a whole hour"),
        (("close", "2021-10", "--accept", "ev-1"), "--reason"),
        (("reopen", "2021-10", "--reason", " "), "--reason is empty"),
        (("reopen", "2021-10", "--reason", "x"), "not final"),
        (("explain",), "name the id of an event"),
        (("explain", "--tenant", ALICE, "--hour", "2021-10-01T00:00Z"), "name the id of an event"),
        (("explain", "e", "--tenant", ALICE, "--deployment", "d", "--hour", "2021-10-01T00:00Z"), "name the id"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], message: str, books: Books) -> None:
    with pytest.raises(UsageError, match=message):
        finops(books, *arguments)
