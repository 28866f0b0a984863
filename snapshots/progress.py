"""How far a long operation is.

A room of its own: inspection, reports and upkeep all tell it, and none of them imports another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from keygroups.arguments import check_callable

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of bytes done and the total number of bytes; a rewrite counts each byte twice."""


def progress_of(given: Progress | None) -> Progress:
    """Return what is told how far an operation is; by default it is ignored.

    Raises
    ------
    ConfigError
        It cannot be called with two arguments.
    """
    if given is None:
        return lambda _done, _total: None
    check_callable("progress", given, 2, reason="it is called with the number of bytes done and the total")
    return given
