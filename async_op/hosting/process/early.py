"""Starts the template of hosts before a worker loads its first task, so that both import at the same time.

A worker imports for 0.2 s of processor time until it can run its task, and the template for 0.7 s until it can fork a
host. One after the other, they were most of a cold start. So this module imports next to nothing.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from async_op.hosting.errors import HostUnreachable
from async_op.hosting.process import template


@dataclass(frozen=True, slots=True)
class EarlyTask:
    """A task that its worker loads only once the template is on its way.

    Attributes
    ----------
    task : bytes
        The pickled task, which will ask for a host.
    modules : sequence of str
        What the template loads; see `launch`.
    """

    task: bytes = field(repr=False)
    modules: Sequence[str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Start the template, then load the task and run it."""
        if sys.platform == "linux":
            with suppress(OSError, HostUnreachable):  # the launch of the host finds it out, and says so
                _begin_template(self.modules)
        task: Callable[[Iterable[Any]], Iterator[Any]] = pickle.loads(self.task)  # noqa: S301 - pickled by the driver
        return task(batches)


def _begin_template(modules: Sequence[str]) -> None:
    owner = template.watch(os.getppid())  # as the task's hosts, it must not outlive Spark's daemon
    if owner is not None:
        try:
            template.begin(owner, modules)
        finally:
            os.close(owner)
