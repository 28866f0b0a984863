"""Which parallelism a run of a pipeline begins with, and what an autoscaler keeps from run to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import Job, RepartitionUndone
from async_op.epochs.position import SourcePosition
from async_op.spark import AsyncPipeline, AutoscalePolicy, EpochMeasurement, ScalingDecision
from async_op.spark.epoch.scaling import NAME, Measured, Scaling, first_decision, measured_in
from keygroups import ConfigError
from snapshots import SnapshotStore
from tests.snapshot_kit import parts

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TARGET = 10.0
LINEAGE = "a"
_stores = count()


class Epochs:
    """Epochs of one micro-batch each, in runs of some length: the manifest and what is beside it, without Spark."""

    def __init__(self, policy: AutoscalePolicy, works: Sequence[float], start: int) -> None:
        self.store = SnapshotStore(f"memory://scaling-{next(_stores)}", "op")
        self.policy = policy
        self.works = iter(works)
        self.start = start

    def run(self, epochs: int) -> list[int]:
        """Run epochs, and return the parallelism of each."""
        latest = self.store.latest()
        scaling = Scaling(self.policy, self.store.folder, LINEAGE)
        measured = measured_in(self.store.folder, LINEAGE)
        parallelism = first_decision(self.policy, measured, latest, self.start).parallelism
        chosen = []
        for work in [work for _, work in zip(range(epochs), self.works, strict=False)]:
            chosen.append(parallelism)
            position = SourcePosition(parallelism=parallelism)
            self.store.write(parts({}, parallelism=parallelism), source_position=position.to_json())
            parallelism = scaling.after(measurement(parallelism, work), parallelism).parallelism
        return chosen


def measurement(parallelism: int, work_seconds: float) -> EpochMeasurement:
    seconds = 1.0 + work_seconds / parallelism
    return EpochMeasurement(
        parallelism=parallelism,
        rows=100,
        seconds=seconds,
        work_seconds=work_seconds,
        back_pressured_seconds=0,
        backlog=0,
    )


works = st.lists(st.floats(0.1, 100), min_size=1, max_size=8)


@pytest.mark.thorough
@given(works, st.lists(st.integers(1, 4), min_size=8, max_size=8), st.integers(1, 16))
def test_many_short_runs_scale_as_one_long_run_does(work: list[float], lengths: list[int], start: int) -> None:
    policy = AutoscalePolicy(1, 12, TARGET)
    long, short = Epochs(policy, work, start), Epochs(policy, work, start)
    assert [one for length in lengths for one in short.run(length)] == long.run(len(work))


def test_runs_of_one_micro_batch_get_more_subtasks() -> None:
    epochs = Epochs(AutoscalePolicy(1, 8, TARGET), [64.0] * 12, 1)
    assert [epochs.run(1)[0] for _ in range(12)] == [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8]


def test_what_a_command_has_chosen_since_counts_within_the_bounds() -> None:
    epochs = Epochs(AutoscalePolicy(1, 8, TARGET), [64.0] * 20, 1)
    epochs.run(3)
    epochs.store.repartition(5)
    assert epochs.run(2) == [5, 5]
    epochs.store.repartition(16)
    assert epochs.run(2) == [8, 8]


@pytest.mark.parametrize("stored", [b"", b"{}", b"[1]", b'{"lineage": "a", "measurements": [{"rows": 1}]}', b"\xff"])
def test_what_cannot_be_read_is_measured_again(stored: bytes) -> None:
    folder = SnapshotStore(f"memory://scaling-{next(_stores)}", "op").folder
    assert measured_in(folder, "a") == Measured()
    folder.replace(NAME, stored)
    assert measured_in(folder, "a") == Measured()


def test_measurements_of_another_lineage_do_not_count() -> None:
    folder = SnapshotStore(f"memory://scaling-{next(_stores)}", "op").folder
    scaling = Scaling(AutoscalePolicy(1, 8, TARGET), folder, "a")
    scaling.after(measurement(2, 1.0), 2)
    assert len(measured_in(folder, "a").measurements) == 1
    assert measured_in(folder, "b") == Measured()


def test_a_storage_that_fails_costs_measurements_and_no_epoch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SnapshotStore(f"memory://scaling-{next(_stores)}", "op").folder

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(folder), "replace", fail)
    Scaling(AutoscalePolicy(1, 8, TARGET), folder, "a").after(measurement(2, 1.0), 2)
    assert "the disk is full" in caplog.text


def double(value: Any) -> Any:
    return (2 * value["id"],)


class Doors:
    """A job and a pipeline that begin, and are given a number of subtasks or none."""

    def __init__(self, spark: SparkSession | None, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.runs = count()

    def begin(self, parallelism: int | None) -> int:
        """Run over some rows, and return the parallelism of the run."""
        if self.spark is None:
            rows = [{"id": n} for n in range(next(self.runs) + 1)]
            job = Job(
                rows[:1],
                double,
                lambda values, epoch: None,
                snapshots=self.folder,
                job_id="op",
                parallelism=parallelism,
            )
            job.run_sync()
            return job.progress().parallelism
        pipeline = self.pipeline(parallelism=parallelism)
        pipeline.run(self.spark.range(1), lambda batch, epoch: None, run_id=f"run-{next(self.runs)}")
        (epoch,) = pipeline.progress()
        return epoch.parallelism

    def pipeline(self, **options: Any) -> AsyncPipeline:
        common = {"key_by": "id", "output_schema": "twice bigint", "snapshots": self.folder, "operator_id": "op"}
        return AsyncPipeline(double, **(common | {"resident": False} | options))


@pytest.mark.spark
def test_without_a_number_a_run_begins_as_the_newest_snapshot_and_a_number_that_undoes_a_repartition_warns(
    spark: SparkSession, tmp_path: Path
) -> None:
    for doors, first in ((Doors(None, tmp_path / "job"), 1), (Doors(spark, tmp_path / "pipeline"), 2)):
        assert doors.begin(None) == first, "a session of two cores"
        store = SnapshotStore(doors.folder, "op")
        store.repartition(3)
        assert doors.begin(None) == 3
        store.repartition(4)
        assert doors.begin(4) == 4
        store.repartition(5)
        with pytest.warns(RepartitionUndone, match="pass parallelism=5 to keep it"):
            assert doors.begin(2) == 2


class Scripted(AutoscalePolicy):
    """Decides by the number of epochs, since how long they take is the machine's matter."""

    def decide(self, history: Sequence[EpochMeasurement], parallelism: int) -> ScalingDecision:
        bounded = super().decide([], parallelism).parallelism
        return ScalingDecision({1: 4, 2: 3}.get(len(history), bounded), f"after {len(history)} epochs")


