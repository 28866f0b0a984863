"""The site, built as `make docs` builds it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import typer

import async_op
import async_op.connectors
import async_op.testing
import keygroups
import snapshots
from snapshots.cli.app import app

pytestmark = pytest.mark.thorough
"""A build takes a quarter of a minute, and `make docs` builds as strictly."""

DOCUMENTED = [keygroups, async_op, async_op.connectors, async_op.testing, snapshots]


@pytest.mark.parametrize("package", DOCUMENTED, ids=lambda package: package.__name__)
def test_the_reference_has_every_public_name_once(site: Path, package: ModuleType) -> None:
    pages = [path.read_text() for path in (site / "reference").rglob("*.html")]

    times = {name: sum(f'id="{package.__name__}.{name}"' in page for page in pages) for name in package.__all__}
    assert {name: count for name, count in times.items() if count != 1} == {}


def test_signatures_name_their_options(site: Path) -> None:
    page = (site / "reference" / "streams" / "index.html").read_text()

    assert "Unpack" not in page
    assert "watermark_delay" in page


def test_the_reference_has_every_command(site: Path) -> None:
    page = (site / "reference" / "cli" / "index.html").read_text()

    commands = typer.main.get_command(app).commands
    assert [name for name in commands if f'<h2 id="{name}">' not in page] == []
    options = {option for command in commands.values() for part in command.params for option in part.opts}
    assert [option for option in options if option.startswith("--") and f"<code>{option}</code>" not in page] == []


def test_every_error_has_a_section_that_says_what_to_do(site: Path) -> None:
    page = (site / "reference" / "errors-by-name" / "index.html").read_text()

    public = [getattr(package, name) for package in DOCUMENTED for name in package.__all__]
    errors = {error for error in public if isinstance(error, type) and issubclass(error, keygroups.KeyGroupsError)}
    names = {error.__name__ for error in errors - {keygroups.KeyGroupsError}}
    assert [name for name in names if f'<h2 id="{name.lower()}">' not in page] == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("openai", "howto/language-models/"),
        ("kafka", "howto/kafka/"),
        ("rescale", "howto/rescale/"),
        ("exactly once", "explanation/guarantees/"),
        ("timeout", "howto/functions/"),
    ],
)
def test_a_search_finds_the_page_by_its_headings(site: Path, words: str, page: str) -> None:
    """Headings weigh far more than text in the search of the site."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]

    assert [
        entry["title"] for entry in entries if entry["location"].startswith(page) and words in entry["title"].lower()
    ]


def test_no_page_needs_another_host(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}

    loads = ("<script src=", '<link rel="stylesheet" href=', "<img src=")
    assert [
        (str(path.relative_to(site)), tag)
        for path, text in pages.items()
        for tag in loads
        if f'{tag}"http' in text or f"{tag}http" in text
    ] == []
