"""How often Python looks for cyclic garbage where nothing but operators runs, and at how many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

from keygroups.context_managers import contextmanager

GARBAGE_MIN = 25_000
"""Python looks after so many more objects were made than freed; a thousand rows in flight have some ten thousand."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage less often inside the context, unless it is told to look even less often.

    By itself it looks after 700 objects, again and again at all rows and calls in flight, which are freed without its
    help once they are done: a third of the processor's time of a call. It is a setting of the process, so this is for
    what runs nothing but operators meanwhile: hosts, children, tasks of Spark and `Job.run_sync`. Of two such contexts
    on two threads, the one that has set it sets it back.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < GARBAGE_MIN:
        yield
        return
    gc.set_threshold(GARBAGE_MIN, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def quick_collections() -> Iterator[None]:
    """Let a task of Spark be interrupted rarely by a collection of garbage, and let the collections after it be quick.

    PySpark's worker collects all garbage after each task. With the objects of Arrow, NumPy and this package it looks at
    100,000 of them: 25 to 40 ms of a processor, while the next epoch may wait for it.
    """
    with rare_collections():
        yield
    _spare_what_stays()


@cache
def _spare_what_stays() -> None:
    """Hide from later collections what is there after a worker's first task: modules, which stay until its end.

    Objects are freed as before once nothing refers to them; only cycles among the objects of this moment would stay.
    """
    gc.collect()
    gc.freeze()
