"""What spares a service reaches the workers, and keeps a pipeline's promises."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import (
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    Budget,
    Cache,
    RateLimit,
    Resilience,
    SingleFlight,
)
from async_op.spark import AsyncPipeline
from keygroups import ConfigError, ValueState
from keygroups.events import Event, listen
from snapshots import SnapshotStore

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)


class Ask(AsyncFunction):
    """Logs each call to a file, with its time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.touch()

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        with self.log.open("a") as log:
            log.write(json.dumps([value["id"], time.monotonic()]) + "\n")
        return [(value["id"], value["id"] % 5)]

    @property
    def calls(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Count(Ask):
    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await super().async_invoke(value, ctx)
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value())]


class Arrows(AsyncBatchFunction):
    arrow = True

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        return values


def test_a_partition_asks_once_for_what_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    function = Ask(tmp_path / "calls")
    same = lambda row: row["id"] % 5  # noqa: E731 - as a user writes it
    resilience = Resilience(cache=Cache(key=same, max_entries=10), single_flight=SingleFlight(same))
    outputs = AsyncDataStream.ordered_wait(
        spark.range(0, 100, 1, 1), function, output_schema="id bigint, rest bigint", resilience=resilience, capacity=3
    )

    assert [row["rest"] for row in outputs.collect()] == [number % 5 for number in range(100)]
    assert len(function.calls) == 5


def test_a_pipeline_shares_its_rate_between_subtasks(spark: SparkSession, tmp_path: Path) -> None:
    function = Count(tmp_path / "calls")
    spark.range(0, 40, 1, 1).selectExpr("id", "concat('u', id) as user").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, user string").parquet(str(tmp_path / "in"))
    rows: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        rows.extend(batch.collect())

    rate = RateLimit(40, burst=2)
    pipeline = AsyncPipeline(
        function,
        key_by="user",
        output_schema="id bigint, count bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="count",
        parallelism=2,
        max_parallelism=8,
        resilience=Resilience(rate_limit=rate),
    )
    query = pipeline.start(stream, sink, checkpoint_location=tmp_path / "checkpoint", trigger={"availableNow": True})
    query.awaitTermination()

    assert sorted((row["id"], row["count"]) for row in rows) == [(number, 1) for number in range(40)]
    # A rate is a matter of time: calls are late as often as the machine is busy, but none is early.
    times = sorted(begun for _, begun in function.calls)
    assert times[-1] - times[0] >= (40 - 2 * rate.share(0, 2).burst - 2) / 40  # type: ignore[operator]


def test_a_budget_counts_over_subtasks_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    function = Ask(tmp_path / "calls")
    budget = Budget(20, "calls_made", cost=lambda row: 1)
    refused, spent = 0, 0.0
    heard: list[Event] = []
    stop = listen(heard.append)
    for start, parallelism in ((0, 1), (8, 4)):
        spark.range(start, start + 8 + start * 4, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
        pipeline = AsyncPipeline(
            function,
            key_by="id",
            output_schema="id bigint, rest bigint",
            snapshots=tmp_path / "snapshots",
            operator_id="ask",
            parallelism=parallelism,
            max_parallelism=8,
            on_error="skip",
            resilience=Resilience(budget=budget),
        )
        location = tmp_path / "checkpoint"
        query = pipeline.start(
            stream, lambda rows, epoch: None, checkpoint_location=location, trigger={"availableNow": True}
        )
        query.awaitTermination()
        refused += sum(epoch.budget_refused for epoch in pipeline.progress())
        spent += sum(epoch.spent["calls_made"] for epoch in pipeline.progress())
    stop()

    assert len(function.calls) == 20
    assert (refused, spent) == (28, 20)
    assert sum(event.attributes["spent_calls_made"] for event in heard if event.name == "epoch") == 20
    store = SnapshotStore(tmp_path / "snapshots", "ask")
    assert sum(store.load(version).manifest.metrics.get("spent_calls_made", 0) for version in store.versions()) == 20


@pytest.mark.thorough
def test_the_only_busy_host_gets_the_budget_of_all(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(100).selectExpr("id", "1 AS user")
    rows.repartition(1).write.parquet(str(tmp_path / "rows"))
    function = Ask(tmp_path / "calls")
    pipeline = AsyncPipeline(
        function,
        key_by="user",
        output_schema="id bigint, rest bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="ask",
        parallelism=4,
        max_parallelism=8,
        on_error="skip",
        resilience=Resilience(budget=Budget(40, "calls_made", cost=lambda row: 1)),
    )
    query = pipeline.start(
        spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows")),
        lambda rows, epoch: None,
        checkpoint_location=tmp_path / "checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()

    assert len(function.calls) == 40
    assert sum(epoch.budget_refused for epoch in pipeline.progress()) == 60


def test_what_makes_no_sense_is_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    cache = Resilience(cache=Cache(key=str, max_entries=1))
    with pytest.raises(ConfigError):
        AsyncDataStream.ordered_wait(spark.range(1), Arrows(), output_schema="id bigint", resilience=cache)
    for_each_partition = Resilience(budget=Budget(1, "calls_made"))
    with pytest.raises(ConfigError, match="each partition"):
        AsyncDataStream.ordered_wait(spark.range(1), repr, output_schema="id string", resilience=for_each_partition)
    with pytest.raises(ConfigError):
        AsyncPipeline(
            Count(tmp_path / "calls"),
            key_by="user",
            output_schema="id bigint",
            snapshots=tmp_path,
            operator_id="count",
            parallelism=1,
            resilience=cache,
        )
