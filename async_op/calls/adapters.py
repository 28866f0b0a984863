"""Adapts every kind of function to one coroutine per element, the only form that workers know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, Protocol

from async_op.calls.thread_access import HandedOverContext
from async_op.functions.base import (
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from async_op.functions.context import InvocationContext, Invoke
from async_op.outputs import checked
from async_op.threads.blocking_work import beside
from async_op.threads.loop_mailbox import LoopMailbox
from keygroups.state.timers import Timer


class Calls(Protocol):
    """The way to call one kind of function. Only the thread of the event loop may use it."""

    @property
    def invoke(self) -> Invoke:
        """The coroutine function for one element."""
        ...

    def stop(self) -> None:
        """Begin no more calls."""
        ...

    async def close(self) -> None:
        """Wait until no call is under way, after the mailbox was closed."""
        ...


def calls_of(function: Function, mailbox: LoopMailbox) -> Calls:
    """Return the adapter for a function of any kind; results that other threads have arrive in the mailbox."""
    if isinstance(function, AsyncFunction):
        return CoroutineCalls(function)
    if isinstance(function, BlockingFunction):
        return BlockingCalls(function, mailbox)
    assert isinstance(function, CallbackFunction), "as_function admits no other kind"
    return CallbackCalls(function, mailbox)


class CoroutineCalls:
    """Calls of an `AsyncFunction`, whose coroutines need no adapter; for batch functions see `BatchCalls`."""

    def __init__(self, function: AsyncFunction) -> None:
        self.invoke = function.async_invoke

    def stop(self) -> None:
        """Do nothing: a call begins where it is made."""

    async def close(self) -> None:
        """Do nothing: no results arrive from other threads."""


class _ForeignCalls:
    """Calls whose results arrive from other threads as mail."""

    def __init__(self, mailbox: LoopMailbox) -> None:
        self._loop = asyncio.get_running_loop()
        self._mailbox = mailbox

    def stop(self) -> None:
        """Do nothing: a call begins where it is made."""

    async def close(self) -> None:
        """Do nothing: the mailbox is closed, and so results are ignored."""

    def _handed_over(self, ctx: InvocationContext) -> HandedOverContext:
        return HandedOverContext(ctx, self._mailbox)

    def _deliver(self, future: asyncio.Future[Iterable[Any]], result: Any) -> None:
        # If the operator was closed during the call, nothing waits for the result.
        self._mailbox.put(lambda: self._settle(future, result))

    def _settle(self, future: asyncio.Future[Iterable[Any]], result: Any) -> None:
        if future.done():
            return
        if isinstance(result, StopIteration):  # a future rejects it, and so does a coroutine
            ended = RuntimeError("the function raised StopIteration")
            ended.__cause__ = result
            future.set_exception(ended)
        elif isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


class BlockingCalls(_ForeignCalls):
    """Calls of a `BlockingFunction`, on a bounded thread pool."""

    def __init__(self, function: BlockingFunction, mailbox: LoopMailbox) -> None:
        super().__init__(mailbox)
        self._function = function
        self._pool = beside(self._loop).pool(function.max_threads, "keygroups call")
        self._running = set[asyncio.Future[Iterable[Any]]]()
        self._is_stopped = False

    async def invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Call the function on a thread of the pool, in a copy of this context, and wait for the result."""
        result: asyncio.Future[Iterable[Any]] = self._loop.create_future()
        if self._is_stopped:
            return await result  # never: the worker is cancelled
        handed_over = self._handed_over(ctx)
        call = self._pool.submit(copy_context().run, self._call, value, handed_over, result)
        self._running.add(result)
        try:
            return await result
        finally:
            handed_over.end()
            if call.cancel():  # the call had not begun
                self._running.discard(result)

    def stop(self) -> None:
        """Begin no call that still waits for a thread: its result would be lost."""
        self._is_stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Wait for no running call, because a thread cannot be stopped: its result is ignored."""
        self._pool.shutdown(wait=not self._running, cancel_futures=True)

    def _settle(self, future: asyncio.Future[Iterable[Any]], result: Any) -> None:
        self._running.discard(future)
        super()._settle(future, result)

    def _call(self, value: Any, ctx: InvocationContext, future: asyncio.Future[Iterable[Any]]) -> None:
        result: Any
        try:
            result = checked(self._function.invoke(value, ctx))  # a generator blocks here, on the pool's thread
        except BaseException as error:  # noqa: BLE001 - the loop gets every error of the thread
            result = error
        self._deliver(future, result)


class CallbackCalls(_ForeignCalls):
    """Calls of a `CallbackFunction`, each with a `ResultFuture`."""

    def __init__(self, function: CallbackFunction, mailbox: LoopMailbox) -> None:
        super().__init__(mailbox)
        self._function = function

    async def invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Start the call and wait until its `ResultFuture` is completed."""
        result: asyncio.Future[Iterable[Any]] = self._loop.create_future()
        deliver = lambda outputs, error: self._deliver(result, outputs if error is None else error)  # noqa: E731
        handed_over = self._handed_over(ctx)
        try:
            self._function.async_invoke(value, ResultFuture(handed_over, deliver))
            return await result
        finally:
            handed_over.end()


def with_timers(on_timer: Invoke, invoke: Invoke) -> Invoke:
    """Return a coroutine function that calls `on_timer` for timers and `invoke` for all other elements."""
    return lambda value, ctx: on_timer(value.timestamp, ctx) if type(value) is Timer else invoke(value, ctx)
