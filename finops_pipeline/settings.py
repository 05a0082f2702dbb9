"""Every setting of the pipeline, typed, from the environment and `.env`.

What belongs here: names, types, defaults and limits of the settings, and the tables of accounting.md section 2
as TOML writes them (`FINOPS_CONFIG`, `bundle.toml`). What does not: connecting to anything, and the meaning of
the tables, which is `finops_pipeline.accounting.config`.

A wrong value is one `UsageError` line that names the variable, the value (never a secret) and what is expected.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit
from uuid import UUID

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from finops_pipeline.accounting.config import AccountingConfig, CardLimit, FindingLimits, LabelNames, Quantity
from finops_pipeline.errors import UsageError

CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOME: Final = ".finops"
OTHER_SOURCES: Final = ("FINOPS_BUNDLE", "FINOPS_PROMETHEUS_URLS", "EAI_DATABASE_URL", "FINOPS_LAKE_URL")
"""Where one of them is set, the demo is not meant: it brings its own bundle, database and lake."""
BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def load_settings(environ: Mapping[str, str]) -> Settings:
    """The settings that `environ` (variable -> text) gives; empty texts are as good as absent.

    Reads the files that the variables name (`FINOPS_CONFIG`, `FINOPS_PROMETHEUS_TOKEN_FILE`) and nothing else.
    Raises `UsageError` on the first value that is wrong, and on a variable that is nearly one of ours (a typing error).
    """
    _refuse_misspelt(environ)
    given = {name: text.strip() for name, text in environ.items() if name in VARIABLES and text.strip()}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise UsageError(_one_line(error, given)) from None


def environment(folder: Path | None = None) -> dict[str, str]:
    """The process's environment over the `.env` file of `folder` (default: the current one), if there is one.

    A FINOPS_HOME that holds the demo remembers it: its bundle is the source unless something else is named.
    """
    dotenv = {name: text for name, text in dotenv_values((folder or Path()) / ".env").items() if text is not None}
    given = dotenv | dict(os.environ)
    return given | _of_the_demo(given)


def demo_folder(home: Path) -> Path:
    """Where the demo's bundle lies in a FINOPS_HOME; it is there once the demo was run."""
    return home / "demo"


def _of_the_demo(given: Mapping[str, str]) -> dict[str, str]:
    if any(given.get(name, "").strip() for name in OTHER_SOURCES):
        return {}
    folder = demo_folder(Path(given.get("FINOPS_HOME", "").strip() or HOME))
    return {"FINOPS_BUNDLE": str(folder)} if folder.is_dir() else {}


def whole_hour(text: str) -> datetime:
    """A whole UTC hour, like `2026-10-01T00:00Z`; ValueError with what is expected."""
    expected = "a whole UTC hour like 2026-10-01T00:00Z"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(expected) from None
    instant = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    if instant != instant.replace(minute=0, second=0, microsecond=0):
        raise ValueError(expected)
    return instant


