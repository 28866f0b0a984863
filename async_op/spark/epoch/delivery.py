"""Gives epochs to the sink: one after the other, each before the next begins (H9), and none that it has had already."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from async_op.connectors.conformance import closed, letters_sink_of, to_await
from async_op.connectors.epoch_rows import FrameRows
from async_op.connectors.errors import ConnectorInterrupted
from async_op.connectors.sink import ShippedSink
from async_op.connectors.sink import Sink as ConnectorSink
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.delivery import Ask, Letters, Note, Pause, RefusedOutputs, SinkDelivery, Steps, Values, mark
from async_op.epochs.position import BEGINNING, EpochRef, SinkEpochs, SourcePosition
from async_op.shared_objects import Use
from async_op.spark.epoch.job_names import named_jobs
from async_op.spark.errors import CalledInSink
from async_op.spark.parquet_folder import ParquetFolder
from keygroups.arguments import not_awaitable
from keygroups.context_managers import contextmanager
from snapshots import Snapshot
from snapshots.format.delivered import Delivered, WrittenEpochs, last_delivered
from snapshots.spark import outputs_frame

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]
"""What users pass: gets the outputs of an epoch and its number."""

Outlet = Callable[[DataFrame, EpochRef], None]
"""Where epochs go: a sink, or the next pipeline of a chain."""


class IntoSink:
    """The sink at the end of a chain, as an outlet. It is pickled for Spark Connect.

    Parameters
    ----------
    sink : callable
        `sink(batch_df, epoch)`.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __call__(self, frame: DataFrame, ref: EpochRef) -> None:
        """Give an epoch to the sink, at one attempt."""
        not_awaitable("sink", self._sink(frame, ref.epoch))

    def expecting(self, lineage: str) -> ShippedSink | None:
        """Tell a folder of Parquet files whose epochs it gets; returns the sink if it is told when it is opened."""
        if isinstance(self._sink, ParquetFolder):
            self._sink.expect(lineage)
        return self.shipped

    @property
    def shipped(self) -> ShippedSink | None:
        """The sink, if it is one of this package: it is tried again, and may refuse rows."""
        sink: Any = self._sink
        # A subclass that overrides `__call__` wants to be called, so its own attempts are the only ones.
        is_shipped = isinstance(sink, ShippedSink) and type(sink).__call__ is ShippedSink.__call__
        return sink if is_shipped else None


