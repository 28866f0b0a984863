"""Errors of the async operator, named after the situation; each says what to do next."""

from __future__ import annotations

import asyncio
import reprlib
from typing import Any

from keygroups.arguments import Duration, check_duration
from keygroups.errors import KeyGroupsError, in_message
from keygroups.representation import counted
from keygroups.safe_text import described, errors_in, printable, repr_of


class _Shortener(reprlib.Repr):
    def repr_RecordBatch(self, batch: Any, level: int) -> str:  # noqa: N802 - reprlib looks for the type's name
        first = f", the first {self.repr1(batch.slice(0, 1).to_pylist()[0], level)}" if batch.num_rows else ""
        return f"RecordBatch of {counted(batch.num_rows, 'row')}{first}"


_shortener = _Shortener()


def shorten(value: object) -> str:
    """Return a representation that fits into a message; for a record batch, its size and first row."""
    return repr_of(value, _shortener.repr)


def named_element(element_id: str | None, element: object) -> str:
    """Return how a message names an element: by its id, which is always shown, and its value, which may be hidden."""
    value = in_message(element, shorten(element))
    return value if element_id is None else f"{value} (id {element_id})"


class LooksLikeMilliseconds(UserWarning):
    """A number of seconds is so large that the caller probably meant milliseconds.

    Attributes
    ----------
    name : str
        The name of the argument.
    seconds : float
        The value that was passed.
    """

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(name, seconds)
        self.name = name
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"{self.name}={self.seconds:g} is in seconds, so more than an hour: for milliseconds pass "
            f"{self.seconds / 1000:g}, and if you mean it a datetime.timedelta(seconds={self.seconds:g})"
        )


class BlocksEventLoop(UserWarning):
    """A function has blocked its event loop for over a second, so all other calls on the loop wait.

    It is issued once for each function, as if by the line that blocks, so filters of `warnings` can choose it.

    Attributes
    ----------
    module, function : str
        The function: its module and its name.
    path : str
        The file of the function.
    line : int
        The line that blocks.
    """

    def __init__(self, module: str, function: str, path: str, line: int) -> None:
        super().__init__(module, function, path, line)
        self.module = module
        self.function = function
        self.path = path
        self.line = line

    def __str__(self) -> str:
        return (
            f"{self.module}.{self.function} has blocked its event loop for over a second, so its other calls wait: "
            "await the call, or let it run on threads (a plain function, or a BlockingFunction)"
        )


class AsyncTimeoutError(KeyGroupsError, TimeoutError):
    """The attempts at an element together took longer than the operator's timeout."""

    element: str
    """The element, shortened."""
    timeout: float | None
    """The budget in seconds."""
    element_id: str | None
    """The element's id; None if the caller did not know it."""

    def __init__(self, element: object, timeout: float | None, element_id: str | None = None) -> None:
        self.element = shorten(element)
        self.timeout = timeout
        self.element_id = element_id
        budget = "in time" if timeout is None else f"within {timeout:g} s"
        super().__init__(
            f"no result {budget} for {named_element(element_id, element)}; raise the timeout, "
            "or override `timeout()` of the function to return a fallback"
        )


class ElementFailed(KeyGroupsError):
    """The call for an element raised an error, and the error policy is to fail the operator."""

    element: str
    """The element, shortened."""
    key: str
    """Its key, shortened."""
    attempt: int
    """The attempt that failed; 0 if no call was made, for example because the element has no usable key."""
    cause: str
    """The error, as text; the error itself is `__cause__` in the process where it was raised."""
    element_id: str | None
    """The element's id; None if it was not known."""

    def __init__(
        self, element: object, key: object, attempt: int, cause: BaseException, element_id: str | None = None
    ) -> None:
        self.element = shorten(element)
        self.element_id = element_id
        self.key = shorten(key)
        self.attempt = attempt
        self.cause = described(cause)
        choice = (
            ", or choose another on_error" if is_failure(cause) else ": it is not an Exception, so on_error is ignored"
        )
        super().__init__(
            f"attempt {attempt} of element {named_element(element_id, element)}{_with_key(key)} failed: {self.cause}; "
            f"none of its writes was applied: handle the error in the function{choice}"
        )


def _with_key(key: object) -> str:
    """Return the part of a message that names a key; empty without one, as where an operator has no `key_by`."""
    return "" if key is None else f" with key {in_message(key, shorten(key))}"


