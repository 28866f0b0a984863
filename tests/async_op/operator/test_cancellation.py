"""Coroutines of operators and streams, cancelled wherever they wait: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    OperatorClosed,
    OperatorInterrupted,
)
from keygroups import DiskStateBackend, ValueState
from tests.async_op.kit import Instant, Service, commit, opened, settle

COUNT = ValueState("count", default=0)


@types.coroutine
def cancelled_at(place: int, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await a coroutine whose task is cancelled as it waits for the n-th time; counts from 1."""
    waits, step, given = 0, coroutine.send, None
    while True:
        try:
            waited = step(given)
        except StopIteration as end:
            return end.value
        waits += 1
        if waits == place:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            step, given = coroutine.send, (yield waited)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            step, given = coroutine.throw, error


async def is_cancelled(place: int, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Tell whether a coroutine that is cancelled as it waits for the n-th time ends so; it may be over before."""
    task = asyncio.create_task(_run(cancelled_at(place, coroutine)))
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


async def _run(awaitable: Any) -> Any:
    return await awaitable


class Patient(AsyncFunction):
    """Takes some turns for everything, and notes what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def open(self, runtime: Any) -> None:
        self.events.append("open")
        try:
            await turns(3)
        finally:
            self.events.append("opened")

    async def async_invoke(self, value: Any, ctx: Any) -> Any:
        try:
            await turns(2)
        finally:
            await asyncio.sleep(0)
        return [value]

    async def close(self) -> None:
        self.events.append("close")
        await turns(3)


class PatientBatch(Patient, AsyncBatchFunction):
    max_batch_size = 3
    max_batch_delay = 0.0

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        await turns(2)
        return [[value] for value in values]


class Counting(Patient):
    states = (COUNT,)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ours() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("keygroups")]


def element(value: Any) -> tuple[Any, None, None]:
    return value, None, None


Work = Callable[[AsyncWaitOperator, Iterator[int]], Coroutine[Any, Any, Any]]


async def feed_one_by_one(operator: AsyncWaitOperator, values: Iterator[int]) -> None:
    for value in values:
        try:
            await operator.process(value)
        except asyncio.CancelledError:
            await operator.process(value)  # it was not accepted
            raise


async def feed_all(operator: AsyncWaitOperator, values: Iterator[int]) -> None:
    await operator.process_all(map(element, values))


async def feed_and_finish(operator: AsyncWaitOperator, values: Iterator[int]) -> None:
    await feed_all(operator, values)
    await operator.settle(30)
    await operator.finish()


@pytest.mark.parametrize("work", [feed_one_by_one, feed_all, feed_and_finish])
@pytest.mark.parametrize("function", [Patient, PatientBatch])
@pytest.mark.parametrize("mode", ["ordered", "unordered", "key_ordered"])
async def test_a_feeder_continues_where_it_was_cancelled(mode: Any, function: Any, work: Work) -> None:
    count, place, cancelled = 8, 0, True
    while cancelled:
        place += 1
        outputs: list[Any] = []
        options: dict[str, Any] = {"mode": mode, "capacity": 2, "key_by": lambda value: value % 2}
        operator = AsyncWaitOperator(function(), lambda record, to=outputs: to.append(record.value), **options)
        await operator.open()
        values = iter(range(count))
        cancelled = await is_cancelled(place, work(operator, values))
        await feed_all(operator, values)
        await operator.finish()
        await operator.close()
        assert sorted(outputs) == [*range(count)], place
        assert ours() == []
    assert place > 2


async def test_an_element_that_waits_for_room_is_put_in_when_its_feeder_is_cancelled() -> None:
    service = Service()
    async with opened(service, capacity=2) as bench:
        values = iter("abcd")
        feeding = asyncio.create_task(bench.operator.process_all(map(element, values)))
        await settle()
        feeding.cancel()
        await asyncio.wait([feeding])
        assert (feeding.cancelled(), bench.operator.statistics().accepted, [*values]) == (True, 3, ["d"])
        await service.answer("a", "b", "c")
        assert bench.shown == ["a", "b", "c"]


@pytest.mark.parametrize("backend", ["memory", "disk"])
async def test_an_open_that_was_cancelled_leaves_nothing(backend: str, tmp_path: Path) -> None:
    async with opened(Counting(), key_by=lambda value: value) as bench:
        await bench.operator.process(1)
        snapshot = await commit(await bench.operator.snapshot())
    place, cancelled = 0, True
    while cancelled:
        place += 1
        function, kind = Counting(), "memory" if backend == "memory" else DiskStateBackend(str(tmp_path))
        operator = AsyncWaitOperator(function, print_nothing, key_by=lambda value: value, state_backend=kind)
        cancelled = await is_cancelled(place, operator.open(snapshot.restore(0)))
        if cancelled:
            with pytest.raises(OperatorClosed):
                await operator.process(1)
        await operator.close()
        assert ours() == []
        assert function.events in ([], ["open", "opened", "close"])
        assert await asyncio.to_thread(files_in, tmp_path) == []
    assert place > 2


