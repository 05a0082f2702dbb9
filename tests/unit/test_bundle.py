"""A bundle is read exactly, or refused with file, row, column and value."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finops_pipeline.contracts.lake import TABLES
from finops_pipeline.errors import UsageError
from finops_pipeline.resources.bundle.files import GIVEN_POLICIES, Bundle, instant_ms

TENANT = "a0000000-0000-4000-8000-00000000000a"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
SETTINGS = f"""
cluster = "dc1-gpu"
from = "2026-10-01T10:00:00Z"
to = 2026-10-01T14:00:00+02:00
now = "2026-10-03T00:00:00.0005Z"
window_seconds = 60
platform_tenant = "{PLATFORM.upper()}"

[models]
"NVIDIA H100 80GB HBM3" = "H100"
[card_limits]
H100 = {{power_w = 700, memory_gb = 79.6}}
[class_watts]
vm = 62.5
[class_fraction]
"H100-1g" = "1/7"
"""
EVENTS = (
    "event_id,occurred_at,workload_id,tenant_id,deployment_id,namespace,pod,from_state,to_state,"
    "gpu_count,placed_class,node,gpu_uuids,reason\n"
)
DEPLOYMENTS = "deployment_id,mode,owner_tenant_id,namespace,pod_pattern,model\n"
TOKENS = "event_id,occurred_at,tenant_id,deployment_id,input_tokens,output_tokens,cached_tokens\n"
STORAGE = "deployment_id,size_gb,valid_from,valid_to\n"
POLICY = {
    "id": "p1",
    "name": "p1",
    "deployment_pattern": "*",
    "gpu_model": None,
    "currency": "EUR",
    "gpu_hourly_cost": "2.10",
    "overhead_pct": 18,
    "energy_kwh_price": "0.21",
    "pue": "1.4",
    "storage_gb_month_price": "0.10",
    "idle_policy": "owner",
    "token_weights": {"output": "4", "input": "1", "cached": "0.1"},
    "effective_from": "2026-01-01T00:00:00Z",
    "effective_to": None,
    "status": "active",
}


Make = Callable[..., Bundle]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a bundle's files (name -> text) and opens it."""

    def write(settings: str = SETTINGS, **files: str) -> Bundle:
        (tmp_path / "bundle.toml").write_text(settings, encoding="utf-8")
        for name, text in files.items():
            ending = "json" if name == "allocation_policies" else "csv"
            (tmp_path / f"{name}.{ending}").write_text(text, encoding="utf-8")
        return Bundle.open(tmp_path)

    return write


def test_settings_are_read(make: Make, tmp_path: Path) -> None:
    bundle = make()
    assert (bundle.folder, bundle.cluster, bundle.window_seconds) == (tmp_path, "dc1-gpu", 60)
    assert (bundle.start, bundle.end) == (datetime(2026, 10, 1, 10, tzinfo=UTC), datetime(2026, 10, 1, 12, tzinfo=UTC))
    assert bundle.now == datetime(2026, 10, 3, tzinfo=UTC)
    assert bundle.platform_tenant == PLATFORM
    config = bundle.accounting()
    assert config.models == {"NVIDIA H100 80GB HBM3": "H100"}
    assert config.limit("H100").memory_gb == Decimal("79.6")
    assert config.watts("vm") == Decimal("62.5")
    assert config.fraction("H100-1g") == Fraction(1, 7)
    assert (config.window_seconds, config.platform_tenant) == (60, PLATFORM)


def test_a_bundle_may_say_that_its_scrape_jobs_honor_labels(make: Make) -> None:
    assert make("honor_labels = true\n" + SETTINGS).accounting().labels.honor_labels
    assert not make().accounting().labels.honor_labels


