"""OpenMetrics and Parquet dumps become exactly the series that they hold, or a line that says where they are broken."""

from __future__ import annotations

import gzip
import math
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finops_pipeline.contracts.lake import DCGM_SERIES
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle import openmetrics
from finops_pipeline.resources.bundle.openmetrics import read_series
from finops_pipeline.resources.series import SeriesBuilder, window

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Samples = list[tuple[int, float]]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], Samples]


def plain(table: pa.Table) -> Series:
    """(metric, sorted labels) -> [(ms, value)]"""
    assert table.schema.equals(DCGM_SERIES)
    return {
        (row["metric"], tuple(sorted(row["labels"]))): [
            ((instant - EPOCH) // timedelta(milliseconds=1), value)
            for instant, value in zip(row["timestamps"], row["values"], strict=True)
        ]
        for row in table.to_pylist()
    }


def read(folder: Path, text: str, name: str = "dcgm.om") -> pa.Table:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_series(path)


def one(folder: Path, line: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], tuple[int, float]]:
    (series, (sample,)), *rest = plain(read(folder, f"{line}\n# EOF\n")).items()
    assert not rest
    return series, sample


@pytest.mark.parametrize("name", ["dcgm.om", "dcgm.om.gz"])
def test_blocks_of_one_series_are_merged_and_sorted(tmp_path: Path, name: str) -> None:
    text = (
        "# HELP A what it is {\n# TYPE A gauge\n"
        'A{x="1",y="2"} 3 30.000\nA{x="1",y="2"} 1 10\nB 7 1.5\n\nA{y="2",x="1"} 2 20.25\n'
        'A{x="1",y="2",z=""} 4 40\n# EOF\n'
    )
    assert plain(read(tmp_path, text, name)) == {
        ("A", (("x", "1"), ("y", "2"))): [(10_000, 1.0), (20_250, 2.0), (30_000, 3.0), (40_000, 4.0)],
        ("B", ()): [(1_500, 7.0)],
    }


@pytest.mark.parametrize(
    ("seconds", "millis"),
    [
        ("1790848774.137", 1790848774137),
        ("1790848774", 1790848774000),
        ("1790848774.5", 1790848774500),
        ("1790848774.0005", 1790848774000),
        ("1790848774.0015", 1790848774002),
        ("1790848774.000500001", 1790848774001),
        ("1790848774.00050000000000000000000000000000000000001", 1790848774001),
        ("1790848774.1234999999999999999999", 1790848774123),
        ("1.790848774137e9", 1790848774137),
        ("+5", 5000),
        ("-0.0005", 0),
        ("-1.0015", -1002),
    ],
)
def test_seconds_are_rounded_half_even_from_their_text(tmp_path: Path, seconds: str, millis: int) -> None:
    assert one(tmp_path, f"A 1 {seconds}")[1][0] == millis


def test_every_millisecond_of_a_second_is_exact(tmp_path: Path) -> None:
    text = "".join(f"A {ms} 1790848774.{ms:03d}\n" for ms in range(1000)) + "# EOF\n"
    assert plain(read(tmp_path, text))["A", ()] == [(1790848774000 + ms, float(ms)) for ms in range(1000)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", math.nan),
        ("nan", math.nan),
        ("+Inf", math.inf),
        ("-Inf", -math.inf),
        ("1e9", 1e9),
        ("1E+22", 1e22),
        ("-0", -0.0),
        ("+5", 5.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("5e-324", 5e-324),
        ("9223372036854775794", 9223372036854775794.0),
        ("140737488355328.000000", 140737488355328.0),
        ("0.1", 0.1),
    ],
)
def test_values_keep_their_bits(tmp_path: Path, text: str, value: float) -> None:
    assert struct.pack("d", one(tmp_path, f"A {text} 1")[1][1]) == struct.pack("d", value)


