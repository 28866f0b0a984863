"""The tasks of a running job: the failure of one of them fails the job."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from async_op.errors import as_exception
from async_op.job.waiting import ended, heard
from async_op.threads.decimal_context import own_context

_Result = TypeVar("_Result")


class TaskGroup:
    """Runs coroutines until the job ends. Only the thread of the event loop may call it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of its own; whatever it raises fails the job."""
        # What a source or a sink sets there, no function sees that is opened later, as after a rescale.
        task = asyncio.get_running_loop().create_task(self._supervise(coroutine), context=own_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: coroutine.close())  # if it was cancelled before it began
        return task

    def fail(self, error: BaseException) -> None:
        """Fail the job; the first error counts."""
        if not self._failure.done():
            self._failure.set_exception(as_exception(error))

    async def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to its end, or raise the first failure of any task as soon as it comes."""
        work = asyncio.get_running_loop().create_task(coroutine)
        try:
            waited: set[asyncio.Future[Any]] = {work, self._failure}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            has_ended_well = work.done() and not work.cancelled() and work.exception() is None
            if self._failure.done() and not self._failure.cancelled() and not has_ended_well:
                self._failure.result()
            with heard("the job"):
                return await work
        finally:
            await ended([work])

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await ended(list(self._tasks))
        if self._failure.done():
            self._failure.exception()  # it is raised already, or came too late
        else:
            self._failure.cancel()

    async def _supervise(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        try:
            await coroutine
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling():
                raise
            self.fail(error)
        except BaseException as error:  # noqa: BLE001 - it fails the job
            self.fail(error)
