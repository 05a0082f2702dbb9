"""The rules' own text: whatever is cited exists, every rule has an example, and the examples' arithmetic is right."""

import ast
import re
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
RULES = range(1, 37)
SECTIONS = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
BY_NUMBER = {int(match[1]): section for section in SECTIONS if (match := re.match(r"A(\d+) \S", section))}
CITED = re.compile(r"\bA([1-9]\d?)\b")
EQUATIONS = re.findall(r"`([-0-9.()+x/ ]+) (=|≈) (-?[0-9.]+)`", TEXT.replace("\n", " "))


def value(expression: str) -> Fraction:
    """The value of a formula of numbers, `+ - x /` and brackets, exactly."""

    def of(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=str(digits)):
                return Fraction(digits)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.BinOp(left=left, op=op, right=right):
                first, second = of(left), of(right)
                match op:
                    case ast.Add():
                        return first + second
                    case ast.Sub():
                        return first - second
                    case ast.Mult():
                        return first * second
                    case ast.Div():
                        return first / second
        raise ValueError(expression)

    quoted = re.sub(r"[0-9.]+", lambda number: repr(number[0]), expression.replace("x", "*"))
    return of(ast.parse(quoted, mode="eval").body)


def test_every_rule_has_one_heading() -> None:
    assert sorted(BY_NUMBER) == list(RULES)
    assert len(SECTIONS) == len(BY_NUMBER)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_an_example_with_numbers(rule: int) -> None:
    _, found, example = BY_NUMBER[rule].partition("*Example.*")
    assert found
    assert re.search(r"\d", example)


@pytest.mark.parametrize("folder", ["finops_pipeline", "tests", "docs"])
def test_every_cited_rule_exists(folder: str) -> None:
    """Folders of the repository that are linked into `finops_pipeline` are read through the links."""
    cited: dict[int, str] = {}
    files = [path for path in _files(ROOT / folder) if path.suffix in {".py", ".sql", ".md", ".json"}]
    for path in files:
        for number in CITED.findall(path.read_text(encoding="utf-8")):
            cited.setdefault(int(number), str(path.relative_to(ROOT)))
    assert cited
    assert {number: path for number, path in cited.items() if number not in BY_NUMBER} == {}


def _files(folder: Path) -> list[Path]:
    """All files below, links followed (Python 3.11's rglob does not)."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name == "data":
            continue
        found += _files(path) if path.is_dir() else [path]
    return found


def test_the_examples_recompute() -> None:
    wrong = []
    for expression, sign, result in EQUATIONS:
        exact = value(expression)
        if sign == "≈":
            places = Decimal(1).scaleb(-len(result.partition(".")[2]))
            ratio = Decimal(exact.numerator) / Decimal(exact.denominator)
            holds = ratio.quantize(places, ROUND_HALF_EVEN) == Decimal(result)
        else:
            holds = exact == Fraction(result)
        if not holds:
            wrong.append(f"{expression} {sign} {result}")
    assert len(EQUATIONS) > 50
    assert not wrong


def test_lines_can_be_read() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 120] == []
