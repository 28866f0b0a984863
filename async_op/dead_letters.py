"""Elements that failed for good, kept so that they can be inspected and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keygroups.representation import fields_repr

OnError = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An element that failed for good under the error policy "dead_letter".

    Attributes
    ----------
    value : object
        The element's value.
    timestamp : int or None
        Milliseconds since the epoch.
    key : object
        Its key, or None.
    idempotency_key : str
        The one that its calls had.
    attempts : int
        How many calls were made.
    error : BaseException
        The error of the last call, or `AsyncTimeoutError`.
    """

    value: Any
    timestamp: int | None
    key: Hashable
    idempotency_key: str
    attempts: int
    error: BaseException

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class InPlace:
    """A receiver of dead letters that turns each one into outputs, which the operator emits in place of the element's.

    Attributes
    ----------
    convert : callable
        Returns the outputs for a dead letter.
    """

    convert: Callable[[DeadLetter], Sequence[Any]]

    def __call__(self, letter: DeadLetter) -> Sequence[Any]:
        """Return the outputs that replace the failed element's."""
        return self.convert(letter)
