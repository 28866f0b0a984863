"""Files as a sink: one for each epoch, whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pickle
import subprocess
import sys
import threading
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from async_op import Job, Step
from async_op.connectors import (
    EpochsBehind,
    FileSink,
    FileSource,
    SinkFolderRefused,
    TargetAhead,
    TargetTaken,
    UnwritableValue,
)
from async_op.connectors.epoch_rows import OutputRows
from async_op.connectors.files.sink import FileFolder
from keygroups import ConfigError
from snapshots import PathObstructed, SnapshotStore
from tests.async_op.connectors.kit import opened, values_of
from tests.async_op.job.kit import AT_ITS_END, new_job, put_back, same
from tests.quick import first_is_quick

ROWS = [{"n": 1, "name": 'é\n"x"\ry'}, {"n": 2, "name": None}, {"n": 3, "name": "a\rb"}]


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
async def test_what_a_sink_writes_a_source_reads(tmp_path: Path, format: str) -> None:
    sink = FileSink(str(tmp_path), format)
    await sink.open()
    await sink.write(ROWS, 3)
    await sink.write(ROWS[:1], 12)
    await sink.close()

    source = FileSource(str(tmp_path / "*"), format)
    names = list(await source.partitions())
    read = [row for name in names for row in await values_of(source, name)]
    await source.close()
    wanted = [*ROWS, *ROWS[:1]]
    if format == "csv":
        wanted = [{name: "" if value is None else str(value) for name, value in row.items()} for row in wanted]
    assert read == wanted
    assert [int(Path(name).stem.removeprefix("epoch-")) for name in names] == [3, 12]


@given(lines=st.lists(st.text(st.sampled_from("a,\r\n\ufeff\x85 ") | st.characters(categories=["Cs", "L"]))))
def test_lines_come_back_or_are_refused(lines: list[str]) -> None:
    async def written_and_read() -> None:
        folder = f"memory://{uuid.uuid4()}"
        sink = FileSink(folder, "lines")
        refused = {error.index for error in await sink.refused(lines)}
        kept = [line for index, line in enumerate(lines) if index not in refused]
        await sink.write(kept, 1)
        async with opened(FileSource(f"{folder}/*.txt", "lines")) as source:
            assert await values_of(source, *await source.partitions()) == kept
        assert all(set(lines[index]) - set("a, \x85") for index in refused)

    asyncio.run(written_and_read())


@pytest.mark.parametrize("delimiter", [";", "\t"])
async def test_csv_with_another_delimiter_comes_back(tmp_path: Path, delimiter: str) -> None:
    rows = [{"name": "a;b", "x,y": "1\t2"}, {"name": "", "x,y": "3"}]
    await FileSink(tmp_path, "csv", delimiter=delimiter).write(rows, 1)

    async with opened(FileSource(tmp_path / "*.csv", "csv", delimiter=delimiter)) as source:
        assert await values_of(source, *await source.partitions()) == rows


def test_rows_of_one_column_are_lines(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "lines")
    sink.write_rows(OutputRows([{"line": "a"}, {"line": "b"}]), 1)

    assert visible(tmp_path) == {"epoch-00000000000000000001.txt": b"a\nb\n"}
    assert [error.index for error in sink.refused_rows(OutputRows([{"line": "a"}, {"line": None}]))] == [1]
    assert [error.index for error in sink.refused_rows(OutputRows([{"line": "a", "more": "b"}]))] == [0]


async def test_dead_letters_of_a_sink_of_lines_are_json(tmp_path: Path) -> None:
    async def fails(value: str) -> str:
        raise ValueError("no")

    await Job(
        ["a"],
        Step(fails, on_error="dead_letter"),
        FileSink(tmp_path / "out", "lines"),
        dead_letters=FileSink(tmp_path / "letters", "lines"),
        snapshots=tmp_path / "snapshots",
        job_id="job",
        **AT_ITS_END,
    ).run()

    letter = visible(tmp_path / "letters")["epoch-00000000000000000001.jsonl"]
    assert json.loads(letter)["value"] == '"a"'


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
async def test_an_epoch_that_comes_again_replaces_its_file(tmp_path: Path, format: str) -> None:
    sink = FileSink(str(tmp_path), format)
    await sink.write(ROWS, 1)
    await sink.write([{"n": 1}] * 100, 2)
    once = visible(tmp_path)
    await sink.write(ROWS, 1)
    await sink.write(ROWS, 2)

    assert set(visible(tmp_path)) == set(once)
    first, second = visible(tmp_path).values()
    assert first == second == next(iter(once.values()))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("storage", ["local", "memory"])
async def test_a_job_without_its_snapshots_does_not_mix_its_files_with_older_ones(
    tmp_path: Path, storage: str, format: str
) -> None:
    folder = str(tmp_path) if storage == "local" else f"memory://{tmp_path.name}-{format}"
    first = FileSink(folder, format)
    for epoch in (1, 2, 4):
        await first.write([{"n": epoch}], epoch)

    anew = FileSink(folder, format)
    await anew.write([{"n": 1}], 1)  # taken for a repeat
    for epoch, wanted in ((2, "other content"), (3, "no file")):
        with pytest.raises(EpochsBehind, match="give its sink another folder") as raised:
            await anew.write([{"n": wanted}], epoch)
        error = pickle.loads(pickle.dumps(raised.value))
        assert (error.epoch, error.newest, error.name) == (epoch, 4, folder)
    await anew.write([{"n": 5}], 5)

    source = FileSource(f"{folder}/*", format)
    read = [int(row["n"]) for name in await source.partitions() for row in await values_of(source, name)]
    await source.close()
    assert read == [1, 2, 4, 5]


@pytest.mark.parametrize("storage", ["local", "memory"])
async def test_files_of_another_job_are_not_replaced(tmp_path: Path, storage: str) -> None:
    folder = str(tmp_path) if storage == "local" else f"memory://{tmp_path.name}-jobs"

    def job(name: str, *numbers: int) -> Any:
        return new_job([*numbers], same, FileSink(folder, "json"), snapshots=f"memory://{tmp_path.name}-{name}")

    await job("monday", 1).run()
    for _ in range(2):
        with pytest.raises(TargetTaken, match="a folder of its own"):
            await job("tuesday", 7).run()
    await job("monday", 1, 2).run()
    source = FileSource(f"{folder}/*", "json")
    read = [value for name in await source.partitions() for value in await values_of(source, name)]
    await source.close()
    assert read == [1, 2]


@pytest.mark.parametrize("storage", ["local", "memory"])
@pytest.mark.parametrize("is_one_object", [True, False])
async def test_two_jobs_that_begin_at_once_in_an_empty_folder_lose_no_output(
    tmp_path: Path, storage: str, is_one_object: bool
) -> None:
    folder = str(tmp_path / "out") if storage == "local" else f"memory://{tmp_path.name}-at-once"
    sinks = [FileSink(folder, "lines") for _ in "ab"]
    if is_one_object:
        sinks = sinks[:1] * 2

    def job(name: str, sink: FileSink) -> Any:
        return new_job([name] * 3, same, sink, snapshots=f"memory://{tmp_path.name}", job_id=name, **AT_ITS_END)

    runs = [job(name, sink).run() for name, sink in zip("ab", sinks, strict=True)]
    ended = await asyncio.gather(*runs, return_exceptions=True)
    (refused,) = [name for name, error in zip("ab", ended, strict=True) if isinstance(error, TargetTaken)]
    assert ended.count(None) == 1
    await job(refused, FileSink(f"{folder}-of-its-own", "lines")).run()
    for name in "ab":
        source = FileSource(f"{folder}{'-of-its-own' if name == refused else ''}/*", "lines")
        assert [one for part in await source.partitions() for one in await values_of(source, part)] == [name] * 3
        await source.close()


async def test_two_jobs_may_have_files_of_their_own_format_in_one_folder(tmp_path: Path) -> None:
    for _ in range(2):
        for format in ("json", "csv"):
            sink = FileSink(tmp_path, format)
            await new_job([{"n": 1}], same, sink, snapshots=f"memory://{tmp_path.name}", job_id=format).run()
    assert [name.partition(".")[2] for name in visible(tmp_path) if name[0] != "."] == ["csv", "jsonl"]


async def test_a_copy_of_a_job_does_not_write_among_the_files_of_the_original(tmp_path: Path) -> None:
    def job(numbers: list[int], name: str) -> Any:
        return new_job(numbers, same, FileSink(tmp_path / "out", "json"), snapshots=str(tmp_path / name), **AT_ITS_END)

    await job([1], "original").run()
    original = SnapshotStore(tmp_path / "original", "job")
    await asyncio.to_thread(original.copy_to, SnapshotStore(tmp_path / "copy", "job"))
    with pytest.raises(TargetTaken):
        await job([1, 2], "copy").run()
    await job([1, 2], "original").run()


@pytest.mark.parametrize("versions", first_is_quick([2, 1, 5]))
async def test_files_of_versions_that_were_given_up_have_to_be_removed(tmp_path: Path, versions: int) -> None:
    def job(*numbers: int) -> Any:
        sink = FileSink(tmp_path / "out", "json")
        return new_job([*numbers], same, sink, snapshots=str(tmp_path / "snapshots"), **AT_ITS_END)

    for count in range(1, 5):
        await job(*range(count)).run()
    put_back(tmp_path / "snapshots", versions)
    for _ in range(2):
        with pytest.raises(TargetAhead, match="remove the files of the later epochs") as raised:
            await job(*range(4), 100).run()
    for name in filter(lambda name: name.startswith("epoch-"), visible(tmp_path / "out")):
        if int(name.removeprefix("epoch-").removesuffix(".jsonl")) > raised.value.known:
            (tmp_path / "out" / name).unlink()
    await job(*range(4), 100).run()
    lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().split()]
    assert sorted(map(int, lines)) == [*range(4), 100]


@pytest.mark.parametrize("format", ["csv", "parquet"])
async def test_outputs_without_any_column_are_refused(tmp_path: Path, format: str) -> None:
    with pytest.raises(UnwritableValue, match="there is no column"):
        await FileSink(tmp_path, format).write([{}, {}], 1)
    assert not visible(tmp_path)


async def test_files_that_are_not_of_the_sink_do_not_count(tmp_path: Path) -> None:
    for name in ("epoch-00000000000000000009.csv", "epoch-7.jsonl", "epoch-00000000000000000009.jsonl.old"):
        (tmp_path / name).touch()
    await FileSink(str(tmp_path), "json").write([1], 1)
    assert len(visible(tmp_path)) == 4


async def test_fields_that_come_later_are_columns_too(tmp_path: Path) -> None:
    rows = [{"a": None}, {"a": 1, "b": 2.5}, {"b": None, "c": [1]}]
    await FileSink(str(tmp_path), "parquet").write(rows, 1)
    await FileSink(str(tmp_path), "csv").write(rows[:2], 1)

    table = parquet.read_table(tmp_path / "epoch-00000000000000000001.parquet")
    assert table.to_pylist() == [{"a": None, "b": None, "c": None} | row for row in rows]
    assert (tmp_path / "epoch-00000000000000000001.csv").read_text() == "a,b\n,\n1,2.5\n"


async def test_a_schema_makes_all_epochs_alike(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("note", pa.string())])
    sink = FileSink(str(tmp_path), "parquet", schema=schema)
    await sink.write([{"n": 1}], 1)
    assert parquet.read_schema(tmp_path / "epoch-00000000000000000001.parquet").equals(schema)
    with pytest.raises(UnwritableValue, match="column 'other'.*there is no such column"):
        await sink.write([{"n": 1}, {"n": 2, "other": 3}], 2)
    with pytest.raises(UnwritableValue, match="column 'n'.*it is a str, not int64") as raised:
        await sink.write([{"n": 1}, {"n": "two"}], 2)
    assert "two" in raised.value.value
    assert len(visible(tmp_path)) == 1


async def test_a_read_only_disk_is_told_with_advice_for_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(SinkFolderRefused, match="give the sink another folder") as raised:
        await FileSink(f"{tmp_path}/out", "json").write([1], 1)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.folder, error.reason) == (f"{tmp_path}/out", "Read-only file system")
    assert "keygroups" not in str(error).removeprefix(str(tmp_path))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no filesystem is at hand that makes no folders")
async def test_a_filesystem_without_folders_is_told_with_the_folder() -> None:
    with pytest.raises(SinkFolderRefused, match="/proc/self/keygroups.*this filesystem makes no folders"):
        await FileSink("/proc/self/keygroups", "json").write([1], 1)


def test_a_link_that_leads_nowhere_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PathObstructed, match="a link that leads nowhere"):
        asyncio.run(FileSink(tmp_path / "out", "json").write([1], 1))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


async def test_dates_are_text_in_json(tmp_path: Path) -> None:
    await FileSink(str(tmp_path), "json").write([{"at": datetime(2020, 1, 2, tzinfo=UTC), "on": date(2020, 1, 2)}], 1)
    (content,) = visible(tmp_path).values()
    assert json.loads(content) == {"at": "2020-01-02T00:00:00+00:00", "on": "2020-01-02"}


@pytest.mark.parametrize(
    ("format", "value", "words"),
    [
        ("json", {"n": 1, "x": b"bytes"}, "column 'x'.*no form in JSON"),
        ("json", {"n": 1, "x": float("nan")}, "column 'x'.*no JSON"),
        ("json", {"n": 1, "x": ["\ud83d"]}, "column 'x'.*half of a surrogate pair"),
        ("csv", {"n": 1, "x": "\ud83d"}, "column 'x'.*half of a surrogate pair"),
        ("csv", {"n": 1, "\ud83d": 1}, "half of a surrogate pair"),
        ("csv", {"x": [1]}, "nested"),
        ("lines", 7, "an? int is no line of text"),
        ("lines", "a\n", "end of a line"),
        *((format, {"x": datetime(2026, 10, 25, 2, 30, fold=1)}, "fold would be lost") for format in ("json", "csv")),
        ("csv", 7, "expected a dict of columns, not int"),
        ("parquet", 7, "expected a dict of columns, not int"),
        ("parquet", [{"n": 1}, {"n": 2}], "expected a dict of columns, not list; a plain function yields"),
        ("parquet", {1: 2}, "expected a str as the name of a column, not int"),
        ("parquet", {"x": object()}, "column 'x'.*there is no type for object"),
    ],
    ids=[
        "bytes",
        "nan",
        "half in JSON",
        "half in CSV",
        "half a name",
        "nested",
        "no text",
        "two lines",
        "fold in JSON",
        "fold in CSV",
        "csv row",
        "parquet row",
        "several outputs",
        "name",
        "object",
    ],
)
async def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path, format, value, words) -> None:
    with pytest.raises(UnwritableValue, match=words) as raised:
        await FileSink(str(tmp_path), format).write([value], 1)
    assert pickle.loads(pickle.dumps(raised.value)).reason == raised.value.reason
    assert visible(tmp_path) == {}


KILLED = """
import asyncio, os, sys
from async_op.connectors import FileSink
from async_op.connectors.files import sink
from pathlib import Path
step = sys.argv[2]
if step == "before the rename":
    Path.replace = lambda self, target: os.kill(os.getpid(), 9)
