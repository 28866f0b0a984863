"""The user's function from `open` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from async_op.calls.isolation import CallContexts
from async_op.cancellation import CLOSE_SECONDS, closed_in_time, tasks_if_all_are_cancelled
from async_op.errors import OperatorInterrupted, as_exception
from async_op.functions.base import Function
from async_op.functions.plain import name_of
from async_op.functions.shared_resources import Leases
from async_op.lifecycle import Lifecycle
from keygroups.context_managers import contextmanager
from keygroups.safe_text import add_note

_log = logging.getLogger(__package__)


class OpenFunction:
    """Opens and closes a function, and releases the resources that it shares. Only the event loop's thread may call it.

    `open` and `close` of the function run in one task, which is neither the opener's nor the closer's: a task group or
    a cancel scope, as in the clients of many services, can only be left in the task that has entered it.

    Parameters
    ----------
    function : Function
        The function.
    lifecycle : Lifecycle
        Ended if what the function has opened breaks.

    Attributes
    ----------
    is_open : bool
        Whether the function's `open` has begun and its `close` has not.
    failure : BaseException or None
        What the function's `open` has raised.
    """

    __slots__ = ("_closing", "_function", "_home", "_leases", "_lifecycle", "_raised", "failure", "is_open")

    def __init__(self, function: Function, lifecycle: Lifecycle) -> None:
        self._function = function
        self._lifecycle = lifecycle
        self._leases = Leases()
        self._home: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._raised: BaseException | None = None
        self.is_open = False
        self.failure: BaseException | None = None

    async def open(self, begin: Callable[[], Awaitable[None]], contexts: CallContexts) -> None:
        """Await `begin`, which opens the function; what it shares then belongs to the function."""
        opened, closing = asyncio.Event(), asyncio.get_running_loop().create_future()
        home = self._home = contexts.at_home(self._live(begin, contexts, opened, closing))
        home.add_done_callback(lambda _: opened.set())  # if it was cancelled before it began
        self._closing = closing
        self._raise(await _cancelled_until(opened, home))

    async def close(self) -> None:
        """Close the function, if it is open, and then release what it shares; may be called again."""
        home, self._home = self._home, None
        try:
            if home is not None and not home.done():
                assert self._closing is not None, "`open` has set it"
                self._closing.set_result(None)
                await home  # which gets a cancellation of this task
                self._raise(None)
        finally:
            await self._leases.release()

    def _raise(self, cancelled: BaseException | None) -> None:
        """Raise a cancellation, or what the function's task has for its opener or closer."""
        raised, self._raised = cancelled or self._raised, None
        if raised is not None:
            try:
                raise raised
            finally:
                del raised, cancelled  # they refer to this frame

    async def _live(
        self,
        begin: Callable[[], Awaitable[None]],
        contexts: CallContexts,
        opened: asyncio.Event,
        closing: asyncio.Future[None],
    ) -> None:
        try:
            await self._open(begin)
        except BaseException as error:  # noqa: BLE001 - the opener raises it
            self._raised = error
            _forget_cancellations()
        contexts.opened()
        opened.set()
        cancelled = await _until(closing)
        is_asked = closing.done()
        raised = await self._close() or cancelled
        if is_asked:
            self._raised = raised
        elif raised is not None:
            await self._break(raised)

    async def _open(self, begin: Callable[[], Awaitable[None]]) -> None:
        self.is_open = True
        with self._leases.collecting(), _named(self._function, "open"):
            try:
                await begin()
            except BaseException as error:
                self.failure = error
                raise

    async def _close(self) -> BaseException | None:
        """Close the function, and return what that raises: `KeyboardInterrupt`, raised here, would end the loop."""
        self.is_open = False
        try:
            with _named(self._function, "close"):
                await closed_in_time(f"close() of {name_of(self._function)}", self._function.close())
        except BaseException as error:  # noqa: BLE001 - who closes raises it
            return error
        return None

    async def _break(self, error: BaseException) -> None:
        """End the operator: a task group that `open` has entered cancels its task when another task in it fails."""
        failure = OperatorInterrupted(error)
        failure.__cause__ = error
        self._lifecycle.fail(failure)
        await self._leases.release()  # an abandoned operator is never closed


async def _cancelled_until(opened: asyncio.Event, home: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for the function's task, and hand cancellations of this task on to it; returns the last one."""
    opener, cancelled = asyncio.current_task(), None
    assert opener is not None, "coroutines run in tasks"
    while not opened.is_set():
        try:
            await opened.wait()
        except asyncio.CancelledError as error:
            cancelled = error
            # If all tasks were cancelled, the function's task has had this one: a second one would disturb its end.
            if not opened.is_set() and home.cancelling() < opener.cancelling():
                home.cancel()
    return cancelled


async def _until(closing: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait until the function is to be closed; return the cancellation of this task that has ended the wait."""
    try:
        await asyncio.wait({closing})  # not the future itself, which a cancellation of this task would cancel
    except asyncio.CancelledError as error:
        if closing.done() or not await _is_asked_once_calls_have_ended(closing):
            return error
    return None


async def _is_asked_once_calls_have_ended(closing: asyncio.Future[None]) -> bool:
    """Tell whether the function is to be closed after all, once a cancellation of all tasks has had its effect.

    Calls that were cancelled, too, may still need what the function has opened.
    """
    ending = tasks_if_all_are_cancelled()
    if ending is None:
        return False
    either: set[asyncio.Future[Any]] = {closing, asyncio.gather(*ending, return_exceptions=True)}
    with suppress(asyncio.CancelledError):
        await asyncio.wait(either, timeout=CLOSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return closing.done()


def _forget_cancellations() -> None:
    """Let the function's `close` run as in a task that was never cancelled: task groups in it would end it again."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


@contextmanager
def _named(function: Function, method: str) -> Iterator[None]:
    """Note on an error which method of the function has raised it: elsewhere it looks like one of Spark or of a job.

    `SystemExit` would end the program without a word. A cancellation and Ctrl-C come from outside and stay as they are.
    """
    try:
        yield
    except BaseException as error:
        add_note(error, f"{method}() of {name_of(function)} raised this")
        if isinstance(error, SystemExit):
            raise as_exception(error) from error
        raise


async def end_after_failure(ending: Awaitable[None], function: Function) -> None:
    """Await the end of what has failed; an error of that goes to the log, so that it does not hide the failure.

    A function that was opened by half often cannot be closed, because what it closes is not there.
    """
    task = asyncio.current_task()
    try:
        await ending
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        _log_end(function)  # this task was not cancelled: it comes from what is closed
    except Exception:  # noqa: BLE001 - told in the log
        _log_end(function)


def _log_end(function: Function) -> None:
    _log.exception("%s did not close well after a failure, which is raised", name_of(function))
