"""State without a key on Spark: it goes through cuts, restores and rescales, and functions hear of commits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncDataStream, AsyncFunction
from async_op.functions.runtime import Runtime
from keygroups import ConfigError, OperatorListState, OperatorMapState
from keygroups.codec import unpack
from tests.hosting.kit import wait_until
from tests.quick import first_is_quick
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEEN = OperatorListState("seen")
OPENED = OperatorListState("opened", mode="union")
RULES = OperatorMapState("rules")
ROWS = 10
"""Of each file."""


class Note(AsyncFunction):
    """Notes which rows a subtask has seen, and which subtasks were opened without a snapshot."""

    operator_states = (SEEN, OPENED, RULES)

    def __init__(self, log: Path) -> None:
        self.log = log

    async def open(self, runtime: Runtime) -> None:
        self.seen = runtime.operator_state(SEEN)
        if not runtime.restored:
            runtime.operator_state(OPENED).add(runtime.subtask_index)
            runtime.operator_state(RULES)["factor"] = 10
        self.factor = runtime.operator_state(RULES)["factor"]

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        self.seen.add(value["id"])
        return [(value["id"], self.factor * value["id"])]

    async def snapshot_complete(self, version: int) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps([version, *self.seen.in_snapshot()]) + "\n")


class Give(Note):
    """Keeps the rows itself, and gives them at each cut."""

    async def open(self, runtime: Runtime) -> None:
        await super().open(runtime)
        self.kept = set(self.seen.get())

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        self.kept.add(value["id"])
        return [(value["id"], self.factor * value["id"])]

    def snapshot_state(self, descriptor: OperatorListState) -> list[Any] | None:
        return sorted(self.kept) if descriptor == SEEN else None


class Run(PipelineRun):
    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        self.log = folder / "log"
        self.log.touch()
        (folder / "in").mkdir()
        settings |= {"key_by": "id", "output_schema": "id bigint, product bigint", "operator_id": "note"}
        super().__init__(spark, folder, Note(self.log), "id bigint", **settings)
        for number in range(3):
            path = folder / f"{number}.json"
            path.write_text("".join(json.dumps({"id": number * ROWS + n}) + "\n" for n in range(ROWS)))
            os.utime(path, (number, number))
            path.rename(folder / "in" / path.name)

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.schema(self.schema).options(**options).json(str(self.folder / "in"))

    def sink(self, batch: DataFrame, epoch: int) -> None:
        super().sink(batch, epoch)
        if epoch == 1:
            self.started.rescale(3)

    def heard(self) -> list[tuple[int, set[int]]]:
        """Return the versions that functions heard of, with what these held."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [(version, set(items)) for version, *items in lines]


@pytest.mark.parametrize(
    ("resident", "kind"), first_is_quick([(True, Note), (False, Note), (True, Give), (False, Give)])
)
def test_a_rescale_deals_it_out_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, resident: bool, kind: type[Note]
) -> None:
    run = Run(spark, tmp_path, resident=resident)
    run.function = kind(run.log)
    run.started = run.pipeline(parallelism=2)
    run.start(run.started).awaitTermination()

    rows = sorted(row for epoch in run.delivered.values() for row in epoch)
    assert rows == [(n, 10 * n) for n in range(3 * ROWS)]
    snapshot = run.store.load()
    assert snapshot.parallelism == 3
    assert run.store.load(1).parallelism == 2
    shares = [snapshot.restore(n) for n in range(3)]
    assert sorted(item for share in shares for item in share.operator_state("seen")) == list(range(3 * ROWS))  # type: ignore[type-var]
    assert [share.operator_state("opened") for share in shares] == [[0, 1]] * 3
    assert [share.operator_state("rules") for share in shares] == [[("factor", 10)]] * 3

    # In its task an operator ends with its cut: the next one hears of it.
    last = snapshot.version if resident else snapshot.version - 1
    wait_until(lambda: len([version for version, _ in run.heard() if version == last]) == 3)
    for version in {version for version, _ in run.heard()}:
        heard = set[int]().union(*(items for one, items in run.heard() if one == version))
        stored = set(map(unpack, run.store.load(version).to_arrow("seen").column("item").to_pylist()))
        assert heard == stored if version == last else heard <= stored


def test_the_stateless_transform_refuses_it(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"use async_op\.spark\.AsyncPipeline"):
        AsyncDataStream.unordered_wait(spark.range(3), Note(tmp_path), output_schema="id bigint, product bigint")
