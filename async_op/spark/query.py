"""The running query of a pipeline: Spark's micro-batches, and epochs without input when none comes."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from async_op.errors import as_exception
from async_op.spark.chain import PipelineChain
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.errors import EpochFailed
from async_op.spark.idle_epochs import IdleEpochs
from async_op.spark.progress import PipelineProgress
from async_op.spark.running_query import RunningQuery, ends_by_itself, plain_interrupts
from async_op.spark.stopping import Stopping
from keygroups.errors import KeyGroupsError, with_notes
from keygroups.safe_text import described

_log = logging.getLogger(__package__)

_PAUSE_SECONDS = 0.5

_GIVEN_UP = (
    "the query is stopped, so its micro-batch is given up "
    "(py4j.protocol.Py4JJavaError: An error occurred while calling Python: java.lang.InterruptedException)"
)
"""What is in brackets tells Spark that a stop, and no fault, has ended a micro-batch.

Spark looks for it with a regular expression that overflows the stack of its thread if the text is as long as Py4J's
own, and then prints a thousand lines.
"""


class PipelineQuery(RunningQuery):
    """The running query: a `StreamingQuery` that also delivers results without new input. Any thread may call it.

    Spark starts no micro-batch without new input. So a thread of this class runs epochs without input: while no
    micro-batch comes, if calls have returned or timers are due; and at the end of a query with the trigger
    `availableNow` or `once`, to finish what is in flight. Timers that are due later stay in the snapshot and do not
    delay the end. All other attributes come from the `StreamingQuery`. In the progress of a micro-batch,
    `observedMetrics["keygroups"]` is the progress of its epoch. Spark does not know of epochs without input; their
    progress is in `AsyncPipeline.progress()` only.
    """

    def __init__(self, chain: PipelineChain, spark: SparkSession) -> None:
        self._chain = chain
        self._spark = spark
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._stopping = Stopping(chain, spark)
        self._idle_epochs = IdleEpochs(chain, spark, self._stopping)
        self._batch = threading.RLock()
        """Held by the epoch of a micro-batch."""

    def start(self, stream_df: DataFrame, checkpoint_location: str, trigger: dict[str, Any]) -> None:
        """Start the streaming query, and the thread that runs epochs without input."""
        writer = stream_df.writeStream.foreachBatch(self._run_batch).option("checkpointLocation", checkpoint_location)
        self._idle_epochs.at_end = ends_by_itself(trigger)
        self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
        self._started.set()
        self._idle_epochs.start(_MicroBatches(self.query))

    def abandon(self) -> None:
        """End what was begun, because the start has failed."""
        self._chain.close(self._spark, failed=True)

    @property
    def runner(self) -> EpochRunner:
        """The runner of the first pipeline."""
        return self._chain.first

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether micro-batches may still come, or the drain at the end is still running."""
        return self.query.isActive or (self._idle_epochs.at_end and self._idle_epochs.is_alive)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - StreamingQuery's name
        """Wait for the end of the query, and of its epochs without input.

        A query that ends by itself finishes what is in flight. One that is stopped leaves that to `drain` and to the
        next start.

        Parameters
        ----------
        timeout : int, optional
            Seconds to wait at most; returns whether all has ended by then.

        Raises
        ------
        Exception
            The error of the epoch that failed: a `KeyGroupsError`, or what the sink or Spark has raised.
        """
        self._refuse_in_sink("awaitTermination")
        until = None if timeout is None else time.monotonic() + timeout
        ended: bool | None = True
        try:
            with plain_interrupts():
                ended = self.query.awaitTermination(timeout)
        except StreamingQueryException:
            if self._error is None:
                self._join_idle_epochs(until)  # only then can the pipeline be started again
                raise
        if ended is False:
            return False
        self._join_idle_epochs(until)
        if self._idle_epochs.is_alive:
            return False
        if self._error is not None:
            raise _without_frames(self._error)
        return ended

    def exception(self) -> Exception | None:
        """Return the error that has ended the query, also an epoch's without input, or None."""
        return self._error or self.query.exception()

    def drain(self) -> None:
        """Finish what is in flight and fire timers that are due, in an epoch without input.

        Raises
        ------
        CalledInSink
            The sink itself calls it.
        """
        self._refuse_in_sink("drain")
        self._chain.drain(self._spark)

    def _join_idle_epochs(self, until: float | None) -> None:
        with plain_interrupts():
            self._idle_epochs.join(None if until is None else max(0.0, until - time.monotonic()))

    @property
    def _epochs(self) -> PipelineProgress:
        return self.runner.progress

    def _facts(self) -> dict[str, object]:
        return {"is_started": self._started.is_set(), "failure": self._error}

    def _refuse_in_sink(self, name: str) -> None:
        self._chain.refuse_in_sink(name)

    @property
    def _error(self) -> Exception | None:
        """The error of an epoch, with input or without."""
        return self._idle_epochs.failure or self._failure

    def _stop(self, drain: bool, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        had_failed = self.exception() is not None
        with self._stopping.by(until):
            self._finish_batch(until)
            self._idle_epochs.at_end = drain
            self.query.stop()
            if drain:
                self._idle_epochs.join()
            error = self.exception()
            self._chain.close(self._spark, failed=error is not None)
        if drain and error is not None and not had_failed:
            raise _without_frames(error)

    def _finish_batch(self, until: float | None) -> None:
        """Wait for the micro-batch under way, whose calls Spark would cancel."""
        while not self._batch.acquire(timeout=_PAUSE_SECONDS):
            if self._stopping.is_over(until):
                _log.warning("the micro-batch under way is abandoned, and the next start repeats its calls")
                return
        self._batch.release()

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        self._started.wait()
        while not self._has_run(frame, batch_id):
            _sleep_until_interrupted(self._spark)
            if not self.query.isActive:
                raise RuntimeError(_GIVEN_UP)

    def _has_run(self, frame: DataFrame, batch_id: int) -> bool:
        """Run the epoch of a micro-batch, unless the query is about to be stopped; return whether it has run."""
        with self._batch:
            if self._stopping.is_under_way:
                return False
            try:
                self.runner.run_batch(frame, str(self.query.id), batch_id)
            except BaseException as error:  # noqa: BLE001 - raised by those who ask the query
                # Of what is no Exception, Py4J tells Spark nothing, and Spark would wait for the micro-batch for ever.
                # A stop that waits for this micro-batch ends the query next, so the error is kept before that.
                raise self._kept(as_exception(error)) from None
        return True

    def _kept(self, error: Exception) -> Exception:
        """Keep an error for those who ask the query, log it once, and return a short one for Spark to print."""
        from py4j.protocol import Py4JJavaError  # a client of Spark Connect, who also imports this module, may lack it

        if not self.query.isActive and not isinstance(error, KeyGroupsError):
            # A stop has ended what Spark did for the epoch.
            return RuntimeError(_GIVEN_UP) if isinstance(error, Py4JJavaError) else error
        self._failure, uri = error, self.runner.coordinator.store.uri
        _log.error("an epoch of %s has failed: %s", uri, with_notes(error))
        return EpochFailed(uri, described(error))


def _without_frames(error: Exception) -> Exception:
    """Return an error to be raised again: the library's say what went wrong, the others where."""
    return error.with_traceback(None) if isinstance(error, KeyGroupsError) else error


def _sleep_until_interrupted(spark: SparkSession) -> None:
    """Sleep for a second on the thread that runs micro-batches, which Spark interrupts to stop the query."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    with suppress(Py4JJavaError):
        jvm.java.lang.Thread.sleep(1000)


class _MicroBatches:
    """The streaming query, as `IdleEpochs` sees it."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.has_failed = False

    def has_ended(self, seconds: float) -> bool:
        try:
            return bool(self._query.awaitTermination(int(seconds)))
        except StreamingQueryException:
            self.has_failed = True  # `awaitTermination` of the pipeline's query raises it
            return True

    @property
    def is_busy(self) -> bool:
        return bool(self._query.status["isTriggerActive"])

    def stop(self) -> None:
        self._query.stop()
