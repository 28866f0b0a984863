"""An async generator that was given as a source is closed in the task that has read it, whatever ends the reading."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from async_op import AsyncDataStream, ElementFailed, Job


class Source:
    """An async generator with everything that belongs to a task, and a note of how it ended."""

    def __init__(self, last: int | None = None, then: Exception | None = None) -> None:
        self.last = last
        self.then = then
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.is_closed = False

    async def read(self) -> AsyncIterator[int]:
        self.tasks.append(asyncio.current_task())
        try:
            async with asyncio.TaskGroup() as group, asyncio.timeout(60):
                beside = group.create_task(asyncio.Event().wait())
                value = 0
                while value != self.last:
                    yield value
                    value += 1
                    await asyncio.sleep(0)
                beside.cancel()
        finally:
            with suppress(asyncio.CancelledError):  # a task group of Python 3.13 repeats what has cancelled its task
                await asyncio.sleep(0)
            self.tasks.append(asyncio.current_task())
            self.is_closed = True
            if self.then is not None:
                raise self.then

    @property
    def was_closed_well(self) -> bool:
        return self.is_closed and self.tasks[0] is self.tasks[1]


async def _same(value: int) -> int:
    if value == 5:
        raise ValueError("wrong")
    return value


async def _breaks_off(source: Source) -> None:
    async with aclosing(AsyncDataStream.ordered_wait(source.read(), abs)) as outputs:
        async for _ in outputs:
            break


async def _ends(source: Source) -> None:
    source.last = 5
    assert [one async for one in AsyncDataStream.ordered_wait(source.read(), _same)] == [0, 1, 2, 3, 4]


async def _fails(source: Source) -> None:
    with pytest.raises(ElementFailed):
        _ = [one async for one in AsyncDataStream.ordered_wait(source.read(), _same)]


async def _is_cancelled(source: Source) -> None:
    async def consume() -> None:
        async for value in AsyncDataStream.ordered_wait(source.read(), abs):
            if value == 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(consume())


def _job(source: Source, step: Any) -> Job:
    return Job(source.read(), step, lambda *_: None, snapshots=f"memory://{uuid.uuid4().hex}", job_id="job")


async def _job_ends(source: Source) -> None:
    source.last = 5
    await _job(source, _same).run()


async def _job_fails(source: Source) -> None:
    with pytest.raises(ElementFailed):
        await _job(source, _same).run()


async def _job_is_stopped(source: Source) -> None:
    async def stop(value: int) -> int:
        if value == 3:
            job.stop(drain=False)
        return value

    job = _job(source, stop)
    await job.run()


async def _job_is_cancelled(source: Source) -> None:
    begun = asyncio.Event()

    async def begin(value: int) -> int:
        begun.set()
        return value

    running = asyncio.create_task(_job(source, begin).run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


ENDINGS: list[Callable[[Source], Any]] = [
    *(_ends, _fails, _breaks_off, _is_cancelled, _job_ends, _job_fails, _job_is_stopped, _job_is_cancelled),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__.strip("_"))
async def test_a_generator_is_closed_in_its_own_task(ending: Callable[[Source], Any]) -> None:
    source = Source()
    await ending(source)
    assert source.was_closed_well


@pytest.mark.parametrize("ending", [_fails, _job_fails], ids=lambda ending: ending.__name__.strip("_"))
async def test_an_error_of_the_closing_does_not_hide_the_failure(
    ending: Callable[[Source], Any], caplog: pytest.LogCaptureFixture
) -> None:
    await ending(Source(then=RuntimeError("not closed")))
    assert "did not close well" in caplog.text
    assert "not closed" in caplog.text


async def test_an_error_at_the_end_of_a_generator_is_raised() -> None:
    source = Source(last=3, then=RuntimeError("not closed"))
    with pytest.raises(RuntimeError, match="not closed"):
        _ = [one async for one in AsyncDataStream.ordered_wait(source.read(), _same)]


async def test_what_is_no_generator_needs_no_close() -> None:
    class Numbers:
        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> int:
            return 1

    with suppress(StopAsyncIteration):
        async with aclosing(AsyncDataStream.ordered_wait(Numbers(), _same)) as outputs:
            assert await anext(outputs) == 1
