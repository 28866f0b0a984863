"""The rows of a subtask's epoch: in pieces of bounded size, counted, as a task feeds them; as elements in its host."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from async_op.connectors.arrow_input import readable_rows_of, slices_of
from async_op.elements import Element
from keygroups.codec import pack
from snapshots.format.subtask import RefusedValue


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


class EpochElements:
    """Makes elements of rows. Their ids are the same in every run of the epoch, in whatever order the rows come.

    An id costs more than all else that is done for a row here, and few functions ask for it. So ids are made when
    they are requested, for all rows of a piece at once.

    Parameters
    ----------
    epoch_id : str
        The id of the epoch, the same in every run of it.
    event_time : str or None
        The column with the timestamps of rows; None without event time.
    """

    def __init__(self, epoch_id: str, event_time: str | None) -> None:
        self._event_time = event_time
        self._identities = _Identities(epoch_id)

    def of(self, batch: pa.RecordBatch) -> Iterable[Element]:
        """Return the elements of the epoch's next rows."""
        ids = zip(repeat(_RowIds(batch, self._identities)), range(batch.num_rows), strict=False)
        return zip(readable_rows_of(batch), event_times(batch, self._event_time), ids, strict=True)


class _Identities:
    """Makes the ids of rows, and numbers those that are equal. Any thread may call it."""

    def __init__(self, epoch_id: str) -> None:
        self._prefix = hashlib.blake2b(epoch_id.encode(), digest_size=16)
        self._seen = Counter[bytes]()
        self.lock = threading.Lock()

    def of(self, row: dict[str, Any] | RefusedValue) -> str:
        """Return the id of a row. Equal rows cannot be told apart, so the order of requests does not matter."""
        digest = self._prefix.copy()
        values = [row.text, row.reason] if isinstance(row, RefusedValue) else list(row.values())
        digest.update(pack(values, "a row"))
        identity = digest.digest()
        number = self._seen[identity]
        self._seen[identity] = number + 1
        return f"{identity.hex()}-{number}"


class _RowIds:
    """The ids of a piece's rows. They come from the Arrow data, because a function may change the row that it gets.

    The data is kept until an id is requested; a cut requests the ids of all elements in flight.
    """

    __slots__ = ("_batch", "_identities", "_ids")

    def __init__(self, batch: pa.RecordBatch, identities: _Identities) -> None:
        self._batch: pa.RecordBatch | None = batch
        self._identities = identities
        self._ids: list[str] = []

    def __getitem__(self, index: int) -> str:
        if self._batch is not None:
            self._make()
        return self._ids[index]

    def _make(self) -> None:
        with self._identities.lock:  # a function on a thread may ask while the event loop does
            if self._batch is not None:
                self._ids = list(map(self._identities.of, readable_rows_of(self._batch)))
                self._batch = None


def event_times(batch: pa.RecordBatch, column: str | None) -> list[int | None]:
    """Return the timestamps of rows in milliseconds since the Unix epoch, or None for each row without one.

    Spark's timestamps are microseconds. Those without a zone count as UTC, as for Spark's own watermarks.
    """
    if column is None:
        return [None] * batch.num_rows
    microseconds = batch.column(column).view(pa.int64())
    return [None if value is None else value // 1000 for value in microseconds.to_pylist()]
