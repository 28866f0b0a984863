"""H5: a host lives as long as its driver shows signs of life, however long its calls take."""

from __future__ import annotations

from collections.abc import Callable

from async_op.clock import Clock, TimerHandle


class Lease:
    """Ends the host unless it is renewed in time. Only the thread of the event loop may call it.

    The driver renews it, and so do the signs of life of the tasks that the driver sends. So it depends on the driver's
    life, and not on the length of calls, epochs or sinks.

    Parameters
    ----------
    seconds : float
        Time from the last renewal to the end.
    clock : Clock
        The source of time.
    over : callable
        Called when the time is over.
    """

    def __init__(self, seconds: float, clock: Clock, over: Callable[[], None]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._over = over
        self._timer: TimerHandle | None = None
        self.renew()

    def renew(self) -> None:
        """Start the time again: the driver has shown a sign of life."""
        self.end()
        self._timer = self._clock.call_at(self._clock.time() + self._seconds, self._over)

    def end(self) -> None:
        """Stop the time; `over` is not called."""
        if self._timer is not None:
            self._timer.cancel()
