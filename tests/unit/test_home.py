"""What an installation's folder remembers: the demo, and the first hour."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finops_pipeline.errors import UsageError
from finops_pipeline.resources.home import FILE, LONG_AGO, begin_now, first_hour, remember_first_hour
from finops_pipeline.settings import environment, load_settings

TEN = datetime(2026, 10, 1, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FINOPS_HOME")


def test_a_folder_without_a_demo_remembers_none(tmp_path: Path) -> None:
    assert "FINOPS_BUNDLE" not in environment()
    (tmp_path / ".finops").mkdir()
    assert "FINOPS_BUNDLE" not in environment()


def test_a_folder_with_the_demo_is_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".finops" / "demo").mkdir(parents=True)
    assert load_settings(environment()).bundle == Path(".finops/demo")
    monkeypatch.setenv("FINOPS_HOME", str(tmp_path / "elsewhere"))
    assert load_settings(environment()).bundle is None
    monkeypatch.setenv("FINOPS_HOME", str(tmp_path / ".finops"))
    assert load_settings(environment()).bundle == tmp_path / ".finops" / "demo"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FINOPS_BUNDLE", "mine"),
        ("FINOPS_PROMETHEUS_URLS", "a=http://a:9090"),
        ("EAI_DATABASE_URL", "postgresql://u@h/d"),
        ("FINOPS_LAKE_URL", "s3://bucket"),
    ],
)
def test_whoever_names_something_else_does_not_mean_the_demo(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".finops" / "demo").mkdir(parents=True)
    monkeypatch.setenv(variable, value)
    assert environment().get("FINOPS_BUNDLE") == (value if variable == "FINOPS_BUNDLE" else None)
    monkeypatch.delenv(variable)
    (tmp_path / ".env").write_text(f"{variable}={value}\n")
    assert environment().get("FINOPS_BUNDLE") == (value if variable == "FINOPS_BUNDLE" else None)


def test_the_first_hour_is_stated_remembered_or_the_bundles(cases: Path, tmp_path: Path) -> None:
    environ = {"FINOPS_HOME": str(tmp_path)}
    assert first_hour(environ) == LONG_AGO
    bundle = {"FINOPS_BUNDLE": str(cases / "01-shared-server-70-30")}
    assert first_hour(environ | bundle) == TEN
    assert first_hour(environ | {"FINOPS_BUNDLE": "nowhere"}) == LONG_AGO
    remember_first_hour(load_settings(environ), datetime(2019, 3, 5, 7, tzinfo=UTC))
    assert first_hour(environ | bundle) == datetime(2019, 3, 5, 7, tzinfo=UTC)
    stated = {"FINOPS_FIRST_HOUR": "2026-09-01T00:00Z"}
    assert first_hour(environ | bundle | stated) == datetime(2026, 9, 1, tzinfo=UTC)


def test_only_an_earlier_hour_is_remembered(tmp_path: Path) -> None:
    settings = load_settings({"FINOPS_HOME": str(tmp_path / "home")})
    remember_first_hour(settings, TEN)
    remember_first_hour(settings, TEN.replace(day=2))
    assert (tmp_path / "home" / FILE).read_text() == "2026-10-01T10:00Z\n"
    remember_first_hour(settings, TEN.replace(month=8))
    assert (tmp_path / "home" / FILE).read_text() == "2026-08-01T10:00Z\n"
    stated = load_settings({"FINOPS_HOME": str(tmp_path / "other"), "FINOPS_FIRST_HOUR": "2026-01-01"})
    remember_first_hour(stated, TEN)
    assert not (tmp_path / "other").exists(), "what is stated needs no memory"


def test_a_new_installation_begins_with_the_month_before(cases: Path, tmp_path: Path) -> None:
    environ = {"FINOPS_HOME": str(tmp_path / "home")}
    begin_now(load_settings(environ), datetime(2027, 1, 15, 8, 30, tzinfo=UTC))
    assert first_hour(environ) == datetime(2026, 12, 1, tzinfo=UTC)
    begin_now(load_settings(environ), datetime(2026, 10, 15, 8, 30, tzinfo=UTC))
    assert first_hour(environ) == datetime(2026, 12, 1, tzinfo=UTC), "only a new one"
    bundle = {"FINOPS_HOME": str(tmp_path / "other"), "FINOPS_BUNDLE": str(cases / "01-shared-server-70-30")}
    begin_now(load_settings(bundle), TEN)
    assert not (tmp_path / "other").exists(), "a bundle says when it begins"


@pytest.mark.parametrize("text", ["soon", "2026-10-01T10:30Z", "2026-13-01"])
def test_a_first_hour_that_is_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"FINOPS_FIRST_HOUR is .* expected a whole UTC hour"):
        first_hour({"FINOPS_FIRST_HOUR": text})
    with pytest.raises(UsageError, match=r"FINOPS_FIRST_HOUR is .* expected a whole UTC hour"):
        load_settings({"FINOPS_FIRST_HOUR": text})
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=f"{FILE}: a whole UTC hour"):
        first_hour({"FINOPS_HOME": str(tmp_path)})


def test_dagsters_partitions_begin_with_the_month_of_the_first_hour() -> None:
    code = (
        "from finops_pipeline.assets.hours import HOURS, MONTHS\n"
        "print(HOURS.get_first_partition_key(), MONTHS.get_first_partition_key())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "FINOPS_FIRST_HOUR": "2026-10-14T07:00Z"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["2026-10-01-00:00", "2026-10-01"]
