"""Threads of our own: users' functions that occupy the event loop's threads hold nothing up."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from async_op import AsyncDataStream, OperatorInterrupted, Record
from async_op.connectors.connector_threads import OwnThreads
from async_op.threads.own_thread import on_own_thread
from keygroups import OperatorListState, ValueState
from keygroups.state import DiskStateBackend
from tests.async_op.kit import Instant, commit, eventually, opened, reading_has_ended
from tests.async_op.timers.alarms import NOW, Alarms, by_key

COUNT = ValueState("count", default=0)


class Counting(Instant):
    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
        return [ctx.state(COUNT).value()]


@asynccontextmanager
async def occupied() -> AsyncIterator[None]:
    """Occupy every thread of the event loop's own executor."""
    release, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        release.wait(120)

    calls = [asyncio.create_task(asyncio.to_thread(block)) for _ in range(100)]
    await eventually(lambda: begun.acquire(blocking=False))
    try:
        yield
    finally:
        release.set()
        await asyncio.gather(*calls)


async def test_results_errors_and_context_come_back() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    assert await on_own_thread(variable.get) == "mine"
    assert await on_own_thread(max, 2, 3) == 3
    with pytest.raises(ZeroDivisionError):
        await on_own_thread(divmod, 1, 0)
    with pytest.raises(OperatorInterrupted, match="StopIteration"):
        await on_own_thread(next, iter(()))


async def test_a_cancelled_caller_leaves_the_call_alone() -> None:
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(120)
        ended.set()

    caller = asyncio.create_task(on_own_thread(work))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    release.set()
    await eventually(ended.is_set)


async def test_an_iterable_is_read_although_all_threads_of_the_loop_are_busy() -> None:
    def numbers() -> Iterator[int]:
        yield from range(100)

    async with occupied():
        assert [output async for output in AsyncDataStream.ordered_wait(numbers(), Instant())] == list(range(100))
        async with aclosing(AsyncDataStream.ordered_wait(numbers(), Instant(), capacity=2)) as outputs:
            assert await anext(outputs) == 0
    await reading_has_ended()


async def test_snapshots_are_cut_and_restored_although_all_threads_of_the_loop_are_busy(tmp_path: Any) -> None:
    async with opened(Counting(), key_by=by_key) as bench:
        await bench.feed("a", "b", "a")
        snapshot = await commit(await bench.operator.snapshot())
    disk = DiskStateBackend(directory=str(tmp_path))
    async with occupied():
        for options in ({}, {"state_backend": disk}):
            async with opened(Counting(), restore=snapshot.restore(0), key_by=by_key, **options) as bench:
                await bench.operator.process("a")
                await bench.operator.finish()
                assert bench.outputs == [Record(3, None)]
                await bench.operator.snapshot()


async def test_operator_states_are_restored_although_all_threads_of_the_loop_are_busy() -> None:
    offsets = OperatorListState("offsets")

    class Reading(Instant):
        operator_states = (offsets,)
        found: Any = None

        async def open(self, runtime: Any) -> None:
            handle = runtime.operator_state(offsets)
            self.found = list(handle.get())
            handle.update([1, 2])

    async with opened(Reading()) as bench:
        snapshot = await commit(await bench.operator.snapshot())
    again = Reading()
    async with occupied(), opened(again, restore=snapshot.restore(0)):
        assert again.found == [1, 2]


async def test_timers_are_restored_although_all_threads_of_the_loop_are_busy() -> None:
    async with opened(Alarms(), key_by=by_key) as bench:
        await bench.feed(("a", "register", NOW + 100))
        snapshot = await commit(await bench.operator.snapshot())
    alarms = Alarms()
    async with occupied(), opened(alarms, restore=snapshot.restore(0), key_by=by_key) as bench:
        await bench.clock.advance(1)
        assert alarms.times == [("a", NOW + 100)]


async def test_work_that_ends_with_stop_iteration_is_an_error_and_no_wait_for_ever() -> None:
    threads = OwnThreads("test", 1)
    for run in (on_own_thread, threads.run):
        with pytest.raises(OperatorInterrupted, match="StopIteration"):
            await asyncio.wait_for(run(iter([]).__next__), 60)
    await threads.close()
