"""Exactly once: the pipeline is stopped at each point of an epoch, and started again.

Every case is compared with what a run without faults gives: rows, state, calls and their idempotency keys. A seeded
sample runs by default; `--kills all` runs every case.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from async_op.spark.epoch import runner as runners
from tests.quick import first_is_quick
from tests.spark.crash_points import POINTS, CrashPoints
from tests.spark.exactly_once import World

WORKER_POINTS = ["in a call", "in a call made again", "before a subtask writes"]


@dataclass(frozen=True)
class Case:
    """Where the pipeline is stopped, in which epoch, at which parallelism it starts again, and where operators live."""

    point: str
    kind: str
    restart_parallelism: int
    rescales: bool
    resident: bool

    def __str__(self) -> str:
        rescales, resident = "-rescale" * self.rescales, "-resident" * self.resident
        return f"{self.point}-{self.kind}-{self.restart_parallelism}{rescales}{resident}"


def all_cases() -> list[Case]:
    kinds = [(point, kind, False) for point in POINTS for kind in ("first", "batch", "drain")]
    kinds += [(point, kind, True) for point, kind, _ in kinds]
    # Where a task's process is killed, Spark runs the task again; that of a resident operator has tests of its own.
    kinds += [(point, "batch", False) for point in WORKER_POINTS]
    return [
        Case(point, kind, parallelism, rescales, resident)
        for point, kind, resident in kinds
        for parallelism in (2, 3)
        for rescales in (False, True)
    ]


SAMPLE = 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = all_cases()
        if metafunc.config.getoption("kills") != "all":
            cases = random.Random(metafunc.config.getoption("kills")).sample(cases, SAMPLE)
        metafunc.parametrize("case", cases, ids=str)


class Crash(RuntimeError):
    """The driver is gone."""


@pytest.fixture
def resident(request: pytest.FixtureRequest) -> bool:
    """Whether operators are resident: as the case says, if there is one."""
    case: Case | None = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    return case is not None and case.resident


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, resident: bool) -> Iterator[World]:
    world = World(tmp_path, resident=resident)
    world.prepare()
    yield world
    for query in spark.streams.active:
        query.stop()


def stop(runner: runners.EpochRunner) -> None:
    raise Crash(f"after epoch {runner.epoch}")


@pytest.mark.thorough
def test_a_pipeline_that_is_stopped_anywhere_continues_exactly_once(
    spark: SparkSession, world: World, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = CrashPoints(case.point, case.kind, stop, monkeypatch.setattr)
    world.function.point = case.point if case.point in WORKER_POINTS else None
    with pytest.raises(Exception, match=r".") as stopped:
        pipeline = world.run(spark, 2, rescales=case.rescales, in_sink=fault.in_sink)
        pytest.fail(f"it was not stopped: {pipeline.progress()}")
    assert fault.happened or world.function.killed.exists(), stopped.value
    committed, calls = world.committed_rows(), len(world.calls())
    world.run(spark, case.restart_parallelism, rescales=case.rescales)
    world.assert_exact()
    world.assert_calls(committed, calls)


@pytest.mark.parametrize("resident", first_is_quick([False, True]))
def test_of_two_attempts_at_a_subtask_one_counts(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    run_in_partitions = runners.run_in_partitions

    def run_twice(*arguments: Any) -> Any:
        first, second = (sorted(run_in_partitions(*arguments)) for _ in range(2))
        return [draw.choice(pair) for pair in zip(first, second, strict=True)]

    monkeypatch.setattr(runners, "run_in_partitions", run_twice)
    world.run(spark, 2, rescales=True)
    world.assert_exact()
    world.assert_calls(set(), 0)


@pytest.mark.filterwarnings("ignore::async_op.RepartitionUndone")
def test_nothing_older_than_the_newest_version_is_needed(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected down to one version after every delivery, and before Spark replays the batch of an epoch.

    The pipeline stops once in each sink, and once in the drain after the last batch, when Spark has already its own
    commit; each time the claim of the restart is a newer version than the epoch that is delivered again.
    """
    stops = iter([True, False, True, False, True, True, False] + [False] * 20)

    def in_sink(is_written: bool) -> None:
        world.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
        if is_written and next(stops):
            raise Crash

    for _ in range(10):
        try:
            world.run(spark, 2, in_sink=in_sink)
        except Exception:  # noqa: BLE001 - ours, as Spark tells it
            world.store.repartition(3)
            world.store.compact()
            world.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
            assert len(world.store.versions()) == 1
        else:
            break
    assert next(stops) is False
    world.assert_exact()
    world.assert_calls(set(), 0)


def test_a_batch_that_a_drain_has_followed_is_not_delivered_again(spark: SparkSession, world: World) -> None:
    world.run(spark, 2)
    position = world.store.latest().source_position  # type: ignore[union-attr]
    assert position is not None
    assert position["kind"] == "drain"
    delivered = sorted((world.folder / "table").iterdir())
    for table in delivered:
        table.unlink()
    (commit,) = (world.folder / "checkpoint" / "commits").glob(f"{position['batch_id']}")
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink()
    world.store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    calls = len(world.calls())
    world.run(spark, 3)
    assert len(world.calls()) == calls
    assert not list((world.folder / "table").iterdir())
