"""The worker of a pipeline: the process beside a Spark Connect server in which `foreachBatch` runs."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from async_op.errors import as_exception
from async_op.spark.chain import PipelineChain
from async_op.spark.connect.exchange import Answer, Exchange, Wishes, newest
from async_op.spark.epoch.checkpoint import Checkpoint
from async_op.spark.epoch.delivery import Outlet
from async_op.spark.errors import EpochFailed
from async_op.spark.idle_epochs import IdleEpochs
from async_op.spark.rows.routing import Routing
from async_op.spark.stage import Stage
from async_op.spark.stopping import Stopping
from async_op.threads.operator_process import end_process, log_levels, set_up_logging
from keygroups.context_managers import contextmanager
from keygroups.errors import notes_of, with_notes
from keygroups.safe_text import described
from keygroups.spark.session import setting

_log = logging.getLogger(__name__)

_RETRIES_MAX = 6
"""How often the worker asks a server that does not answer, with pauses of about ten seconds in all: it is beside it."""

_LOOK_SECONDS = 1.0
"""How often the worker looks for its server, and at the wishes of its client."""

_HOLD_SECONDS = 60.0
"""How long the worker waits for a client's stop when no micro-batch may begin; then it stops the query itself."""

_USE_SECONDS = 60.0
"""How often the worker uses the client's session: the server ends unused sessions, with their queries."""


@dataclass(frozen=True, kw_only=True)
class ServedPipeline:
    """What a client passes to `foreachBatch`: a description from which the server's process makes a `ServerWorker`.

    The server unpickles it once, before the query starts. So an error of the worker's begin is one of the start.

    Attributes
    ----------
    stages : tuple of Stage
        The pipelines of the chain.
    routings : tuple of Routing
        How rows find their subtasks in each of them.
    outlet : Outlet
        Gets the outputs of the last one, beside the server.
    watermark_delay_milliseconds : int
        How far the watermark stays behind the greatest event time seen.
    checkpoint_location : str
        The checkpoint, which knows the query's id.
    run_id : str
        Names the exchange between client and worker.
    drains_at_end : bool
        Whether nothing stays in flight after the end of the query.
    log_levels : mapping of str to int
        The levels of the client's loggers by their names, which hold beside the server, and in hosts.
    """

    stages: tuple[Stage, ...]
    routings: tuple[Routing, ...]
    outlet: Outlet
    watermark_delay_milliseconds: int
    checkpoint_location: str
    run_id: str
    drains_at_end: bool
    log_levels: Mapping[str, int] = field(default_factory=log_levels)

    def __reduce__(self) -> Any:
        return _begin, (self.__dict__,)


def _begin(description: dict[str, Any]) -> ServerWorker:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # a classic session may lack what it needs

    served = ServedPipeline(**description)
    set_up_logging(served.log_levels)
    threading.Thread(target=_end_with, args=(os.getppid(),), name="keygroups server", daemon=True).start()
    spark: Any = SparkSession.active()
    # Spark's own ten minutes would keep this process, and its hosts, that long after the end of the server.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES_MAX, max_backoff=5000)])
    return ServerWorker(served, spark)


