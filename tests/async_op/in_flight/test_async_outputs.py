"""An `output` may be async: its consumer holds up the input, never a snapshot."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncWaitOperator,
    ElementFailed,
    InvocationContext,
    OperatorInterrupted,
    Record,
    SnapshotInsideOutput,
    Watermark,
)
from tests.async_op.kit import Instant, Service, commit, settle


class Consumer:
    """A consumer that is done with an output when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.done: list[Any] = []
        self._gate: asyncio.Future[None] | None = None

    async def __call__(self, element: Record | Watermark) -> None:
        shown = element.value if isinstance(element, Record) else element
        self.begun.append(shown)
        self._gate = asyncio.get_running_loop().create_future()
        await self._gate
        self.done.append(shown)

    async def release(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._gate is not None
            self._gate.set_result(None)
            await settle()

    async def fail(self, error: BaseException) -> None:
        assert self._gate is not None
        self._gate.set_exception(error)
        await settle()


@asynccontextmanager
async def opened(function: Any, output: Any, **options: Any) -> AsyncIterator[AsyncWaitOperator]:
    operator = AsyncWaitOperator(function, output, **options)
    await operator.open()
    try:
        yield operator
    finally:
        await operator.close()


async def feed_all(operator: AsyncWaitOperator, count: int) -> None:
    await operator.process_all((number, None, None) for number in range(count))


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
async def test_outputs_are_consumed_one_after_the_other_in_their_order(mode: Any) -> None:
    consumer = Consumer()
    async with opened(Instant(), consumer, mode=mode) as operator:
        for value in "abc":
            await operator.process(value)
        await operator.process_watermark(7)
        await settle()
        assert (consumer.begun, consumer.done) == (["a"], [])
        await consumer.release(4)
        assert consumer.done == ["a", "b", "c", Watermark(7)]


async def test_a_snapshot_counts_what_was_called_and_waits_for_no_consumer() -> None:
    consumer, service = Consumer(), Service()
    async with opened(service, consumer) as operator:
        for value in "abc":
            await operator.process(value)
        await settle()
        await service.answer("a", "b")
        cut = await operator.snapshot()
        assert (cut.emitted, [element.value for element in cut.in_flight]) == (2, ["c"])
        counts = operator.statistics()
        assert (counts.in_flight, counts.awaited_outputs, counts.emitted) == (1, 2, 2)
        await consumer.release(2)
        assert operator.statistics().awaited_outputs == 0


@pytest.mark.parametrize("mode", ["ordered", "unordered", "key_ordered"])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("feed", ["process", "process_all"])
async def test_a_slow_consumer_holds_up_the_input(mode: Any, limit: int, feed: str) -> None:
    consumer, function = Consumer(), Instant()
    async with opened(function, consumer, capacity=limit, mode=mode, key_by=lambda value: value) as operator:

        async def one_by_one() -> None:
            for number in range(10):
                await operator.process(number)

        feeding = asyncio.create_task(one_by_one() if feed == "process" else feed_all(operator, 10))
        for number in range(10):
            await settle()
            assert len(function.called) <= number + limit, "the operator takes no more than its capacity"
            await consumer.release()
        await feeding
        assert consumer.done == list(range(10))


class Doubling(AsyncBatchFunction):
    """Returns two outputs for each value, in batches."""

    max_batch_size = 2
    max_batch_delay = 0.0

    async def async_invoke_batch(self, values: list[Any], ctxs: list[InvocationContext]) -> list[list[Any]]:
        return [[value, -value] for value in values]


async def test_the_outputs_of_blocks_are_awaited_too() -> None:
    consumer = Consumer()
    async with opened(Doubling(), consumer, capacity=4) as operator:
        feeding = asyncio.create_task(feed_all(operator, 8))
        await settle()
        assert operator.statistics().awaited_outputs <= 8
        for _ in range(16):
            await consumer.release()
        await feeding
        assert consumer.done == [sign * number for number in range(8) for sign in (1, -1)]


async def test_the_end_of_the_input_waits_for_the_consumer() -> None:
    consumer = Consumer()
    async with opened(Instant(), consumer) as operator:
        await operator.process("a")
        finishing = asyncio.create_task(operator.finish())
        await settle()
        assert not finishing.done()
        await consumer.release()
        await finishing


async def test_closing_cancels_the_consumer_and_gives_up_the_rest() -> None:
    consumer = Consumer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of coroutines that were never awaited
        async with opened(Instant(), consumer) as operator:
            for value in "abc":
                await operator.process(value)
            await settle()
        await settle()
    assert (consumer.begun, consumer.done) == (["a"], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_futures_that_will_not_be_awaited_are_cancelled() -> None:
    futures: list[asyncio.Future[None]] = []

    def output(_: Record | Watermark) -> asyncio.Future[None]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    async with opened(Instant(), output) as operator:
        await operator.process("a")
        await operator.process("b")
        await settle()
    assert [future.cancelled() for future in futures] == [True, True]


@pytest.mark.parametrize("then", ["process", "finish"])
async def test_the_consumers_error_fails_the_operator_unchanged(then: str) -> None:
    consumer, error = Consumer(), OSError("the disk is full")
    async with opened(Instant(), consumer) as operator:
        await operator.process("a")
        await operator.process("b")
        await settle()
        await consumer.fail(error)
        with pytest.raises(OSError, match="the disk is full") as raised:
            await (operator.process("c") if then == "process" else operator.finish())
        assert raised.value is error
        assert consumer.begun == ["a"]


async def test_a_consumer_that_is_cancelled_ends_the_operator() -> None:
    def output(_: Record | Watermark) -> asyncio.Future[None]:
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        return cancelled

    async with opened(Instant(), output) as operator:
        await operator.process("a")
        with pytest.raises(OperatorInterrupted):
            await operator.finish()


async def test_an_element_that_fails_does_not_take_emitted_outputs_with_it() -> None:
    consumer, service = Consumer(), Service()
    async with opened(service, consumer) as operator:
        await operator.process("a")
        await operator.process("b")
        await settle()
        await service.answer("a")
        await service.fail("b", ValueError("wrong"))
        await consumer.release()
        assert consumer.done == ["a"]
        with pytest.raises(ElementFailed):
            await operator.finish()


async def test_restored_results_reach_the_consumer() -> None:
    service = Service()
    async with opened(service, lambda _: None, mode="ordered") as operator:
        await operator.process("a")
        await operator.process("b")
        await settle()
        await service.answer("b")
        snapshot = await commit(await operator.snapshot())
    consumer = Consumer()
    restored = AsyncWaitOperator(Instant(), consumer, mode="ordered")
    await restored.open(snapshot.restore(0))
    await settle()
    await consumer.release(2)
    assert consumer.done == ["a", "b"]
    await restored.close()


WRAPS: dict[str, Any] = {
    "coroutine function": lambda put: put,
    "lambda": lambda put: lambda one: put(one),
    "partial": lambda put: partial(put),
}


@pytest.mark.parametrize("wrap", WRAPS)
async def test_whatever_returns_an_awaitable_is_awaited(wrap: Any) -> None:
    queue: asyncio.Queue[Record] = asyncio.Queue(1)
    async with opened(Instant(), WRAPS[wrap](queue.put)) as operator:
        feeding = asyncio.create_task(feed_all(operator, 500))
        assert [(await queue.get()).value for _ in range(500)] == list(range(500))
        await feeding
        await operator.finish()


async def test_what_a_plain_function_returns_is_ignored() -> None:
    outputs: list[Any] = []

    def output(element: Record | Watermark) -> int:
        outputs.append(element)
        return len(outputs)

    async with opened(Instant(), output) as operator:
        await operator.process("a")
        await operator.finish()
        assert operator.statistics().awaited_outputs == 0
    assert len(outputs) == 1


async def test_a_consumer_may_cut_although_an_element_is_leaving_may_not() -> None:
    emitted: list[int] = []
    refused: list[bool] = []

    async def consume(_: Record | Watermark) -> None:
        emitted.append((await operator.snapshot()).emitted)

    def output(element: Record | Watermark) -> Any:
        try:
            operator.snapshot().send(None)
        except SnapshotInsideOutput:
            refused.append(True)
        return consume(element)

    async with opened(Instant(lambda value: [value, value]), output) as operator:
        await operator.process("a")
        await operator.finish()
    assert (emitted, refused) == ([2, 2], [True, True])
