"""How often Spark's Python workers look for cyclic garbage, and at how many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

from async_op.threads.loop_thread import rare_collections
from keygroups.context_managers import contextmanager


@contextmanager
def quick_collections() -> Iterator[None]:
    """Let a task be interrupted rarely by a collection of garbage, and let the collections after it be quick.

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