def test_what_is_optional_has_defaults(make: Make) -> None:
    bundle = make('cluster = "c"\nfrom = 2026-10-01T10:00:00Z\nto = 2026-10-01T11:00:00Z\n')
    assert (bundle.now, bundle.window_seconds, bundle.platform_tenant, bundle.tables) == (None, 15, None, {})
    assert bundle.accounting().platform_tenant == "00000000-0000-0000-0000-000000000000"
    assert bundle.accounting("11111111-1111-4111-8111-111111111111").platform_tenant.startswith("1111")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('cluster = "dc1-gpu"', "", "`cluster` is missing"),
        ('cluster = "dc1-gpu"', 'cluster = "dc1 gpu"', "cluster = 'dc1 gpu': expected a name"),
        ('cluster = "dc1-gpu"', "cluster = 7", "cluster = 7: expected a name"),
        ("T10:00:00Z", "T10:00:01Z", "from = '2026-10-01T10:00:01Z': expected a whole UTC hour"),
        ("T10:00:00Z", "T10:00:00+05:30", "expected a whole UTC hour"),
        ("T10:00:00Z", "T10:00:00", "from = '2026-10-01T10:00:00': expected an RFC 3339 time"),
        ("T14:00:00+02:00", "T14:00:00", "to = 2026-10-01T14:00:00: expected an RFC 3339 time"),
        ("2026-10-01T14:00:00+02:00", "2026-10-01", "to = 2026-10-01: expected an RFC 3339 time"),
        ("T14:00:00+02:00", "T12:00:00+02:00", "expected a time after `from`"),
        ("window_seconds = 60", "window_seconds = 7", "window_seconds = 7: expected whole seconds that divide 3600"),
        ("window_seconds = 60", "window_seconds = true", "window_seconds = True: expected"),
        ("window_seconds = 60", "window_seconds = 0", "window_seconds = 0: expected"),
        (PLATFORM.upper(), "ff", "platform_tenant = 'ff': expected a uuid"),
        ("window_seconds = 60", "window_second = 60", "unknown key `window_second`"),
        ("[class_watts]", "[class_watt]", r"\[class_watt\] is not a table"),
        ("vm = 62.5", 'vm = "much"', r"\[class_watts\] vm = 'much'"),
        ("power_w = 700", "power = 700", r"\[card_limits\] H100 = "),
        ('"1/7"', '"1/0"', r"\[class_fraction\] H100-1g = '1/0'"),
        ("[models]", "[models", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(make: Make, old: str, new: str, reason: str) -> None:
    assert old in SETTINGS
    with pytest.raises(UsageError, match=rf"bundle\.toml: .*{reason}"):
        make(SETTINGS.replace(old, new, 1))


def test_a_folder_without_settings_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a bundle: it has no bundle\.toml"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize("name", ["workload_event.csv", "Deployments.csv", "allocation_policy.json", "dcgm.om.gzip"])
def test_a_misspelt_file_is_not_a_missing_one(make: Make, tmp_path: Path, name: str) -> None:
    make()
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=f"{name}: is not a file of a bundle: did you mean"):
        Bundle.open(tmp_path)


def test_missing_files_are_tables_without_rows(make: Make) -> None:
    bundle = make()
    tables = bundle.platform()
    assert sorted(tables) == [
        "allocation_policies",
        "deployment_storage",
        "deployments",
        "gpu_inventory",
        "token_usage",
        "workload_events",
    ]
    schemas = TABLES | {"allocation_policies": GIVEN_POLICIES}
    assert all(table.equals(schemas[name].empty_table()) for name, table in tables.items())
    assert bundle.series().equals(TABLES["dcgm_series"].empty_table())


def test_two_dumps_are_one_too_many(make: Make, tmp_path: Path) -> None:
    bundle = make()
    for name in ("dcgm.om", "dcgm.parquet"):
        (tmp_path / name).write_text("# EOF\n")
    with pytest.raises(UsageError, match=r"has dcgm\.om and dcgm\.parquet: keep one"):
        bundle.series()


