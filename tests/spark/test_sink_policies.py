"""The sinks of the package at the end of a pipeline: tried again, refused rows by `on_error`, and removed tables."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from async_op import FixedDelayRetry
from async_op.connectors import DeltaSink, FileSink, PostgresSink, Sink, conformance
from async_op.connectors.epoch_rows import FrameRows
from async_op.dead_letters import letter_value
from async_op.spark import AsyncPipeline
from async_op.spark.epoch import delivery
from keygroups import ConfigError
from keygroups.events import Event, listen
from tests.async_op.connectors.tables.targets import Delta
from tests.postgres_server import postgres_url
from tests.quick import first_is_quick

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.spark


async def name_it(row: dict[str, Any]) -> tuple[int, str]:
    return row["n"], f"name {row['n']}"


def pipeline(folder: Path) -> AsyncPipeline:
    return AsyncPipeline(
        name_it,
        key_by="n",
        output_schema="n bigint, name string",
        snapshots=folder / "snapshots",
        operator_id="named",
        barrier_timeout=None,
        parallelism=1,
        resident=False,
    )


def begin(spark: SparkSession, folder: Path, table: str, given: AsyncPipeline | None = None, **options: Any) -> Any:
    stream = spark.readStream.schema("n bigint").parquet(str(folder / "in"))
    return (given or pipeline(folder)).to_table(
        stream, table, checkpoint_location=folder / "checkpoint", trigger={"availableNow": True}, **options
    )


def feed(spark: SparkSession, folder: Path, *numbers: int) -> None:
    rows = spark.createDataFrame([(n,) for n in numbers], "n bigint")
    rows.coalesce(1).write.mode("append").parquet(str(folder / "in"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_url() as url:
        yield url


@pytest.fixture
def table(server: str) -> str:
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists unique_numbers, keygroups_epochs")
        connection.execute("create table unique_numbers (n bigint unique check (n < 100), name text)")
    return "unique_numbers"


def found_in(server: str) -> list[int]:
    with psycopg.connect(server) as connection:
        return [n for (n,) in connection.execute("select n from unique_numbers order by n")]


def letters_in(folder: Path) -> list[int]:
    lines = [line for file in (folder / "letters").glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(letter_value(json.loads(line))["n"] for line in lines)


def test_refused_rows_become_dead_letters_once_although_the_epoch_comes_again(
    spark: SparkSession, tmp_path: Path, server: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(spark, tmp_path, 1, 200, 2, 2, 300, 3)
    options = {"on_error": "dead_letter", "dead_letters": FileSink(tmp_path / "letters", "json")}

    def die(*_: Any) -> None:
        raise RuntimeError("killed before the mark")

    with monkeypatch.context() as patch:
        patch.setattr(delivery, "mark", die)
        with pytest.raises(RuntimeError, match="killed before the mark"):
            begin(spark, tmp_path, table, format="postgres", url=server, **options).awaitTermination()
    begin(spark, tmp_path, table, format="postgres", url=server, **options).awaitTermination()

    assert found_in(server) == [1, 2, 3]
    assert letters_in(tmp_path) == [2, 200, 300]


def test_progress_counts_what_the_sink_has_refused(
    spark: SparkSession, tmp_path: Path, server: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(spark, tmp_path, 1, 200, 300)
    options = {"format": "postgres", "url": server, "on_error": "skip"}

    def die(*_: Any) -> None:
        raise RuntimeError("killed before the write")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, "write_rows", die)
        with pytest.raises(RuntimeError, match="killed before the write"):
            begin(spark, tmp_path, table, **options).awaitTermination()
    feed(spark, tmp_path, 2, 400)
    heard: list[Event] = []
    stop = listen(heard.append)
    again = pipeline(tmp_path)
    begin(spark, tmp_path, table, again, **options).awaitTermination()
    stop()

    assert found_in(server) == [1, 2]
    assert sum(epoch.refused for epoch in again.progress()) == 3, "two of the epoch that came again, one of its own"
    assert sum(event.attributes["refused"] for event in heard if event.name == "epoch") == 3


class Letters(Sink[Any]):
    async def write(self, values: Any, epoch: int) -> None:
        """Write nothing."""


class NoSinkForLetters(Letters):
    def for_dead_letters(self) -> Any:
        return None


class Misspelt(Letters):
    on_error: Any = "dead-letter"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda place: FileSink(place, "json", on_error="dead_letter", dead_letters=Letters()), "'fail' or 'skip'"),
        (lambda place: NoSinkForLetters(), "return a sink"),
        (lambda place: Misspelt(), "use one of fail, skip, dead_letter"),
    ],
    ids=["no end", "no sink", "misspelt"],
)
def test_a_wrong_sink_for_dead_letters_is_refused_before_a_call(
    spark: SparkSession, tmp_path: Path, make: Any, reason: str
) -> None:
    feed(spark, tmp_path, 1)
    options = {"on_error": "dead_letter", "dead_letters": make(tmp_path / "letters")}
    with pytest.raises(ConfigError, match=reason):
        begin(spark, tmp_path, "unused", format="postgres", url="postgresql://localhost:1/none", **options)
    assert spark.streams.active == []


@pytest.mark.parametrize(
    ("is_written", "rows", "letters"),
    first_is_quick([(True, [1, 2], [2, 200]), (False, [1, 2, 200], [2])]),
)
def test_a_constraint_that_changes_before_an_epoch_comes_again_loses_no_row(
    spark: SparkSession,
    tmp_path: Path,
    server: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    is_written: bool,
    rows: list[int],
    letters: list[int],
) -> None:
    feed(spark, tmp_path, 1, 200, 2, 2)
    options = {"on_error": "dead_letter", "dead_letters": FileSink(tmp_path / "letters", "json")}
    owner, name = (delivery, "mark") if is_written else (delivery._Letters, "write")
    work: Any = getattr(owner, name)

    def die(*arguments: Any) -> None:
        if not is_written:
            work(*arguments)
        raise RuntimeError("killed before the mark, or between the dead letters and the rest of the epoch")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(RuntimeError, match="killed before the mark"):
            begin(spark, tmp_path, table, format="postgres", url=server, **options).awaitTermination()
    assert (found_in(server), letters_in(tmp_path)) == ([1, 2] if is_written else [], [2, 200])
    with psycopg.connect(server) as connection:
        connection.execute("alter table unique_numbers drop constraint unique_numbers_n_check")
    begin(spark, tmp_path, table, format="postgres", url=server, **options).awaitTermination()

    assert (found_in(server), letters_in(tmp_path)) == (rows, letters)


def test_a_lost_connection_is_made_again(
    spark: SparkSession, tmp_path: Path, server: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(spark, tmp_path, 1, 2)
    lost: list[int] = []
    append = PostgresSink._append_unless_there

    def lose(self: PostgresSink, *arguments: Any) -> Any:
        if len(lost) < 2:
            lost.append(1)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return append(self, *arguments)

    monkeypatch.setattr(PostgresSink, "_append_unless_there", lose)
    retry = FixedDelayRetry(3, 0.0)
    begin(spark, tmp_path, table, format="postgres", url=server, retry=retry).awaitTermination()
    assert (len(lost), found_in(server)) == (2, [1, 2])


def test_a_table_that_was_removed_is_not_recreated(spark: SparkSession, tmp_path: Path) -> None:
    target = Delta(tmp_path)
    (table,) = target.arguments
    feed(spark, tmp_path, 1)
    begin(spark, tmp_path, table, format="delta").awaitTermination()
    shutil.rmtree(table)
    feed(spark, tmp_path, 2)
    with pytest.raises(LookupError, match="written to it before"):
        begin(spark, tmp_path, table, format="delta")
    with pytest.raises(LookupError, match="is gone"):
        stream = spark.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
        query = pipeline(tmp_path).start(stream, DeltaSink(table, "named"), checkpoint_location=tmp_path / "checkpoint")
        query.awaitTermination()
    assert target.numbers() == []


@pytest.mark.thorough
def test_dead_letters_that_were_removed_are_not_recreated(
    spark: SparkSession, tmp_path: Path, server: str, table: str
) -> None:
    def run(*numbers: int) -> None:
        feed(spark, tmp_path, *numbers)
        options = {"on_error": "dead_letter", "dead_letters": FileSink(tmp_path / "letters", "json")}
        begin(spark, tmp_path, table, format="postgres", url=server, **options).awaitTermination()

    run(1, 200)
    shutil.rmtree(tmp_path / "letters")
    with pytest.raises(LookupError, match="is gone"):
        run(2, 300)
    assert found_in(server) == [1]


def test_of_a_batch_that_is_refused_nothing_is_left(spark: SparkSession) -> None:
    rows = FrameRows(spark.range(0, 4, 1, 2), without=(0, 1))
    assert [row["id"] for row in rows.dicts()] == [2, 3]


def test_options_that_can_never_work_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ConfigError, match="refuses no row"):
        begin(spark, tmp_path, str(tmp_path / "t"), format="parquet", on_error="skip")
    with pytest.raises(ConfigError, match="pass a sink for its dead letters"):
        begin(spark, tmp_path, str(tmp_path / "t"), format="delta", on_error="dead_letter")


def test_a_sink_of_dead_letters_that_never_closes_is_given_up_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Bottomless(Sink[Any]):
        async def write(self, values: Any, epoch: int) -> None:
            written.extend(values)

        async def close(self) -> None:
            await asyncio.Event().wait()

    written: list[Any] = []
    monkeypatch.setattr(conformance, "CLOSE_SECONDS", 0.01)
    delivery._Letters([{"value": 1}]).write(Bottomless(), 1)
    assert written == [{"value": 1}]
    assert "closing Bottomless was given up after 0.01 s" in caplog.text


class Counted(FileSink):
    """Calls a method of the user's own for each epoch."""

    seen: ClassVar[list[int]] = []

    def __call__(self, batch_df: Any, epoch: int) -> None:
        super().__call__(batch_df, epoch)
        self.seen.append(epoch)


def test_a_subclass_that_overrides_the_call_is_called(spark: SparkSession, tmp_path: Path) -> None:
    feed(spark, tmp_path, 1, 2)
    sink = Counted(tmp_path / "out", "json")
    stream = spark.readStream.schema("n bigint").parquet(str(tmp_path / "in"))
    trigger = {"availableNow": True}
    query = pipeline(tmp_path).start(stream, sink, checkpoint_location=tmp_path / "checkpoint", trigger=trigger)
    query.awaitTermination()

    written = [
        json.loads(line)["n"] for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    assert sorted(written) == [1, 2]
    assert len(sink.seen) == 1
