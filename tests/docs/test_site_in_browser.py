"""The site in headless Chromium, at the width of a phone and of a desk. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [needs_browser, pytest.mark.thorough]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}

PAGES = [
    "index.html",
    "tutorial/index.html",
    "howto/http/index.html",
    "howto/kubernetes/index.html",
    "notebooks/4-state-as-tables/index.html",
    "reference/streams/index.html",
    "reference/cli/index.html",
    "explanation/comparison/index.html",
]
"""One of each kind, those with the widest tables and the longest lines."""


def addresses(site: Path) -> list[str]:
    return [(site / page).as_uri() for page in PAGES]


def copied(page: Page, block: str) -> str:
    """Return what the button of a block copies: the text that is seen while it has this attribute."""
    return str(page.locator(block).evaluate("e => { e.setAttribute('data-md-copying', ''); return e.innerText }"))


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_no_page_moves_sideways(site: Path, browser: Browser, size: dict[str, int]) -> None:
    with browser.new_page(viewport=size) as page:
        wide = []
        for address in addresses(site):
            page.goto(address)
            if page.evaluate("document.documentElement.scrollWidth") != size["width"]:
                wide.append(address.removeprefix(site.as_uri()))

    assert wide == []


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_code_fits(site: Path, browser: Browser, size: dict[str, int]) -> None:
    """What programs print, such as tables, scrolls."""
    code = ".highlight:not(.language-console, .language-text) > pre > code"
    with browser.new_page(viewport=size) as page:
        wide = []
        for address in addresses(site):
            page.goto(address)
            wide += page.locator(code).evaluate_all(
                "(all, at) => all.filter(e => e.scrollWidth > e.clientWidth).map(e => [at, e.innerText])", address
            )

    assert wide == []


def test_a_copied_session_is_what_was_typed(site: Path, browser: Browser) -> None:
    with browser.new_page(viewport=DESK) as page:
        page.goto((site / "tutorial" / "index.html").as_uri())
        shell = copied(page, ".language-console code >> nth=0")
        page.goto((site / "reference" / "state" / "index.html").as_uri())
        python = copied(page, "code:has(.gp) >> nth=0")

    assert [line.split()[0] for line in shell.splitlines() if line] == ["mkdir", "python", "cat"]
    assert python.strip()
    assert ">>>" not in python


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_copied_code_has_the_lines_of_its_source(site: Path, browser: Browser, size: dict[str, int]) -> None:
    with browser.new_page(viewport=size) as page:
        page.goto((site / "tutorial" / "index.html").as_uri())
        source = copied(page, ".language-python code >> nth=0")

    assert source.startswith("import asyncio\nimport os\n\nimport pyarrow as pa\n")


def test_the_theme_can_be_chosen(site: Path, browser: Browser) -> None:
    with browser.new_page(viewport=DESK, color_scheme="light") as page:
        page.goto((site / "index.html").as_uri())
        schemes = []
        for _ in range(3):
            schemes.append(page.evaluate("document.body.getAttribute('data-md-color-scheme')"))
            page.locator("form[data-md-component=palette] label:visible").click()

    assert schemes == ["default", "default", "slate"]
