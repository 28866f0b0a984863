"""Errors of the async operator, named after the situation; each says what to do next."""

from __future__ import annotations

import reprlib
from typing import Any

from keygroups.errors import ConfigError, KeyGroupsError


class _Shortener(reprlib.Repr):
    def repr_RecordBatch(self, batch: Any, level: int) -> str:  # noqa: N802 - reprlib looks for the type's name
        first = f", the first {self.repr1(batch.slice(0, 1).to_pylist()[0], level)}" if batch.num_rows else ""
        return f"RecordBatch of {batch.num_rows} rows{first}"


_shortener = _Shortener()


def shorten(value: object) -> str:
    """Return a representation that fits in a message; of a record batch, its size and first row."""
    return _shortener.repr(value)


class AsyncTimeoutError(KeyGroupsError, TimeoutError):
    """An element's call, with all its attempts, took longer than the operator's timeout.

    Attributes
    ----------
    element : str
        The element, shortened.
    timeout : float
        The budget in seconds.
    """

    def __init__(self, element: object, timeout: float | None) -> None:
        self.element = shorten(element)
        self.timeout = timeout
        super().__init__(
            f"no result within {timeout} s for {self.element}; raise the timeout, "
            "or override `timeout()` of the function to return a fallback"
        )


class ElementFailed(KeyGroupsError):
    """An element's call raised, and the error policy is to fail the operator.

    Attributes
    ----------
    element : str
        The element, shortened.
    key : str
        Its key, shortened.
    attempt : int
        The attempt that failed.
    cause : str
        The error, as text; the error itself is `__cause__` in the process where it was raised.
    """

    def __init__(self, element: object, key: object, attempt: int, cause: BaseException) -> None:
        self.element = shorten(element)
        self.key = shorten(key)
        self.attempt = attempt
        self.cause = f"{type(cause).__name__}: {cause}"
        super().__init__(
            f"attempt {attempt} of element {self.element} with key {self.key} failed: {self.cause}; "
            "nothing of it was applied: handle the error in the function, or choose another on_error"
        )


def failure_of(element: object, key: object, attempt: int, error: BaseException) -> KeyGroupsError:
    """Return the error with which an element's failure ends the operator."""
    if isinstance(error, AsyncTimeoutError):
        error.add_note(f"in attempt {attempt}, with key {shorten(key)}")
        return error
    failure = ElementFailed(element, key, attempt, error)
    failure.__cause__ = error
    return failure


class InvalidFunctionResult(KeyGroupsError, TypeError):
    """A function returned something that is not an iterable of outputs.

    Attributes
    ----------
    result : str
        What it returned, shortened.
    """

    def __init__(self, result: object) -> None:
        self.result = shorten(result)
        super().__init__(
            f"the function returned {self.result} ({type(result).__name__}), not an iterable of outputs; "
            "return a list: [] for no output, [output] for one"
        )


class OperatorClosed(KeyGroupsError, RuntimeError):
    """The operator was used before `open` or after `close`.

    Attributes
    ----------
    state : str
        "new" or "closed".
    """

    def __init__(self, state: str) -> None:
        self.state = state
        step = "await open() first" if state == "new" else "make a new operator and open it with the last snapshot"
        super().__init__(f"the operator is {state}: {step}")


class TimersUnavailable(KeyGroupsError, RuntimeError):
    """A function asked for its timers, but does not say what they are to do.

    Attributes
    ----------
    key : str
        The key of the invocation, shortened; of an operator without keys, None.
    """

    def __init__(self, key: object) -> None:
        self.key = shorten(key)
        super().__init__(
            f"an invocation with key {self.key} asked for timers, which belong to a key and to a function with "
            "`on_timer`: define it, and pass `key_by` to the operator"
        )


class RetryAfter(KeyGroupsError):
    """Raised by a function: the service asked to be called again after some time.

    Parameters
    ----------
    seconds : float
        The delay before the next attempt, in place of the retry policy's.
    """

    def __init__(self, seconds: float) -> None:
        if not 0 <= seconds < float("inf"):
            raise ConfigError("seconds", seconds, "zero or more")
        self.seconds = seconds
        super().__init__(f"the service asks for a delay of {seconds} s; give the operator a retry policy to follow it")


class IncompleteBatch(KeyGroupsError, ValueError):
    """A batch function returned another number of results than it got values.

    Attributes
    ----------
    values, results : int
        How many of each.
    """

    def __init__(self, values: int, results: int) -> None:
        self.values = values
        self.results = results
        super().__init__(
            f"the function returned {results} results for {values} values; "
            "return one iterable of outputs, or one exception, for each value and in their order"
        )


class MailboxClosed(KeyGroupsError, RuntimeError):
    """Mail was put into, or taken from, a mailbox that does not accept it any more.

    Attributes
    ----------
    state : str
        "quiesced" or "closed".
    """

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(f"the mailbox is {state}: what it served has ended, so drop the mail")
