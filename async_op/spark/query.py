"""The running query of a pipeline: micro-batches from Spark, and epochs of its own where none comes."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from async_op.spark.epoch.runner import EpochRunner
from keygroups.errors import KeyGroupsError

_DRAIN_AFTER_IDLE_SECONDS = 1
"""How long a query must be idle before an epoch of its own drains what is in flight, or fires timers that are due."""


class PipelineQuery:
    """The running query: a `StreamingQuery` whose end includes what is in flight. Any thread may call it.

    Spark starts no micro-batch without new input, so a thread drains what is in flight, and fires timers that are due,
    when none has come for a while, and at the end of a query with the trigger `availableNow` or `once`. Timers that are
    due later are kept: they hold up no end. Everything that this class does not have itself
    is the `StreamingQuery`'s. The progress of a micro-batch has that of its epoch among its `observedMetrics`, by the
    name `keygroups`; drains, which Spark knows nothing of, stand in `AsyncPipeline.progress()` only.
    """

    def __init__(self, runner: EpochRunner, spark: SparkSession) -> None:
        self.runner = runner
        self._spark = spark
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._ends_drained = False
        self._drainer = threading.Thread(target=self._drain_when_idle, name="keygroups drain", daemon=True)

    def start(self, stream_df: DataFrame, checkpoint_location: str, trigger: dict[str, Any]) -> None:
        """Start the streaming query and the thread that drains."""
        writer = stream_df.writeStream.foreachBatch(self._run_batch).option("checkpointLocation", checkpoint_location)
        self._ends_drained = bool({"availableNow", "once"} & trigger.keys())
        self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
        self._started.set()
        self._drainer.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether micro-batches may still come, or what is in flight is being drained."""
        return self.query.isActive or (self._ends_drained and self._drainer.is_alive())

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - StreamingQuery's name
        """Spark's newest progress, with the epoch's."""
        newest = self.query.lastProgress
        return None if newest is None else self._with_epoch(newest)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - StreamingQuery's name
        """Spark's recent progress, with that of the epochs."""
        return [self._with_epoch(one) for one in self.query.recentProgress]

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - StreamingQuery's name
        """Wait for the end of the query, then finish what is in flight.

        Raises
        ------
        KeyGroupsError
            What made an epoch fail.
        """
        try:
            ended = self.query.awaitTermination(timeout)
        except StreamingQueryException:
            if self._failure is not None:
                raise self._failure from None
            raise
        if ended is not False:
            self._drainer.join()
            if self._failure is not None:
                raise self._failure
            self.drain()
        return ended

    def stop(self) -> None:
        """Stop the query and its operators; what calls have brought by then is delivered with one more epoch.

        What is in flight stays in the newest snapshot, unless somebody drains it.
        """
        self._ends_drained = False
        self.query.stop()
        self.runner.close(self._spark, failed=self._failure is not None or self.query.exception() is not None)

    def drain(self) -> None:
        """Finish what is in flight, and fire the timers that are due, without input."""
        self.runner.drain(self._spark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        self._started.wait()
        try:
            self.runner.run_batch(frame, str(self.query.id), batch_id)
        except KeyGroupsError as error:
            self._failure = error
            raise

    def _with_epoch(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        epochs = (epoch for epoch in tuple(self.runner.progress) if epoch.batch_id == progress.batchId)
        for epoch in epochs:
            metrics = {**asdict(epoch), "scaling": None if epoch.scaling is None else epoch.scaling.reason}
            progress["observedMetrics"] = {**progress["observedMetrics"], "keygroups": Row(**metrics)}
        return progress

    def _drain_when_idle(self) -> None:
        """Drain after an idle interval, and at the end of a query that ends by itself."""
        try:
            idle_epoch = 0
            while not self.query.awaitTermination(_DRAIN_AFTER_IDLE_SECONDS):
                epoch = self.runner.epoch
                if epoch == idle_epoch and not self.query.status["isTriggerActive"]:
                    self.runner.deliver_ready(self._spark)
                idle_epoch = self.runner.epoch
            if self._ends_drained:
                self.drain()
            self.runner.close(self._spark)
        except StreamingQueryException:
            self.runner.close(self._spark, failed=True)  # who waits for the query gets it
        except Exception as error:  # noqa: BLE001 - raised by `awaitTermination`
            self._failure = error
            self.query.stop()
            self.runner.close(self._spark, failed=True)
