"""What clients of a Spark Connect server are told when something is wrong.

As a program: ``python -m tests.spark.connect_told URL FOLDER CASE``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import linecache
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, functions

from async_op import AsyncFunction, BlocksEventLoop
from async_op.spark import AsyncPipeline, EpochFailed, ModuleNotOnWorkers, split_dead_letters
from keygroups.errors import ConfigError
from tests.spark.connect_processes import session_of
from tests.spark.refusals import REFUSALS, wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])


async def same(value: Any) -> Any:
    return value


def pipeline(folder: Path, function: Any = same, **options: Any) -> AsyncPipeline:
    common = {"output_schema": "id bigint", "operator_id": "look", "parallelism": 2, "snapshots": folder / "snapshots"}
    return AsyncPipeline(function, **(common | options))


def stream(spark: SparkSession, folder: Path, files: int = 1) -> DataFrame:
    for n in range(0 if (folder / "in").exists() else files):
        spark.range(3 * n, 3 * n + 3).coalesce(1).write.mode("append").parquet(str(folder / "in"))
    return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def sink(batch: DataFrame, epoch: int) -> None:
    batch.collect()


def a_module_beside_the_script(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """See that `start` names the module, that nothing is claimed, and that `explain` knows it."""
    (folder / "beside.py").write_text("async def look(value):\n    return value\n")
    sys.path.insert(0, str(folder))
    look = importlib.import_module("beside").look
    try:
        pipeline(folder, look).start(stream(spark, folder), sink, checkpoint_location=folder / "checkpoint")
    except ModuleNotOnWorkers as refused:
        assert refused.module == "beside"
    else:
        raise AssertionError("the server has no such module")
    (found,) = [one for one in pipeline(folder, look).explain().findings if "refuses" in one.problem]
    assert "No module named 'beside'" in found.advice
    spark.addArtifacts(str(folder / "beside.py"), pyfile=True)
    assert not [one for one in pipeline(folder, look).explain().findings if "refuses" in one.problem]
    return {"claimed": [str(one) for one in (folder / "snapshots").rglob("manifests/*")]}


async def typo(value: Any) -> Any:
    return {"id": valeu["id"]}  # noqa: F821 - the user's line


async def late(value: Any) -> Any:
    await asyncio.sleep(3)  # longer than the barrier, so that an epoch without input brings the outputs
    return value


def failing_sink(batch: DataFrame, epoch: int) -> None:
    if batch.count():
        raise OSError("the disk is full")  # the user's line


def failed(
    spark: SparkSession, folder: Path, sink: Any = sink, shows: str = "the user's line", **options: Any
) -> EpochFailed:
    """Return the error that a query fails with."""
    place = folder / "checkpoint"
    query = pipeline(folder, **options).start(stream(spark, folder), sink, checkpoint_location=place)
    try:
        query.awaitTermination()
    except EpochFailed as error:
        assert shows in "".join(traceback.format_exception(error))
        assert "async_op/spark/epoch" not in str(query.query.exception())
        assert str(query.exception()) == str(error)
        return error
    raise AssertionError("it has not failed")


def tracebacks(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """See the user's lines that have failed beside the server."""
    options: dict[str, dict[str, Any]] = {
        "function": {"function": typo},
        "sink": {"sink": failing_sink},
        "sink of an epoch without input": {"sink": failing_sink, "function": late, "barrier_timeout": 0.0},
    }
    return {name: failed(spark, folder / name, **one).reason for name, one in options.items()}


class Opens(AsyncFunction):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def open(self, runtime: Any) -> None:
        raise self.error  # the user's line

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


async def dies(value: Any) -> Any:
    os._exit(3)


def ends(spark: SparkSession, folder: Path) -> dict[str, str]:
    """Return how a client learns of an `open` that fails or ends its process, and of a process that dies."""
    options: dict[str, dict[str, Any]] = {
        "open": {"function": Opens(KeyError("TOKEN"))},
        "exit in open": {"function": Opens(SystemExit(3))},
        "dead process": {"function": dies, "shows": "attempt 4 of 4 at epoch 1", "parallelism": 1},
    }
    return {name: failed(spark, folder / name, **one).reason for name, one in options.items()}


