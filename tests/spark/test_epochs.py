"""Epochs one by one: without rows, with a sink that fails, with calls that are taken over; and how Spark names them."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from async_op import AsyncFunction
from async_op.epochs.position import EpochRef
from async_op.spark import AsyncPipeline, PipelineQuery, Retention
from keygroups import ValueState
from tests.quick import first_is_quick
from tests.spark.runs import Gate, PipelineRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
ROWS = 12
"""Of each file."""


class Count(AsyncFunction):
    """Numbers the rows of each key. Calls are logged; those of a row whose id is in `slow` outlast its file's epoch."""

    states = (COUNT,)

    def __init__(self, log: Path, gate: Gate) -> None:
        self.log = log
        self.gate = gate
        self.slow: frozenset[int] = frozenset()
        self.seconds = 0.0
        self.more: tuple[str, ...] = ()

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        with self.log.open("a") as log:
            log.write(json.dumps(value["id"]) + "\n")
        if value["id"] in self.slow:
            await self.gate.passed(1 + value["id"] // ROWS)
            await asyncio.sleep(self.seconds)
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], count.value(), *self.more)]


class Run(PipelineRun):
    """A run whose sink records what it was given, in which order, once it has returned."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.log = folder / "calls"
        self.log.touch()
        (folder / "in").mkdir()
        self.count = Count(self.log, Gate(folder / "sinks"))
        self.returned: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.columns: list[list[str]] = []
        settings = {"key_by": "user", "output_schema": "id bigint, count bigint", "operator_id": "count"}
        super().__init__(spark, folder, self.count, "id bigint, user string, at timestamp", **settings)

    def write_rows(self, file: int, rows: int = ROWS) -> None:
        ids = range(file * ROWS, file * ROWS + rows)
        at = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n) for n in ids]
        columns = {"id": pa.array(ids, pa.int64()), "user": pa.array([f"u{n % 5}" for n in ids], pa.string())}
        table = pa.table(columns | {"at": pa.array(at, pa.timestamp("us", "UTC"))})
        path = self.folder / "in" / f"{file}.parquet"
        pq.write_table(table, path)
        # Spark takes the oldest first.
        os.utime(path, (file, file))

    def rows_as_batch(self, file: int) -> DataFrame:
        """Return rows as `foreachBatch` gives them."""
        self.write_rows(file)
        return self.spark.read.schema(self.schema).parquet(str(self.folder / "in" / f"{file}.parquet"))

    def sink(self, batch: DataFrame, epoch: int) -> None:
        super().sink(batch, epoch)
        self.returned.append((epoch, self.delivered[epoch]))
        self.columns.append(batch.columns)

    def calls(self) -> list[int]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def ids(self) -> list[int]:
        return [row[0] for _, rows in self.returned for row in rows]

    def assert_exact(self, files: int) -> None:
        """Every row was delivered once, epoch after epoch, with the right count."""
        rows = sorted(row[:2] for _, rows in self.returned for row in rows)
        users = [n % 5 for n in range(files * ROWS)]
        assert rows == [(n, users[: n + 1].count(n % 5)) for n in range(files * ROWS)]
        epochs = [epoch for epoch, _ in self.returned]
        assert epochs == sorted(set(epochs))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    run = Run(spark, tmp_path)
    yield run
    run.stop()


class TestAnEpochWithoutRows:
    @pytest.mark.parametrize("what", first_is_quick(["empty file", "filter", "filter in Python", "first of all"]))
    def test_it_is_run_as_any_other(self, run: Run, what: str) -> None:
        is_kept = {
            "filter": F.col("id") < ROWS,
            "filter in Python": F.udf(lambda n: n < ROWS, "boolean")(F.col("id")),
            "first of all": F.col("id") >= ROWS,
        }.get(what, F.lit(True))
        run.write_rows(0)
        run.write_rows(1, rows=0 if what == "empty file" else ROWS)
        stream, run.stream = run.stream, lambda **options: stream(**options).where(is_kept)  # type: ignore[method-assign]
        pipeline = run.run()

        found = [(epoch.epoch, epoch.rows) for epoch in pipeline.progress()]
        assert found == ([(1, 0), (2, ROWS)] if what == "first of all" else [(1, ROWS), (2, 0)])
        assert sorted(run.ids) == sorted(run.calls())
        assert len(run.ids) == ROWS

    def test_it_ends_what_is_in_flight(self, run: Run) -> None:
        run.write_rows(0)
        run.write_rows(1, rows=0)
        run.count.slow = frozenset({3, 8})
        pipeline = run.run(barrier_timeout=0.05, resident=False)

        assert [(epoch.kind, epoch.rows, epoch.in_flight > 0) for epoch in pipeline.progress()] == [
            ("batch", ROWS, True),
            ("batch", 0, False),
        ]
        run.assert_exact(files=1)

    def test_it_takes_the_watermark(self, run: Run) -> None:
        run.write_rows(0)
        run.write_rows(1, rows=0)
        stream = run.stream
        run.stream = lambda **options: stream(**options).withWatermark("at", "1 second")  # type: ignore[method-assign]
        pipeline = run.run(event_time="at")

        newest = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()) + ROWS - 1
        assert [epoch.watermark for epoch in pipeline.progress()] == [None, (newest - 1) * 1000]

    @pytest.mark.thorough
    def test_a_slow_rate_source_has_many(self, run: Run) -> None:
        run.settings["key_by"] = "id"
        rate = run.spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        pipeline = run.pipeline(order_by=None)
        checkpoint = run.folder / "checkpoint"
        query = pipeline.start(rate.selectExpr("value as id"), run.sink, checkpoint_location=checkpoint)
        while len(run.ids) < 2:
            assert not query.awaitTermination(1)
        query.stop()
        assert sorted(run.ids) == list(range(len(run.ids)))


class TestASinkThatFails:
    @pytest.mark.thorough
    def test_its_epoch_comes_first_in_a_drain(self, run: Run) -> None:
        run.write_rows(0)
        run.write_rows(1)
        run.count.slow = frozenset({3, 8})
        run.fail_sink_at = 1
        pipeline = run.pipeline(barrier_timeout=0.05)
        with pytest.raises(Exception, match="the sink is down"):
            run.start(pipeline).awaitTermination()
        assert run.returned == []
        pipeline.drain()
        assert [epoch for epoch, _ in run.returned] == [1, 2]

        run.run()
        run.assert_exact(files=2)

    @pytest.mark.thorough
    def test_its_epoch_comes_first_in_the_next_batch(self, run: Run) -> None:
        run.write_rows(0)
        pipeline, query = self._ended(run)
        run.fail_sink_at = query.runner.epoch + 1
        with pytest.raises(OSError, match="the sink is down"):
            query.runner.run_batch(run.rows_as_batch(1), "a query", 0)
        query.runner.run_batch(run.rows_as_batch(2), "a query", 1)

        run.assert_exact(files=3)
        assert [epoch.batch_id for epoch in pipeline.progress()][-1] == 1

    def test_nothing_is_committed_as_long_as_it_fails(self, run: Run) -> None:
        run.write_rows(0)
        _, query = self._ended(run)
        committed = query.runner.epoch + 1
        for number in (1, 2, 3):
            run.fail_sink_at = committed
            with pytest.raises(OSError, match="the sink is down"):
                query.runner.run_batch(run.rows_as_batch(number), "a query", number)
        run.fail_sink_at = committed
        with pytest.raises(OSError, match="the sink is down"):
            query.drain()

        assert query.runner.epoch == committed
        assert len(run.calls()) == 2 * ROWS
        query.drain()
        run.assert_exact(files=2)

    @pytest.mark.filterwarnings("ignore::async_op.RepartitionUndone")
    def test_its_epoch_comes_first_after_a_restart(self, run: Run) -> None:
        run.write_rows(0)
        run.write_rows(1)
        run.fail_sink_at = 1
        with pytest.raises(Exception, match="the sink is down"):
            run.run()
        run.store.repartition(3)
        run.run()

        run.assert_exact(files=2)
        assert run.deliveries[1] == 2

    def test_a_new_query_waits_for_the_sink_that_the_old_one_is_still_in(self, run: Run) -> None:
        run.write_rows(0)
        _, query = self._ended(run)
        entered, released = threading.Event(), threading.Event()
        sink = run.sink

        def slow(batch: DataFrame, epoch: EpochRef) -> None:
            entered.set()
            released.wait()
            sink(batch, epoch.epoch)

        assert hasattr(query.runner.delivery, "_outlet")
        query.runner.delivery._outlet = slow
        old = threading.Thread(target=query.runner.run_batch, args=(run.rows_as_batch(1), "a query", 0))
        old.start()
        assert entered.wait(600), "the sink of the old query was never called"
        (run.folder / "in" / "1.parquet").unlink()
        # The batch above was none of Spark's.
        options: dict[str, Any] = {"checkpoint_location": run.folder / "checkpoint", "adopt": "state"}
        new = threading.Thread(target=run.pipeline().start, args=(run.stream(), run.sink), kwargs=options)
        new.start()
        claimed = query.runner.epoch + 1
        while run.store.newest_version() < claimed:
            new.join(0.1)
            assert new.is_alive()
        released.set()
        old.join()
        new.join()

        run.assert_exact(files=2)
        assert set(run.deliveries.values()) == {1}

    def _ended(self, run: Run) -> tuple[AsyncPipeline, PipelineQuery]:
        pipeline = run.pipeline()
        query = pipeline.start(
            run.stream(), run.sink, checkpoint_location=run.folder / "checkpoint", trigger={"availableNow": True}
        )
        query.awaitTermination()
        return pipeline, query


class TestWhatWasDelivered:
    @pytest.mark.filterwarnings("ignore::async_op.RepartitionUndone")
    def test_a_clean_restart_repeats_nothing(self, run: Run) -> None:
        run.write_rows(0)
        run.run()
        run.store.repartition(3)
        run.run()
        run.write_rows(1)
        run.run()

        run.assert_exact(files=2)
        assert set(run.deliveries.values()) == {1}

    def test_what_a_sink_has_taken_is_not_repeated_where_spark_repeats_the_batch(self, run: Run) -> None:
        run.write_rows(0)
        run.run()
        for commit in (run.folder / "checkpoint" / "commits").glob("*0*"):
            commit.unlink()
        run.run()

        run.assert_exact(files=1)
        assert set(run.deliveries.values()) == {1}

    @pytest.mark.thorough
    def test_an_epoch_is_delivered_in_the_schema_that_it_was_written_with(self, run: Run) -> None:
        run.write_rows(0)
        run.write_rows(1)
        run.fail_sink_at = 1
        with pytest.raises(Exception, match="the sink is down"):
            run.run()
        run.count.more = ("new",)
        run.run(output_schema="id bigint, count bigint, note string")

        run.assert_exact(files=2)
        assert run.columns == [["id", "count"], ["id", "count", "note"]]
        assert [len(row) for _, rows in run.returned for row in rows] == ROWS * [2] + ROWS * [3]

    def test_an_epoch_without_outputs_has_its_schema_too(self, run: Run) -> None:
        run.write_rows(0, rows=0)
        run.fail_sink_at = 1
        with pytest.raises(Exception, match="the sink is down"):
            run.run()
        run.run(output_schema="id bigint, count bigint, note string")

        assert run.columns == [["id", "count"]]


class TestWhatIsTakenOver:
    @pytest.mark.thorough
    def test_calls_longer_than_micro_batches_are_made_twice_at_most(
        self, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The barrier ends before a call does, also before one that was taken over, and more rows are always there."""
        files = 6
        for file in range(files):
            run.write_rows(file)
        run.count.slow = frozenset(range(files * ROWS))
        run.count.seconds = 0.2
        pipeline = run.pipeline(barrier_timeout=0.05, capacity=files * ROWS, resident=False)
        run.start(pipeline).awaitTermination()

        run.assert_exact(files)
        epochs = pipeline.progress()
        calls = Counter(run.calls())
        assert set(calls.values()) <= {1, 2}
        assert sum(epoch.calls for epoch in epochs) == sum(calls.values())
        carried_over = [0, *(epoch.in_flight for epoch in epochs[:-1])]
        assert any(carried_over)
        for epoch, taken_over in zip(epochs, carried_over, strict=True):
            assert epoch.in_flight <= epoch.rows, "what was taken over is gone"
            assert epoch.outputs >= taken_over
            assert not epoch.overtime_milliseconds or taken_over
        assert caplog.text.count("for calls that it took over") == 1


