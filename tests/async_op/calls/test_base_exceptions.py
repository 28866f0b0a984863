"""Whatever is raised, from whatever kind of function, has an outcome: nothing hangs, and nothing else stays unread."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    Cache,
    CallbackFunction,
    DeadLetter,
    ElementFailed,
    FixedDelayRetry,
    OperatorClosed,
    OperatorInterrupted,
    Resilience,
    SingleFlight,
    SnapshotInsideOutput,
    Watermark,
)
from tests.async_op.kit import Bench, Instant, ManualClock, Service, opened, settle


class Custom(BaseException):
    """Neither an `Exception` nor one of Python's own."""


KINDS = [
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
    Custom,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
]
NO_EXCEPTIONS = [GeneratorExit, KeyboardInterrupt, SystemExit, Custom]
RAISED = pytest.mark.parametrize("raised", KINDS)
NEVER_SKIPPED = pytest.mark.parametrize("raised", NO_EXCEPTIONS)


class Coroutine(AsyncFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def async_invoke(self, value: Any, ctx: Any) -> Any:
        await asyncio.sleep(0)
        if value == "bad":
            raise self.error
        return [value]


class Batch(AsyncBatchFunction):
    max_batch_size = 1

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        await asyncio.sleep(0)
        if "bad" in values:
            raise self.error
        return [[value] for value in values]


class BatchResult(Batch):
    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        return [self.error if value == "bad" else [value] for value in values]


class Blocking(BlockingFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def invoke(self, value: Any, ctx: Any) -> Any:
        if value == "bad":
            raise self.error
        return [value]


class Callback(CallbackFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def async_invoke(self, value: Any, result_future: Any) -> None:
        if value == "bad":
            result_future.complete_exceptionally(self.error)
        else:
            result_future.complete([value])


class CallbackItself(Callback):
    def async_invoke(self, value: Any, result_future: Any) -> None:
        if value == "bad":
            raise self.error
        result_future.complete([value])


class Outputs(Coroutine):
    async def async_invoke(self, value: Any, ctx: Any) -> Any:
        return map(self._output, [value])

    def _output(self, value: Any) -> Any:
        if value == "bad":
            raise self.error
        return value


class OnTimer(Coroutine):
    async def async_invoke(self, value: Any, ctx: Any) -> Any:
        if value != "bad":
            return [value]
        ctx.timers.register(0)
        return []

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        raise self.error


FUNCTIONS = [Coroutine, Batch, BatchResult, Blocking, Callback, CallbackItself, Outputs, OnTimer]


async def ended(operator: AsyncWaitOperator, clock: ManualClock | None = None) -> None:
    """Wait for the end of an operator, but not for ever."""
    if clock is not None:
        await clock.advance(0)
    async with asyncio.timeout(30):
        await operator.finish()


# With StopIteration an iterator of outputs ends: nothing fails.
@pytest.mark.parametrize(
    ("kind", "raised"), [pair for pair in itertools.product(FUNCTIONS, KINDS) if pair != (Outputs, StopIteration)]
)
async def test_the_operator_fails_with_the_element_named(kind: Any, raised: type[BaseException]) -> None:
    function = kind(raised("why"))
    async with opened(function, key_by=lambda value: value) as bench:
        await bench.operator.process("good")
        await bench.operator.process("bad")
        with pytest.raises(ElementFailed, match="why|raised Stop"):
            await ended(bench.operator, bench.clock)


@pytest.mark.parametrize("kind", FUNCTIONS)
@NEVER_SKIPPED
async def test_what_is_no_exception_is_neither_retried_nor_skipped(kind: Any, raised: type[BaseException]) -> None:
    function = kind(raised("why"))
    retry = FixedDelayRetry(5, 0)
    async with opened(function, key_by=lambda value: value, on_error="skip", retry=retry) as bench:
        await bench.operator.process("bad")
        with pytest.raises(ElementFailed, match="on_error is ignored") as failure:
            await ended(bench.operator, bench.clock)
        assert type(failure.value.__cause__) is raised
        assert bench.operator.statistics().retries == 0
    assert failure.value.element.startswith("Timer(" if kind is OnTimer else "'bad'")
    assert (failure.value.key, failure.value.attempt) == ("'bad'", 1)


async def test_results_beside_one_that_is_stop_iteration_are_read() -> None:
    async with opened(Blocking(StopIteration()), mode="unordered", on_error="skip") as bench:
        for value in ("bad", *range(50)):
            await bench.operator.process(value)
        await ended(bench.operator, bench.clock)
        assert sorted(bench.shown) == [*range(50)]


@RAISED
async def test_a_fallback_may_raise_anything(raised: type[BaseException]) -> None:
    def fallback(value: Any) -> Any:
        raise raised("why")

    async with opened(Service(fallback), timeout=1) as bench:
        await bench.feed("x")
        await bench.clock.advance(1)
        with pytest.raises(ElementFailed, match="why|raised Stop"):
            await ended(bench.operator, bench.clock)


def raising(raised: type[BaseException]) -> Callable[[Any], Any]:
    def raise_it(_: Any) -> Any:
        raise raised("why")

    return raise_it


@RAISED
@pytest.mark.parametrize("asked", ["retry_on", "retry_if_result", "cache", "single_flight", "dead_letters"])
async def test_what_is_asked_about_an_element_may_raise_anything(asked: str, raised: type[BaseException]) -> None:
    options: dict[str, Any] = {
        "retry_on": {"retry": FixedDelayRetry(2, 0, retry_on=raising(raised))},
        "retry_if_result": {"retry": FixedDelayRetry(2, 0, retry_if_result=raising(raised))},
        "cache": {"resilience": Resilience(cache=Cache(key=raising(raised), max_entries=1))},
        "single_flight": {"resilience": Resilience(single_flight=SingleFlight(key=raising(raised)))},
        "dead_letters": {"on_error": "dead_letter", "dead_letters": raising(raised)},
    }[asked]
    function = Coroutine(ValueError("no"))
    async with opened(function, **options) as bench:
        await bench.operator.process("good" if asked == "retry_if_result" else "bad")
        with pytest.raises((ElementFailed, OperatorInterrupted), match="why|raised Stop"):
            await ended(bench.operator, bench.clock)


@pytest.mark.parametrize("kind", [Coroutine, Batch])
@pytest.mark.parametrize("asked", ["retry_on", "retry_if_result"])
async def test_a_retry_policy_that_cannot_say_fails_its_element_only(asked: str, kind: Any) -> None:
    def refuse(outcome: Any) -> bool:
        if asked == "retry_on" or list(outcome) == ["odd"]:
            raise LookupError("cannot say")
        return False

    letters: list[Any] = []
    retry = FixedDelayRetry(5, 0, **{asked: refuse})
    async with opened(
        kind(ValueError("no")), retry=retry, on_error="dead_letter", dead_letters=letters.append
    ) as bench:
        for value in ("good", "odd" if asked == "retry_if_result" else "bad", "too"):
            await bench.operator.process(value)
        await ended(bench.operator, bench.clock)
        assert bench.shown == ["good", "too"]
        assert [type(letter.error) for letter in letters] == [LookupError]


@RAISED
@pytest.mark.parametrize("kind", [Coroutine, Batch, Blocking, Callback])
async def test_an_output_that_raises_anything_ends_the_operator(kind: Any, raised: type[BaseException]) -> None:
    operator = AsyncWaitOperator(kind(ValueError()), raising(raised))
    await operator.open()
    await operator.process("good")
    with pytest.raises(OperatorInterrupted, match="why") as ending:
        await ended(operator)
    assert type(ending.value.__cause__) is raised
    assert operator.statistics().emitted == 0
    await operator.close()


@pytest.mark.parametrize("raised", [*KINDS, OSError])
async def test_an_output_that_raises_for_a_watermark_ends_the_operator(raised: type[BaseException]) -> None:
    operator = AsyncWaitOperator(Service(), raising(raised))
    await operator.open()
    for use in (operator.process_watermark(5), operator.process("x"), operator.snapshot(), operator.finish()):
        with pytest.raises((OperatorInterrupted, OSError), match="why"):
            await use
    assert operator.statistics().emitted == 0
    await operator.close()


async def test_an_output_that_raises_as_a_timer_of_the_loop_fires_ends_the_operator() -> None:
    """What is in the cache leaves at the end of a delay, with nobody above that could catch anything."""
    service, kept = Service(), Resilience(cache=Cache(key=lambda _: "same", max_entries=1))
    taken: list[Any] = []

    def take_one(output: Any) -> None:
        if taken:
            raise OSError("disk full")
        taken.append(output)

    bench = Bench(service, resilience=kept, retry=FixedDelayRetry(2, 5))
    operator = AsyncWaitOperator(
        service, take_one, resilience=kept, retry=FixedDelayRetry(2, 5), clock=bench.clock, mode="unordered"
    )
    await operator.open()
    await operator.process("fails")
    await operator.process("works")
    await settle()
    await service.fail("fails", ValueError())
    await service.answer("works")
    await bench.clock.advance(5)
    with pytest.raises(OSError, match="disk full"):
        await ended(operator)
    await operator.close()


async def test_no_call_begins_after_the_output_has_raised() -> None:
    service = Service()
    operator = AsyncWaitOperator(service, raising(Custom), mode="key_ordered", key_by=lambda _: "key")
    await operator.open()
    await operator.process(1)
    await operator.process(2)
    await settle()
    await service.answer(1)
    with pytest.raises(OperatorInterrupted):
        await ended(operator)
    assert service.called == [1]
    await operator.close()


@pytest.mark.parametrize("mode", ["ordered", "unordered", "key_ordered"])
@pytest.mark.parametrize("output", ["first of a record", "last of a record", "watermark"])
async def test_a_snapshot_inside_of_the_output_is_refused(mode: Any, output: str) -> None:
    refused: list[Any] = []
    place = ["first of a record", "last of a record", "watermark"].index(output)

    def take(_: Any) -> None:
        refused.append(None)
        if len(refused) == place + 1:
            with pytest.raises(SnapshotInsideOutput, match="let output"):
                operator.snapshot().send(None)

    operator = AsyncWaitOperator(Instant(lambda value: [value, value]), take, mode=mode, key_by=lambda value: value)
    await operator.open()
    await operator.process(1)
    await operator.process_watermark(1)
    await operator.process(2)
    await operator.finish()
    cut = await operator.snapshot()
    await operator.close()

    assert (len(refused), cut.emitted, cut.watermark) == (5, 5, 1)


@pytest.mark.parametrize("kind", [Coroutine, Batch])
async def test_a_function_that_cancels_its_own_task_fails_its_element_only(kind: Any) -> None:
    class Cancelling(kind):  # type: ignore[misc]
        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            if value == "bad":
                cancel_this_task()
                await asyncio.sleep(0)
            return [value]

        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            return [await self.async_invoke(value, ctxs) for value in values]

    letters: list[DeadLetter] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "capacity": 2}
    stream = AsyncDataStream.ordered_wait(["good", "bad", "better", "bad"], Cancelling(ValueError()), **options)
    assert [output async for output in stream] == ["good", "better"]
    assert [type(letter.error) for letter in letters] == [asyncio.CancelledError] * 2


def cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _cancelled(value: int) -> int:
    cancel_this_task()
    return value


async def _shielded(value: int) -> int:
    cancel_this_task()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return value


async def _raising(value: int) -> int:
    await _shielded(value)
    raise ValueError(value)


@pytest.mark.parametrize("cancelling", [_cancelled, _shielded, _raising])
async def test_a_call_is_not_disturbed_by_one_that_has_cancelled_its_own_task(cancelling: Any) -> None:
    """The two share a worker. One of them awaits what was cancelled, which is no cancellation of the operator."""
    found = []

    async def call(value: int) -> int:
        if value % 3 == 0:
            await cancelling(value)
        task = asyncio.current_task()
        assert task is not None
        found.append((value % 3, task.cancelling()))
        await asyncio.sleep(0)
        if value % 3 == 2:
            other = asyncio.create_task(asyncio.sleep(60))
            other.cancel()
            await other
        return value

    outputs = AsyncDataStream.ordered_wait(range(30), call, capacity=2, on_error="skip")
    assert [output async for output in outputs if output % 3] == [*range(1, 30, 3)]
    assert {count for kind, count in found if kind} == {0}


@pytest.mark.parametrize("kind", [Coroutine, Batch])
async def test_a_program_that_cancels_all_its_tasks_ends_the_operator(kind: Any) -> None:
    class Waiting(kind):  # type: ignore[misc]
        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            await asyncio.sleep(3600)

        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            await asyncio.sleep(3600)

    async with opened(Waiting(ValueError()), on_error="skip") as bench:
        await bench.operator.process("x")
        await bench.clock.advance(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(OperatorInterrupted, match="CancelledError"):
            await ended(bench.operator)


RAISED_IN_ITS_PLACE: dict[type[BaseException], type[BaseException]] = {
    StopIteration: RuntimeError,
    SystemExit: OperatorInterrupted,  # it would end the program without a word
}


@pytest.mark.parametrize("raised", KINDS)
def test_what_open_raises_comes_out_of_open_and_the_function_is_closed(raised: type[BaseException]) -> None:
    closed = []

    class Broken(Service):
        async def open(self, runtime: Any) -> None:
            raise raised("why")

        async def close(self) -> None:
            closed.append(True)

    operator = AsyncWaitOperator(Broken(), print)
    with pytest.raises(RAISED_IN_ITS_PLACE.get(raised, raised)):
        asyncio.run(operator.open())
    assert closed == [True]
    with pytest.raises(OperatorClosed):
        asyncio.run(operator.open())


@pytest.mark.parametrize("raised", KINDS)
def test_what_close_raises_comes_out_of_close_once(raised: type[BaseException]) -> None:
    class Broken(Service):
        async def close(self) -> None:
            raise raised("why")

    loop = asyncio.SelectorEventLoop()
    operator = AsyncWaitOperator(Broken(), print)
    loop.run_until_complete(operator.open())
    with pytest.raises(RAISED_IN_ITS_PLACE.get(raised, raised)):
        loop.run_until_complete(operator.close())
    loop.run_until_complete(operator.close())
    loop.close()


async def test_a_failed_watermark_is_not_in_the_counters() -> None:
    async with opened(Service()) as bench:
        await bench.feed(Watermark(3))
        assert bench.operator.statistics().emitted == 1
