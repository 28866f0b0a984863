"""The operator's front door for other threads: what they submit runs on its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, overload

from async_op.cancellation import cancel_all
from async_op.errors import OperatorClosed, TooManySubmitted
from async_op.threads.loop_mailbox import LoopMailbox
from snapshots import SubtaskSnapshot

_P = ParamSpec("_P")
_T = TypeVar("_T")

SUBMITTED_MAX = 1024
"""How many submitted calls may be open at once."""


class OperatorExecutor:
    """Runs calls for other threads on the operator's event loop. `AsyncWaitOperator.executor` returns it.

    Any thread may use it, as it would use an executor of `concurrent.futures`.

    Parameters
    ----------
    mailbox : LoopMailbox
        Carries the calls to the event loop, on whose thread this object is created.
    cut : callable
        Returns the operator's snapshot.
    close : callable
        Stops the operator, and returns what closes it when awaited.

    Examples
    --------
    >>> import asyncio
    >>> from async_op import AsyncWaitOperator
    >>> async def double(value):
    ...     return 2 * value
    >>> def feed(operator):
    ...     executor = operator.executor()
    ...     for value in (1, 2, 3):
    ...         executor.submit(operator.process, value).result()
    ...     executor.submit(operator.finish).result()
    >>> async def main():
    ...     outputs = []
    ...     async with AsyncWaitOperator(double, outputs.append, mode="ordered") as operator:
    ...         await asyncio.to_thread(feed, operator)
    ...     return [record.value for record in outputs]
    >>> asyncio.run(main())
    [2, 4, 6]
    """

    __slots__ = (
        "_changed",
        "_close",
        "_cut",
        "_is_closed",
        "_loop",
        "_mailbox",
        "_open",
        "_owner",
        "_tasks",
        "_urgent",
    )

    def __init__(
        self,
        mailbox: LoopMailbox,
        cut: Callable[[], SubtaskSnapshot],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._mailbox = mailbox
        self._cut = cut
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._owner = threading.get_ident()
        self._changed = threading.Condition()
        self._open = self._urgent = 0
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @overload
    def submit(self, call: Callable[_P, Awaitable[_T]], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]: ...
    @overload
    def submit(self, call: Callable[_P, _T], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]: ...
    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Have `call(*arguments, **options)` run on the operator's event loop, and await the result if it is awaitable.

        Calls begin in the order in which they were submitted. While 1024 of them have not ended, further threads wait.

        Returns
        -------
        concurrent.futures.Future
            Gets the result. Cancelling it cancels a call that has begun, too. When the operator is closed, it is
            cancelled, or gets `OperatorClosed` if the call has begun.

        Raises
        ------
        OperatorClosed
            The operator has been closed.
        TooManySubmitted
            The event loop's own thread submits, and cannot wait.
        """
        self._wait_for_room()
        return self._hand_over(partial(call, *arguments, **options), urgent=False)

    def snapshot(self) -> Future[SubtaskSnapshot]:
        """Cut the operator before whatever else threads have handed to the event loop, results of their calls included.

        Coroutines take their turns on the event loop itself: one whose wait is over may run, and complete its element,
        before the cut. Either way the snapshot has the element as pending or as completed.
        """
        self._count_urgent()
        return self._hand_over(self._cut, urgent=True)

    def close(self) -> Future[None]:
        """Close the operator; nothing that threads hand to the event loop runs after this."""
        self._count_urgent()
        return self._hand_over(self._close, urgent=True)

    async def cancel(self) -> None:
        """Refuse further calls and cancel those that have begun; only the event loop's thread may call it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        await cancel_all(self._tasks - {asyncio.current_task()})

    def _wait_for_room(self) -> None:
        with self._changed:
            while self._open >= SUBMITTED_MAX and not self._is_closed:
                if threading.get_ident() == self._owner:
                    raise TooManySubmitted(SUBMITTED_MAX)
                self._changed.wait()
            self._open += 1

    def _count_urgent(self) -> None:
        with self._changed:
            if self._urgent >= SUBMITTED_MAX:
                raise TooManySubmitted(SUBMITTED_MAX)
            self._urgent += 1

    def _ended(self, _: Future[Any], *, urgent: bool) -> None:
        with self._changed:
            if urgent:
                self._urgent -= 1
            else:
                self._open -= 1
            self._changed.notify()

    def _hand_over(self, call: Callable[[], Any], *, urgent: bool) -> Future[Any]:
        future: Future[Any] = Future()
        future.add_done_callback(partial(self._ended, urgent=urgent))
        try:
            run = partial(copy_context().run, self._run, call, future)
            is_taken = self._mailbox.put(run, urgent=urgent, cancel=future.cancel)
        except RuntimeError:  # so asyncio says that the loop has been closed
            is_taken = False
        if not is_taken:
            future.cancel()
            raise OperatorClosed("closed")
        return future

    def _run(self, call: Callable[[], Any], future: Future[Any]) -> None:
        if future.cancelled():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised to the submitter, as from a pool of threads
            _settle(future, None, error)
            return
        if not isawaitable(result):
            _settle(future, result, None)
            return
        task = self._loop.create_task(_await(result, future), name="keygroups submitted")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        future.add_done_callback(lambda ended: self._cancel(task) if ended.cancelled() else None)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(task.cancel)


async def _await(awaitable: Awaitable[Any], future: Future[Any]) -> None:
    try:
        result = await awaitable
    except asyncio.CancelledError:
        _settle(future, None, OperatorClosed("closed"))
        raise
    except BaseException as error:  # noqa: BLE001 - as in `_run`
        _settle(future, None, error)
    else:
        _settle(future, result, None)


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
