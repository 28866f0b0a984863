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
    >>> wait.tell_at_seconds
    30.0
    >>> wait.told(31.5)
    >>> wait.tell_at_seconds
    63.0
    """

    def __init__(self) -> None:
        self.tell_at_seconds = LONG_SECONDS

    def told(self, seconds: float) -> None:
        """Note that the log has told of the wait when it had lasted for so long."""
        self.tell_at_seconds = 2 * seconds
