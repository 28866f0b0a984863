"""Errors of the async operator, named after the situation; each says what to do next."""

from __future__ import annotations

import reprlib

from keygroups.errors import KeyGroupsError


def shorten(value: object) -> str:
    """Return a representation that fits in a message."""
    return reprlib.repr(value)


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
            "nothing of it was applied: handle the error in the function and start again from the last snapshot"
        )


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
