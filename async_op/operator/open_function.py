"""The user's function from `open` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from async_op.calls.isolation import CallContexts
from async_op.cancellation import closed_in_time
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
        self._closing = asyncio.Event()
        self._raised: BaseException | None = None
        self.is_open = False
        self.failure: BaseException | None = None

    async def open(self, begin: Callable[[], Awaitable[None]], contexts: CallContexts) -> None:
        """Await `begin`, which opens the function; what it shares then belongs to the function."""
        opened = asyncio.Event()
        home = self._home = contexts.at_home(self._live(begin, contexts, opened))
        home.add_done_callback(lambda _: opened.set())  # if it was cancelled before it began
        cancelled = None
        while not opened.is_set():
            try:
                await opened.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                if not opened.is_set():
                    home.cancel()
        self._raise(cancelled)

    async def close(self) -> None:
        """Close the function, if it is open, and then release what it shares; may be called again."""
        home, self._home = self._home, None
        try:
            if home is not None and not home.done():
                self._closing.set()
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

    async def _live(self, begin: Callable[[], Awaitable[None]], contexts: CallContexts, opened: asyncio.Event) -> None:
        try:
            await self._open(begin)
        except BaseException as error:  # noqa: BLE001 - the opener raises it
            self._raised = error
            _forget_cancellations()
        contexts.opened()
        opened.set()
        cancelled = None
        try:
            await self._closing.wait()
        except asyncio.CancelledError as error:
            cancelled = error
        raised = await self._close() or cancelled
        if self._closing.is_set():
            self._raised = raised
        elif raised is not None:
            self._break(raised)

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

    def _break(self, error: BaseException) -> None:
        """End the operator: a task group that `open` has entered cancels its task when another task in it fails."""
        failure = OperatorInterrupted(error)
        failure.__cause__ = error
        self._lifecycle.fail(failure)


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
