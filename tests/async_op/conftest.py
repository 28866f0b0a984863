"""Every asynchronous test of `async_op` runs on each event loop, watched for blocking calls and leftovers."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import linecache
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.async_op.kit import LOOPS_THREADS
from tests.threads import threads_since

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()  # type: ignore[no-any-return, unused-ignore]


def _loop_factories() -> dict[str, LoopFactory]:
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.SelectorEventLoop}
    if importlib.util.find_spec("uvloop") is not None:
        factories["uvloop"] = _uvloop
    if sys.version_info >= (3, 12):
        factories["eager"] = _eager_loop
    return factories


def pytest_asyncio_loop_factories(config: pytest.Config) -> Mapping[str, LoopFactory]:
    factories = _loop_factories()
    return {"asyncio": factories["asyncio"]} if config.option.quick else factories


@pytest.fixture(scope="module", autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """Fail a test in which our own code blocks the thread of the event loop."""
    with blockbuster_ctx(["async_op", "keygroups", "snapshots"]) as detector:
        for function in detector.functions.values():
            # The threads of a pool are joined only when all of them are idle, so that none is left; they end at once.
            function.can_block_in("snapshots/daemon_threads.py", "shutdown")
            function.can_block_in("coverage/collector.py", "lock_data")
        yield


@pytest.fixture(scope="module", autouse=True)
def cheap_collections() -> None:
    """Let the collector of `nothing_left_behind` look only at what the tests of the module have made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="package", autouse=True)
def sources_do_not_change() -> Iterator[None]:
    """Spare the loop's debug mode a look at the disk for each frame that it notes, most of the time it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linecache, "checkcache", lambda filename=None: None)
        yield


@pytest.fixture(autouse=True)
async def nothing_left_behind(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After a test no task, no thread of ours and no unheard error may be left.

    Asyncio's own loop runs in its debug mode, which takes a fifth of the processor's time, so not with --quick.
    """
    loop = asyncio.get_running_loop()
    loop.set_debug(isinstance(loop, asyncio.BaseEventLoop) and not request.config.option.quick)
    loop.slow_callback_duration = math.inf  # or a busy machine adds warnings to the log that tests look at
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    yield
    left_tasks = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    # The loop's own executor keeps its idle threads until the loop is closed.
    left_threads = [thread for thread in threads_since(threads) if not thread.name.startswith(LOOPS_THREADS)]
    for thread in left_threads:
        thread.join(60)  # what it has handed over may be here before it has ended
    left_threads = [thread for thread in left_threads if thread.is_alive()]
    gc.collect()
    gc.freeze()  # what outlives a test, such as its report, is no garbage: the next look passes it over
    assert not left_tasks
    assert not left_threads
    assert not errors