class OperatorInterrupted(KeyGroupsError, RuntimeError):
    """The operator ended with no failure of an element.

    What ended it was `SystemExit`, say, a cancellation from outside, or the failure of a task that `open` had started.
    """

    cause: str
    """The error, as text; the error itself is `__cause__` in the process where it was raised."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = described(cause)
        super().__init__(
            f"{self.cause} ended the operator, and is not a failure of an element that could be retried or skipped; "
            "handle it where it is raised, and open a new operator with the last snapshot"
        )


class OpenFailed(KeyGroupsError, RuntimeError):
    """`open` of the function has raised an error in a host, so no call was made."""

    function: str
    """The name of the function."""
    place: str
    """The file and line of the function that has failed."""
    cause: str
    """The error, as text; the error itself is `__cause__` in the process where it was raised."""

    _template = "open() of {function} has failed at {place}: {cause}; no call was made: correct it, and start again"


def is_failure(error: BaseException) -> bool:
    """Return whether an error is the failure of one element: true for every `Exception`, false for `SystemExit` etc.

    A group is a failure unless one of the errors in it is not.
    """
    return all(isinstance(one, Exception | asyncio.CancelledError) for one in errors_in(error))


def as_exception(error: BaseException) -> Exception:
    """Return an exception that stands for the error and can be raised in any coroutine.

    An error that is not an `Exception` would end the event loop, or look like a cancellation of the task that receives
    it. Coroutines and async generators turn `StopIteration` and `StopAsyncIteration` into a `RuntimeError`.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    interruption = OperatorInterrupted(error)
    interruption.__cause__ = error
    return interruption


def failure_of(
    element: object, key: object, attempt: int, error: BaseException, element_id: str | None = None
) -> KeyGroupsError:
    """Return the error that ends the operator after an element's failure."""
    if isinstance(error, AsyncTimeoutError):
        when = f"in attempt {attempt} of" if attempt else "before the first call for"
        element = "the element" if element_id is None else f"element {printable(element_id)}"
        waits = "" if key is None else "; the timeout includes the wait for calls of elements with the same key"
        error.add_note(f"{when} {element}{_with_key(key)}{waits}")
        return error
    failure = ElementFailed(element, key, attempt, error, element_id)
    failure.__cause__ = error
    return failure


class InvalidFunctionResult(KeyGroupsError, TypeError):
    """A function returned something that is not an iterable of outputs, or contains something that is not an output.

    Parameters
    ----------
    result : object
        The returned object.
    instead : str
        What the function should return, for the message.
    """

    result: str
    """The returned object, shortened."""

    def __init__(self, result: object, instead: str = "a list: [] for no output, [output] for one") -> None:
        self.result = shorten(result)
        super().__init__(
            f"the function returned {in_message(result, self.result)} ({type(result).__name__}), not an iterable of "
            f"outputs; return {instead}"
        )


class KeyColumnMissing(KeyGroupsError, LookupError):
    """`key_by` names a column that a value does not have."""

    column: str
    """The name of the column."""
    element: str
    """The value without the column, shortened."""

    def __init__(self, column: str, element: object) -> None:
        self.column = column
        self.element = shorten(element)
        super().__init__(
            f"{in_message(element, self.element)} has no column {column!r} to be its key; "
            "name a column that all values have, or pass a callable that returns the key of a value"
        )


class ValueRefused(KeyGroupsError, ValueError):
    """No call is made for an element: its value cannot be read, or could not be stored while it was in flight."""

    element: str
    """What is known of the value, shortened."""
    reason: str
    """Why it cannot be used."""

    _template = (
        "the value cannot be used: {reason}; correct it in the source, or let on_error skip the element or keep it as "
        "a dead letter"
    )


class ItemsNotGiven(KeyGroupsError, RuntimeError):
    """A function's `snapshot_state` failed, or returned something that is no list of items that can be stored.

    There is no snapshot then; the newest one stays.
    """

    state: str
    """The name of the operator state."""
    reason: str
    """The error, as text; the error itself is `__cause__` in the process where it was raised."""

    _template = (
        "snapshot_state gave no items for operator state {state!r}: {reason}; return a list of what a snapshot can "
        "hold, or None for what was written through the handle"
    )


class UnusableTimestamp(KeyGroupsError, ValueError):
    """`timestamps` has found no timestamp in an element, or something else.

    It fails its element alone, by `on_error`: its text is the reason of the element's `ValueRefused`.
    """

    element: str
    """The element, shortened."""
    found: str
    """What stands in place of the timestamp, shortened."""
    column: str | None
    """The column that the element does not have; None if it has one, or if `timestamps` is a callable."""

    def __init__(self, element: object, found: object, column: str | None = None) -> None:
        self.element = shorten(element)
        self.found = shorten(found)
        self.column = column
        has = f"the timestamp {in_message(found, self.found)}" if column is None else f"no column {column!r}"
        super().__init__(
            f"{in_message(element, self.element)} has {has}; `timestamps` has to give milliseconds since the epoch "
            "as an int, a datetime, or None for an element without a timestamp"
        )


