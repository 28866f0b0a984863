"""Attempts at one element: what it keeps from one to the next, also at the end of the input and over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    CallbackFunction,
    ElementFailed,
    ExponentialBackoffRetry,
    FixedDelayRetry,
    InvocationContext,
    ResultFuture,
    Watermark,
)
from keygroups import ValueState
from tests.async_op.kit import BOTH, Bench, Instant, Service, commit, empty, opened, settle

COUNT = ValueState("count", default=0)


@pytest.mark.behaviour("an element keeps its place during the delay")
async def test_an_element_keeps_its_place_during_the_delay() -> None:
    service = Service()
    async with opened(service, capacity=1, retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        async with bench.feeding("y") as feeding:
            await bench.clock.advance(9)
            assert (feeding.done(), bench.in_flight, service.running) == (False, 1, [])
            await bench.clock.advance(1)
            await service.answer("x")
            await feeding
        assert service.running == ["y"]


async def test_the_order_holds_although_an_element_is_retried() -> None:
    service = Service()
    async with opened(service, mode="ordered", retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("a", Watermark(1), "b")
        await service.fail("a", ValueError())
        await service.answer("b")
        assert bench.shown == []
        await bench.clock.advance(10)
        await service.answer("a")
        assert bench.shown == ["a", Watermark(1), "b"]


async def test_a_key_in_its_delay_holds_up_only_itself() -> None:
    class Stateful(Service):
        states = (COUNT,)

    service = Stateful()
    async with opened(service, key_by=lambda value: value[0], retry=FixedDelayRetry(2, 10)) as bench:
        await bench.feed("a1", "a2", "b1")
        await service.fail("a1", ValueError())
        assert service.running == ["b1"]
        await service.answer("b1")
        await bench.clock.advance(10)
        assert service.running == ["a1"]
        await service.answer("a1", "a2")
        assert bench.shown == ["b1", "a1", "a2"]


async def test_what_a_failed_attempt_has_written_is_forgotten() -> None:
    class Writing(AsyncFunction):
        states = (COUNT,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            count = ctx.state(COUNT).value() + 1
            ctx.state(COUNT).update(count)
            if ctx.attempt < 3:
                raise ValueError(count)
            return [count]

    async with opened(Writing(), key_by=str, retry=FixedDelayRetry(3, 0)) as bench:
        await bench.feed("x")
        await bench.clock.advance(0)
        await bench.clock.advance(0)

        assert bench.shown == [1]


async def test_the_id_stays_the_same_over_all_attempts() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(2, 0)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        await bench.clock.advance(0)

        first, second = (call.ctx.idempotency_key for call in service.calls)
        assert first == second


@pytest.mark.behaviour("a function that completes repeatedly has one result for each element")
@BOTH
async def test_a_function_that_completes_again_and_again_has_one_result_each(mode: str) -> None:
    class Repeating(CallbackFunction):
        def __init__(self) -> None:
            self.calls = 0

        def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            self.calls += 1
            for _ in range(3):
                result_future.complete([] if result_future.ctx.attempt < 3 else [value])
            result_future.complete_exceptionally(ValueError("ignored"))

    function = Repeating()
    async with opened(function, mode=mode, retry=FixedDelayRetry(5, 1, retry_if_result=empty)) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(1)
        await bench.clock.advance(1)

        assert bench.shown == ["a", "b"]
        assert function.calls == 6


@pytest.mark.behaviour("after an error of the function, with retries, close does not hang")
@BOTH
async def test_a_failing_function_with_retries_does_not_hang_close(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, retry=FixedDelayRetry(9, 10)) as bench:
        await bench.feed("waits", "runs")
        await service.fail("waits", ValueError())

    assert (service.running, bench.clock.timers, bench.shown) == ([], 0, [])


async def test_one_timer_serves_all_delays() -> None:
    service = Service()
    async with opened(service, retry=ExponentialBackoffRetry(9, 5, 50)) as bench:
        await bench.feed(*range(20))
        for value in range(20):
            await service.fail(value, ValueError())

        assert bench.clock.timers == 1
        await bench.clock.advance(5)
        assert sorted(service.running) == list(range(20))
        assert bench.clock.timers == 0


# -- at the end of the input


@asynccontextmanager
async def finishing(bench: Bench, *, hurry: bool = False) -> AsyncIterator[asyncio.Task[None]]:
    """Finish in the background, as `Bench.feeding` feeds."""
    task = asyncio.create_task(bench.operator.finish(hurry=hurry))
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await settle()


@pytest.mark.behaviour("in a hurry, at the end of the input, what waits is tried once more at once, for good")
@BOTH
async def test_at_the_end_elements_are_tried_as_often_as_all_others(mode: str) -> None:
    service = Service()
    retry = FixedDelayRetry(3, 60, retry_on=OSError, retry_if_result=empty)
    async with opened(service, mode=mode, retry=retry) as bench:
        await bench.feed("waits", "runs")
        await service.fail("waits", OSError())
        async with finishing(bench) as end:
            await service.answer("runs", outputs=[])
            assert service.running == []
            await bench.clock.advance(60)
            assert service.running == ["waits", "runs"]
            await service.answer("runs", outputs=[])
            await service.answer("waits")
            await bench.clock.advance(60)
            assert [call.attempt for call in service.calls] == [1, 1, 2, 2, 3]
            assert not end.done()
            await service.answer("runs")

            await end
        assert bench.shown == ["waits", "runs"]


@pytest.mark.behaviour("in a hurry, at the end of the input, what waits is tried once more at once, for good")
async def test_an_input_that_is_smaller_than_the_capacity_is_retried() -> None:
    failed = set()

    def fail_once(value: int) -> list[int]:
        if value not in failed:
            failed.add(value)
            raise ConnectionError(value)
        return [value]

    outputs = AsyncDataStream.ordered_wait(range(5), Instant(fail_once), retry=FixedDelayRetry(2, 0))

    assert [output async for output in outputs] == [0, 1, 2, 3, 4]


async def test_a_finish_that_took_its_time_may_be_followed_by_one_in_a_hurry() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(9, 60)) as bench:
        await bench.feed("x")
        await service.fail("x", ValueError())
        async with finishing(bench):
            assert service.running == []
        async with finishing(bench, hurry=True) as end:
            await service.answer("x")
            await end
        assert bench.shown == ["x"]


@pytest.mark.behaviour("in a hurry, at the end of the input, what waits is tried once more at once, for good")
async def test_in_a_hurry_the_last_attempt_comes_at_once_and_is_final() -> None:
    service = Service()
    async with opened(service, mode="ordered", retry=FixedDelayRetry(9, 60, retry_if_result=empty)) as bench:
        await bench.feed("waits", "also waits")
        await service.answer("waits", "also waits", outputs=[])
        async with finishing(bench, hurry=True) as end:
            assert service.running == ["waits", "also waits"]
            await service.answer("also waits")
            assert bench.shown == []
            await service.answer("waits", outputs=[])

            await end
        assert bench.shown == ["also waits"]
        assert bench.clock.timers == 0


@pytest.mark.behaviour("at the end of the input a running attempt is not made a second time")
async def test_in_a_hurry_a_running_attempt_is_not_made_twice() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(9, 1)) as bench:
        await bench.feed("first", "second")
        await service.fail("second", ValueError())
        await bench.clock.advance(1)
        assert service.called == ["first", "second", "second"]

        async with finishing(bench, hurry=True) as end:
            assert service.called == ["first", "second", "second"]
            await service.answer("second", "first")
            await end
        assert bench.shown == ["second", "first"]


@pytest.mark.behaviour("in a hurry, at the end of the input, what waits is tried once more at once, for good")
async def test_in_a_hurry_an_error_is_final() -> None:
    service = Service()
    async with opened(service, retry=FixedDelayRetry(9, 1)) as bench:
        await bench.feed("x")
        async with finishing(bench, hurry=True) as end:
            await service.fail("x", ValueError("final"))

            with pytest.raises(ElementFailed, match="final"):
                await end
        assert service.called == ["x"]


# -- over a restart


@pytest.mark.behaviour("after a restore an element keeps its attempts, its time and the rest of its delay")
async def test_attempts_and_the_rest_of_a_delay_survive_a_restart() -> None:
    service = Service()
    async with opened(service, timeout=100, retry=FixedDelayRetry(4, 10)) as bench:
        await bench.feed("waits", "runs", "fresh")
        await service.fail("runs", ValueError())
        await bench.clock.advance(10)
        await service.fail("waits", ValueError())
        await bench.clock.advance(4)
        assert service.called == ["waits", "runs", "fresh", "runs"]
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, timeout=100, retry=FixedDelayRetry(4, 10), restore=snapshot.restore(0)) as bench:
        assert [(call.value, call.attempt) for call in service.calls] == [("runs", 2), ("fresh", 1)]
        await bench.clock.advance(5.9)
        assert len(service.calls) == 2
        await bench.clock.advance(0.1)
        assert (service.calls[2].value, service.calls[2].attempt) == ("waits", 2)
        assert service.calls[2].ctx.remaining == 80


@pytest.mark.behaviour("after a restore an element keeps its attempts, its time and the rest of its delay")
async def test_no_attempt_is_won_by_a_restart() -> None:
    """However often it crashes, an element has so many calls that were seen to end, and no more."""
    snapshot = None
    attempts = []
    for _ in range(3):
        service = Service()
        restore = None if snapshot is None else snapshot.restore(0)
        async with opened(service, retry=FixedDelayRetry(3, 0), restore=restore) as bench:
            if restore is None:
                await bench.feed("x")
            attempts.append(service.calls[0].attempt)
            if len(attempts) < 3:
                await service.fail("x", ValueError())
                await bench.clock.advance(0)
                snapshot = await commit(await bench.operator.snapshot())
                continue
            await service.fail("x", ValueError())
            with pytest.raises(ElementFailed, match="attempt 3"):
                await bench.operator.finish()
    assert attempts == [1, 2, 3]
