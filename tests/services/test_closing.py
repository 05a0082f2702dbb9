"""Month close (A33) on a real Postgres: the gate, final statements, corrections, reopening, and the sums over time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.money.closing import Life
from finops_pipeline.accounting.money.statement import statement_json
from finops_pipeline.commands.audit import verify
from finops_pipeline.commands.closing import Closing, Request, close_month
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.credits import decide
from finops_pipeline.resources.postgres.balance import trial_balance
from finops_pipeline.resources.postgres.published import read_statement
from finops_pipeline.resources.postgres.statements import reopen
from tests.databases import Databases
from tests.services.books import ALICE, BOB, HOUR, NOW, POLICY, Books, Used

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def books(databases: Databases, tmp_path: Path) -> Iterator[Books]:
    yield from _books(databases, tmp_path)


def _books(databases: Databases, home: Path) -> Iterator[Books]:
    url = databases.fresh()
    opened = Books(url, databases.admin(url), home)
    yield opened
    opened.database.close()


def missing(closing: Closing) -> dict[str, list[dict[str, Any]]]:
    return {c["name"]: c["missing"] for c in closing.data["conditions"] if not c["holds"]}


def lines(result: dict[str, Any], name: str) -> list[tuple[Any, ...]]:
    return [
        (line.get("hour"), line["tenant_id"][0], line["deployment_id"], line["allocated"]["amount"])
        for line in result.get(name, ())
    ]


# The gate


def test_a_complete_month_becomes_final(books: Books) -> None:
    books.hour(OCTOBER, Used(), Used(BOB, "1800", "256.5", "wl2"))
    trial = books.close("2026-10", dry_run=True)
    assert (trial.status, trial.gate.open, missing(trial)) == ("open", True, {})
    closing = books.close("2026-10")
    assert (closing.status, closing.closed_now) == ("final", True)
    assert lines(dict(closing.statement), "items") == [(None, "a", "chat", "2.63"), (None, "b", "chat", "1.31")]
    (entry,) = books.audited("month.closed")
    assert entry["totals"] == [{"amount": "3.94", "currency": "EUR"}]
    assert (entry["clusters"], entry["coverage"]) == (["c1"], "1.000000")
    assert entry["exceptions"] == {"life of c1": {"ended": "2026-10-01T01:00:00Z"}}
    assert all(proof.holds for proof in trial_balance(books.database))


def test_closing_twice_is_closing_once(books: Books) -> None:
    books.hour(OCTOBER, Used())
    first = books.close("2026-10")
    again = books.close("2026-10")
    assert (again.status, again.closed_now, again.gate.open) == ("final", False, True)
    assert statement_json([again.statement]) == statement_json([first.statement])
    assert len(books.audited("month.closed")) == 1
    assert "is final already" in again.text


def test_the_report_names_every_missing_hour_as_a_range(books: Books) -> None:
    for index in (0, 1, 5):
        books.hour(OCTOBER + index * HOUR, Used())
    report = missing(books.close("2026-10", hours=8, clusters=("c1", "c2")))
    assert report == {
        "hours": [
            {"cluster": "c1", "from": "2026-10-01T02:00:00Z", "to": "2026-10-01T05:00:00Z", "hours": 3},
            {"cluster": "c1", "from": "2026-10-01T06:00:00Z", "to": "2026-10-01T08:00:00Z", "hours": 2},
            {"cluster": "c2", "from": "2026-10-01T00:00:00Z", "to": "2026-11-01T00:00:00Z", "hours": 744},
        ]
    }


def test_a_whole_month_needs_all_of_its_hours(books: Books) -> None:
    """Without anybody saying when the cluster began or ended; seen clusters count like configured ones."""
    books.hour(OCTOBER, Used())
    closing = books.close("2026-10", lives=None)
    assert missing(closing) == {
        "hours": [{"cluster": "c1", "from": "2026-10-01T01:00:00Z", "to": "2026-11-01T00:00:00Z", "hours": 743}]
    }
    assert "cannot be closed yet" in closing.text
    assert "from 2026-10-01T01:00:00Z, to 2026-11-01T00:00:00Z, hours 743" in closing.text


def test_a_month_without_any_cluster_is_not_complete(books: Books) -> None:
    assert set(missing(books.close("2026-10", lives=None))) == {"hours"}


def test_a_month_that_runs_is_not_over(books: Books) -> None:
    books.hour(OCTOBER, Used())
    request = Request("2026-10", lives={"c1": Life(None, int(OCTOBER.timestamp() + 3600) * 1000)})
    closing = close_month(books.database, request, OCTOBER + 300 * HOUR)
    assert missing(closing) == {"over": [{"now": "2026-10-13T12:00:00Z", "ends": "2026-11-01T00:00:00Z"}]}


def test_an_hour_outside_a_clusters_life_refutes_it(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.hour(OCTOBER + HOUR, Used())
    assert set(missing(books.close("2026-10"))) == {"clusters"}


def test_a_provisional_hour_an_unpriced_row_and_too_little_coverage(books: Books) -> None:
    policy = POLICY | {"id": "alp_train", "deployment_pattern": "train-*"}
    books.tamper("DELETE FROM eai.allocation_policies")
    books.price(policy)
    books.hour(OCTOBER, Used(missing="40"), Used(workload="wl2", deployment="train-1"), provisional=True)
    assert missing(books.close("2026-10", min_coverage=Decimal("0.995"))) == {
        "provisional": [{"cluster": "c1", "from": "2026-10-01T00:00:00Z", "to": "2026-10-01T01:00:00Z", "hours": 1}],
        "coverage": [{"coverage": "0.994444", "missing_seconds": "40.000"}],
        "priced": [
            {
                "cluster": "c1",
                "deployment_id": "chat",
                "gpu_model": "H100",
                "rows": 1,
                "from_hour": "2026-10-01T00:00:00Z",
                "last_hour": "2026-10-01T00:00:00Z",
            }
        ],
    }
    assert set(missing(books.close("2026-10", min_coverage=Decimal("0.99")))) == {"provisional", "priced"}


def test_a_conflict_stops_until_somebody_accepts_it_by_name(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.tamper(
        "INSERT INTO eai.quarantine (cluster, hour, source, key, reason, detail) VALUES"
        " ('c1', '2026-10-01T00:00Z', 'workload_events', 'ev-7', 'conflict', 'same event_id, other content'),"
        " ('c1', '2026-10-01T00:00Z', 'dcgm', 'GPU-1:P', 'nan', '3 readings')"
    )
    report = missing(books.close("2026-10"))
    assert [(row["source"], row["key"]) for row in report["conflicts"]] == [("workload_events", "ev-7")]
    with pytest.raises(UsageError, match="--reason"):
        books.close("2026-10", accepted=("ev-7",))
    assert set(missing(books.close("2026-10", accepted=("ev-8",), reason="a typing error"))) == {"conflicts"}
    closing = books.close("2026-10", accepted=("ev-7",), reason="the second one was a retry, ticket 12")
    assert closing.status == "final"
    said = books.audited("month.closed")[0]["exceptions"]
    assert (said["accepted conflicts"], said["reason"]) == (["ev-7"], "the second one was a retry, ticket 12")


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("UPDATE eai.fleet_hours SET matched = matched - 1", "fleet"),
        ("UPDATE eai.fleet_hours SET lifecycle = lifecycle + 1, matched = matched + 1", "fleet"),
        ("UPDATE eai.gpu_usage SET energy_wh = energy_wh + 1", "parts"),
        ("DELETE FROM eai.gpu_usage", "parts"),
        ("UPDATE eai.gpu_cost_allocation SET amount = amount + 0.000000001", "ledger"),
        ("UPDATE eai.gpu_cost_allocation SET deployment_id = 'other'", "ledger"),
        ("DELETE FROM eai.usage_events WHERE usage_type <> 'llm'", "ledger"),
    ],
)
def test_stored_tables_are_checked_again(statement: str, condition: str, books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.tamper(statement)
    assert condition in missing(books.close("2026-10"))


def test_an_hour_whose_inputs_changed_is_waited_for(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.price(POLICY | {"id": "alp_2", "gpu_hourly_cost": "3", "effective_from": "2026-10-01T00:00:00Z"})
    assert missing(books.close("2026-10")) == {
        "changed": [{"cluster": "c1", "hour": "2026-10-01T00:00:00Z", "what": "a policy was added or ended"}]
    }
    books.hour(OCTOBER, Used())
    assert books.close("2026-10").status == "final"


# After the close


def test_a_final_statement_stays_and_the_next_one_lists_the_correction(books: Books) -> None:
    books.hour(OCTOBER, Used(seconds="1800"))
    closed = statement_json([books.close("2026-10").statement])
    assert books.hour(OCTOBER, Used(seconds="3600", wh="600")) == 1
    books.hour(NOVEMBER, Used(BOB))
    assert statement_json([read_statement(books.database, "2026-10")]) == closed
    assert statement_json([books.publish("2026-10")]) == closed, "publishing leaves a final month alone"
    november = books.publish("2026-11")
    assert lines(november, "items") == [(None, "b", "chat", "2.63")]
    assert lines(november, "corrections") == [("2026-10-01T00:00:00Z", "a", "chat", "1.26")]
    assert november["totals"][0]["amount"] == "3.89"
    assert november["totals"][0]["gpu_seconds"] == Decimal("5400.000")
    assert statement_json([november]) == statement_json([read_statement(books.database, "2026-11")])
    assert all(proof.holds for proof in trial_balance(books.database))
    assert "corrections" not in statement_json([read_statement(books.database, "2026-12")])


def test_a_correction_is_listed_once_and_later_ones_in_the_month_after(books: Books) -> None:
    books.hour(OCTOBER, Used(seconds="1800"))
    books.close("2026-10")
    books.hour(OCTOBER, Used(seconds="3600"))
    books.hour(NOVEMBER, Used())
    books.close("2026-11")
    books.hour(OCTOBER, Used(seconds="900"))
    books.hour(NOVEMBER, Used(seconds="1800"))
    december = books.publish("2026-12")
    assert [line["gpu_seconds"] for line in december["corrections"]] == [Decimal("-2700.000"), Decimal("-1800.000")]
    assert [line["hour"][:7] for line in december["corrections"]] == ["2026-10", "2026-11"]
    assert lines(read_statement(books.database, "2026-11"), "corrections")[0][0] == "2026-10-01T00:00:00Z"
    assert all(proof.holds for proof in trial_balance(books.database))


def test_a_correction_that_came_to_nothing_is_not_listed(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.close("2026-10")
    books.hour(OCTOBER, Used(seconds="900"))
    books.hour(OCTOBER, Used())
    assert "corrections" not in books.publish("2026-11")
    assert books.ask("SELECT count(*) FROM eai.gpu_correction_events") == [(2,)], "but its events are accounted for"


def test_an_unpriced_correction_keeps_the_next_month_open(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.close("2026-10")
    books.tamper("DELETE FROM eai.allocation_policies")
    books.hour(OCTOBER, Used(), Used(workload="wl2", deployment="new"))
    books.price(POLICY)
    books.hour(NOVEMBER, Used())
    assert "priced" in missing(books.close("2026-11"))
    books.hour(OCTOBER, Used(), Used(workload="wl2", deployment="new"))
    assert books.close("2026-11").status == "final"


def test_a_reopened_month_takes_its_corrections_back(books: Books) -> None:
    books.hour(OCTOBER, Used(seconds="1800"))
    books.close("2026-10")
    books.hour(OCTOBER, Used())
    books.publish("2026-11")
    reopen(books.database, "2026-10", "wrong inventory, ticket 9", NOW)
    assert books.audited("month.reopened") == [{"period": "2026-10", "reason": "wrong inventory, ticket 9"}]
    october = read_statement(books.database, "2026-10")
    assert (october["status"], lines(october, "items")) == ("open", [(None, "a", "chat", "2.63")])
    assert "corrections" not in read_statement(books.database, "2026-11")
    assert all(proof.holds for proof in trial_balance(books.database)), "both were published anew"
    books.close("2026-10")
    assert books.ask("SELECT count(*) FROM eai.late_events") == [(0,)]
    assert "corrections" not in books.publish("2026-11")


def test_a_month_whose_corrections_are_final_elsewhere_is_not_reopened(books: Books) -> None:
    books.hour(OCTOBER, Used(seconds="1800"))
    books.close("2026-10")
    books.hour(OCTOBER, Used())
    books.hour(NOVEMBER, Used())
    books.close("2026-11")
    with pytest.raises(UsageError, match="the final statement of 2026-11 lists corrections of 2026-10"):
        reopen(books.database, "2026-10", "why not", NOW)
    reopen(books.database, "2026-11", "first things first", NOW)
    reopen(books.database, "2026-10", "now it works", NOW)
    with pytest.raises(UsageError, match="not final"):
        reopen(books.database, "2026-10", "again", NOW)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE eai.gpu_statements SET status = 'open', final_at = NULL WHERE period = '2026-10'",
        "UPDATE eai.gpu_statements SET computed_at = now() WHERE period = '2026-10'",
        "DELETE FROM eai.gpu_statements WHERE period = '2026-10'",
        "UPDATE eai.gpu_allocation SET amount = 0 WHERE period = '2026-10'",
        "UPDATE eai.gpu_allocation SET period = '2026-11' WHERE period = '2026-10'",
        "DELETE FROM eai.gpu_allocation_totals WHERE period = '2026-10'",
        "INSERT INTO eai.gpu_correction_events (period, event_id) VALUES ('2026-10', 'x')",
        "DELETE FROM eai.late_events",
        "UPDATE eai.gpu_corrections SET period = '2026-10'",
    ],
)
def test_nobody_changes_a_final_month(statement: str, books: Books) -> None:
    books.hour(OCTOBER, Used(seconds="1800"))
    books.close("2026-10")
    books.hour(OCTOBER, Used())
    books.publish("2026-11")
    for url in (books.url, books.admin_url):
        with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match=r"is final|permission denied"):
            connection.execute(statement)


STATEMENT_TABLES = "gpu_statements", "gpu_allocation", "gpu_allocation_totals", "gpu_corrections"


@pytest.mark.parametrize("table", [*STATEMENT_TABLES, "gpu_correction_events", "late_events"])
def test_nobody_empties_a_table_of_statements(table: str, books: Books) -> None:
    with psycopg.connect(books.admin_url) as connection, pytest.raises(psycopg.Error, match="append only"):
        connection.execute(f"TRUNCATE eai.{table}")


def test_an_entry_of_another_transaction_does_not_reopen_a_month(books: Books) -> None:
    books.hour(OCTOBER, Used())
    books.close("2026-10")
    with books.database.transaction() as connection:
        books.database.append_audit(
            connection, "month.reopened", {"period": "2026-10", "reason": "said, not done"}, NOW
        )
    with psycopg.connect(books.url) as connection, pytest.raises(psycopg.Error, match="is final"):
        connection.execute("UPDATE eai.gpu_statements SET status = 'open', final_at = NULL WHERE period = '2026-10'")


def test_a_gateway_that_may_only_insert_tokens_still_can(books: Books) -> None:
    """The trigger that notes late events reads statements, which a writer of tokens may not."""
    books.hour(OCTOBER, Used())
    books.close("2026-10")
    with psycopg.connect(books.admin_url) as connection:
        connection.execute("CREATE ROLE gateway_of_a_test")
        connection.execute("GRANT USAGE ON SCHEMA eai TO gateway_of_a_test")
        connection.execute("GRANT INSERT ON eai.usage_events TO gateway_of_a_test")
        connection.execute("SET LOCAL ROLE gateway_of_a_test")
        connection.execute("SELECT set_config('app.tenant_id', %s, true)", [ALICE])
        inserted = connection.execute(
            "INSERT INTO eai.usage_events (event_id, occurred_at, tenant_id, usage_type, source, input_tokens,"
            " output_tokens, cached_tokens) VALUES ('t1', '2026-10-01T00:30Z', %s, 'llm', 'gateway', 1, 1, 0)",
            [ALICE],
        )
        assert inserted.rowcount == 1
        connection.execute("RESET ROLE")
        connection.rollback()
    assert books.ask("SELECT count(*) FROM eai.late_events") == [(0,)]


# Credits


def credit(books: Books, hour: datetime, share: str = "1/2") -> str:
    """Half of Alice's hour is given back."""
    identity = "c0000000-0000-4000-8000-00000000000c"
    books.tamper(
        "INSERT INTO eai.credit_proposals (id, cluster, workload_id, tenant_id, deployment_id, window_from, window_to,"
        " gpu_seconds, amount, currency, reason, shares, evidence, status) VALUES"
        f" ('{identity}', 'c1', 'wl', '{ALICE}', 'chat', '{hour}', '{hour + HOUR}', 1800, 1.3, 'EUR', 'died_unseen',"
        f" '{{\"{hour:%Y-%m-%dT%H:%M:%SZ}\": \"{share}\"}}', '{{}}', 'proposed')",
        lifted=False,
    )
    return identity


