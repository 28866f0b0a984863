"""The code of the documentation, run as it stands.

pytest tests/docs --record      puts what the terminal sessions print now into the pages
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.docs.pages import LANGUAGES, ROOT, Page, commands, normalised
from tests.docs.services import services_for

DOCS = ROOT / "docs"
NEEDS = {
    r"^\$ .*\bkeygroups ": r"keygroups\[[^]]*\bcli\b",
    r"\bDiskStateBackend\(": r"keygroups\[[^]]*\bdisk\b",
    r"\bKafkaS(ource|ink)\(": r"keygroups\[[^]]*\bkafka\b",
    r"\bDeltaSink\(|import deltalake": r"keygroups\[[^]]*\bdelta\b",
    r"\bIcebergSink\(": r"keygroups\[[^]]*\biceberg\b",
    r"uri\W+sqlite:": r"pyiceberg\[sql-sqlite]",
    r"\bPostgresSink\(|import psycopg": r"keygroups\[[^]]*\bpostgres\b",
    r"(from|import) prometheus_client": r"keygroups\[[^]]*\bprometheus\b",
    r"(from|import) pyspark": r"keygroups\[[^]]*\bspark\b",
    r"SnapshotStore\(f?.s3://": r"keygroups\[[^]]*\bs3\b",
    **{rf"(from|import) {name}\b": rf"\b{name}\b" for name in ("aiohttp", "asyncpg", "duckdb", "pandas", "valkey")},
}
"""What code on a page uses, and what its reader must have been told to install for that."""


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name objects of Python."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def leaves(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case dict():
            for part in nav.values():
                yield from leaves(part)
        case list():
            for part in nav:
                yield from leaves(part)


NAV = [*leaves(yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"])]
# The other pages are made when the site is built; tests/notebooks runs the code of notebooks.
WRITTEN = [name for name in NAV if not name.startswith("notebooks/") and name != "reference/errors-by-name.md"]
PAGES = [
    pytest.param(path, id=name, marks=pytest.mark.spark if "import SparkSession" in path.read_text() else ())
    for name, path in ((name, DOCS / name) for name in WRITTEN)
]


def _in_a_quick_run(page: Any) -> Any:
    """Mark a page with terminal sessions as thorough: each command starts a program."""
    is_slow = "```console" in page.values[0].read_text(encoding="utf-8")
    return pytest.param(*page.values, id=page.id, marks=pytest.mark.thorough if is_slow else ())


@pytest.mark.parametrize("path", [_in_a_quick_run(page) for page in PAGES if not page.marks])
def test_the_code_of_the_page_runs(path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    page = Page(path)
    record = pytestconfig.getoption("record")
    with TemporaryDirectory() as folder, services_for(page.text) as environment:
        monkeypatch.chdir(folder)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        page.run(record=record)
        monkeypatch.undo()
    if record:
        page.write()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(*page.values, id=page.id, marks=() if page.id == "tutorial-spark.md" else pytest.mark.thorough)
        for page in PAGES
        if page.marks
    ],
)
def test_the_code_of_the_page_runs_with_spark(path: Path, java: None, pytestconfig: pytest.Config) -> None:
    """In a process of its own, because the JVM stays in the folder in which it was started."""
    options = ["--record"] if pytestconfig.getoption("record") else []
    settings = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with TemporaryDirectory() as folder, services_for(path.read_text(encoding="utf-8")) as environment:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.docs.pages", str(path), *options],
            cwd=folder,
            env=os.environ | settings | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1000,
        )

    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("path", PAGES)
def test_every_block_is_run_or_said_to_be_text(path: Path) -> None:
    blocks = [(block.lexemes["language"], str(block.lexemes["source"])) for block in Page(path).blocks()]

    assert [language for language, _ in blocks if language not in LANGUAGES] == []
    # What only the reader's machine can run is `sh`; the project's own command is not that.
    assert [
        text for language, text in blocks if language == "sh" and re.search("^keygroups ", text, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_names_the_packages_that_its_code_needs(path: Path) -> None:
    page = Page(path)
    code = "\n".join(block.lexemes["source"] for block in page.blocks() if block.lexemes["language"] != "text")
    told = "\n".join(re.findall("pip install .*", page.text))
    needed = [name for use, name in NEEDS.items() if re.search(use, code, re.MULTILINE)]

    assert [name for name in needed if not re.search(name, told)] == []


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```python\n1 / 0\n```\n", "division by zero"),
        ("```console\n$ echo one\ntwo\n```\n", "and not"),
        ("```console\n$ false\n```\n", "exit code 1"),
        ('```python title="wrong.py"\n1 / 0\n```\n\n```console\n$ python wrong.py\n```\n', "ZeroDivisionError"),
    ],
)
def test_a_page_that_is_wrong_fails(
    block: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(block)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(Exception, match=complaint):
        Page(tmp_path / "page.md").run(record=False)


def test_a_session_is_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("before\n\n```console\n$ echo one\n$ echo two; echo three\nfour\n```\n\nafter\n")
    monkeypatch.chdir(tmp_path)
    page = Page(tmp_path / "page.md")

    page.run(record=True)
    page.write()

    assert page.path.read_text() == (
        "before\n\n```console\n$ echo one\none\n$ echo two; echo three\ntwo\nthree\n```\n\nafter\n"
    )


def test_what_differs_from_run_to_run_is_not_compared() -> None:
    assert normalised("│ bytes │ 1,442 │ in 14.1 ms") == normalised("│ bytes   │ 99,171 │ in 3 s")
    assert normalised("2 min 1 s ago, 0.5/s, 1,234.5/min") == normalised("14.1 s ago, 12.0/s, 3.0/min")
    assert normalised("rows 3") != normalised("rows 4")
    assert [command.output for command in commands("$ one\nout\nput\n$ two\n")] == ["out\nput", ""]
