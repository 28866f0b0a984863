"""The pipeline's operator, as the host of a subtask makes it, feeds it, and writes its part of an epoch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from async_op.elements import Element, Record, Watermark
from async_op.hosting.blueprint import CutPart
from async_op.hosting.operator import ResidentOperator
from async_op.operator.place import Place
from async_op.options import OperatorOptions
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.rows.checked_rows import with_checked_rows
from async_op.spark.task.epoch_elements import EpochElements
from snapshots import PendingSnapshot, SubtaskHandle


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A subtask's part of an epoch, written and not committed.

    Attributes
    ----------
    handle : SubtaskHandle
        By which the driver commits it.
    outputs : int
        Rows that leave with it.
    write_seconds : float
        What it took.
    next_timer, next_event_timer : int or None
        When the first of its timers are to fire.
    """

    handle: SubtaskHandle
    outputs: int
    write_seconds: float
    next_timer: int | None
    next_event_timer: int | None


@dataclass(frozen=True, kw_only=True)
class EpochBlueprint:
    """What makes the operators of a query with one parallelism.

    Attributes
    ----------
    options : OperatorOptions
        The operator's, with the user's function.
    event_time : str or None
        The column that has the timestamps of rows.
    parallelism, max_parallelism : int
        Of the query, for now.
    output_schema : pyarrow.Schema
        Of the outputs.
    """

    options: OperatorOptions
    event_time: str | None
    parallelism: int
    max_parallelism: int
    output_schema: pa.Schema

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened."""
        function = with_checked_rows(self.options.function, OutputWriter(self.output_schema))
        place = Place(parallelism=self.parallelism, subtask_index=subtask_index, max_parallelism=self.max_parallelism)
        return ResidentOperator.of(replace(self.options, function=function), output, place=place)

    def decoder(self, epoch: str) -> Callable[[pa.RecordBatch], Iterable[Element]]:
        """Return what makes elements of an epoch's rows; the epoch's id is the same for every run of it."""
        return EpochElements(epoch, self.event_time).of

    def pack(self, outputs: list[object]) -> pa.RecordBatch:
        """Return outputs as a batch."""
        return OutputWriter(self.output_schema).batch_of(outputs)

    async def write(self, part: CutPart, target: PendingSnapshot) -> WrittenPart:
        """Write a part beside the calls."""
        started = time.monotonic()
        outputs = pa.Table.from_batches(part.runs, self.output_schema)
        # Not the loop's own threads: calls of the user's function may have them all.
        writer = ThreadPoolExecutor(1, "keygroups write")
        loop = asyncio.get_running_loop()
        try:
            handle = await loop.run_in_executor(writer, target.write_subtask, part.snapshot, outputs)
        finally:
            writer.shutdown(wait=False)
        seconds = time.monotonic() - started
        return WrittenPart(handle, outputs.num_rows, seconds, part.next_timer, part.next_event_timer)