@pytest.mark.parametrize(
    ("line", "metric", "labels"),
    [
        (r'A{x="a\\b\"c\nd"} 1 2', "A", {"x": 'a\\b"c\nd'}),
        ('A{x="} 5 6",y="a,b={c}"} 1 2', "A", {"x": "} 5 6", "y": "a,b={c}"}),
        ('A{x="# {"} 1 2', "A", {"x": "# {"}),
        ('A{ x = "1" , y="2", } 1 2', "A", {"x": "1", "y": "2"}),
        ('A {x="1"} 1 2', "A", {"x": "1"}),
        ('A\t{x="1"}\t1\t2', "A", {"x": "1"}),
        ('A{x="1"}   1  2  ', "A", {"x": "1"}),
        ('A{x="1"} 1 2\r', "A", {"x": "1"}),
        ('A{x="1"} 1 2 # {trace_id="} 8 9"} 3 4', "A", {"x": "1"}),
        ('A{x="1"} 1 2 # {} 3', "A", {"x": "1"}),
        ("A{} 1 2", "A", {}),
        ("a:b_C9 1 2", "a:b_C9", {}),
        ('{"a.b",x="1"} 1 2', "a.b", {"x": "1"}),
        ('{__name__="A",x="1"} 1 2', "A", {"x": "1"}),
        ('A{x="é – 名"} 1 2', "A", {"x": "é – 名"}),
        ('A{x="\\q"} 1 2', "A", {"x": "\\q"}),
    ],
)
def test_odd_but_right_lines(tmp_path: Path, line: str, metric: str, labels: dict[str, str]) -> None:
    assert one(tmp_path, line) == ((metric, tuple(sorted(labels.items()))), (2000, 1.0))


