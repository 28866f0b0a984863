"""State and timers on other threads: the operator's thread reads and writes for them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    CallbackFunction,
    InvocationContext,
    ResultFuture,
)
from keygroups import AggregatingState, ListState, MapState, ReducingState, UnstorableValue, ValueState
from keygroups.state import StateAccessOutsideInvocation, StateNotDeclared, StateOfAnotherThread
from tests.async_op.kit import eventually, opened
from tests.backends import ON_DISK
from tests.quick import in_turn

COUNT = ValueState("count", default=0)
LIST = ListState("list")
MAP = MapState("map")
SUM = ReducingState("sum", int.__add__)
ALL = AggregatingState("all", list, lambda held, one: [*held, one], len)
STATES = (COUNT, LIST, MAP, SUM, ALL)
EACH_BACKEND = pytest.mark.parametrize("state_backend", in_turn(["memory", ON_DISK]), ids=["memory", "disk"])


def write(value: Any, ctx: InvocationContext, threads: set[int]) -> list[Any]:
    """Use every kind of state, and note the threads on which what is passed runs."""

    def numbers() -> Iterator[int]:
        threads.add(threading.get_ident())
        yield value

    count, listed, mapped = ctx.state(COUNT), ctx.state(LIST), ctx.state(MAP)
    count.update(count.value() + 1)
    listed.add_all(numbers())
    listed.add(-value)
    mapped.put_all((number, "put") for number in numbers())
    mapped.put_all({"dict": 1})
    mapped.put("last", value)
    ctx.state(SUM).add(value)
    ctx.state(ALL).add(value)
    kept = [element for element in listed.get() if element >= 0]
    listed.update(iter(kept))
    return [(count.value(), kept, mapped.get("last"), len(mapped.keys()), ctx.state(SUM).get(), ctx.state(ALL).get())]


class Blocking(BlockingFunction):
    states = STATES

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def invoke(self, value: Any, ctx: InvocationContext) -> Any:
        return write(value, ctx, self.threads)


class Callback(CallbackFunction):
    states = STATES

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        # What was written here is seen there: it is one invocation.
        result_future.ctx.state(MAP).put("begun", value)
        threading.Thread(target=self.serve, args=(value, result_future), name="service").start()

    def serve(self, value: Any, result_future: ResultFuture) -> None:
        assert result_future.ctx.state(MAP).get("begun") == value
        result_future.complete(write(value, result_future.ctx, self.threads))


@EACH_BACKEND
@pytest.mark.parametrize("make", [Blocking, Callback])
async def test_every_kind_of_state_is_read_and_written_from_threads(make: Any, state_backend: Any) -> None:
    function = make()
    async with opened(function, mode="ordered", key_by=lambda _: "a", state_backend=state_backend) as bench:
        await bench.feed(1, 2, 3)
        await bench.operator.finish()
        await eventually(lambda: "service" not in [thread.name for thread in threading.enumerate()])
        begun = make is Callback

        assert bench.shown == [
            (1, [1], 1, 3 + begun, 1, 1),
            (2, [1, 2], 2, 4 + begun, 3, 2),
            (3, [1, 2, 3], 3, 5 + begun, 6, 3),
        ]
        assert threading.get_ident() not in function.threads, "what a call passes runs on its own thread"


@EACH_BACKEND
async def test_no_update_is_lost_while_snapshots_are_held(state_backend: Any) -> None:
    class Counting(BlockingFunction):
        states = (COUNT, LIST)
        max_threads = 4

        def invoke(self, value: Any, ctx: InvocationContext) -> Any:
            ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
            ctx.state(LIST).add(value)
            return [(ctx.key, ctx.state(COUNT).value(), len(ctx.state(LIST).get()))]

    options = {"key_by": lambda value: value % 20, "max_parallelism": 2, "state_backend": state_backend}
    async with opened(Counting(), mode="ordered", capacity=8, **options) as bench:
        cut: Any = None
        for value in range(1000):
            await bench.operator.process(value)
            if value % 40 == 0:
                cut = await bench.operator.snapshot()
        await bench.operator.finish()

        assert bench.shown == [(value % 20, value // 20 + 1, value // 20 + 1) for value in range(1000)]
        assert cut is not None
        del cut  # its store is removed beside the loop, as long as the operator is open


async def test_an_error_comes_to_the_thread_that_asked() -> None:
    errors: list[Any] = []

    class Wrong(BlockingFunction):
        states = (COUNT,)

        def invoke(self, value: Any, ctx: InvocationContext) -> Any:
            for work in (lambda: ctx.state(LIST), lambda: ctx.state(COUNT).update(object())):
                with pytest.raises((StateNotDeclared, UnstorableValue)) as raised:
                    work()
                errors.append(raised.type)
            with pytest.raises(AttributeError):
                ctx.state(COUNT).nonsense()  # type: ignore[attr-defined]
            return []

    async with opened(Wrong(), key_by=lambda value: value) as bench:
        await bench.feed(1)
        await bench.operator.finish()

    assert errors == [StateNotDeclared, UnstorableValue]


async def test_a_thread_registers_timers() -> None:
    class Alarmed(BlockingFunction):
        def invoke(self, value: Any, ctx: InvocationContext) -> Any:
            ctx.timers.register(ctx.timers.processing_time + 500)
            return [ctx.timers.timestamps()]

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Any:
            return [f"{ctx.key} at {timestamp}"]

    async with opened(Alarmed(), key_by=lambda value: value) as bench:
        await bench.feed("a")
        await eventually(lambda: bench.shown == [[1_000_500]])
        await bench.clock.advance(1)

        assert bench.shown[1:] == ["a at 1000500"]


class Late(BlockingFunction):
    """Uses its state when the test says so."""

    states = (COUNT,)

    def __init__(self) -> None:
        self.begun, self.may_go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.calls: list[Any] = []
        self.errors: list[BaseException] = []

    def invoke(self, value: Any, ctx: InvocationContext) -> Any:
        self.calls.append(value)
        handle = ctx.state(COUNT)
        self.begun.set()
        assert self.may_go_on.wait(30)
        try:
            handle.update(1)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.ended.set()
        return [value]

    async def timeout(self, value: Any, ctx: InvocationContext) -> Any:
        return [ctx.state(COUNT).value()]


async def test_after_its_timeout_a_call_neither_reads_nor_writes() -> None:
    function = Late()
    async with opened(function, timeout=10, key_by=lambda value: value) as bench:
        await bench.feed("a")
        await eventually(function.begun.is_set)
        await bench.clock.advance(10)
        function.may_go_on.set()
        await eventually(lambda: function.errors)
        await bench.operator.finish()

        assert bench.shown == [0]
    assert [type(error) for error in function.errors] == [StateAccessOutsideInvocation]


async def test_a_call_that_has_found_no_thread_is_not_made_after_its_timeout() -> None:
    function = Late()
    function.max_threads = 1
    async with opened(function, timeout=10, key_by=lambda value: value) as bench:
        await bench.feed("a")
        await eventually(function.begun.is_set)
        await bench.feed("b")
        await bench.clock.advance(10)
        function.may_go_on.set()
        await eventually(lambda: function.errors)
        await bench.operator.finish()

        assert (function.calls, bench.shown) == (["a"], [0, 0])


async def test_close_does_not_wait_for_a_call_that_hangs_after_its_timeout() -> None:
    function = Late()
    async with opened(function, timeout=10, key_by=lambda value: value) as bench:
        await bench.feed("a")
        await eventually(function.begun.is_set)
        await bench.clock.advance(10)
        await bench.operator.close()
        assert not function.may_go_on.is_set()
        function.may_go_on.set()
        await eventually(lambda: function.errors)


def test_a_thread_that_waits_for_a_loop_that_has_ended_continues() -> None:
    """An operator that is never closed must not keep the program from ending."""
    function = Late()

    async def main() -> None:
        operator = AsyncWaitOperator(function, lambda _: None, key_by=lambda value: value)
        await operator.open()
        await operator.process("a")
        await eventually(function.begun.is_set)
        function.may_go_on.set()

    asyncio.run(main())
    assert function.ended.wait(30)
    function.errors.clear()  # they know the frames of the call
    for thread in threading.enumerate():
        while thread.name.startswith("keygroups call") and thread.is_alive():
            gc.collect()  # with the operator go the idle threads of its pool
            thread.join(0.01)


async def test_a_coroutine_function_that_uses_its_state_on_a_thread_is_told_so() -> None:
    errors: list[StateOfAnotherThread] = []

    class Mistaken(AsyncFunction):
        states = STATES

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            ctx.state(COUNT).value()
            for state in STATES:
                handle: Any = ctx.state(state)
                read = {"value": "value", "map": "items"}.get(state.kind, "get")
                with pytest.raises(StateOfAnotherThread, match="BlockingFunction") as raised:
                    await asyncio.to_thread(getattr(handle, read))
                errors.append(raised.value)
            return []

    async with opened(Mistaken(), key_by=lambda value: value) as bench:
        await bench.feed("a")
        await bench.operator.finish()

    assert {error.owner for error in errors} == {threading.current_thread().name}
    assert len(errors) == len(STATES)
