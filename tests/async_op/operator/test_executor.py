"""The operator's front door: what other threads submit runs on its event loop, in bounds, until it is closed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from async_op import AsyncWaitOperator, OperatorClosed, TooManySubmitted
from async_op.operator.executor import SUBMITTED_MAX
from tests.async_op.kit import Bench, Service, eventually, opened, settle


async def test_a_call_runs_on_the_loop_and_its_result_comes_back() -> None:
    async with opened(Service()) as bench:
        executor = bench.operator.executor()
        ident = await asyncio.to_thread(lambda: executor.submit(threading.get_ident).result())
        assert ident == threading.get_ident()
        assert await asyncio.to_thread(lambda: executor.submit(dict, {"a": 1}, b=2).result()) == {"a": 1, "b": 2}


async def test_whole_operators_are_fed_from_threads() -> None:
    outputs: list[Any] = []

    async def double(value: int) -> int:
        return 2 * value

    async with AsyncWaitOperator(double, outputs.append, capacity=3) as operator:

        def feed(first: int) -> None:
            for value in range(first, first + 100):
                operator.executor().submit(operator.process, value).result()

        await asyncio.gather(*(asyncio.to_thread(feed, first) for first in (0, 100, 200)))
        await operator.finish()
    assert sorted(record.value for record in outputs) == [2 * value for value in range(300)]


async def test_calls_begin_in_the_order_in_which_they_were_submitted() -> None:
    async with opened(Service(), capacity=1) as bench:
        submit = bench.operator.executor().submit
        began: list[int] = []
        await asyncio.to_thread(lambda: [submit(began.append, number) for number in range(100)])
        await settle()
        assert began == list(range(100))


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration("no")])
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_an_error_reaches_the_thread_and_nobody_else(error: BaseException, is_awaited: bool) -> None:
    if is_awaited and not isinstance(error, ValueError):
        error = ValueError("others end the task of whoever awaits them")

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    async with opened(Service()) as bench:
        future = bench.operator.executor().submit(fail_later if is_awaited else fail)
        await eventually(future.done)
        assert future.exception() is error
        await bench.feed("x")
        assert bench.in_flight == 1


def test_cut_comes_before_results() -> None:
    """Results of calls and a snapshot wait for the loop; the snapshot is from before the results."""

    async def run() -> tuple[int, int]:
        async with opened(Service(), mode="ordered") as bench:
            await bench.feed("x")
            executor = bench.operator.executor()
            futures: list[Future[Any]] = []

            def ask() -> None:
                futures.append(executor.submit(bench.operator.process, "later"))
                futures.append(executor.snapshot())

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()  # the loop is busy meanwhile
            await settle()
            return len(futures[1].result().in_flight), bench.in_flight

    assert asyncio.run(run()) == (1, 2)


async def test_a_thread_may_close_the_operator() -> None:
    service = Service()
    bench = Bench(service)
    await bench.operator.open()
    await bench.feed("x")
    await asyncio.to_thread(lambda: bench.operator.executor().close().result())
    assert service.running == []
    with pytest.raises(OperatorClosed):
        bench.operator.executor()


async def test_after_the_close_nothing_is_taken_and_what_waits_is_given_up() -> None:
    async with opened(Service(), capacity=1) as bench:
        await bench.feed("x")
        executor = bench.operator.executor()
        begun = executor.submit(bench.operator.process, "y")
        await settle()
        waiting = executor.submit(bench.operator.process, "z")
        await bench.operator.close()
        with pytest.raises(OperatorClosed):
            begun.result()
        with pytest.raises((OperatorClosed, CancelledError)):
            waiting.result()
        for refused in (executor.snapshot, executor.close, lambda: executor.submit(int)):
            with pytest.raises(OperatorClosed):
                refused()


async def test_a_call_that_has_begun_can_be_cancelled() -> None:
    cancelled = asyncio.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    async with opened(Service()) as bench:
        future = bench.operator.executor().submit(wait_for_ever)
        await settle()
        assert future.cancel()
        await cancelled.wait()


async def test_a_thread_waits_while_too_many_calls_are_open_and_the_loop_itself_is_refused() -> None:
    gate = asyncio.Event()
    async with opened(Service()) as bench:
        executor = bench.operator.executor()
        first = [executor.submit(gate.wait) for _ in range(SUBMITTED_MAX)]
        with pytest.raises(TooManySubmitted, match="await the operator's methods"):
            executor.submit(gate.wait)
        cut = await asyncio.to_thread(lambda: executor.snapshot().result())
        assert cut.in_flight == (), "a cut waits for none of them"
        further: list[Future[bool]] = []
        thread = threading.Thread(target=lambda: further.append(executor.submit(gate.wait)))
        thread.start()
        await settle()
        assert not further
        gate.set()
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(wait, [*first, *further])
        assert all(future.result() for future in [*first, *further])


async def test_a_thread_that_waits_for_its_turn_learns_of_the_close() -> None:
    gate = asyncio.Event()
    refused: list[OperatorClosed] = []
    async with opened(Service()) as bench:
        executor = bench.operator.executor()
        for _ in range(SUBMITTED_MAX):
            executor.submit(gate.wait)

        def submit() -> None:
            try:
                executor.submit(int)
            except OperatorClosed as closed:
                refused.append(closed)

        thread = threading.Thread(target=submit)
        thread.start()
        await settle()
    await asyncio.to_thread(thread.join)
    assert len(refused) == 1


def test_before_the_open_there_is_no_executor() -> None:
    with pytest.raises(OperatorClosed, match="await open"):
        AsyncWaitOperator(Service(), print).executor()


def test_a_loop_that_has_ended_refuses() -> None:
    bench: list[Bench] = []

    async def leave_it_open() -> None:
        bench.append(Bench(Service()))
        await bench[0].operator.open()

    asyncio.run(leave_it_open())
    with pytest.raises(OperatorClosed):
        bench[0].operator.executor().submit(int)


async def test_statistics_show_the_mailbox() -> None:
    async with opened(Service()) as bench:
        executor = bench.operator.executor()
        for _ in range(3):
            executor.submit(int)
        assert bench.operator.statistics().mailbox_length == 3
        await settle()
        counts = bench.operator.statistics()
        assert (counts.mails, counts.mailbox_length) == (3, 0)
        assert sum(count for _, count in counts.mailbox_latency.buckets) == 1


async def test_a_block_opens_and_closes_whatever_it_raises() -> None:
    service = Service()
    with pytest.raises(ValueError, match="inside"):
        async with AsyncWaitOperator(service, print) as operator:
            await operator.process("x")
            await settle()
            raise ValueError("inside")
    assert service.running == []
    with pytest.raises(OperatorClosed):
        await operator.process("y")
