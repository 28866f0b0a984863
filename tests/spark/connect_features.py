"""What a pipeline can do, done over Spark Connect, with the checks that the classic pipelines have.

As a program: ``python -m tests.spark.connect_features URL FOLDER CASE``.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from async_op import AsyncFunction
from async_op.functions.runtime import Runtime
from async_op.spark import AsyncPipeline, EpochFailed, Retention, UnrelatedHistories
from keygroups import ConfigError, DiskStateBackend, OperatorListState, ValueState
from keygroups.codec import unpack
from snapshots import SnapshotStore
from tests.hosting.kit import wait_until
from tests.spark import test_chain as chains
from tests.spark import test_event_time as event_times
from tests.spark.connect_processes import session_of
from tests.spark.runs import Gate, PipelineRun
from tests.spark.test_autoscale import TARGET, Scripted

cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = ValueState("count", pa.int64(), default=0)
SEEN = OperatorListState("seen")
KEYS = 7


@dataclass
class Table:
    """A sink whose epochs are files, because it is called beside the server; it may fail once, and calls `then`."""

    folder: Path
    gate: Gate
    fails: bool = False
    then: Callable[[int], None] | None = None

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self.gate.count()
        rows = sorted((tuple(row) for row in batch.collect()), key=str)
        assert self.delivered().setdefault(epoch, rows) == rows
        # The client reads while this process writes, so an epoch has to be there whole.
        written = self.folder.with_name(f"{self.folder.name} {epoch}")
        written.write_bytes(pickle.dumps(rows))
        written.replace(self.folder / str(epoch))
        failed = self.folder.with_name("failed")
        if self.fails and not failed.exists():
            failed.touch()
            raise OSError("the sink is down")
        if self.then is not None:
            self.then(epoch)

    def delivered(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return the rows of each epoch, in the order of the epochs."""
        self.folder.mkdir(exist_ok=True)
        found = {int(path.name): pickle.loads(path.read_bytes()) for path in self.folder.iterdir()}
        return dict(sorted(found.items()))


def served(run: PipelineRun, **options: Any) -> Table:
    """Give a run a sink that can be sent to the server."""
    table = Table(run.folder / "table", run.gate, **options)
    run.sink = table  # type: ignore[method-assign]
    return table


def fails(run: Callable[[], object], reason: str) -> None:
    """Run a query that has to fail, for a reason that its client is told."""
    try:
        run()
    except EpochFailed as error:
        assert reason in str(error), error
    else:
        raise AssertionError(f"it does not fail: {reason}")


def refused(run: Callable[[], object], error_type: type[Exception], reason: str) -> None:
    """Start what is refused before anything is claimed."""
    try:
        run()
    except error_type as error:
        assert reason in str(error), error
    else:
        raise AssertionError(f"it is not refused: {reason}")


def event_time(spark: SparkSession, folder: Path) -> None:
    """Sessions by event time on disk: a call fails, a sink fails, and the parallelism and the place change."""
    run = event_times.Run(spark, folder)
    table = served(run)
    run.settings["state_backend"] = DiskStateBackend()
    run.write_input(3)
    unmarked = spark.readStream.schema(run.schema).parquet(str(folder / "in"))
    start = run.pipeline().start
    refused(lambda: start(unmarked, table, checkpoint_location=folder / "checkpoint"), ConfigError, "withWatermark")

    run.function.wrong = 205  # in the third batch, which is run again
    fails(run.run, "the service said no")
    run.function.wrong = None
    table.fails = True
    fails(lambda: run.run(parallelism=3), "the sink is down")
    run.run(parallelism=3)
    run.write_input(3)
    newest = run.run(parallelism=1, resident=False).progress()[-1]

    model = event_times.Model()
    clicks = [event_times.clicks_of(file) for file in range(6)]
    expected = [model.epoch(one) for one in (*clicks[:3], [], *clicks[3:], [])]
    # An idle query may have fired what was due in an epoch of its own, before a batch that was to come.
    assert Counter(chain(*table.delivered().values())) == Counter(chain(*expected))
    assert newest.watermark == model.next == max(at for one in clicks for _, at in one if at) - event_times.DELAY
    run.assert_no_watermark_goes_back()


