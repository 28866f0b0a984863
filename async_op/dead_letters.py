"""Elements that failed for good, for those who want to look at them later."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


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
