"""Tables that were removed, replaced or restored, while a job ran or between two runs, and servers that are away."""

from __future__ import annotations

import asyncio
import pickle
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyiceberg.catalog import load_catalog

from async_op import Explanation, FixedDelayRetry, Job, RestartPolicy
from async_op.connectors import (
    DeltaSink,
    FileSink,
    KafkaSink,
    PostgresSink,
    SinkRefused,
    SinkUnavailable,
    TargetAhead,
    TargetBehind,
    TargetMissing,
    TargetReplaced,
    TargetTaken,
)
from async_op.connectors.tables.copying import Copying
from async_op.dead_letters import letter_value
from keygroups import ConfigError
from snapshots import WriterFenced
from tests.async_op.connectors.tables.targets import Delta, Iceberg, Postgres, Target
from tests.async_op.job.kit import AT_ITS_END, Epochs, Log, new_job, put_back, running
from tests.quick import first_is_quick


async def as_row(number: int) -> dict[str, Any]:
    return {"n": number, "name": str(number)}


def remove(target: Target) -> None:
    match target:
        case Delta():
            shutil.rmtree(target.arguments[0])
        case Iceberg():
            catalog = load_catalog(**target.catalog)
            catalog.drop_table("sales.orders")
            catalog.close()
        case Postgres():
            with psycopg.connect(target.url) as connection:
                connection.execute("drop table keygroups_epochs")


def advice_of(target: Target, epoch: int) -> str:
    match target:
        case Delta():
            return f"restore the table as it was at epoch {epoch}, with its transaction 'job'"
        case Iceberg():
            return f"roll the table back to the snapshot of epoch {epoch}, and set keygroups.epoch.job to it"
        case _:
            return f"delete the rows of later epochs, and set its epoch in keygroups_epochs to {epoch}"


