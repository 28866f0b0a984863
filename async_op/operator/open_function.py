"""The user's function from `open` to `close`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator

from async_op.calls.isolation import CallContexts
from async_op.cancellation import closed_in_time
from async_op.errors import OperatorInterrupted, as_exception
from async_op.functions.base import Function
from async_op.functions.plain import name_of
from async_op.functions.runtime import Runtime
from async_op.functions.shared_resources import Leases
from async_op.lifecycle import Lifecycle
from async_op.own_task import OwnTask
from keygroups.context_managers import contextmanager
from keygroups.safe_text import add_note

_log = logging.getLogger(__package__)


class OpenFunction(OwnTask):
    """Opens and closes a function, and releases the resources that it shares. Only the event loop's thread may call it.

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

    __slots__ = ("_contexts", "_function", "_leases", "_lifecycle", "_runtime", "failure", "is_open")

    def __init__(self, function: Function, lifecycle: Lifecycle) -> None:
        super().__init__()
        self._function = function
        self._lifecycle = lifecycle
        self._leases = Leases(self)
        self._runtime: Runtime | None = None
        self._contexts: CallContexts | None = None
        self.is_open = False
        self.failure: BaseException | None = None

    async def open(self, runtime: Runtime, contexts: CallContexts) -> None:
        """Open the function, and let it write its operator maps meanwhile; what it shares then belongs to it."""
        self._runtime, self._contexts = runtime, contexts
        await self._open_in(contexts.home)

    async def close(self) -> None:
        """Close the function, if it is open, and then release what it shares; may be called again."""
        try:
            await self._close_in_task()
        finally:
            await self._leases.release()

    async def _begin(self) -> None:
        assert self._runtime is not None, "`open` has set it"
        assert self._contexts is not None, "`open` has set it"
        self.is_open = True
        try:
            with self._leases.collecting(), _named(self._function, "open"):
                await self._open(self._runtime)
        finally:
            self._contexts.opened()

    async def _open(self, runtime: Runtime) -> None:
        try:
            await self._function.open(runtime)
        except BaseException as error:
            self.failure = error
            raise
        runtime.operator_states.seal()

    async def _end(self) -> None:
        self.is_open = False
        with _named(self._function, "close"):
            await closed_in_time(f"close() of {name_of(self._function)}", self._function.close())

    async def _break(self, cancelled: asyncio.CancelledError | None) -> None:
        self._lifecycle.ignore_calls()  # they may fail because of what is closed now
        errors = await self._ended(), await self._released(), cancelled
        error = next((one for one in errors if one is not None), asyncio.CancelledError())
        failure = OperatorInterrupted(error)
        failure.__cause__ = error
        self._lifecycle.fail(failure)

    async def _released(self) -> BaseException | None:
        """Release what the function shares, and return what that raises: the error of a resource that has broken."""
        try:
            await self._leases.release()
        except BaseException as error:  # noqa: BLE001 - it fails the operator
            return error
        return None


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
