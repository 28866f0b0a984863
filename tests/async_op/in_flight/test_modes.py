"""In what order outputs leave, what they carry, and what the function learns about its element."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext, Record, Runtime, Watermark
from keygroups import KeyGroupRange, key_group_of
from tests.async_op.kit import BOTH, Instant, Service, opened


@pytest.mark.behaviour("outputs carry the timestamp of their input")
@pytest.mark.behaviour("event time, ordered: records and watermarks leave in exactly their order")
async def test_ordered_outputs_and_watermarks_leave_in_the_order_of_the_input() -> None:
    service = Service()
    async with opened(service, mode="ordered", capacity=2) as bench:
        elements = [Record(1, 10), Record(2, 20), Watermark(25), Record(3, 30)]
        async with bench.feeding(*elements) as feeding:
            for value in (2, 1):
                await service.answer(value, outputs=[2 * value])
            await feeding
            await service.answer(3, outputs=[6])

        assert bench.outputs == [Record(2, 10), Record(4, 20), Watermark(25), Record(6, 30)]


@pytest.mark.behaviour("event time, unordered: the watermark stays in its place, records before it leave in any order")
async def test_unordered_outputs_leave_as_they_come_but_stay_on_their_side_of_a_watermark() -> None:
    service = Service()
    async with opened(service, mode="unordered", capacity=4) as bench:
        await bench.feed(Record(1, 10), Record(2, 20), Watermark(25), Record(3, 30))
        await service.answer(3, 2, 1)

        assert bench.outputs == [Record(2, 20), Record(1, 10), Watermark(25), Record(3, 30)]


@pytest.mark.behaviour("processing time, ordered: more records than fit leave in order")
async def test_more_elements_than_fit_leave_in_order_without_watermarks_too() -> None:
    service = Service()
    async with opened(service, mode="ordered", capacity=6) as bench:
        async with bench.feeding(*range(8)) as feeding:
            await service.answer(5, 4, 3, 2, 1, 0)
            await feeding
            await service.answer(7, 6)

        assert bench.shown == list(range(8))


@pytest.mark.behaviour("processing time, unordered: more records than fit leave in any order")
async def test_more_elements_than_fit_leave_as_their_calls_return() -> None:
    service = Service()
    async with opened(service, mode="unordered", capacity=6) as bench:
        async with bench.feeding(*range(8)) as feeding:
            await service.answer(5, 4)
            await feeding
            await service.answer(7, 6, 3, 2, 1, 0)

        assert bench.shown == [5, 4, 7, 6, 3, 2, 1, 0]


@pytest.mark.behaviour("outputs carry the timestamp of their input")
@BOTH
async def test_one_element_may_have_none_or_several_outputs(mode: str) -> None:
    function = Instant(lambda value: [value] * value)
    async with opened(function, mode=mode) as bench:
        await bench.feed(Record(0, 5), Record(2, 6), Record(1, 7))

        assert bench.outputs == [Record(2, 6), Record(2, 6), Record(1, 7)]
        assert bench.in_flight == 0


@pytest.mark.behaviour("one thread owns the operator; other threads only leave mail for it")
@pytest.mark.behaviour("results and errors may be made on the owner's thread")
@pytest.mark.parametrize("make", [list, tuple, iter, set, lambda outputs: (output for output in outputs)])
async def test_outputs_are_any_iterable_and_are_consumed_on_the_thread_of_the_loop(make: Any) -> None:
    threads = set()

    def outputs(value: int) -> Iterator[int]:
        threads.add(threading.get_ident())
        yield value

    async with opened(Instant(lambda value: make(outputs(value)))) as bench:
        await bench.feed(1)

        assert bench.shown == [1]
    assert threads == {threading.get_ident()}


@pytest.mark.behaviour("while the queue is full the input waits and everything else goes on")
@pytest.mark.behaviour("a snapshot never waits for a call, although the queue is full")
@BOTH
async def test_a_full_operator_makes_its_caller_wait_while_calls_and_snapshots_continue(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=2) as bench:
        await bench.feed(1, 2)
        async with bench.feeding(3) as feeding:
            cut = await bench.operator.snapshot()
            assert [element.value for element in cut.in_flight] == [1, 2]
            assert not feeding.done()

            await service.answer(1)
            await feeding
        assert service.running == [2, 3]


async def test_the_debug_log_says_when_the_input_waits_and_how_full_the_queue_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="async_op.operator.back_pressure")
    service = Service()
    async with opened(service, capacity=2) as bench:
        await bench.feed(1, 2)
        assert not caplog.messages
        async with bench.feeding(3) as feeding:
            await service.answer(1)
            await feeding

    began, ended = caplog.messages
    assert began == "back-pressure begins: 2 in flight, the capacity is 2"
    assert ended.startswith("back-pressure has ended after ")


async def test_as_many_calls_run_at_once_as_fit() -> None:
    service = Service()
    async with opened(service, capacity=100) as bench:
        await bench.feed(*range(100))

        assert service.running == list(range(100))


@pytest.mark.behaviour("the default capacity is 100")
async def test_a_hundred_elements_fit_unless_told_otherwise() -> None:
    service = Service()
    async with opened(service) as bench, bench.feeding(*range(101)):
        assert bench.in_flight == 100
        assert len(service.running) == 100


@pytest.mark.behaviour("all that may leave leaves together")
@BOTH
async def test_everything_that_may_leave_leaves_at_one_completion(mode: str) -> None:
    """A later element's outputs never wait for the loop to come round again."""
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, Watermark(1), 2, Watermark(2), 3)
        await service.answer(3, 2)
        assert bench.shown == []

        await service.answer(1)
        assert bench.shown == [1, Watermark(1), 2, Watermark(2), 3]


