"""The autoscaler: a policy against a model of load, and a pipeline that follows one."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.spark import AsyncPipeline, AutoscalePolicy, EpochMeasurement, ScalingDecision
from async_op.spark.autoscale import STEP_MAX, UTILISATION
from keygroups import ConfigError
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TARGET = 10.0
NOISE = 0.1
"""Within this share of what is true lies what is measured; the policy leaves room for twice as much."""


class Load:
    """Epochs of a pipeline: some seconds that nobody shares, and work that subtasks share, measured with noise."""

    def __init__(self, policy: AutoscalePolicy, unshared_seconds: float, seed: int, parallelism: int) -> None:
        self.policy = policy
        self.unshared_seconds = unshared_seconds
        self.random = random.Random(seed)
        self.parallelism = parallelism
        self.history: list[EpochMeasurement] = []
        self.chosen: list[int] = []

    def run(self, work_seconds: float, epochs: int) -> list[int]:
        """Run epochs; returns the parallelism that each of them led to."""
        for _ in range(epochs):
            work = work_seconds * self.random.uniform(1 - NOISE, 1 + NOISE)
            unshared = self.unshared_seconds * self.random.uniform(1 - NOISE, 1 + NOISE)
            self.history.append(
                EpochMeasurement(
                    parallelism=self.parallelism,
                    rows=1000,
                    seconds=unshared + work / self.parallelism,
                    work_seconds=work,
                    back_pressured_seconds=work / 2,
                    backlog=0,
                )
            )
            decision = self.policy.decide(self.history, self.parallelism)
            assert self.policy.min <= decision.parallelism <= self.policy.max
            assert decision.parallelism <= STEP_MAX * self.parallelism or self.parallelism < self.policy.min
            assert decision.reason
            self.parallelism = decision.parallelism
            self.chosen.append(self.parallelism)
        return self.chosen[-epochs:]

    def seconds(self, work_seconds: float, parallelism: int) -> float:
        return self.unshared_seconds + work_seconds / parallelism


def assert_it_never_turns_round_twice(chosen: list[int]) -> None:
    """Under a steady load subtasks may be added and then, if they were too many, taken away; never added after that."""
    ups = [index for index, (old, new) in enumerate(pairwise(chosen)) if new > old]
    downs = [index for index, (old, new) in enumerate(pairwise(chosen)) if new < old]
    assert not ups or not downs or max(ups) < min(downs), chosen


works = st.floats(0.1, 400)
seeds = st.integers(0, 2**32)


@given(works, st.floats(0, 0.5 * TARGET), seeds, st.integers(1, 64))
@example(400.0, 5.0, 1, 1)
def test_under_a_steady_load_it_converges_and_stays(work: float, unshared: float, seed: int, start: int) -> None:
    load = Load(AutoscalePolicy(1, 64, TARGET), unshared, seed, start)
    load.run(work, 40)
    settled = load.run(work, 100)
    # Where the truth lies a little below the target, noise may lift an epoch above it once; there is no way back then.
    assert_it_never_turns_round_twice(settled)
    assert len(set(settled)) <= 1 + math.ceil(NOISE * 64)
    final = settled[-1]
    if load.seconds(work, 64) <= UTILISATION * TARGET * (1 - NOISE):
        assert load.seconds(work, final) <= TARGET
    if final > 1:
        assert load.seconds(work, final - 1) > UTILISATION * TARGET * (1 - 2 * NOISE)


@given(st.lists(st.tuples(works, st.integers(1, 30)), min_size=1, max_size=6), seeds)
def test_it_does_not_flap_whatever_came_before(phases: list[tuple[float, int]], seed: int) -> None:
    load = Load(AutoscalePolicy(1, 64, TARGET), 1.0, seed, 8)
    for work, epochs in phases:
        chosen = [load.parallelism, *load.run(work, epochs)]
        assert_it_never_turns_round_twice(chosen)


@given(works, works, seeds)
def test_it_follows_the_load_up_and_down(low: float, high: float, seed: int) -> None:
    load = Load(AutoscalePolicy(2, 64, TARGET), 0.5, seed, 2)
    for work in (low, high, low):
        load.run(work, 60)
        assert load.seconds(work, load.parallelism) <= TARGET
        least = work / (UTILISATION * TARGET * (1 - 2 * NOISE) - 0.5)
        assert load.parallelism <= max(2, math.ceil(least))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 64), works)
def test_the_bounds_hold_from_the_first_decision_on(least: int, more: int, start: int, work: float) -> None:
    policy = AutoscalePolicy(least, least + more, TARGET)
    assert least <= policy.decide([], start).parallelism <= least + more
    Load(policy, 1.0, 1, start).run(work, 30)


def measured(**values: Any) -> EpochMeasurement:
    settings = {"parallelism": 2, "rows": 100, "work_seconds": 4.0, "back_pressured_seconds": 0.0, "backlog": 0}
    return EpochMeasurement(**({"seconds": 3.0} | settings | values))


def test_subtasks_are_not_added_for_what_they_do_not_share() -> None:
    slow = measured(seconds=30.0, work_seconds=4.0)
    decision = AutoscalePolicy(1, 64, TARGET).decide([slow] * 9, 2)
    assert decision.parallelism == 2
    assert "more subtasks would not help, 28.0 s of it are not shared" in decision.reason


def test_a_backlog_counts_as_work() -> None:
    behind = measured(seconds=9.0, work_seconds=16.0, backlog=100, back_pressured_seconds=12.0)
    decision = AutoscalePolicy(1, 64, TARGET).decide([behind] * 3, 2)
    assert decision.parallelism == 4
    assert "75% of the work back-pressured, 100 more in flight" in decision.reason


def test_one_slow_epoch_is_no_reason() -> None:
    policy = AutoscalePolicy(1, 64, TARGET)
    slow = measured(seconds=30.0, work_seconds=56.0)
    assert policy.decide([measured(), measured(), slow], 2).parallelism == 2
    assert policy.decide([measured(parallelism=4), slow, slow], 2).parallelism == 2, "the first loads state"


@pytest.mark.parametrize(
    ("least", "most", "target"),
    [
        (0, 4, 1.0),
        (5, 4, 1.0),
        (1.5, 4, 1.0),
        (True, 4, 1.0),
        ("1", 4, 1.0),
        (1, 40_000, 1.0),
        (1, 4.0, 1.0),
        (1, 4, 0.0),
        (1, 4, "10"),
        (1, 4, math.inf),
        (1, 4, timedelta(0)),
    ],
)
def test_what_can_never_work_is_refused(least: Any, most: Any, target: Any) -> None:
    with pytest.raises(ConfigError):
        AutoscalePolicy(least, most, target)


def test_the_target_may_be_a_timedelta() -> None:
    history = [measured(seconds=30.0, work_seconds=56.0)] * 3
    decisions = [AutoscalePolicy(1, 64, target).decide(history, 2) for target in (TARGET, timedelta(seconds=TARGET))]
    assert decisions[0] == decisions[1]
    assert decisions[0].parallelism > 2


class Slow(AsyncFunction):
    """Takes 20 ms for each row."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        await asyncio.sleep(0.02)
        return [(value["id"],)]


