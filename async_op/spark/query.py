"""The running query of a pipeline: Spark's micro-batches, and epochs without input when none comes."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from async_op.durations import check_delay
from async_op.errors import as_exception
from async_op.spark.chain import PipelineChain
from async_op.spark.epoch.runner import EpochRunner
from async_op.spark.errors import EpochFailed
from async_op.spark.idle_epochs import IdleEpochs
from async_op.spark.progress import EpochProgress, PipelineProgress
from async_op.spark.stopping import Stopping
from keygroups.arguments import Duration, check_flag
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError, KeyGroupsError, with_notes
from keygroups.representation import html_facts, representation
from keygroups.safe_text import described

_log = logging.getLogger(__package__)

_PAUSE_SECONDS = 0.5

_TIMEOUT_MAX = 10.0**7
"""Threads wait for some centuries at most; this is a third of a year."""

_GIVEN_UP = (
    "the query is stopped, so its micro-batch is given up "
    "(py4j.protocol.Py4JJavaError: An error occurred while calling Python: java.lang.InterruptedException)"
)
"""What is in brackets tells Spark that a stop, and no fault, has ended a micro-batch.

Spark looks for it with a regular expression that overflows the stack of its thread if the text is as long as Py4J's
own, and then prints a thousand lines.
"""


class PipelineQuery:
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
        self.is_stopped = False
        """Whether `stop` was called."""

    def __repr__(self) -> str:
        return representation(self, {"is_started": self._started.is_set(), "failure": self._error})

    def _repr_html_(self) -> str:
        return html_facts("query of a pipeline", {"is_started": self._started.is_set(), "failure": self._error})

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
    def id(self) -> str:
        """Spark's name of the query, which is the same for all runs with a checkpoint."""
        return str(self.query.id)

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether micro-batches may still come, or the drain at the end is still running."""
        return self.query.isActive or (self._idle_epochs.at_end and self._idle_epochs.is_alive)

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query; "keygroups" has what the epoch under way does, as `progress().under_way`."""
        return with_under_way(self.query.status, self.runner.progress)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - StreamingQuery's name
        """Spark's newest progress, with its epoch's; None before the first."""
        newest = self.query.lastProgress
        return None if newest is None else with_epoch(newest, self.runner.progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - StreamingQuery's name
        """Spark's recent progress, each with its epoch's."""
        return [with_epoch(one, self.runner.progress) for one in self.query.recentProgress]

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
        self._chain.refuse_in_sink("awaitTermination")
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

    def stop(self, *, drain: bool = False, timeout: Duration | None = None) -> None:
        """Stop the query and its operators; results that have come by then are delivered with one more epoch.

        After a failure there is no such epoch. Elements in flight stay in the newest snapshot, for `drain` or the next
        start. An epoch under way waits for no more calls: it commits within ten seconds, or is abandoned and repeated
        by the next start. It is abandoned at once if operators live in their tasks. Of several stops at a time, the
        fastest counts. Ctrl-C while a stop waits makes it such a stop, and is raised once the query has stopped.

        Parameters
        ----------
        drain : bool
            Whether the micro-batch under way and that epoch wait until nothing is in flight.
        timeout : float or timedelta, optional
            Seconds that both wait for calls at most; what is in flight then stays in the snapshot. None waits for all.

        Raises
        ------
        ConfigError
            There is a timeout without `drain`, or it is negative.
        CalledInSink
            The sink itself calls it.
        Exception
            The query drains, and the micro-batch under way or the last epoch has failed, with this error; it has ended
            nevertheless.
        """
        seconds = check_stop(drain, timeout)
        self._chain.refuse_in_sink("stop")
        self.is_stopped = True
        with plain_interrupts():
            try:
                self._stop(drain, None if seconds is None else time.monotonic() + seconds)
            except (KeyboardInterrupt, SystemExit):
                self._stop(False, time.monotonic())
                raise

    def drain(self) -> None:
        """Finish what is in flight and fire timers that are due, in an epoch without input.

        Raises
        ------
        CalledInSink
            The sink itself calls it.
        """
        self._chain.refuse_in_sink("drain")
        self._chain.drain(self._spark)

    def __getattr__(self, name: str) -> Any:
        if name == "query":
            raise AttributeError("the query has not started")
        return getattr(self.query, name)

    def _join_idle_epochs(self, until: float | None) -> None:
        with plain_interrupts():
            self._idle_epochs.join(None if until is None else max(0.0, until - time.monotonic()))

    @property
    def _error(self) -> Exception | None:
        """The error of an epoch, with input or without."""
        return self._idle_epochs.failure or self._failure

    def _stop(self, drain: bool, until: float | None) -> None:
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


def ends_by_itself(trigger: dict[str, Any]) -> bool:
    """Tell whether a query with this trigger ends by itself; then nothing stays in flight."""
    return bool({"availableNow", "once"} & trigger.keys())


def check_stop(drain: bool, timeout: Duration | None) -> float | None:
    """Return the seconds that a stop waits for calls at most; None if it waits for all.

    Raises
    ------
    ConfigError
        There is a timeout without `drain`, or it is negative.
    """
    check_flag("drain", drain)
    if timeout is None:
        return None if drain else 0.0
    if not drain:
        raise ConfigError("timeout", timeout, "it bounds the drain: pass drain=True, too")
    return min(check_delay("timeout", timeout, reason="None waits for all calls"), _TIMEOUT_MAX)


def with_epoch(progress: StreamingQueryProgress, epochs: Iterable[EpochProgress]) -> StreamingQueryProgress:
    """Return Spark's progress with its epoch's, if that is among these."""
    for epoch in tuple(epochs):
        if epoch.batch_id == progress.batchId:
            metrics = {**asdict(epoch), "scaling": None if epoch.scaling is None else epoch.scaling.reason}
            progress["observedMetrics"] = {**progress["observedMetrics"], "keygroups": Row(**metrics)}
    return progress


def with_under_way(status: dict[str, Any], progress: PipelineProgress) -> dict[str, Any]:
    """Return Spark's status with what the epoch under way does; None while there is none, or it has just begun."""
    found = progress.under_way
    return {**status, "keygroups": None if found is None else asdict(found)}


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, and do nothing else.

    PySpark's own handler cancels all jobs before. That would fail the micro-batch under way, or its sink, and so the
    query that is about to be stopped.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_of_pyspark = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    if not is_of_pyspark or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
