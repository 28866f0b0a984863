"""An event loop on which waiting takes no time, and everything happens in the same order in every run."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from async_op.elements import TIMESTAMP_MAX
from async_op.testing.errors import InsideEventLoop, Stalled
from async_op.threads.blocking_work import Beside
from async_op.threads.own_thread import running_loop
from keygroups.arguments import check_integer
from keygroups.context_managers import contextmanager
from keygroups.representation import representation

_T = TypeVar("_T")

START_MILLISECONDS = 1_000_000_000_000
"""The processing time at which a loop starts: 2001-09-09T01:46:40Z."""

_RESOLUTION_SECONDS = 1e-9
_WAITS_MAX = 200_000
_TURNS_MAX = 200_000
"""Far above what a test needs, so that only one that never ends meets it."""


class _NoWait(selectors.SelectSelector):
    """Moves the loop's clock to the next timer instead of waiting for it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        loop.pass_time(None if timeout is None else loop.time() + timeout)
        return []


@contextmanager
def _outside_of_the_loop() -> Iterator[None]:
    """Let work in this thread run event loops of its own, as it may on another thread."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


class _DoneAtOnce:
    """A pool without threads: work is done when it is submitted."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            with _outside_of_the_loop():
                done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - it is the future's
            done.set_exception(error)
        return done

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Do nothing: nothing waits."""


class AtOnce:
    """Works on the thread of the loop: threads of their own would make the order of events a matter of luck."""

    is_at_once = True

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do the work."""
        with _outside_of_the_loop():
            work()

    def pool(self, count: int, name: str) -> _DoneAtOnce:
        """Return a pool without threads."""
        return _DoneAtOnce()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next timer whenever it has nothing to do. Only its own thread may use it.

    `asyncio.sleep`, `asyncio.timeout`, retries, timeouts and timers of operators all follow its time, which starts at
    zero; their processing time follows it, too. What blocks (blocking functions, storage, iterables) runs on the loop's
    thread as soon as it is asked for and takes no virtual time. So a test gives the same result in every run. There are
    no sockets and no subprocesses.

    Parameters
    ----------
    start : int
        The processing time at the beginning, in milliseconds since the epoch.

    Raises
    ------
    Stalled
        Raised by what runs the loop, if everything waits for something that will never happen.

    Examples
    --------
    >>> import asyncio
    >>> from async_op.testing import VirtualLoop
    >>> loop = VirtualLoop()
    >>> loop.run_until_complete(asyncio.sleep(3600))
    >>> loop.time(), loop.wall_time()
    (3600.0, 1000003600000)
    >>> loop.close()
    """

    def __init__(self, start: int = START_MILLISECONDS) -> None:
        self.beside: Beside = AtOnce()
        self._now = 0.0
        self._start = check_integer("start", start, 0, TIMESTAMP_MAX, reason="it is milliseconds since the epoch")
        self._waits = 0
        selector = _NoWait()
        selector.loop = self
        super().__init__(selector)

    def __repr__(self) -> str:
        return representation(self, {"seconds": self._now, "is_running": self.is_running()})

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def wall_time(self) -> int:
        """Return the processing time in milliseconds since the epoch."""
        return self._start + int(1000 * self._now)

    def pass_time(self, until: float | None) -> None:
        """Let time pass until the next timer is due. The loop calls this when it has run everything that was ready.

        Parameters
        ----------
        until : float or None
            The time of the next timer in virtual seconds; None if there is none.

        Raises
        ------
        Stalled
            There is none, or only timers run, for ever.
        """
        if until is None:
            raise Stalled(self._now, "no callback is ready and no timer is set")
        self._waits += 1
        if self._waits > _WAITS_MAX:
            raise Stalled(self._now, "only timers run, for ever")
        self._now = max(self._now, until)
        # After some months, asyncio's own resolution is lost in the rounding of a float, and no timer would be due.
        self._clock_resolution = max(_RESOLUTION_SECONDS, 2 * math.ulp(self._now))

    def run_ready(self) -> None:
        """Run everything that can run without time passing.

        Raises
        ------
        Stalled
            There is always more to run.
        """
        for _ in range(_TURNS_MAX):
            if self.is_idle:
                return
            self.call_soon(self.stop)
            self.run_forever()
        raise Stalled(self._now, "something keeps the loop busy for ever")

    @property
    def is_idle(self) -> bool:
        """Whether nothing can run before time passes."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return not self._ready and not (timers and timers[0].when() <= self._now)  # type: ignore[attr-defined]

    def run_forever(self) -> None:
        """Run until `stop` is called."""
        self._waits = 0
        super().run_forever()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function at once, on the thread of the loop."""
        return asyncio.wrap_future(_DoneAtOnce().submit(func, *args), loop=self)

    def _write_to_self(self) -> None:
        """Nothing sleeps in the selector, so there is nothing to wake."""


def run(main: Coroutine[Any, Any, _T], *, start: int = START_MILLISECONDS) -> _T:
    """Run a coroutine like `asyncio.run`, but in virtual time: waiting takes no time, and each run is the same.

    Parameters
    ----------
    main : coroutine
        What to run, such as `job.run()`.
    start : int
        The processing time at the beginning, in milliseconds since the epoch.

    Raises
    ------
    Stalled
        Everything waits for something that will never happen.
    InsideEventLoop
        An event loop runs already in this thread.

    Examples
    --------
    >>> import asyncio
    >>> from async_op.testing import run
    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run(main())
    3600.0
    """
    if running_loop() is not None:
        main.close()  # else Python warns that it was never awaited
        raise InsideEventLoop
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main)