def test_a_credit_of_an_open_month_is_in_its_own_statement(books: Books) -> None:
    books.hour(OCTOBER, Used())
    decide(books.database, credit(books, OCTOBER), approve=True, reason="it had died", decided_by="kim", now=NOW)
    october = books.publish("2026-10")
    assert lines(october, "items") == [(None, "a", "chat", "2.63")]
    assert lines(october, "corrections") == [("2026-10-01T00:00:00Z", "a", "chat", "-1.31")]
    assert october["totals"][0]["amount"] == "1.32"
    assert books.close("2026-10").status == "final"
    assert "corrections" not in books.publish("2026-11")
    assert all(proof.holds for proof in trial_balance(books.database))
    assert verify(books.database).exit_code == 0


def test_a_credit_of_a_final_month_is_in_the_next_statement(books: Books) -> None:
    books.hour(OCTOBER, Used())
    closed = statement_json([books.close("2026-10").statement])
    decide(books.database, credit(books, OCTOBER), approve=True, reason="it had died", decided_by="kim", now=NOW)
    assert lines(books.publish("2026-11"), "corrections") == [("2026-10-01T00:00:00Z", "a", "chat", "-1.31")]
    assert statement_json([read_statement(books.database, "2026-10")]) == closed
    assert all(proof.holds for proof in trial_balance(books.database))
    assert verify(books.database).exit_code == 0