class Delivery:
    """Delivers the newest epoch. Any thread may call it; in one process, one sink of an operator runs at a time.

    The newest manifest names the newest epoch, even if a claim, a rescale or a compaction has committed that manifest.

    Parameters
    ----------
    outlet : callable
        Called with the outputs and the epoch; must be idempotent by epoch.
    output_schema : pyarrow.Schema
        The schema of the outputs, for old snapshots that do not store it.
    coordinator : Coordinator
        Commits the epochs.
    lineage : str
        The first part of all idempotency keys.
    epochs : SinkEpochs
        Which epochs earlier runs have written, by the snapshot that this one starts from.

    Attributes
    ----------
    is_under_way : bool
        Whether the outlet is at work.
    """

    def __init__(
        self, outlet: Outlet, output_schema: pa.Schema, *, coordinator: Coordinator, lineage: str, epochs: SinkEpochs
    ) -> None:
        self._outlet = outlet
        self._output_schema = output_schema
        self._last: Delivered | None = None
        self.is_under_way = False
        self._hurry = threading.Event()
        sink = outlet.expecting(lineage) if isinstance(outlet, IntoSink) else None
        self._shipped = None if sink is None else _ShippedDelivery(coordinator, lineage, sink, self._hurry, epochs)

    @property
    def written_epochs(self) -> WrittenEpochs:
        """What a sink of this package, and its sink of dead letters, have written."""
        return {} if self._shipped is None else dict(self._shipped.written_epochs)

    def take_refused(self) -> int:
        """Return how many outputs and dead letters sinks of this package have refused since this was last asked."""
        if self._shipped is None:
            return 0
        refused, self._shipped.refused = self._shipped.refused, 0
        return refused

    def open(self) -> None:
        """Have a sink of this package, and its sink of dead letters, look at their targets."""
        if self._shipped is not None:
            self._shipped.open()

    def close(self) -> None:
        """Have a sink of this package, and its sink of dead letters, let go of their targets until the next epoch."""
        if self._shipped is not None:
            self._shipped.close()

    def hurry(self) -> None:
        """Wait no longer between attempts of the sink: the next one is the last."""
        self._hurry.set()

    def deliver(self, spark: SparkSession, snapshot: Snapshot, known: Mapping[str, pa.Table] | None = None) -> None:
        """Give the newest epoch to the sink, unless the sink has returned from it, in this run or an earlier one.

        After the sink has returned, the epoch is marked as delivered. It comes again only if the mark was not written,
        because of a crash or an error of the storage. `known` are rows of its output files, as for `outputs_frame`.
        """
        newest = epoch_of(snapshot)
        if newest is None or newest == self._last:
            return
        refuse_in_sink("an epoch", snapshot.folder.uri)
        with _turn_of(snapshot.folder.uri):
            if self._last is None and last_delivered(snapshot.folder) == newest:
                _log.info("epoch %d of %s was delivered before", newest.epoch, snapshot.manifest.operator_id)
            else:
                self._hand_over(spark, snapshot, newest, known)
                mark(snapshot.folder, newest, self.written_epochs)
            self._last = newest

    def _hand_over(
        self, spark: SparkSession, snapshot: Snapshot, newest: Delivered, known: Mapping[str, pa.Table] | None
    ) -> None:
        self.is_under_way = True
        try:
            with named_jobs(spark, snapshot.manifest.operator_id, newest.epoch, "sink"), _of_sink(newest.epoch):
                frame = outputs_frame(spark, snapshot, self._output_schema, known)
                if self._shipped is None:
                    self._outlet(frame, EpochRef(*newest))
                else:
                    self._shipped.deliver(frame, newest)
        finally:
            self.is_under_way = False


@contextmanager
def _of_sink(epoch: int) -> Iterator[None]:
    """Turn whatever is no `Exception` and comes out of a sink into an error that names it.

    The sink may run on a thread of ours, or be called by Py4J or by Spark Connect's worker: all of them would end, and
    it would go unnoticed. Ctrl-C, which only the main thread gets, stays what it is.
    """
    try:
        yield
    except BaseException as error:
        is_ctrl_c = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if isinstance(error, Exception) or is_ctrl_c:
            raise
        raise ConnectorInterrupted(f"the sink of epoch {epoch}", error) from error


def epoch_of(snapshot: Snapshot) -> Delivered | None:
    """Return the newest epoch, or None if there is none, as in a bootstrapped snapshot."""
    ref = SourcePosition.of(snapshot).ref
    return None if ref == BEGINNING else Delivered(ref.epoch, ref.attempt)


class _Rows(Values):
    """The rows of an epoch, for a sink of this package."""

    def __init__(self, frame: DataFrame, missing: Collection[int] = ()) -> None:
        self._frame = frame
        self._rows = FrameRows(frame, without=tuple(missing))

    def write(self, sink: ShippedSink, epoch: int) -> None:
        sink.write_rows(self._rows, epoch)

    def refused(self, sink: ShippedSink) -> Any:
        return sink.refused_rows(self._rows)

    def without(self, places: Collection[int]) -> _Rows | None:
        left = _Rows(self._frame, places)
        return None if left._rows.is_empty else left

    def at(self, places: Collection[int]) -> dict[int, Any]:
        return {place: row for place, row in enumerate(self._rows.dicts()) if place in places}

    def has(self, place: object) -> bool:
        return True  # a sink of this package counts the rows, which a DataFrame would have to do again

    def renew(self) -> None:
        """No sink can change a DataFrame."""


