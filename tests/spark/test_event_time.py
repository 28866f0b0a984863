"""Event time in a streaming pipeline: timestamps, watermarks and timers, over replays, restarts and rescales."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction, ElementFailed
from async_op.epochs.position import EpochTimes, SubtaskTimes
from async_op.spark import AsyncPipeline
from keygroups import ConfigError, ValueState
from tests.spark.runs import PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
START = 1_700_000_000_000
DELAY = 1_000
GAP = 1_500
USERS = 7

Click = tuple[str, int | None]
"""A user and a time in milliseconds."""


class Sessions(AsyncFunction):
    """Counts the clicks of a user until the watermark is `GAP` past the last one.

    A timer of the user `slow` takes until `released` exists, a row whose id is `wrong` fails.
    """

    states = (COUNT,)

    def __init__(self, released: Path, slow: str | None = None, wrong: int | None = None) -> None:
        self.released = released
        self.slow = slow
        self.wrong = wrong

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        if value["id"] == self.wrong:
            raise ValueError("the service said no")
        if ctx.timestamp is None:
            return [(value["user"], None, None)]
        assert ctx.timestamp == int(value["at"].timestamp() * 1000)
        for before in ctx.timers.timestamps(event_time=True):
            ctx.timers.delete(before, event_time=True)
        ctx.timers.register(ctx.timestamp + GAP, event_time=True)
        ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
        return []

    async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        while ctx.key == self.slow and not self.released.exists():
            await asyncio.sleep(0.01)
        count = ctx.state(COUNT).value()
        ctx.state(COUNT).clear()
        return [(ctx.key, timestamp, count)]


class Model:
    """What the pipeline has to do with one file of clicks after the other."""

    def __init__(self) -> None:
        self.watermark = self.next = -1
        self.sessions: dict[str, tuple[int, int]] = {}

    def epoch(self, clicks: Iterable[Click]) -> list[tuple[Any, ...]]:
        """Return the outputs of an epoch."""
        is_new, self.watermark = self.next > self.watermark, self.next
        due = [user for user, (_, timer) in self.sessions.items() if is_new and timer <= self.watermark]
        outputs: list[tuple[Any, ...]] = []
        for user in due:
            count, timer = self.sessions.pop(user)
            outputs.append((user, timer, count))
        for user, at in clicks:
            if at is None:
                outputs.append((user, None, None))
            else:
                self.sessions[user] = self.sessions.get(user, (0, 0))[0] + 1, at + GAP
                self.next = max(self.next, at - DELAY)
        return sorted(outputs, key=str)


def clicks_of(file: int) -> list[Click]:
    """Return clicks of four seconds, four of one user after four of another; those of every fifth file are late."""
    base = START + 4_000 * (file if file % 5 != 4 else file - 3)
    return [("u8", None), *((f"u{(n // 4 - file) % USERS}", base + 200 * n) for n in range(20))]


class Run(PipelineRun):
    """Counts the clicks of sessions, file by file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(
            spark,
            folder,
            Sessions(folder / "released"),
            "user string, at timestamp, id bigint",
            key_by="user",
            output_schema="user string, timer bigint, clicks bigint",
            operator_id="sessions",
            event_time="at",
        )
        self.files = 0

    def write_input(self, files: int) -> None:
        for file in range(self.files, self.files + files):
            rows = [(user, at, 100 * file + n) for n, (user, at) in enumerate(clicks_of(file))]
            frame = self.spark.createDataFrame(rows, "user string, ms bigint, id bigint")
            self.write_file(frame.selectExpr("user", "timestamp_millis(ms) as at", "id"))
        self.files += files

    def stream(self, **options: Any) -> DataFrame:
        return super().stream(**options).withWatermark("at", f"{DELAY} milliseconds")

    def epochs(self) -> list[list[tuple[Any, ...]]]:
        return [rows for _, rows in sorted(self.delivered.items())]

    def assert_no_watermark_goes_back(self) -> None:
        manifests = [self.store.load(version).manifest for version in self.store.versions()]
        emitted = [min(-1 if one is None else one for one in manifest.watermarks) for manifest in manifests]
        assert emitted == sorted(emitted)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


def test_sessions_end_in_the_epoch_whose_watermark_passes_them(run: Run) -> None:
    run.write_input(4)
    pipeline = run.run()
    model = Model()
    expected = [model.epoch(clicks_of(file)) for file in range(4)] + [model.epoch([])]
    assert run.epochs() == expected
    assert all(len(rows) > 1 for rows in expected[1:4])
    assert expected[-1]
    epochs = pipeline.progress()
    assert [epoch.kind for epoch in epochs] == ["batch"] * 4 + ["drain"]
    newest = [max(at for file in range(n) for _, at in clicks_of(file) if at is not None) - DELAY for n in range(1, 5)]
    assert [epoch.watermark for epoch in epochs] == [None, *newest]
    latest = run.store.latest()
    assert latest is not None
    assert set(latest.manifest.watermarks) == {newest[-1]}
    kept = latest.to_arrow("keygroups_event_time_timers").column("map_key").to_pylist()
    assert sorted(kept) == sorted(timer for _, timer in model.sessions.values())


def test_a_late_row_is_called_and_its_timer_fires_with_the_next_watermark(run: Run) -> None:
    files = 6
    run.write_input(files)
    run.run()
    model = Model()
    expected = [model.epoch(clicks_of(file)) for file in range(files)] + [model.epoch([])]
    assert run.epochs() == expected
    newest_before = max(at for file in range(4) for _, at in clicks_of(file) if at is not None)
    assert all(at < newest_before - DELAY for _, at in clicks_of(4) if at is not None), "all are late"
    ended = sum(count for rows in run.epochs() for _, _, count in rows if count)
    assert ended + sum(count for count, _ in model.sessions.values()) == 20 * files, "none is dropped"