EPOCHS, ROWS = 4, 40


class Scripted(AutoscalePolicy):
    """Decides by the number of epochs, since how long they take is the machine's matter."""

    def decide(self, history: Sequence[EpochMeasurement], parallelism: int) -> ScalingDecision:
        super().decide(history, parallelism)
        return ScalingDecision({1: 4, 2: 3}.get(len(history), parallelism), f"after {len(history)} epochs")


@pytest.mark.parametrize(("dry_run", "followed"), first_is_quick([(False, [2, 4, 3, 3]), (True, [2, 2, 2, 2])]))
def test_a_pipeline_follows_its_policy_and_says_why(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, dry_run: bool, followed: list[int]
) -> None:
    def write_files(numbers: range) -> None:
        for n in numbers:
            spark.range(n * ROWS, (n + 1) * ROWS).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    write_files(range(EPOCHS))
    pipeline = AsyncPipeline(
        Slow(),
        key_by="id",
        output_schema="id bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="slow",
        barrier_timeout=None,
        parallelism=2,
        max_parallelism=16,
        capacity=1,
        autoscale=Scripted(1, 4, TARGET, dry_run),
    )
    rows: dict[int, list[int]] = {}

    def sink(batch: DataFrame, epoch: int) -> None:
        rows[epoch] = [row["id"] for row in batch.collect()]

    def run() -> None:
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        query = pipeline.start(
            stream, sink, checkpoint_location=tmp_path / "checkpoint", trigger={"availableNow": True}
        )
        query.awaitTermination()

    with caplog.at_level("INFO", "async_op.spark.epoch"):
        run()
    assert sorted(one for found in rows.values() for one in found) == list(range(EPOCHS * ROWS))
    epochs = pipeline.progress()
    assert [epoch.parallelism for epoch in epochs] == followed
    assert [epoch.scaling.reason for epoch in epochs if epoch.scaling] == [f"after {n} epochs" for n in range(1, 5)]
    assert all(epoch.work_milliseconds > 0 and epoch.back_pressured_milliseconds > 0 for epoch in epochs)
    messages = [record.getMessage() for record in caplog.records]
    note = " (dry run)" if dry_run else ""
    assert f"parallelism of slow: 2 to 4{note}, because after 1 epochs" in messages
    logged = [json.loads(message.partition(": ")[2]) for message in messages if message.startswith("epoch of slow")]
    assert [one["scaling"]["parallelism"] for one in logged][:2] == [4, 3]
    write_files(range(EPOCHS, EPOCHS + 1))
    run()
    assert [epoch.parallelism for epoch in pipeline.progress()] == followed[-1:], "where the last run stood"


def test_a_policy_above_the_key_groups_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="parallelism"):
        AsyncPipeline(
            Slow(),
            key_by="id",
            output_schema="id bigint",
            snapshots=tmp_path,
            operator_id="slow",
            parallelism=2,
            max_parallelism=16,
            autoscale=AutoscalePolicy(1, 17, TARGET),
        )
