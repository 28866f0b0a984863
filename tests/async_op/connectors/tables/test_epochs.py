"""Every table as a sink: an epoch is there once, whatever comes in between."""

from __future__ import annotations

import itertools
import logging
import pickle
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest

from async_op.connectors import EpochsBehind, SinkContended, TargetMissing, UnwritableValue, epoch_gaps
from async_op.connectors.epoch_rows import OutputRows
from keygroups import ConfigError
from tests.async_op.connectors.tables.targets import SCHEMA, Delta, Iceberg, Postgres, Target
from tests.async_op.job.kit import new_job, same
from tests.async_op.kit import records_in
from tests.quick import first_are_quick, first_is_quick


def rows(*numbers: int) -> list[dict]:
    return [{"n": number, "name": f"é {number}"} for number in numbers]


async def test_epochs_are_appended(target: Target) -> None:
    sink = target.sink()
    await sink.open()
    await sink.write(rows(1, 2), 1)
    await sink.write([{"n": 3}, {"n": 4, "name": None}], 7)
    await sink.close()

    found = sorted(target.rows(), key=lambda row: row["n"])
    assert [(row["n"], row["name"]) for row in found] == [(1, "é 1"), (2, "é 2"), (3, None), (4, None)]


async def test_an_epoch_that_comes_again_is_there_once(target: Target) -> None:
    sink, restarted = target.sink(), target.sink()
    for one in (sink, restarted):
        for epoch in (1, 1, 2, 1, 2, 5):
            await one.write(rows(epoch), epoch)
        await one.close()

    assert target.numbers() == [1, 2, 5]


async def test_two_jobs_may_write_into_one_table(target: Target) -> None:
    for name in ("a", "b"):
        sink = target.sink(name)
        await sink.write(rows(1), 1)
        await sink.close()

    assert target.numbers() == [1, 1]


async def test_a_job_that_begins_anew_is_told(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(epoch_gaps, "_REPEATS_MAX", 2)
    sink = target.sink()
    await sink.write(rows(100), 100)
    with caplog.at_level(logging.WARNING, "async_op"):
        await sink.write(rows(1), 1)
        await sink.write(rows(2), 2)
    assert [record.args for record in records_in(caplog)] == [(1, "job", 100), (2, "job", 100)]
    with pytest.raises(EpochsBehind, match="another name") as raised:
        await sink.write(rows(3), 3)
    await sink.close()

    assert (pickle.loads(pickle.dumps(raised.value)).epoch, raised.value.newest) == (3, 100)
    assert target.numbers() == [100]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_an_epoch_of_empty_outputs_is_refused_by_on_error(target: Target, on_error: str) -> None:
    sink = target.sink()
    sink.on_error = on_error
    job = new_job([{}, {}], same, sink)
    if on_error == "fail":
        with pytest.raises(UnwritableValue, match="there is no column") as raised:
            await job.run()
        assert raised.value.index == 0
    else:
        await job.run()
        assert job.progress().refused == 2
    assert target.rows() == []


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([{"n": 1}, {"n": 2, "name": {}}, {"n": 3, "name": []}], [1, 2]),
        ([{"n": 1, "name": "a"}, {"n": "x"}, {"n": 2}, {"n": "y"}, {}], [1, 3]),
        ([{"n": 1, "name": "a"}, 7, {1: 2}], [1, 2]),
    ],
    ids=["no type", "other type", "no dict"],
)
async def test_outputs_that_keep_a_table_from_being_made_are_left_out(target: Target, values, refused) -> None:
    sink = target.sink()
    sink.on_error = "skip"
    job = new_job(values, same, sink)
    await job.run()
    assert job.progress().refused == len(refused)
    kept = [value["n"] for index, value in enumerate(values) if index not in refused and value]
    assert [row["n"] for row in target.rows() if row["n"] is not None] == kept


@pytest.mark.parametrize(
    "value",
    first_are_quick(2, [{"n": "seven"}, {"n": 1, "other": 2}, {"n": object()}, 7]),
    ids=["type", "column", "object", "no dict"],
)
async def test_an_epoch_with_a_wrong_value_leaves_nothing(target: Target, value) -> None:
    sink = target.sink()
    await sink.write(rows(1), 1)
    try:
        with pytest.raises(UnwritableValue):
            await sink.write([*rows(2), value], 2)
    finally:
        await sink.close()
    assert target.numbers() == [1]
    await sink.write(rows(2), 2)
    await sink.close()

    assert target.numbers() == [1, 2]


KILLED = """
import asyncio, os, pickle, sys
from async_op.connectors.epoch_rows import OutputRows
sink, values, step = pickle.loads(bytes.fromhex(sys.argv[1]))

def die(*_):
    os.kill(os.getpid(), 9)

def until_the_middle(made):
    def cut(self, *arguments):
        for number, one in enumerate(made(self, *arguments)):
            yield one
            if number == 0:
                die()
    return cut

if step == "between two rows":
    OutputRows.batches, OutputRows.dicts = until_the_middle(OutputRows.batches), until_the_middle(OutputRows.dicts)
else:
    append = type(sink)._append_unless_there
    type(sink)._append_unless_there = lambda *arguments: die(append(*arguments))
asyncio.run(sink.write(values, 2))
"""


