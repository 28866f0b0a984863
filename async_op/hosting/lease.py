"""The lease of a host, and how long each side waits for the other before it takes it for dead."""

from __future__ import annotations

import asyncio

from async_op.clock import Clock, TimerHandle

LEASE_SECONDS = 120.0
"""Time from the driver's last sign of life to the end of a host."""

PATIENCE_SECONDS = 60.0
"""A feeder or host that is silent for this long is taken for dead; so a function must block its loop for less."""

SILENT_SECONDS = 5.0
"""A host that has not answered for this long is named in the driver's log."""

OPEN_SECONDS = 1800.0
"""A host whose function's `open` has not returned after this time is given up: a large model may be loaded in it."""

CLOSE_SECONDS = 10.0
"""A host waits no longer than this for its function to close."""


class Lease:
    """Ends the host unless it is renewed in time, once it has begun. Only the thread of the event loop may call it.

    The driver renews it, and so do the signs of life of the tasks that the driver sends. So it depends on the driver's
    life, and not on the length of calls, epochs or sinks.

    Parameters
    ----------
    seconds : float
        Time from the last renewal to the end.
    clock : Clock
        The source of time.
    over : asyncio.Event
        Set when the time is over.
    """

    def __init__(self, seconds: float, clock: Clock, over: asyncio.Event) -> None:
        self._seconds = seconds
        self._clock = clock
        self._over = over
        self._timer: TimerHandle | None = None

    def renew(self) -> None:
        """Start the time, again: the driver has shown a sign of life."""
        self.end()
        self._timer = self._clock.call_at(self._clock.time() + self._seconds, self._over.set)

    def end(self) -> None:
        """Stop the time; `over` is not set."""
        if self._timer is not None:
            self._timer.cancel()
