"""The operator beside the feeding thread, without Spark: what comes out when, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from async_op import AsyncFunction, AsyncWaitOperator, ElementFailed, FixedDelayRetry, OperatorInterrupted
from async_op.spark.task.operator_thread import OUTPUTS_AT_ONCE, OperatorThread
from async_op.threads.wait_strategies import ParkWait, ProgressiveWait, WaitSituation, WaitStrategies
from tests.threads import left_since


class Calls(AsyncFunction):
    """Negative values never return; `late` ones do when they are released. Leaves a task and a thread behind."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.closed = False
        self.attempts: list[int] = []

    async def open(self, runtime: Any) -> None:
        self.stray = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.to_thread(int)

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        self.attempts.append(ctx.attempt)
        if value == "bad":
            raise ValueError("no")
        if value == "late":
            await asyncio.to_thread(self.released.wait, 60)
        if isinstance(value, int) and value < 0:
            await asyncio.get_running_loop().create_future()
        return [value]

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert left_since(before) == []


def _thread(function: AsyncFunction, **options: Any) -> OperatorThread:
    return OperatorThread(
        lambda output: AsyncWaitOperator(function, output, **({"capacity": 10} | options)), WaitStrategies()
    )


def _source(*portions: list[Any]) -> Iterator[list[tuple[Any, None, None]]]:
    return iter([[(value, None, None) for value in portion] for portion in portions])


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_everything_comes_out_in_portions() -> None:
    count = 3 * OUTPUTS_AT_ONCE + 17
    function = Calls()
    with _thread(function, mode="ordered") as thread:
        parts = [part for part in thread.run(_source(list(range(count)))) if part]
    assert [value for part in parts for value in part] == list(range(count))
    assert max(map(len, parts)) == OUTPUTS_AT_ONCE
    assert function.closed


def test_an_output_leaves_while_others_are_awaited() -> None:
    function = Calls()
    seen = []
    with _thread(function) as thread:
        for part in thread.run(_source(["late", 1], [2])):
            seen += part
            if {1, 2} <= set(seen):
                function.released.set()
    assert sorted(map(str, seen)) == ["1", "2", "late"]


def test_a_slow_source_holds_up_no_output() -> None:
    asked = threading.Event()

    def source() -> Iterator[list[tuple[Any, None, None]]]:
        yield [(1, None, None), (2, None, None)]
        assert asked.wait(60), "the outputs have not come before the next batch"
        yield [(3, None, None)]

    seen: list[Any] = []
    with _thread(Calls()) as thread:
        for part in thread.run(source()):
            seen += part
            if {1, 2} <= set(seen):
                asked.set()
        assert thread.waits.seconds[WaitSituation.SOURCE] > 0
    assert sorted(seen) == [1, 2, 3]


def test_an_error_of_the_source_ends_the_run() -> None:
    def source() -> Iterator[list[tuple[Any, None, None]]]:
        yield [(1, None, None)]
        raise OSError("no more rows")

    function = Calls()
    with pytest.raises(OSError, match="no more rows"), _thread(function) as thread:
        list(thread.run(source()))
    assert function.closed


def test_a_stop_does_not_wait_for_a_source_that_blocks() -> None:
    gate = threading.Event()

    def source() -> Iterator[list[tuple[Any, None, None]]]:
        yield [(1, None, None)]
        gate.wait(60)

    function = Calls()
    with _thread(function) as thread:
        outputs = thread.run(source())
        while not next(outputs):
            pass
        outputs.close()
    assert function.closed
    gate.set()
    for reader in threading.enumerate():
        if reader.name == "keygroups source":
            reader.join(60)


@pytest.mark.parametrize("strategy", [ParkWait(0), ParkWait(60), ProgressiveWait(level3_sleep_seconds=60)], ids=str)
def test_every_strategy_lets_everything_through(strategy: Any) -> None:
    strategies = WaitStrategies(source=strategy, consume=strategy, back_pressure=strategy)
    operator = lambda output: AsyncWaitOperator(Calls(), output, capacity=2)  # noqa: E731
    with OperatorThread(operator, strategies) as thread:
        parts = list(thread.run(_source([1, 2, 3], [4, 5], [6])))
    assert sorted(value for part in parts for value in part) == [1, 2, 3, 4, 5, 6]


