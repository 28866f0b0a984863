"""The sinks of this package as the end of a pipeline: attempts, and rows that are refused, as in a job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from async_op.connectors.delivering import Refused, SinkAttempts
from async_op.connectors.epoch_rows import FrameRows
from async_op.connectors.errors import UnwritableValue
from async_op.connectors.sink import ShippedSink, Sink
from async_op.spark.epoch.position import EpochRef
from snapshots.filesystem import Folder
from snapshots.format.sink_notes import SinkNotes

_T = TypeVar("_T")


class IntoSink:
    """Gives epochs to a sink. It is pickled for Spark Connect.

    Refused rows are known by their place in the DataFrame, which a restart may read in another order. So, unlike in a
    job, they are not noted: the dead letters are written before the rest of the epoch, and a restart finds them again.

    Parameters
    ----------
    sink : callable
        `sink(batch_df, epoch)`.
    """

    def __init__(self, sink: Callable[[DataFrame, int], None]) -> None:
        self._sink = sink

    def __call__(self, frame: DataFrame, ref: EpochRef) -> None:
        """Give an epoch to the sink, at one attempt."""
        self._sink(frame, ref.epoch)

    def deliver(self, frame: DataFrame, ref: EpochRef, folder: Folder, hurry: threading.Event) -> None:
        """Give an epoch to the sink; one of this package is tried again, and may refuse rows.

        Parameters
        ----------
        frame : DataFrame
            The outputs of the epoch.
        ref : EpochRef
            The epoch.
        folder : Folder
            The operator's folder, for what it remembers of the sink.
        hurry : threading.Event
            Set when the next attempt is the last.
        """
        sink = self._sink
        # A subclass that overrides `__call__` wants to be called, so its own attempts are the only ones.
        if not isinstance(sink, ShippedSink) or type(sink).__call__ is not ShippedSink.__call__:
            sink(frame, ref.epoch)
            return
        notes = SinkNotes(folder)
        sink.was_written = notes.was_written("outputs", repr(sink))
        refused = Refused(sink, ref.epoch, {})
        _tried(sink, ref.epoch, lambda: self._write(sink, frame, refused, hurry), hurry)
        if sink.was_written:
            notes.note_written("outputs", repr(sink))

    def _write(self, sink: ShippedSink, frame: DataFrame, refused: Refused, hurry: threading.Event) -> None:
        while not (left := FrameRows(frame, without=tuple(refused.outputs))).is_empty:
            try:
                sink.write_rows(left, refused.epoch)
                break
            except UnwritableValue as error:
                if sink.on_error == "fail" or (refused.outputs and sink.on_error == "dead_letter"):
                    raise  # in the second case the dead letters of the epoch are written already
                failure = error
            refused.add(sink.refused_rows(left), failure)
            if sink.on_error == "dead_letter":
                self._bury(sink, FrameRows(frame), refused, hurry)

    def _bury(self, sink: ShippedSink, rows: FrameRows, refused: Refused, hurry: threading.Event) -> None:
        outputs = {index: row for index, row in enumerate(rows.dicts()) if index in refused.outputs}
        assert sink.dead_letters is not None, "checked at the start"
        letters, target = refused.letters(outputs), sink.dead_letters.for_dead_letters()
        _tried(target, refused.epoch, lambda: _on_own_loop(target, letters, refused.epoch), hurry)


def _tried(sink: Sink[Any], epoch: int, work: Callable[[], _T], hurry: threading.Event) -> _T:
    attempts = SinkAttempts(sink, epoch)
    while True:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - raised unless it may pass
            delay = attempts.delay_after(error, is_last=hurry.is_set())
        hurry.wait(delay)


def _on_own_loop(sink: Sink[Any], values: list[Any], epoch: int) -> None:
    """Write values on an event loop of their own: in a notebook, the calling thread has one that runs."""
    errors: list[BaseException] = []

    async def write() -> None:
        await sink.open()
        try:
            await sink.write(values, epoch)
        finally:
            await sink.close()

    def run() -> None:
        try:
            asyncio.run(write())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="keygroups dead letters", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
