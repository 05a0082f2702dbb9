"""Tables for people: frames that keep every value, and how they are written."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import plain
from finops_pipeline.commands.tables import frame, html, markdown, written

COLUMNS = ("tenant", "amount", "")
ROWS = [("a|b", Decimal("1E+1"), "EUR"), ("<c>", Decimal("0E-9"), None)]


def test_a_frame_keeps_the_objects() -> None:
    table = frame(COLUMNS, ROWS)
    assert [type(value) for value in table["amount"]] == [Decimal, Decimal]
    assert table.iloc[1, 2] is None


@given(st.lists(st.tuples(st.decimals(allow_nan=False, allow_infinity=False), st.none() | st.text("ab", min_size=1))))
def test_every_layout_shows_every_digit(rows: list[tuple[Decimal, str | None]]) -> None:
    for layout in ("table", "markdown", "html"):
        shown = written(layout, ("amount", "who"), rows)
        assert all(plain(amount) in shown for amount, _ in rows)


def test_on_a_terminal() -> None:
    assert written("table", COLUMNS, ROWS[:1], "T", totals=[("all", Decimal("10.50"), "EUR")]).splitlines() == [
        "T",
        " tenant   amount",
        " ─────────────────────",
        " a|b          10   EUR",
        " all       10.50   EUR",
    ]


def test_as_markdown() -> None:
    assert written("markdown", COLUMNS, ROWS[:1], "T", totals=[("all", Decimal("10.50"), "EUR")]) == (
        "**T**\n\n"
        "| tenant   |   amount |     |\n"
        "|:---------|---------:|:----|\n"
        "| a\\|b     |       10 | EUR |\n"
        "| all      |    10.50 | EUR |\n"
    )
    assert "0.000000000" in markdown(frame(COLUMNS, ROWS))


def test_as_html() -> None:
    shown = html(frame(COLUMNS, ROWS), "A & B")
    assert shown.startswith("<h2>A &amp; B</h2>\n<table")
    assert "&lt;c&gt;" in shown
    assert (shown.count("<tr"), shown.count("<td>0.000000000</td>"), shown.count("<td>-</td>")) == (3, 1, 1)


@pytest.mark.parametrize("layout", ["table", "markdown", "html"])
def test_no_rows(layout: str) -> None:
    assert "amount" in written(layout, COLUMNS, [])
