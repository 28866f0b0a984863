"""The web page in headless Chromium. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snapshots.report import render
from tests.browser import needs_browser
from tests.quick import first_is_quick
from tests.snapshot_kit import parts
from tests.snapshots.report.test_report import HOSTILE, hostile_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with hostile keys, many versions and a planned rescale."""
    store, snapshot = hostile_store()
    for _ in range(20):
        snapshot = store.write(parts({"profile": dict.fromkeys(HOSTILE, "x" * 100)}, parallelism=7))
    target = tmp_path_factory.mktemp("report") / "report.html"
    target.write_text(render(store, snapshot, parallelism=16), encoding="utf-8")
    return target


@pytest.mark.parametrize("width", first_is_quick(WIDTHS))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_shown_whole_without_a_complaint(
    browser: Browser, page_file: Path, width: int, scheme: str
) -> None:
    complaints: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))

    page.goto(page_file.as_uri())

    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.title() == "enrich, snapshot 22"
    # Every part of the page can be seen: it has a size, and none is wider than the page.
    for box in page.locator("section, .facts div, svg, .ranges, table").all():
        found = box.bounding_box()
        assert found is not None
        assert found["width"] > 0
        assert found["height"] > 0
    assert all(one.bounding_box()["width"] <= width for one in page.locator("section, svg, .ranges, .scroll").all())
    context.close()


def contrast(browser: Browser, page_file: Path, scheme: str) -> float:
    """Return the lowest contrast of text to what is behind it, as WCAG defines it."""
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(page_file.as_uri())
    lowest = page.evaluate(
        """() => {
          const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = (one) => {
            const colour = numbers(getComputedStyle(one).backgroundColor);
            return colour.length === 4 && colour[3] === 0 && one.parentElement ? behind(one.parentElement) : colour;
          };
          return Math.min(...[...document.querySelectorAll("body *")]
            .filter((one) => [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
            .filter((one) => !(one instanceof SVGElement))
            .map((one) => [light(numbers(getComputedStyle(one).color)), light(behind(one))])
            .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)));
        }"""
    )
    context.close()
    return float(lowest)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(browser: Browser, page_file: Path, scheme: str) -> None:
    # 4.5 is what the accessibility guidelines ask of text.
    assert contrast(browser, page_file, scheme) >= 4.5