else:
    sink._sync = lambda directory: os.kill(os.getpid(), 9)
asyncio.run(FileSink(sys.argv[1], "json").write([1, 2], 5))
"""


@pytest.mark.parametrize("step", first_is_quick(["before the rename", "after the rename"]))
def test_a_writer_that_is_killed_leaves_all_or_nothing(tmp_path: Path, step: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), step], check=False)
    assert ended.returncode == -9
    name = "epoch-00000000000000000005.jsonl"
    assert visible(tmp_path) == ({} if step == "before the rename" else {name: b"1\n2\n"})

    asyncio.run(FileSink(str(tmp_path), "json").write([1, 2], 5))

    assert visible(tmp_path) == {name: b"1\n2\n"}
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_three_writers_of_one_epoch_leave_one_whole_file(tmp_path: Path) -> None:
    data = b"x" * 200_000
    together = threading.Barrier(3)
    errors = []

    def write() -> None:
        folder = FileFolder(str(tmp_path), {})
        together.wait()
        try:
            for _ in range(10):
                folder.replace("epoch-1", data)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert visible(tmp_path) == {"epoch-1": data}


async def test_other_storages_have_files_by_epoch_too() -> None:
    for _ in range(2):
        await FileSink("memory://file-sink", "json").write([1], 1)
    folder = fsspec.filesystem("memory")
    assert folder.find("/file-sink") == ["/file-sink/epoch-00000000000000000001.jsonl"]


def test_arguments_that_can_never_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="format"):
        FileSink("x", "xml")
    with pytest.raises(ConfigError, match="schema"):
        FileSink("x", "json", schema=pa.schema([]))
    with pytest.raises(ConfigError, match="delimiter.*only CSV"):
        FileSink("x", "lines", delimiter=";")


@pytest.mark.parametrize("epoch", [-1, "1", None])
async def test_an_epoch_is_a_number(tmp_path: Path, epoch) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        await FileSink(str(tmp_path), "json").write([1], epoch)
