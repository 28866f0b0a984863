"""Retry policies: which outcomes are retried, and after how long."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from async_op.call_costs import CallRefused
from async_op.durations import check_delay
from async_op.errors import RetryAfter
from keygroups.arguments import (
    Duration,
    check_callable,
    check_duration,
    check_flag,
    check_integer,
    check_number,
    not_awaitable,
)
from keygroups.errors import ConfigError
from keygroups.representation import representation
from keygroups.safe_text import errors_in

RetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
RetryIfResult: TypeAlias = Callable[[Sequence[Any]], bool]


def is_meant(name: str, errors: RetryOn | None, error: BaseException) -> bool:
    """Return whether an error matches `errors`, the argument `name`; a group does if any error in it does.

    Without `errors`, every error does.
    """
    if errors is None:
        return True
    if isinstance(errors, type | tuple):
        return isinstance(error, errors) or any(isinstance(one, errors) for one in errors_in(error))
    # Not `map`: a StopIteration that the predicate raises would look like the end of the errors.
    return any(not_awaitable(name, errors(one)) for one in errors_in(error))


def seconds_asked(error: BaseException) -> float | None:
    """Return how long the service asks to wait; None unless the error is a `RetryAfter`, or a group with one."""
    return max((one.seconds for one in errors_in(error) if isinstance(one, RetryAfter)), default=None)


def check_errors(name: str, errors: object) -> None:
    """Raise `ConfigError` unless `is_meant` accepts these errors."""
    if errors is None or (isinstance(errors, type) and issubclass(errors, BaseException)):
        return
    if isinstance(errors, tuple):
        for error in errors:
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise ConfigError(name, errors, "every item of the tuple must be an exception type")
        return
    reason = "use an exception type, a tuple of them, or a predicate"
    if isinstance(errors, type):
        raise ConfigError(name, errors, f"{errors.__name__} is not an exception type; {reason}")
    check_callable(name, errors, 1, reason=reason)


def growing_delay(attempt: int, initial_delay: float, max_delay: float, multiplier: float = 2.0) -> float:
    """Return the delay after an attempt; attempts count from 1. Each is `multiplier` times the one before.

    Examples
    --------
    >>> [growing_delay(attempt, 0.1, 1.0) for attempt in (1, 2, 5, 10_000)]
    [0.1, 0.2, 1.0, 1.0]
    """
    try:
        return min(initial_delay * multiplier ** (attempt - 1), max_delay)
    except OverflowError:
        return max_delay


class RetryPolicy(ABC):
    """The base of the retry policies: decides which outcomes are retried, and how often. Immutable.

    A `RetryAfter` error is always retried after the delay that it carries, as long as attempts are left. A
    `CallRefused` error is never retried.

    An exception group, as from an `asyncio.TaskGroup`, is judged by the errors in it, at any depth: one
    `CallRefused` makes it final; else it is retried after the longest delay of its `RetryAfter` errors, or if
    `retry_on` matches any of the errors. A predicate gets each of them, never the group.
    """

    def __init__(self, max_attempts: int, retry_on: RetryOn | None, retry_if_result: RetryIfResult | None) -> None:
        reason = "the first call is an attempt, too"
        self.max_attempts: int = check_integer("max_attempts", max_attempts, 1, reason=reason)
        check_errors("retry_on", retry_on)
        if retry_if_result is not None:
            check_callable("retry_if_result", retry_if_result, 1, reason="it decides from the outputs whether to retry")
        self._retry_on = retry_on
        self._retry_if_result = retry_if_result

    @property
    def retry_on(self) -> RetryOn | None:
        """The errors that are retried, as they were passed; None for all."""
        return self._retry_on

    @property
    def looks_at_outputs(self) -> bool:
        """Whether outputs decide if their call is repeated."""
        overrides = type(self).delay_after_result is not RetryPolicy.delay_after_result
        return overrides or self._retry_if_result is not None

    def __repr__(self) -> str:
        named = {name.removeprefix("_"): value for name, value in vars(self).items()}
        return representation(self, {name: value for name, value in named.items() if value is not None})

    @abstractmethod
    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""

    def delay_after_error(self, attempt: int, error: BaseException) -> float | None:
        """Return the seconds until the next attempt, or None if the error is final."""
        if attempt >= self.max_attempts or any(isinstance(one, CallRefused) for one in errors_in(error)):
            return None
        seconds = seconds_asked(error)
        if seconds is not None:
            return seconds
        return self.delay_after(attempt) if is_meant("retry_on", self._retry_on, error) else None

    def delay_after_result(self, attempt: int, outputs: Sequence[Any]) -> float | None:
        """Return the seconds until the next attempt, or None if the result is final."""
        if self._retry_if_result is None or attempt >= self.max_attempts:
            return None
        is_repeated = not_awaitable("retry_if_result", self._retry_if_result(outputs))
        return self.delay_after(attempt) if is_repeated else None


def checked_delay(policy: RetryPolicy, attempt: int, delay: float | None) -> float | None:
    """Return the delay that a policy has given after an attempt, or None if that was the last one.

    Raises
    ------
    ConfigError
        It is no delay: a subclass may give anything.
    """
    if delay is None or attempt >= policy.max_attempts:
        return None
    return check_duration("retry", delay, reason=f"{type(policy).__name__} gave it as the delay after an attempt")


class FixedDelayRetry(RetryPolicy):
    """Retry after a fixed delay.

    Parameters
    ----------
    max_attempts : int
        The most calls for one element, the first included.
    delay : float or timedelta
        Seconds between the end of an attempt and the next one.
    retry_on : exception type, tuple of them, or predicate, optional
        The errors that are retried; all by default.
    retry_if_result : callable, optional
        Decides from the outputs whether to try again.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> FixedDelayRetry(3, 0.5, retry_on=OSError).delay_after(1)
    0.5
    """

    def __init__(
        self,
        max_attempts: int,
        delay: Duration,
        retry_on: RetryOn | None = None,
        retry_if_result: RetryIfResult | None = None,
    ) -> None:
        super().__init__(max_attempts, retry_on, retry_if_result)
        self._delay = check_delay("delay", delay)

    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""
        return self._delay


class ExponentialBackoffRetry(RetryPolicy):
    """Retry after a delay that grows with each attempt.

    Parameters
    ----------
    max_attempts : int
        The most calls for one element, the first included.
    initial_delay, max_delay : float or timedelta
        The delay after the first attempt, and the longest delay, in seconds.
    multiplier : float
        The factor from one delay to the next, at least 1.
    jitter : bool
        Draw each delay at random between zero and its full length, so that clients that failed together do not retry
        together ("full jitter": M. Brooker, "Exponential Backoff and Jitter", 2015).
    retry_on : exception type, tuple of them, or predicate, optional
        The errors that are retried; all by default.
    retry_if_result : callable, optional
        Decides from the outputs whether to try again.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> policy = ExponentialBackoffRetry(5, 0.1, 1.0, jitter=False)
    >>> [policy.delay_after(attempt) for attempt in (1, 2, 3, 4, 5)]
    [0.1, 0.2, 0.4, 0.8, 1.0]
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: Duration,
        max_delay: Duration,
        multiplier: float = 2.0,
        jitter: bool = True,
        retry_on: RetryOn | None = None,
        retry_if_result: RetryIfResult | None = None,
    ) -> None:
        super().__init__(max_attempts, retry_on, retry_if_result)
        self._initial_delay = check_delay("initial_delay", initial_delay)
        self._max_delay = check_delay("max_delay", max_delay)
        self._multiplier = check_number("multiplier", multiplier, reason="delays may not shrink")
        if multiplier < 1:
            raise ConfigError("multiplier", multiplier, "delays may not shrink")
        check_flag("jitter", jitter)
        self._jitter = jitter

    @property
    def has_jitter(self) -> bool:
        """Whether delays are drawn at random."""
        return self._jitter

    def delay_after(self, attempt: int) -> float:
        """Return the seconds between the end of an attempt and the next one."""
        delay = growing_delay(attempt, self._initial_delay, self._max_delay, self._multiplier)
        return random.uniform(0, delay) if self._jitter else delay  # noqa: S311 - no secret depends on it
