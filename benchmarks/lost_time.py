"""Which counter says for what a job or a pipeline loses time: a full operator, or outputs that nothing takes.

Three workloads each: room for all calls, room for five, and a slow sink. What is measured is shares of a run's time.

    python -m benchmarks.lost_time --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, InvocationContext, Job, Step
from async_op.spark import AsyncPipeline
from benchmarks._session import session

CALL_SECONDS = 0.02
ROWS = 2000
ROWS_A_SECOND = 1000
"""What the source of the job has; a pipeline gets all rows in one micro-batch."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How many calls fit, how many outputs each has, and how long the sink takes for an epoch."""

    name: str
    capacity: int = 1000
    outputs: int = 1
    sink_seconds: float = 0.0


WORKLOADS = (
    Workload(name="enough room"),
    Workload(name="a capacity of 5", capacity=5),
    # A host keeps 100,000 outputs between two epochs: here as many as 500 rows have.
    Workload(name="a slow sink", capacity=20, outputs=200, sink_seconds=5.0),
)


@dataclass(frozen=True)
class Lost:
    """The time of a run in seconds, and the shares of it in which there was no room for calls or for outputs."""

    door: str
    workload: str
    seconds: float
    no_room_for_calls: float
    no_room_for_outputs: float


@dataclass
class Call(AsyncFunction):
    """Waits as for a service."""

    outputs: int

    async def async_invoke(self, value: object, ctx: InvocationContext) -> list[tuple[int]]:
        await asyncio.sleep(CALL_SECONDS)
        return [(1,)] * self.outputs


def of_job(workload: Workload) -> Lost:
    """Run a job: its source pauses while two epochs wait for the sink."""

    async def sink(values: list[object], epoch: int) -> None:
        await asyncio.sleep(workload.sink_seconds)

    def elements() -> Iterator[int]:
        for number in range(ROWS):
            time.sleep(1 / ROWS_A_SECOND)
            yield number

    with tempfile.TemporaryDirectory() as folder:
        step = Step(Call(workload.outputs), "call", capacity=workload.capacity)
        job = Job(elements(), step, sink, snapshots=folder, job_id="lost")
        started = time.perf_counter()
        job.run_sync()
        seconds = time.perf_counter() - started
    now = job.progress()
    return _lost("job", workload, seconds, now.back_pressured_seconds, now.undelivered_seconds)


def of_pipeline(workload: Workload, spark: SparkSession) -> Lost:
    """Run a pipeline: its host takes nothing in once it keeps as many outputs as it may between two epochs."""

    def sink(rows: DataFrame, epoch: int) -> None:
        time.sleep(workload.sink_seconds)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark.range(0, ROWS, 1, 1).write.parquet(str(folder / "rows"))
        pipeline = AsyncPipeline(
            Call(workload.outputs),
            output_schema="one int",
            snapshots=folder / "state",
            operator_id="lost",
            parallelism=1,
            capacity=workload.capacity,
        )
        started = time.perf_counter()
        query = pipeline.start(
            spark.readStream.schema("id bigint").parquet(str(folder / "rows")),
            sink,
            checkpoint_location=folder / "checkpoint",
        )
        while query.isActive and sum(epoch.outputs for epoch in pipeline.progress()) < ROWS * workload.outputs:
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        query.stop()
        epochs = pipeline.progress()
    calls = sum(epoch.back_pressured_milliseconds for epoch in epochs) / 1000
    return _lost("pipeline", workload, seconds, calls, sum(epoch.outbox_full_milliseconds for epoch in epochs) / 1000)


def _lost(door: str, workload: Workload, seconds: float, calls: float, outputs: float) -> Lost:
    return Lost(door, workload.name, seconds, calls / seconds, outputs / seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_time", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each workload (default: 1)")
    arguments = parser.parse_args()
    workloads = WORKLOADS * arguments.repeats
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    found = [of_job(workload) for workload in workloads]
    spark = session(2)
    try:
        found += [of_pipeline(workload, spark) for workload in workloads]
    finally:
        spark.stop()
    if arguments.json:
        json.dump([asdict(one) for one in found], sys.stdout, indent=2)
        return
    print("door | workload | seconds | no room for calls | no room for outputs")
    for one in found:
        shares = f"{100 * one.no_room_for_calls:.0f} % | {100 * one.no_room_for_outputs:.0f} %"
        print(f"{one.door} | {one.workload} | {one.seconds:.1f} | {shares}")


if __name__ == "__main__":
    main()
