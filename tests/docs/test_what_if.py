"""Each row of "what happens if …" names tests, and they exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "what-if.md"


def rows() -> list[list[str]]:
    """Return the cells of each row below a heading."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return [cells for cells in table if cells[0] not in ("if …", "---")]


@cache
def sentences(module: str) -> set[str]:
    """Return the names of a module's tests as they read."""
    tree = ast.parse((ROOT / "tests" / module).read_text(encoding="utf-8"))
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name.removeprefix("test_").replace("_", " ") for name in functions if name.startswith("test_")}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_shown_by_tests_that_exist(row: list[str]) -> None:
    _, _, _, shown_by = row
    named = re.findall(r"`([\w/]+\.py)`: ([^`]+)", shown_by)

    assert named
    for module, names in named:
        assert {name.strip() for name in names.strip("; ").split(";")} <= sentences(module)


def test_no_situation_stands_there_twice() -> None:
    situations = [row[0] for row in rows()]
    assert len(situations) == len(set(situations)) > 20
