"""An operator belongs to the event loop on which it was opened: called elsewhere, every method says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from async_op import AsyncWaitOperator, OperatorClosed, WrongEventLoop
from tests.async_op.kit import LOOPS_THREADS, Bench, Service, opened

COROUTINES: dict[str, Callable[[AsyncWaitOperator], Any]] = {
    "process": lambda operator: operator.process(1),
    "process_all": lambda operator: operator.process_all([(1, None, None)]),
    "process_watermark": lambda operator: operator.process_watermark(1),
    "snapshot": lambda operator: operator.snapshot(),
    "settle": lambda operator: operator.settle(1.0),
    "finish": lambda operator: operator.finish(),
}
READS: dict[str, Callable[[AsyncWaitOperator], Any]] = {
    "statistics": lambda operator: operator.statistics(),
}


def on_a_loop_of_its_own(use: Callable[[AsyncWaitOperator], Any], operator: AsyncWaitOperator) -> None:
    async def run() -> None:
        result = use(operator)
        if asyncio.iscoroutine(result):
            await result

    loop = asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.mark.parametrize("use", [*COROUTINES, *READS, "close"])
async def test_another_event_loop_is_refused_and_the_operator_continues(use: str) -> None:
    service = Service()
    async with opened(service, capacity=1) as bench:
        await bench.feed("x")
        uses = {**COROUTINES, **READS, "close": lambda operator: operator.close()}
        with pytest.raises(WrongEventLoop, match=r"executor\(\)\.submit") as raised:
            await asyncio.to_thread(on_a_loop_of_its_own, uses[use], bench.operator)
        assert raised.value.thread.startswith(LOOPS_THREADS)
        await service.answer("x")
        assert bench.shown == ["x"]


@pytest.mark.parametrize("use", READS)
async def test_a_thread_without_a_loop_may_not_read_counters_that_change(use: str) -> None:
    async with opened(Service()) as bench:
        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(READS[use], bench.operator)

    await asyncio.to_thread(READS[use], bench.operator)


@pytest.mark.parametrize("use", COROUTINES)
async def test_before_open_no_coroutine_does_anything(use: str) -> None:
    with pytest.raises(OperatorClosed, match="await open"):
        await COROUTINES[use](Bench(Service()).operator)


@pytest.mark.parametrize("use", READS)
async def test_before_open_there_is_nothing_to_read(use: str) -> None:
    with pytest.raises(OperatorClosed, match="await open"):
        READS[use](Bench(Service()).operator)


async def test_other_threads_hand_their_calls_over() -> None:
    service = Service()
    async with opened(service) as bench:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(bench.operator.process("x"), loop).result())
        await service.answer("x")
        assert bench.shown == ["x"]
