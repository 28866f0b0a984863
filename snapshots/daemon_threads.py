"""Threads that keep no process alive: a call that hangs would otherwise be waited for at the end of the program.

Python joins every thread of `concurrent.futures.ThreadPoolExecutor` at exit, whatever the program has done before. What
is cut off by the end of the process is what a crash would cut off, too: a snapshot counts once its manifest is created,
in one step, and files are replaced by a rename.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Work = tuple[Future[Any], Callable[[], Any]] | None
"""What to do, and who learns of it; None ends a thread."""


class DaemonPool(ThreadPoolExecutor):
    """A bounded number of threads that end with the program. Any thread may call it.

    It is a `ThreadPoolExecutor` in name only, because an event loop takes nothing else for its default threads.

    Parameters
    ----------
    count : int
        The most threads.
    name : str
        The beginning of the threads' names.
    end_seconds : float or None
        How long `shutdown` waits for calls that do not end; None means for ever.
    """

    def __init__(self, count: int, name: str = "keygroups", end_seconds: float | None = None) -> None:
        super().__init__(count, name)
        self._count = count
        self._name = name
        self._end_seconds = end_seconds
        self._work: SimpleQueue[_Work] = SimpleQueue()
        self._resting = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._made: list[threading.Thread] = []
        self._has_ended = False
        # A pool that is dropped without a shutdown leaves no threads behind.
        self._finalizer = weakref.finalize(self, self._work.put, None)
        self._finalizer.atexit = False

    def submit(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function on one of the threads."""
        future: Future[_T] = Future()
        with self._lock:
            if self._has_ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._work.put((future, partial(call, *args, **kwargs)))
            if not self._resting.acquire(blocking=False) and len(self._made) < self._count:
                self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin no more calls once those that wait have ended, with `cancel_futures` at once."""
        with self._lock:
            self._has_ended = True
            if cancel_futures:
                self._cancel_waiting()
            self._work.put(None)
        if wait:
            until = None if self._end_seconds is None else time.monotonic() + self._end_seconds
            for thread in self._made:
                thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _cancel_waiting(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                return
            if work is not None:
                work[0].cancel()

    def _begin(self) -> None:
        name = f"{self._name}_{len(self._made)}"
        thread = threading.Thread(target=_work, args=(self._work, self._resting), name=name, daemon=True)
        self._made.append(thread)
        thread.start()


def _work(queue: SimpleQueue[_Work], resting: threading.Semaphore) -> None:
    """Do the work of a queue until there is a None, which stays for the other threads."""
    while True:
        try:
            work = queue.get_nowait()
        except Empty:
            resting.release()
            work = queue.get()
        if work is None:
            queue.put(None)
            return
        future, call = work
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del work, future, call  # keep nothing in memory while the thread rests
