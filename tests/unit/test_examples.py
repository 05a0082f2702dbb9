"""The examples in the docstrings of the accounting give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

from finops_pipeline import accounting


def has_examples(name: str) -> bool:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return any(test.examples for test in finder.find(importlib.import_module(name), name))


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(accounting.__path__, f"{accounting.__name__}.")
    if has_examples(module.name)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"np": np})
    assert result.failed == 0


def test_there_are_examples_of_the_steps_of_a17() -> None:
    assert {f"finops_pipeline.accounting.holding.{step}" for step in ("labelled", "gaps", "dropped")} <= set(MODULES)
