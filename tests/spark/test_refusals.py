"""All that can be known at a start is refused there, before anything is claimed, and found by `explain`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from async_op import AsyncDataStream, Job, Step, WaitStrategies
from async_op.spark import UnpicklableFunction
from keygroups import ConfigError, KeyGroupsError, ValueState
from snapshots import IncompatibleSnapshot, SnapshotStore
from tests.snapshot_kit import COUNT, PROFILE, parts
from tests.spark.connect_processes import client, told
from tests.spark.refusals import DOORS, REFUSALS, Counts, Locked, wrong

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSALS)
def test_a_pipeline_refuses_what_it_can_know_before_anything_is_claimed(
    spark: SparkSession, tmp_path: Path, case: str, door: str
) -> None:
    assert list(wrong(spark, tmp_path, case, door)) == []


@pytest.mark.thorough
def test_a_client_of_a_server_is_refused_the_same(connect_url: str, tmp_path: Path) -> None:
    assert told(client("connect_told", connect_url, tmp_path, "refusals")) == {}


TRANSFORMS: dict[str, tuple[type[KeyGroupsError], str, dict[str, Any]]] = {
    "a state": (ConfigError, "AsyncPipeline", {"function": Counts(COUNT)}),
    "no such key column": (ConfigError, "key_by='none'", {"key_by": "none"}),
    "no schema": (ConfigError, "output_schema=None", {"output_schema": None}),
    "no capacity": (ConfigError, "capacity=0", {"capacity": 0}),
    "a lock in the function": (UnpicklableFunction, "held", {"function": Counts(held=threading.Lock())}),
    "a lock in a wait strategy": (
        ConfigError,
        "wait_strategies=",
        {"wait_strategies": WaitStrategies(source=Locked())},
    ),
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_a_transform_is_refused_where_it_is_written(spark: SparkSession, case: str) -> None:
    error, said, options = TRANSFORMS[case]
    fitting: dict[str, Any] = {"function": Counts(), "output_schema": "user bigint"}
    with pytest.raises(error, match=said):
        AsyncDataStream.unordered_wait(spark.range(3), **(fitting | options))


JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a renamed state": (
        "keygroups edit .*/look --rename count.count=count.visits",
        {"function": Counts(ValueState("visits", pa.int64()), PROFILE)},
        {},
    ),
    "a removed state": ("keygroups edit .*/look --drop count.count", {"function": Counts(PROFILE)}, {}),
    "another type of a state": (
        "declare it as it was written",
        {"function": Counts(ValueState("count", pa.string()), PROFILE)},
        {},
    ),
    "another max parallelism": ("--max-parallelism 32", {}, {"max_parallelism": 32}),
    "another hash": ("--hash flink", {}, {"hash": "flink"}),
    "a removed step": ("give the step that replaces it this name", {"name": "other"}, {}),
}


@pytest.mark.parametrize("case", JOBS)
def test_a_job_refuses_what_it_can_know_before_anything_is_claimed(tmp_path: Path, case: str) -> None:
    said, step, options = JOBS[case]
    store = SnapshotStore(tmp_path, "look")
    pending, cuts = store.begin(), parts({"count": {1: 5}})
    empty = parts({})
    written = [pending.write_subtask(cut, step="count") for cut in cuts]
    pending.commit([*(pending.write_subtask(cut, step="source") for cut in empty), *written])
    fitting: dict[str, Any] = {"function": Counts(COUNT, PROFILE), "name": "count", "key_by": abs}
    job = Job([1], [Step(**(fitting | step))], print, snapshots=tmp_path, job_id="look", **options)
    with pytest.raises(IncompatibleSnapshot, match=said):
        asyncio.run(job.run())
    assert store.versions() == [1]