def _web_address(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("an address like https://prometheus.example:9090")
    if url.username or url.password:
        raise ValueError("an address without a user or password; set FINOPS_PROMETHEUS_USER and _PASSWORD")
    return text.rstrip("/")


def _cluster(text: str) -> str:
    if not CLUSTER_NAME.fullmatch(text):
        raise ValueError("letters, digits, `.`, `_`, `-`, as in a cluster's name")
    return text


def _clusters(text: object) -> object:
    if not isinstance(text, str):
        return text
    clusters: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, url = (piece.strip() for piece in part.partition("="))
        if not equals or not CLUSTER_NAME.fullmatch(name):
            raise ValueError("`cluster=url`, comma separated, a cluster's name being letters, digits, `.`, `_`, `-`")
        if name in clusters:
            raise ValueError(f"each cluster once; `{name}` is there twice")
        clusters[name] = _web_address(url)
    return clusters


def _secret_url(schemes: frozenset[str], example: str) -> AfterValidator:
    def check(secret: SecretStr) -> SecretStr:
        try:
            url = urlsplit(secret.get_secret_value())
            _ = url.port
        except ValueError:
            raise ValueError(f"an address like {example}") from None
        if url.scheme not in schemes:
            raise ValueError(f"an address like {example}")
        return secret

    return AfterValidator(check)


def _bucket(text: str) -> str:
    bucket, _, prefix = text.removeprefix("s3://").rstrip("/").partition("/")
    if "@" in text:
        raise ValueError("an address without keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if not BUCKET_NAME.fullmatch(bucket):
        raise ValueError("s3://bucket/prefix, a bucket's name being 3 to 63 small letters, digits, `.`, `-`")
    if prefix and (not {"", ".", ".."}.isdisjoint(prefix.split("/")) or "?" in prefix or "#" in prefix):
        raise ValueError("s3://bucket/prefix, the prefix being names with one `/` between them, without `?` and `#`")
    return text.rstrip("/")


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError("a file that exists")
    return path


DatabaseUrl = Annotated[
    SecretStr,
    _secret_url(
        frozenset({"postgresql", "postgres", "postgresql+psycopg"}), "postgresql://user:password@host:5432/eai"
    ),
]
ClickHouseUrl = Annotated[
    SecretStr, _secret_url(frozenset({"http", "https"}), "https://user:password@clickhouse.example:8443/eai")
]
Webhook = Annotated[SecretStr, _secret_url(frozenset({"http", "https"}), "https://hooks.example/services/finops")]
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
Share = Annotated[Decimal, Field(ge=0, le=1)]


class Settings(BaseModel):
    """All settings. A field's alias is its variable, its description is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    database_url: DatabaseUrl | None = Field(
        None, alias="EAI_DATABASE_URL", description="Postgres; without it a private one runs under FINOPS_HOME"
    )
    clickhouse_url: ClickHouseUrl | None = Field(
        None, alias="EAI_CLICKHOUSE_URL", description="ClickHouse for the replica of the usage events"
    )
    clickhouse_ca_file: ExistingFile | None = Field(
        None, alias="EAI_CLICKHOUSE_CA_FILE", description="certificates that sign ClickHouse's own, PEM"
    )
    replica: Literal["on", "off", "auto"] = Field(
        "auto",
        alias="FINOPS_REPLICA",
        description="the ClickHouse replica: `on` after every run, `auto` so if EAI_CLICKHOUSE_URL is set, or `off`",
    )
    home: Path = Field(
        Path(HOME),
        alias="FINOPS_HOME",
        description="folder of the lake, the embedded Postgres and Dagster's storage",
    )
    prometheus_urls: Annotated[Mapping[str, str], BeforeValidator(_clusters)] = Field(
        default_factory=dict,
        alias="FINOPS_PROMETHEUS_URLS",
        description="`cluster=url`, comma separated; the first is the default cluster",
    )
    stated_default_cluster: Annotated[str, AfterValidator(_cluster)] | None = Field(
        None,
        alias="FINOPS_DEFAULT_CLUSTER",
        description="the cluster that rows without one belong to, if not the first; the same in all code locations",
    )
    asset_prefix: Annotated[str, AfterValidator(_cluster)] | None = Field(
        None,
        alias="FINOPS_ASSET_PREFIX",
        description="goes before the asset keys, where several code locations share a Dagster",
    )
    prometheus_token: SecretStr | None = Field(
        None, alias="FINOPS_PROMETHEUS_TOKEN", description="bearer token for Prometheus"
    )
    prometheus_token_file: ExistingFile | None = Field(
        None, alias="FINOPS_PROMETHEUS_TOKEN_FILE", description="file with the bearer token, read at each run"
    )
    prometheus_user: str | None = Field(
        None, alias="FINOPS_PROMETHEUS_USER", description="user for basic authentication"
    )
    prometheus_password: SecretStr | None = Field(
        None, alias="FINOPS_PROMETHEUS_PASSWORD", description="password for basic authentication"
    )
    prometheus_ca_file: ExistingFile | None = Field(
        None, alias="FINOPS_PROMETHEUS_CA_FILE", description="certificates that sign Prometheus' own, PEM"
    )
    prometheus_timeout_seconds: int = Field(
        120, alias="FINOPS_PROMETHEUS_TIMEOUT_SECONDS", ge=1, le=3600, description="limit of one query"
    )
    prometheus_patience_seconds: int = Field(
        600,
        alias="FINOPS_PROMETHEUS_PATIENCE_SECONDS",
        ge=0,
        le=3600,
        description="how long a Prometheus that cannot answer (it restarts and replays its log) is asked again",
    )
    prometheus_thanos: bool = Field(
        default=False,
        alias="FINOPS_PROMETHEUS_THANOS",
        description="the address is Thanos: ask for raw, deduplicated data and no partial answers",
    )
    lake_url: str | None = Field(
        None,
        alias="FINOPS_LAKE_URL",
        description="folder of the Parquet lake, or s3://bucket/prefix; `lake` under FINOPS_HOME by default",
    )
    platform_tenant: UUID | None = Field(
        None,
        alias="FINOPS_PLATFORM_TENANT",
        description="tenant that idle capacity is booked to (A27); live runs need it",
    )
    first_hour: Annotated[datetime, BeforeValidator(whole_hour)] | None = Field(
        None,
        alias="FINOPS_FIRST_HOUR",
        description="the installation's first hour: its month is the first in the UI; FINOPS_HOME remembers the first "
        "that was computed",
    )
    pricing: Literal["on", "off"] = Field(
        "on",
        alias="FINOPS_PRICING",
        description="`off`: usage is accounted, closed and stated without any policy, and nothing is unpriced",
    )
    window_seconds: int = Field(
        15, alias="FINOPS_WINDOW_SECONDS", ge=1, description="length of a sample window (A11); divides 3600"
    )
    config: ExistingFile | None = Field(
        None, alias="FINOPS_CONFIG", description="TOML file with the tables of the accounting"
    )
    bundle: Path | None = Field(
        None,
        alias="FINOPS_BUNDLE",
        description="folder of a bundle: its files are the sources, instead of Prometheus and the platform's tables",
    )
    webhook_url: Webhook | None = Field(
        None,
        alias="FINOPS_WEBHOOK_URL",
        description="where held but idle GPUs are told, as JSON by POST; may hold a token",
    )
    production: bool = Field(
        default=False,
        alias="FINOPS_PRODUCTION",
        description="refuse a database login that could get around row-level security (superuser, BYPASSRLS)",
    )
    min_coverage: Share = Field(
        Decimal("0.99"),
        alias="FINOPS_MIN_COVERAGE",
        description="share of device time that must be known before a month is final (A33)",
    )
    anchor_file: Path | None = Field(
        None,
        alias="FINOPS_ANCHOR_FILE",
        description="the audit log's anchor, best on a machine that the database's owner cannot write; "
        "`audit.anchor` under FINOPS_HOME by default",
    )
    max_estimated: Share = Field(
        Decimal("0.10"),
        alias="FINOPS_MAX_ESTIMATED",
        description="share of device time that may be estimated before a run counts as incomplete (exit code 3)",
    )

    @field_validator("window_seconds")
    @classmethod
    def _divides_the_hour(cls, seconds: int) -> int:
        if 3600 % seconds:
            raise ValueError("whole seconds that divide 3600")
        return seconds

    @field_validator("lake_url")
    @classmethod
    def _folder_or_bucket(cls, text: str | None) -> str | None:
        if text and text.startswith("s3://"):
            return _bucket(text)
        if text and "://" in text and not text.startswith("file://"):
            raise ValueError("a folder, or s3://bucket/prefix")
        return text

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        if self.prometheus_token and self.prometheus_token_file:
            raise ValueError("FINOPS_PROMETHEUS_TOKEN and FINOPS_PROMETHEUS_TOKEN_FILE are both set: keep one")
        if (self.prometheus_token or self.prometheus_token_file) and self.prometheus_user:
            raise ValueError("FINOPS_PROMETHEUS_USER is set beside a token: keep one of the two")
        if bool(self.prometheus_user) != bool(self.prometheus_password):
            raise ValueError("FINOPS_PROMETHEUS_USER and FINOPS_PROMETHEUS_PASSWORD go together: set both")
        if (
            self.stated_default_cluster
            and not self.asset_prefix
            and self.stated_default_cluster not in self.prometheus_urls
        ):
            raise ValueError(
                f"FINOPS_DEFAULT_CLUSTER is {self.stated_default_cluster!r}: name one of FINOPS_PROMETHEUS_URLS"
                f" ({', '.join(self.prometheus_urls)}); another location's cluster only beside FINOPS_ASSET_PREFIX"
            )
        if self.asset_prefix and not self.stated_default_cluster:
            raise ValueError(
                "FINOPS_ASSET_PREFIX needs FINOPS_DEFAULT_CLUSTER, the same in all code locations: else rows without a"
                " cluster would be charged by each of them"
            )
        return self

    @property
    def lake_folder(self) -> Path | str:
        """The lake's folder, or its `s3://bucket/prefix`."""
        if self.lake_url and self.lake_url.startswith("s3://"):
            return self.lake_url
        return Path(self.lake_url.removeprefix("file://")) if self.lake_url else self.home / "lake"

    @property
    def anchor_path(self) -> Path:
        """The audit log's anchor file."""
        return self.anchor_file or self.home / "audit.anchor"

    @property
    def default_cluster(self) -> str | None:
        """The cluster that rows without one belong to."""
        return self.stated_default_cluster or next(iter(self.prometheus_urls), None)

    def bearer_token(self) -> SecretStr | None:
        """The token, read afresh from its file where one is named: a service account's token is renewed in place."""
        if self.prometheus_token_file is None:
            return self.prometheus_token
        try:
            return SecretStr(self.prometheus_token_file.read_text(encoding="utf-8").strip())
        except OSError as error:
            raise UsageError(
                f"FINOPS_PROMETHEUS_TOKEN_FILE: cannot read {self.prometheus_token_file}: {error.strerror}"
            ) from None

    def accounting(self) -> AccountingConfig:
        """The accounting's configuration: these settings and the tables of `FINOPS_CONFIG`.

        Raises `UsageError` if the platform tenant is not set or the file is wrong.
        """
        if self.platform_tenant is None:
            raise UsageError(
                "FINOPS_PLATFORM_TENANT is not set: idle capacity needs a tenant to be booked to, set its uuid"
            )
        tables = accounting_tables(read_toml(self.config), str(self.config)) if self.config else {}
        return AccountingConfig(
            platform_tenant=str(self.platform_tenant),
            window_seconds=self.window_seconds,
            priced=self.pricing == "on",
            **tables,
        )


VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {str(field.alias): name for name, field in Settings.model_fields.items()}
)
"""Variable -> name of the field."""


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file; `UsageError` with the line if it is broken or cannot be read."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


HONOR_LABELS: Final = "honor_labels"
"""The one setting of the accounting that is a key of the document, not a table."""


def accounting_tables(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The tables of accounting.md section 2 as arguments of `AccountingConfig`; only those that `raw` has.

    `raw` is a parsed TOML document (see `docs/configuration.md`); `where` names the file in errors.
    Keys that are no tables of the accounting are an error.
    """
    raw = _with_honor_labels(raw, where)
    unknown = sorted(set(raw) - set(_TABLES))
    if unknown:
        raise UsageError(f"{where}: [{unknown[0]}] is not a table of the accounting: {', '.join(_TABLES)}")
    return {name: read(_Table(where, name, raw[name])) for name, read in _TABLES.items() if name in raw}


def _with_honor_labels(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The key `honor_labels` of the document is one of its table `labels` (A8)."""
    if HONOR_LABELS not in raw:
        return raw
    rest = {name: table for name, table in raw.items() if name != HONOR_LABELS}
    labels = rest.get("labels", {})
    if not isinstance(labels, dict):
        return rest
    if not isinstance(raw[HONOR_LABELS], bool) or HONOR_LABELS in labels:
        raise UsageError(f"{where}: {HONOR_LABELS} = {raw[HONOR_LABELS]!r}: expected true or false, once")
    return rest | {"labels": {**labels, HONOR_LABELS: raw[HONOR_LABELS]}}


class _Table:
    """One TOML table with its place, so that an error can name the entry."""

    def __init__(self, where: str, name: str, raw: object) -> None:
        self.name = name
        self.where = where
        if not isinstance(raw, dict):
            raise UsageError(f"{where}: [{name}] is {raw!r}, a table was expected")
        self.raw: dict[str, Any] = raw

    def wrong(self, key: str, value: object, expected: str) -> UsageError:
        return UsageError(f"{self.where}: [{self.name}] {key} = {value!r}: expected {expected}")

    def entries(self) -> Iterator[tuple[str, Any]]:
        yield from self.raw.items()

    def text(self, key: str, value: object, expected: str = "a text") -> str:
        if not isinstance(value, str) or not value:
            raise self.wrong(key, value, expected)
        return value

    def amount(self, key: str, value: object) -> Decimal:
        """A decimal that is not negative. A TOML float is read by its shortest digits."""
        expected = "a number that is not negative"
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.wrong(key, value, expected)
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            raise self.wrong(key, value, expected) from None
        if not number.is_finite() or number < 0:
            raise self.wrong(key, value, expected)
        return number


def _models(table: _Table) -> dict[str, str]:
    return {key: table.text(key, value, "the platform's name of the model") for key, value in table.entries()}


def _card_limits(table: _Table) -> dict[str, CardLimit]:
    limits: dict[str, CardLimit] = {}
    for model, value in table.entries():
        if not isinstance(value, dict) or not set(value) <= {"power_w", "memory_gb"}:
            raise table.wrong(model, value, "{power_w = watts, memory_gb = GB}")
        limits[model] = CardLimit(**{key: table.amount(f"{model}.{key}", number) for key, number in value.items()})
    return limits


def _class_watts(table: _Table) -> dict[str, Decimal]:
    return {key: table.amount(key, value) for key, value in table.entries()}


def _class_fraction(table: _Table) -> dict[str, Fraction]:
    fractions: dict[str, Fraction] = {}
    for key, value in table.entries():
        expected = 'a fraction above 0 and at most 1, like "1/7"'
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise table.wrong(key, value, expected)
        try:
            fraction = Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise table.wrong(key, value, expected) from None
        if not 0 < fraction <= 1:
            raise table.wrong(key, value, expected)
        fractions[key] = fraction
    return fractions


def _mig_slices(table: _Table) -> dict[str, int]:
    for key, value in table.entries():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
            raise table.wrong(key, value, "a whole number of slices, 1 to 64")
    return dict(table.raw)


def _metrics(table: _Table) -> dict[str, tuple[Quantity, int]]:
    names = {quantity.name.lower(): quantity for quantity in Quantity}
    expected = f"{{quantity = one of {', '.join(names)}, factor = whole number}}"
    metrics = dict(AccountingConfig(platform_tenant="").metrics)
    for metric, value in table.entries():
        if not isinstance(value, dict) or set(value) != {"quantity", "factor"} or value["quantity"] not in names:
            raise table.wrong(metric, value, expected)
        factor = value["factor"]
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
            raise table.wrong(metric, value, expected)
        metrics[metric] = (names[value["quantity"]], factor)
    return metrics


def _labels(table: _Table) -> LabelNames:
    known = {field.name: getattr(LabelNames(), field.name) for field in fields(LabelNames)}
    chosen: dict[str, Any] = {}
    for key, value in table.entries():
        if key not in known:
            raise table.wrong(key, value, f"one of {', '.join(known)}")
        if isinstance(known[key], bool):
            if not isinstance(value, bool):
                raise table.wrong(key, value, "true or false")
            chosen[key] = value
        elif isinstance(known[key], str):
            chosen[key] = table.text(key, value)
        elif key == "workload":
            chosen[key] = tuple(_names(table, key, group, 3) for group in value)
        else:
            chosen[key] = _names(table, key, value)
    return LabelNames(**chosen)


def _findings(table: _Table) -> FindingLimits:
    known = {field.name: getattr(FindingLimits(), field.name) for field in fields(FindingLimits)}
    chosen: dict[str, Any] = {}
    for key, value in table.entries():
        if key not in known:
            raise table.wrong(key, value, f"one of {', '.join(known)}")
        if isinstance(known[key], Decimal):
            chosen[key] = table.amount(key, value)
            if chosen[key] > 1:
                raise table.wrong(key, value, "a share from 0 to 1")
        elif isinstance(known[key], int):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 3600:
                raise table.wrong(key, value, "a whole number from 1 to 3600")
            chosen[key] = value
        else:
            words = _names(table, key, value, what="words")
            chosen[key] = tuple(word.lower() for word in words)
    return FindingLimits(**chosen)


def _names(
    table: _Table, key: str, value: object, count: int | None = None, what: str = "label names"
) -> tuple[str, ...]:
    expected = f"a list of {count or ''} {what}".replace("  ", " ")
    if not isinstance(value, list) or not value or (count and len(value) != count):
        raise table.wrong(key, value, expected)
    return tuple(table.text(key, name, expected) for name in value)


_TABLES: Final = MappingProxyType(
    {
        "models": _models,
        "card_limits": _card_limits,
        "class_watts": _class_watts,
        "class_fraction": _class_fraction,
        "mig_slices": _mig_slices,
        "metrics": _metrics,
        "labels": _labels,
        "findings": _findings,
    }
)


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """A variable that is one or two letters off would be ignored in silence. (Kubernetes sets `FINOPS_PORT_...`.)"""
    for name in sorted(environ):
        if name.startswith(("FINOPS_", "EAI_")) and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.9)
            if near:
                raise UsageError(f"{name} is not a setting: did you mean {near[0]}?")


def _one_line(error: ValidationError, given: Mapping[str, str]) -> str:
    """The first problem as `VARIABLE is 'value': expected ...`."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    variable = str(first["loc"][0])
    secret = "SecretStr" in str(Settings.model_fields[VARIABLES[variable]].annotation)
    value = "not shown here" if secret else repr(re.sub(r"//[^@,]*@", "//***@", given[variable]))
    expected = message if first["type"] == "value_error" else message[0].lower() + message[1:]
    return f"{variable} is {value}: expected {expected.removeprefix('input should be ')}"