def test_rows_are_read_exactly(make: Make) -> None:
    tables = make(
        workload_events=EVENTS
        + f"e1,2026-10-01T10:00:00.0005Z,w,{TENANT.upper()},,,,,running,0.142857143,A,,GPU-a; GPU-b/3;,\n"
        + f'e2,2026-10-01T12:00:00.0015+02:00,w,{TENANT},d,n,p,running,"sto""p,ped",,A,n1,GPU-c,"two\nlines"\n'
        + f"e2,2026-10-01t10:00:00z,w,{TENANT},d,n,p,running,running,-1,,,,\n",
        token_usage="\ufeff" + TOKENS + f"t1,2026-10-01T10:01:00Z,{TENANT},d,10,-1,9223372036854775807\n",
        deployments=f"model,deployment_id,mode,owner_tenant_id,namespace,pod_pattern\r\n,d,shared,{TENANT},n,d-*\r\n",
        deployment_storage=STORAGE + "d,123456789.000000001,2026-10-01T10:30:00Z,\n",
        gpu_inventory="cluster,node,gpu_uuid,model,valid_from,valid_to\n"
        "dc1-gpu,n1,GPU-a,H100,2026-01-01T00:00:00Z,\n"
        "other,n9,GPU-z,H100,2026-01-01T00:00:00Z,\n"
        ",n2,GPU-b,H100,2026-01-01T00:00:00Z,2026-10-02T00:00:00Z\n",
        allocation_policies=json.dumps([POLICY]),
    ).platform()
    schemas = TABLES | {"allocation_policies": GIVEN_POLICIES}
    assert all(table.schema.equals(schemas[name]) for name, table in tables.items())
    first, second, third = tables["workload_events"].to_pylist()
    assert first | {"occurred_at": None} == {
        "event_id": "e1",
        "occurred_at": None,
        "workload_id": "w",
        "tenant_id": TENANT,
        "deployment_id": None,
        "namespace": None,
        "pod": None,
        "from_state": None,
        "to_state": "running",
        "gpu_count": Decimal("0.142857143"),
        "placed_class": "A",
        "node": None,
        "gpu_uuids": ["GPU-a", "GPU-b/3"],
        "reason": None,
    }
    ten = datetime(2026, 10, 1, 10, tzinfo=UTC)
    assert [row["occurred_at"] for row in (first, second, third)] == [ten, ten.replace(microsecond=2000), ten]
    assert (second["to_state"], second["gpu_count"], second["reason"]) == ('sto"p,ped', None, "two\nlines")
    assert (third["gpu_count"], third["gpu_uuids"], third["from_state"]) == (Decimal(-1), None, "running")
    assert tables["token_usage"].to_pylist()[0]["cached_tokens"] == 9223372036854775807
    assert tables["deployments"].to_pylist()[0]["pod_pattern"] == "d-*"
    assert tables["deployment_storage"].to_pylist()[0]["size_gb"] == Decimal("123456789.000000001")
    assert tables["gpu_inventory"]["gpu_uuid"].to_pylist() == ["GPU-a", "GPU-b"]
    assert tables["gpu_inventory"]["valid_to"].to_pylist() == [None, datetime(2026, 10, 2, tzinfo=UTC)]
    (policy,) = tables["allocation_policies"].to_pylist()
    assert policy["token_weights"] == '{"cached":"0.1","input":"1","output":"4"}'
    assert (policy["overhead_pct"], policy["gpu_hourly_cost"]) == ("18", "2.10")
    assert policy["effective_from"] == datetime(2026, 1, 1, tzinfo=UTC)


