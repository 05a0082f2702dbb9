from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import pytest

from finops_pipeline.accounting.config import CardLimit, FindingLimits, Quantity
from finops_pipeline.errors import UsageError
from finops_pipeline.settings import VARIABLES, accounting_tables, environment, load_settings

PLATFORM = "ff000000-0000-4000-8000-0000000000ff"


def test_nothing_set_gives_the_embedded_installation() -> None:
    settings = load_settings({})
    assert settings.home == Path(".finops")
    assert settings.lake_folder == Path(".finops/lake")
    assert settings.database_url is None
    assert settings.default_cluster is None
    assert settings.window_seconds == 15
    assert settings.min_coverage == Decimal("0.99")


def test_rows_without_a_cluster_belong_to_one_of_all_code_locations() -> None:
    here = {"FINOPS_PROMETHEUS_URLS": "dc2=http://a:9090", "FINOPS_ASSET_PREFIX": "dc2"}
    with pytest.raises(UsageError, match="FINOPS_ASSET_PREFIX needs FINOPS_DEFAULT_CLUSTER"):
        load_settings(here)
    assert load_settings({**here, "FINOPS_DEFAULT_CLUSTER": "dc1"}).default_cluster == "dc1"


def test_the_default_cluster_is_one_that_is_there() -> None:
    with pytest.raises(UsageError, match="FINOPS_DEFAULT_CLUSTER is 'dcl': name one of FINOPS_PROMETHEUS_URLS"):
        load_settings({"FINOPS_PROMETHEUS_URLS": "dc1=http://a:9090", "FINOPS_DEFAULT_CLUSTER": "dcl"})


