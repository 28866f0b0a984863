"""The column of event time."""

from __future__ import annotations

import pyarrow as pa


def event_times(batch: pa.RecordBatch, column: str | None) -> list[int | None]:
    """Return the timestamps of rows in milliseconds since the Unix epoch, or None for each row without one.

    Spark's timestamps are microseconds. Those without a zone count as UTC, as for Spark's own watermarks.
    """
    if column is None:
        return [None] * batch.num_rows
    microseconds = batch.column(column).view(pa.int64())
    return [None if value is None else value // 1000 for value in microseconds.to_pylist()]
