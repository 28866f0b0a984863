"""Every kind of function as a coroutine per element, which is all that the invoker knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from async_op.context import InvocationContext
from async_op.errors import MailboxClosed
from async_op.functions import (
    AsyncFunction,
    BlockingFunction,
    CallbackFunction,
    Function,
    ResultFuture,
)
from async_op.mailbox import Mail, Mailbox
from keygroups.errors import ConfigError


class Calls(Protocol):
    """How a kind of function is called. Only the thread of the event loop may use it."""

    @property
    def invoke(self) -> Callable[[Any, InvocationContext], Coroutine[Any, Any, Iterable[Any]]]:
        """The coroutine function for one element."""
        ...

    async def close(self) -> None:
        """Accept no more results, and wait until no call is under way."""
        ...


def calls_of(function: Function) -> Calls:
    """Return the way to call a function.

    Raises
    ------
    ConfigError
        It is none of the kinds of functions, or has a setting that can never work.
    """
    if isinstance(function, AsyncFunction):
        return CoroutineCalls(function)
    if isinstance(function, BlockingFunction):
        return BlockingCalls(function)
    if isinstance(function, CallbackFunction):
        return CallbackCalls(function)
    raise ConfigError("function", function, "subclass AsyncFunction, or one of its relatives in async_op.functions")


class CoroutineCalls:
    """Calls of an `AsyncFunction`: the function's own coroutines; `Batches` makes those of a batch function."""

    def __init__(self, function: AsyncFunction) -> None:
        self.invoke = function.async_invoke

    async def close(self) -> None:
        """Nothing comes from elsewhere."""


class _ForeignCalls:
    """Calls whose results come from other threads, as mail: one wake-up of the loop for all that has come."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(lambda: self._loop.call_soon_threadsafe(self._read_mail))

    async def close(self) -> None:
        """Accept no more results."""
        self._mailbox.close()

    def _deliver(self, future: asyncio.Future[Iterable[Any]], result: Any) -> None:
        try:
            self._mailbox.put(Mail(lambda: _settle(future, result), description="result"))
        except MailboxClosed:
            return  # the operator was closed while the call went on

    def _read_mail(self) -> None:
        if self._mailbox.has_mail() and self._mailbox.create_batch():
            while (mail := self._mailbox.try_take_from_batch()) is not None:
                mail.run()


class BlockingCalls(_ForeignCalls):
    """Calls of a `BlockingFunction`, on a bounded pool of threads."""

    def __init__(self, function: BlockingFunction) -> None:
        super().__init__()
        if function.max_threads < 1:
            raise ConfigError("max_threads", function.max_threads, "at least one thread must do the work")
        self._function = function
        self._pool = ThreadPoolExecutor(function.max_threads, thread_name_prefix="keygroups call")
        self._running = 0

    async def invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Call on a thread of the pool and wait for the result."""
        result: asyncio.Future[Iterable[Any]] = self._loop.create_future()
        self._running += 1
        self._pool.submit(self._call, value, ctx, result)
        try:
            return await result
        finally:
            self._running -= 1

    async def close(self) -> None:
        """Accept no more results; a call that runs goes on until it returns, because a thread cannot be stopped."""
        await super().close()
        self._pool.shutdown(wait=self._running == 0, cancel_futures=True)

    def _call(self, value: Any, ctx: InvocationContext, future: asyncio.Future[Iterable[Any]]) -> None:
        result: Any
        try:
            result = self._function.invoke(value, ctx)
            if isinstance(result, Iterable) and not isinstance(result, Sequence | dict):
                result = list(result)  # a generator does its blocking here
        except Exception as error:  # noqa: BLE001 - it is the failure of the element
            result = error
        self._deliver(future, result)


class CallbackCalls(_ForeignCalls):
    """Calls of a `CallbackFunction`."""

    def __init__(self, function: CallbackFunction) -> None:
        super().__init__()
        self._function = function

    async def invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Start the call and wait until its `ResultFuture` is completed."""
        result: asyncio.Future[Iterable[Any]] = self._loop.create_future()
        deliver = lambda outputs, error: self._deliver(result, outputs if error is None else error)  # noqa: E731
        self._function.async_invoke(value, ResultFuture(ctx, deliver))
        return await result


def _settle(future: asyncio.Future[Iterable[Any]], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