@pytest.mark.thorough
def test_a_replay_a_restart_and_a_rescale_see_the_same_watermarks(run: Run) -> None:
    run.write_input(3)
    run.function.wrong = 205  # in the third batch, which is run again
    with pytest.raises(ElementFailed):
        run.run()
    run.function.wrong = None
    run.fail_sink_at = 4  # version 3 is the restarted pipeline's claim
    with pytest.raises(Exception, match="the sink is down"):
        run.run(parallelism=3)
    run.run(parallelism=3)
    run.write_input(3)
    run.run(parallelism=1)

    model = Model()
    expected = [model.epoch(clicks_of(file)) for file in range(3)] + [model.epoch([])]
    expected += [model.epoch(clicks_of(file)) for file in range(3, 6)] + [model.epoch([])]
    # An idle query may have fired what was due in an epoch of its own, before a batch that was to come.
    assert Counter(chain(*run.epochs())) == Counter(chain(*expected))
    run.assert_no_watermark_goes_back()


@pytest.mark.thorough
def test_a_timer_that_is_carried_over_holds_the_watermark_behind_it_back_over_a_rescale(run: Run) -> None:
    run.write_input(3)
    run.function.slow = "u0"
    run.fail_sink_at = 2
    options: dict[str, Any] = {"barrier_timeout": 0.2, "mode": "key_ordered"}
    with pytest.raises(Exception, match="the sink is down"):
        run.run(**options)
    before = run.store.load(2).manifest
    held = [one.watermark for one in before.channels]
    assert None in held
    assert len(set(held)) == 2
    run.function.released.touch()
    run.run(**options, parallelism=3)
    rows = [row for epoch in run.epochs() for row in epoch]
    latest = run.store.latest()
    assert latest is not None
    counts = latest.to_arrow("count").column("value").to_pylist()
    clicks = sum(at is not None for file in range(3) for _, at in clicks_of(file))
    assert sum(clicks or 0 for _, _, clicks in rows) + sum(counts) == clicks
    assert len(set(latest.manifest.watermarks)) == 1
    run.assert_no_watermark_goes_back()


class Later(AsyncFunction):
    """Answers a second after the row came, and has a timer in the far future, too."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        ctx.timers.register(ctx.timers.processing_time + 1000)
        ctx.timers.register(10**15)
        return []

    async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
        return [{"user": ctx.key}]


def test_a_timer_of_the_clock_that_is_due_begins_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("select 'ann' as user").write.parquet(str(tmp_path / "in"))
    users: list[str] = []
    fired = threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        users.extend(row["user"] for row in batch.collect())
        if users:
            fired.set()

    pipeline = AsyncPipeline(
        Later(),
        key_by="user",
        output_schema="user string",
        snapshots=tmp_path / "snapshots",
        operator_id="later",
        barrier_timeout=None,
        parallelism=2,
    )
    query = pipeline.start(
        spark.readStream.schema("user string").parquet(str(tmp_path / "in")),
        sink,
        checkpoint_location=tmp_path / "checkpoint",
    )
    try:
        assert fired.wait(600)
    finally:
        query.stop()
    assert users == ["ann"]
    kinds = [epoch.kind for epoch in pipeline.progress()]
    assert kinds in (["batch"], ["batch", "drain"])


def test_event_time_needs_a_column_with_a_watermark(run: Run, tmp_path: Path) -> None:
    run.write_input(1)
    stream = run.spark.readStream.schema(run.schema).parquet(str(tmp_path / "in"))
    for column, reason in (("at", "withWatermark"), ("when", "the columns are")):
        pipeline = AsyncPipeline(
            run.function,
            key_by="user",
            output_schema="user string",
            snapshots=tmp_path / "snapshots",
            operator_id="refused",
            parallelism=1,
            event_time=column,
        )
        with pytest.raises(ConfigError, match=reason):
            pipeline.start(stream, run.sink, checkpoint_location=tmp_path / "refused")


def test_event_time_of_a_bounded_run_is_a_column_of_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = AsyncPipeline(
        Sessions(tmp_path / "released"),
        key_by="user",
        output_schema="user string, clicks bigint, gap bigint",
        snapshots=tmp_path / "snapshots",
        operator_id="refused",
        parallelism=1,
        event_time="at",
    )
    frame = spark.createDataFrame([("ann", "2026-01-02")], "user string, at string")
    for wrong in (frame, frame.selectExpr("user", "cast(at as date) as at")):
        with pytest.raises(ConfigError, match="cast it to timestamp"):
            pipeline.run(wrong, print, run_id="refused")


SUBTASKS = st.lists(st.builds(SubtaskTimes, *[st.none() | st.integers(0, 100)] * 3), max_size=4)


@given(st.lists(st.tuples(SUBTASKS, st.integers(0, 50)), max_size=8))
def test_watermarks_only_go_forward_also_with_another_delay(epochs: list[tuple[list[SubtaskTimes], int]]) -> None:
    times = EpochTimes()
    given_out = []
    for subtasks, delay in epochs:
        given_out += [] if times.new_watermark is None else [times.new_watermark]
        times = times.after(subtasks, delay)
        assert times.watermark == (given_out[-1] if given_out else None)
    assert given_out == sorted(set(given_out))
