"""What the running queries of pipelines have in common, whichever way the driver reaches Spark."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from async_op.durations import check_delay
from async_op.spark.progress import EpochProgress, PipelineProgress
from keygroups.arguments import Duration, check_flag
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.representation import html_facts, representation

_TIMEOUT_MAX = 10.0**7
"""Threads wait for some centuries at most; this is a third of a year."""


class RunningQuery(ABC):
    """The `StreamingQuery` of a pipeline, with the progress of its epochs; what it does not have comes from Spark's.

    Any thread may call it.
    """

    query: StreamingQuery
    """Spark's query, from the start on."""

    is_stopped = False
    """Whether `stop` was called."""

    def __repr__(self) -> str:
        return representation(self, self._facts())

    def _repr_html_(self) -> str:
        return html_facts("query of a pipeline", self._facts())

    def __getattr__(self, name: str) -> Any:
        if name == "query":
            raise AttributeError("the query has not started")
        return getattr(self.query, name)

    @property
    def id(self) -> str:
        """Spark's name of the query, which is the same for all runs with a checkpoint."""
        return str(self.query.id)

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query; "keygroups" has what the epoch under way does, as `progress().under_way`.

        It is None while there is none, or it has just begun.
        """
        under_way = self._epochs.under_way
        return {**self.query.status, "keygroups": None if under_way is None else asdict(under_way)}

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 - StreamingQuery's name
        """Spark's newest progress, with its epoch's; None before the first."""
        newest = self.query.lastProgress
        return None if newest is None else _with_epoch(newest, self._epochs)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 - StreamingQuery's name
        """Spark's recent progress, each with its epoch's."""
        epochs = self._epochs
        return [_with_epoch(one, epochs) for one in self.query.recentProgress]

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
        WorkerSilent
            The worker of a query over Spark Connect was lost before it had finished; the query has ended nevertheless.
        Exception
            The query drains, and the micro-batch under way or the last epoch has failed, with this error; it has ended
            nevertheless. Over Spark Connect it is an `EpochFailed`, also without `drain`; or it is a
            `StreamingQueryException`, if the micro-batch has failed in Spark.
        """
        seconds = check_stop(drain, timeout)
        self._refuse_in_sink("stop")
        self.is_stopped = True
        with plain_interrupts():
            try:
                self._stop(drain, seconds)
            except (KeyboardInterrupt, SystemExit):
                self._stop(False, 0.0)
                raise

    @property
    @abstractmethod
    def _epochs(self) -> PipelineProgress:
        """What the newest epochs of the first pipeline did."""

    @abstractmethod
    def _facts(self) -> dict[str, object]:
        """Return what a representation shows, without asking Spark."""

    @abstractmethod
    def _refuse_in_sink(self, name: str) -> None:
        """Raise `CalledInSink` if the sink calls a method that waits for the sink."""

    @abstractmethod
    def _stop(self, drain: bool, seconds: float | None) -> None:
        """Stop the query, which waits for calls so many seconds at most; None waits for all."""


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


def ends_by_itself(trigger: dict[str, Any]) -> bool:
    """Tell whether a query with this trigger ends by itself; then nothing stays in flight."""
    return bool({"availableNow", "once"} & trigger.keys())


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


def _with_epoch(progress: StreamingQueryProgress, epochs: Iterable[EpochProgress]) -> StreamingQueryProgress:
    """Return Spark's progress with its epoch's, if that is among these."""
    for epoch in tuple(epochs):
        if epoch.batch_id == progress.batchId:
            metrics = {**asdict(epoch), "scaling": None if epoch.scaling is None else epoch.scaling.reason}
            progress["observedMetrics"] = {**progress["observedMetrics"], "keygroups": Row(**metrics)}
    return progress
