"""Epochs without input: while no micro-batch comes, and at the end of a query that is to finish what is in flight."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from pyspark.sql import SparkSession

from async_op.errors import as_exception
from async_op.spark.chain import PipelineChain
from async_op.spark.epoch.job_names import are_cancelled
from async_op.spark.stopping import Stopping
from keygroups.errors import with_notes
from keygroups.representation import representation

_log = logging.getLogger(__package__)

_AFTER_IDLE_SECONDS = 1
"""How long a query must be idle before an epoch without input may run."""


class MicroBatches(Protocol):
    """The streaming query, as far as `IdleEpochs` must know it."""

    def has_ended(self, seconds: float) -> bool:
        """Wait for the end of the query for some seconds; return whether it has ended."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the query has ended with an error."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a micro-batch is under way."""
        ...

    def stop(self) -> None:
        """Stop the query, because an epoch without input has failed."""
        ...


class IdleEpochs:
    """Runs epochs without input on a thread of its own. Any thread may call it.

    Spark starts no micro-batch without new input. So while none comes, an epoch without input runs if calls have
    returned or timers are due. After the end of the query the thread ends all hosts.

    Parameters
    ----------
    chain : PipelineChain
        The pipelines of the query.
    spark : SparkSession
        The session in which their epochs run.
    stopping : Stopping
        The stops of the query.

    Attributes
    ----------
    at_end : bool
        Whether the query's end waits until nothing is in flight.
    failure : Exception or None
        The error of an epoch without input, which has stopped the query.
    """

    def __init__(self, chain: PipelineChain, spark: SparkSession, stopping: Stopping) -> None:
        self._chain = chain
        self._spark = spark
        self._stopping = stopping
        self._thread: threading.Thread | None = None
        self.at_end = False
        self.failure: Exception | None = None

    def __repr__(self) -> str:
        return representation(self, {"at_end": self.at_end, "failure": self.failure})

    def start(self, batches: MicroBatches) -> None:
        """Begin, once the query has started."""
        self._thread = threading.Thread(target=self._run, args=(batches,), name="keygroups idle epochs", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the query has not ended, or its end is still waiting."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise the error of an epoch without input, if there is one."""
        if self.failure is not None:
            raise self.failure

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread, unless this is the thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self, batches: MicroBatches) -> None:
        has_ended = False
        try:
            self._while_idle(batches)
            has_ended = True
            left = self._stopping.seconds_left
            if self.at_end and not batches.has_failed and left != 0.0:
                self._chain.drain(self._spark, left)
            elif not self._stopping.is_under_way and not batches.has_failed:
                self._chain.check()  # Spark has stopped it, maybe for another start with its checkpoint
            self._chain.close(self._spark, failed=batches.has_failed)
        except BaseException as error:  # noqa: BLE001 - raised by `awaitTermination`
            # By now Spark may know another run by the id of a query that has ended, and would stop that one.
            self._end(None if has_ended else batches, as_exception(error))

    def _end(self, batches: MicroBatches | None, error: Exception) -> None:
        if self._stopping.is_under_way and are_cancelled(error):
            _log.warning("the epoch without input is given up, and its calls are made again by the next start")
            self._chain.close(self._spark, failed=True)
            return
        self.failure = error
        _log.error("the query stops, because of an error outside of its micro-batches: %s", with_notes(error))
        try:
            if batches is not None:
                batches.stop()
        finally:
            self._chain.close(self._spark, failed=True)

    def _while_idle(self, batches: MicroBatches) -> None:
        idle_epochs: tuple[int, ...] = ()
        while not batches.has_ended(_AFTER_IDLE_SECONDS):
            if self._chain.epochs == idle_epochs and not batches.is_busy:
                self._chain.deliver_ready(self._spark)
            idle_epochs = self._chain.epochs