class TestRetention:
    def test_old_versions_go_while_a_pipeline_runs(self, run: Run) -> None:
        files = 8
        for file in range(files):
            run.write_rows(file)
        sink = run.sink

        def pinning(batch: DataFrame, epoch: int) -> None:
            sink(batch, epoch)
            query.runner.coordinator.close()  # type: ignore[union-attr]
            if epoch == 2:
                run.store.pin(2)

        pipeline = run.pipeline(retention=Retention(keep_last=3, min_age=0))
        checkpoint = run.folder / "checkpoint"
        query = pipeline.start(run.stream(maxFilesPerTrigger=1), pinning, checkpoint_location=checkpoint)
        while len(run.returned) < files:
            assert not query.awaitTermination(1)
        query.stop()
        query.runner.coordinator.close()

        assert run.store.versions() == [2, *range(files - 2, files + 1)]
        named = {file.path for version in run.store.versions() for file in run.store.load(version).manifest.files}
        root = run.folder / "snapshots" / "count"
        assert {path.relative_to(root).as_posix() for path in root.glob("data/*/*")} == named
        run.assert_exact(files)
        assert {epoch.failed_collections for epoch in pipeline.progress()} == {0}
        run.run()
        assert run.store.verify().ok

    def test_none_keeps_all(self, run: Run) -> None:
        run.write_rows(0)
        pipeline = run.run(retention=None)
        assert pipeline.progress()[0].failed_collections == 0
        assert run.store.versions() == [1]


