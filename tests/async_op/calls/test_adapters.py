"""Functions whose results come from other threads: `BlockingFunction` and `CallbackFunction`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from async_op import (
    AsyncTimeoutError,
    BlockingFunction,
    CallbackFunction,
    ElementFailed,
    InvocationContext,
    Record,
    ResultFuture,
)
from keygroups import ConfigError, ValueState
from tests.async_op.calls.blocking import Blocking
from tests.async_op.kit import BOTH, Bench, commit, eventually, opened, settle

COUNT = ValueState("count", default=0)


@BOTH
async def test_blocking_calls_run_on_threads_and_leave_the_loop_alone(mode: str) -> None:
    function = Blocking()
    async with opened(function, mode=mode) as bench:
        await bench.feed(Record("a", 1), Record("b", 2))
        await eventually(lambda: len(function.started) == 2)
        assert threading.get_ident() not in function.threads
        function.let_go("b")
        if mode == "unordered":
            await eventually(lambda: bench.outputs == [Record("b", 2)])
        function.let_go("a")
        await bench.operator.finish()

        assert sorted(bench.outputs) == [Record("a", 1), Record("b", 2)]
        assert mode == "unordered" or bench.shown == ["a", "b"]


async def test_no_more_blocking_calls_run_than_there_are_threads() -> None:
    function = Blocking()
    async with opened(function, capacity=50) as bench:
        await bench.feed(*range(20))
        await eventually(lambda: len(function.started) == 4)
        function.let_go(*range(20))
        await bench.operator.finish()

        assert sorted(bench.shown) == list(range(20))
        assert function.running_max == 4


async def test_an_error_of_a_blocking_call_names_the_element() -> None:
    class Broken(BlockingFunction):
        def invoke(self, value: Any, ctx: InvocationContext) -> Any:
            raise ValueError("no")

    async with opened(Broken()) as bench:
        await bench.operator.process("x")

        with pytest.raises(ElementFailed, match="element 'x'.*no"):
            await bench.operator.finish()


async def test_a_generator_of_a_blocking_call_does_its_work_on_the_thread() -> None:
    threads = set()

    class Generating(BlockingFunction):
        def invoke(self, value: Any, ctx: InvocationContext) -> Iterator[Any]:
            threads.add(threading.get_ident())
            yield value
            yield value

    async with opened(Generating()) as bench:
        await bench.operator.process(1)
        await bench.operator.finish()

        assert bench.shown == [1, 1]
    assert threading.get_ident() not in threads


async def test_a_blocking_call_reads_and_writes_its_state() -> None:
    class Counting(BlockingFunction):
        states = (COUNT,)

        def invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            count = ctx.state(COUNT).value() + 1
            ctx.state(COUNT).update(count)
            return [count]

    async with opened(Counting(), mode="ordered", key_by=lambda value: value % 3) as bench:
        for value in range(30):
            await bench.operator.process(value)
        await bench.operator.finish()

        assert bench.shown == [1 + value // 3 for value in range(30)]


async def test_a_blocking_call_that_is_too_slow_gives_way_to_the_fallback() -> None:
    function = Blocking(fallback=lambda value: [f"late {value}"])
    async with opened(function, timeout=10) as bench:
        await bench.operator.process("slow")
        await eventually(lambda: function.started == ["slow"])
        await bench.clock.advance(10)
        assert bench.shown == ["late slow"]

        function.let_go("slow")
        await eventually(lambda: function.running == 0)
        await settle()
        assert bench.shown == ["late slow"]


async def test_a_call_that_waits_for_a_thread_when_the_operator_fails_never_begins() -> None:
    function = Blocking()
    function.max_threads = 1
    bench = Bench(function, timeout=10)
    await bench.operator.open()
    try:
        await bench.operator.process("too slow")
        await eventually(lambda: function.started == ["too slow"])
        await bench.clock.advance(5)
        await bench.operator.process("waits")
        await bench.clock.advance(5)
        with pytest.raises(AsyncTimeoutError):
            await bench.operator.finish()
        function.let_go("too slow", "waits")
        pool: Any = bench.operator._parts.calls
        await asyncio.to_thread(pool._pool.shutdown, wait=True)

        assert function.started == ["too slow"]
    finally:
        await bench.operator.close()


@pytest.mark.behaviour("a snapshot never waits for a call, although the queue is full")
async def test_a_snapshot_does_not_wait_for_a_blocking_call() -> None:
    function = Blocking()
    async with opened(function) as bench:
        await bench.operator.process("x")
        await eventually(lambda: function.started == ["x"])
        snapshot = await commit(await bench.operator.snapshot())
        function.let_go("x")
        await bench.operator.finish()

    again = Blocking()
    again.let_go("x")
    async with opened(again, restore=snapshot.restore(0)) as bench:
        await bench.operator.finish()
        assert bench.shown == ["x"]


async def test_close_does_not_wait_for_a_thread_that_hangs() -> None:
    function = Blocking()
    async with opened(function) as bench:
        await bench.operator.process("x")
        await eventually(lambda: function.started == ["x"])
        await bench.operator.close()
        assert (function.running, bench.shown) == (1, [])
        function.let_go("x")
        await eventually(
            lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("keygroups call")]
        )

    assert bench.shown == []


async def test_blocking_calls_that_have_not_begun_never_begin_after_close() -> None:
    function = Blocking()
    async with opened(function) as bench:
        await bench.feed(*range(8))
        await eventually(lambda: len(function.started) == 4)
        await bench.operator.close()
        function.let_go(*range(8))
        await eventually(
            lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("keygroups call")]
        )

    assert len(function.started) == 4


async def test_a_pool_without_threads_is_refused() -> None:
    function = Blocking()
    function.max_threads = 0

    with pytest.raises(ConfigError, match="max_threads=0"):
        await Bench(function).operator.open()


class Callbacks(CallbackFunction):
    """Keeps the futures for the test to complete."""

    def __init__(self, fallback: Any = None) -> None:
        self.futures: dict[Any, ResultFuture] = {}
        self._fallback = fallback

    def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        self.futures[value] = result_future

    async def timeout(self, value: Any, ctx: InvocationContext) -> Any:
        return await super().timeout(value, ctx) if self._fallback is None else self._fallback(value)


@pytest.mark.behaviour("one thread owns the operator; other threads only leave mail for it")
@BOTH
async def test_a_future_may_be_completed_from_any_thread(mode: str) -> None:
    function = Callbacks()
    async with opened(function, mode=mode) as bench:
        await bench.feed(Record("a", 1), Record("b", 2))
        threads = [threading.Thread(target=function.futures[value].complete, args=([value],)) for value in "ba"]
        for thread in threads:
            thread.start()
            await asyncio.to_thread(thread.join)
            await settle()
        await bench.operator.finish()

        assert bench.shown == (["a", "b"] if mode == "ordered" else ["b", "a"])
        assert bench.threads == {threading.get_ident()}


async def test_a_future_may_be_completed_before_the_call_returns() -> None:
    class AtOnce(CallbackFunction):
        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            result_future.complete([value])

    async with opened(AtOnce(), mode="ordered") as bench:
        await bench.feed(*range(50))

        assert bench.shown == list(range(50))


@pytest.mark.behaviour("what comes after a timeout or a first completion is ignored")
async def test_the_first_completion_counts() -> None:
    function = Callbacks()
    async with opened(function) as bench:
        await bench.feed("a", "b")
        function.futures["a"].complete(["first"])
        function.futures["a"].complete(["second"])
        function.futures["a"].complete_exceptionally(ValueError("third"))
        await settle()
        assert bench.shown == ["first"]
        function.futures["a"].complete(["fourth"])
        function.futures["b"].complete(["b"])
        await settle()

        assert bench.shown == ["first", "b"]
        await bench.operator.finish()


@pytest.mark.behaviour("what comes after a timeout or a first completion is ignored")
async def test_many_threads_completing_one_future_give_one_result() -> None:
    function = Callbacks()
    async with opened(function) as bench:
        await bench.feed("x")
        future = function.futures["x"]
        barrier = threading.Barrier(8)

        def complete(number: int) -> None:
            barrier.wait(30)
            future.complete([number])

        threads = [threading.Thread(target=complete, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await bench.operator.finish()

        assert len(bench.shown) == 1


@pytest.mark.behaviour("one thread owns the operator; other threads only leave mail for it")
async def test_many_results_from_many_threads_all_arrive() -> None:
    class Pooled(CallbackFunction):
        def __init__(self) -> None:
            self.waiting: list[tuple[Any, ResultFuture]] = []
            self.lock = threading.Lock()

        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            with self.lock:
                self.waiting.append((value, result_future))

    function = Pooled()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with function.lock:
                waiting, function.waiting = function.waiting, []
            for value, future in waiting:
                future.complete([value])
            stop.wait(0.0001)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    async with opened(function, mode="ordered", capacity=64) as bench:
        for value in range(2000):
            await bench.operator.process(value)
        await bench.operator.finish()
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)

        assert bench.shown == list(range(2000))


@pytest.mark.parametrize("error", ["oops", None, ValueError])
async def test_what_is_no_exception_completes_with_an_error_that_says_so(error: Any) -> None:
    function = Callbacks()
    async with opened(function) as bench:
        await bench.feed("x")
        function.futures["x"].complete_exceptionally(error)

        with pytest.raises(ElementFailed, match="ConfigError: .*pass an exception to complete_exceptionally"):
            await bench.operator.finish()


async def test_an_exceptional_completion_names_the_element() -> None:
    function = Callbacks()
    async with opened(function) as bench:
        await bench.feed("x")
        function.futures["x"].complete_exceptionally(ValueError("no"))

        with pytest.raises(ElementFailed, match="element 'x'.*no"):
            await bench.operator.finish()


async def test_an_error_of_the_call_itself_names_the_element_too() -> None:
    class Broken(CallbackFunction):
        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            raise ValueError("not even started")

    async with opened(Broken()) as bench:
        await bench.feed("x")

        with pytest.raises(ElementFailed, match="not even started"):
            await bench.operator.finish()


async def test_a_future_that_is_never_completed_is_caught_by_the_timeout() -> None:
    function = Callbacks(fallback=lambda value: [f"late {value}"])
    async with opened(function, timeout=10) as bench:
        await bench.feed("x")
        await bench.clock.advance(10)
        assert bench.shown == ["late x"]

        function.futures["x"].complete(["too late"])
        await settle()
        assert bench.shown == ["late x"]


@pytest.mark.behaviour("what completes after the end is dropped, and comes back with the restore")
async def test_a_completion_after_close_goes_nowhere() -> None:
    function = Callbacks()
    async with opened(function) as bench:
        await bench.feed("x")
    function.futures["x"].complete(["too late"])
    await settle()

    assert bench.shown == []


async def test_a_future_tells_about_its_element() -> None:
    class Keeping(Callbacks):
        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            self.futures[value["id"]] = result_future

    keeping = Keeping()
    async with opened(keeping, key_by=lambda value: value["id"]) as bench:
        await bench.operator.process({"id": 1}, 5, "row-1")
        await settle()
        ctx = keeping.futures[1].ctx
        assert (ctx.key, ctx.timestamp, ctx.idempotency_key, ctx.attempt) == (1, 5, "row-1", 1)