def timers(spark: SparkSession, folder: Path) -> None:
    """While no input comes, a timer of the clock begins an epoch; old versions are removed meanwhile."""
    spark.sql("select 'ann' as user").write.parquet(str(folder / "in"))
    table = Table(folder / "table", Gate(folder / "sinks"))
    pipeline = AsyncPipeline(
        event_times.Later(),
        key_by="user",
        output_schema="user string",
        snapshots=folder / "snapshots",
        operator_id="later",
        parallelism=2,
        retention=Retention(keep_last=1, min_age=0.0),
    )
    stream = spark.readStream.schema("user string").parquet(str(folder / "in"))
    query = pipeline.start(stream, table, checkpoint_location=folder / "checkpoint")
    wait_until(lambda: any(table.delivered().values()))
    spark.sql("select 'bob' as user").write.mode("append").parquet(str(folder / "in"))
    wait_until(lambda: len([*chain(*table.delivered().values())]) == 2)
    query.stop()
    assert [*chain(*table.delivered().values())] == [("ann",), ("bob",)]
    assert {epoch.kind for epoch in pipeline.progress()} == {"batch", "drain"}
    assert len(SnapshotStore(folder / "snapshots", "later").versions()) < len(pipeline.progress())


def chain_of_two(spark: SparkSession, folder: Path) -> None:
    """A policy scales the first of two pipelines, and the sink the second.

    Then the checkpoint is lost, an empty one is adopted, and the worker is killed.
    """
    run = chains.Run(spark, folder)
    run.write_input()
    second = run.second()
    table = served(run, then=lambda epoch: second.rescale(3) if epoch == 1 else None)
    first = run.pipeline(autoscale=Scripted(1, 4, TARGET))
    run.start(first.then(second)).awaitTermination()
    check(run, table)
    batches = [epoch for epoch in first.progress() if epoch.kind == "batch"]
    assert [epoch.parallelism for epoch in batches] == [2, 4, 3]
    assert [epoch.scaling.reason for epoch in batches if epoch.scaling] == [f"after {n} epochs" for n in (1, 2, 3)]
    upstream = [epoch for epoch in second.progress() if epoch.kind == "upstream"]
    assert [epoch.parallelism for epoch in upstream] == [2, *[3] * (len(upstream) - 1)]
    before = table.delivered()
    run.run_chain(first=3, second=2)
    assert table.delivered() == before

    (folder / "checkpoint").rename(folder / "lost")
    refused(run.run_chain, UnrelatedHistories, "adopt='checkpoint'")
    for log in run.logs:
        log.write_text("")
    table.then = partial(kill_once, folder / "killed")
    arguments: dict[str, Any] = {"checkpoint_location": folder / "checkpoint", "trigger": {"availableNow": True}}
    adopting = partial(run.chain().start, run.stream(maxFilesPerTrigger=1), table, adopt="checkpoint", **arguments)
    refused(lambda: adopting().awaitTermination(), StreamingQueryException, "exited unexpectedly")
    assert (folder / "killed").exists()
    run.run_chain(first=3, second=1)
    check(run, table, before=before)


def kill_once(killed: Path, epoch: int) -> None:
    """Kill the worker once, when the sink has an epoch that is not noted as delivered."""
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def check(run: chains.Run, table: Table, before: dict[int, Any] | None = None) -> None:
    """Check all that a chain has delivered, or what it has delivered since."""
    run.delivered = {epoch: rows for epoch, rows in table.delivered().items() if epoch not in (before or {})}
    run.assert_exact()


class Number(AsyncFunction):
    """Numbers the rows of each user, notes what its subtask has seen, and fails for every tenth row."""

    states = (COUNT,)
    operator_states = (SEEN,)

    async def open(self, runtime: Runtime) -> None:
        self.seen = runtime.operator_state(SEEN)

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        if value["id"] % 10 == 7:
            raise ValueError("the service said no")
        self.seen.add(value["id"])
        count = ctx.state(COUNT)
        count.update(count.value() + 1)
        return [(value["id"], value["user"], count.value())]


