"""What workers and hosts run for rows, run in this process: the processor's time of a row without Spark's own."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from async_op import AsyncFunction
from async_op.hosting import messages as say
from async_op.hosting.feeder import Feeder, Waiting
from async_op.hosting.fencing import Fence, NewestManifest
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.thread import HostThread
from async_op.in_flight.idempotency_keys import Identity
from async_op.options import OperatorOptions
from async_op.spark.rows.arrow_outputs import OutputWriter
from async_op.spark.task.epoch_rows import EpochRows
from async_op.spark.task.operator_factory import EpochOperatorFactory
from async_op.spark.transform import PartitionTask, elements_of
from async_op.threads.garbage import rare_collections
from async_op.threads.wait_strategies import WaitStrategies
from snapshots import SnapshotStore


def microseconds_of(work: Callable[[], int]) -> float:
    """Return the processor's time of this process for each of the rows that `work` says it did."""
    before = time.process_time()
    rows = work()
    return 1e6 * (time.process_time() - before) / rows


def transform(
    function: AsyncFunction,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    capacity: int,
    wait_strategies: WaitStrategies | None = None,
) -> int:
    """Run the task of the transform; returns its output rows."""
    elements = elements_of(function, capacity, OutputWriter(schema))
    options = OperatorOptions(function=function, capacity=capacity)
    task = PartitionTask(elements, options, wait_strategies or WaitStrategies())
    return sum(batch.num_rows for batch in task(iter(batches)))


def epoch(options: OperatorOptions, schema: pa.Schema, batches: list[pa.RecordBatch]) -> int:
    """Run one epoch in a host on a thread: feed, settle, cut and write; returns its output rows."""
    factory = EpochOperatorFactory(
        options=options,
        event_time=None,
        parallelism=1,
        max_parallelism=128,
        input_schema=batches[0].schema,
        output_schema=schema,
        identity=Identity("bench"),
    )
    settings = HostSettings(generation="bench", subtask_index=0, restore=None, manifest_id=None)
    hello = say.Hello("bench", Fence(0, 1), NewestManifest(None, None), "job", "epoch")
    with tempfile.TemporaryDirectory() as folder, rare_collections(), HostThread(factory, settings) as host:
        pending = SnapshotStore(Path(folder), "bench").begin()
        feeder = Feeder(host.channel())
        _result(feeder.hello(hello))
        _result(feeder.feed(EpochRows(iter(batches), None)))
        _result(feeder.settle())
        part = _result(feeder.cut(say.Cut(1, target=pickle.dumps(pending))))
        feeder.close()
        return int(part.handle.outputs)


def _result(waiting: Waiting[Any]) -> Any:
    steps: Iterator[None] = iter(waiting)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
