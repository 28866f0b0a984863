"""`open` and `close` of a function run in one task; what breaks in between ends the operator."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, InvocationContext, OperatorInterrupted, Runtime, Step, shared
from async_op.connectors import Sink
from tests.async_op.job.kit import Epochs, new_job, same
from tests.async_op.kit import Bench, settle

SEEN: list[str] = []
"""What functions have seen, in order; each test clears it."""


class Scope:
    """What can only be left in the task that has entered it, as the cancel scopes of many clients."""

    async def __aenter__(self) -> None:
        self.task = asyncio.current_task()

    async def __aexit__(self, *_: object) -> None:
        assert asyncio.current_task() is self.task, "left in another task"
        SEEN.append("left")


class Scoped(AsyncFunction[Any, Any]):
    """Enters a scope in `open`, and leaves it in `close`."""

    async def open(self, runtime: Runtime) -> None:
        self.scope = Scope()
        await self.scope.__aenter__()

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        await asyncio.sleep(0)
        if value == "bad":
            raise ValueError(value)
        return [value]

    async def close(self) -> None:
        await self.scope.__aexit__()


async def by_an_operator(function: Any, values: list[Any]) -> None:
    bench = Bench(function)
    await bench.operator.open()
    try:
        await bench.feed(*values)
        await bench.operator.finish()
    finally:
        await asyncio.create_task(bench.operator.close())


async def by_a_stream(function: Any, values: list[Any]) -> None:
    stream = AsyncDataStream.ordered_wait(values, function)
    try:
        async for _ in stream:
            pass
    finally:
        await asyncio.create_task(stream.aclose())


async def by_a_stream_that_another_task_closes(function: Any, values: list[Any]) -> None:
    stream = AsyncDataStream.ordered_wait(values, function)
    await anext(stream)
    await asyncio.create_task(stream.aclose())


async def by_a_job(function: Any, values: list[Any]) -> None:
    await new_job(values, function, lambda values, epoch: None).run()


DOORS = (by_an_operator, by_a_stream, by_a_job)


@pytest.mark.parametrize("door", [*DOORS, by_a_stream_that_another_task_closes])
async def test_what_open_enters_close_may_leave(door: Any) -> None:
    SEEN.clear()
    await door(Scoped(), [1, 2, 3])
    assert SEEN == ["left"]


@pytest.mark.parametrize("door", DOORS)
async def test_what_open_enters_close_may_leave_after_a_failure_too(door: Any) -> None:
    SEEN.clear()
    with pytest.raises(Exception, match="bad"):
        await door(Scoped(), [1, "bad", 3])
    assert SEEN == ["left"]


async def test_what_open_enters_close_may_leave_after_a_rescale() -> None:
    SEEN.clear()
    job = new_job(list(range(1000)), Scoped(), lambda values, epoch: None, parallelism=2)
    running = asyncio.create_task(job.run())
    while job.progress().state != "running":
        await asyncio.sleep(0)
    job.rescale(3)
    await running
    assert SEEN == ["left"] * 5


class HalfOpen(Scoped):
    """Never opens, and leaves what it has entered all the same; a task group would not do so once it was cancelled."""

    async def open(self, runtime: Runtime) -> None:
        await super().open(runtime)
        await asyncio.Event().wait()

    async def close(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(settle())
        await super().close()


class Deaf(Scoped):
    """Ignores the cancellation of `open`."""

    async def open(self, runtime: Runtime) -> None:
        await super().open(runtime)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await settle()


@pytest.mark.parametrize("function", [HalfOpen, Deaf])
async def test_an_open_that_is_cancelled_is_closed_in_its_task(function: Any) -> None:
    SEEN.clear()
    opening = asyncio.create_task(Bench(function()).operator.open())
    await settle()
    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening
    assert SEEN == ["left"]


class Breaking(AsyncFunction[Any, Any]):
    """Has a task in the background which fails, in a group that ends with it."""

    def __init__(self) -> None:
        self.is_broken = asyncio.Event()

    async def open(self, runtime: Runtime) -> None:
        self.group = asyncio.TaskGroup()
        await self.group.__aenter__()
        self.group.create_task(self.listen())

    async def listen(self) -> None:
        await self.is_broken.wait()
        raise ConnectionResetError("the service has gone")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        SEEN.append(f"called with {value}")
        self.is_broken.set()
        await asyncio.Event().wait()
        return [value]

    async def close(self) -> None:
        SEEN.append("closed")
        await self.group.__aexit__(None, None, None)


def causes_of(error: BaseException) -> str:
    """Return all that has led to an error."""
    told = []
    cause: BaseException | None = error
    while cause is not None:
        told.append(repr(cause))
        cause = cause.__cause__
    return " <- ".join(told)


@pytest.mark.parametrize("door", DOORS)
async def test_what_breaks_in_the_background_ends_the_operator_and_is_told(door: Any) -> None:
    SEEN.clear()
    with pytest.raises(OperatorInterrupted) as raised:
        await asyncio.wait_for(door(Breaking(), [1]), 60)
    assert SEEN == ["called with 1", "closed"]
    assert "the service has gone" in causes_of(raised.value)


class Falsy(ValueError):
    """An error that counts as false."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize("door", DOORS)
