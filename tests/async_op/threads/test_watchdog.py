"""A call that blocks the event loop is named in the log, once for each function, and nothing else is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias
from weakref import ref

import pytest

from async_op import AsyncDataStream, AsyncFunction, InvocationContext, Runtime
from async_op.testing import run
from async_op.threads import watchdog
from tests.async_op.kit import Instant, eventually, opened

NAME = watchdog.__name__

Watchdogs: TypeAlias = Callable[[], list[threading.Thread]]


@pytest.fixture(autouse=True)
def no_blocking_calls() -> None:
    """Here they are what is tested."""


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> dict[CodeType, str]:
    """Begin as a process does that has named no function."""
    fresh: dict[CodeType, str] = {}
    monkeypatch.setattr(watchdog, "_named", fresh)
    return fresh


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the looks at a loop that had not answered, which come every hundredth of a second."""
    seen: list[bool] = []
    look = watchdog._Watchdog._look

    def noting(self: Any) -> None:
        look(self)
        seen.append(True)

    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog._Watchdog, "_look", noting)
    return seen


def block_until(condition: Callable[[], object]) -> None:
    """Block the thread; the limit is only there to end a test that fails."""
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == NAME]


@pytest.fixture
def watchdogs() -> Watchdogs:
    """Return what returns the watchdogs that the test has started."""
    before = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each not in before and each.name == "keygroups watchdog"]


async def test_a_function_that_blocks_the_loop_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()

    async def careless(value: int) -> int:
        block_until(lambda: messages(caplog))
        return value

    assert [output async for output in AsyncDataStream.ordered_wait([1], careless)] == [1]

    (message,) = messages(caplog)
    line = careless.__code__.co_firstlineno + 1
    first, *stack = message.splitlines()
    assert f"{__name__}.{careless.__qualname__} (line {line}) has blocked" in first
    assert "block_until(lambda: messages(caplog))" in "".join(stack)
    assert "in block_until" in "".join(stack)
    assert time.monotonic() - begun > 2 * watchdog._LOOK_SECONDS


async def test_a_function_that_blocks_in_open_is_named(caplog: pytest.LogCaptureFixture, looks: list[bool]) -> None:
    class Loads(AsyncFunction):
        async def open(self, runtime: Runtime) -> None:
            block_until(lambda: messages(caplog))

        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
            return [value]

    async with opened(Loads()):
        (message,) = messages(caplog)

    assert "Loads.open (line " in message


async def test_a_function_is_named_once(caplog: pytest.LogCaptureFixture, looks: list[bool]) -> None:
    async def careless(value: int) -> int:
        await asyncio.sleep(0.05)  # the loop answers in between
        until = len(looks) + 5
        block_until(lambda: len(looks) >= until)
        return value

    async with opened(careless) as bench:
        await bench.feed(1, 2)
        await bench.operator.finish()

    assert len(looks) >= 10
    assert len(messages(caplog)) == 1


async def test_what_is_seen_at_one_look_only_is_not_named(
    caplog: pytest.LogCaptureFixture, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = sys._getframe()
    found = itertools.cycle([None, function])
    monkeypatch.setattr(watchdog, "function_of", lambda called: next(found))
    async with opened(Instant()):
        await asyncio.sleep(0.05)
        block_until(lambda: len(looks) >= 6)

    assert messages(caplog) == []


def test_an_import_that_the_library_makes_late_is_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[FrameType]] = []
    monkeypatch.setattr(watchdog, "seen_at", stacks.append, raising=False)
    (tmp_path / "slow_to_import.py").write_text(
        "import sys\nfrom async_op.threads import watchdog\nwatchdog.seen_at(watchdog._stack(sys._getframe()))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    exec("import slow_to_import", {"__name__": "async_op.late"})
    monkeypatch.delitem(sys.modules, "slow_to_import")
    exec("def load():\n    import slow_to_import\nload()", {"__name__": "a_module_of_the_user"})
    late, of_the_user = [watchdog.function_of(stack) for stack in stacks]
    assert late is None
    assert of_the_user is not None


async def test_a_loop_that_waits_is_left_alone(caplog: pytest.LogCaptureFixture, looks: list[bool]) -> None:
    async def patient(value: int) -> int:
        await asyncio.sleep(0.3)  # thirty looks
        return value

    async with opened(patient) as bench:
        await bench.feed(1)
        await bench.operator.finish()

    assert messages(caplog) == []


async def test_operators_of_a_loop_share_a_thread_that_ends_with_the_last(watchdogs: Watchdogs) -> None:
    assert watchdogs() == []
    async with opened(Instant()) as first:
        async with opened(Instant()):
            (thread,) = watchdogs()
        assert watchdogs() == [thread]
        await first.operator.close()
        await first.operator.close()
    await eventually(lambda: not watchdogs())
    assert thread.daemon


@pytest.mark.usefixtures("looks")
def test_a_loop_that_is_closed_with_an_open_operator_leaves_no_thread(watchdogs: Watchdogs) -> None:
    with asyncio.Runner() as runner:
        runner.run(_watched())
        assert len(watchdogs()) == 1

    block_until(lambda: not watchdogs())
    assert watchdogs() == []


async def _watched() -> None:
    watchdog.Watch(asyncio.get_running_loop())


def _deep_down(call: Callable[[], None], depth: int = 50) -> None:
    """Make a call deeper in the stack than the loop makes its own."""
    if depth:
        _deep_down(call, depth - 1)
    else:
        call()


@pytest.mark.usefixtures("looks")
def test_a_loop_that_does_not_run_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        runner.run(_watched())
        _deep_down(lambda: time.sleep(0.2))  # twenty looks

    assert messages(caplog) == []


async def test_what_the_program_holds_is_not_kept() -> None:
    async def program() -> ref[Instant]:
        held = Instant()
        watchdog.Watch(asyncio.get_running_loop()).end()
        return ref(held)

    gc.disable()
    try:
        assert (await program())() is None
    finally:
        gc.enable()


def test_virtual_time_has_no_watchdog(watchdogs: Watchdogs) -> None:
    async def main() -> list[str]:
        async with opened(Instant()):
            return [thread.name for thread in watchdogs()]

    assert run(main()) == []
