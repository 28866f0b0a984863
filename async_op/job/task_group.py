"""The tasks of a running job: the failure of one of them fails the job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from async_op.cancellation import tasks_if_all_are_cancelled
from async_op.connectors.conformance import Connector, closed, to_await
from async_op.errors import as_exception
from async_op.job.errors import ConnectorBroken, ConnectorCancelled
from async_op.job.waiting import ended, heard
from async_op.own_task import OwnTask
from async_op.threads.decimal_context import own_context, with_own_decimals

_Result = TypeVar("_Result")
_log = logging.getLogger(__package__)


class TaskGroup:
    """Runs coroutines until the job ends. Only the thread of the event loop may call it.

    Attributes
    ----------
    context : Context
        Where sources and sinks are opened. Each task has a copy of it, so it sees the context variables they have set;
        functions do not.
    """

    def __init__(self) -> None:
        self.context = own_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of its own; whatever it raises fails the job."""
        context, _ = with_own_decimals(self.context)
        task = asyncio.get_running_loop().create_task(self._supervise(coroutine), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: coroutine.close())  # if it was cancelled before it began
        return task

    def fail(self, error: BaseException) -> bool:
        """Fail the job; the first error counts. Returns whether it is this one."""
        is_first = not self._failure.done()
        if is_first:
            self._failure.set_exception(as_exception(error))
        return is_first

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

    def release(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Let the caller cancel some of the tasks: any other cancellation fails the job."""
        self._tasks.difference_update(tasks)

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = list(self._tasks)
        self.release(tasks)
        await ended(tasks)
        if self._failure.done():
            self._failure.exception()  # it is raised already, or came too late
        else:
            self._failure.cancel()

    async def _supervise(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        try:
            await coroutine
        except asyncio.CancelledError as error:
            if task not in self._tasks or tasks_if_all_are_cancelled() is not None:
                raise
            failure = ConnectorCancelled("the job")  # a client has cancelled the task that it runs in
            failure.__cause__ = error
            self.fail(failure)
        except BaseException as error:  # noqa: BLE001 - it fails the job
            self.fail(error)


class OpenConnector(OwnTask):
    """Opens and closes a source or a sink. Only the event loop's thread may call it.

    Parameters
    ----------
    connector : Source or Sink
        The source or the sink.
    tasks : TaskGroup
        The tasks of the job, which fail if what the connector has opened breaks.

    Attributes
    ----------
    connector : Source or Sink
        The source or the sink.
    """

    __slots__ = ("_is_open", "_tasks", "connector")

    def __init__(self, connector: Connector, tasks: TaskGroup) -> None:
        super().__init__()
        self.connector = connector
        self._tasks = tasks
        self._is_open = False

    async def open(self) -> None:
        """Open it. After a failure it may be opened again, and need not be closed."""
        try:
            await self._open_in(self._tasks.context)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close it, if it is open; may be called again."""
        await self._close_in_task()

    async def _begin(self) -> None:
        await to_await(self.connector, "open", self.connector.open())
        self._is_open = True

    async def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            await closed(self.connector)

    async def _break(self, cancelled: asyncio.CancelledError | None) -> None:
        assert cancelled is not None, "a source or a sink shares nothing"
        raised = await self._ended()
        error = cancelled if raised is None else raised
        failure = ConnectorBroken(type(self.connector).__name__, error)
        failure.__cause__ = error
        if not self._tasks.fail(failure):  # what has failed the job is often a consequence
            _log.error("%s", failure, exc_info=error)
