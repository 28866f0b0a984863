"""How the host of a subtask makes the pipeline's operator, decodes its rows, and writes its part of an epoch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pickle import loads

import pyarrow as pa

from async_op.calls.checked_outputs import with_checked_outputs
from async_op.calls.value_checks import Unreadable
from async_op.connectors.arrow_input import rows_of
from async_op.elements import Element, Record, Watermark
from async_op.hosting.fed_subtask import CutPart
from async_op.in_flight.idempotency_keys import Identity
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.task.epoch_rows import EpochElements
from async_op.subtask.operator import ResidentOperator
from keygroups.errors import KeyGroupsError
from keygroups.values import is_exact
from snapshots import InFlightElement, PendingSnapshot, SubtaskHandle, SubtaskSnapshot
from snapshots.daemon_threads import DaemonPool
from snapshots.format.in_flight_elements import RestoredQueue
from snapshots.format.subtask import ElementTypes

_REPORTED_BYTES_MAX = 4 * 2**20
"""Outputs of an epoch that tasks may report, as Arrow data; the sink reads the rest from storage."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A subtask's part of an epoch, written and not committed.

    Attributes
    ----------
    handle : SubtaskHandle
        The handle by which the driver commits the part.
    outputs : int
        Output rows in the part.
    write_seconds : float
        Seconds that writing took.
    next_timer, next_event_timer : int or None
        When the subtask's first timers are to fire, by the clock and by the watermark.
    rows : pyarrow.Table or None
        The output rows, for the sink: if they are few, it need not read back what was written. None if they are many.
    """

    handle: SubtaskHandle
    outputs: int
    write_seconds: float
    next_timer: int | None
    next_event_timer: int | None
    rows: pa.Table | None = None


@dataclass(frozen=True, kw_only=True)
class EpochOperatorFactory:
    """Makes the operators of one generation of a query; an `OperatorFactory`.

    Attributes
    ----------
    options : OperatorOptions
        The options of the operator, with the user's function.
    event_time : str or None
        The column with the timestamps of rows; None without event time.
    parallelism, max_parallelism : int
        The number of subtasks in this generation, and the number of key groups.
    input_schema, output_schema : pyarrow.Schema
        The schemas of the rows and of the outputs.
    key_paths : tuple of tuple of str
        The columns of the key, each with the fields that lead to it inside of a struct.
    identity : Identity
        What all idempotency keys have in common.
    """

    options: OperatorOptions
    event_time: str | None
    parallelism: int
    max_parallelism: int
    input_schema: pa.Schema
    output_schema: pa.Schema
    key_paths: tuple[tuple[str, ...], ...] = ()
    identity: Identity

    def operator(self, subtask_index: int, output: Callable[[Record | Watermark], object]) -> ResidentOperator:
        """Return the operator of a subtask, not opened yet."""
        function = with_checked_outputs(self.options.function, self._writer)
        subtask_info = SubtaskInfo(
            parallelism=self.parallelism,
            subtask_index=subtask_index,
            max_parallelism=self.max_parallelism,
            identity=self.identity,
            element_types=self._element_types,
            vet=Unreadable(are_decoded=True),
        )
        return RowOperator.of(replace(self.options, function=function), output, subtask_info=subtask_info)

    def decoder(self, epoch: str) -> Callable[[pa.RecordBatch], Iterable[Element]]:
        """Return what makes elements of an epoch's rows; `epoch` is the id that every run of the epoch has."""
        return EpochElements(epoch, self.event_time).of

    def bytes_of(self, rows: pa.RecordBatch) -> int:
        """Return the size of rows as Arrow data."""
        return int(rows.nbytes)

    def pack(self, outputs: list[object]) -> list[pa.RecordBatch]:
        """Return a run of outputs as record batches, usually one."""
        return self._writer.batches_of(outputs)

    @cached_property
    def _element_types(self) -> ElementTypes:
        """The types of what elements hold; a type that no column of a file has stays unknown."""
        keys = [(".".join(path), _type_at(self.input_schema, path)) for path in self.key_paths]
        key = None if not keys else keys[0][1] if len(keys) == 1 else pa.struct(keys)
        types = (pa.struct(list(self.input_schema)), key, pa.struct(list(self.output_schema)))
        return ElementTypes(*(type_ if type_ is not None and is_exact(type_) else None for type_ in types))

    @cached_property
    def _writer(self) -> OutputWriter:
        return OutputWriter(self.output_schema)

    async def write(self, part: CutPart, target: bytes) -> WrittenPart:
        """Write a part of a pickled `PendingSnapshot` on a thread of its own, while calls go on."""
        started = time.monotonic()
        outputs = pa.Table.from_batches(chain.from_iterable(part.runs), self.output_schema)
        # Not the loop's default threads: the user's function may occupy all of them.
        writer = DaemonPool(1, "keygroups write")
        loop = asyncio.get_running_loop()
        try:
            handle = await loop.run_in_executor(writer, self._write, target, part.snapshot, outputs)
        finally:
            writer.shutdown(wait=False)
        seconds = time.monotonic() - started
        rows = outputs if outputs.nbytes <= _REPORTED_BYTES_MAX // self.parallelism else None
        return WrittenPart(handle, outputs.num_rows, seconds, part.next_timer, part.next_event_timer, rows)

    def _write(self, target: bytes, snapshot: SubtaskSnapshot, outputs: pa.Table) -> SubtaskHandle:
        pending: PendingSnapshot = loads(target)  # noqa: S301 - pickled by the driver; it reads the parent's manifest
        in_flight = tuple(map(self._with_rows, snapshot.in_flight))
        return pending.write_subtask(replace(snapshot, in_flight=in_flight), outputs)

    def _with_rows(self, element: InFlightElement) -> InFlightElement:
        """Return an element with outputs as rows of the output's schema, which is what the sink would get of them."""
        if not element.outputs:
            return element
        try:
            rows = [row for batch in self._writer.batches_of(element.outputs) for row in rows_of(batch)]
            return element._replace(outputs=tuple(rows))
        except (KeyGroupsError, ValueError):
            return element  # of an earlier schema, or without a form in Python: stored as it is


class RowOperator(ResidentOperator):
    """An operator of rows: those that were in flight when the input gained a column have it, too, as null."""

    __slots__ = ()

    def _fitting(self, queue: RestoredQueue) -> RestoredQueue:
        rows = self._subtask_info.element_types.value
        names = [] if rows is None else [field.name for field in rows]
        elements = tuple(_with_columns(element, names) for element in queue.elements)
        return super()._fitting(replace(queue, elements=elements))


def _with_columns(element: InFlightElement, names: Sequence[str]) -> InFlightElement:
    row = element.value
    if type(row) is not dict or row.keys() >= set(names):
        return element
    # In the order of the input; what it has lost comes last.
    return element._replace(value={name: row.get(name) for name in names} | row)


def _type_at(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    type_ = schema.field(path[0]).type
    for name in path[1:]:
        type_ = type_.field(name).type
    return type_
