"""The map in ARCHITECTURE.md: it names every module once, and nothing that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("keygroups", "snapshots", "async_op")
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def modules() -> set[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.stem != "__init__")
    return {str(path.relative_to(ROOT)) for path in paths}


def modules_on_the_map() -> Iterator[str]:
    folder = ""
    for line in TEXT.splitlines():
        if heading := re.match(r"### `([^`]+/)`: ", line):
            folder = heading[1]
        elif line.startswith("#"):
            folder = ""
        elif folder and (module := re.match(r"- `(\w+)`: ", line)):
            yield f"{folder}{module[1]}.py"


def answers() -> list[tuple[str, str]]:
    return re.findall(r"^\| .+\? \| `([^`]+)` \| `([^`]+)` \|$", TEXT, re.MULTILINE)


def names_defined_in(path: Path) -> set[str]:
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, definitions)}


def test_the_map_names_every_module_once_and_no_other() -> None:
    assert sorted(modules_on_the_map()) == sorted(modules())


def test_a_stranger_has_ten_questions_answered() -> None:
    assert len(answers()) >= 10


@pytest.mark.parametrize(("file", "name"), answers())
def test_the_answer_to_a_question_is_in_the_file_that_it_names(file: str, name: str) -> None:
    assert name in names_defined_in(ROOT / file)


def test_every_path_that_is_named_exists() -> None:
    paths = re.findall(r"`([\w.]+(?:/[\w.]+)*/(?:[\w-]+\.\w+)?)`", TEXT)

    def exists(path: str) -> bool:
        return any((ROOT / root / path).exists() for root in ("", *PACKAGES))

    assert [path for path in paths if not exists(path)] == []


def test_a_module_in_brackets_exists() -> None:
    in_brackets = re.findall(r"\(((?:`[\w/]+`(?:, )?)+)\)", TEXT)
    named = {name.rstrip("/") for names in in_brackets for name in re.findall(r"`([^`]+)`", names)}

    ends = {path.removesuffix(".py") for path in modules()} | {str(Path(path).parent) for path in modules()}
    assert named
    assert {name for name in named if not any(f"/{end}".endswith(f"/{name}") for end in ends)} == set()


def test_no_line_is_a_paragraph() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 150] == []