@pytest.mark.spark
def test_bounds_hold_from_the_first_epoch_on_and_decisions_outlive_a_run(spark: SparkSession, tmp_path: Path) -> None:
    doors = Doors(spark, tmp_path)

    def run(pipeline: AsyncPipeline) -> int:
        pipeline.run(spark.range(1), lambda batch, epoch: None, run_id=f"run-{next(doors.runs)}")
        return pipeline.progress()[-1].parallelism

    policy = Scripted(2, 8, TARGET)
    begins = doors.pipeline(parallelism=20, autoscale=policy).explain().operators["op"]["parallelism"]
    assert begins == "8, after 0 epochs; the autoscaler keeps it between 2 and 8, for epochs of 10 s"
    assert run(doors.pipeline(parallelism=20, autoscale=policy)) == 8
    assert run(doors.pipeline(parallelism=20, autoscale=policy)) == 4, "decided after the last epoch of the run before"
    third = doors.pipeline(parallelism=20, autoscale=policy)
    assert third.explain().operators["op"]["parallelism"].startswith("3, ")
    third.rescale(6)
    assert run(third) == 6, "asked for between two runs"
    with pytest.raises(ConfigError, match="autoscaler keeps it between 2 and 8"):
        third.rescale(20)
    assert (
        doors.pipeline(autoscale=AutoscalePolicy(1, 9, TARGET, dry_run=True)).explain().operators["op"]["parallelism"]
        == "6, as in the newest snapshot; the autoscaler would keep it between 1 and 9, for epochs of 10 s"
    )
    assert SnapshotStore(tmp_path, "op").verify().ok
