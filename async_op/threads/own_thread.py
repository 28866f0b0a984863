"""Calls functions that may block, such as reads from storage, on threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from async_op.errors import as_exception
from async_op.threads.blocking_work import beside

_Result = TypeVar("_Result")


async def on_own_thread(call: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function on a new thread, in a copy of the caller's context, and return its result.

    `asyncio.to_thread` would use the event loop's own threads. Users' functions may occupy all of them with calls that
    block, for instance calls that end only once an element has been restored.

    The thread ends with the call. After a cancellation it still finishes the call, because it cannot be stopped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: Exception | None) -> None:
        if outcome.done():  # cancelled
            return
        if error is None:
            outcome.set_result(result)  # type: ignore[arg-type]
        else:
            outcome.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = call(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            failure = as_exception(error)
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop has been closed, and the caller with it

    beside(loop).start(partial(contextvars.copy_context().run, work), "keygroups storage")
    return await outcome


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