def put_table_back(target: Target, epoch: int) -> None:
    match target:
        case Delta():
            table = DeltaTable(target.arguments[0])
            commits = [one for one in table.history() if int(one.get("keygroups.epoch", -1)) <= epoch]
            noted = CommitProperties(app_transactions=[Transaction("job", epoch)])
            table.restore(commits[0]["version"], commit_properties=noted)
        case Iceberg():
            catalog = load_catalog(**target.catalog)
            orders = catalog.load_table("sales.orders")
            snapshots = [one for one in orders.snapshots() if int(one.summary["keygroups.epoch"]) <= epoch]
            orders.manage_snapshots().rollback_to_snapshot(snapshots[-1].snapshot_id).commit()
            orders.transaction().set_properties({"keygroups.epoch.job": str(epoch)}).commit_transaction()
            catalog.close()
        case Postgres():
            with psycopg.connect(target.url) as connection:
                connection.execute("delete from orders where n >= %s", ((epoch + 1) // 2,))
                connection.execute("update keygroups_epochs set epoch = %s where job = 'job'", (epoch,))


def job_into(target: Target, folder: Path, *numbers: int, name: str = "job", **options: Any) -> Job:
    sink = target.sink(name)
    return new_job([*numbers], as_row, sink, snapshots=str(folder / "snapshots"), **AT_ITS_END, **options)


async def test_a_table_that_was_removed_between_two_runs_is_not_recreated(target: Target, tmp_path: Path) -> None:
    await job_into(target, tmp_path, 1, 2).run()
    remove(target)
    with pytest.raises((TargetMissing, TargetReplaced)) as raised:
        await job_into(target, tmp_path, 1, 2, 3).run()
    assert "another name" in str(raised.value)
    if not isinstance(target, Postgres):
        assert target.numbers() == []
        await target.sink("else").write([{"n": 100, "name": ""}], 1)  # made again by another job
        with pytest.raises(TargetReplaced):
            await job_into(target, tmp_path, 1, 2, 3).run()
    await job_into(target, tmp_path, 1, 2, 3, name="another").run()
    assert 3 in target.numbers()


async def test_a_table_that_is_removed_while_a_job_runs_is_not_recreated(target: Target, tmp_path: Path) -> None:
    sink = target.sink()
    await sink.write([await as_row(1)], 1)
    remove(target)
    with pytest.raises((TargetMissing, TargetReplaced)):
        await sink.write([await as_row(2)], 2)
    await sink.close()


@pytest.mark.parametrize("was_written", [True, False])
async def test_a_recreated_table_of_postgresql_is_noticed(server: str, tmp_path: Path, was_written: bool) -> None:
    target = Postgres(server)
    await job_into(target, tmp_path, 1, 2).run()
    with psycopg.connect(server) as connection:
        connection.execute("truncate orders")
        connection.execute("alter table orders add column later int")
    await job_into(target, tmp_path, 1, 2, 3).run()
    assert target.numbers() == [3]  # the same table

    with psycopg.connect(server) as connection:
        connection.execute("drop table orders")
        connection.execute("create table orders (n bigint, name text)")
    if not was_written:
        shutil.rmtree(tmp_path / "snapshots")  # its first epochs would count as repeats
    with pytest.raises(TargetReplaced if was_written else TargetTaken) as raised:
        await job_into(target, tmp_path, 1, 2, 3, 4).run()
    assert raised.value.target.startswith("public.orders")
    assert target.numbers() == []
    await job_into(target, tmp_path, 1, 2, 3, 4, name="another").run()
    assert 4 in target.numbers()


async def test_a_dump_of_the_note_of_epochs_names_the_table(server: str) -> None:
    target = Postgres(server)
    await target.sink().write([await as_row(1)], 1)
    with psycopg.connect(server) as connection:
        (dumped,) = connection.execute("select target::text from keygroups_epochs").fetchone() or ("",)
    assert dumped in {"orders", "public.orders"}  # and no number, which would be another table's after a restore


async def test_epochs_of_another_job_are_not_taken_for_those_of_this_one(target: Target, tmp_path: Path) -> None:
    monday, tuesday = tmp_path / "monday", tmp_path / "tuesday"
    await job_into(target, monday, 1).run()
    for _ in range(2):
        with pytest.raises(TargetTaken, match="name of its own") as raised:
            await job_into(target, tuesday, 7).run()
    assert (pickle.loads(pickle.dumps(raised.value)).name, target.numbers()) == ("job", [1])
    await job_into(target, tuesday, 7, name="another").run()
    for notes in monday.glob("**/sink"):
        notes.unlink()  # as if the job had been killed before it noted that the table has an epoch
    await job_into(target, monday, 1, 2).run()
    assert target.numbers() == [1, 2, 7]


async def test_two_jobs_with_one_sink_lose_no_output(target: Target, tmp_path: Path) -> None:
    sink, numbers = target.sink(), {"monday": [1, 2], "tuesday": [7, 8]}

    def job(name: str, sink: Any) -> Job:
        return new_job(numbers[name], as_row, sink, snapshots=str(tmp_path), job_id=name, **AT_ITS_END)

    ended = await asyncio.gather(*(job(name, sink).run() for name in numbers), return_exceptions=True)
    (refused,) = [name for name, error in zip(numbers, ended, strict=True) if isinstance(error, TargetTaken)]
    (other,) = numbers.keys() - {refused}
    assert (target.numbers(), ended.count(None)) == (numbers[other], 1)
    await job(refused, target.sink("another")).run()
    assert target.numbers() == [1, 2, 7, 8]


async def test_a_sink_that_a_job_uses_is_looked_at_without_a_change(target: Target, tmp_path: Path) -> None:
    source, sink = Log([1]), target.sink()
    async with running(new_job(source, as_row, sink, snapshots=str(tmp_path), job_id="monday")) as task:
        await eventually_has(target, [1])
        found = await new_job([7], as_row, sink, snapshots=str(tmp_path), job_id="tuesday").explain()
        assert [one.is_refusal for one in found.findings] == [True]
        await source.append(0, 2)
        await eventually_has(target, [1, 2])
        assert not task.done()


async def eventually_has(target: Target, numbers: list[int]) -> None:
    async with asyncio.timeout(120):
        while await asyncio.to_thread(target.numbers) != numbers:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("versions", first_is_quick([2, 1, 5]))
async def test_outputs_after_going_back_are_not_skipped_as_repeated_ones(
    target: Target, tmp_path: Path, versions: int
) -> None:
    for count in range(1, 5):
        await job_into(target, tmp_path, *range(count)).run()
    put_back(tmp_path / "snapshots", versions)
    for _ in range(2):
        with pytest.raises(TargetAhead, match="an earlier version") as raised:
            await job_into(target, tmp_path, *range(4), 100, restart=RestartPolicy()).run()
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.newest > error.known
    assert target.numbers() == [*range(4)]

    assert advice_of(target, error.known) in str(error)
    put_table_back(target, error.known)
    for _ in range(2):
        await job_into(target, tmp_path, *range(4), 100).run()
    assert target.numbers() == [*range(4), 100]


async def test_what_a_run_finds_wrong_with_a_table_is_told_before_it_takes_over(target: Target, tmp_path: Path) -> None:
    def refusals(found: Explanation) -> list[str]:
        return [one.advice for one in found.findings if one.is_refusal]

    assert not (await job_into(target, tmp_path, 1).explain()).findings
    assert (target.rows(), target.notes_epochs()) == ([], False)
    for count in range(1, 4):
        await job_into(target, tmp_path, *range(count)).run()
        assert not (await job_into(target, tmp_path, *range(4)).explain()).findings
    put_back(tmp_path / "snapshots", 2)

    for change, kinds in ((lambda: None, TargetAhead), (lambda: remove(target), (TargetMissing, TargetReplaced))):
        change()
        (told,) = refusals(await job_into(target, tmp_path, *range(4)).explain())
        with pytest.raises(kinds) as raised:
            await job_into(target, tmp_path, *range(4)).run()
        assert str(raised.value) in told


async def test_a_sink_may_be_used_after_its_job_has_ended(target: Target, tmp_path: Path) -> None:
    job = job_into(target, tmp_path, 1)
    await job.run()
    for epoch in (50, 51):
        await job._sink.write([await as_row(epoch)], epoch)
    await job._sink.close()
    assert target.numbers() == [1, 50, 51]


async def test_a_run_that_was_fenced_while_it_wrote_is_told_so(target: Target, tmp_path: Path) -> None:
    """The later epochs in the table come from the run that has taken over, so no snapshot was put back."""
    fenced = job_into(target, tmp_path, 1, restart=RestartPolicy())
    arrived, may_go_on = threading.Event(), threading.Event()
    append = fenced._sink._append_unless_there

    def wait(rows: Any, epoch: int) -> Any:
        arrived.set()
        assert may_go_on.wait(120)
        return append(rows, epoch)

    fenced._sink._append_unless_there = wait
    running_job = asyncio.create_task(fenced.run())
    await asyncio.to_thread(arrived.wait, 120)
    await job_into(target, tmp_path, 1, 2, 3).run()
    may_go_on.set()
    with pytest.raises(WriterFenced):
        await running_job
    assert target.numbers() == [1, 2, 3]


async def test_a_table_that_has_lost_epochs_is_noticed_at_the_next_start(target: Target, tmp_path: Path) -> None:
    for count in range(1, 5):
        await job_into(target, tmp_path, *range(count)).run()
    put_table_back(target, 3)  # as if it had been restored from a backup
    kept = target.numbers()
    for _ in range(2):
        with pytest.raises(TargetBehind, match="in a failover") as raised:
            await job_into(target, tmp_path, *range(5), restart=RestartPolicy()).run()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.newest, error.written, target.numbers()) == (3, 7, kept)

    put_back(tmp_path / "snapshots", len(list((tmp_path / "snapshots" / "job" / "manifests").iterdir())) - 3)
    await job_into(target, tmp_path, *range(5)).run()
    assert target.numbers() == [*range(5)]


async def test_a_copy_of_a_version_knows_what_was_written(target: Target, tmp_path: Path) -> None:
    """It has neither the mark nor the notes of its original."""
    for count in range(1, 4):
        await job_into(target, tmp_path, *range(count)).run()
    put_back(tmp_path / "snapshots", 0)
    put_table_back(target, 1)
    with pytest.raises(TargetBehind):
        await job_into(target, tmp_path, *range(4)).run()
    remove(target)
    with pytest.raises((TargetMissing, TargetReplaced)):
        await job_into(target, tmp_path, *range(4)).run()


async def test_a_server_that_takes_over_without_the_last_transactions_is_noticed(server: str, tmp_path: Path) -> None:
    target, source = Postgres(server), Log([1])
    job = new_job(source, as_row, target.sink(), snapshots=str(tmp_path / "snapshots"))
    with pytest.raises(TargetBehind):
        async with running(job) as running_job, asyncio.timeout(120):
            while target.numbers() != [1] or job.progress().undelivered:
                await asyncio.sleep(0)
            put_table_back(target, 0)
            await source.append(0, 2)
            await running_job
    assert target.numbers() == []


@pytest.mark.parametrize("restart", [None, RestartPolicy(initial_delay=0)])
async def test_an_epoch_whose_answer_was_lost_is_no_later_one(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: RestartPolicy | None
) -> None:
    append, written = target.kind._append_unless_there, []

    def lose_answer(sink: Any, rows: Any, epoch: int) -> Any:
        written.append(append(sink, rows, epoch))
        if written[-1] is None:
            raise ConnectionError("the answer was lost")
        return written[-1]

    monkeypatch.setattr(target.kind, "_append_unless_there", lose_answer)
    for count in (1, 3):
        job = job_into(target, tmp_path, *range(count), restart=restart)
        job._sink.retry = FixedDelayRetry(3, delay=0) if restart is None else None
        await job.run()
    assert (target.numbers(), len(written)) == ([0, 1, 2], 4)


async def test_another_table_under_the_name_of_another_job_is_refused(server: str, tmp_path: Path) -> None:
    await job_into(Postgres(server), tmp_path / "monday", 1).run()
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists letters")
        connection.execute("create table letters (n bigint, name text)")
    with pytest.raises(TargetTaken, match="letters"):
        await new_job([1], as_row, PostgresSink(server, "letters", "job")).run()


@pytest.mark.parametrize(
    "sinks",
    [
        lambda folder: (PostgresSink("postgresql://x", "orders", "job"), PostgresSink("postgresql://x", "bad", "job")),
        lambda folder: (DeltaSink(str(folder / "t"), "job"), DeltaSink(str(folder / "t"), "job")),
        lambda folder: (FileSink(folder, "json"), FileSink(f"{folder}/", "json")),
        lambda folder: tuple(KafkaSink(topic, "job", {"bootstrap.servers": "b"}) for topic in ("good", "bad")),
    ],
    ids=["postgres", "delta", "files", "kafka"],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_dead_letters_do_not_share_the_notes_of_the_outputs(sinks: Any, is_own: bool, tmp_path: Path) -> None:
    sink, letters = sinks(tmp_path)
    if is_own:
        sink.dead_letters = letters
    with pytest.raises(ConfigError, match="another name or folder"):
        new_job([1], as_row, sink, dead_letters=None if is_own else letters)


async def test_a_new_table_is_made_for_another_sink_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    await job_into(Delta(tmp_path), tmp_path, 1).run()
    await job_into(other := Delta(tmp_path / "other"), tmp_path, 1, 2).run()
    assert other.numbers() == [2]


@pytest.fixture
def constrained(server: str) -> str:
    with psycopg.connect(server) as connection:
        connection.execute("drop table if exists unique_numbers, keygroups_epochs")
        connection.execute("create table unique_numbers (n bigint unique, name text)")
    return server


def found_in(server: str) -> list[int]:
    with psycopg.connect(server) as connection:
        return [n for (n,) in connection.execute("select n from unique_numbers order by n")]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
async def test_rows_that_violate_a_constraint_are_left_out_or_become_dead_letters(
    constrained: str, on_error: Any
) -> None:
    sink = PostgresSink(constrained, "unique_numbers", "job", on_error=on_error)
    letters = Epochs()
    job = new_job([1, 2, 2, 3, 1, 4], as_row, sink, dead_letters=letters)
    await job.run()

    assert (found_in(constrained), job.progress().refused) == ([1, 2, 3, 4], 2)
    numbers = [letter_value(letter)["n"] for letter in letters.values]
    assert sorted(numbers) == ([1, 2] if on_error == "dead_letter" else [])


async def test_a_connection_that_is_killed_during_a_copy_is_made_again(
    constrained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    fields = Copying._fields

    def kill_once(self: Copying, row: Any) -> list[Any]:
        if row["n"] == 500 and not killed:
            killed.append(pid := self._connection.info.backend_pid)
            with psycopg.connect(constrained) as other:
                other.execute("select pg_terminate_backend(%s, 60000)", (pid,))
        return fields(self, row)

    monkeypatch.setattr(Copying, "_fields", kill_once)
    sink = PostgresSink(constrained, "unique_numbers", "job", retry=FixedDelayRetry(3, 0.0))
    await new_job(list(range(1000)), as_row, sink).run()
    assert (len(killed), found_in(constrained)) == (1, [*range(1000)])


async def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    constrained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    append = PostgresSink._append_unless_there

    def lose_once(self: PostgresSink, *arguments: Any) -> Any:
        outcome = append(self, *arguments)
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return outcome

    monkeypatch.setattr(PostgresSink, "_append_unless_there", lose_once)
    with psycopg.connect(constrained) as connection:
        connection.execute("alter table unique_numbers drop constraint unique_numbers_n_key")
    sink = PostgresSink(constrained, "unique_numbers", "job", retry=FixedDelayRetry(3, 0.0))
    await new_job([1, 2], as_row, sink).run()
    assert (len(lost), found_in(constrained)) == (1, [1, 2])


@pytest.mark.parametrize(
    ("url", "attempts"), [("postgresql://127.0.0.1:1/sales", 3), ("postgresql:///no_such_database", 1)]
)
async def test_a_server_that_is_away_is_asked_again_and_a_wrong_name_is_not(
    server: str, url: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if attempts == 1:
        url = server.replace("/postgres", "/no_such_database", 1)
    asked: list[int] = []
    connect: Callable[..., Any] = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *args, **options: (asked.append(1), connect(*args, **options))[1])
    sink = PostgresSink(url, "orders", "job", retry=FixedDelayRetry(3, 0.0))
    with pytest.raises(SinkUnavailable if attempts > 1 else SinkRefused) as raised:
        await new_job([1], as_row, sink).run()
    assert len(asked) == attempts
    assert re.search(
        "opening PostgresSink|could not be opened", f"{raised.value}{getattr(raised.value, '__notes__', '')}"
    )
