"""The task of the stateless transform: an operator for the rows of one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from async_op.calls.value_checks import Unreadable
from async_op.elements import Record, Watermark
from async_op.operator.operator import AsyncWaitOperator
from async_op.operator.place import Place
from async_op.options import OperatorOptions
from async_op.spark.task.operator_thread import OperatorThread
from async_op.spark.task.partition_elements import PartitionElements
from async_op.threads.loop_thread import rare_collections
from async_op.threads.wait_strategies import WaitStrategies
from keygroups.errors import KeyGroupsError, as_sent
from keygroups.spark.partitions import flusher


@dataclass(frozen=True)
class PartitionTask:
    """An operator for one partition, run by `mapInArrow` in a Python worker.

    Attributes
    ----------
    elements : PartitionElements
        What an element is: a row or a record batch.
    options : OperatorOptions
        The options of the operator, with the user's function.
    wait_strategies : WaitStrategies
        How the threads of the task wait for each other.
    """

    elements: PartitionElements
    options: OperatorOptions
    wait_strategies: WaitStrategies

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the operator; yields its outputs, and empty batches as signs of life."""
        flush = flusher()
        empty = self.elements.writer.batch_of(())
        try:
            at_once = self.elements.outputs_at_once
            with (
                rare_collections(),
                OperatorThread(self.make_operator, self.wait_strategies, outputs_at_once=at_once) as thread,
            ):
                for outputs in thread.run(self.elements.elements_in(batches)):
                    yield from self.elements.batches_of(outputs) if outputs else [empty]
                    flush()
        except KeyGroupsError as failure:
            # PySpark sends the text of the traceback: the relevant one is the user's function's.
            raise as_sent(failure).with_traceback(None) from None

    def make_operator(self, output: Callable[[Record | Watermark], object]) -> AsyncWaitOperator:
        """Return the operator for one partition."""
        options = replace(self.options, function=self.elements.function(), capacity=self.elements.capacity)
        return AsyncWaitOperator.of(options, output, place=Place(vet=Unreadable(are_decoded=True)))
