"""`RestartPolicy`: how often a failed job or query is started again, and after which delays."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from async_op.durations import check_delay
from async_op.retry import growing_delay
from keygroups.arguments import Duration, check_count, check_positive_duration
from keygroups.safe_text import add_note, described, errors_in

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a job or a query that has failed is started again from its newest snapshot.

    The delay doubles with each failure in a row. Errors whose `is_permanent` is true are raised at once: another run
    has taken over, an argument is invalid, the snapshot or the input does not fit, or a package is missing.

    Parameters
    ----------
    max_restarts : int
        The most restarts in a row. The failure after the last one is raised.
    initial_delay, max_delay : float or timedelta
        Seconds before the first restart in a row, and the longest delay.
    reset_after : float or timedelta
        Seconds without a failure after which restarts are counted from zero again, and delays start small.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> policy = RestartPolicy(max_restarts=5, initial_delay=1.0, max_delay=10.0)
    >>> [policy.delay_after(failures) for failures in (1, 2, 3, 4, 5)]
    [1.0, 2.0, 4.0, 8.0, 10.0]
    """

    max_restarts: int = 10
    initial_delay: Duration = 1.0
    max_delay: Duration = 60.0
    reset_after: Duration = 600.0

    def __post_init__(self) -> None:
        check_count("max_restarts", self.max_restarts, 1, reason="without restarts, pass no policy")
        for name in ("initial_delay", "max_delay"):
            seconds = check_delay(name, getattr(self, name))
            object.__setattr__(self, name, seconds)
        seconds = check_positive_duration("reset_after", self.reset_after, reason="a run without failure lasts so long")
        object.__setattr__(self, "reset_after", seconds)

    def delay_after(self, failures: int) -> float:
        """Return the seconds between a failure and the restart, after so many failures in a row."""
        return growing_delay(failures, self.initial_delay, self.max_delay)  # type: ignore[arg-type]  # seconds by now


class Restarts:
    """The restarts of one job or query: decides after each failure whether there is another one, and logs it.

    It waits for nothing itself. One thread at a time may call it.

    Parameters
    ----------
    policy : RestartPolicy or None
        How often to restart; None for never.
    what : str
        What is restarted, for the log: "job orders".

    Attributes
    ----------
    count : int
        How many restarts there were.
    newest_failure : str or None
        What the newest restart has followed, as text.
    """

    def __init__(self, policy: RestartPolicy | None, what: str) -> None:
        self._policy = policy
        self._what = what
        self._began_at = math.inf
        self._in_a_row = 0
        self.count = 0
        self.newest_failure: str | None = None

    def began(self, now: float) -> None:
        """Note that a run begins, by a clock that never goes back."""
        self._began_at = now

    def delay_after(self, error: Exception, now: float) -> float | None:
        """Return the seconds until the next start after a failure at a time of that clock, or None if it is final."""
        policy = self._policy
        if policy is None or any(getattr(one, "is_permanent", False) for one in errors_in(error)):
            return None
        if now - self._began_at >= policy.reset_after:  # type: ignore[operator]  # seconds by now
            self._in_a_row = 0
        if self._in_a_row >= policy.max_restarts:
            said = f"{self._what} was restarted {self._in_a_row} times in a row (max_restarts), and failed again"
            add_note(error, said)
            return None
        self._in_a_row += 1
        self.count += 1
        self.newest_failure = described(error)
        delay = policy.delay_after(self._in_a_row)
        _log.warning(
            "%s failed and restarts from its newest snapshot in %.1f s, restart %d of %d: %s",
            self._what,
            delay,
            self._in_a_row,
            policy.max_restarts,
            self.newest_failure,
            exc_info=error,
        )
        return delay
