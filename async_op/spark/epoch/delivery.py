"""Gives epochs to the sink: one after the other, each before the next begins (H9), and none that it has had already."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from async_op.spark.epoch.job_names import named_jobs
from async_op.spark.epoch.position import BEGINNING, EpochRef, SourcePosition
from async_op.spark.epoch.sinks import IntoSink
from snapshots import Snapshot
from snapshots.format.delivered import Delivered, last_delivered, mark_delivered
from snapshots.spark import outputs_frame

_log = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]
"""What users pass: gets the outputs of an epoch and its number."""

Outlet = Callable[[DataFrame, EpochRef], None]
"""Where epochs go: a sink, or the next pipeline of a chain."""


class Delivery:
    """Delivers the newest epoch. Any thread may call it; in one process, one sink of an operator runs at a time.

    The newest manifest names the newest epoch, even if a claim, a rescale or a compaction has committed that manifest.

    Parameters
    ----------
    outlet : callable
        Called with the outputs and the epoch; must be idempotent by epoch.
    output_schema : pyarrow.Schema
        The schema of the outputs, for old snapshots that do not store it.

    Attributes
    ----------
    is_under_way : bool
        Whether the outlet is at work.
    """

    def __init__(self, outlet: Outlet, output_schema: pa.Schema) -> None:
        self._outlet = outlet
        self._output_schema = output_schema
        self._last: Delivered | None = None
        self.is_under_way = False
        self._hurry = threading.Event()

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
        with _turn_of(snapshot.folder.uri):
            if self._last is None and last_delivered(snapshot.folder) == newest:
                _log.info("epoch %d of %s was delivered before", newest.epoch, snapshot.manifest.operator_id)
            else:
                self._hand_over(spark, snapshot, newest, known)
                _remember(snapshot, newest)
            self._last = newest

    def _hand_over(
        self, spark: SparkSession, snapshot: Snapshot, newest: Delivered, known: Mapping[str, pa.Table] | None
    ) -> None:
        self.is_under_way = True
        try:
            with named_jobs(spark, snapshot.manifest.operator_id, newest.epoch, "sink"):
                frame = outputs_frame(spark, snapshot, self._output_schema, known)
                if isinstance(self._outlet, IntoSink):
                    self._outlet.deliver(frame, EpochRef(*newest), snapshot.folder, self._hurry)
                else:
                    self._outlet(frame, EpochRef(*newest))
        finally:
            self.is_under_way = False


def epoch_of(snapshot: Snapshot) -> Delivered | None:
    """Return the newest epoch, or None if there is none, as in a bootstrapped snapshot."""
    ref = SourcePosition.of(snapshot).ref
    return None if ref == BEGINNING else Delivered(ref.epoch, ref.attempt)


def _remember(snapshot: Snapshot, delivered: Delivered) -> None:
    try:
        mark_delivered(snapshot.folder, delivered)
    except OSError as error:
        _log.warning("epoch %d was delivered but not marked, a restart delivers it again: %s", delivered.epoch, error)


_turns: WeakValueDictionary[str, Any] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(uri: str) -> Any:
    """Return the lock of an operator's sinks: that of a stopped query may still be running."""
    with _turns_lock:
        return _turns.setdefault(uri, threading.RLock())