async def test_an_error_of_close_that_is_false_is_raised(door: Any) -> None:
    class Failing(Scoped):
        async def close(self) -> None:
            raise Falsy("no")

    with pytest.raises(Falsy, match="no"):
        await door(Failing(), [1])


class Dependent(Breaking):
    """Whose calls fail as soon as what they need is closed."""

    async def open(self, runtime: Runtime) -> None:
        await super().open(runtime)
        self.is_closed = asyncio.Event()

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.is_broken.set()
        await self.is_closed.wait()
        raise ConnectionError("closed")

    async def close(self) -> None:
        self.is_closed.set()
        await settle()
        await super().close()


async def test_calls_that_fail_because_the_function_closes_after_a_failure_are_no_failures() -> None:
    sink, letters = Epochs(), Epochs()
    options = {"snapshots": "memory://dependent", "dead_letters": letters}
    with pytest.raises(OperatorInterrupted):
        await new_job([1, 2], Step(Dependent(), "call", on_error="dead_letter"), sink, **options).run()
    await new_job([1, 2], Step(same, "call"), sink, **options).run()
    assert (sorted(sink.values), letters.values) == ([1, 2], [])


class Client:
    """A shared client that tells when it is closed."""

    async def aclose(self) -> None:
        SEEN.append("client closed")


class Lingering(AsyncFunction[Any, Any]):
    """Whose calls need some time to end when they are cancelled, however often, and a client until then."""

    async def open(self, runtime: Runtime) -> None:
        await shared("client", Client)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        try:
            SEEN.append("called")
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            SEEN.append("call ended")
        return [value]

    async def close(self) -> None:
        await settle()
        SEEN.append("closed")


class Closable(Sink[Any]):
    """Tells when it is closed."""

    async def write(self, values: list[Any], epoch: int) -> None:
        pass

    async def close(self) -> None:
        SEEN.append("sink closed")


async def in_a_job() -> None:
    await new_job([1, 2], Lingering(), Closable()).run()


async def in_a_stream() -> None:
    async for _ in AsyncDataStream.ordered_wait([1, 2], Lingering()):
        pass


async def abandoned() -> None:
    bench = Bench(Lingering())
    await bench.operator.open()
    await bench.feed(1, 2)
    await asyncio.Event().wait()


async def cancel_all() -> None:
    """Cancel all other tasks, as many programs do at a signal, and wait for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def nothing() -> None:
    """Leave it to `asyncio.run`."""


@pytest.mark.parametrize("end", [cancel_all, nothing])
@pytest.mark.parametrize("run", [in_a_job, in_a_stream, abandoned])
async def test_calls_end_before_their_function_closes_when_all_tasks_are_cancelled(run: Any, end: Any) -> None:
    SEEN.clear()

    async def program() -> None:
        running = asyncio.create_task(run())
        while SEEN != ["called", "called"]:
            await asyncio.sleep(0)
        assert not running.done()
        await end()

    await asyncio.to_thread(lambda: asyncio.run(program()))
    ends = ["call ended", "call ended", "closed", "client closed"]
    assert SEEN[2:] == ([*ends, "sink closed"] if run is in_a_job else ends)


class Unready(Lingering):
    """Is cancelled while it opens, and needs some time to undo what it has."""

    async def open(self, runtime: Runtime) -> None:
        try:
            SEEN.append("called")
            await asyncio.Event().wait()
        finally:
            await settle()
            SEEN.append("open ended")


@pytest.mark.parametrize("end", [cancel_all, nothing])
async def test_an_open_gets_one_cancellation_when_all_tasks_are_cancelled(end: Any) -> None:
    SEEN.clear()

    async def program() -> None:
        running = asyncio.create_task(by_a_stream(Unready(), [1]))
        while not SEEN:
            await asyncio.sleep(0)
        assert not running.done()
        await end()

    await asyncio.to_thread(lambda: asyncio.run(program()))
    assert SEEN == ["called", "open ended", "closed"]


async def test_subtasks_of_a_step_open_side_by_side() -> None:
    """Each waits until all have begun: one after the other, the first would wait for ever."""
    begun = []

    class Meeting(AsyncFunction[Any, Any]):
        async def open(self, runtime: Runtime) -> None:
            begun.append(runtime.subtask_index)
            while len(begun) < 3:
                await asyncio.sleep(0)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [value]

    job = new_job([1, 2, 3], Meeting(), lambda values, epoch: None, parallelism=3)
    await asyncio.wait_for(job.run(), 60)
    assert begun == [0, 1, 2]


async def test_a_subtask_that_does_not_open_ends_the_opening_of_the_others() -> None:
    SEEN.clear()

    class OneFails(HalfOpen):
        async def open(self, runtime: Runtime) -> None:
            if runtime.subtask_index == 1:
                await settle()
                raise OSError("no pool")
            await super().open(runtime)

        async def close(self) -> None:
            if hasattr(self, "scope"):
                await super().close()

    with pytest.raises(OSError, match="no pool"):
        await new_job([1, 2, 3], OneFails(), lambda values, epoch: None, parallelism=3).run()
    assert SEEN == ["left", "left"]
