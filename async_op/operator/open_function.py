"""The user's function from `open` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from async_op.calls.isolation import CallContexts
from async_op.cancellation import closed_in_time
from async_op.errors import as_exception
from async_op.functions.base import Function
from async_op.functions.plain import name_of
from async_op.functions.shared_resources import Leases
from keygroups.context_managers import contextmanager
from keygroups.safe_text import add_note

_log = logging.getLogger(__package__)


class OpenFunction:
    """Opens and closes a function, and releases the resources that it shares. Only the event loop's thread may call it.

    Parameters
    ----------
    function : Function
        The function.

    Attributes
    ----------
    is_open : bool
        Whether the function's `open` has begun and its `close` has not.
    failure : BaseException or None
        What the function's `open` has raised.
    """

    __slots__ = ("_contexts", "_function", "_leases", "failure", "is_open")

    def __init__(self, function: Function) -> None:
        self._function = function
        self._leases = Leases()
        self._contexts: CallContexts | None = None
        self.is_open = False
        self.failure: BaseException | None = None

    async def open(self, begin: Callable[[], Awaitable[None]], contexts: CallContexts) -> None:
        """Await `begin`, which opens the function; what it shares then belongs to the function."""
        self.is_open, self._contexts = True, contexts
        await contexts.open(self._open(begin))

    async def close(self) -> None:
        """Close the function, if it is open, and then release what it shares; may be called again."""
        try:
            if self.is_open:
                self.is_open = False
                assert self._contexts is not None, "`open` has set it"
                with _named(self._function, "close"):
                    closing = self._contexts.close(self._function.close())
                    await closed_in_time(f"close() of {name_of(self._function)}", closing)
        finally:
            await self._leases.release()

    async def _open(self, begin: Callable[[], Awaitable[None]]) -> None:
        with self._leases.collecting(), _named(self._function, "open"):
            try:
                await begin()
            except BaseException as error:
                self.failure = error
                raise


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
