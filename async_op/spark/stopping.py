"""What the stops of a query that are under way do to its epochs: none begins, and from some time on none waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

from pyspark.sql import SparkSession

from async_op.spark.chain import PipelineChain
from keygroups.context_managers import contextmanager

CONCLUDE_SECONDS = 10.0
"""How long a stop waits for the commit of an epoch whose calls it has cut off."""

_PAUSE_SECONDS = 0.5


class Stopping:
    """The stops of a query that are under way. Any thread may call it.

    The earliest of several stops counts.

    Parameters
    ----------
    chain : PipelineChain
        The pipelines of the query.
    spark : SparkSession
        The session in which epochs without input run.
    """

    def __init__(self, chain: PipelineChain, spark: SparkSession) -> None:
        self._chain = chain
        self._spark = spark
        self._untils: list[float] = []

    @property
    def is_under_way(self) -> bool:
        """Whether there is one, so that no micro-batch may begin."""
        return bool(self._untils)

    @property
    def seconds_left(self) -> float | None:
        """How long an epoch may wait for calls; None for as long as they take."""
        until = min(self._untils, default=math.inf)
        return None if until == math.inf else max(0.0, until - time.monotonic())

    @contextmanager
    def by(self, until: float | None) -> Iterator[None]:
        """Let no micro-batch begin, and from `until` on let no epoch wait for calls; None lets it wait for all.

        An epoch without input whose operators live in their tasks cannot be cut off, so it is given up.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._cut_off, args=(until, done), name="keygroups stop", daemon=True)
        counted = math.inf if until is None else until
        self._untils.append(counted)
        try:
            if until is not None:
                thread.start()
            yield
        finally:
            done.set()
            self._untils.remove(counted)

    def is_over(self, until: float | None) -> bool:
        """Tell whether an epoch that was to be cut off at some time, and is not in its sink, is to be given up."""
        return until is not None and time.monotonic() >= self._limit(until) and not self._chain.is_delivering

    def _limit(self, until: float) -> float:
        return until + (CONCLUDE_SECONDS if self._chain.has_hosts else 0.0)

    def _cut_off(self, until: float, done: threading.Event) -> None:
        pause = max(0.0, until - time.monotonic())
        while not done.wait(pause):
            pause = _PAUSE_SECONDS
            self._chain.conclude()
            if self.is_over(until):
                self._chain.give_up(self._spark)
