"""The documents name what exists: files, the functions in them, and each other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("accounting", "assets", "commands", "contracts", "deploy", "docs", "finops_pipeline", "resources", "tests")
SPAN = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`(?: \(`(\w+)`\))?")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def located(name: str) -> Path:
    """A path of the repository, or of the package."""
    path = ROOT / name
    return path if path.exists() else ROOT / "finops_pipeline" / name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_paths_and_functions_of_a_document_exist(document: Path) -> None:
    missing = []
    for name, function in SPAN.findall(document.read_text(encoding="utf-8")):
        path = located(name)
        if not path.exists():
            missing.append(name)
        elif function and not re.search(
            rf"^ *(?:def|class) {function}\b", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            missing.append(f"{name}: {function}")
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_document_is_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCUMENTS if path.name != "README.md" and path.name not in readme] == []


def test_every_rung_and_finding_is_documented() -> None:
    from finops_pipeline.accounting.findings.kinds import Kind
    from finops_pipeline.accounting.telemetry.windows import RUNGS

    rules = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert [rung.name for rung in RUNGS if f"`{rung.name.lower()}`" not in rules] == []
    assert [kind.code for kind in Kind if f"| `{kind.code}` |" not in findings] == []


def test_every_table_of_the_lake_is_listed() -> None:
    from finops_pipeline.contracts.lake import TABLES

    lake = (ROOT / "docs" / "lake.md").read_text(encoding="utf-8")
    assert [table for table in TABLES if f"`{table}`" not in lake] == []
