"""Which errors of connectors are transient, and what follows a failure: one rule for all sources and sinks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from async_op.connectors.errors import ConnectorUnavailable
from async_op.errors import RetryAfter
from async_op.retry import ExponentialBackoffRetry, RetryPolicy, checked_delay, is_meant, seconds_asked
from keygroups.safe_text import add_note, errors_in, text_of

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    That is a broken or refused connection, a timeout, a storage that is busy. An error with an attribute `is_transient`
    says it itself.
    """
    from snapshots.filesystem import is_transient as is_transient_of_storage  # loads fsspec

    said = getattr(error, "is_transient", None)
    return is_transient_of_storage(error) if said is None else bool(said)


def is_transient_of_library(error: BaseException) -> bool:
    """Return whether the same write may succeed later, also for errors of libraries that give no error number.

    The object stores of Delta and Iceberg raise a plain `OSError` for whatever the network does. Readers cannot use
    this rule: Arrow raises the same class for a damaged file.
    """
    from snapshots.filesystem import is_refusal  # as above

    final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
    is_unnumbered = isinstance(error, OSError) and error.errno is None and not isinstance(error, final)
    return (is_unnumbered and not is_refusal(error)) or is_transient(error)


# A broker or a storage that restarts is away for 20 to 60 seconds; the delays add up to 75. They have no jitter: a job
# has few readers, and a random delay would make the sum, and so what is survived, a matter of luck.
RETRY: RetryPolicy = ExponentialBackoffRetry(10, 0.5, 15.0, jitter=False)
"""How often a source is retried by default."""


class Attempts:
    """Decides after each failure whether there is another attempt, and logs it. It waits for nothing itself.

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
        self.failed = 0

    def may_pass(self, error: BaseException) -> bool:
        """Return whether an error is transient."""
        return is_transient(error)

    def succeeded(self) -> None:
        """Count from the beginning: something came."""
        self.failed = 0

    def delay_after(self, error: Exception, *, is_last: bool = False) -> float:
        """Return the seconds until the next attempt.

        Parameters
        ----------
        error : Exception
            What the attempt has raised.
        is_last : bool
            Whether there is no time for another attempt.

        Raises
        ------
        ConnectorUnavailable
            The error is transient, and no attempt is left.
        Exception
            The error itself, with a note on what was being done, if it is not retried.
        """
        self.failed += 1
        policy = self._policy
        # Without `retry_on` a policy names every error, which is right for calls but would hide faults here.
        named = None if policy is None else policy.retry_on
        # A connector with a task group raises an exception group of what its tasks have raised.
        may_pass = all(isinstance(one, RetryAfter) or self.may_pass(one) for one in errors_in(error))
        if not (may_pass or (named is not None and is_meant("retry_on", named, error))):
            add_note(error, f"{self._what} raised this")
            raise error
        reason = _reason_of(error)
        delay = None if policy is None or is_last else self._delay(policy, seconds_asked(error))
        if delay is None:
            raise self.unavailable(reason) from error
        _log.warning("%s failed at attempt %d and is retried in %.1f s: %s", self._what, self.failed, delay, reason)
        return delay

    def _delay(self, policy: RetryPolicy, asked: float | None) -> float | None:
        if self.failed >= policy.max_attempts:
            return None
        return checked_delay(policy, self.failed, policy.delay_after(self.failed) if asked is None else asked)

    def unavailable(self, reason: str) -> Exception:
        """Return the error that ends the attempts."""
        return ConnectorUnavailable(self._what, self.failed, reason)


def _reason_of(error: Exception) -> str:
    """Return what an error says, on one line: of most errors the first, because clients quote a proxy's page of HTML.

    The clients of object stores in deltalake and Arrow name the storage in the first line, and the cause in the last.
    """
    from snapshots.filesystem import reason_of  # loads fsspec

    is_of_storage = isinstance(error, OSError) and error.errno is None
    said = reason_of(error) if is_of_storage else text_of(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}"


async def retried(policy: RetryPolicy | None, what: str, action: Callable[[], Awaitable[_T]]) -> _T:
    """Return what an action returns, retrying after transient errors; raises what `Attempts.delay_after` does."""
    attempts = Attempts(policy, what)
    while True:
        try:
            return await action()
        except Exception as error:  # noqa: BLE001 - raised there, if it is final
            delay = attempts.delay_after(error)
        await asyncio.sleep(delay)