GOOD_EVENT = f"e,2026-10-01T10:00:00Z,w,{TENANT},,,,,running,1,,,,\n"
BAD_ROWS = [
    ("workload_events", EVENTS, GOOD_EVENT.replace("T10:00:00Z", "T10:00:00"), "column occurred_at: '2026-10-01T10:00:00'"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("T10:00:00Z", "T25:00:00Z"), "column occurred_at: '2026-10-01T25:00:00Z'"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("2026-10-01T", "2026-02-29T"), "column occurred_at: '2026-02-29T"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("T10:00:00Z", ""), "column occurred_at: '2026-10-01'"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("00Z", "00+25:00"), "column occurred_at: '2026-10-01T10:00:00.25:00'"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("2026-10-01T10:00:00Z", ""), "column occurred_at: '': expected a value"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(TENANT, "acme"), "column tenant_id: 'acme': expected a uuid"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(TENANT, ""), "column tenant_id: '': expected a value"),
    ("workload_events", EVENTS, GOOD_EVENT.replace("e,", ",", 1), "column event_id: '': expected a value"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(",1,", ",one,"), "column gpu_count: 'one': expected a number"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(",1,", ",NaN,"), "column gpu_count: 'NaN': expected a number"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(",1,", ",0.1428571428,"), "at most 9 decimals"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(",1,", ",1e99,"), "column gpu_count: '1e99'"),
    ("workload_events", EVENTS, GOOD_EVENT.replace(",1,", ",1,,"), "has 15 fields of 14"),
    ("deployments", DEPLOYMENTS, f"d,both,{TENANT},,,\n", "column mode: 'both': expected dedicated or shared"),
    ("deployments", DEPLOYMENTS, "d,shared,x,,,\n", "column owner_tenant_id: 'x': expected a uuid"),
    ("token_usage", TOKENS, f"t,2026-10-01T10:00:00Z,{TENANT},d,1.0,0,0\n", "column input_tokens: '1.0': expected a whole"),
    ("token_usage", TOKENS, f"t,2026-10-01T10:00:00Z,{TENANT},d,1,,0\n", "column output_tokens: '': expected a value"),
    ("token_usage", TOKENS, f"t,2026-10-01T10:00:00Z,{TENANT},d,1,9223372036854775808,0\n", "column output_tokens"),
    ("deployment_storage", STORAGE, "d,-1,2026-10-01T10:00:00Z,\n", "column size_gb: '-1': .* not negative"),
]  # fmt: skip
GOOD_ROWS = {
    "workload_events": GOOD_EVENT,
    "deployments": f"d,shared,{TENANT},,,\n",
    "token_usage": f"t,2026-10-01T10:00:00Z,{TENANT},d,1,0,0\n",
    "deployment_storage": "d,1,2026-10-01T10:00:00Z,\n",
}


@pytest.mark.parametrize(("table", "header", "row", "reason"), BAD_ROWS)
def test_a_wrong_value_is_named(make: Make, table: str, header: str, row: str, reason: str) -> None:
    good = GOOD_ROWS[table]
    assert make(**{table: header + good + good}).platform()[table].num_rows == 2
    with pytest.raises(UsageError, match=rf"{table}\.csv: row 3(,|:) .*{reason}"):
        make(**{table: header + good + row + good}).platform()


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (DEPLOYMENTS.replace("mode,", "modus,"), "unknown column 'modus'"),
        (DEPLOYMENTS.replace("mode,", ""), "column 'mode' is missing"),
        (DEPLOYMENTS.replace("mode,", "mode,mode,"), "column 'mode' is there twice"),
        ("", "unknown column ''"),
        (DEPLOYMENTS.replace("model", "cluster"), "unknown column 'cluster'"),
    ],
)
def test_a_wrong_header_is_named(make: Make, header: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"deployments\.csv: row 1: {reason}: expected deployment_id, mode"):
        make(deployments=header).platform()