class ServerWorker:
    """Runs the epochs of a query as the driver does on a classic session. Called by the server with each micro-batch.

    The server ends the process with SIGTERM when the query has ended, however that came. Then the last epoch runs, and
    the hosts end, before the process does. If it is killed, hosts end with their leases, and the next start goes on. If
    the server is killed, the process ends within seconds.

    Parameters
    ----------
    served : ServedPipeline
        The pipeline.
    spark : SparkSession
        The session of the client that has started the query; each micro-batch has a copy of it.
    """

    def __init__(self, served: ServedPipeline, spark: SparkSession) -> None:
        self._stages = served.stages
        self._checkpoint_location = served.checkpoint_location
        self._query_id: str | None = None
        self._spark = spark
        self._exchange = Exchange(served.stages[0].store.folder, served.run_id)
        self._wishes = Wishes(parallelism=(None,) * len(served.stages))
        self._answer = Answer()
        self._drains_done = 0
        # Re-entrant, because the handler of SIGTERM runs in the thread that may hold one of them.
        self._heeding, self._saying = threading.RLock(), threading.RLock()
        self._beginning, self._stop_heeding = threading.RLock(), threading.RLock()
        self._heeded_stop: tuple[bool, float | None] = (False, None)
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._next_use = 0.0
        self._stop_at = math.inf
        self.has_failed = self.is_busy = self._is_terminated = False
        delay = served.watermark_delay_milliseconds
        self._chain = PipelineChain.begin(spark, served.stages, served.routings, served.outlet, delay)
        for runner in self._chain.runners:
            if runner.coordinator.garbage is not None:  # an idle query says nothing, so its files look old
                runner.coordinator.garbage.keep(self._exchange.prefix)
        self._stopping = Stopping(self._chain, spark)
        self._stop = ExitStack()
        self._idle_epochs = IdleEpochs(self._chain, spark, self._stopping)
        self._idle_epochs.at_end = served.drains_at_end
        signal.signal(signal.SIGTERM, self._terminate)
        self._idle_epochs.start(self)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run a micro-batch."""
        pause = threading.Event().wait
        while not self._begin_batch():
            pause(_LOOK_SECONDS)  # SIGTERM ends the process
        try:
            self._heed()
            self._idle_epochs.check()
            self._chain.first.run_batch(frame, self._id_of_query(), batch_id)
            self._say()
        except BaseException as raised:
            self.is_busy = False
            # If the query is stopped during a micro-batch, that is given up, and the query has not failed.
            if self._is_terminated:
                self._end(has_failed=False)
                raise
            failure = self._failure = as_exception(raised)  # Spark's worker tells its server of no other errors
            self._end(has_failed=True)
            _log.error("an epoch of %s has failed: %s", self._stages[0].store.uri, with_notes(failure))
            raise EpochFailed(self._stages[0].store.uri, described(failure)) from None
        self.is_busy = False

    def has_ended(self, seconds: float) -> bool:
        """Wait for the query's end; meanwhile do what the client wishes, and tell it what has been done."""
        has_ended = self._ended.wait(seconds)
        if not has_ended:
            self._use_session()
        self._heed()
        self._say(is_beat=self._wishes.holds)  # the client waits for the end of a micro-batch
        if not has_ended:
            self._carry_out_stop()
        return has_ended

    def stop(self) -> None:
        """Stop the query, because an epoch without input has failed."""
        self._say()
        query = self._spark.streams.get(self._id_of_query())
        if query is not None:
            query.stop()

    def _begin_batch(self) -> bool:
        """Begin a micro-batch, unless the client is going to stop the query; return whether it has begun."""
        with self._beginning:
            self.is_busy = not self._read_wishes().holds
            return self.is_busy

    def _is_held(self) -> bool:
        with self._beginning:
            return self._wishes.holds and not self.is_busy

    def _carry_out_stop(self) -> None:
        """Stop a query that is held for the stop of a client who has been lost meanwhile."""
        if not self._is_held():
            self._stop_at = time.monotonic() + _HOLD_SECONDS
        elif time.monotonic() >= self._stop_at:
            self.stop()

    def _use_session(self) -> None:
        """Keep the session of the client, who may have left the query to the server."""
        if time.monotonic() < self._next_use:
            return
        self._next_use = time.monotonic() + _USE_SECONDS
        try:
            setting(self._spark, "spark.app.name")
        except PySparkException as error:
            _log.warning("the server does not answer, the next try is soon: %s", error)

    def _id_of_query(self) -> str:
        """Return the id that the checkpoint has since the query's first start."""
        if self._query_id is None:
            self._query_id = Checkpoint.read(self._spark, self._checkpoint_location).query_id
        assert self._query_id is not None, "Spark has written it before the first micro-batch"
        return self._query_id

    def _heed(self) -> None:
        """Do what is new among the wishes of the client."""
        with self._heeding:
            before, wishes = self._wishes, self._read_wishes()
            self._obey_stop(wishes)
            if wishes == before:
                return
            self._wishes = wishes
            for stage, old, new in zip(self._stages, before.parallelism, wishes.parallelism, strict=True):
                if new is not None and new != old:
                    stage.rescale(new)
            self._idle_epochs.at_end = wishes.drains_at_end
            if wishes.drains > before.drains:
                with self._beating():
                    self._chain.drain(self._spark)
                self._drains_done = wishes.drains

    def _obey_stop(self, wishes: Wishes) -> None:
        """Begin the stop that the client has wished, or give it up."""
        with self._stop_heeding:
            if (wishes.holds, wishes.timeout) == self._heeded_stop:
                return
            self._heeded_stop = wishes.holds, wishes.timeout
            self._stop.close()
            if wishes.holds:
                until = None if wishes.timeout is None else time.monotonic() + wishes.timeout
                self._stop.enter_context(self._stopping.by(until))

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Show that the worker is alive while it does what the client waits for."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(_LOOK_SECONDS):
                self._obey_stop(self._read_wishes())
                self._say(is_beat=True)

        thread = threading.Thread(target=beat, name="keygroups beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _read_wishes(self) -> Wishes:
        try:
            return self._exchange.wishes() or self._wishes
        except OSError as error:
            _log.warning("the wishes of the client cannot be read, the next try is soon: %s", error)
            return self._wishes

    def _say(self, *, is_beat: bool = False, is_over: bool = False) -> None:
        """Tell the client what is new; with a beat, and at the end of the query, also that nothing is new."""
        with self._saying:
            failure = self._idle_epochs.failure or self._failure
            answer = Answer(
                beat=self._answer.beat,
                drains=self._drains_done,
                is_held=self._is_held(),
                is_delivering=self._chain.is_delivering,
                is_over=is_over,
                failure=None if failure is None else described(failure),
                notes=() if failure is None else tuple(notes_of(failure)),
                progress=tuple(newest(runner.progress) for runner in self._chain.runners),
                under_way=tuple(runner.progress.under_way for runner in self._chain.runners),
                blocking=tuple(found for runner in self._chain.runners for found in runner.fleet.blocking),
            )
            if answer == self._answer and not (is_beat or self._ended.is_set()):
                return
            self._answer = replace(answer, beat=answer.beat + 1)
            try:
                self._exchange.answer(self._answer)
            except OSError as error:
                _log.warning("the client cannot be told what has been done: %s", error)

    def _terminate(self, *_: object) -> NoReturn:
        """End the process after SIGTERM; in a micro-batch, the call does what is to be done before."""
        # A second signal would interrupt a wait for a thread; another wait in its handler would then never end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_terminated = True
        if not self.is_busy:
            self._end(has_failed=False)
        sys.exit()

    def _end(self, *, has_failed: bool) -> None:
        """End the epochs and hosts of the query, and show meanwhile that the worker is alive."""
        self.has_failed = self.has_failed or has_failed
        self._ended.set()
        while self._idle_epochs.is_alive:
            self._idle_epochs.join(_LOOK_SECONDS)
            self._obey_stop(self._read_wishes())
            self._say()
        self._say(is_over=True)
        if not self.has_failed:
            # Nothing is left to be done, and Spark's clients may wait for ever for their connections when they end.
            end_process(0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server ends the process once it has heard of the error


def _end_with(server: int) -> NoReturn:
    """End this process within a second of the server: an epoch under way would look for it for minutes."""
    pause = threading.Event().wait
    while os.getppid() == server:
        pause(_LOOK_SECONDS)
    end_process(1)
