"""Errors of the function: they name the element, reach whoever feeds the operator, and leave nothing half done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op import (
    AsyncFunction,
    AsyncWaitOperator,
    ElementFailed,
    FixedDelayRetry,
    InvalidFunctionResult,
    InvocationContext,
    Runtime,
    Watermark,
)
from keygroups import ValueState
from tests.async_op.kit import BOTH, Bench, Instant, Service, opened, settle

COUNT = ValueState("count", default=0)


@pytest.mark.behaviour("a failure names the input and frees whoever waits; the first one counts")
@pytest.mark.behaviour("after an error of the function close does not hang")
@BOTH
async def test_a_failing_element_fails_the_operator_by_name(mode: str) -> None:
    service = Service()
    cause = ValueError("no such row")
    async with opened(service, mode=mode, key_by=lambda value: value["id"]) as bench:
        await bench.feed({"id": 17})
        await service.fail({"id": 17}, cause)

        with pytest.raises(ElementFailed, match=r"element {'id': 17} \(id .*-0\) with key 17 failed") as raised:
            await bench.operator.finish()
        assert raised.value.__cause__ is cause
        assert (raised.value.element, raised.value.attempt) == ("{'id': 17}", 1)
        assert raised.value.cause == "ValueError: no such row"


async def test_a_failure_without_a_key_mentions_none() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(17)
        await service.fail(17, ValueError("no such row"))

        with pytest.raises(ElementFailed) as raised:
            await bench.operator.finish()
        assert "key" not in str(raised.value).partition("failed:")[0]


@pytest.mark.behaviour("a failure names the input and frees whoever waits; the first one counts")
@BOTH
async def test_every_later_use_of_a_failed_operator_raises_the_first_failure(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, 2)
        await service.fail(2, ValueError("first"))
        await service.fail(1, ValueError("second"))

        operator = bench.operator
        for use in (operator.process(3), operator.process_watermark(1), operator.snapshot(), operator.finish()):
            with pytest.raises(ElementFailed, match="first"):
                await use


@pytest.mark.behaviour("a failure names the input and frees whoever waits; the first one counts")
@BOTH
async def test_a_failure_reaches_who_waits_for_a_place(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, capacity=1) as bench:
        await bench.feed(1)
        async with bench.feeding(2) as feeding:
            await service.fail(1, ValueError("no"))

            with pytest.raises(ElementFailed):
                await feeding


@pytest.mark.behaviour("a failure names the input and frees whoever waits; the first one counts")
@BOTH
async def test_a_failure_reaches_who_waits_for_the_end(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, 2)
        finishing = asyncio.create_task(bench.operator.finish())
        await service.fail(2, ValueError("no"))

        with pytest.raises(ElementFailed):
            await finishing


@BOTH
async def test_nothing_leaves_after_a_failure(mode: str) -> None:
    """What the element's siblings return belongs to the next run, which starts from the snapshot."""
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, Watermark(1), 2)
        await service.fail(1, ValueError("no"))
        await service.answer(2)

        assert bench.shown == []


@BOTH
@pytest.mark.parametrize("retry", [None, FixedDelayRetry(2, 1, retry_on=OSError)])
@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_no_watermark_leaves_after_a_failure_whatever_returns_before_it(
    mode: str, retry: Any, failing: int
) -> None:
    service = Service()
    async with opened(service, mode=mode, retry=retry) as bench:
        await bench.feed(1, Watermark(1), 2, Watermark(2), 3, Watermark(3))
        await service.fail(failing, ValueError("no"))
        await service.answer(*({1, 2, 3} - {failing}))

        assert bench.shown == []


@pytest.mark.behaviour("after an error of the function close does not hang")
async def test_close_ends_the_calls_that_a_failure_has_left() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1, 2, 3)
        await service.fail(2, ValueError("no"))

    assert service.running == []


async def test_an_error_that_is_raised_at_once_fails_the_operator_too() -> None:
    def refuse(value: Any) -> Any:
        raise ValueError(value)

    async with opened(Instant(refuse)) as bench:
        await bench.feed("bad")

        with pytest.raises(ElementFailed, match="'bad'"):
            await bench.operator.finish()


async def test_a_call_that_is_cancelled_from_outside_is_a_failure_not_a_hang() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed(1)
        service.calls[0].reply.cancel()
        await bench.clock.advance(0)

        with pytest.raises(ElementFailed, match="CancelledError"):
            await bench.operator.finish()


@pytest.mark.behaviour("a result that is no collection is refused")
@pytest.mark.parametrize("result", [None, 5, "text", b"bytes", {"a": 1}, object()])
async def test_a_result_that_is_no_collection_of_outputs_is_refused(result: Any) -> None:
    async with opened(Instant(lambda _: result)) as bench:
        await bench.feed("x")

        with pytest.raises(ElementFailed, match="return a list") as raised:
            await bench.operator.finish()
        assert isinstance(raised.value.__cause__, InvalidFunctionResult)
        assert bench.shown == []


@pytest.mark.behaviour("results and errors may be made on the owner's thread")
async def test_an_iterable_of_outputs_that_fails_midway_gives_none_of_them() -> None:
    def outputs(value: Any) -> Any:
        yield value
        raise ValueError("halfway")

    async with opened(Instant(outputs)) as bench:
        await bench.feed("x")

        with pytest.raises(ElementFailed, match="halfway"):
            await bench.operator.finish()
        assert bench.shown == []


async def test_the_writes_of_a_failed_call_are_not_applied() -> None:
    class Failing(AsyncFunction):
        states = (COUNT,)
        seen: Any = None

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            if value == "look":
                self.seen = ctx.state(COUNT).value()
                return []
            ctx.state(COUNT).update(5)
            raise ValueError(value)

    function = Failing()
    async with opened(function, key_by=lambda _: "key") as bench:
        await bench.feed("write")

        with pytest.raises(ElementFailed):
            await bench.operator.process("look")
        assert function.seen is None


async def test_an_error_of_open_leaves_the_function_closed() -> None:
    events = []

    class Broken(Service):
        async def open(self, runtime: Runtime) -> None:
            events.append("open")
            raise ConnectionError("service is down")

        async def close(self) -> None:
            events.append("close")

    bench = Bench(Broken())
    with pytest.raises(ConnectionError, match="service is down"):
        await bench.operator.open()

    assert events == ["open", "close"]
    with pytest.raises(Exception, match="closed"):
        await bench.operator.process(1)


async def test_an_error_of_the_output_fails_the_operator() -> None:
    """Whoever takes the outputs cannot go on, so neither can the operator."""

    def refuse(_: Any) -> None:
        raise OSError("disk full")

    service = Service()
    operator = AsyncWaitOperator(service, refuse)
    await operator.open()
    await operator.process(1)
    await settle()
    await service.answer(1)

    with pytest.raises(OSError, match="disk full"):
        await operator.finish()
    await operator.close()


async def test_an_error_of_close_reaches_the_caller_after_the_calls_have_ended() -> None:
    class Broken(Service):
        async def close(self) -> None:
            raise ConnectionError("connection lost")

    service = Broken()
    bench = Bench(service)
    await bench.operator.open()
    await bench.feed(1)
    with pytest.raises(ConnectionError, match="connection lost"):
        await bench.operator.close()

    assert service.running == []