def test_one_portion_at_most_is_read_while_another_is_fed() -> None:
    asked: list[int] = []

    def source() -> Iterator[list[tuple[Any, None, None]]]:
        for number in range(5):
            asked.append(number)
            yield [("late" if number == 0 else number, None, None)]

    function = Calls()
    with _thread(function, capacity=1) as thread:
        outputs = thread.run(source())
        while asked != [0, 1, 2]:
            assert next(outputs) == []
        assert next(outputs) == []  # it shows that it is alive
        assert asked == [0, 1, 2]
        function.released.set()
        assert sorted(str(value) for part in outputs for value in part) == ["1", "2", "3", "4", "late"]


def test_a_failure_is_raised_while_the_next_portion_is_read() -> None:
    gate = threading.Event()

    def source() -> Iterator[list[tuple[Any, None, None]]]:
        yield [("bad", None, None), (-1, None, None)]
        gate.wait(60)

    with pytest.raises(ElementFailed, match="'bad'"), _thread(Calls(), capacity=1) as thread:
        list(thread.run(source()))
    gate.set()
    for reader in threading.enumerate():
        if reader.name == "keygroups source":
            reader.join(60)


def test_a_consumer_that_stops_closes_the_operator() -> None:
    function = Calls()
    with _thread(function) as thread:
        outputs = thread.run(_source([1, -1], [2, -2]))
        while not next(outputs):
            pass
        outputs.close()
    assert function.closed
    assert function.stray.cancelled()


@pytest.mark.parametrize("values", [["bad"], [1, "bad", -1], [-1, -2, "bad", 4]])
def test_a_failure_is_raised_to_whoever_takes(values: list[Any]) -> None:
    function = Calls()
    with pytest.raises(ElementFailed, match="'bad'"), _thread(function) as thread:
        list(thread.run(_source(values)))
    assert function.closed


def test_a_function_that_cannot_be_opened_fails_the_run() -> None:
    class Unopened(Calls):
        async def open(self, runtime: Any) -> None:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"), _thread(Unopened()) as thread:
        list(thread.run(_source([1])))


@pytest.mark.parametrize("raised", [GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["open", "call", "close"])
def test_what_is_no_exception_ends_the_run_and_says_so(where: str, raised: type[BaseException]) -> None:
    class Interrupted(AsyncFunction):
        def raise_in(self, place: str) -> None:
            if where == place:
                raise raised

        async def open(self, runtime: Any) -> None:
            self.raise_in("open")

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            self.raise_in("call")
            return [value]

        async def close(self) -> None:
            self.raise_in("close")

    with (
        pytest.raises((ElementFailed, OperatorInterrupted), match=raised.__name__),
        _thread(Interrupted()) as thread,
    ):
        list(thread.run(_source([1])))


# What asyncio lets out of its loop.
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("when", ["at once", "when it is cancelled"])
def test_a_task_that_was_left_behind_does_not_end_the_loop(when: str, raised: type[BaseException]) -> None:
    class Strays(Calls):
        async def open(self, runtime: Any) -> None:
            self.stray = asyncio.create_task(self.wander())
            # Else asyncio tells of the error when garbage is collected, in the middle of another test.
            self.stray.add_done_callback(asyncio.Task.exception)

        async def wander(self) -> None:
            try:
                await asyncio.sleep(0 if when == "at once" else 3600)
            finally:
                raise raised

    is_heard = when == "at once"
    heard = pytest.raises(OperatorInterrupted, match=raised.__name__) if is_heard else nullcontext()
    with heard, _thread(Strays()) as thread:
        list(thread.run(_source([-1 if is_heard else 1])))


def test_the_end_of_the_input_takes_no_attempt_away() -> None:
    function = Calls()
    with pytest.raises(ElementFailed, match="attempt 4"), _thread(function, retry=FixedDelayRetry(4, 0.001)) as thread:
        list(thread.run(_source(["bad"])))
    assert function.attempts == [1, 2, 3, 4]
