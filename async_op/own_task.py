"""What is opened and closed in a task of its own: a function, a source, a sink."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from contextvars import Context
from typing import Any

from async_op.cancellation import CLOSE_SECONDS, KEEPER_TASK, forget_cancellations, tasks_if_all_are_cancelled


class OwnTask(ABC):
    """Opens and closes something of the user in one task. Only the event loop's thread may call it.

    The task is neither the opener's nor the closer's: a task group or a cancel scope, as in the clients of many
    services, can only be left in the task that has entered it. The task lasts until `close`, also if opening has
    failed.
    """

    __slots__ = ("_closing", "_raised", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[bool] | None = None
        """Whether the user has asked for it: the result is false if what it needs has broken."""
        self._raised: BaseException | None = None

    @abstractmethod
    async def _begin(self) -> None:
        """Open it; what this raises comes out of `open`."""

    @abstractmethod
    async def _end(self) -> None:
        """Close it; what this raises comes out of `close`."""

    @abstractmethod
    async def _break(self, cancelled: asyncio.CancelledError | None) -> None:
        """Close it by `_ended`, and fail its user with what that returns.

        A task group in it has cancelled the task; or something that it needs has broken, and `cancelled` is None.
        """

    def give_up(self) -> None:
        """Have it closed, and its user fail, because something that it needs has broken."""
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(False)

    async def _open_in(self, context: Context) -> None:
        """Begin the task, which runs in a context that nothing else may run in meanwhile; returns once it is open."""
        loop, opened = asyncio.get_running_loop(), asyncio.Event()
        closing = self._closing = loop.create_future()
        # Not through the loop's task factory: an eager factory would run the task before its owner knows about it.
        task = self._task = asyncio.Task(self._live(opened, closing), loop=loop, name=KEEPER_TASK, context=context)
        task.add_done_callback(lambda _: opened.set())  # if it was cancelled before it began
        self._raise(await _cancelled_until(opened, task))

    async def _close_in_task(self) -> None:
        """Have it closed, if that has not been done, and wait for that; may be called again."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            assert self._closing is not None, "`_open_in` has set it"
            if not self._closing.done():
                self._closing.set_result(True)
            await task  # which gets a cancellation of this task
            self._raise(None)

    def _raise(self, cancelled: BaseException | None) -> None:
        """Raise a cancellation, or what the task has for its opener or closer."""
        raised, self._raised = cancelled or self._raised, None
        if raised is not None:
            try:
                raise raised
            finally:
                del raised, cancelled  # they refer to this frame

    async def _live(self, opened: asyncio.Event, closing: asyncio.Future[bool]) -> None:
        try:
            await self._begin()
        except BaseException as error:  # noqa: BLE001 - the opener raises it
            self._raised = error
            forget_cancellations()  # what is closed runs in this task
        opened.set()
        cancelled = await _until(closing)
        if closing.done() and closing.result():
            raised = await self._ended()
            self._raised = cancelled if raised is None else raised  # an error of the user may be false
        else:
            await self._break(cancelled)

    async def _ended(self) -> BaseException | None:
        """Close it, and return what that raises: `KeyboardInterrupt`, raised here, would end the loop."""
        try:
            await self._end()
        except BaseException as error:  # noqa: BLE001 - who closes raises it
            return error
        return None


async def _cancelled_until(opened: asyncio.Event, task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait until a task has opened what it keeps, and hand cancellations of this task on to it; returns the last."""
    opener, cancelled = asyncio.current_task(), None
    assert opener is not None, "coroutines run in tasks"
    while not opened.is_set():
        try:
            await opened.wait()
        except asyncio.CancelledError as error:
            cancelled = error
            # If all tasks were cancelled, the other task has had this one: a second one would disturb its end.
            if not opened.is_set() and task.cancelling() < opener.cancelling():
                task.cancel()
    return cancelled


async def _until(closing: asyncio.Future[bool]) -> asyncio.CancelledError | None:
    """Wait for the request to close; return the cancellation of this task that has ended the wait."""
    try:
        await asyncio.wait({closing})  # not the future itself, which a cancellation of this task would cancel
    except asyncio.CancelledError as error:
        if closing.done() or not await _is_asked_once_users_have_ended(closing):
            return error
    return None


async def _is_asked_once_users_have_ended(closing: asyncio.Future[bool]) -> bool:
    """Tell whether there is a request to close after all, once a cancellation of all tasks has had its effect.

    Calls that were cancelled, too, may still need what has been opened.
    """
    ending = tasks_if_all_are_cancelled()
    if ending is None:
        return False
    either: set[asyncio.Future[Any]] = {closing, asyncio.gather(*ending, return_exceptions=True)}
    with suppress(asyncio.CancelledError):
        await asyncio.wait(either, timeout=CLOSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return closing.done()
