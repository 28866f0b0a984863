"""The page of features has every item of the five texts that this project began with.

`described.toml` lists them: with a public name and a test, or with the reason why an item is different or absent here.
`pytest tests/docs/test_features.py --record` writes the page.
"""

from __future__ import annotations

import functools
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("described.toml")
PAGE = ROOT / "docs" / "explanation" / "features.md"
BEGIN, END = "<!-- made by tests/docs/test_features.py -->", "<!-- end -->"

TEXTS: list[dict[str, Any]] = tomllib.loads(LISTED.read_text(encoding="utf-8"))["text"]
SHOWN = [row for text in TEXTS for row in text["shown"]]


@functools.cache
def modules_of_tests() -> dict[str, list[str]]:
    """Return the modules that define each test, under its name without ``test_``."""
    modules: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def test_(\w+)", path.read_text(encoding="utf-8")):
            modules.setdefault(name, []).append(str(path.relative_to(ROOT / "tests")))
    return modules


def tables() -> str:
    lines = [line for text in TEXTS for line in section(text)]
    return "\n".join(lines)


def section(text: dict[str, Any]) -> list[str]:
    lines = [f"## {text['title']}", "", "| what the text describes | name here | shown by |", "| --- | --- | --- |"]
    for feature, name, test in text["shown"]:
        (module,) = modules_of_tests()[test]
        lines.append(f"| {feature} | `{name}` | `{module}`: `{test}` |")
    for kind, title in (("different", "Different here"), ("absent", "Not here")):
        if text.get(kind):
            lines += ["", f"**{title}**", "", "| what the text describes | why |", "| --- | --- |"]
            lines += [f"| {feature} | {reason} |" for feature, reason in text[kind]]
    return [*lines, ""]


def summary() -> str:
    counts = Counter(
        {kind: sum(len(text.get(kind, [])) for text in TEXTS) for kind in ("shown", "different", "absent")}
    )
    return (
        f"Of {counts.total()} items, {counts['shown']} work as described, {counts['different']} work differently, "
        f"and {counts['absent']} are absent.\n\n"
    )


def test_each_item_stands_in_one_place() -> None:
    for text in TEXTS:
        features = [row[0] for kind in ("shown", "different", "absent") for row in text.get(kind, [])]

        assert not [feature for feature, count in Counter(features).items() if count > 1]


@pytest.mark.parametrize("test", sorted({test for _, _, test in SHOWN}))
def test_each_item_is_shown_by_one_test(test: str) -> None:
    assert len(modules_of_tests().get(test, [])) == 1


@pytest.mark.parametrize("name", sorted({name for _, name, _ in SHOWN}))
def test_each_name_is_public(name: str) -> None:
    parts = re.fullmatch(r"(async_op\.spark|async_op\.connectors|keygroups\.spark|\w+)\.(.+)", name)
    assert parts is not None
    package, attributes = parts.groups()
    found = importlib.import_module(package)
    for attribute in attributes.split("."):
        assert not attribute.startswith("_")
        found = getattr(found, attribute)


def test_the_page_has_the_tables(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    made = f"{head}{BEGIN}\n\n{summary()}{tables()}{END}{tail}"
    if request.config.getoption("record"):
        PAGE.write_text(made, encoding="utf-8")
        return

    assert page == made