class Slow(AsyncFunction):
    """Prints, blocks its event loop, and waits until a file is there."""

    def __init__(self, released: Path) -> None:
        self.released = released

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        print("seen by the function")  # noqa: T201 - what the case looks for
        time.sleep(3)  # noqa: ASYNC251 - the user's line
        logging.getLogger("mine").info("logged by the function")
        while not self.released.exists():
            await asyncio.sleep(0.1)
        return [value]


def sight(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what a client sees of an epoch under way, and of what its function prints."""
    logging.getLogger("mine").setLevel(logging.INFO)
    made = pipeline(folder, Slow(folder / "released"), barrier_timeout=None)
    query = made.start(
        stream(spark, folder), sink, checkpoint_location=folder / "checkpoint", trigger={"availableNow": True}
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", BlocksEventLoop)
        while not warned or (found := made.progress().under_way) is None or not found.in_flight:
            assert query.exception() is None
            query.awaitTermination(1)
    status, printed = query.status["keygroups"], "".join(made.logs().values())
    (folder / "released").touch()
    query.awaitTermination()
    said = {"printed": "seen by the function" in printed, "logged": "INFO mine: logged by the function" in printed}
    [one] = warned
    line = linecache.getline(one.filename, one.lineno)
    return said | {"calls": found.in_flight > 0, "status": status is not None, "blocks": "the user's line" in line}


class Texts(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def taken_over_with_its_checkpoint(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what a query says that Spark has stopped for another start, and whether the other one goes on."""
    first = pipeline(folder).start(stream(spark, folder), sink, checkpoint_location=folder / "checkpoint")
    while not (folder / "checkpoint" / "commits" / "0").exists():
        first.awaitTermination(1)
    second = pipeline(folder).start(stream(spark, folder), sink, checkpoint_location=folder / "checkpoint")
    try:
        first.awaitTermination()
    except EpochFailed as fenced:
        second.drain()  # its worker answers
        return {"old": fenced.reason, "is_active": second.isActive}
    finally:
        second.stop()
    raise AssertionError("the second one has taken over")


def taken_over(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what the older of two queries says, and what is logged where the newer one is started."""
    log = Texts()
    logging.getLogger("async_op.spark").addHandler(log)
    first = pipeline(folder).start(stream(spark, folder), sink, checkpoint_location=folder / "checkpoint")
    while not (folder / "checkpoint" / "commits" / "0").exists():
        first.awaitTermination(1)
    second = pipeline(folder).start(stream(spark, folder), sink, checkpoint_location=folder / "other", adopt="state")
    try:
        first.drain()
    except EpochFailed as fenced:
        return {"old": fenced.reason, "id": first.id, "logged": [one for one in log.texts if "takes over" in one]}
    finally:
        second.stop()
    raise AssertionError("the second one has taken over")


async def unprintable(value: Any) -> Any:
    raise ValueError("half an emoji \ud83d")


def bad_values(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the dead letters of errors that hold no text, and what is said of a name that comes twice."""

    def write(batch: DataFrame, epoch: int) -> None:
        split_dead_letters(batch)[1].write.mode("overwrite").parquet(str(folder / "letters" / str(epoch)))

    query = pipeline(folder, unprintable, on_error="dead_letter", dead_letters="column").start(
        stream(spark, folder), write, checkpoint_location=folder / "checkpoint", trigger={"availableNow": True}
    )
    query.awaitTermination()
    letters = spark.read.parquet(str(folder / "letters" / "*")).collect()
    try:
        pipeline(folder, output_schema="id bigint, ID bigint")
    except ConfigError as refused:
        return {"letters": [one.error_message for one in letters], "twice": str(refused)}
    raise AssertionError("two columns have one name")


def refusals(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Return what is not refused as the table says."""
    found = {}
    for case in REFUSALS:
        (folder / case).mkdir()
        found[case] = list(wrong(spark, folder / case, case, "start"))
    return {case: texts for case, texts in found.items() if texts}


def volatile(spark: SparkSession, folder: Path) -> dict[str, bool]:
    """Return for each input whether `explain` says that its rows change."""
    frame = stream(spark, folder)
    inputs = {
        "uuid": frame.selectExpr("id", "uuid() as token"),
        "rand": frame.select("id", functions.rand().alias("part")),
        "a name": frame.selectExpr("id", "id as uuid"),
    }
    found = {name: pipeline(folder).explain(one).findings for name, one in inputs.items()}
    return {name: any("change when" in one.problem for one in findings) for name, findings in found.items()}


class Hangs(AsyncFunction):
    """Stops its process, once, in the call for a row that comes when the host is known."""

    def __init__(self, stopped: Path) -> None:
        self.stopped = stopped

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        if value["id"] == 3 and not self.stopped.exists():
            self.stopped.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return [value]


def hangs(spark: SparkSession, folder: Path) -> list[int]:
    """Return what is delivered although a host hangs in the second epoch."""

    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.parquet(str(folder / "out" / str(epoch)))

    made = pipeline(folder, Hangs(folder / "stopped"), barrier_timeout=None, parallelism=1)
    where: dict[str, Any] = {"checkpoint_location": folder / "checkpoint", "trigger": {"availableNow": True}}
    made.start(stream(spark, folder, files=2), write, **where).awaitTermination()
    return sorted(row.id for row in spark.read.parquet(str(folder / "out" / "*")).collect())


class Calling:
    """A sink that calls all of it in each epoch, and notes what was refused, and how."""

    def __init__(self, folder: Path, made: AsyncPipeline) -> None:
        self.folder, self.made, self.another = folder, made, pipeline(folder)

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        spark, where = batch.sparkSession, self.folder / "checkpoint"
        rows = stream(spark, self.folder)
        calls: dict[str, Callable[[], object]] = {
            "drain": self.made.drain,
            "drain on a thread": self.drain_on_a_thread,
            "run": lambda: self.made.run(batch, sink, run_id="again"),
            "start": lambda: self.made.start(rows, sink, checkpoint_location=where),
            "start of another": lambda: self.another.start(rows, sink, checkpoint_location=where),
            "rescale": lambda: self.made.rescale(3),
            "rescale above the maximum": lambda: self.made.rescale(100_000),
            "explain": self.made.explain,
        }
        said = {name: answer_of(call) for name, call in calls.items()}
        (self.folder / "said").mkdir(exist_ok=True)
        (self.folder / "said" / f"{epoch}").write_text(json.dumps(said | {"progress": len(self.made.progress())}))
        (self.folder / "released").touch()

    def drain_on_a_thread(self) -> None:
        """Raise what a thread is told that the sink waits for."""
        told: list[Exception] = []

        def drain() -> None:
            try:
                self.made.drain()
            except Exception as error:  # noqa: BLE001 - raised below
                told.append(error)

        thread = threading.Thread(target=drain)
        thread.start()
        thread.join()
        assert "this is a copy of it in another process" in str(told[0])
        raise told[0]


def answer_of(call: Callable[[], object]) -> str | None:
    """Return the name of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test judges it
        return type(error).__name__
    return None


def in_the_sink(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what a sink is told in a micro-batch and in epochs without input, and then of a query that it holds."""
    made = pipeline(folder, Slow(folder / "released"), barrier_timeout=0.2, max_parallelism=128)
    where: dict[str, Any] = {"checkpoint_location": folder / "checkpoint", "trigger": {"availableNow": True}}
    query = made.start(stream(spark, folder), Calling(folder, made), **where)
    query.awaitTermination()
    said = [json.loads((folder / "said" / str(one.epoch)).read_text()) for one in made.progress()]
    try:
        made.start(stream(spark, folder), lambda batch, epoch: query.stop(), **where)
    except ConfigError as refused:
        return {"said": said, "of a query": str(refused), "parallelism": made.progress()[-1].parallelism}
    raise AssertionError("no query can be sent to a server")


CASES: dict[str, Callable[[SparkSession, Path], Any]] = {
    "a module beside the script": a_module_beside_the_script,
    "tracebacks": tracebacks,
    "refusals": refusals,
    "ends": ends,
    "sight": sight,
    "taken over": taken_over,
    "taken over with its checkpoint": taken_over_with_its_checkpoint,
    "bad values": bad_values,
    "volatile": volatile,
    "in the sink": in_the_sink,
    "hangs": hangs,
}


def main() -> None:
    """Run one case; prints what it returns."""
    url, folder, case = sys.argv[1:]
    with session_of(url) as spark:
        told = CASES[case](spark, Path(folder))
    print(json.dumps(told))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
