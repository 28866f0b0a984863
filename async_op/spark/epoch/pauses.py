"""How often an epoch runs only because a host cannot be polled."""

from __future__ import annotations

import time

_SECONDS_MAX = 60.0


class Pauses:
    """The pauses between such epochs; a pause is twice as long as the one before while they have no outputs."""

    def __init__(self) -> None:
        self._seconds, self._not_before = 1.0, 0.0

    def is_over(self) -> bool:
        """Tell whether the next one may run."""
        return time.monotonic() >= self._not_before

    def begin(self, *, is_idle: bool) -> None:
        """Begin the next pause; `is_idle` tells whether the epoch before it had no outputs."""
        self._seconds = min(_SECONDS_MAX, 2 * self._seconds) if is_idle else 1.0
        self._not_before = time.monotonic() + self._seconds

    def end(self) -> None:
        """End the pause under way."""
        self._not_before = 0.0
