"""Adapts every kind of function to one coroutine per element, the only form that workers know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

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
from async_op.timers.key_timers import KeyTimers
from keygroups.arguments import Duration
from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.state import ListHandle, MapHandle, OperatorListHandle, StateAccessOutsideInvocation
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


_TAKE_MANY: dict[type, frozenset[str]] = {
    ListHandle: frozenset({"add_all", "update"}),
    MapHandle: frozenset({"put_all"}),
    OperatorListHandle: frozenset({"update"}),
}
"""Methods whose argument may be an iterator. It may block, so it is consumed on the caller's thread."""


class HandedOverContext(InvocationContext):
    """A context that any thread may use until the invocation ends; state and timers run on the operator's thread.

    For each read and write, the calling thread waits until the event loop has performed it. So results and errors are
    exactly those that a coroutine gets. On the operator's own thread there is no wait.

    Parameters
    ----------
    invocation : InvocationContext
        The operator's own context of the invocation.
    mailbox : LoopMailbox
        The operator's thread reads it; the same thread creates this object.
    """

    __slots__ = ("_asked", "_has_ended", "_invocation", "_mailbox", "_owner")

    def __init__(self, invocation: InvocationContext, mailbox: LoopMailbox) -> None:
        self.entry, self.scope, self.handles = invocation.entry, invocation.scope, None
        self._invocation = invocation
        self._mailbox = mailbox
        self._owner = threading.get_ident()
        self._asked: set[Future[Any]] = set()
        self._has_ended = False

    @property
    def timers(self) -> KeyTimers:
        """The timers of the element's key.

        Raises
        ------
        TimersUnavailable
            The function does not define `on_timer`.
        """
        lent: Any = _Lent(self._invocation.timers, self)
        return lent  # type: ignore[no-any-return]

    def spent(self, **amounts: float) -> None:
        """Report what the call has spent; raises as `InvocationContext.spent` does."""
        self.run(partial(self._invocation.spent, **amounts))

    def heed(self, headers: Mapping[str, str], *, maximum: Duration = 60.0) -> None:
        """Heed the headers of a good answer; raises as `InvocationContext.heed` does."""
        self.run(partial(self._invocation.heed, headers, maximum=maximum))

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state for the element's key; raises as `InvocationContext.state` does."""
        return _Lent(self.run(self._invocation.state, descriptor), self)

    def operator_state(self, descriptor: OperatorStateDescriptor) -> Any:
        """Return the handle of a declared state without a key; raises as `InvocationContext.operator_state` does."""
        handle = self._invocation.operator_state(descriptor)
        # A map no longer changes, so every thread may read it.
        return _Lent(handle, self) if isinstance(handle, OperatorListHandle) else handle

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run `work` on the operator's thread, and return its result or raise its error.

        Raises
        ------
        StateAccessOutsideInvocation
            The invocation has ended, perhaps while this thread waited.
        """
        if threading.get_ident() == self._owner:
            self._check_open()
            return work(*arguments)
        answer: Future[Any] = Future()
        # Before the check for the end: either this thread sees the end, or `end` sees the answer that it must refuse.
        self._asked.add(answer)
        try:
            self._check_open()
            if not self._mailbox.put(partial(_answer, answer, work, arguments)):
                raise StateAccessOutsideInvocation(self.key)
            return answer.result()
        finally:
            self._asked.discard(answer)

    def end(self) -> None:
        """Refuse all further and all waiting accesses. Only the operator's thread may call it."""
        self._has_ended = True
        for answer in tuple(self._asked):
            if not answer.done():
                answer.set_exception(StateAccessOutsideInvocation(self.key))

    def _check_open(self) -> None:
        if self._has_ended:
            raise StateAccessOutsideInvocation(self.key)


class _Lent:
    """A proxy of a state handle or of a key's timers; methods and properties run on the operator's thread."""

    __slots__ = ("_context", "_handle")

    def __init__(self, handle: Any, context: HandedOverContext) -> None:
        self._handle = handle
        self._context = context

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self._handle), name)
        if not callable(method):
            return self._context.run(getattr, self._handle, name)
        if any(isinstance(self._handle, kind) and name in names for kind, names in _TAKE_MANY.items()):
            return lambda many: self._context.run(method, self._handle, _in_hand(many))
        return lambda *arguments, **options: self._context.run(partial(method, self._handle, *arguments, **options))


def _in_hand(many: Iterable[Any]) -> Iterable[Any]:
    return many if isinstance(many, dict) else list(many)


def _answer(answer: Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if answer.done():
        return  # the invocation has ended in the meantime
    try:
        answer.set_result(work(*arguments))
    except BaseException as error:
        answer.set_exception(error)
        if not isinstance(error, Exception):
            raise
