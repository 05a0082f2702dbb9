"""The files of a run: CSV that reads back as the table was."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finops_pipeline.accounting.exact import decimal_of
from finops_pipeline.commands.export import write_csv
from finops_pipeline.errors import UsageError

COLUMNS: dict[str, pa.DataType] = {
    "name": pa.string(),
    "hour": pa.timestamp("ms", tz="UTC"),
    "amount": pa.decimal128(38, 9),
    "estimated": pa.bool_(),
    "storage_gb_hours": pa.decimal128(38, 6),
}
SCHEMA = pa.schema(COLUMNS)
TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)
rows = st.tuples(
    st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    st.integers(0, 5).map(lambda hours: TEN + timedelta(hours=hours)),
    st.none() | st.integers(-(10**30), 10**30).map(lambda units: decimal_of(units, 9)),
    st.none() | st.booleans(),
    st.none(),
)


def written(path: Path, *given_rows: tuple[object, ...]) -> bytes:
    columns = zip(*given_rows, strict=True) if given_rows else [[]] * len(SCHEMA)
    write_csv(
        pa.Table.from_arrays([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA),
        path,
        ("storage_gb_hours",),
    )
    return path.read_bytes()


def test_how_it_looks(tmp_path: Path) -> None:
    found = written(
        tmp_path / "it's.csv",
        ('b,"c', TEN, Decimal("0E-9"), True, None),
        ("", TEN, None, None, Decimal(1)),
        ("é", TEN, Decimal("1E+1"), False, None),
        ("b", TEN + timedelta(hours=1), Decimal("-0.000000001"), False, None),
        ("b", TEN, None, False, None),
    )
    assert found.decode() == (
        "name,hour,amount,estimated\n"
        ",2026-10-01T10:00:00Z,,\n"
        "b,2026-10-01T10:00:00Z,,false\n"
        "b,2026-10-01T11:00:00Z,-0.000000001,false\n"
        '"b,""c",2026-10-01T10:00:00Z,0.000000000,true\n'
        "é,2026-10-01T10:00:00Z,10.000000000,false\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["it's.csv"]


def test_no_rows(tmp_path: Path) -> None:
    assert written(tmp_path / "empty.csv") == b"name,hour,amount,estimated\n"


@given(st.lists(rows, max_size=8))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_reads_back_in_order(
    tmp_path: Path, found: list[tuple[str | None, datetime, Decimal | None, bool | None, None]]
) -> None:
    written(tmp_path / "any.csv", *found)
    with (tmp_path / "any.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.reader(file))[1:]
    assert sorted(read) == sorted(
        [
            name or "",
            f"{hour:%Y-%m-%dT%H:%M:%SZ}",
            "" if amount is None else f"{amount:f}",
            "" if estimated is None else str(estimated).lower(),
        ]
        for name, hour, amount, estimated, _ in found
    )
    assert [row[:2] for row in read] == sorted(row[:2] for row in read)


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"any\.csv: cannot be written"):
        written(tmp_path / "nowhere" / "any.csv")
