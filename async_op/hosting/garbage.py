"""How often Python looks for cyclic garbage while an operator runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 25_000
"""Python looks after so many more objects were made than freed; a thousand rows in flight have some ten thousand."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often inside the context, unless it is told to look even less often.

    By itself it looks after 700 objects, again and again at all rows and calls in flight, which are freed without its
    help once they are done: a third of the processor's time of a call. It is a setting of the process, so this is for
    processes that do nothing but run an operator.
    """
    before = gc.get_threshold()
    if 0 < before[0] < OBJECTS:
        gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
