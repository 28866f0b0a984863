"""What a user is told when something is wrong with a pipeline on a classic session."""

from __future__ import annotations

import linecache
import logging
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from async_op import AsyncFunction, BlocksEventLoop, ElementFailed
from async_op.hosting import supervisor
from async_op.hosting.errors import HostLost
from async_op.hosting.supervisor import HostSupervisor
from async_op.spark import AsyncPipeline, split_dead_letters
from async_op.spark.epoch.fleet import Fleet
from async_op.spark.task.host_access import HostAccess
from keygroups import KeyGroupsError
from snapshots import WriterFenced
from snapshots.cli.app import app, run
from snapshots.host_logs import logs_pattern
from tests.hosting.kit import wait_until
from tests.spark.runs import hide_local_hosts

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark


async def same(value: Any) -> Any:
    return value


async def typo(value: Any) -> Any:
    return {"id": valeu["id"]}  # noqa: F821 - the user's line


class Opens(AsyncFunction):
    async def open(self, runtime: Any) -> None:
        self.key = runtime.token  # the user's line

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]


class Exits(Opens):
    async def open(self, runtime: Any) -> None:
        raise SystemExit(3)  # the user's line


async def exits(value: Any) -> Any:
    raise SystemExit(3)  # the user's line


class World:
    """A pipeline over a file in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        spark.range(3).coalesce(1).write.parquet(str(folder / "in"))

    def pipeline(self, function: Any = same, **options: Any) -> AsyncPipeline:
        common = {"output_schema": "id bigint", "operator_id": "look", "parallelism": 2, "resident": False}
        return AsyncPipeline(function, snapshots=self.folder / "snapshots", **(common | options))

    @property
    def uri(self) -> str:
        return self.pipeline()._stages[0].store.uri

    def copied_checkpoint(self) -> Path:
        """Return a copy of the checkpoint: Spark itself stops an older query with the same one."""
        return Path(shutil.copytree(self.folder / "checkpoint", self.folder / "copy"))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema("id bigint").parquet(str(self.folder / "in"))

    def start(self, pipeline: AsyncPipeline, sink: Any = None, **options: Any) -> Any:
        where = {"checkpoint_location": self.folder / "checkpoint", "trigger": {"availableNow": True}}
        return pipeline.start(self.stream(), sink or (lambda batch, epoch: batch.collect()), **(where | options))


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Any:
    yield World(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "in tasks"])
def test_a_typo_in_the_function_is_shown_with_its_line_once_and_shortly_by_spark(
    world: World, caplog: pytest.LogCaptureFixture, resident: bool
) -> None:
    query = world.start(world.pipeline(typo, resident=resident))
    with pytest.raises(ElementFailed) as raised:
        query.awaitTermination()
    shown = "".join(traceback.format_exception(raised.value))
    assert "NameError: name 'valeu' is not defined" in shown
    assert "# noqa: F821 - the user's line" in shown
    assert "async_op/spark/epoch" not in shown
    assert len(shown.splitlines()) < 20
    assert query.exception() is raised.value
    logged = [one for one in caplog.records if one.levelno >= logging.ERROR and one.name.startswith("async_op.spark")]
    assert ["the user's line" in one.getMessage() for one in logged] == [True]

    with pytest.raises(StreamingQueryException) as of_spark:
        query.query.awaitTermination()
    told = str(of_spark.value)
    assert "EpochFailed" in told
    assert "NameError: name 'valeu' is not defined" in told
    assert "async_op/spark/epoch" not in told
    assert "the user's line" not in told


def test_what_a_sink_raises_is_raised_with_its_line_by_all_that_ask(world: World) -> None:
    def sink(batch: DataFrame, epoch: int) -> None:
        raise OSError("the disk is full")  # the user's line

    query = world.start(world.pipeline(), sink)
    with pytest.raises(OSError, match="the disk is full") as raised:
        query.awaitTermination()
    assert query.exception() is raised.value
    assert "# the user's line" in "".join(traceback.format_exception(raised.value))


@pytest.mark.thorough
def test_a_dead_letter_shows_the_line(world: World) -> None:
    letters: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        letters.extend(split_dead_letters(batch)[1].collect())

    world.start(world.pipeline(typo, on_error="dead_letter", dead_letters="column"), sink).awaitTermination()
    assert ["the user's line" in one.error_traceback for one in letters] == [True] * 3


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "in tasks"])
def test_an_error_in_open_shows_the_line(world: World, resident: bool) -> None:
    query = world.start(world.pipeline(Opens(), resident=resident))
    with pytest.raises(Exception, match=r"(?s)AttributeError|token") as raised:
        query.awaitTermination()
    shown = "".join(traceback.format_exception(raised.value))
    assert "self.key = runtime.token  # the user's line" in shown
    assert f'OpenFailed: open() of Opens has failed at "{__file__}", line ' in shown
    assert len(shown.splitlines()) < 20


def test_a_function_that_blocks_is_warned_of_by_the_driver_while_it_blocks(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 5.0)  # for so long a look may wait for the blocked host
    warned = tmp_path / "warned"

    async def blocks(value: Any) -> Any:
        while not warned.exists():
            time.sleep(0.1)  # noqa: ASYNC251 - the user's line
        return value

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BlocksEventLoop)
        query = world.start(world.pipeline(blocks, resident=True, parallelism=1))
        while not caught:
            assert not query.awaitTermination(1)
        warned.touch()
        query.awaitTermination()
    [told] = caught
    assert "blocks has blocked its event loop for over a second" in str(told.message)
    assert (told.filename, "the user's line" in linecache.getline(told.filename, told.lineno)) == (__file__, True)


@pytest.mark.thorough
def test_a_host_that_is_stopped_in_the_first_epoch_is_named_and_replaced_once_it_is_given_up(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 5.0)
    stopped, given_up = tmp_path / "stopped", []
    access = Fleet.access

    def noted(fleet: Fleet, parallelism: int) -> HostAccess:
        found = access(fleet, parallelism)
        given_up.append(dict(found.given_up))
        return found

    monkeypatch.setattr(Fleet, "access", noted)

    async def hangs(value: Any) -> Any:
        if not stopped.exists():
            stopped.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return value

    world.start(world.pipeline(hangs, resident=True, parallelism=1)).awaitTermination()
    process = stopped.read_text()
    assert given_up[:2] == [{}, {0: f"{socket.gethostname()}:{process}"}], "the second attempt waits no more for it"
    [told] = [one.getMessage() for one in caplog.records if "has not answered" in one.getMessage()]
    assert re.search(
        rf"host of subtask 0 \(process \S+:{process}\) has not answered for 5 s: .* its log, /\S+\.log;", told
    )
    assert caplog.text.count("has shown no sign of life for 60 s") == 1
    assert f"killed process {process}, which was silent for too long" in "".join(world.pipeline().logs().values())


@pytest.mark.thorough
@pytest.mark.parametrize("hangs", ["blocks", "is stopped"])
def test_a_host_on_another_machine_that_hangs_in_the_first_epoch_is_named_within_seconds(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    hide_local_hosts(monkeypatch)
    monkeypatch.setattr(HostSupervisor, "poll", lambda _: {})  # Spark encrypts its traffic: only tasks reach hosts
    hanging, told = tmp_path / "hanging", tmp_path / "told"

    async def hang(value: Any) -> Any:
        hanging.write_text(str(os.getpid()))
        if hangs == "is stopped" and not told.exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        while not told.exists():
            time.sleep(0.1)  # noqa: ASYNC251 - the user's line
        return value

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BlocksEventLoop)
        query = world.start(world.pipeline(hang, resident=True, parallelism=1))
        wait_until(lambda: "has not answered" in caplog.text)
        process = f"{socket.gethostname()}:{hanging.read_text()}"
        told.touch()
        os.kill(int(hanging.read_text()), signal.SIGCONT)
        query.awaitTermination()
    before, _, _ = caplog.text.partition("no sign of life")
    assert re.search(rf"host of subtask 0 \(process {process}\) has not .* its log, /\S+\.log;", before)
    assert [one.filename for one in caught] == [__file__] * (hangs == "blocks")


async def dies(value: Any) -> Any:
    os._exit(3)


def test_each_attempt_that_loses_a_host_says_which_it_was_and_how_the_host_ended(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    query = world.start(world.pipeline(dies, resident=True, parallelism=1))
    with pytest.raises(HostLost, match="host has ended with status 3") as raised:
        query.awaitTermination()
    assert [f"because attempt {number} of 4 failed" in caplog.text for number in (1, 2, 3, 4)] == [True] * 3 + [False]
    assert "attempt 4 of 4 at epoch 1: the next start runs it" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "in tasks"])
@pytest.mark.parametrize("where", ["open", "call"])
def test_what_ends_a_function_s_process_is_named(world: World, where: str, resident: bool) -> None:
    function = Exits() if where == "open" else exits
    query = world.start(world.pipeline(function, resident=resident, parallelism=1))
    with pytest.raises(KeyGroupsError, match="SystemExit: 3") as raised:
        query.awaitTermination()
    assert ("open() of Exits has failed at" in str(raised.value)) is (where == "open")
    assert "raise SystemExit(3)  # the user's line" in "".join(traceback.format_exception(raised.value))


def test_a_cell_that_is_run_twice_says_which_query_it_takes_over_from_and_the_old_one_says_from_whom(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.start(world.pipeline(), trigger=None)
    while not world.pipeline().explain().operators["look"]["snapshots"].startswith(f"{world.uri}, version"):
        first.awaitTermination(1)
    second = world.start(world.pipeline(), trigger=None, checkpoint_location=world.copied_checkpoint())
    assert f"takes over from query {first.id} of this process" in caplog.text
    with pytest.raises(WriterFenced, match=rf"\(\w+ by process {os.getpid()} on .* at 20") as fenced:
        first.drain()
    assert fenced.value.uri == world.uri
    second.stop()
    first.stop()


def test_a_query_that_spark_stops_for_another_start_with_its_checkpoint_says_who_has_taken_over(world: World) -> None:
    first = world.start(world.pipeline(), trigger=None)
    while not world.pipeline().explain().operators["look"]["snapshots"].startswith(f"{world.uri}, version"):
        first.awaitTermination(1)
    second = world.start(world.pipeline(), trigger=None)
    with pytest.raises(WriterFenced, match=rf"\(\w+ by process {os.getpid()} on "):
        first.awaitTermination()
    assert isinstance(first.exception(), WriterFenced)
    second.stop()
    assert second.exception() is None


def test_a_start_without_another_query_says_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start(world.pipeline()).awaitTermination()
    world.start(world.pipeline()).awaitTermination()
    assert "takes over" not in caplog.text


def test_a_run_that_has_finished_says_that_it_reads_no_other_rows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        rows.extend(batch.collect())

    world.pipeline().run(world.spark.range(3), sink, run_id="r")
    assert "run_id" not in caplog.text
    world.pipeline().run(world.spark.range(3, 9), sink, run_id="r")
    assert f"run 'r' of {world.uri} has finished before, so its rows are not read" in caplog.text
    assert len(rows) == 3


INPUTS = {
    "uuid": (["id", "uuid() as token"], False),
    "rand": (["id", "rand() as part"], False),
    "rand with a seed": (["id", "rand(3) as part"], False),
    "a hash": (["id", "md5(string(id)) as digest"], True),
    "a name": (["id", "id as uuid"], True),
    "the time": (["id", "current_timestamp() as at"], True),
}


@pytest.mark.parametrize("case", INPUTS)
def test_explain_finds_an_input_whose_rows_change_when_they_are_read_again(world: World, case: str) -> None:
    columns, is_sound = INPUTS[case]
    found = world.pipeline().explain(world.stream().selectExpr(*columns)).findings
    assert any("change when Spark reads it again" in one.problem for one in found) is not is_sound


async def prints(value: Any) -> Any:
    print("seen by the function")  # noqa: T201 - what the test looks for
    logging.getLogger("mine").info("logged by the function")
    return value


def test_what_a_function_prints_and_logs_is_found_by_the_pipeline_and_the_command(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mine")
    caplog.set_level(logging.INFO, "async_op.spark")
    pipeline = world.pipeline(prints, resident=True)
    assert pipeline.logs() == {}
    world.start(pipeline).awaitTermination()
    (paths, texts) = zip(*pipeline.logs().items(), strict=True)
    assert "seen by the function" in "".join(texts)
    assert "INFO mine: logged by the function" in "".join(texts)
    pattern = logs_pattern(world.uri)
    assert all(fnmatch(path, pattern) for path in paths)
    assert pattern in pipeline.explain().operators["look"]["logs"]
    assert pattern in caplog.text
    shown = CliRunner().invoke(app, ["logs", world.uri])
    assert "seen by the function" in shown.stdout
    assert world.pipeline(operator_id="another").logs() == {}
    assert run(["logs", f"{world.uri}-other"]) == 3
