"""A call that blocks the event loop is warned of, once for each function, and nothing else is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import linecache
import logging
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias
from weakref import ref

import pytest

from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction, BlocksEventLoop, InvocationContext, Runtime
from async_op.testing import run
from async_op.threads import watchdog
from tests.async_op.kit import Instant, eventually, opened

Watchdogs: TypeAlias = Callable[[], list[threading.Thread]]
Warned: TypeAlias = Callable[[], list[BlocksEventLoop]]


@pytest.fixture(autouse=True)
def no_blocking_calls() -> None:
    """Here they are what is tested."""


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a process does that has found no function."""
    fresh: dict[CodeType, BlocksEventLoop] = {}
    monkeypatch.setattr(watchdog, "_found", fresh)


@pytest.fixture
def warned() -> Iterator[Warned]:
    """Return what returns the functions that a program without any setup was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        yield lambda: [one.message for one in caught if isinstance(one.message, BlocksEventLoop)]


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


@pytest.fixture
def watchdogs() -> Watchdogs:
    """Return what returns the watchdogs that the test has started."""
    before = set(threading.enumerate())
    return lambda: [each for each in threading.enumerate() if each not in before and each.name == "keygroups watchdog"]


async def test_a_function_that_blocks_the_loop_is_named_with_its_line(
    warned: Warned, caplog: pytest.LogCaptureFixture
) -> None:
    begun = time.monotonic()
    caplog.set_level(logging.INFO, watchdog.__name__)

    async def careless(value: int) -> int:
        block_until(warned)
        return value

    assert [output async for output in AsyncDataStream.ordered_wait([1], careless)] == [1]

    (found,) = warned()
    assert (found.module, found.function, found.path) == (__name__, careless.__qualname__, __file__)
    assert linecache.getline(found.path, found.line).strip() == "block_until(warned)"
    assert "in block_until" in caplog.messages[-1]
    assert time.monotonic() - begun > 2 * watchdog._LOOK_SECONDS


SCRIPT = """\
import asyncio, time
from async_op import AsyncDataStream
from async_op.threads.watchdog import blocking_functions
async def look(value):
    while not blocking_functions(): time.sleep(0.1)
    time.sleep(1)  # until it is shown
    return value

async def main():
    print([output async for output in AsyncDataStream.ordered_wait([1], look)])

asyncio.run(main())
"""


def test_a_script_that_has_set_up_nothing_shows_the_line(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[1]\n"
    shown, line = ran.stderr.splitlines()
    assert shown.startswith(f"{script}:5: BlocksEventLoop: __main__.look has blocked its event loop for over a second")
    assert line.strip() == "while not blocking_functions(): time.sleep(0.1)"


def test_filters_of_warnings_rule_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    found = BlocksEventLoop("shop", "look", "shop.py", 12)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=BlocksEventLoop, module="shop")
        watchdog.warn_of(found)
        warnings.filterwarnings("error", category=BlocksEventLoop)
        watchdog.warn_of(found)

    assert [one.exc_value for one in raised] == [found]
    assert capsys.readouterr().err == ""


def test_the_warning_crosses_processes() -> None:
    again = pickle.loads(pickle.dumps(BlocksEventLoop("shop", "look", "shop.py", 12)))
    assert (again.args, str(again)) == (("shop", "look", "shop.py", 12), str(BlocksEventLoop("shop", "look", "", 0)))


@pytest.mark.usefixtures("looks")
async def test_a_function_that_blocks_in_open_is_named(warned: Warned) -> None:
    class Loads(AsyncFunction):
        async def open(self, runtime: Runtime) -> None:
            block_until(warned)

        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
            return [value]

    async with opened(Loads()):
        (found,) = warned()

    assert found.function.endswith("Loads.open")


async def test_a_function_is_named_once(warned: Warned, looks: list[bool]) -> None:
    async def careless(value: int) -> int:
        await asyncio.sleep(0.05)  # the loop answers in between
        until = len(looks) + 5
        block_until(lambda: len(looks) >= until)
        return value

    async with opened(careless) as bench:
        await bench.feed(1, 2)
        await bench.operator.finish()

    assert len(looks) >= 10
    assert len(warned()) == 1


async def test_what_is_seen_at_one_look_only_is_not_named(
    warned: Warned, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = sys._getframe()
    found = itertools.cycle([None, function])
    monkeypatch.setattr(watchdog, "function_of", lambda called: next(found))
    async with opened(Instant()):
        await asyncio.sleep(0.05)
        block_until(lambda: len(looks) >= 6)

    assert warned() == []


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


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("is_batched", [False, True], ids=["single calls", "batches"])
async def test_between_calls_that_block_the_loop_has_its_turn(looks: list[bool], is_batched: bool) -> None:
    begun: list[int] = []
    seen: set[int] = set()

    async def careless(value: int) -> int:
        begun.append(value)
        until = len(looks) + 3
        block_until(lambda: len(looks) >= until)
        return value

    class Careless(AsyncBatchFunction):
        max_batch_size = 1

        async def async_invoke_batch(self, values: Any, contexts: Any) -> Any:
            return [[await careless(value)] for value in values]

    async def look() -> None:
        while len(begun) < 8:
            seen.add(len(begun))
            await asyncio.sleep(0)

    async with opened(Careless() if is_batched else careless) as bench:
        looking = asyncio.create_task(look())
        for value in range(8):
            await bench.operator.process(value)
        await bench.operator.finish()
        await looking

    assert seen == set(range(8))


async def test_a_turn_is_due_until_the_loop_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, several looks find the loop's thread after the end of a call and before the next begins."""
    function = sys._getframe()
    found = iter([function, function, None, None, None])
    monkeypatch.setattr(watchdog, "function_of", lambda called: next(found))
    watched = watchdog._Watchdog(asyncio.get_running_loop())
    watched._has_answered = False
    due = []
    for _ in range(5):
        watched._look()
        due.append(watched.turn.is_due)

    assert due == [False, True, True, True, True]
    watched._answer()
    await asyncio.sleep(0)
    assert not watched.turn.is_due


async def test_what_waits_behind_the_answer_of_the_loop_has_its_turn_before_another_call() -> None:
    loop, order = asyncio.get_running_loop(), list[str]()
    watched = watchdog._Watchdog(loop)
    watched.turn.is_due = True

    def about_to_call() -> None:
        order.append("waits" if watched.turn.is_due else "calls")

    loop.call_soon(watched._answer)
    loop.call_soon(about_to_call)
    loop.call_soon(order.append, "the loop's own task")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    about_to_call()

    assert order == ["waits", "the loop's own task", "calls"]


async def test_a_loop_that_waits_is_left_alone(warned: Warned, looks: list[bool]) -> None:
    async def patient(value: int) -> int:
        await asyncio.sleep(0.3)  # thirty looks
        return value

    async with opened(patient) as bench:
        await bench.feed(1)
        await bench.operator.finish()

    assert warned() == []


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
def test_a_loop_that_does_not_run_blocks_nothing(warned: Warned) -> None:
    with asyncio.Runner() as runner:
        runner.run(_watched())
        _deep_down(lambda: time.sleep(0.2))  # twenty looks

    assert warned() == []


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
