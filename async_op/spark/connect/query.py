"""The running query of a pipeline over Spark Connect, as the client sees it."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from async_op.errors import BlocksEventLoop
from async_op.spark.connect.exchange import Answer, Exchange, Wishes
from async_op.spark.connect.worker import ServedPipeline
from async_op.spark.epoch.delivery import Outlet
from async_op.spark.errors import EpochFailed, WorkerLate, WorkerSilent
from async_op.spark.progress import PipelineProgress
from async_op.spark.rows.routing import Routing
from async_op.spark.running_query import RunningQuery, ends_by_itself
from async_op.spark.stage import Stage
from async_op.spark.stopping import CONCLUDE_SECONDS
from async_op.spark.task.pickling import pickled
from async_op.spark.worker_python import module_not_found
from async_op.threads.watchdog import warn_of
from keygroups.errors import ConfigError

_log = logging.getLogger(__name__)

_SILENT_SECONDS = 60.0
"""A worker that says nothing for this long, while the client waits for it, is taken for dead."""

_LATE = "failed to connect back"
"""What Spark's error says if a worker took more than its ten seconds to start; it has no class of its own."""

_PAUSE_SECONDS = 0.5
"""Time between two looks at the worker's answer."""

_LISTEN_SECONDS = 10.0
"""How often a client that waits for the end hears what the worker tells."""

_HEEDED_SECONDS = 3.0
"""How long it may take until the worker, which looks once a second, has heeded a wish and said so."""


