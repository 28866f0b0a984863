"""What one element of a partition is: a row, or a record batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa

from async_op.arrow_stream import readable_rows_of, slices_of
from async_op.calls.checked_outputs import with_checked_outputs
from async_op.dead_letters import InPlace
from async_op.elements import Element
from async_op.functions import AsyncBatchFunction, Function
from async_op.spark.rows.arrow_function import ArrowFunction, recut
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.rows.dead_letter_column import batches_in_place, rows_in_place
from async_op.spark.task.operator_thread import OUTPUTS_AT_ONCE


@dataclass(frozen=True)
class RowElements:
    """An element is a row, as a dict; its outputs are rows, as dicts or tuples.

    Attributes
    ----------
    row_function : Function
        The function, which takes one row.
    capacity : int
        The number of rows that may be in flight.
    writer : OutputWriter
        Makes batches of output rows.
    """

    row_function: Function
    capacity: int
    writer: OutputWriter
    outputs_at_once = OUTPUTS_AT_ONCE

    def function(self) -> Function:
        """Return the function as the operator calls it, with its outputs checked."""
        return with_checked_outputs(self.row_function, self.writer)

    def elements_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[Element]]:
        """Return the elements, in portions that are fed together."""
        for part in slices_of(batches):
            yield zip(readable_rows_of(part), repeat(None), repeat(None), strict=False)

    def batches_of(self, outputs: Sequence[Any]) -> list[pa.RecordBatch]:
        """Return output rows as one batch."""
        return [self.writer.batch_of(outputs)]

    def dead_letters(self) -> InPlace:
        """Return what turns a failed element into one row with only its dead letter."""
        return rows_in_place()


@dataclass(frozen=True)
class BatchElements:
    """An element is a record batch; its output is one, too.

    Attributes
    ----------
    batch_function : AsyncBatchFunction
        The function, with `arrow = True`.
    rows : int
        How many rows may be in flight; one batch always may.
    writer : OutputWriter
        Checks output batches.
    """

    batch_function: AsyncBatchFunction
    rows: int
    writer: OutputWriter
    outputs_at_once = 1

    def function(self) -> Function:
        """Return the function as the operator calls it, with its outputs checked."""
        return ArrowFunction(self.batch_function, self.writer)

    @property
    def capacity(self) -> int:
        """The number of batches that may be in flight."""
        return max(1, self.rows // self.batch_function.max_batch_size) if self.rows > 0 else self.rows

    def elements_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[Element]]:
        """Return the elements, in portions that are fed together."""
        for batch in recut(batches, self.batch_function.max_batch_size):
            yield ((batch, None, None),)

    def batches_of(self, outputs: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return output batches as they are."""
        return outputs

    def dead_letters(self) -> InPlace:
        """Return what turns a failed element into a batch with a dead letter for each of its rows."""
        return batches_in_place(self.writer)


PartitionElements: TypeAlias = RowElements | BatchElements


def elements_of(function: Function, capacity: int, writer: OutputWriter) -> PartitionElements:
    """Return the kind of elements that a function takes: record batches with `arrow = True`, else rows."""
    if isinstance(function, AsyncBatchFunction) and function.arrow:
        return BatchElements(function, capacity, writer)
    return RowElements(function, capacity, writer)
