"""Plain English: words that make a sentence hard to read stay rare.

Well-written code bases use "that of" and "those of" at most twice, and "somebody", "nobody", "whoever" or "anybody" at
most five times, so this one does, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {
    "that of": r"(that|those|the one) of",
    "somebody": r"(some|any|every|no)(body| one)|someone|anyone|everyone|whoever|whom",
    "anew": r"anew|deal(s|t|ing)? out|what is more|knows? nothing",
}
"""Write instead: the noun again; the thing that acts, or "you"; "again", "reassign", "the rest", "is unaware of"."""

OF_PAGES = {
    "go on": r"(go|goes|went|going) on(?! (the|a|an|it|its|your) )",
    "make again": r"(make|makes|made)( it| them)? again",
    "has had": r"(has|have) had(?! no )",
}
"""Write instead: "continue", "repeat" or "retry", "has received"."""

PARTS = ("pages", "keygroups", "snapshots", "async_op")
LIMITS = {"that of": 2, "somebody": 5, "anew": 0}
_MADE = re.compile(r"<!-- made by .*?<!-- end -->", re.DOTALL)
_SHOWN_BY = re.compile(r"\|[^|\n]*/test_\w+\.py[^|\n]*\|$", re.MULTILINE)
"""The cell of a table that names tests."""


def texts(part: str) -> Iterator[str]:
    """Yield what is written by hand in a part of the repository."""
    if part != "pages":
        yield from (path.read_text(encoding="utf-8") for path in sorted((ROOT / part).rglob("*.py")))
        return
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    for path in [*pages, ROOT / "snapshots" / "FORMAT.md"]:
        yield _SHOWN_BY.sub("", _MADE.sub("", path.read_text(encoding="utf-8")))


def test_hard_words_are_rare() -> None:
    whole = "\n".join(text for part in PARTS for text in texts(part))
    found = {name: len(re.findall(rf"\b({word})\b", whole, re.IGNORECASE)) for name, word in WORDS.items()}

    assert {name: times for name, times in found.items() if times > LIMITS[name]} == {}


def test_pages_use_the_words_of_the_field() -> None:
    lines = "\n".join(texts("pages")).split("\n")

    assert [
        line for line in lines for word in OF_PAGES.values() if re.search(rf"\b({word})\b", line, re.IGNORECASE)
    ] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda path: path.stem)
def test_a_guide_opens_with_what_its_reader_can_do_afterwards(path: Path) -> None:
    first = path.read_text(encoding="utf-8").split("\n\n")[1]

    assert first.startswith("This page shows you ")
