"""Streams and jobs close everything in a task that is cancelled at each `await`, as anyio does until the task ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, InvocationContext, cancellation
from async_op.cancellation import to_the_end
from tests.async_op.job.kit import Epochs, new_job


class Client(AsyncFunction[Any, Any]):
    """Takes some turns of the event loop to open and to close."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.called = asyncio.Event()

    async def open(self, runtime: Any) -> None:
        await self._turns("open")

    async def close(self) -> None:
        await self._turns("close")

    async def _turns(self, event: str) -> None:
        self.events.append(event)
        for _ in range(5):
            await asyncio.sleep(0)
        self.events.append(f"{event} done")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        if value > 3:
            self.called.set()
            await asyncio.Event().wait()
        return [value]


async def cancelled_until_it_ends(task: asyncio.Task[Any]) -> int:
    """Cancel a task in each turn of the event loop, and return how often."""
    count = 0
    while not task.done():
        count += task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    return count


def in_a_stream(client: Client, closed: list[str]) -> Coroutine[Any, Any, None]:
    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append("source")

    async def take() -> None:
        async for _ in AsyncDataStream.ordered_wait(numbers(), client, capacity=5):
            pass

    return take()


def in_a_stream_with_snapshots(client: Client, closed: list[str]) -> Coroutine[Any, Any, None]:
    async def take() -> None:
        place: dict[str, Any] = {"snapshots": f"memory://{uuid.uuid4().hex}", "job_id": "job"}
        async for _ in AsyncDataStream.ordered_wait(range(10), client, capacity=5, **place):
            pass

    closed.append("source")
    return take()


class Closing(Epochs):
    def __init__(self, closed: list[str]) -> None:
        super().__init__()
        self._closed = closed

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._closed.append("source")  # closed after the steps


def in_a_job(client: Client, closed: list[str]) -> Coroutine[Any, Any, None]:
    return new_job(list(range(10)), client, Closing(closed)).run()


@pytest.mark.parametrize("place", [in_a_stream, in_a_stream_with_snapshots, in_a_job])
async def test_everything_is_closed_in_a_task_that_is_cancelled_again_and_again(place: Any) -> None:
    client, closed, before = Client(), list[str](), asyncio.all_tasks()
    task = asyncio.create_task(place(client, closed))
    async with asyncio.timeout(30):
        await client.called.wait()
        assert await cancelled_until_it_ends(task) > 1

    assert client.events == ["open", "open done", "close", "close done"]
    assert closed == ["source"]
    assert asyncio.all_tasks() == before


async def test_a_job_can_run_again_after_that() -> None:
    client, sink = Client(), Epochs()
    job = new_job(list(range(4)), client, sink)
    for turns in (0, 1, 5):
        task = asyncio.create_task(job.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancelled_until_it_ends(task)
    await job.run()
    assert sink.values == [0, 1, 2, 3]


async def test_work_is_waited_for_however_often_it_is_cancelled_and_then_the_cancellation_is_raised() -> None:
    done = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(to_the_end(done))
    for _ in range(20):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    assert not done.done()
    done.set_result("result")
    await asyncio.wait([task])
    assert task.cancelled()


async def test_work_that_does_not_end_is_given_up_by_a_late_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "CLOSE_SECONDS", 0.0)
    never = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(to_the_end(never))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not never.done()
