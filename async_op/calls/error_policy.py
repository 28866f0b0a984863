"""Applies the error policy to elements that failed for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from async_op.dead_letters import DeadLetter, InPlace, OnError
from async_op.errors import failure_of
from async_op.in_flight.entries import Entry, begin_anew
from keygroups.state.detached import own_copy


class ErrorPolicy:
    """Fails the operator, skips the element or passes a dead letter on. Only the thread of the event loop may call it.

    Parameters
    ----------
    on_error : {"fail", "skip", "dead_letter"}
        The policy.
    dead_letters : callable or None
        Receives the dead letters.
    idempotency_key_of : callable
        Returns an entry's idempotency key.
    fail : callable
        Called with the error that ends the operator.
    """

    __slots__ = ("_collect", "_fail", "_idempotency_key_of", "_on_error", "dead_letters", "skipped")

    def __init__(
        self,
        on_error: OnError,
        dead_letters: Callable[[DeadLetter], object] | None,
        idempotency_key_of: Callable[[Entry], str],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._on_error = on_error
        self._collect = dead_letters
        self._idempotency_key_of = idempotency_key_of
        self._fail = fail
        self.skipped = self.dead_letters = 0

    def apply(self, entry: Entry, error: BaseException) -> Sequence[Any] | None:
        """Return the outputs that replace a failed element's, or None if the operator has failed."""
        if self._on_error == "fail":
            failure = failure_of(entry.value, entry.key, entry.attempt, error, self._idempotency_key_of(entry))
            begin_anew(entry)  # if a snapshot is taken of it, its failure is forgotten after a restore
            self._fail(failure)
            return None
        if self._collect is None:
            self.skipped += 1
            return ()
        self.dead_letters += 1
        letter = DeadLetter(
            value=own_copy(entry.value),
            timestamp=entry.timestamp,
            key=entry.key,
            idempotency_key=self._idempotency_key_of(entry),
            attempts=entry.attempt,
            error=error,
        )
        if isinstance(self._collect, InPlace):
            return self._collect(letter)
        self._collect(letter)
        return ()