def test_everything_set(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    ca = tmp_path / "ca.pem"
    ca.touch()
    settings = load_settings(
        {
            "EAI_DATABASE_URL": "postgresql://eai:s3cret@db:5432/eai",
            "EAI_CLICKHOUSE_URL": "https://u:s3cret@ch:8443/eai",
            "FINOPS_HOME": str(tmp_path),
            "FINOPS_PROMETHEUS_URLS": " dc1=http://a:9090/ , dc-2 = https://b/prom",
            "FINOPS_PROMETHEUS_TOKEN_FILE": str(token),
            "FINOPS_PROMETHEUS_CA_FILE": str(ca),
            "FINOPS_PROMETHEUS_TIMEOUT_SECONDS": "30",
            "FINOPS_PROMETHEUS_THANOS": "true",
            "FINOPS_LAKE_URL": f"file://{tmp_path}/far",
            "FINOPS_PLATFORM_TENANT": PLATFORM,
            "FINOPS_WINDOW_SECONDS": "60",
            "FINOPS_MIN_COVERAGE": "0.95",
            "UNRELATED": "x",
        }
    )
    assert dict(settings.prometheus_urls) == {"dc1": "http://a:9090", "dc-2": "https://b/prom"}
    assert settings.default_cluster == "dc1"
    assert settings.prometheus_thanos is True
    assert settings.prometheus_timeout_seconds == 30
    assert settings.lake_folder == tmp_path / "far"
    assert settings.platform_tenant == UUID(PLATFORM)
    first = settings.bearer_token()
    assert first is not None
    assert first.get_secret_value() == "first"
    token.write_text("renewed")
    renewed = settings.bearer_token()
    assert renewed is not None
    assert renewed.get_secret_value() == "renewed"


@pytest.mark.parametrize(
    ("text", "place"),
    [("s3://bucket", "s3://bucket"), ("s3://my-bucket.1/a/b c/", "s3://my-bucket.1/a/b c"), ("far", Path("far"))],
)
def test_the_lake_is_in_a_folder_or_in_a_bucket(text: str, place: Path | str) -> None:
    assert load_settings({"FINOPS_LAKE_URL": text}).lake_folder == place


def test_secrets_are_in_no_repr() -> None:
    settings = load_settings(
        {
            "EAI_DATABASE_URL": "postgresql://eai:s3cret@db/eai",
            "EAI_CLICKHOUSE_URL": "https://u:s3cret@ch:8443/eai",
            "FINOPS_PROMETHEUS_USER": "reader",
            "FINOPS_PROMETHEUS_PASSWORD": "s3cret",
        }
    )
    assert "s3cret" not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("FINOPS_WINDOW_SECONDS", "7", "divide 3600"),
        ("FINOPS_WINDOW_SECONDS", "0", "greater than or equal to 1"),
        ("FINOPS_WINDOW_SECONDS", "quarter", "valid integer"),
        ("FINOPS_PLATFORM_TENANT", "platform", "valid UUID"),
        ("FINOPS_PROMETHEUS_URLS", "http://a:9090", "`cluster=url`"),
        ("FINOPS_PROMETHEUS_URLS", "dc1=a:9090", "https://prometheus.example"),
        ("FINOPS_PROMETHEUS_URLS", "dc1=http://a,dc1=http://b", "`dc1` is there twice"),
        ("FINOPS_PROMETHEUS_URLS", "d c=http://a", "letters, digits"),
        ("FINOPS_PROMETHEUS_THANOS", "perhaps", "boolean"),
        ("FINOPS_PROMETHEUS_TIMEOUT_SECONDS", "-1", "greater than or equal to 1"),
        ("FINOPS_PROMETHEUS_CA_FILE", "no/such.pem", "a file that exists"),
        ("FINOPS_CONFIG", "no/such.toml", "a file that exists"),
        ("FINOPS_LAKE_URL", "gs://bucket/lake", "a folder, or s3://bucket/prefix"),
        ("FINOPS_LAKE_URL", "s3://", "a bucket's name being 3 to 63"),
        ("FINOPS_LAKE_URL", "s3://My_Bucket/lake", "a bucket's name being 3 to 63"),
        ("FINOPS_LAKE_URL", "s3://bucket/a//b", "names with one `/` between them"),
        ("FINOPS_LAKE_URL", "s3://bucket/../b", "names with one `/` between them"),
        ("FINOPS_LAKE_URL", "s3://bucket/lake?region=eu", "without `?` and `#`"),
        ("FINOPS_MIN_COVERAGE", "1.5", "less than or equal to 1"),
        ("FINOPS_MIN_COVERAGE", "NaN", "finite"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_variable_and_what_is_expected(
    variable: str, text: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings({variable: text})
    message = str(caught.value)
    assert message.startswith(f"{variable} is {text!r}: expected ")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("EAI_DATABASE_URL", "mysql://eai:s3cret@db/eai"),
        ("EAI_DATABASE_URL", "postgresql://eai:s3cret@db:port/eai"),
        ("EAI_CLICKHOUSE_URL", "tcp://eai:s3cret@ch/eai"),
        ("FINOPS_PROMETHEUS_URLS", "dc1=http://eai:s3cret@a:9090"),
        ("FINOPS_LAKE_URL", "s3://AKID:s3cret@bucket/lake"),
        ("FINOPS_LAKE_URL", "s3://AKID:a/s3cret@bucket/lake"),
    ],
)
def test_a_wrong_value_with_a_secret_is_not_shown(variable: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings({variable: text})
    assert str(caught.value).startswith(f"{variable} is ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"FINOPS_PROMETHEUS_USER": "u"},
        {"FINOPS_PROMETHEUS_PASSWORD": "s3cret"},
        {"FINOPS_PROMETHEUS_TOKEN": "s3cret", "FINOPS_PROMETHEUS_USER": "u", "FINOPS_PROMETHEUS_PASSWORD": "s3cret"},
        {"FINOPS_PROMETHEUS_TOKEN": "s3cret", "FINOPS_PROMETHEUS_TOKEN_FILE": __file__},
    ],
)
def test_settings_that_do_not_fit_together(given: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(given)
    assert "FINOPS_PROMETHEUS_" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_misspelt_variable_is_refused_and_a_foreign_one_is_not() -> None:
    load_settings({"FINOPS_PORT_9090_TCP_ADDR": "10.0.0.1", "FINOPS_SERVICE_HOST": "10.0.0.1"})
    with pytest.raises(
        UsageError, match=r"FINOPS_PROMETHEUS_URL is not a setting: did you mean FINOPS_PROMETHEUS_URLS\?"
    ):
        load_settings({"FINOPS_PROMETHEUS_URL": "dc1=http://a"})


def test_dotenv_lies_under_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("FINOPS_WINDOW_SECONDS=30\nFINOPS_HOME=from-dotenv\n")
    monkeypatch.setenv("FINOPS_HOME", "from-environment")
    monkeypatch.delenv("FINOPS_WINDOW_SECONDS", raising=False)
    settings = load_settings(environment(tmp_path))
    assert settings.window_seconds == 30
    assert settings.home == Path("from-environment")


def test_the_accounting_takes_the_tables_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "finops.toml"
    file.write_text(
        """
        [models]
        "NVIDIA H100 80GB HBM3" = "H100-80GB"
        [card_limits]
        "NVIDIA H100 80GB HBM3" = {power_w = 700, memory_gb = 79.5}
        [class_watts]
        h100-vm = 650.1
        [class_fraction]
        "H100-1g.10gb" = "1/7"
        [mig_slices]
        NEW = 8
        [metrics]
        MY_POWER = {quantity = "power", factor = 1}
        [labels]
        node = ["host"]
        workload = [["ns", "p", "c"]]
        """
    )
    config = load_settings({"FINOPS_CONFIG": str(file), "FINOPS_PLATFORM_TENANT": PLATFORM.upper()}).accounting()
    assert config.platform_tenant == PLATFORM
    assert config.platform_model("NVIDIA H100 80GB HBM3") == "H100-80GB"
    assert config.limit("H100-80GB") == CardLimit(Decimal(700), Decimal("79.5"))
    assert config.watts("h100-vm") == Decimal("650.1")
    assert config.fraction("H100-1g.10gb") == Fraction(1, 7)
    assert (config.slices("NEW"), config.slices("A30"), config.slices("other")) == (8, 4, 7)
    assert config.metrics["MY_POWER"] == (Quantity.POWER, 1)
    assert "DCGM_FI_DEV_FB_USED" in config.metrics
    assert config.labels.node == ("host",)
    assert config.labels.workload == (("ns", "p", "c"),)
    assert config.labels.uuid == ("UUID", "uuid")


def test_without_a_platform_tenant_there_is_no_accounting() -> None:
    with pytest.raises(UsageError, match="FINOPS_PLATFORM_TENANT is not set"):
        load_settings({}).accounting()


@pytest.mark.parametrize(
    ("raw", "entry"),
    [
        ({"modells": {}}, "[modells]"),
        ({"models": []}, "[models]"),
        ({"models": {"x": 1}}, "[models] x"),
        ({"card_limits": {"x": 700}}, "[card_limits] x"),
        ({"card_limits": {"x": {"power_w": -1}}}, "[card_limits] x.power_w"),
        ({"card_limits": {"x": {"power": 1}}}, "[card_limits] x"),
        ({"class_watts": {"x": "many"}}, "[class_watts] x"),
        ({"class_watts": {"x": float("inf")}}, "[class_watts] x"),
        ({"class_fraction": {"x": "8/7"}}, "[class_fraction] x"),
        ({"class_fraction": {"x": "1/0"}}, "[class_fraction] x"),
        ({"class_fraction": {"x": 0.25}}, "[class_fraction] x"),
        ({"mig_slices": {"x": 0}}, "[mig_slices] x"),
        ({"metrics": {"x": {"quantity": "heat", "factor": 1}}}, "[metrics] x"),
        ({"metrics": {"x": {"quantity": "power", "factor": 0}}}, "[metrics] x"),
        ({"labels": {"host": ["x"]}}, "[labels] host"),
        ({"labels": {"workload": [["ns", "pod"]]}}, "[labels] workload"),
        ({"labels": {"workload": "pod"}}, "[labels] workload"),
        ({"honor_labels": "yes"}, "honor_labels = 'yes'"),
        ({"honor_labels": True, "labels": {"honor_labels": False}}, "honor_labels = True"),
        ({"honor_labels": True, "labels": ["pod"]}, "[labels]"),
        ({"labels": {"honor_labels": 1}}, "[labels] honor_labels"),
        ({"findings": {"idle": 1}}, "[findings] idle"),
        ({"findings": {"idle_utilization": 1.5}}, "[findings] idle_utilization"),
        ({"findings": {"idle_minutes": 0}}, "[findings] idle_minutes"),
        ({"findings": {"idle_minutes": 2.5}}, "[findings] idle_minutes"),
        ({"findings": {"failure_words": "xid"}}, "[findings] failure_words"),
    ],
)
def test_a_wrong_table_is_one_line_with_file_and_entry(raw: dict[str, object], entry: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"bundle.toml: {entry}")) as caught:
        accounting_tables(raw, "bundle.toml")
    assert "\n" not in str(caught.value)


def test_honor_labels_lets_only_namespace_and_pod_name_the_workload() -> None:
    labels = accounting_tables({"honor_labels": True, "labels": {"node": ["host"]}}, "bundle.toml")["labels"]
    assert labels.groups() == (("namespace", "pod", "container"),)
    assert labels.node == ("host",)
    assert accounting_tables({"labels": {"honor_labels": True}}, "bundle.toml")["labels"].honor_labels
    assert len(accounting_tables({"honor_labels": False}, "bundle.toml")["labels"].groups()) == 3


def test_the_limits_of_findings() -> None:
    tables = {"idle_utilization": 0.05, "idle_minutes": 45, "failure_words": ["Xid", "ECC"]}
    limits = accounting_tables({"findings": tables}, "bundle.toml")["findings"]
    assert limits == FindingLimits(Decimal("0.05"), 45, failure_words=("xid", "ecc"))


def test_usage_without_prices() -> None:
    known = {"FINOPS_PLATFORM_TENANT": PLATFORM}
    assert load_settings(known).accounting().priced
    assert not load_settings(known | {"FINOPS_PRICING": "off"}).accounting().priced
    with pytest.raises(UsageError, match="FINOPS_PRICING is 'no'"):
        load_settings({"FINOPS_PRICING": "no"})


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "finops.toml"
    file.write_text("[models]\nx = \n")
    with pytest.raises(UsageError, match=r"finops.toml: not valid TOML: .*line 2"):
        load_settings({"FINOPS_CONFIG": str(file), "FINOPS_PLATFORM_TENANT": PLATFORM}).accounting()


def test_the_readme_documents_every_variable() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`((?:EAI|FINOPS)_[A-Z_]+)`", readme))
    assert documented >= set(VARIABLES), json.dumps(sorted(set(VARIABLES) - documented))
