"""Cancels tasks that may ignore it, and finishes work in tasks that are cancelled themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from keygroups.context_managers import asynccontextmanager
from keygroups.representation import counted
from keygroups.safe_text import errors_in

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long a function may take to close: one that waits for its service must not keep a program from its end."""

KEEPER_TASK = "keygroups keeper"
"""The name of the tasks in which functions, shared resources, sources and sinks are opened and closed."""

_ATTEMPTS_MAX = 10
_WAIT_SECONDS = 0.5


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel tasks, repeatedly if needed, and wait until they have ended; after some seconds, return those that run."""
    running = set(tasks)
    for _ in range(_ATTEMPTS_MAX):
        if not running:
            return running
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_WAIT_SECONDS)
    if running:
        _log.warning("left running, because they ignore their cancellation: %s", counted(len(running), "call"))
    return running


def tasks_if_all_are_cancelled() -> set[asyncio.Task[Any]] | None:
    """Return the tasks under way if a program cancels all of them, as `asyncio.run` does at its end, or else None.

    Tasks that keep what others need are left out: they end after the others. The caller's task is one of them, and it
    is cancelled: if the others are not, something in it has done so.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    keepers = {one for one in tasks if one.get_name() == KEEPER_TASK}
    others = tasks - keepers
    ending = {one for one in others if one.cancelling()}
    if keepers:  # the rest says less: what ends starts new tasks
        is_end = all(one.cancelling() for one in keepers)
    else:
        is_end = not others or (bool(ending) and len(others) - len(ending) <= 1)  # one may cancel the others
    return ending if is_end else None


def forget_cancellations() -> None:
    """Let this task run on as if it had never been cancelled: task groups in it would end it again."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


async def absorb_cancellations() -> None:
    """Forget the cancellations of this task, and one that its next await would raise."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    forget_cancellations()


async def to_the_end(work: asyncio.Future[_Result]) -> _Result:
    """Wait for work that must not be left half done; a cancellation takes effect after its end.

    So do all that follow within `CLOSE_SECONDS`: anyio repeats a cancellation at each `await` until its task has ended,
    and with it Starlette and FastAPI do.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + CLOSE_SECONDS
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                if loop.time() >= gives_up_at:
                    raise
        if not work.cancelled():
            work.exception()  # the cancellation is raised in its place
        raise


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does, which would wait for ever for tasks that ignore their cancellation.

    A function does so if it retries in a loop, after an `except` without a type. Such a task is left as it is.
    """
    left = set[asyncio.Task[Any]]()

    async def ending() -> None:
        try:
            await main
        finally:
            left.update(await cancel_all(asyncio.all_tasks() - {asyncio.current_task()}))

    runner = asyncio.Runner()
    try:
        runner.run(ending())
    finally:
        if left:  # the end of the runner would wait for them
            # Nor may they be closed as garbage: without a loop, their `await` would fail at once, again and again.
            threading.Thread(target=_keep, args=(left,), name="keygroups left running", daemon=True).start()
            asyncio.set_event_loop(None)
            runner.get_loop().close()
        else:
            runner.close()


def _keep(_: object) -> None:
    """Keep something until the process ends."""
    threading.Event().wait()


async def closed_in_time(what: str, closing: Awaitable[None], seconds: float | None = None) -> None:
    """Await the end of something, but no longer than `CLOSE_SECONDS` by default; the log says what was given up."""
    seconds = CLOSE_SECONDS if seconds is None else seconds
    try:
        async with asyncio.timeout(seconds) as limit:
            await closing
    except TimeoutError:
        if not limit.expired():
            raise
        _log.warning("%s was given up after %g s", what, seconds)


@asynccontextmanager
async def closed_after(iterable: AsyncIterable[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Give the iterator of an async iterable, and close it in the same task, however the iteration ends.

    Left to Python, a generator would be closed by the garbage collector, in another task and perhaps after the event
    loop: a cancel scope, a timeout or a task group in it could not be left. An error of the closing is logged if
    something else has ended the iteration, so that it hides nothing.
    """
    iterator = aiter(iterable)
    try:
        yield iterator
    except BaseException as error:
        await _close(iterator, error)
        raise
    await _close(iterator, None)


async def _close(iterator: Any, after: BaseException | None) -> None:
    close = getattr(iterator, "aclose", None)  # generators have it, other iterators need not
    if close is None:
        return
    try:
        await close()
    except BaseException as error:
        inside = [one for one in errors_in(error) if not isinstance(one, GeneratorExit)]
        if not inside:
            return  # a task group of asyncio wraps even what closes its generator
        if after is None or not all(isinstance(one, Exception) for one in inside):
            raise
        _log.exception("an async iterator did not close well after %s, which is raised", type(after).__name__)