BROKEN = [
    ('A{x="1"}', "no value"),
    ("A", "no value"),
    ('A{x="1"} 5', "no timestamp"),
    ('A{x="1"} 5 # {} 1', "no timestamp"),
    ('A{x="a b"} 5', "no timestamp"),
    ('A{x="1"} 5x 6', "'5x' is not a number"),
    ('A{x="1"} 0x10 6', "not a number"),
    ('A{x="1"} 1_0 6', "not a number"),
    ('A{x="1"} 5 6y', "'6y' is not a number of seconds"),
    ('A{x="1"} 5 NaN', "not a number of seconds"),
    ('A{x="1"} 5 6 7', "unexpected '7'"),
    ('A{x="1"} 5 1790848774137', "in seconds"),
    ('A{x="1} 5 6', "'x' has no quotes or is not closed"),
    ('A{x="1" 5 6', "not closed"),
    ("A{x=1} 5 6", "no quotes"),
    ("A{x} 5 6", "'x' has no value"),
    ('A{x="1",x="2"} 5 6', "twice"),
    ('A{x="1"}5 6', "unexpected '5'"),
    ('A{"b"} 5 6', "second metric name"),
    (' A{x="1"} 5 6', "no metric name"),
    ("{} 5 6", "no metric name"),
    ("9A 5 6", "no metric name"),
    ("\x00\x01 5 6", "no metric name"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_a_broken_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f'# TYPE A gauge\nA{{x="1"}} 5 6\n{line}\nA 1 zzz\n# EOF\n')
    assert str(caught.value).startswith(f"{tmp_path / 'dcgm.om'}: line 3: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "dcgm.om"
    path.write_bytes(b'A 1 2\nA{x="\xff"} 1 2\n# EOF\n')
    with pytest.raises(UsageError, match="line 2: not UTF-8"):
        read_series(path)


@pytest.mark.parametrize("text", ["", "\n", "A 1 2\n", "A 1 2\n# TYPE A gauge\n", "A 1 2\n# EO", "A 1 2\n# EOF"])
def test_only_a_whole_file_is_read(tmp_path: Path, text: str) -> None:
    if text.endswith("# EOF"):
        assert read(tmp_path, text).num_rows == 1
    else:
        with pytest.raises(UsageError, match="cut off"):
            read(tmp_path, text)


@pytest.mark.parametrize("more", ["A 1 3\n# EOF\n", "# TYPE A gauge\n"])
def test_nothing_follows_the_end(tmp_path: Path, more: str) -> None:
    with pytest.raises(UsageError, match="line 3: text after `# EOF`"):
        read(tmp_path, "A 1 2\n# EOF\n" + more)


def test_an_empty_dump_is_an_empty_table(tmp_path: Path) -> None:
    assert read(tmp_path, "# EOF\n").equals(DCGM_SERIES.empty_table())


def test_a_cut_gzip_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dcgm.om.gz"
    path.write_bytes(gzip.compress(b"A 1 2\n" * 1000 + b"# EOF\n")[:-20])
    with pytest.raises(UsageError, match=r"dcgm\.om\.gz: cannot be read"):
        read_series(path)


def test_line_numbers_go_on_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "BLOCK_BYTES", 100)
    lines = [f'A{{x="{number % 7}"}} {number} {number}.001' for number in range(1, 1000)]
    text = "\n".join(lines)
    whole = plain(read(tmp_path, f"{text}\n# EOF\n"))
    assert sum(map(len, whole.values())) == 999
    assert whole["A", (("x", "3"),)][1] == (10_001, 10.0)
    lines[641] = "A x 5"
    text = "\n".join(lines)
    with pytest.raises(UsageError, match="line 642: value 'x'"):
        read(tmp_path, f"{text}\n# EOF\n")


label_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True).filter(lambda name: name != "__name__")
metric_names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,5}", fullmatch=True)
instants = st.integers(min_value=0, max_value=2**42)
all_series = st.dictionaries(
    st.tuples(
        metric_names, st.dictionaries(label_names, label_values, max_size=3).map(lambda d: tuple(sorted(d.items())))
    ),
    st.dictionaries(instants, st.floats(allow_nan=False), min_size=1, max_size=4),
    max_size=4,
)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@settings(max_examples=150, deadline=None)
@given(all_series, st.randoms(use_true_random=False))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, series: dict[Any, dict[int, float]], random: Any
) -> None:
    lines = []
    for (metric, labels), samples in series.items():
        inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
        name = f"{metric}{{{inside}}}" if inside or random.random() < 0.5 else metric
        for instant, value in samples.items():
            gap = " " if random.random() < 0.8 else "\t "
            end = ' # {a="b"} 1' if random.random() < 0.1 else ""
            lines.append(f"{name}{gap}{value!r}{gap}{instant // 1000}.{instant % 1000:03d}{end}")
    lines += random.sample(lines, len(lines) // 2)
    random.shuffle(lines)
    folder = tmp_path_factory.mktemp("om")
    table = read(folder, "\n".join([*lines, "# EOF", ""]))
    assert plain(table) == {key: sorted(samples.items()) for key, samples in series.items()}
    assert table["metric"].to_pylist() == sorted(key[0] for key in series)


def write_parquet(path: Path, rows: list[tuple[str, dict[str, str], int, float]], unit: Any = "us") -> None:
    scale = {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    table = pa.table(
        {
            "metric": pa.array([row[0] for row in rows], pa.string()),
            "labels": pa.array([list(row[1].items()) for row in rows], pa.map_(pa.string(), pa.string())),
            "timestamp": pa.array([row[2] * scale // 1000 for row in rows], pa.timestamp(unit, "UTC")),
            "value": pa.array([row[3] for row in rows], pa.float64()),
        }
    )
    pq.write_table(table, path, row_group_size=3)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_parquet_rows_are_grouped_by_series(tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "PARQUET_ROWS", 4)
    path = tmp_path / "dcgm.parquet"
    write_parquet(
        path,
        [
            ("A", {"x": "1", "y": "2"}, 2_000_500, 2.0),
            ("B", {}, 1_000_000, math.inf),
            ("A", {"y": "2", "x": "1"}, 1_001_500, 1.0),
            ("A", {"x": "1", "y": "2", "z": ""}, 3_000_501, 3.0),
            ("A", {"x": "2", "y": "1"}, 5_000_000, 5.0),
            ("A", {"x": "1", "y": "2"}, 2_000_500, 2.0),
        ],
        unit,
    )
    assert plain(read_series(path)) == {
        ("A", (("x", "1"), ("y", "2"))): [(1_002, 1.0), (2_000, 2.0), (3_001, 3.0)],
        ("A", (("x", "2"), ("y", "1"))): [(5_000, 5.0)],
        ("B", ()): [(1_000, math.inf)],
    }


def test_parquet_and_text_of_the_same_samples_are_one_table(tmp_path: Path, cases: Path) -> None:
    table = read_series(cases / "08-blanks-and-garbage" / "dcgm.om.gz")
    rows = [
        (metric, dict(labels), instant * 1000, value)
        for (metric, labels), samples in plain(table).items()
        for instant, value in samples
    ]
    write_parquet(tmp_path / "dcgm.parquet", rows[::-1])
    assert bits(read_series(tmp_path / "dcgm.parquet")) == bits(table)


def bits(table: pa.Table) -> list[Any]:
    """A table with its values as bits: NaN is equal to itself."""
    values: Any = table["values"].combine_chunks()
    return [
        table.drop_columns(["values"]).to_pylist(),
        np.asarray(values.flatten()).view(np.int64).tolist(),
    ]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({"metric": ["A"]}), "no column `labels`"),
        (
            pa.table({"metric": ["A"], "labels": ["x"], "timestamp": [1], "value": [1.0]}),
            "`labels` is string: it must be a map",
        ),
        (
            pa.table(
                {
                    "metric": ["A"],
                    "labels": pa.array([[]], pa.map_(pa.string(), pa.string())),
                    "timestamp": pa.array([1], pa.timestamp("us")),
                    "value": [1.0],
                }
            ),
            r"`timestamp` is timestamp\[us\]: it must be an instant in UTC",
        ),
        (
            pa.table(
                {
                    "metric": ["A", "A"],
                    "labels": pa.array([[], []], pa.map_(pa.string(), pa.string())),
                    "timestamp": pa.array([1, 2], pa.timestamp("us", "UTC")),
                    "value": [1.0, None],
                }
            ),
            "row 2: `value` is null",
        ),
    ],
)
def test_a_wrong_parquet_file_is_named(tmp_path: Path, table: pa.Table, reason: str) -> None:
    pq.write_table(table, tmp_path / "dcgm.parquet")
    with pytest.raises(UsageError, match=reason):
        read_series(tmp_path / "dcgm.parquet")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "dcgm.parquet").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"dcgm\.parquet: cannot be read"):
        read_series(tmp_path / "dcgm.parquet")


def test_different_values_at_one_instant_are_kept_for_the_rule_that_decides(tmp_path: Path) -> None:
    text = "A 2 1\nA 3 1\nA 2 1\nA NaN 1\nA NaN 1\n# EOF\n"
    (row,) = read(tmp_path, text).to_pylist()
    values = row["values"]
    assert sorted(values[:2]) == [2.0, 3.0]
    assert len(values) == 3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.floats(allow_nan=False)), max_size=30),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_a_window_is_the_table_of_the_samples_in_it(
    samples: list[tuple[int, int, float]], start: int, end: int
) -> None:
    def table(kept: list[tuple[int, int, float]]) -> pa.Table:
        builder = SeriesBuilder()
        ids = np.array([builder.series("A", {"x": str(sample[0])}) for sample in kept], dtype=np.int64)
        builder.add(ids, np.array([s[1] for s in kept], dtype=np.int64), np.array([s[2] for s in kept]))
        return builder.table()

    inside = [sample for sample in samples if start <= sample[1] < end]
    assert bits(window(table(samples), start, end)) == bits(table(inside))