@pytest.mark.parametrize("step", first_is_quick(["after the commit", "between two rows"]))
def test_a_writer_that_is_killed_leaves_all_or_nothing(target: Target, step: str) -> None:
    target.sink().write_rows(OutputRows(rows(1)), 1)
    values = rows(2, 3)

    packed = pickle.dumps((target.sink(), values, step)).hex()
    ended = subprocess.run([sys.executable, "-c", KILLED, packed], check=False, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr
    assert target.numbers() == ([1] if step == "between two rows" else [1, 2, 3])

    target.sink().write_rows(OutputRows(values), 2)
    assert target.numbers() == [1, 2, 3]


def test_of_three_writers_of_each_epoch_one_gets_through(target: Target) -> None:
    together = threading.Barrier(3)
    errors: list[BaseException] = []

    def write() -> None:
        sink = target.sink()
        try:
            for epoch in range(1, 4):
                together.wait()
                sink.write_rows(OutputRows(rows(epoch)), epoch)
        except Exception as error:  # noqa: BLE001 - the test's own thread shows it
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert target.numbers() == [1, 2, 3]


def test_three_jobs_at_once_lose_no_epoch(target: Target) -> None:
    together = threading.Barrier(3)
    errors: list[BaseException] = []

    def write(name: str) -> None:
        sink = target.sink(name)
        try:
            together.wait()
            for epoch in range(1, 4):
                sink.write_rows(OutputRows(rows(epoch)), epoch)
        except Exception as error:  # noqa: BLE001 - the test's own thread shows it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert target.numbers() == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_a_writer_whom_others_always_forestall_gives_up_and_has_written_nothing(
    tmp_path: Path, kind: type[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{kind.kind.__module__}.ATTEMPTS_MAX", 3)
    target = kind(tmp_path)
    faster, late = target.sink("faster"), target.sink()
    append, epochs = late._append, itertools.count(1)

    def be_late(*arguments: object) -> None:
        epoch = next(epochs)
        faster.write_rows(OutputRows(rows(epoch)), epoch)
        append(*arguments)

    late._append = be_late
    with pytest.raises(SinkContended) as raised:
        late.write_rows(OutputRows(rows(100)), 1)
    assert raised.value.attempts == 3
    assert target.numbers() == [1, 2, 3]

    late._append = append
    late.write_rows(OutputRows(rows(100)), 1)
    assert target.numbers() == [1, 2, 3, 100]


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_a_writer_that_gives_up_shows_no_secret_of_the_table(
    tmp_path: Path, kind: type[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{kind.kind.__module__}.ATTEMPTS_MAX", 1)
    target = kind(tmp_path)
    faster, late = target.sink("faster"), target.sink()
    append = late._append

    def be_late(*arguments: object) -> None:
        faster.write_rows(OutputRows(rows(1)), 1)
        late._table = "s3://user:secret@host/table"
        append(*arguments)

    late._append = be_late
    with pytest.raises(SinkContended) as raised:
        late.write_rows(OutputRows(rows(100)), 1)
    assert "secret" not in str(raised.value) + raised.value.table


@pytest.mark.parametrize("epoch", [-1, "1", None])
async def test_an_epoch_is_a_number(target: Target, epoch) -> None:
    sink = target.sink()
    with pytest.raises(ConfigError, match="epoch"):
        await sink.write(rows(1), epoch)
    await sink.close()


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_job_has_a_name(target: Target, name) -> None:
    with pytest.raises(ConfigError, match="name"):
        target.sink(name)


def test_a_sink_is_sent_to_other_processes(target: Target) -> None:
    sink = pickle.loads(pickle.dumps(target.sink()))
    sink.write_rows(OutputRows(rows(1)), 1)
    assert target.numbers() == [1]


@pytest.mark.parametrize("kind", [Delta, Iceberg])
async def test_a_table_that_is_made_keeps_times_in_utc(tmp_path: Path, kind: type[Target]) -> None:
    target = kind(tmp_path)
    at = datetime(2020, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    sink = target.sink()
    await sink.write([{"n": 1, "at": at, "more": {"at": [at]}}], 1)
    await sink.close()

    assert target.rows() == [{"n": 1, "at": at, "more": {"at": [at]}}]


@pytest.mark.parametrize("kind", [Delta, Iceberg])
async def test_a_column_without_a_value_needs_a_schema(tmp_path: Path, kind: type[Target]) -> None:
    target = kind(tmp_path)
    with_schema, without = target.sink(), target.sink()
    with_schema._schema = SCHEMA
    try:
        with pytest.raises(UnwritableValue, match="pass a schema"):
            await without.write([{"n": 1, "name": None}], 1)
        await with_schema.write([{"n": 1, "name": None}], 1)
    finally:
        await without.close()
        await with_schema.close()

    assert target.rows() == [{"n": 1, "name": None}]


async def test_what_postgresql_has_of_its_own_is_kept(server: str) -> None:
    target = Postgres(server)
    sink = target.sink()
    await sink.write([{"n": 1, "extra": {"a": [1]}}], 1)
    await sink.close()

    with psycopg.connect(server) as connection:
        assert connection.execute("select extra, seen is not null from orders").fetchall() == [({"a": [1]}, True)]
        connection.execute("drop table orders")
    with pytest.raises(TargetMissing, match="public.orders") as raised:
        target.sink().write_rows(OutputRows(rows(1)), 2)
    assert "postgresql:" not in str(pickle.loads(pickle.dumps(raised.value)))