@pytest.mark.behaviour("an element that can change is copied for its call, an immutable one is not")
async def test_the_function_gets_its_own_copy_of_an_element_that_it_could_change() -> None:
    """The copy is made at the call: a source that fills one object again and again has to copy it itself."""
    service = Service()
    row, text = {"id": 1}, "an immutable text"
    async with opened(service) as bench:
        await bench.feed(row, text)

        assert service.calls[0].value == row
        assert service.calls[0].value is not row
        assert service.calls[1].value is text


async def test_the_context_tells_about_the_element() -> None:
    service = Service()
    options: dict[str, Any] = {"key_by": lambda value: value["user"], "max_parallelism": 128, "timeout": 30.0}
    async with opened(service, **options) as bench:
        await bench.operator.process({"user": "ada"}, 17, "row-1")
        bench.clock.jump(10.0)
        await bench.feed({"user": "bob"})

        ada, bob = (call.ctx for call in service.calls)
        assert (ada.key, ada.key_group, ada.timestamp) == ("ada", key_group_of("ada", 128), 17)
        assert (ada.attempt, ada.idempotency_key, ada.remaining) == (1, "row-1", 20.0)
        assert (bob.key, bob.timestamp, bob.remaining) == ("bob", None, 30.0)


async def test_without_a_key_the_context_has_none() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1)

        ctx = service.calls[0].ctx
        assert (ctx.key, ctx.key_group, ctx.timestamp, ctx.remaining) == (None, -1, None, None)


async def test_made_up_idempotency_keys_are_stable_and_unique() -> None:
    service = Service()
    async with opened(service) as bench, opened(service) as other:
        await bench.feed(1, 1)
        await other.feed(1)

        keys = [call.ctx.idempotency_key for call in service.calls]
        assert len(set(keys)) == 3
        assert keys == [call.ctx.idempotency_key for call in service.calls]


async def test_the_function_is_opened_once_before_the_first_element_and_closed_after_the_last() -> None:
    events: list[Any] = []

    class Noting(AsyncFunction):
        async def open(self, runtime: Runtime) -> None:
            await asyncio.sleep(0)
            events.append(runtime)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            events.append(value)
            return []

        async def close(self) -> None:
            events.append("closed")

    async with opened(Noting(), parallelism=4, subtask_index=1, max_parallelism=10) as bench:
        await bench.feed(1, 2)
        await bench.operator.finish()

    assert events == [Runtime(1, 4, 10, KeyGroupRange(3, 4)), 1, 2, "closed"]


@pytest.mark.behaviour("operators are joined as streams, and the taker is ready before the giver")
async def test_two_operators_in_a_row_work_as_one() -> None:
    """What comes out of one operator goes into the next; the second is open before the first emits."""
    collected: list[Any] = []
    second = AsyncWaitOperator(Instant(lambda value: [2 * value]), collected.append, mode="unordered", capacity=2)
    handed = asyncio.Queue[Any]()
    first = AsyncWaitOperator(Instant(lambda value: [2 * value]), handed.put_nowait, mode="ordered", capacity=2)
    await second.open()
    await first.open()
    for value in range(5):
        await first.process(value)
    await first.finish()
    while not handed.empty():
        await second.process(handed.get_nowait().value + 1)
    await second.finish()
    await first.close()
    await second.close()

    assert sorted(record.value for record in collected) == [(2 * value + 1) * 2 for value in range(5)]
