"""Errors of the testing kit; each says what to do next."""

from __future__ import annotations

from async_op.errors import shorten
from keygroups.errors import KeyGroupsError


class Stalled(KeyGroupsError, RuntimeError):
    """A virtual loop cannot continue: everything waits for something that will never happen."""

    seconds: float
    """The virtual seconds since the loop's start."""
    reason: str
    """What the loop has found."""

    _template = (
        "{reason}, {seconds:,.6g} s after the start: end what is waited for in the test, or give the call a timeout; "
        "sockets, processes and threads of your own are not seen in virtual time"
    )


class InsideEventLoop(KeyGroupsError, RuntimeError):
    """Virtual time was used where an event loop runs already, in a coroutine or in a notebook's cell."""

    _template = (
        "an event loop runs in this thread, and virtual time has its own: write the test as a plain function, or use "
        "the harness or run() through asyncio.to_thread"
    )


class HarnessNotEntered(KeyGroupsError, RuntimeError):
    """A harness was used outside of `with`, so it has no operators."""

    _template = (
        "a harness has no operators outside of its `with` block: write `with OperatorHarness(…) as harness:` and use "
        "it inside"
    )


class CallNotRecorded(KeyGroupsError, LookupError):
    """A recorded service was asked for what its file has no answer to."""

    path: str
    """The file."""
    call: str
    """The call, with its arguments."""

    _template = (
        "{path} has no record of {call}: record it once with RecordedService(path, record=client), or look why the "
        "call has changed"
    )


class NotRecordable(KeyGroupsError, TypeError):
    """An argument or an answer of a recorded call would not be the same after it was written as JSON."""

    call: str
    """The method."""
    value: str
    """The value, shortened."""

    def __init__(self, call: str, value: object) -> None:
        self.call = call
        self.value = shorten(value)
        super().__init__(
            f"{call}: {self.value} does not come back from JSON as it was: record an object whose methods take and "
            "return dicts, lists, text, numbers, booleans and None"
        )
