"""When a wait is long enough for the log: a job or a pipeline would stand still in silence."""

from __future__ import annotations

LONG_SECONDS = 30.0
"""The log says what is waited for after this time, and again whenever the time has doubled."""


class LongWait:
    """One wait, and when to tell of it next.

    Attributes
    ----------
    tell_at_seconds : float
        How long the wait must have lasted until the log tells of it again.

    Examples
    --------
    >>> wait = LongWait()
    >>> [wait.is_to_be_told(seconds) for seconds in (29, 31, 50, 63)]
    [False, True, False, True]
    """

    def __init__(self) -> None:
        self.tell_at_seconds = LONG_SECONDS

    def is_to_be_told(self, seconds: float) -> bool:
        """Return whether the log is to tell of the wait, which has lasted for so long."""
        if seconds < self.tell_at_seconds:
            return False
        self.tell_at_seconds = 2 * seconds
        return True
