"""H5: a host lives as long as its driver does, whatever its calls do."""

from __future__ import annotations

from collections.abc import Callable

from async_op.clock import Clock, TimerHandle


class Lease:
    """Ends unless it is renewed in time. Only the thread of the event loop may call it.

    Only the driver renews it, so it is about the driver's life, and not about the length of calls, epochs or sinks.

    Parameters
    ----------
    seconds : float
        From one renewal to the end.
    clock : Clock
        The source of time.
    over : callable
        Called once, when nobody has renewed it in time.
    """

    def __init__(self, seconds: float, clock: Clock, over: Callable[[], None]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._over = over
        self._timer: TimerHandle | None = None
        self.renew()

    def renew(self) -> None:
        """Begin again: the driver has shown that it lives."""
        self.end()
        self._timer = self._clock.call_at(self._clock.time() + self._seconds, self._over)

    def end(self) -> None:
        """Watch nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