# Together


def test_a_booking_is_either_before_the_close_or_listed_after_it(books: Books) -> None:
    """Closes and bookings at once, many times: each event is in exactly one statement."""
    books.hour(OCTOBER, Used())

    def work(number: int) -> None:
        if number % 4 == 0:
            books.close("2026-10")
        else:
            books.hour(OCTOBER, Used(seconds=f"{900 + number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
    books.close("2026-10")
    assert read_statement(books.database, "2026-10")["status"] == "final"
    books.publish("2026-11")
    proofs = trial_balance(books.database)
    assert [proof for proof in proofs if not proof.holds] == []
    stated = sum(
        proof.right
        for proof in proofs
        if (proof.proof, proof.measure) == ("stated", "gpu_seconds") and not proof.tenant_id
    )
    assert stated == books.ask("SELECT sum(gpu_seconds) FROM eai.usage_events")[0][0]


MONTHS = ("2026-10", "2026-11", "2026-12")
USES = st.lists(
    st.builds(
        Used,
        tenant=st.sampled_from([ALICE, BOB]),
        seconds=st.integers(0, 3_600_000).map(lambda ms: f"{Decimal(ms) / 1000:.3f}"),
        wh=st.one_of(st.none(), st.integers(0, 700_000_000).map(lambda uwh: f"{Decimal(uwh) / 10**6:.6f}")),
        workload=st.sampled_from(["w1", "w2"]),
        deployment=st.sampled_from(["chat", "train"]),
    ),
    max_size=2,
    unique_by=lambda used: used.workload,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hour"), st.sampled_from(MONTHS), USES),
        st.tuples(st.sampled_from(["close", "reopen"]), st.sampled_from(MONTHS), st.none()),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_over_time_the_sum_of_all_statements_is_the_sum_of_all_events(
    steps: list[tuple[str, str, Any]], databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for books in _books(databases, tmp_path_factory.mktemp("books")):
        closed: dict[str, str] = {}
        for month in MONTHS:
            books.hour(datetime.fromisoformat(f"{month}-01T00:00:00Z"))
        for what, month, uses in steps:
            if what == "hour":
                books.hour(datetime.fromisoformat(f"{month}-01T00:00:00Z"), *uses)
            elif what == "close":
                closing = books.close(month)
                assert closing.status == "final", missing(closing)
                closed.setdefault(month, statement_json([closing.statement]))
            else:
                try:
                    reopen(books.database, month, "because", NOW)
                    closed.pop(month)
                except UsageError:
                    assert month not in closed or any(later in closed for later in MONTHS if later > month)
            for final, text in closed.items():
                assert statement_json([read_statement(books.database, final)]) == text, "a final statement changed"
        statements = [books.publish(month) for month in (*MONTHS, "2027-01")]
        _sums_agree(books, statements)
        assert [proof for proof in trial_balance(books.database) if not proof.holds] == []


def _sums_agree(books: Books, statements: list[dict[str, Any]]) -> None:
    ((seconds, wh, amount),) = books.ask(
        "SELECT coalesce(sum(gpu_seconds), 0), coalesce(sum(energy_wh), 0), coalesce(sum(cost_amount), 0)"
        " FROM eai.usage_events"
    )
    totals = list(itertools.chain.from_iterable(statement["totals"] for statement in statements))
    assert sum(total["gpu_seconds"] or 0 for total in totals) == seconds
    assert sum(total["energy_wh"] or 0 for total in totals) == wh
    rounding = Decimal("0.005") * 2 * len(totals)
    assert abs(sum(Decimal(total["amount"]) for total in totals) - amount) <= rounding
    for statement in statements:
        every = [line["allocated"]["amount"] for name in ("items", "corrections") for line in statement.get(name, ())]
        assert sum(map(Decimal, every)) == sum(Decimal(total["amount"]) for total in statement["totals"])
