"""The live page of a job in a browser: on a phone and a desk, light and dark, while the job runs and after its end."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from async_op import AdaptiveConcurrency, RateLimit, Resilience, RestartPolicy, Step
from async_op.job.progress import ChildProgress
from tests.async_op.job.kit import Counting, Epochs, Log, new_job
from tests.browser import browser, needs_browser  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser

VIEWS = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 800}}


class Live:
    """A job that runs on a thread of its own, with a server."""

    def __init__(self) -> None:
        self.source, self.sink = Log(), Epochs()
        self.release = threading.Event()
        self.failures = 1
        limits = Resilience(rate_limit=RateLimit(200), concurrency=AdaptiveConcurrency())
        steps = [
            Step(self.look_up, "look-up", capacity=50, resilience=limits),
            Step(Counting(), "count", key_by=lambda value: value % 7),
        ]
        self.job = new_job(self.source, steps, self.sink, restart=RestartPolicy(5, 0.1, 0.1), parallelism=2)
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def look_up(self, value: int) -> int:
        if value == 3 and self.failures:
            self.failures -= 1
            raise OSError("the service is away")
        await asyncio.sleep(3600 if value == 13 and not self.release.is_set() else 0.01)
        return value

    async def _run(self) -> None:
        from async_op.serving.http import serving_job

        await self.source.append(0, *range(40))
        feeding = asyncio.create_task(self._feed())
        async with serving_job("127.0.0.1:0", self.job) as self.address:
            running = asyncio.create_task(self.job.run())
            while not self.release.is_set():
                await asyncio.sleep(0.05)
            self.job.stop(drain=False)
            await asyncio.gather(running)
        feeding.cancel()

    async def _feed(self) -> None:
        for value in range(40, 100_000):
            await self.source.append(0, value)
            await asyncio.sleep(0.02)

    def __enter__(self) -> Live:
        self._thread.start()
        while not self.address or self.job.progress().restarts == 0:
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._thread.join()
        self._loop.close()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Take the place of the fixture that needs an event loop in this thread, where the browser has its own."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live() as job:
        yield job


@pytest.fixture(
    params=[
        ("phone", "light"),
        *[
            pytest.param(case, marks=pytest.mark.thorough)
            for case in (("phone", "dark"), ("desk", "light"), ("desk", "dark"))
        ],
    ],
    ids="-".join,
)
def page(browser: Browser, live: Live, request: Any) -> Iterator[Page]:  # noqa: F811
    view, scheme = request.param
    opened = browser.new_page(viewport=VIEWS[view], color_scheme=scheme)
    opened.wrong = []
    opened.on("pageerror", lambda error: opened.wrong.append(error))  # type: ignore[attr-defined]
    opened.on("console", lambda message: message.type == "error" and opened.wrong.append(message.text))
    opened.goto(live.address)
    yield opened
    opened.close()


def test_the_page_shows_the_job_and_follows_it(page: Page) -> None:
    from playwright.sync_api import expect

    facts = page.locator("#facts div")
    expect(page.locator("#rate")).to_have_attribute("points", re.compile(r" .* "), timeout=30_000)
    assert page.title() == "job: running"
    assert page.locator("#state").inner_text() == "running"
    assert "the service is away" in page.locator("#trouble").inner_text()
    shown = dict(one.split("\n") for one in facts.all_inner_texts())
    assert (shown["restarts"], shown["parallelism"], shown["lag"]) == ("1", "2", "none")
    assert page.locator("#steps td").all_inner_texts()[::2] == ["look-up", "count"]
    assert page.locator("#limits").is_visible()
    assert not page.locator("#children").is_visible()
    expect(page.locator("#facts dd").first).not_to_have_text(shown["records"], timeout=30_000)
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
    assert page.wrong == []  # type: ignore[attr-defined]


def test_each_process_of_a_job_has_a_row(page: Page) -> None:
    from playwright.sync_api import Route, expect

    child = ChildProgress(
        number=1, pid=19747, subtasks=2, in_flight=1300, outputs=967, dead_letters=0, processor_seconds=1.6
    )

    def with_child(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"children": [asdict(child)]})

    page.route("**/progress", with_child)
    cells = ["1", "19747", "2", "1,300", "967", "0", "1.6"]
    expect(page.locator("#children td")).to_have_text(cells, timeout=30_000)
