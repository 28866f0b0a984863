"""The rows of one subtask's epoch as elements, with timestamps and with ids that are the same in every run of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from async_op.arrow_stream import rows_of
from async_op.elements import Element
from async_op.spark.task.event_times import event_times
from keygroups.codec import pack


class EpochElements:
    """Makes elements of rows. Their ids are the same in every run of the epoch, in whatever order the rows come.

    Parameters
    ----------
    epoch_id : str
        The id of the epoch, the same in every run of it.
    event_time : str or None
        The column with the timestamps of rows; None without event time.
    """

    def __init__(self, epoch_id: str, event_time: str | None) -> None:
        self._event_time = event_time
        self._prefix = hashlib.blake2b(epoch_id.encode(), digest_size=16)
        self._seen = Counter[bytes]()

    def of(self, batch: pa.RecordBatch) -> Iterable[Element]:
        """Return the elements of the epoch's next rows."""
        elements = zip(rows_of(batch), event_times(batch, self._event_time), strict=True)
        return ((row, timestamp, self._identify(row)) for row, timestamp in elements)

    def _identify(self, row: dict[str, Any]) -> str:
        digest = self._prefix.copy()
        digest.update(pack(list(row.values()), "a row"))
        identity = digest.digest()
        number = self._seen[identity]
        self._seen[identity] = number + 1
        return f"{identity.hex()}-{number}"
