"""The rows of one subtask's epoch as its task feeds them: in pieces of bounded size, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from async_op.arrow_stream import slices_of
from async_op.spark.task.event_times import event_times


class EpochRows(Iterator[pa.RecordBatch]):
    """Cuts Spark's batches into pieces and counts their rows. One thread may call it.

    Parameters
    ----------
    batches : iterable of RecordBatch
        Spark's batches.
    event_time : str or None
        The column with the timestamps of rows; None without event time.

    Attributes
    ----------
    rows : int
        The number of rows so far.
    event_time : int or None
        The greatest timestamp so far, in milliseconds since the Unix epoch; None before the first.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], event_time: str | None) -> None:
        self.rows = 0
        self.event_time: int | None = None
        self._column = event_time
        self._pieces = slices_of(batches)

    def __next__(self) -> pa.RecordBatch:
        piece = next(self._pieces)
        self.rows += piece.num_rows
        times = (*event_times(piece, self._column), self.event_time)
        self.event_time = max((time for time in times if time is not None), default=None)
        return piece
