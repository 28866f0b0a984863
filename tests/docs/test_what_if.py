"""Each row of the tables that promise something names tests, and they exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
PAGES = ("explanation/what-if.md", "explanation/security.md", "howto/upgrade.md")
SHOWN_BY = "shown by"


def rows(page: str) -> Iterator[list[str]]:
    """Return the cells of each row of the tables whose last column names tests."""
    is_of_interest = False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if not line.startswith("| "):
            is_of_interest = False
        elif cells[-1] == SHOWN_BY:
            is_of_interest = True
        elif is_of_interest and cells[0] != "---":
            yield cells


@cache
def sentences(module: str) -> set[str]:
    """Return the names of a module's tests as they read."""
    tree = ast.parse((ROOT / "tests" / module).read_text(encoding="utf-8"))
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name.removeprefix("test_").replace("_", " ") for name in functions if name.startswith("test_")}


PROMISES = [pytest.param(row[-1], id=f"{page}: {row[0]}") for page in PAGES for row in rows(page)]


@pytest.mark.parametrize("shown_by", PROMISES)
def test_a_row_is_shown_by_tests_that_exist(shown_by: str) -> None:
    named = re.findall(r"`([\w/]+\.py)`: ([^`]+)", shown_by)

    assert named
    for module, names in named:
        assert {name.strip() for name in names.strip("; ").split(";")} <= sentences(module)


@pytest.mark.parametrize("page", PAGES)
def test_no_situation_stands_there_twice(page: str) -> None:
    situations = [row[0] for row in rows(page)]
    assert len(situations) == len(set(situations)) > 5
