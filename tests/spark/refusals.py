"""What pipelines refuse: with which error, at which moment, and whether `explain` finds it; for all doors of Spark."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, FixedDelayRetry, WaitStrategies
from async_op.connectors import KafkaSink
from async_op.spark import AsyncPipeline
from keygroups import ValueState
from snapshots import SnapshotStore
from tests.snapshot_kit import COUNT, PROFILE, parts

SCHEMA = "user bigint, name string, tags map<string, int>, at timestamp"

KEYS = {"keys": [{"column": "user", "type": "bigint"}]}


class Counts(AsyncFunction):
    def __init__(self, *states: ValueState, operator_states: Any = (), held: object = None) -> None:
        self.states, self.operator_states, self.held = states, operator_states, held

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [(value["user"],)]


class Locked:
    """A wait strategy, and what decides about retries, in whose way a lock is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def idle(self, idle_count: int, arrival: Any) -> int:
        return idle_count

    def is_transient(self, error: Exception) -> bool:
        return True


@dataclass(frozen=True)
class Refusal:
    """What is refused: the options of the pipeline that differ from one that fits, and what is said about them."""

    error: str
    said: str
    options: dict[str, Any] = field(default_factory=dict)
    sink: Any = print
    moment: Literal["made", "started"] = "started"
    is_explained: bool = False


REFUSALS: dict[str, Callable[[], Refusal]] = {
    "a renamed state": lambda: Refusal(
        "IncompatibleSnapshot",
        "keygroups edit .*/look --rename count=visits",
        {"function": Counts(ValueState("visits", pa.int64()), PROFILE)},
        is_explained=True,
    ),
    "a removed state": lambda: Refusal(
        "IncompatibleSnapshot", "keygroups edit .*/look --drop count", {"function": Counts(PROFILE)}, is_explained=True
    ),
    "another type of a state": lambda: Refusal(
        "IncompatibleSnapshot",
        "declare it as it was written",
        {"function": Counts(ValueState("count", pa.string()), PROFILE)},
        is_explained=True,
    ),
    "another max parallelism": lambda: Refusal(
        "IncompatibleSnapshot", "repartition .*--max-parallelism 32", {"max_parallelism": 32}, is_explained=True
    ),
    "another hash": lambda: Refusal(
        "IncompatibleSnapshot", "repartition .*--hash flink", {"hash": "flink"}, is_explained=True
    ),
    "other key columns": lambda: Refusal(
        "IncompatibleSnapshot", "state of other keys", {"key_by": "name"}, is_explained=True
    ),
    "no such key column": lambda: Refusal("ConfigError", "key_by='none'", {"key_by": "none"}, is_explained=True),
    "a key without a hash": lambda: Refusal("UnsupportedKey", "map", {"key_by": "tags"}, is_explained=True),
    "no such column to sort by": lambda: Refusal("ConfigError", "order_by", {"order_by": "none"}, is_explained=True),
    "a lock in the function": lambda: Refusal(
        "UnpicklableFunction", "held", {"function": Counts(COUNT, PROFILE, held=threading.Lock())}, is_explained=True
    ),
    "a lock in a wait strategy": lambda: Refusal(
        "ConfigError",
        "wait_strategies=.* cannot be sent to the workers",
        {"wait_strategies": WaitStrategies(source=Locked())},
        is_explained=True,
    ),
    "a lock in a retry policy": lambda: Refusal(
        "ConfigError",
        "retry=.* cannot be sent to the workers",
        {"retry": FixedDelayRetry(2, 0.1, retry_on=Locked().is_transient)},
        is_explained=True,
    ),
    "no sink": lambda: Refusal("ConfigError", "sink=3", sink=3),
    "a sink without its columns": lambda: Refusal(
        "UnwritableValue", "value", sink=KafkaSink("topic", "look", {"bootstrap.servers": "none:1"})
    ),
    "no parallelism": lambda: Refusal("ConfigError", "parallelism=0", {"parallelism": 0}, moment="made"),
    "no key for its state": lambda: Refusal("ConfigError", "key_by=None", {"key_by": None}, moment="made"),
    "no capacity": lambda: Refusal("ConfigError", "capacity=0", {"capacity": 0}, moment="made"),
}
"""Made anew for each door: a lock cannot be copied, and a sink may be used once."""

FITTING: dict[str, Any] = {
    "function": Counts(COUNT, PROFILE),
    "key_by": "user",
    "output_schema": "user bigint",
    "operator_id": "look",
    "parallelism": 2,
    "max_parallelism": 16,
}

DOORS: dict[str, Callable[[AsyncPipeline, DataFrame, Any, Path], object]] = {
    "start": lambda pipeline, frame, sink, folder: pipeline.start(
        frame, sink, checkpoint_location=folder / "checkpoint"
    ),
    "run": lambda pipeline, frame, sink, folder: pipeline.run(frame, sink, run_id="r"),
}


def store_with_state(folder: Path) -> SnapshotStore:
    """Return the store of an operator that has counted."""
    store = SnapshotStore(folder / "snapshots", "look")
    pending = store.begin()
    pending.commit([pending.write_subtask(one) for one in parts({"count": {1: 5}})], source_position=KEYS)
    return store


def frame_for(door: str, spark: SparkSession, folder: Path) -> DataFrame:
    (folder / "in").mkdir(exist_ok=True)
    reader = (spark.readStream if door == "start" else spark.read).schema(SCHEMA)
    return reader.parquet(str(folder / "in"))


def wrong(spark: SparkSession, folder: Path, case: str, door: str) -> Iterator[str]:
    """Yield what is not as the table says."""
    store, it = store_with_state(folder), REFUSALS[case]()
    moment, pipeline = "made", None
    try:
        pipeline = AsyncPipeline(snapshots=folder / "snapshots", **(FITTING | it.options))
        moment = "started"
        DOORS[door](pipeline, frame_for(door, spark, folder), it.sink, folder)
    except Exception as error:  # noqa: BLE001 - it is looked at
        if type(error).__name__ != it.error or not re.search(it.said, str(error)) or moment != it.moment:
            yield f"{type(error).__name__} when {moment}: {error}"
    else:
        yield "it is not refused"
    if store.versions() != [1]:
        yield f"versions {store.versions()}: something was claimed"
    if pipeline is not None:
        found = [
            one for one in pipeline.explain(frame_for(door, spark, folder)).findings if "start refuses" in one.problem
        ]
        if bool(found) != it.is_explained or any(not re.search(it.said, one.advice) for one in found):
            yield f"explain finds {found}"
