"""Tables that a person reads, as pandas frames: on a terminal, as Markdown for a ticket, as HTML for a mail.

What belongs here: how rows become a frame, and how a frame is written. What does not: which rows, and arithmetic: in
a frame every value is the object that it was, so that a Decimal is never a float and keeps all its digits.

Imported late, and only here: pandas takes half a second, which `finops status` and its like do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from html import escape

import pandas as pd

from finops_pipeline.commands.show import cell_text, table_text


def frame(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> pd.DataFrame:
    """Rows as they are: a column of Python objects for each name (names may repeat)."""
    return pd.DataFrame([list(row) for row in rows], columns=pd.Index(columns), dtype=object)


def written(
    layout: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str | None = None,
    *,
    totals: Iterable[Sequence[object]] = (),
) -> str:
    """A table as `table`, `markdown` or `html`: numbers right, null as a dash, the totals last."""
    body, last = frame(columns, rows), frame(columns, totals)
    if layout == "markdown":
        return markdown(pd.concat([body, last]), title)
    if layout == "html":
        return html(pd.concat([body, last]), title)
    return table_text(list(columns), _listed(body), title, totals=_listed(last))


def markdown(table: pd.DataFrame, title: str | None = None) -> str:
    """A table of GitHub's Markdown; a bar in a text is escaped."""
    texts = table.map(lambda value: cell_text(value).replace("|", "\\|"))
    sides = ["right" if numeric else "left" for numeric in _numeric(table)]
    lines = texts.to_markdown(
        index=False, tablefmt="pipe", disable_numparse=True, colalign=sides if len(table) else None
    )
    return (f"**{title}**\n\n" if title else "") + f"{lines}\n"


def html(table: pd.DataFrame, title: str | None = None) -> str:
    """A `<table>` without styles of its own; texts are escaped."""
    lines = table.map(cell_text).to_html(index=False, border=0, justify="left")
    return (f"<h2>{escape(title)}</h2>\n" if title else "") + f"{lines}\n"


def _listed(table: pd.DataFrame) -> list[list[object]]:
    return [list(row) for row in table.itertuples(index=False, name=None)]


def _numeric(table: pd.DataFrame) -> list[bool]:
    return [
        any(isinstance(value, int | Decimal | float) for value in table.iloc[:, place])
        for place in range(table.shape[1])
    ]
