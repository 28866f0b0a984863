"""Thousands of small epochs of one query: whether the last are as fast as the first, and what grows meanwhile.

Spark's own source of equal micro-batches gives ten rows each time, as fast as they are taken. Time is a ratio within
the run; memory, files and sockets are those of the driver, its JVM and the hosts.

    python -m benchmarks.many_epochs --epochs 10000 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline, Retention
from benchmarks._session import session
from benchmarks._soak import early_of, late_of
from benchmarks._soak_run import Sampler
from keygroups import ValueState

COUNT = ValueState("count", pa.int64(), default=0)
ROWS, USERS, PARALLELISM = 10, 1_000, 2
WARM_UP_EPOCHS = 50
COMPARED_EPOCHS = 100
SAMPLES = 40


class Count(AsyncFunction):
    """Numbers the rows of each user; returns at once."""

    states = (COUNT,)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        """Count one row."""
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]


class Sink:
    """Notes when each epoch came, and now and then what the processes hold."""

    def __init__(self, epochs: int, sampler: Sampler) -> None:
        self.done = threading.Event()
        self.moments: list[float] = []
        self.samples: list[dict[str, float]] = []
        self._epochs = epochs
        self._sampler = sampler

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Take an epoch without reading it."""
        self.moments.append(time.monotonic())
        if len(self.moments) % max(1, self._epochs // SAMPLES) == 0:
            self.samples.append(self._sampler.sample())
        if len(self.moments) >= self._epochs:
            self.done.set()


def measure(epochs: int, folder: Path) -> dict[str, Any]:
    """Run so many epochs, and compare the first with the last."""
    spark = session(PARALLELISM)
    spark.sparkContext.setLogLevel("ERROR")
    sink = Sink(epochs, Sampler(spark, folder))
    pipeline = AsyncPipeline(
        Count(),
        key_by="user",
        output_schema="id bigint, count bigint",
        snapshots=folder / "snapshots",
        operator_id="many",
        parallelism=PARALLELISM,
        retention=Retention(keep_last=10, min_age=10.0),
    )
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    users = rows.selectExpr("value AS id", f"concat('user ', value % {USERS}) AS user")
    query = pipeline.start(users, sink, checkpoint_location=folder / "checkpoint")
    while query.isActive and not sink.done.wait(1):
        pass
    query.stop()
    spark.stop()
    return figures_of(sink)


def figures_of(sink: Sink) -> dict[str, Any]:
    """Return the ratio of times, and early and late values of what was sampled."""
    pairs = zip(sink.moments, sink.moments[1:], strict=False)
    seconds = [later - earlier for earlier, later in pairs][WARM_UP_EPOCHS:]
    first, last = (statistics.median(part) for part in (seconds[:COMPARED_EPOCHS], seconds[-COMPARED_EPOCHS:]))
    series = {name: [sample[name] for sample in sink.samples] for name in sink.samples[0]}
    return {
        "epochs": len(sink.moments),
        "first, ms": round(1000 * first, 1),
        "last ÷ first": round(last / first, 3),
        "early and late": {name: [round(early_of(one), 1), round(late_of(one), 1)] for name, one in series.items()},
    }


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_epochs", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--epochs", type=int, default=1_000, help="how many (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="has no effect: one run compares its own parts")
    arguments = parser.parse_args()
    least = WARM_UP_EPOCHS + 2 * COMPARED_EPOCHS
    if arguments.epochs < least:
        parser.error(f"at least {least} epochs, so that the first and the last differ")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with tempfile.TemporaryDirectory(prefix="keygroups-epochs-") as folder:
        figures = measure(arguments.epochs, Path(folder))
    if arguments.json:
        print(json.dumps(figures, indent=2, ensure_ascii=False))
        return
    levels = figures.pop("early and late")
    for name, figure in figures.items():
        print(f"{name:30} {figure}")
    for name, (early, late) in levels.items():
        print(f"{name:30} {early} to {late}")


if __name__ == "__main__":
    main()