def test_jobs_say_of_which_pipeline_and_epoch_they_are(run: Run) -> None:
    run.write_rows(0)
    run.write_rows(1)
    run.count.slow = frozenset({ROWS + 3})
    properties = []
    sink = run.sink

    def looking(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        batch.groupBy().count().collect()  # the driver has the rows: it collects and counts them without a job
        properties.append(batch.sparkSession.sparkContext.getLocalProperty("spark.job.description"))

    run.sink = looking  # type: ignore[method-assign]
    run.run(barrier_timeout=0.05, operator_id="described")

    named = {name for name in _job_descriptions(run.spark) if "AsyncPipeline described" in name}
    whats = ("1: batch 0", "1: sink", "2: batch 1", "2: sink", "3: drain", "3: sink")
    assert named == {f"AsyncPipeline described, epoch {what}" for what in whats}
    assert properties == [f"AsyncPipeline described, epoch {epoch}: sink" for epoch in (1, 2, 3)]


def _job_descriptions(spark: SparkSession) -> list[str]:
    """Return what Spark's pages call the jobs."""
    jobs = spark._jsparkSession.sparkContext().statusStore().jobsList(None)  # type: ignore[attr-defined]
    descriptions = [jobs.apply(number).description() for number in range(jobs.size())]
    return [description.get() for description in descriptions if description.isDefined()]
