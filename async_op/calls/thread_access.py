"""State and timers for calls on other threads: the operator's thread performs each access for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from async_op.functions.context import InvocationContext
from async_op.threads.loop_mailbox import LoopMailbox
from async_op.timers.key_timers import KeyTimers
from keygroups.arguments import Duration
from keygroups.descriptors import OperatorStateDescriptor, StateDescriptor
from keygroups.state import ListHandle, MapHandle, OperatorListHandle, StateAccessOutsideInvocation

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
