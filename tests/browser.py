"""Headless Chromium, for tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
_QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

needs_browser = pytest.mark.skipif(
    _CHROMIUM is None or find_spec("playwright") is None,
    reason="needs playwright, of the dependency group `dev`, and Chromium or Chrome on the path",
)
"""Debian's package `chromium` is enough."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: while it is open, no event loop of a test can run in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container, where tests run as root, Chromium's own sandbox cannot start.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=_CHROMIUM, args=[*_QUIET, *sandbox])
        yield started
        started.close()
