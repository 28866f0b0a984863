"""The life cycle of an operator from `open` to `close`: when it may be used, and on which event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from enum import Enum, auto
from types import TracebackType
from typing import Protocol

from async_op.errors import OperatorClosed, WrongEventLoop, as_exception
from async_op.threads.own_thread import running_loop
from async_op.threads.watchdog import Turn, Watch
from keygroups.context_managers import contextmanager


class State(Enum):
    """The states of an operator's life cycle."""

    NEW = auto()
    OPENING = auto()
    OPEN = auto()
    FAILED = auto()
    CLOSED = auto()


class Stoppable(Protocol):
    """What works until it is stopped."""

    def stop(self) -> None:
        """Begin nothing more."""
        ...

    def ignore_calls(self) -> None:
        """Begin no more calls, and ignore the outcomes of those under way."""
        ...


class Lifecycle:
    """Knows whether an operator may be used, and if not, why; an error of any part ends the operator through `fail`.

    Only the thread of its event loop may change it.

    Attributes
    ----------
    state : State
        The current state.
    loop : asyncio.AbstractEventLoop or None
        The loop on which the operator was opened.
    open_on : asyncio.AbstractEventLoop or None
        The same loop while the state is OPEN, else None, so that one comparison shows whether the caller may use it.
    failure : Exception or None
        The error that failed the operator.
    """

    __slots__ = (
        "_is_interrupted",
        "_opened",
        "_opener",
        "_parts",
        "_raised_in",
        "_watch",
        "failure",
        "loop",
        "open_on",
        "state",
    )

    def __init__(self) -> None:
        self.state = State.NEW
        self.loop: asyncio.AbstractEventLoop | None = None
        self.open_on: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None
        self._raised_in: TracebackType | None = None
        self._opener: asyncio.Task[object] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._is_interrupted = False
        self._watch: Watch | None = None
        self._parts: Stoppable | None = None

    @property
    def is_open(self) -> bool:
        """Whether the operator is open and elements may be admitted."""
        return self.open_on is not None

    @property
    def obstacle(self) -> Exception | None:
        """The error to raise when the operator is used; None while it is open."""
        if self.state is State.OPEN:
            return None
        if self.state is State.FAILED:
            return self.failure
        return OperatorClosed("closed" if self.state is State.CLOSED else "new")

    @property
    def turn(self) -> Turn:
        """Says when calls that block have kept the event loop for too long."""
        assert self._watch is not None, "the operator is being opened"
        return self._watch.turn

    def check(self) -> None:
        """Raise unless the operator is open and called on its event loop."""
        self.check_loop()
        obstacle = self.obstacle
        if obstacle is not None:
            # The same failure for each caller: the frames of those before it are none of its business.
            raise obstacle.with_traceback(self._raised_in)

    def check_loop(self) -> None:
        """Raise if the operator was opened on an event loop other than the one that runs in this thread."""
        if self.loop is not None and running_loop() is not self.loop:
            raise WrongEventLoop(threading.current_thread().name)

    def check_readable(self) -> None:
        """Raise unless the counters can be read: on the event loop, or anywhere once they no longer change."""
        if self.loop is None:
            self.check()
        if self.state is not State.CLOSED:
            self.check_loop()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Surround the code that opens the operator; if `interrupt_opening` cancels it, this raises `OperatorClosed`.

        The cancellation works as in `asyncio.timeout`, in the caller's own task.
        """
        if self.state is not State.NEW:
            if self.state is not State.CLOSED:
                self.check_loop()
            raise OperatorClosed("closed" if self.state is State.CLOSED else "open")
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        self.state = State.OPENING
        self.loop = asyncio.get_running_loop()
        self._watch = Watch(self.loop)
        self._opener, self._opened, cancellations = task, self.loop.create_future(), task.cancelling()
        try:
            yield
        except asyncio.CancelledError as error:
            if self._is_interrupted and task.cancelling() - 1 <= cancellations:
                raise OperatorClosed("closed") from error
            raise
        finally:
            if self._is_interrupted:
                task.uncancel()
            self._opener = None
            self._opened.set_result(None)

    async def interrupt_opening(self) -> None:
        """Cancel an `open` that is under way, and wait until it has ended."""
        if self._opener is not None and not self._is_interrupted:
            self._is_interrupted = True
            self._opener.cancel()
        if self._opened is not None:
            await asyncio.wait([self._opened])

    def assembled(self, parts: Stoppable) -> None:
        """Remember the parts that an operator stops when it ends."""
        self._parts = parts

    def opened(self) -> None:
        """Mark the operator as open; raises if it has failed or been closed in the meantime."""
        if self.state is not State.OPENING:
            self.check()
        self.state, self.open_on = State.OPEN, self.loop

    def fail(self, error: BaseException) -> None:
        """End the operator with an error, unless it has already failed or been closed."""
        if self.state not in {State.FAILED, State.CLOSED}:
            self.state, self.open_on, self.failure = State.FAILED, None, as_exception(error)
            self._raised_in = self.failure.__traceback__
            self._stop()

    def close(self) -> None:
        """End the operator, whatever its state."""
        self.state, self.open_on, self._raised_in = State.CLOSED, None, None
        if self._watch is not None:
            self._watch.end()
        self._stop()

    def ignore_calls(self) -> None:
        """Begin no more calls, and ignore the outcomes of those under way: the operator is about to fail."""
        if self._parts is not None:
            self._parts.ignore_calls()

    def _stop(self) -> None:
        if self._parts is not None:
            self._parts.stop()