def backwards(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Return rows in an order that is not that of their ids."""
    return spark.range(first, end).selectExpr("id", f"concat('u', id % {KEYS}) as user").orderBy("id", ascending=False)


def tables(spark: SparkSession, folder: Path) -> None:
    """History and a stream into one Delta table, in the order of their ids, with dead letters and operator state."""
    settings: dict[str, Any] = {
        "key_by": "user",
        "output_schema": "id bigint, user string, count bigint",
        "operator_id": "number",
        "mode": "key_ordered",
        "on_error": "dead_letter",
        "dead_letters": "column",
        "state_backend": DiskStateBackend(),
        "barrier_timeout": 0.2,
        "retention": Retention(keep_last=2, min_age=0.0),
    }
    run = PipelineRun(spark, folder, Number(), "id bigint, user string", **settings)
    table = str(folder / "numbered")
    run.pipeline().run(backwards(spark, 0, 60), Table(folder / "history", run.gate), run_id="history", chunk_rows=25)
    for n, (parallelism, resident) in enumerate([(3, True), (2, False)]):
        run.write_file(backwards(spark, 60 + 40 * n, 80 + 40 * n))
        run.write_file(backwards(spark, 80 + 40 * n, 100 + 40 * n))
        arguments: dict[str, Any] = {"format": "delta", "checkpoint_location": folder / "checkpoint"}
        query = run.pipeline(parallelism=parallelism, resident=resident).to_table(
            run.stream(maxFilesPerTrigger=1), table, trigger={"availableNow": True}, **arguments
        )
        query.awaitTermination()

    found = [*chain(*Table(folder / "history", run.gate).delivered().values())]
    found += [tuple(row.values()) for row in deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()]
    failed = sorted(json.loads(letter["value"])["id"] for *_, letter in found if letter is not None)
    assert failed == [n for n in range(140) if n % 10 == 7]
    numbers = Counter[str]()
    for number, user, count, _ in sorted(row for row in found if row[3] is None):
        numbers[user] += 1
        assert (user, count) == (f"u{number % KEYS}", numbers[user]), "the order of a key is that of the ids"
    assert numbers.total() + len(failed) == 140
    snapshot = run.store.load()
    seen = sorted(map(unpack, snapshot.to_arrow("seen").column("item").to_pylist()))
    assert seen == [n for n in range(140) if n % 10 != 7]
    assert snapshot.in_flight_count == 0
    assert run.store.verify().ok


async def same(value: Any) -> Any:
    return value


def short_runs(spark: SparkSession, folder: Path) -> None:
    """Runs of one micro-batch follow a policy, and begin with what was asked for between them, within its bounds."""
    settings: dict[str, Any] = {"key_by": "id", "output_schema": "id bigint", "operator_id": "short"}
    function: Any = same
    run = PipelineRun(spark, folder, function, "id bigint", autoscale=Scripted(1, 4, TARGET), **settings)
    table = served(run)

    def begun(pipeline: AsyncPipeline, file: int) -> list[int]:
        run.write_file(spark.range(10 * file, 10 * file + 10))
        run.start(pipeline).awaitTermination()
        return [epoch.parallelism for epoch in pipeline.progress()]

    assert [begun(run.pipeline(), file) for file in range(3)] == [[2], [4], [3]]
    pipeline = run.pipeline()
    assert pipeline.explain().operators["short"]["parallelism"].startswith("3, ")
    refused(lambda: pipeline.rescale(9), ConfigError, "the autoscaler keeps it between 1 and 4")
    pipeline.rescale(1)
    assert begun(pipeline, 3) == [1]
    assert sorted(chain(*table.delivered().values())) == [(n,) for n in range(40)]


class Held(AsyncFunction):
    """Returns dicts without the column `seen`; calls for odd rows last for ever."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        while value["id"] % 2:
            await asyncio.sleep(1)
        return [{"id": value["id"]}]


class Upgraded(AsyncFunction):
    """Tells which columns it sees, and reads one that the input of `Held` does not have."""

    async def async_invoke(self, value: dict[str, Any], ctx: Any) -> list[Any]:
        return [{"id": value["id"], "seen": f"{[*value]} {value['country']}"}]


def upgrade(spark: SparkSession, folder: Path) -> None:
    """Rows in flight get the column that the input has gained, as null; outputs without a column have it as null."""
    settings = {"key_by": "user", "output_schema": "id bigint, seen string", "operator_id": "upgraded"}
    run = PipelineRun(spark, folder, Held(), "id bigint, user string", barrier_timeout=0.2, **settings)
    table = served(run)
    run.write_file(spark.range(10).selectExpr("id", "string(id) as user"))
    query = run.pipeline().start(run.stream(), table, checkpoint_location=folder / "checkpoint")
    wait_until(lambda: len([*chain(*table.delivered().values())]) == 5)
    query.stop()
    assert run.store.load().in_flight_count == 5

    run.function, run.schema = Upgraded(), "id bigint, country string, user string"
    run.write_file(spark.range(10, 12).selectExpr("id", "'fr' as country", "string(id) as user"))
    run.run()
    found = dict(chain(*table.delivered().values()))
    columns = "['id', 'country', 'user']"
    expected = {n: f"{columns} None" if n % 2 else None for n in range(10)} | dict.fromkeys((10, 11), f"{columns} fr")
    assert found == expected


CASES: dict[str, Callable[[SparkSession, Path], None]] = {
    "event time": event_time,
    "timers": timers,
    "chain": chain_of_two,
    "tables": tables,
    "short runs": short_runs,
    "upgrade": upgrade,
}


def main() -> None:
    """Run one case."""
    url, folder, case = sys.argv[1:]
    with session_of(url) as spark:
        began = time.monotonic()
        CASES[case](spark, Path(folder))
    print(json.dumps(time.monotonic() - began))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
