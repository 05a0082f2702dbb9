"""`finops audit verify` on a real Postgres, tampered with as a superuser: each way is found and named (A34)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import rfc8785

from finops_pipeline.accounting.audit.chain import GENESIS
from finops_pipeline.commands.audit import Verification, columns_of, verify
from finops_pipeline.resources.anchor import Anchor, AnchorError
from finops_pipeline.resources.postgres.client import Database
from tests.databases import Databases
from tests.services.books import BOB, HOUR, NOW, POLICY, Books, Used

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    with Databases(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def books(databases: Databases, tmp_path: Path) -> Iterator[Books]:
    """Ten entries: a policy, hours with and without corrections, statements, a close."""
    url = databases.fresh()
    opened = Books(url, databases.admin(url), tmp_path)
    opened.hour(OCTOBER, Used(), Used(BOB, "1800", "256.5", "wl2"))
    opened.hour(OCTOBER + HOUR, Used(seconds="900"))
    opened.hour(OCTOBER + HOUR, Used())
    opened.publish("2026-10")
    opened.close("2026-10", hours=2)
    opened.hour(OCTOBER, Used())
    opened.hour(NOVEMBER, Used())
    opened.publish("2026-11")
    opened.hour(NOVEMBER + HOUR, Used())
    yield opened
    opened.database.close()


def result(found: Verification) -> str:
    return str(found.data["result"])


def test_an_untouched_log_is_intact(books: Books) -> None:
    found = verify(books.database)
    assert (result(found), found.exit_code, found.findings) == ("intact", 0, [])
    assert (found.chain.entries, found.chain.anchored, found.events) == (10, 10, 7)
    kinds = [row[0] for row in books.ask("SELECT kind FROM eai.audit_events ORDER BY seq")]
    assert kinds == [
        "policy.added",
        *["hour.published"] * 3,
        "statement.published",
        "month.closed",
        *["hour.published"] * 2,
        "statement.published",
        "hour.published",
    ]


def test_an_empty_database_is_intact(databases: Databases, tmp_path: Path) -> None:
    database = Database(databases.fresh(), anchor=Anchor(tmp_path / "audit.anchor"))
    assert verify(database).exit_code == 0
    database.close()


SHIFT = (
    "UPDATE eai.audit_events SET seq = -seq WHERE seq >= {0}",
    "UPDATE eai.audit_events SET seq = {1} - seq WHERE seq < 0",
)
REHASH = "entry_sha256 = encode(sha256(convert_to(document, 'UTF8')), 'hex')"


def edited(books: Books) -> None:
    books.tamper(
        "UPDATE eai.audit_events SET document = replace(document, '\"events\":2', '\"events\":1') WHERE seq = 2"
    )


def edited_and_hashed(books: Books) -> None:
    edited(books)
    books.tamper(f"UPDATE eai.audit_events SET {REHASH} WHERE seq = 2")


def column_edited(books: Books) -> None:
    books.tamper("UPDATE eai.audit_events SET occurred_at = occurred_at + interval '1 day' WHERE seq = 4")


def removed(books: Books) -> None:
    books.tamper("DELETE FROM eai.audit_events WHERE seq = 6", lifted=False)


def removed_and_renumbered(books: Books) -> None:
    books.tamper("DELETE FROM eai.audit_events WHERE seq = 6", *(line.format(7, -1) for line in SHIFT))


def inserted(books: Books) -> None:
    ((previous,),) = books.ask("SELECT entry_sha256 FROM eai.audit_events WHERE seq = 5")
    books.tamper(*(line.format(6, 1) for line in SHIFT), _insert(6, previous, {"forged": True}))


def _insert(seq: int, previous: str, payload: dict[str, Any]) -> str:
    document, sha256 = _entry(seq, "2026-11-02T00:00:00.000Z", "hour.published", payload, previous)
    return (
        "INSERT INTO eai.audit_events (seq, occurred_at, kind, previous_sha256, entry_sha256, document) VALUES"
        f" ({seq}, '2026-11-02T00:00Z', 'hour.published', '{previous}', '{sha256}', '{document}')"
    )


def _entry(seq: int, at: str, kind: str, payload: Any, previous: str) -> tuple[str, str]:
    entry = {
        "schema_version": "1.0", "seq": seq, "occurred_at": at, "kind": kind, "payload": payload,
        "previous_sha256": previous,
    }  # fmt: skip
    document = rfc8785.dumps(entry).decode()
    return document, hashlib.sha256(document.encode()).hexdigest()


def swapped(books: Books) -> None:
    books.tamper(
        "UPDATE eai.audit_events SET seq = -seq WHERE seq IN (3, 8)",
        "UPDATE eai.audit_events SET seq = seq + 11 WHERE seq < 0",
    )


def cut(books: Books) -> None:
    books.tamper("DELETE FROM eai.audit_events WHERE seq > 7", lifted=False)


def last_cut(books: Books) -> None:
    books.tamper("DELETE FROM eai.audit_events WHERE seq = 10", lifted=False)


def rewritten(books: Books) -> None:
    """A whole new chain from entry 4 on: consistent, and in agreement with the events."""
    rows = books.ask("SELECT seq, document::jsonb FROM eai.audit_events ORDER BY seq")
    previous, statements = GENESIS, []
    for seq, entry in rows:
        at = entry["occurred_at"].replace("2027-06-01", "2027-05-31") if seq >= 4 else entry["occurred_at"]
        document, sha256 = _entry(seq, at, entry["kind"], entry["payload"], previous)
        statements.append(
            f"UPDATE eai.audit_events SET occurred_at = '{at}', previous_sha256 = '{previous}',"
            f" entry_sha256 = '{sha256}', document = '{document}' WHERE seq = {seq}"
        )
        previous = sha256
    books.tamper(*statements)


def event_column(books: Books) -> None:
    books.tamper("UPDATE eai.usage_events SET cost_amount = 0 WHERE seq = 1", lifted=False)


def event_tenant(books: Books) -> None:
    books.tamper(f"UPDATE eai.usage_events SET tenant_id = '{BOB}' WHERE seq = 1", lifted=False)


def event_rewritten(books: Books) -> None:
    """Document, hash and columns together: only the log knows."""
    document, sha256 = _cheaper(books)
    books.tamper(
        f"UPDATE eai.usage_events SET cost_amount = 1, document = '{document}', content_sha256 = '{sha256}'"
        " WHERE seq = 1",
        lifted=False,
    )


def _cheaper(books: Books) -> tuple[str, str]:
    ((event,),) = books.ask("SELECT document::jsonb FROM eai.usage_events WHERE seq = 1")
    event["cost"]["amount"] = "1.000000000"
    document = rfc8785.dumps(event).decode()
    return document, hashlib.sha256(document.encode()).hexdigest()


def event_removed(books: Books) -> None:
    books.tamper("DELETE FROM eai.usage_events WHERE seq = 1", lifted=False)


def hour_removed(books: Books) -> None:
    books.tamper("DELETE FROM eai.usage_events WHERE period_start = '2026-11-01T00:00Z'", lifted=False)


def event_added(books: Books) -> None:
    """A copy of an event, complete and consistent, for another hour."""
    ((event,),) = books.ask("SELECT document::jsonb FROM eai.usage_events WHERE seq = 1")
    event |= {"event_id": "6d9c1a52-9f5e-5b1c-8d7e-000000000000", "workload_id": "wl9"}
    document = rfc8785.dumps(event).decode()
    sha256 = hashlib.sha256(document.encode()).hexdigest()
    row = {name: value for name, value in columns_of(event).items() if value is not None}
    row |= {"document": document, "content_sha256": sha256}
    with psycopg.connect(books.admin_url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            f"INSERT INTO eai.usage_events ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
            list(row.values()),
        )


def policy_changed(books: Books) -> None:
    books.tamper("UPDATE eai.allocation_policies SET gpu_hourly_cost = 1.05", lifted=False)


def policy_removed(books: Books) -> None:
    books.tamper("DELETE FROM eai.allocation_policies", lifted=False)


def policy_smuggled_in(books: Books) -> None:
    columns = ", ".join(f"'x' AS {name}" if name == "id" else name for name in _policy_columns(books))
    books.tamper(f"INSERT INTO eai.allocation_policies SELECT {columns} FROM eai.allocation_policies", lifted=False)


def _policy_columns(books: Books) -> list[str]:
    rows = books.ask(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'eai'"
        " AND table_name = 'allocation_policies' ORDER BY ordinal_position"
    )
    return [row[0] for row in rows]


def final_line_changed(books: Books) -> None:
    books.tamper("UPDATE eai.gpu_allocation SET amount = amount - 1 WHERE period = '2026-10'", lifted=False)


def final_statement_opened(books: Books) -> None:
    books.tamper("UPDATE eai.gpu_statements SET status = 'open', final_at = NULL", lifted=False)


def correction_removed(books: Books) -> None:
    books.tamper("DELETE FROM eai.gpu_corrections", lifted=False)


def hour_smuggled_in(books: Books) -> None:
    books.tamper("UPDATE eai.hour_runs SET hour = hour + interval '9 hours' WHERE hour = '2026-11-01T01:00Z'")


def anchor_deleted(books: Books) -> None:
    books.anchor.path.unlink()


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (edited, "changed"),
        (edited_and_hashed, "changed"),
        (column_edited, "changed"),
        (removed, "removed"),
        (removed_and_renumbered, "removed"),
        (inserted, "inserted"),
        (swapped, "reordered"),
        (cut, "cut_tail"),
        (last_cut, "cut_tail"),
        (rewritten, "rewritten"),
        (event_column, "event_changed"),
        (event_tenant, "event_changed"),
        (event_rewritten, "event_changed"),
        (event_removed, "event_removed"),
        (hour_removed, "event_removed"),
        (event_added, "event_added"),
        (policy_changed, "fact_changed"),
        (policy_removed, "fact_changed"),
        (policy_smuggled_in, "fact_changed"),
        (final_line_changed, "fact_changed"),
        (final_statement_opened, "fact_changed"),
        (correction_removed, "fact_changed"),
        (hour_smuggled_in, "fact_changed"),
        (anchor_deleted, "no_anchor"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_tampering_is_found_and_named(tamper: Callable[[Books], None], expected: str, books: Books) -> None:
    tamper(books)
    found = verify(books.database)
    assert result(found) == expected, found.text
    assert found.exit_code >= 10


def test_where_it_was_done(books: Books) -> None:
    edited_and_hashed(books)
    first = verify(books.database).findings[0]
    assert (first.tampering.label, first.where) == ("changed", "entry 2")


def backup_of(books: Books, name: str) -> str:
    """A copy of the database as it is now: what a restored backup is."""
    books.database.close()
    parts = urlsplit(books.admin_url)
    source = parts.path.lstrip("/")
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {source}")
    return urlunsplit(urlsplit(books.url)._replace(path=f"/{name}"))


def test_an_old_backup_is_not_a_cut_tail(books: Books) -> None:
    backup = Database(backup_of(books, "backup_1"), anchor=books.anchor)
    books.hour(NOVEMBER + 2 * HOUR, Used())
    books.price(POLICY | {"id": "alp_2", "effective_from": "2027-01-01T00:00:00Z"})
    books.publish("2026-11")
    assert result(verify(books.database)) == "intact"
    found = verify(backup)
    assert (result(found), found.exit_code, found.findings[0].where) == ("restored", 16, "entries 11 to 13")
    backup.close()


def test_a_backup_that_was_written_on_stops_the_writer_and_is_rewritten(books: Books, tmp_path: Path) -> None:
    url = backup_of(books, "backup_2")
    books.hour(NOVEMBER + 2 * HOUR, Used())
    admin = urlunsplit(urlsplit(books.admin_url)._replace(path="/backup_2"))
    restored = Books(url, admin, tmp_path, policies=())
    with pytest.raises(AnchorError, match="finops audit verify shows which"):
        restored.database.follow_anchor()
    with pytest.raises(AnchorError):
        restored.hour(NOVEMBER + 3 * HOUR, Used())
    assert result(verify(restored.database)) == "rewritten"
    restored.database.close()


def test_a_crash_between_commit_and_anchor_is_made_up_for(books: Books) -> None:
    crashed = Database(books.url)
    with crashed.transaction() as connection:
        crashed.append_audit(connection, "test.crashed", {}, NOW)
    crashed.close()
    found = verify(books.database)
    assert (found.exit_code, found.chain.not_anchored) == (0, 1)
    assert "1 entries are not anchored yet" in found.text
    books.hour(NOVEMBER + 2 * HOUR, Used())
    found = verify(books.database)
    assert (found.exit_code, found.chain.anchored, found.chain.not_anchored) == (0, 12, 0)


def test_a_rolled_back_entry_is_not_anchored(books: Books) -> None:
    def undone() -> None:
        with books.database.transaction() as connection:
            books.database.append_audit(connection, "test.undone", {}, NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        undone()
    assert verify(books.database).chain.anchored == 10


def test_the_command_ends_with_the_code(books: Books, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [Path(sys.executable).with_name("finops"), "audit", "verify", *arguments],
            env={"EAI_DATABASE_URL": books.url, "FINOPS_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert not done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if arguments else done.stdout

    code, data = run("--json")
    assert (code, data["result"], data["entries"]) == (0, "intact", 10)
    swapped(books)
    code, text = run()
    assert code == 13
    assert text.splitlines()[-1].startswith("reordered: 10 entries")