class ConnectQuery(RunningQuery):
    """The running query of a pipeline over Spark Connect, with the methods of a `PipelineQuery`.

    Its epochs run in a worker beside the server. Client and worker talk through two files in the operator's folder, at
    which the worker looks once a second. Any thread may call the methods.

    Parameters
    ----------
    stages : sequence of Stage
        The pipelines of the chain.
    routings : sequence of Routing
        How rows find their subtasks in each of them.
    outlet : Outlet
        Gets the outputs of the last one; it is pickled, and called beside the server.
    watermark_delay_milliseconds : int
        How far the watermark stays behind the greatest event time seen.
    """

    def __init__(
        self, stages: Sequence[Stage], routings: Sequence[Routing], outlet: Outlet, watermark_delay_milliseconds: int
    ) -> None:
        self._stages = tuple(stages)
        self._routings = tuple(routings)
        self._outlet = outlet
        self._watermark_delay_milliseconds = watermark_delay_milliseconds
        self._run_id = uuid.uuid4().hex
        self._exchange = Exchange(self._stages[0].store.folder, self._run_id)
        self._wishes = Wishes(parallelism=(None,) * len(self._stages))
        self._wishing = threading.Lock()
        self._beat, self._heard_at = 0, 0.0
        self._ended_at: float | None = None
        self._blocking: dict[tuple[Any, ...], BlocksEventLoop] = {}

    def start(self, stream_df: DataFrame, checkpoint_location: str, trigger: dict[str, Any]) -> None:
        """Start the streaming query; its worker has begun when this returns.

        Raises
        ------
        ConfigError
            The sink cannot be sent to the server.
        WorkerLate
            The process in which the worker was to run took too long to start.
        """
        # Any, because the server makes of it what it calls.
        served: Any = ServedPipeline(
            stages=self._stages,
            routings=self._routings,
            outlet=self._outlet,
            watermark_delay_milliseconds=self._watermark_delay_milliseconds,
            checkpoint_location=checkpoint_location,
            run_id=self._run_id,
            drains_at_end=ends_by_itself(trigger),
        )
        try:
            pickled(served)
        except Exception as error:
            reason = f"it is called beside the server, and cannot be sent there: {error}; keep only settings in it"
            raise ConfigError("sink", self._outlet, reason) from error
        self._wish(lambda wishes: replace(wishes, drains_at_end=served.drains_at_end))
        writer = stream_df.writeStream.foreachBatch(served).option("checkpointLocation", checkpoint_location)
        try:
            self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()
        except PySparkException as error:
            if _LATE in str(error):
                raise WorkerLate(self._uri) from error
            raise module_not_found(str(error)) or error from error
        for number, stage in enumerate(self._stages):
            stage.begun(_ServedRunner(self, number))

    def abandon(self) -> None:
        """Do nothing: the server ends the worker of a query that does not start."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether micro-batches may still come, or the worker is not done with the end."""
        return bool(self.query.isActive) or not (self._listen().is_over or self._is_silent(self._known_end()))

    def progress(self, number: int) -> PipelineProgress:
        """Return what the newest hundred epochs of a pipeline of the chain did, oldest first."""
        told = self._listen()
        return (
            PipelineProgress.of(told.progress[number], told.under_way[number]) if told.progress else PipelineProgress()
        )

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - StreamingQuery's name
        """Wait for the end of the query, and of its epochs without input, as a `PipelineQuery` does.

        Parameters
        ----------
        timeout : int, optional
            Seconds to wait at most; returns whether all has ended by then.

        Raises
        ------
        EpochFailed
            An epoch has failed; the notes have the traceback of its error.
        StreamingQueryException
            The query has failed in Spark, or its worker was killed in a micro-batch.
        WorkerSilent
            The worker was lost before it had finished.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ended: bool | None = True
        try:
            ended = self._await_query(until)
        except StreamingQueryException:  # a worker that was not killed has told the error of a micro-batch before
            if self._failure() is None:
                raise
        if ended is False or self._await_end(until) is None:
            return False
        if (failure := self._failure()) is not None:
            raise failure
        return ended

    def exception(self) -> Exception | None:
        """Return the error that has ended the query, also an epoch's without input, or None."""
        return self._failure() or self.query.exception()

    def drain(self) -> None:
        """Finish what is in flight and fire timers that are due, in an epoch without input.

        Raises
        ------
        ConfigError
            The query has ended, and its worker with it.
        EpochFailed
            The epoch has failed.
        WorkerSilent
            The worker was lost; Spark finds that out with the next rows only.
        """
        asked_at = time.monotonic()
        wished = self._wish(lambda wishes: replace(wishes, drains=wishes.drains + 1))
        while self._listen().drains < wished.drains:
            if not self.isActive:
                break
            if self._is_silent(asked_at):
                raise WorkerSilent(self._uri, _SILENT_SECONDS)
            time.sleep(_PAUSE_SECONDS)
        if (failure := self._failure()) is not None:
            raise failure
        if self._listen().drains < wished.drains:
            raise ConfigError("pipeline", self._uri, "its query has ended: start it again, its first epoch goes on")

    def rescale(self, number: int, parallelism: int) -> None:
        """Ask for a parallelism of a pipeline of the chain, from the next micro-batch on."""

        def ask(wishes: Wishes) -> Wishes:
            asked = list(wishes.parallelism)
            asked[number] = parallelism
            return replace(wishes, parallelism=tuple(asked))

        self._wish(ask)

    @property
    def _epochs(self) -> PipelineProgress:
        return self.progress(0)

    def _facts(self) -> dict[str, object]:
        return {"is_started": "query" in self.__dict__}

    def _refuse_in_sink(self, name: str) -> None:
        """Do nothing: the sink is beside the server, and has no query."""

    @property
    def _uri(self) -> str:
        return self._stages[0].store.uri

    def _wish(self, change: Callable[[Wishes], Wishes]) -> Wishes:
        with self._wishing:
            self._wishes = change(self._wishes)
            self._exchange.wish(self._wishes)
            return self._wishes

    def _listen(self) -> Answer:
        answer = self._exchange.answered()
        if answer.beat != self._beat:
            self._beat, self._heard_at = answer.beat, time.monotonic()
        for found in answer.blocking:
            if self._blocking.setdefault(found.args, found) is found:
                warn_of(found)
        return answer

    def _failure(self) -> EpochFailed | None:
        """Return the error of the epoch that has ended the query, as the worker has told it."""
        answer = self._listen()
        if answer.failure is None:
            return None
        failed = EpochFailed(self._uri, answer.failure)
        failed.__notes__ = list(answer.notes)
        return failed

    def _is_silent(self, since: float) -> bool:
        """Tell whether the worker has said nothing for too long, although the client waits for it since a time."""
        return time.monotonic() - max(since, self._heard_at) > _SILENT_SECONDS

    def _known_end(self) -> float:
        """Return when the client has first seen that the query has ended."""
        if self._ended_at is None:
            self._ended_at = time.monotonic()
        return self._ended_at

    def _stop(self, drain: bool, seconds: float | None) -> None:
        had_failed = self.exception() is not None
        self._wish(lambda wishes: replace(wishes, drains_at_end=drain, timeout=seconds, holds=True))
        left = self._finish_batch(seconds)
        self._wish(lambda wishes: replace(wishes, timeout=left))
        self.query.stop()
        self._await_end(None)
        if not had_failed and (error := self.exception()) is not None and (drain or isinstance(error, EpochFailed)):
            raise error

    def _finish_batch(self, seconds: float | None) -> float | None:
        """Wait until the worker has finished its micro-batch and begins no other; return the seconds left."""
        asked_at = time.monotonic()
        until = math.inf if seconds is None else asked_at + seconds
        limit = until + (CONCLUDE_SECONDS if any(stage.settings.is_resident for stage in self._stages) else 0.0)
        while not (answer := self._listen()).is_held and self.isActive and not self._is_silent(asked_at):
            if time.monotonic() >= limit + _HEEDED_SECONDS and not answer.is_delivering:
                _log.warning("the micro-batch under way is given up, and its calls are made again by the next start")
                break
            time.sleep(_PAUSE_SECONDS)
        return None if seconds is None else max(0.0, until - time.monotonic())

    def _await_query(self, until: float | None) -> bool | None:
        """Wait for the end of Spark's query, and hear meanwhile what the worker tells."""
        while (left := math.inf if until is None else until - time.monotonic()) > 0:
            if self.query.awaitTermination(math.ceil(min(left, _LISTEN_SECONDS))):
                return None if until is None else True
            self._listen()
        return False

    def _await_end(self, until: float | None) -> Answer | None:
        """Wait until the worker is done with the end of the query, and return its last answer; None if time is over.

        Raises
        ------
        WorkerSilent
            The worker was lost.
        """
        while not (answer := self._listen()).is_over:
            if self._is_silent(self._known_end()):
                raise WorkerSilent(self._uri, _SILENT_SECONDS)
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(_PAUSE_SECONDS)
        return answer


class _ServedRunner:
    """The runner of a pipeline, which is beside the server, as the client sees it."""

    def __init__(self, query: ConnectQuery, number: int) -> None:
        self._query = query
        self._number = number

    def rescale(self, parallelism: int) -> None:
        self._query.rescale(self._number, parallelism)

    @property
    def progress(self) -> PipelineProgress:
        return self._query.progress(self._number)
