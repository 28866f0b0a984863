"""Real threads of which one runs at a time: which, and for how many lines, follows from a seed.

The thread of the event loop is one of them. A thread may lose its turn before any line of the modules that are watched,
so what two threads do at once is tried in every order, and the same order for the same seed.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any
from unittest import mock

import async_op.functions.base
import keygroups.state.disk.store
import keygroups.state.disk.table
import keygroups.state.handles
import keygroups.state.memory.cut
import keygroups.state.memory.cut_holds
import keygroups.state.memory.layered
import keygroups.state.memory.table
import keygroups.state.transaction
from async_op.calls import adapters
from async_op.testing import VirtualLoop
from async_op.testing.virtual_loop import AtOnce
from async_op.threads import loop_mailbox, mailbox

LOCKED = (async_op.functions.base, mailbox, keygroups.state.disk.table, keygroups.state.disk.store)
"""Modules whose locks must not be held by a thread that has lost its turn while another one waits for them."""

_SWITCHING = (*LOCKED, adapters, loop_mailbox)
_SWITCHING += (keygroups.state.handles, keygroups.state.transaction)
_SWITCHING += (keygroups.state.memory.cut, keygroups.state.memory.cut_holds)
_SWITCHING += (keygroups.state.memory.layered, keygroups.state.memory.table)
WATCHED = frozenset(module.__file__ for module in _SWITCHING)
"""Files before whose lines a thread may lose its turn."""

Condition = Callable[[], bool]


class _End(BaseException):
    """Ends a thread that is not needed any more."""


class _Thread:
    """One thread, and what it waits for."""

    def __init__(self) -> None:
        # Not a semaphore, whose Python code would be most of what a run does: nobody gets a second turn in his own.
        self.turn = threading.Lock()
        self.turn.acquire()
        self.is_free: Condition = lambda: True
        self.wakes_at: float | None = None


class Threads:
    """The threads of one run.

    Parameters
    ----------
    draw : random.Random
        Decides who goes on.
    time : callable
        The virtual time in seconds.
    """

    def __init__(self, draw: random.Random, time: Callable[[], float]) -> None:
        self._draw = draw
        self._time = time
        self._rate = draw.choice((0.0, 0.02, 0.1, 0.5))
        self._loop = self._running = _Thread()
        self._others: list[_Thread] = []
        self._is_closed = False
        self.switches = 0

    # -- for those that run

    def start(self, work: Callable[[], object], name: str = "virtual thread") -> None:
        """Run something on a thread of its own, when its turn comes."""
        thread = _Thread()
        self._others.append(thread)
        threading.Thread(target=self._run, args=(thread, work), name=name, daemon=True).start()

    def wait_for(self, condition: Condition) -> None:
        """Return once a condition holds; others go on meanwhile."""
        me = self._running
        while not condition():
            me.is_free = condition
            self._give_turn_to(self._draw.choice(self._free()))
        me.is_free = lambda: True

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        me, until = self._running, self._time() + seconds
        me.wakes_at = until
        self.wait_for(lambda: self._time() >= until)
        me.wakes_at = None

    # -- for the event loop

    def work_until(self, condition: Condition) -> None:
        """Let others go on until a condition holds, or all of them wait for something."""
        while not condition() and (others := self._free()[1:]):
            self._give_turn_to(self._draw.choice(others))

    @property
    def next_wake(self) -> float | None:
        """When the first of those that sleep goes on."""
        return min((thread.wakes_at for thread in self._others if thread.wakes_at is not None), default=None)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the library use these threads and their locks; at the end there are none left."""
        shim = mock.Mock(wraps=threading, Lock=lambda: VirtualLock(self), RLock=lambda: VirtualLock(self))
        before = sys.gettrace()
        # A finalizer that the collector runs comes at any moment, of which the seed knows nothing.
        gc.disable()
        with ExitStack() as patches:
            patches.callback(gc.enable)
            for module in LOCKED:
                patches.enter_context(mock.patch.object(module, "threading", shim))
            patches.enter_context(mock.patch.object(adapters, "Future", partial(VirtualFuture, self)))
            self._watch()
            try:
                yield
            finally:
                sys.settrace(before)
                self._close()

    def _close(self) -> None:
        self._is_closed = True
        while self._others:
            self._give_turn_to(self._others[0])

    # -- whose turn it is

    def _free(self) -> list[_Thread]:
        """Return who can go on: first the loop, which never waits for long."""
        return [self._loop, *(thread for thread in self._others if thread.is_free())]

    def _give_turn_to(self, thread: _Thread) -> None:
        me = self._running
        if thread is me:
            return
        self.switches += 1
        self._running = thread
        thread.turn.release()
        me.turn.acquire()
        if self._is_closed and me is not self._loop:
            raise _End

    def _run(self, me: _Thread, work: Callable[[], object]) -> None:
        me.turn.acquire()
        try:
            if not self._is_closed:
                self._watch()
                work()
        except _End:
            pass
        finally:
            sys.settrace(None)
            self._others.remove(me)
            self._running = self._loop if self._is_closed else self._draw.choice(self._free())
            self._running.turn.release()

    def _watch(self) -> None:
        """Let this thread lose its turn before lines of the watched files, if any thread does so in this run."""
        if self._rate:
            sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        # A finalizer may run within what must not lose its turn.
        is_watched = frame.f_code.co_filename in WATCHED and frame.f_code.co_name != "__del__"
        return self._trace_line if is_watched else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not self._is_closed and self._draw.random() < self._rate:
            self._give_turn_to(self._draw.choice(self._free()))
        return self._trace_line


class VirtualLock:
    """A lock that can be taken again by the thread that has it."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._holder: int | None = None
        self._count = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._threads.wait_for(lambda: self._holder in (None, me))
        self._holder = me
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._holder = None


class VirtualFuture(Future[Any]):
    """A future for whose result others do not wait."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def result(self, timeout: float | None = None) -> Any:
        self._threads.wait_for(self.done)
        return super().result(0)


class VirtualPool:
    """A pool of so many threads; each call has one of its own."""

    def __init__(self, threads: Threads, count: int, name: str) -> None:
        self._threads = threads
        self._free = count
        self._name = name
        self._waiting: deque[tuple[Future[Any], Callable[[], object]]] = deque()

    def submit(self, work: Callable[..., object], *arguments: Any) -> Future[Any]:
        call = Future[Any]()
        self._waiting.append((call, lambda: work(*arguments)))
        if self._free:
            self._free -= 1
            self._threads.start(self._work, self._name)
        return call

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        while cancel_futures and self._waiting:
            self._waiting.popleft()[0].cancel()

    def _work(self) -> None:
        while self._waiting:
            call, work = self._waiting.popleft()
            if call.set_running_or_notify_cancel():
                work()
                call.set_result(None)
        self._free += 1


class ThreadedLoop(VirtualLoop):
    """A virtual loop with threads that take turns with it."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self.threads = threads
        self.beside = _Beside(threads)

    def pass_time(self, until: float | None) -> None:
        """Let time pass once all threads wait for something, until the first of them goes on."""
        self.threads.work_until(lambda: not self.is_idle)
        if self.is_idle:
            wakes = [time for time in (until, self.threads.next_wake) if time is not None]
            super().pass_time(min(wakes, default=None))


class _Beside(AtOnce):
    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def pool(self, count: int, name: str) -> Any:
        return VirtualPool(self._threads, count, name)
