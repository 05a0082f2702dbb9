"""The JSON Schemas of `contracts/v1` and the form of a policy: what they accept, what they refuse, and why."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rfc8785
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from finops_pipeline.accounting.money.ledger import booked_sums, differences
from finops_pipeline.contracts import lake
from finops_pipeline.contracts.policy import FIELDS, PolicyError, validate_policy

V1 = Path(__file__).parents[2] / "contracts" / "v1"
SCHEMAS = {path.name.removesuffix(".schema.json"): path for path in sorted(V1.glob("*.schema.json"))}
EXAMPLES = sorted((V1 / "examples").glob("*.json"))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(read(SCHEMAS[name]), format_checker=Draft202012Validator.FORMAT_CHECKER)


def named(kind: str) -> list[Path]:
    return [path for path in EXAMPLES if path.name.split(".")[1].startswith(kind)]


def test_every_contract_is_there() -> None:
    assert set(SCHEMAS) == {
        "allocation-policy-request", "allocation-policy-response", "audit-event", "error", "gpu-allocation-response",
        "gpu-samples-request", "gpu-samples-response", "providers-catalog-response", "usage-event",
    }  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_has_examples_of_both_kinds(name: str) -> None:
    schema = read(SCHEMAS[name])
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:finops-pipeline:contracts:v1:{name}"
    assert schema["additionalProperties"] is False
    assert {path.name.split(".")[1].split("-")[0] for path in EXAMPLES if path.name.startswith(f"{name}.")} == {
        "valid", "invalid"
    }  # fmt: skip


@pytest.mark.parametrize("path", named("valid"), ids=lambda path: path.stem)
def test_a_valid_example_is_accepted(path: Path) -> None:
    assert [error.message for error in validator(path.name.split(".")[0]).iter_errors(read(path))] == []


@pytest.mark.parametrize("path", named("invalid"), ids=lambda path: path.stem)
def test_an_invalid_example_is_refused_for_one_reason(path: Path) -> None:
    assert len(list(validator(path.name.split(".")[0]).iter_errors(read(path)))) == 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_required_field_may_be_left_out(name: str) -> None:
    check = validator(name)
    for path in named("valid"):
        if path.name.startswith(f"{name}."):
            document = read(path)
            for field in read(SCHEMAS[name])["required"]:
                assert not check.is_valid({key: value for key, value in document.items() if key != field}), field


@pytest.mark.parametrize(("name", "field"), [("usage-event", "content_sha256"), ("audit-event", "entry_sha256")])
def test_hashes_are_of_the_canonical_rest(name: str, field: str) -> None:
    found = [read(path) for path in named("valid") if path.name.startswith(f"{name}.")]
    assert len(found) >= 2
    for document in found:
        rest = {key: value for key, value in document.items() if key != field}
        assert document[field] == sha256(rfc8785.dumps(rest)).hexdigest()


def test_usage_event_has_the_columns_of_the_issue() -> None:
    schema = read(SCHEMAS["usage-event"])
    assert schema["required"] == list(schema["properties"])
    assert set(schema["properties"]["units"]["properties"]) == {
        "gpu_seconds", "gpu_memory_gb_seconds", "energy_wh", "storage_gb_hours", "input_tokens", "output_tokens",
        "cached_tokens",
    }  # fmt: skip


def test_what_the_ledger_books_fits_the_contract() -> None:
    tenant, hour = "a0000000-0000-4000-8000-00000000000a", datetime(2026, 10, 1, 10, tzinfo=UTC)
    base = {"cluster": "c", "hour": hour, "tenant_id": tenant, "usage_type": "gpu_local", "deployment_id": "d"}
    priced = {**base, "amount": Decimal("1.5"), "currency": "EUR", "policy_id": "p", "estimated": False}
    lines: list[dict[str, Any]] = [
        {"workload_id": "w", "gpu_model": "H100", "gpu_seconds": Decimal("3600.125")},
        {"workload_id": "storage:d", "gpu_model": None},
        {"workload_id": "idle:H100", "gpu_model": "H100", "usage_type": "gpu_idle", "deployment_id": "idle"},
    ]
    measured = {"measured_seconds": Decimal(3), "estimated_seconds": Decimal(585), "missing_seconds": Decimal(0)}
    usage: list[dict[str, Any]] = [
        {**base, **lines[0], **measured, "basis": "lifecycle", "methods": "counter=585.000;linear=585.000"},
        {**base, **lines[1], "basis": "storage", "methods": ""},
    ]
    usage_table = pa.Table.from_pylist(usage, lake.GPU_USAGE)
    whole = pa.Table.from_pylist([{**priced, **line} for line in lines], lake.GPU_COST_ALLOCATION)
    first = differences(whole, usage_table, booked_sums([]))
    reversals = differences(whole.slice(1, 1), usage_table, booked_sums(first))
    assert (len(first), len(reversals)) == (3, 2)
    for event in first + reversals:
        assert [error.message for error in validator("usage-event").iter_errors(event)] == []


# Policies (A22)

GOOD: dict[str, Any] = {
    "id": "p1", "name": "p1", "deployment_pattern": "chat-*", "gpu_model": None, "currency": "EUR",
    "gpu_hourly_cost": "2.10", "overhead_pct": "18", "energy_kwh_price": "0.21", "pue": "1.4",
    "storage_gb_month_price": "0.10", "idle_policy": "owner", "token_weights": None,
    "effective_from": "2026-01-01T00:00:00Z", "effective_to": None, "status": "active",
}  # fmt: skip


def test_a_policy_fits_the_lake_and_is_checked_again_unchanged() -> None:
    document = {**GOOD, "token_weights": {"output": "3", "input": "1"}, "effective_from": "2026-01-01T01:00:00+01:00"}
    checked = validate_policy(document, "file")
    assert list(checked) == list(FIELDS) == sorted(FIELDS, key=lake.ALLOCATION_POLICIES.names.index)
    assert checked["effective_from"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert checked["token_weights"] == '{"input":"1","output":"3"}'
    table = pa.Table.from_pylist([checked], lake.ALLOCATION_POLICIES)
    assert [validate_policy(row, "table") for row in table.to_pylist()] == [checked]


def test_only_name_pattern_and_currency_are_required() -> None:
    required = {"name", "deployment_pattern", "currency"}
    checked = validate_policy({key: GOOD[key] for key in required}, "file")
    defaults = {"idle_policy": "owner", "status": "active"}
    assert checked == dict.fromkeys(FIELDS) | {key: GOOD[key] for key in required} | defaults
    for field in required:
        with pytest.raises(PolicyError, match=rf"^file: policy \S.*: {field} "):
            validate_policy({key: value for key, value in GOOD.items() if key != field}, "file")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2.1, "2.1"),
        (7, "7"),
        (1e-7, "0.0000001"),
        (1e3, "1000"),
        (Decimal("2.10"), "2.1"),
        ("2.10", "2.10"),
        (0.0, "0"),
    ],
)
def test_numbers_are_taken_at_their_shortest_text(number: object, text: str) -> None:
    """A22."""
    assert validate_policy({**GOOD, "pue": number}, "f")["pue"] == text
    assert json.loads(
        validate_policy({**GOOD, "token_weights": {"input": number if text != "0.0000001" else 1}}, "f")[
            "token_weights"
        ]
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gpu_hourly_cost", "-2.10", "must not be negative, is '-2.10'"),
        ("gpu_hourly_cost", -2.1, "must not be negative"),
        ("gpu_hourly_cost", float("nan"), "must be a decimal string"),
        ("gpu_hourly_cost", True, "must be a decimal string"),
        ("gpu_hourly_cost", "0.0000000000001", "at most 12 decimals"),
        ("token_weights", {"input": "0.0000001"}, "token_weights.input must have at most 6 decimals"),
        ("effective_to", "2026-10-01T10:30:00Z", "must be a whole UTC hour"),
        ("pue", "1e3", "must be a decimal string"),
        ("pue", "NaN", "must be a decimal string"),
        ("pue", "1.", "must be a decimal string"),
        ("overhead_pct", "٣", "must be a decimal string"),
        ("currency", "EUX", "must be an ISO 4217 code like EUR, is 'EUX'"),
        ("currency", "eur", "must be an ISO 4217 code"),
        ("currency", None, "must be an ISO 4217 code"),
        ("currency", "XAU", "no minor unit"),
        ("effective_from", "2026-10-01T10:30:00Z", "must be a whole UTC hour"),
        ("effective_from", "2026-10-01T10:00:00+05:30", "must be a whole UTC hour"),
        ("effective_from", "2026-10-01T10:00:00", "must be a time with its zone"),
        ("effective_from", "2026-13-01T10:00:00Z", "must be a time with its zone"),
        ("effective_from", 1759312800, "must be a time with its zone"),
        ("effective_to", "2025-12-31T23:00:00Z", "must be after effective_from"),
        ("effective_to", "2026-01-01T00:00:00Z", "must be after effective_from"),
        ("idle_policy", "nobody", "must be one of owner, proportional, platform, is 'nobody'"),
        ("status", "draft", "must be one of active, retired"),
        ("deployment_pattern", "chat-[ab", "must be a glob"),
        ("deployment_pattern", "chat prod", "must be a glob"),
        ("deployment_pattern", "", "must be a text"),
        ("token_weights", {"input": "-1"}, "token_weights.input must not be negative"),
        ("token_weights", {"thinking": "1"}, "must be an object with some of input, output, cached"),
        ("token_weights", "nonsense", "must be a JSON object"),
        ("id", " p1", "must be a text without spaces"),
        ("price", "1", "is not a field of a policy"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)) as caught:
        validate_policy({**GOOD, field: value}, "allocation_policies.json")
    assert str(caught.value).startswith("allocation_policies.json: policy ")
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["*", "chat-?", "[ab]*", "[]]x", "a]b", "idle", "Модель-*"])
def test_globs(pattern: str) -> None:
    assert validate_policy({**GOOD, "deployment_pattern": pattern}, "f")["deployment_pattern"] == pattern


def test_not_an_object() -> None:
    with pytest.raises(PolicyError, match="file: a policy must be an object"):
        validate_policy([], "file")  # type: ignore[arg-type]
