"""The rows of an epoch, from a job or from Spark, in batches of bounded size and as often as they are asked for."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from async_op.connectors.arrow_output import ROWS_AT_ONCE, batches_of, fitted, names_of, schema_of
from async_op.connectors.errors import UnsupportedColumn, UnwritableValue
from keygroups.values import Misfit, values_of
from keygroups.values.lossless_casts import in_microseconds

Check: TypeAlias = Callable[[pa.RecordBatch], None]
"""Raises `Misfit` for a batch with a value that a table would lose or change."""


class SinkRows(ABC):
    """The rows of one epoch."""

    failure: UnwritableValue | None = None
    """What the reader has met, for those whose package turns it into an error of its own."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns that the rows have by themselves, for a table that is to be made."""

    @abstractmethod
    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of a table."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the columns."""

    @abstractmethod
    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts."""

    def at(self, index: int) -> dict[str, Any]:
        """Return one row; the first is 0."""
        return next(itertools.islice(self.dicts(), index, None))

    def unknown(self, column: str, target: str) -> UnwritableValue:
        """Return the error for a column that the target does not have, with the first row that has it."""
        for index, row in enumerate(self.dicts()):
            if column in row:
                return UnwritableValue(row, f"there is no column {column!r}", target=target, column=column, index=index)
        return UnwritableValue(self.names(), f"there is no column {column!r}", target=target, column=column)

    def refused(self, schema: pa.Schema, *checks: Check) -> list[UnwritableValue]:
        """Return the errors of all rows that do not fit into the columns or pass the checks, with their index."""
        rows = self.dicts()
        found: list[UnwritableValue] = []
        for start in itertools.count(0, ROWS_AT_ONCE):
            chunk = list(itertools.islice(rows, ROWS_AT_ONCE))
            if not chunk:
                return found
            found += _refusals(chunk, start, schema, checks)
        raise AssertionError("the rows end")

    def refused_before(self, error: UnwritableValue) -> list[UnwritableValue]:
        """Return the errors of all rows that cannot go into a table; one such row has been found already."""
        return [error]

    def without_column(self, made: Callable[[pa.Schema], pa.Schema]) -> Iterator[UnwritableValue]:
        """Yield an error for every row that alone would need a column that a table cannot have."""
        return iter(())

    def checked(self, schema: pa.Schema, check: Check) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of a table, and check them."""
        for batch in self.batches(schema):
            try:
                check(batch)
            except Misfit as misfit:
                raise UnwritableValue(batch, misfit.reason, column=misfit.column or None) from misfit
            yield batch

    def reader(self, schema: pa.Schema, check: Check) -> pa.RecordBatchReader:
        """Return the rows as a stream that checks them."""
        return pa.RecordBatchReader.from_batches(schema, self._noted(schema, check))

    def _noted(self, schema: pa.Schema, check: Check) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.checked(schema, check)
        except UnwritableValue as error:
            self.failure = error
            raise


class OutputRows(SinkRows):
    """The outputs of a job."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def schema(self) -> pa.Schema:
        """Return the columns of all outputs, with room for later ones."""
        return schema_of(self._values)

    def refused_before(self, error: UnwritableValue) -> list[UnwritableValue]:
        """Return the errors of outputs that give no column a type, or another type than the outputs before them."""
        found: list[UnwritableValue] = []
        try:
            if error.index:
                return self.refused(schema_of(self._values[: error.index])) or [error]
        except UnwritableValue:
            return [error]
        for index, value in enumerate(self._values):
            try:
                schema_of([value])
            except UnwritableValue as alone:
                alone.index = index
                found.append(alone)
        return found or [error]

    def without_column(self, made: Callable[[pa.Schema], pa.Schema]) -> Iterator[UnwritableValue]:
        """Yield an error for every output that alone would need a column that a table cannot have."""
        for index, value in enumerate(self._values):
            try:
                made(schema_of([{name: field for name, field in value.items() if field is not None}]))
            except UnsupportedColumn as error:
                yield UnwritableValue(value, str(error), column=error.column, index=index)
            except UnwritableValue:
                continue  # it gives a column no type, and others may

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the outputs as batches."""
        return batches_of(self._values, schema)

    def names(self) -> list[str]:
        """Return the names of all fields."""
        return names_of(self._values)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the outputs themselves."""
        return iter(self._values)


class FrameRows(SinkRows):
    """The rows of a Spark DataFrame, which come to the driver batch by batch.

    Spark's driver holds one partition at a time, and this process one batch. Each time, it is computed again.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    without : collection of int
        The rows that are left out, counted from 0.
    """

    def __init__(self, frame: Any, *, without: Collection[int] = ()) -> None:
        self._without = frozenset(without)
        from keygroups.spark.partitions import map_in_arrow  # a sink of a job works without PySpark

        self._names: list[str] = frame.columns
        # PySpark would take a dot in a name for a field of a struct.
        renamed = frame.toDF(*(f"_{place}" for place in range(len(self._names))))
        self._encoded = map_in_arrow(renamed, _encode, "batch binary")

    @functools.cached_property
    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return next(self._all(), None) is None

    def schema(self) -> pa.Schema:
        """Return the columns of the DataFrame."""
        return next(self._all()).schema

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches."""
        return (fitted(batch, schema) for batch in self._all())

    def names(self) -> list[str]:
        """Return the names of the DataFrame's columns."""
        return list(self._names)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts of Python values."""
        return (row for batch in self._all() for row in dicts_of(batch))

    def _all(self) -> Iterator[pa.RecordBatch]:
        start = 0
        for row in self._encoded.toLocalIterator():
            with pa.ipc.open_stream(bytes(row.batch)) as stream:
                for batch in stream:
                    kept = self._kept(batch, start)
                    start += batch.num_rows
                    if kept.num_rows:
                        yield kept.rename_columns(self._names)

    def _kept(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        if not self._without:
            return batch
        kept = [place for place in range(batch.num_rows) if start + place not in self._without]
        return batch.take(pa.array(kept, pa.int64()))


def _refusals(rows: list[Any], start: int, schema: pa.Schema, checks: Sequence[Check]) -> list[UnwritableValue]:
    """Return the errors of rows by halves: few rows are refused, and a check may write all that it is asked about."""
    error = _refusal(rows, schema, checks)
    if error is None:
        return []
    if len(rows) == 1:
        error.index = start
        return [error]
    middle = len(rows) // 2
    return [
        *_refusals(rows[:middle], start, schema, checks),
        *_refusals(rows[middle:], start + middle, schema, checks),
    ]


def _refusal(rows: list[Any], schema: pa.Schema, checks: Sequence[Check]) -> UnwritableValue | None:
    try:
        for batch in batches_of(rows, schema):
            for check in checks:
                check(batch)
    except UnwritableValue as error:
        return error
    except Misfit as misfit:
        return UnwritableValue(rows[0], misfit.reason, column=misfit.column or None)
    return None


def dicts_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return rows with maps as dicts: to JSON, as in `jsonb`, a map is an object."""
    names = batch.schema.names
    columns = [values_of(in_microseconds(name, column)) for name, column in zip(names, batch.columns, strict=True)]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make one row of each batch, on Spark's workers."""
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            content = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.record_batch([content], names=["batch"])