def files_in(folder: Path) -> list[Path]:
    return [*folder.rglob("*.sst"), *folder.rglob("LOCK")]


def print_nothing(_: Any) -> None:
    """Take an output."""


@pytest.mark.parametrize("function", [Patient, PatientBatch, Counting])
async def test_a_close_that_was_cancelled_continues_at_the_next_call(function: Any) -> None:
    place, cancelled = 0, True
    while cancelled:
        place += 1
        subject = function()
        operator = AsyncWaitOperator(subject, print_nothing, key_by=lambda value: value)
        await operator.open()
        await operator.process(1)
        await turns(2)
        cancelled = await is_cancelled(place, operator.close())
        await operator.close()
        assert ours() == []
        assert subject.events == ["open", "opened", "close"]
    assert place > 2


async def test_who_closes_beside_another_waits_for_the_end_too() -> None:
    function = Patient()
    async with opened(function) as bench:
        await bench.operator.process(1)
        first = asyncio.create_task(bench.operator.close())
        await asyncio.sleep(0)
        await bench.operator.close()
        assert ours() == []
        await first
    assert function.events == ["open", "opened", "close"]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_close_during_open_closes_the_function_after_it_was_opened(stubborn: bool) -> None:
    class Slow(Patient):
        async def open(self, runtime: Any) -> None:
            try:
                await super().open(runtime)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    for after in range(8):
        function = Slow()
        operator = AsyncWaitOperator(function, print_nothing)
        opening = asyncio.create_task(operator.open())
        await turns(after)
        await operator.close()
        await asyncio.wait([opening])
        assert opening.exception() is None or isinstance(opening.exception(), OperatorClosed)
        assert function.events in ([], ["open", "opened", "close"])
        with pytest.raises(OperatorClosed, match="closed"):
            await operator.process(1)
        assert ours() == []


async def test_an_open_that_is_closed_leaves_its_task_uncancelled() -> None:
    function, went_on = Patient(), []
    operator = AsyncWaitOperator(function, print_nothing)

    async def open_and_go_on() -> None:
        with pytest.raises(OperatorClosed, match="closed"):
            await operator.open()
        await asyncio.sleep(0)
        went_on.append(True)

    opening = asyncio.create_task(open_and_go_on())
    await turns(2)
    await operator.close()
    await opening
    assert went_on == [True]


async def test_an_open_that_was_cancelled_and_closed_is_cancelled() -> None:
    operator = AsyncWaitOperator(Patient(), print_nothing)
    opening = asyncio.create_task(operator.open())
    await turns(2)
    opening.cancel()
    await operator.close()
    await asyncio.wait([opening])
    assert opening.cancelled()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    yield
    await settle()
    assert ours() == []


async def asynchronous(values: Any) -> AsyncIterator[Any]:
    for value in values:
        await asyncio.sleep(0)
        yield value


@pytest.mark.parametrize("make", [list, asynchronous])
@pytest.mark.parametrize("function", [Patient, PatientBatch])
async def test_a_stream_that_is_cancelled_anywhere_leaves_nothing(make: Any, function: Any) -> None:
    place, cancelled = 0, True
    while cancelled:
        place += 1
        subject, outputs = function(), list[Any]()

        async def take(subject: Any = subject, outputs: list[Any] = outputs) -> None:
            async with aclosing(AsyncDataStream.ordered_wait(make(range(6)), subject, capacity=2)) as stream:
                async for output in stream:
                    outputs.append(output)

        async with nothing_left():
            cancelled = await is_cancelled(place, take())
        assert outputs == [*range(len(outputs))]
        assert subject.events == ["open", "opened", "close"]
    assert outputs == [*range(6)]
    assert place > 2


@pytest.mark.parametrize("at_once", [False, True])
async def test_idle_workers_that_are_cancelled_from_outside_end_the_operator(at_once: bool) -> None:
    async with opened(Instant(lambda value: [value])) as bench:
        await bench.feed("x")
        for task in asyncio.all_tasks():
            if task.get_name() == "keygroups worker":
                task.cancel()
        if not at_once:
            await settle()
        with pytest.raises(OperatorInterrupted, match="CancelledError"):
            await bench.operator.process("y")
            await bench.operator.finish()