def test_a_csv_file_that_is_not_utf8_is_named(make: Make, tmp_path: Path) -> None:
    bundle = make()
    (tmp_path / "deployments.csv").write_bytes(DEPLOYMENTS.encode() + f"d\xe9,shared,{TENANT},,,\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"deployments\.csv: cannot be read as CSV in UTF-8"):
        bundle.platform()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_hourly_cost": "-1"}, "policy p1: gpu_hourly_cost must not be negative, is '-1'"),
        ({"gpu_hourly_cost": True}, "gpu_hourly_cost must be a decimal string"),
        ({"pue": "1,4"}, "pue must be a decimal string"),
        ({"pue": "1.0000000000001"}, "pue must have at most 12 decimals"),
        ({"currency": "EURO"}, "currency must be an ISO 4217 code"),
        ({"effective_to": "2026-01-01T00:30:00Z"}, "effective_to must be a whole UTC hour"),
        ({"deployment_pattern": "[a"}, "deployment_pattern must be a glob"),
        ({"token_weights": {"input": 0.1234567}}, "token_weights.input must have at most 6 decimals"),
        ({"price": "1"}, "price is not a field of a policy"),
        ({"name": None}, "name must be a text"),
    ],
)
def test_a_wrong_policy_is_named(make: Make, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=rf"allocation_policies\.json: .*{reason}"):
        make(allocation_policies=json.dumps([POLICY | change])).platform()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("7", "expected a list of policies"),
        ("[1]", "a policy must be an object"),
        ("[", "is not valid JSON"),
        ('[{"id": "a", "id": "b"}]', "key 'id' is there twice"),
        (json.dumps([POLICY, POLICY]), "policy p1: the id is there twice"),
    ],
)
def test_a_wrong_policy_file_is_named(make: Make, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"allocation_policies\.json: .*{reason}"):
        make(allocation_policies=text).platform()


@given(
    st.integers(-62_000_000_000_000, 250_000_000_000_000),
    st.text("0123456789", max_size=20),
    st.integers(-1439, 1439),
    st.sampled_from("Tt "),
)
def test_instants_round_half_even(whole: int, digits: str, offset: int, separator: str) -> None:
    seconds = whole // 1000
    local = datetime.fromtimestamp(0, UTC).timestamp() + seconds + offset * 60
    try:
        text = datetime.fromtimestamp(local, UTC).strftime(f"%Y-%m-%d{separator}%H:%M:%S").rjust(19, "0")
    except (ValueError, OverflowError):
        return
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    exact = Fraction(seconds) * 1000 + (Fraction(int(digits) * 1000, 10 ** len(digits)) if digits else 0)
    assert instant_ms(text + (f".{digits}" if digits else "") + zone) == round(exact)


@pytest.mark.parametrize("common", [True, False])
def test_both_ways_to_read_times_agree(make: Make, common: bool) -> None:
    fractions = ["", ".5", ".0005", ".0015", ".000500001", ".9995", ".9985", ".123456789", ".0004999"]
    times = [
        f"2026-10-01T10:00:0{second}{fraction}{zone}"
        for second, fraction in enumerate(fractions)
        for zone in ("Z", "+01:30")
    ]
    rows = "".join(f"t{n},{time},{TENANT},d,1,1,1\n" for n, time in enumerate(times))
    odd = "" if common else f"t,2026-10-01t10:00:00z,{TENANT},d,1,1,1\n"
    found = make(token_usage=TOKENS + rows + odd).platform()["token_usage"]["occurred_at"].to_pylist()
    expected = [
        datetime.fromtimestamp(instant_ms(time) // 1000, UTC).replace(microsecond=instant_ms(time) % 1000 * 1000)
        for time in times
    ]
    assert found[: len(times)] == expected


def test_every_case_can_be_read(cases: Path) -> None:
    folders = sorted(path.parent for path in cases.glob("*/bundle.toml"))
    assert len(folders) >= 24
    for folder in folders:
        bundle = Bundle.open(folder)
        tables = bundle.platform()
        for name, table in tables.items():
            path = folder / f"{name}.csv"
            if path.exists():
                assert table.num_rows == len(path.read_text().splitlines()) - 1
        assert bundle.accounting().platform_tenant == PLATFORM
        bundle.series()
