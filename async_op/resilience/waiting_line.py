"""Building blocks of the limits: shares of them, a line of waiting coroutines, and an alarm."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from async_op.clock import Clock, TimerHandle

Share: TypeAlias = tuple[int, int]
"""Which part of a limit a process has, and of how many equal ones."""

WHOLE: Share = (0, 1)
"""All users of the limit are in this process."""


def share_of(amount: float, index: int, parts: int) -> float:
    """Return one of the equal parts of an amount; the parts of a whole number are whole.

    Examples
    --------
    >>> [share_of(10, index, 3) for index in range(3)]
    [4, 3, 3]
    """
    if isinstance(amount, int):
        whole, rest = divmod(amount, parts)
        return whole + (index < rest)
    return amount / parts


class Guest:
    """One operator among the users of a line, and what it has waited. Only the event loop's thread may call it.

    Attributes
    ----------
    waiting : int
        How many of its coroutines are waiting.
    waits : int
        How many have had to wait so far.
    seconds : float
        The total time of all waits that have ended.
    is_stopped : bool
        Whether it gets no more turns, because its coroutines are about to be cancelled. The turns go to other guests.
    """

    __slots__ = ("is_stopped", "seconds", "waiting", "waits")

    def __init__(self) -> None:
        self.waiting = self.waits = 0
        self.seconds = 0.0
        self.is_stopped = False


class _Turn(NamedTuple):
    future: asyncio.Future[None]
    guest: Guest
    claim: Any

    @property
    def is_void(self) -> bool:
        """Whether the coroutine was cancelled while it waited, or its operator has stopped."""
        return self.future.done() or self.guest.is_stopped


class Line:
    """Coroutines that wait for their turn, first come, first served. Only the thread of the event loop may call it."""

    __slots__ = ("_clock", "_turns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = deque[_Turn]()

    def __len__(self) -> int:
        while self._turns and self._turns[0].is_void:
            self._turns.popleft()
        return len(self._turns)

    @property
    def first(self) -> Any:
        """What the first coroutine waits with; None if no coroutine waits."""
        return self._turns[0].claim if len(self) else None

    async def wait(self, give_up: Callable[[], None], guest: Guest, claim: Any = None) -> None:
        """Wait for the caller's turn.

        Parameters
        ----------
        give_up : callable
            Called if the coroutine is cancelled when it already has its turn, so that the turn is not lost.
        guest : Guest
            The operator that the caller belongs to.
        claim : object
            What `first` returns when it is the caller's turn next.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(_Turn(turn, guest, claim))
        guest.waits += 1
        guest.waiting += 1
        began = self._clock.time()
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                give_up()
            raise
        finally:
            guest.waiting -= 1
            guest.seconds += self._clock.time() - began

    def admit(self) -> bool:
        """Give the first coroutine its turn; returns whether there was one."""
        if not len(self):
            return False
        self._turns.popleft().future.set_result(None)
        return True


class Alarm:
    """A timer that can be set repeatedly. Only the event loop's thread may call it."""

    __slots__ = ("_callback", "_clock", "_timer")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: TimerHandle | None = None

    def set(self, when: float) -> None:
        """Ring at `when`; replaces an earlier setting."""
        self.unset()
        self._timer = self._clock.call_at(when, self._ring)

    def unset(self) -> None:
        """Do not ring until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._callback()
