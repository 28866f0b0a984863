"""Building blocks of the limits: a line of waiting coroutines, and an alarm."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from async_op.clock import Clock, TimerHandle


class Line:
    """Coroutines that wait for their turn, first come, first served. Only the thread of the event loop may call it.

    Attributes
    ----------
    waits : int
        How many coroutines have had to wait so far.
    seconds : float
        The total time of all waits that have ended.
    """

    __slots__ = ("_clock", "_stopped", "_turns", "seconds", "waits")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = deque[tuple[asyncio.Future[None], Any]]()
        self._stopped = False
        self.waits = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        while self._turns and self._turns[0][0].done():
            self._turns.popleft()  # cancelled while waiting
        return len(self._turns)

    @property
    def first(self) -> Any:
        """What the first coroutine waits with; None if nobody waits, or nobody gets a turn any more."""
        return None if self._stopped or not len(self) else self._turns[0][1]

    async def wait(self, give_up: Callable[[], None], claim: Any = None) -> None:
        """Wait for the caller's turn.

        Parameters
        ----------
        give_up : callable
            Called if the coroutine is cancelled when it already has its turn, so that the turn is not lost.
        claim : object
            What `first` returns when it is the caller's turn next.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append((turn, claim))
        self.waits += 1
        began = self._clock.time()
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                give_up()
            raise
        finally:
            self.seconds += self._clock.time() - began

    def admit(self) -> bool:
        """Give the first coroutine its turn; returns whether there was one."""
        if self._stopped or not len(self):
            return False
        self._turns.popleft()[0].set_result(None)
        return True

    def stop(self) -> None:
        """Give nobody a turn from now on: the waiting coroutines are about to be cancelled."""
        self._stopped = True


class Alarm:
    """A timer that can be set repeatedly, until it is stopped for good. Only the event loop's thread may call it."""

    __slots__ = ("_callback", "_clock", "_stopped", "_timer")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: TimerHandle | None = None
        self._stopped = False

    def set(self, when: float) -> None:
        """Ring at `when`; replaces an earlier setting."""
        self._unset()
        if not self._stopped:
            self._timer = self._clock.call_at(when, self._ring)

    def stop(self) -> None:
        """Cancel the timer for good; later settings have no effect."""
        self._stopped = True
        self._unset()

    def _unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._callback()
