"""How a run waits for what is not its own: clients that cancel, tasks that end late, waits that are long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from async_op.cancellation import to_the_end
from async_op.connectors.errors import ConnectorInterrupted
from async_op.epochs.long_waits import LongWait
from async_op.errors import OperatorInterrupted
from async_op.job.errors import ConnectorCancelled
from keygroups.context_managers import contextmanager

_log = logging.getLogger(__package__)


@contextmanager
def heard(what: str) -> Iterator[None]:
    """Turn a `CancelledError` that was not requested of this task into an error.

    A client may raise one, for instance because it was closed. A task that ends with it would end in silence.

    Parameters
    ----------
    what : str
        What is being done, for the message.

    Raises
    ------
    ConnectorCancelled
        Another task's cancellation came out of the block.
    """
    task = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise ConnectorCancelled(what) from error


@contextmanager
def connector(what: str) -> Iterator[None]:
    """Turn whatever is no `Exception` and comes out of a source or sink into an error that names it.

    Parameters
    ----------
    what : str
        What is being done, for the message.

    Raises
    ------
    ConnectorCancelled, ConnectorInterrupted
        Another task's cancellation, or something like `SystemExit`, came out of the block.
    """
    task = asyncio.current_task()
    with heard(what):
        try:
            yield
        except OperatorInterrupted as error:  # what came out of another thread
            raise ConnectorInterrupted(what, error.__cause__ or error) from error.__cause__
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and (task is None or asyncio.current_task(task.get_loop()) is not task):
                raise  # the coroutine is closed from outside
            raise ConnectorInterrupted(what, error) from error


@contextmanager
def told_if_long(what: str) -> Iterator[None]:
    """Have the log say that the job waits for something, if that takes long: it would stand still in silence.

    Parameters
    ----------
    what : str
        What is being done.
    """
    loop, wait = asyncio.get_running_loop(), LongWait()
    begun = loop.time()
    timer: asyncio.TimerHandle

    def tell() -> None:
        nonlocal timer
        seconds = loop.time() - begun
        _log.warning("%s has taken %.0f s so far, and the job waits for it", what, seconds)
        wait.told(seconds)
        timer = loop.call_at(begun + wait.tell_at_seconds, tell)

    timer = loop.call_at(begun + wait.tell_at_seconds, tell)
    try:
        yield
    finally:
        timer.cancel()


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they end."""
    for task in (waiting := list(tasks)):
        task.cancel()
    try:
        await asyncio.gather(*waiting, return_exceptions=True)
    except asyncio.CancelledError:
        await to_the_end(asyncio.gather(*waiting, return_exceptions=True))
        raise


async def side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await coroutines at the same time; the first failure cancels the others, and is raised when they have ended."""
    tasks = [asyncio.get_running_loop().create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(tasks)