class _Letters(Letters):
    """Dead letters, for a sink whose methods are coroutines; it is opened and closed for each epoch."""

    def write(self, sink: ConnectorSink[Any], epoch: int) -> None:
        async def write() -> None:
            await to_await(sink, "open", sink.open())
            try:
                await to_await(sink, "write", sink.write(self.copies(), epoch))
            finally:
                await closed(sink)

        _on_own_loop(write)

    def refused(self, sink: ConnectorSink[Any]) -> Any:
        return _on_own_loop(lambda: sink.refused(self.copies()))


class _ShippedDelivery(SinkDelivery):
    """Delivers an epoch to a sink of this package, on the thread that calls it.

    Refused rows are known by their place in the DataFrame, which a restart may read in another order. So, unlike in a
    job, they are not noted: the dead letters are written before the rest of the epoch, and a restart finds them again.
    """

    letters_come_first = True

    def __init__(
        self, coordinator: Coordinator, lineage: str, sink: ShippedSink, hurry: threading.Event, epochs: SinkEpochs
    ) -> None:
        given = [sink] if sink.dead_letters is None else [sink, letters_sink_of(sink.dead_letters)]
        self._uses = [Use(one) for one in given]
        own = [use.own for use in self._uses]
        super().__init__(coordinator, lineage, own[0], own[1] if own[1:] else None, epochs)
        self._hurry = hurry

    @property
    def is_hurried(self) -> bool:
        return self._hurry.is_set()

    def open(self) -> None:
        """Tell the sinks what to expect, and have sinks of this package look at their targets."""
        for sink in (self._sink, self._dead_letters):
            if isinstance(sink, ShippedSink):
                self._done(self.opened(sink, sink.check_target))
            elif sink is not None:
                self._done(self.expecting(sink))

    def close(self) -> None:
        """Have the sinks let go of their targets."""
        for sink in (self._sink, self._dead_letters):
            if isinstance(sink, ShippedSink):
                sink.disconnect()
        for use in self._uses:
            use.end()

    def deliver(self, frame: DataFrame, epoch: Delivered) -> None:
        """Give an epoch to the sink."""
        self._done(self.written(self._sink, epoch, _Rows(frame)))

    def _keep(self, refused: RefusedOutputs, content: Values) -> Steps[None]:
        assert self._dead_letters is not None, "checked at the start"
        yield from self.written(self._dead_letters, refused.epoch, _Letters(refused.letters(content)))

    def _done(self, steps: Steps[Any]) -> None:
        """Take steps to their end."""
        resume, given = steps.send, None
        with suppress(StopIteration):
            while True:
                step = resume(given)
                try:
                    resume, given = steps.send, self._take(step)
                except Exception as error:  # noqa: BLE001 - raised where the step was asked for
                    resume, given = steps.throw, error

    def _take(self, step: Ask | Note | Pause) -> Any:
        return self._hurry.wait(step.seconds) if isinstance(step, Pause) else step.work()


def _on_own_loop(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine on an event loop of its own: in a notebook, the calling thread has one that runs."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.set_exception(error)

    threading.Thread(target=run, name="keygroups dead letters", daemon=True).start()
    return outcome.result()


class _SinkTurn:
    """The right to call a sink of an operator: one thread has it at a time, also of two queries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner: int | None = None
        """The thread that is in the sink."""

    def __enter__(self) -> None:
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.owner = None
        self._lock.release()


_turns: WeakValueDictionary[str, _SinkTurn] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(uri: str) -> _SinkTurn:
    """Return the turn of an operator's sinks: a stopped query's sink may still be running."""
    with _turns_lock:
        return _turns.setdefault(uri, _SinkTurn())


def refuse_in_sink(what: str, uri: str) -> None:
    """Raise `CalledInSink` if this thread is in the sink of an operator, whose end the called method would wait for."""
    turn = _turns.get(uri)
    if turn is not None and turn.owner == threading.get_ident():
        raise CalledInSink(what, uri)