class WrongEventLoop(KeyGroupsError, RuntimeError):
    """A method of an operator was called outside of the event loop on which the operator was opened."""

    thread: str
    """The name of the thread that called it."""

    _template = (
        "the operator belongs to the event loop on which it was opened, but was called elsewhere, in thread "
        "{thread!r}; hand the call over with operator.executor().submit(operator.process, value), or open an operator "
        "here"
    )


class SnapshotInsideOutput(KeyGroupsError, RuntimeError):
    """`output` asked for a snapshot. At that moment, some outputs of an element may have left and others not."""

    _template = "outputs are leaving the operator: let output() return before a snapshot is cut"


class OperatorClosed(KeyGroupsError, RuntimeError):
    """The operator was used before `open` or after `close`."""

    state: str
    """One of "new", "open" and "closed"."""

    def _message(self) -> str:
        step = "await open() first" if self.state == "new" else "make a new operator and open it with the last snapshot"
        return f"the operator is {self.state}: {step}"


class TimersUnavailable(KeyGroupsError, RuntimeError):
    """A function used timers without a key, or without defining `on_timer`."""

    key: str
    """The key of the invocation, shortened; "None" if the operator has no keys."""

    def __init__(self, key: object) -> None:
        self.key = shorten(key)
        super().__init__(
            f"an invocation with key {in_message(key, self.key)} asked for timers, which belong to a key and to a "
            "function with `on_timer`: define it, and pass `key_by` to the operator"
        )


class SharedOutsideOpen(KeyGroupsError, RuntimeError):
    """`shared` was awaited outside of a function's `open`, so its result would never be released."""

    key: str
    """The key of the resource, shortened."""

    def __init__(self, key: object) -> None:
        self.key = shorten(key)
        super().__init__(
            f"shared({self.key}, …) was awaited outside of a function's `open`: await it there and keep the result, "
            "or write `async with shared(…) as …`"
        )


class RetryAfter(KeyGroupsError):
    """Raised by a function when the service asks to be called again after some time.

    The element waits for so long before its next attempt. If the operator has a `RateLimit`, all calls of the subtask
    share a limit of the service, so no call begins before that time is over.

    Parameters
    ----------
    seconds : float or timedelta
        The delay before the next attempt; it replaces the delay of the retry policy. `seconds_to_wait` reads it from
        the headers of an answer.
    """

    seconds: float
    """The delay in seconds."""

    def __init__(self, seconds: Duration) -> None:
        self.seconds = check_duration("seconds", seconds)
        message = f"the service asks for a delay of {self.seconds:g} s; give the operator a retry policy to follow it"
        super().__init__(message)


class IncompleteAnswer(KeyGroupsError, ConnectionError):
    """A streamed answer has ended in the middle; nothing of it is kept."""

    characters: int
    """How long the text was until then."""
    reported: str
    """The error that the service has reported in place of the rest, shortened; "None" if the stream just ended."""

    def __init__(self, characters: int, reported: object) -> None:
        self.characters = characters
        self.reported = shorten(reported)
        said = f"the service reported {in_message(reported, self.reported)}"
        reason = "the stream ended" if reported is None else said
        super().__init__(
            f"the streamed answer is incomplete: {reason} after {characters:,} characters; "
            "give the operator a retry policy whose `retry_on` includes IncompleteAnswer to ask again"
        )


class CircuitOpen(KeyGroupsError, ConnectionError):
    """The circuit breaker is open: no call was made for an element, because too many calls have failed."""

    seconds: float
    """Seconds until the service is tried again."""

    _template = (
        "the circuit breaker is open for another {seconds:.3g} s; retry with a delay of about that, choose an on_error "
        "policy, or let elements wait with when_open='wait'"
    )


class IncompleteBatch(KeyGroupsError, ValueError):
    """A batch function returned more or fewer results than it got values."""

    values: int
    """How many values it got."""
    results: int
    """How many results it returned."""

    _template = (
        "the function returned {results} results for {values} values; return one iterable of outputs, or one "
        "exception, for each value and in their order"
    )


class TooManySubmitted(KeyGroupsError, RuntimeError):
    """So many calls that were submitted to an operator have not ended that it takes no more from this thread."""

    limit: int
    """How many calls may be open."""

    _template = (
        "{limit} calls that were submitted to the operator have not ended, and this thread cannot wait for one of "
        "them: wait for the results of earlier calls, and on the event loop await the operator's methods themselves"
    )
