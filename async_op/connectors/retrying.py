"""What is transient in a source, and how often it is tried again: one rule for all sources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from async_op.connectors.errors import ConnectorUnavailable
from async_op.retry import ExponentialBackoffRetry, RetryPolicy, is_meant
from keygroups.safe_text import text_of
from snapshots.filesystem import is_transient as is_transient_of_storage

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    That is a broken or refused connection, a timeout, a storage that is busy. An error with an attribute `is_transient`
    says it itself.
    """
    said = getattr(error, "is_transient", None)
    return is_transient_of_storage(error) if said is None else bool(said)


# A broker or a storage that restarts is away for 20 to 60 seconds; the delays add up to 75. They have no jitter: a job
# has few readers, and a random delay would make the sum, and so what is survived, a matter of luck.
RETRY: RetryPolicy = ExponentialBackoffRetry(10, 0.5, 15.0, jitter=False)
"""How often a source is tried again by default."""


class Attempts:
    """The attempts at one thing, until it succeeds.

    Parameters
    ----------
    policy : RetryPolicy or None
        How often to try, and after which delays; None for once.
    what : str
        What is being done, for the log and the error: "reading partition 0 of Orders".
    """

    def __init__(self, policy: RetryPolicy | None, what: str) -> None:
        self._policy = policy
        self._what = what
        self._failed = 0

    def succeeded(self) -> None:
        """Begin to count anew: something came."""
        self._failed = 0

    async def failed(self, error: Exception) -> None:
        """Wait for the next attempt.

        Raises
        ------
        ConnectorUnavailable
            There is no further attempt.
        Exception
            The error itself, with a note on what was being done, if it is not to be retried.
        """
        self._failed += 1
        policy = self._policy
        if not self._is_meant(error):
            error.add_note(f"{self._what} raised this")
            raise error
        if policy is None or self._failed >= policy.max_attempts:
            raise ConnectorUnavailable(self._what, self._failed, text_of(error)) from error
        delay = policy.delay_after(self._failed)
        _log.warning(
            "%s failed, next attempt in %.1f s: %s: %s", self._what, delay, type(error).__name__, text_of(error)
        )
        await asyncio.sleep(delay)

    def _is_meant(self, error: Exception) -> bool:
        # Without `retry_on` a policy names every error, which is right for calls but would hide faults here.
        named = None if self._policy is None else self._policy.retry_on
        return is_transient(error) or (named is not None and is_meant(named, error))


async def retried(policy: RetryPolicy | None, what: str, action: Callable[[], Awaitable[_T]]) -> _T:
    """Return what an action returns, retrying after transient errors; raises what `Attempts.failed` does."""
    attempts = Attempts(policy, what)
    while True:
        try:
            return await action()
        except Exception as error:  # noqa: BLE001 - raised there, if it is final
            await attempts.failed(error)
