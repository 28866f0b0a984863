"""Elements that failed for good, for those who want to look at them later."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from async_op.elements import Entry
from async_op.errors import failure_of

OnError = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An element that failed for good under the error policy "dead_letter".

    Attributes
    ----------
    value : object
        The element.
    timestamp : int or None
        Milliseconds since the epoch.
    key : object
        Its key, or None.
    idempotency_key : str
        As its calls had it.
    attempts : int
        How many calls were made.
    error : BaseException
        What the last one raised, or `AsyncTimeoutError`.
    """

    value: Any
    timestamp: int | None
    key: Hashable
    idempotency_key: str
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class InPlace:
    """A receiver of dead letters that gives outputs for them, which leave in the place of the element's own.

    Attributes
    ----------
    convert : callable
        Returns the outputs for a dead letter.
    """

    convert: Callable[[DeadLetter], Sequence[Any]]

    def __call__(self, letter: DeadLetter) -> Sequence[Any]:
        """Return the outputs."""
        return self.convert(letter)


class ErrorPolicy:
    """Decides what becomes of an element that failed for good. Only the thread of the event loop may call it.

    Parameters
    ----------
    on_error : {"fail", "skip", "dead_letter"}
        The policy.
    dead_letters : callable or None
        Gets the dead letters.
    element_id_of : callable
        Returns an entry's idempotency key.
    fail : callable
        Called with the error that ends the operator.
    """

    __slots__ = ("_collect", "_element_id_of", "_fail", "_on_error", "dead_letters", "skipped")

    def __init__(
        self,
        on_error: OnError,
        dead_letters: Callable[[DeadLetter], object] | None,
        element_id_of: Callable[[Entry], str],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._on_error = on_error
        self._collect = dead_letters
        self._element_id_of = element_id_of
        self._fail = fail
        self.skipped = self.dead_letters = 0

    def apply(self, entry: Entry, error: BaseException) -> Sequence[Any] | None:
        """Return the outputs of a failed element, or None if the operator has failed with it."""
        if self._on_error == "fail":
            self._fail(failure_of(entry.value, entry.key, entry.attempt, error))
            return None
        if self._collect is None:
            self.skipped += 1
            return ()
        self.dead_letters += 1
        letter = DeadLetter(
            value=entry.value,
            timestamp=entry.timestamp,
            key=entry.key,
            idempotency_key=self._element_id_of(entry),
            attempts=entry.attempt,
            error=error,
        )
        if isinstance(self._collect, InPlace):
            return self._collect(letter)
        self._collect(letter)
        return ()
