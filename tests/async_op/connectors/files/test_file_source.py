"""Files as a source: positions, growing files, and what can be wrong with a file."""

from __future__ import annotations

import asyncio
import bz2
import csv
import glob
import gzip
import io
import itertools
import json
import math
import pickle
import sys
from collections.abc import Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from async_op.connectors import (
    BrokenFile,
    FileMissing,
    FileShrank,
    FileSource,
    FileVanished,
    MalformedRecord,
    RecordTooLong,
    Undecodable,
)
from async_op.connectors.files import parquet as parquet_module
from async_op.connectors.files import source as source_module
from async_op.connectors.files import text
from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.listing import _matches
from keygroups import ConfigError
from tests.async_op.connectors.kit import everything_of, first_items, items_of, listed, next_items, values_of
from tests.async_op.job.kit import Epochs, new_job, running, same
from tests.async_op.kit import records_in
from tests.quick import few_are_quick, first_are_quick


@asynccontextmanager
async def opened(*arguments, **options):
    source = FileSource(*map(str, arguments), **options)
    await source.open()
    try:
        yield source
    finally:
        await source.close()


def lines(*values) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def numbered(count: int) -> list[dict]:
    return [{"n": n} for n in range(count)]


async def test_the_partitions_are_full_paths(tmp_path: Path) -> None:
    for name in ("a/1.jsonl", "a/2.jsonl", "b/3.jsonl", "b/.4.jsonl", "b/5.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    async with opened(tmp_path / "*" / "*.jsonl", "json") as source:
        names = [f"{tmp_path}/{name}" for name in ("a/1.jsonl", "a/2.jsonl", "b/3.jsonl")]
        assert list(await source.partitions()) == names
    async with opened(tmp_path / "a" / "1.jsonl", "json") as source:
        assert list(await source.partitions()) == [f"{tmp_path}/a/1.jsonl"]
    async with opened(tmp_path / "none" / "*", "json") as source:
        assert list(await source.partitions()) == []


@pytest.mark.parametrize("glob", ["unknown://host/*.csv", "unknown://user:secret@host/*.csv"], ids=["plain", "secret"])
async def test_an_address_that_fsspec_cannot_open_is_named(glob: str) -> None:
    source = FileSource(glob, "csv")
    with pytest.raises(ConfigError, match="no filesystem for unknown://") as raised:
        await source.partitions()
    assert "secret" not in str(raised.value)
    await source.close()


async def test_a_filesystem_that_the_program_has_registered_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "own", type(fsspec.filesystem("memory")))

    async with opened("own://in/*.csv", "csv") as source:
        assert list(await source.partitions()) == []


@pytest.mark.parametrize("name", ["absent.csv", "folder", "link.csv"])
async def test_a_name_without_wildcards_is_a_file_or_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.csv").symlink_to("link.csv")
    source = FileSource(tmp_path / name, "csv")
    with pytest.raises(FileMissing, match=name):
        await source.partitions()
    await source.close()

    waiting = FileSource(tmp_path / name, "csv", bounded=False)
    assert await waiting.partitions() == []
    await waiting.close()


async def test_a_file_that_was_read_may_be_removed_before_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    sink, options = Epochs(), {"snapshots": str(tmp_path / "state"), "job_id": "job"}
    for _ in range(2):
        await new_job(FileSource(file, "csv"), same, sink, **options).run()
        file.unlink(missing_ok=True)
    assert sink.values == [{"a": "1"}]


async def test_a_source_that_a_job_has_read_is_as_new_for_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    source = FileSource(file, "csv")
    await new_job(source, same, Epochs()).run()
    file.unlink()
    with pytest.raises(FileMissing):
        await new_job(source, same, Epochs()).run()


async def test_a_source_that_a_job_reads_is_looked_at_by_another_one_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(lines(1))
    source, sink = FileSource(tmp_path / "*.jsonl", "json", bounded=False, poll_interval=0.05), Epochs()
    async with running(new_job(source, same, sink)) as task:
        await sink.have(1)
        assert not (await new_job(source, same, Epochs()).explain()).findings
        (tmp_path / "1.jsonl").write_bytes(lines(1) + lines(2))
        await sink.have(2)
        assert not task.done()


async def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.jsonl").write_bytes(lines(1))
    (tmp_path / "in" / "file.jsonl").symlink_to(tmp_path / "elsewhere" / "1.jsonl")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "in" / "itself.jsonl").symlink_to("itself.jsonl")
    for up in ("up", "again"):
        (tmp_path / "in" / up).symlink_to(tmp_path / "in")

    async with opened(tmp_path / "in" / "**" / "*.jsonl", "json") as source:
        names = list(await source.partitions())
        assert names == [f"{tmp_path}/in/{name}" for name in ("file.jsonl", "folder/1.jsonl")]
        assert [await values_of(source, name) for name in names] == [[1], [1]]
    async with opened(tmp_path / "in" / "*.jsonl", "json") as source:
        assert list(await source.partitions()) == names[:1]


FILES = [f"{folder}/{name}" for folder in ("", "a", "a/b", "a/.h", "[x]", "[x]/a") for name in ("1.txt", ".2", "[3]")]


@given(
    files=st.lists(st.sampled_from(FILES), max_size=8),
    pattern=st.lists(st.sampled_from(["**", "*", "a", "*.txt", "[[]x]", "a**"]), min_size=1, max_size=4).map("/".join),
)
def test_a_pattern_means_what_it_means_to_glob(tmp_path_factory, files: list[str], pattern: str) -> None:
    folder = tmp_path_factory.mktemp("files")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    expected = glob.glob(f"{folder}/{pattern}", recursive=True)  # noqa: PTH207 - what is compared with
    assert files_of(_matches(f"{folder}/{pattern}")) == files_of(expected)


def files_of(paths: Iterable[str]) -> set[Path]:
    return {path for path in map(Path, paths) if path.is_file()}


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
async def test_reading_continues_from_every_position(tmp_path: Path, suffix: str) -> None:
    content = lines({"n": 1}, {"n": "é"}) + b"\n  \r\n" + b'{"n": 3}\r\n{"n": 4}'
    (tmp_path / f"x.{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)

    async with opened(tmp_path / "*", "json") as source:
        items = await items_of(source, f"{tmp_path}/x.{suffix}")
        assert [value["n"] for value, _, _ in items] == [1, "é", 3, 4]
        assert items[-1][2] == len(content)
        for done, (_, _, position) in enumerate(items, 1):
            assert await items_of(source, f"{tmp_path}/x.{suffix}", position) == items[done:]


@given(
    rows=st.lists(st.tuples(st.text(st.sampled_from('a",\n\r é')), st.text(st.sampled_from('b"\n,'))), max_size=8),
    chunk=st.integers(1, 40),
)
async def test_fields_of_csv_may_hold_line_ends_and_quotes(rows, chunk, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("csv")
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=csv.QUOTE_ALL)
    writer.writerows([("one\nname", "two"), *rows])
    (folder / "x.csv").write_bytes(written.getvalue().encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk)
        async with opened(folder / "*", "csv") as source:
            items = await items_of(source, f"{folder}/x.csv")
            assert [tuple(value.values()) for value, _, _ in items] == rows
            assert all(list(value) == ["one\nname", "two"] for value, _, _ in items)
            for done, (_, _, position) in enumerate(items, 1):
                assert await items_of(source, f"{folder}/x.csv", position) == items[done:]


async def test_rows_of_parquet_are_positions(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"n": range(5000)}), tmp_path / "x.parquet", row_group_size=1500)

    async with opened(tmp_path / "*.parquet", "parquet") as source:
        items = await items_of(source, f"{tmp_path}/x.parquet")
        assert [(value["n"], position) for value, _, position in items] == [(n, n + 1) for n in range(5000)]
        for position in (0, 1, 1024, 1499, 1500, 3001, 4999, 5000):
            assert await items_of(source, f"{tmp_path}/x.parquet", position) == items[position:]


async def test_row_groups_before_the_position_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"n": range(3000)}), path, row_group_size=1000, compression="none")
    first = parquet.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    begin = first.dictionary_page_offset or first.data_page_offset
    data[begin : begin + first.total_compressed_size] = bytes(first.total_compressed_size)
    path.write_bytes(data)

    async with opened(path, "parquet") as source:
        assert len(await items_of(source, f"{tmp_path}/x.parquet", 1000)) == 2000


@pytest.mark.parametrize(
    ("stored", "milliseconds"),
    [
        (5, 5),
        (1700000000000.0, 1700000000000),
        ("-7", -7),
        (datetime(2020, 1, 1, tzinfo=UTC), 1577836800000),
        (datetime(2020, 1, 1, 0, 0, 0, 999_999), 1577836800999),
        ("2020-01-01T01:00:00+01:00", 1577836800000),
        ("2020-01-01 00:00:00", 1577836800000),
    ],
    ids=["int", "float", "text", "datetime", "datetime without a zone", "ISO 8601", "ISO 8601 without a zone"],
)
async def test_a_field_is_the_timestamp(tmp_path: Path, stored, milliseconds) -> None:
    parquet.write_table(pa.Table.from_pylist([{"at": stored}]), tmp_path / "x.parquet")
    async with opened(tmp_path / "*", "parquet", timestamp="at") as source:
        assert [timestamp for _, timestamp, _ in await items_of(source, f"{tmp_path}/x.parquet")] == [milliseconds]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"at": None},
        {"at": 1.5},
        {"at": math.inf},
        {"at": True},
        {"at": "soon"},
        {"at": "2020-01-01"},
        {"at": "20:30"},
        {"at": "1" * 5000},
        {"at": 2**63},
        7,
    ],
)
async def test_a_record_without_a_timestamp_is_named(tmp_path: Path, value) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines({"at": 1}, value))
    async with opened(tmp_path / "*", "json", timestamp="at") as source:
        with pytest.raises(MalformedRecord, match="neither milliseconds nor") as raised:
            await items_of(source, f"{tmp_path}/x.jsonl")
    assert raised.value.position == len(lines({"at": 1}))


async def test_a_growing_file_is_read_line_by_line_as_lines_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(1) + b"2")
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.01) as source:
        await source.partitions()
        async with aclosing(source.read(f"{tmp_path}/x.jsonl", None)) as blocks:
            assert [value for value, _, _ in await next_items(blocks)] == [1]
            with path.open("ab") as file:
                file.write(b"2\n")
            assert [value for value, _, _ in await next_items(blocks)] == [22]
            with path.open("ab") as file:
                file.write(lines(3))
            assert [value for value, _, _ in await next_items(blocks)] == [3]


async def test_new_files_become_partitions(tmp_path: Path) -> None:
    async with opened(tmp_path / "*", "json", bounded=False) as source:
        assert list(await source.partitions()) == []
        (tmp_path / "new.jsonl").write_bytes(lines(1))
        assert list(await source.partitions()) == [f"{tmp_path}/new.jsonl"]
        assert [value for value, _, _ in await first_items(source, f"{tmp_path}/new.jsonl", 1)] == [1]


@pytest.mark.parametrize(("format", "name"), [("json", "x.jsonl.gz"), ("parquet", "x.parquet")])
async def test_a_file_that_is_still_being_written_waits(tmp_path: Path, format: str, name: str) -> None:
    whole = io.BytesIO()
    if format == "json":
        whole.write(gzip.compress(lines(*numbered(3))))
    else:
        parquet.write_table(pa.Table.from_pylist(numbered(3)), whole)
    cut = whole.getvalue()[: len(whole.getvalue()) // 2]
    (tmp_path / name).write_bytes(cut)
    async with opened(tmp_path / "*", format, bounded=False, poll_interval=0.01) as source:
        await source.partitions()
        reading = asyncio.create_task(first_items(source, f"{tmp_path}/{name}", 3))
        while not source._changes._waiting:
            await asyncio.sleep(0.001)
        (tmp_path / name).write_bytes(whole.getvalue())
        assert [value for value, _, _ in await reading] == numbered(3)
    async with opened(tmp_path / "*", format) as source:
        (tmp_path / name).write_bytes(whole.getvalue()[:-5])
        with pytest.raises(BrokenFile, match="cut off|no Parquet file"):
            await items_of(source, f"{tmp_path}/{name}")


async def test_files_that_were_read_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / f"{number}.jsonl").write_bytes(lines(number))
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.001) as source:
        contents = {}
        for name in await source.partitions():
            async with aclosing(source.read(name, None)) as blocks:
                position = (await next_items(blocks))[-1][2]
                await anext(blocks)
                contents[name] = await anext(blocks)
                assert contents[name].position == position
    opens = []
    read = FileAccess.open
    monkeypatch.setattr(FileAccess, "open", lambda self, name: opens.append(name) or read(self, name))
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.001) as source:
        await source.restore(contents)
        names = list(await source.partitions())
        assert names == sorted(contents)
        readers = {name: source.read(name, contents[name].position) for name in names}
        waiting = {name: asyncio.create_task(next_items(reader)) for name, reader in readers.items()}
        while len(source._changes._waiting) < len(names):
            await asyncio.sleep(0.001)
        for _ in range(3):
            await source.partitions()
        assert opens == []
        with (tmp_path / "0.jsonl").open("ab") as file:
            file.write(lines("more"))
        assert [value for value, _, _ in await waiting[f"{tmp_path}/0.jsonl"]] == ["more"]
        assert opens == [f"{tmp_path}/0.jsonl"]
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)


async def test_no_more_files_are_open_than_there_are_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_OPEN_FILES_MAX", 3)
    for number in range(20):
        (tmp_path / f"{number}.jsonl").write_bytes(lines(number))
    async with opened(tmp_path / "*", "json") as source:
        names = list(await source.partitions())
        readers = [source.read(name, None) for name in names]
        firsts = [asyncio.create_task(anext(reader)) for reader in readers]
        while sum(task.done() for task in firsts) < 3:
            await asyncio.sleep(0.001)
        for _ in range(100):
            await asyncio.sleep(0)
        assert source._turns.locked()
        assert sum(task.done() for task in firsts) == 3
        for task in firsts:
            task.cancel()
        await asyncio.gather(*firsts, return_exceptions=True)
        for reader in readers:
            await reader.aclose()


async def test_a_file_that_shrank_is_not_the_same_file(tmp_path: Path) -> None:
    for name, content in (("x.jsonl", lines(1)), ("x.jsonl.gz", gzip.compress(lines(1)))):
        (tmp_path / name).write_bytes(content)
        async with opened(tmp_path / "*", "json") as source:
            with pytest.raises(FileShrank) as raised:
                await items_of(source, f"{tmp_path}/{name}", 100)
        error = pickle.loads(pickle.dumps(raised.value))
        assert (error.path, error.position) == (str(tmp_path / name), 100)
    parquet.write_table(pa.table({"n": [1]}), tmp_path / "x.parquet")
    async with opened(tmp_path / "*", "parquet") as source:
        with pytest.raises(FileShrank):
            await items_of(source, f"{tmp_path}/x.parquet", 2)


async def test_a_file_that_shrinks_while_it_is_followed_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(1, 2))
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.01) as source:
        await source.partitions()
        with pytest.raises(FileShrank):
            async with aclosing(source.read(f"{tmp_path}/x.jsonl", None)) as blocks:
                await next_items(blocks)
                path.write_bytes(lines(1))
                await next_items(blocks)


async def test_a_file_that_was_removed_unread_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(1))
    async with opened(tmp_path / "*", "json") as source:
        await source.partitions()
        (tmp_path / "x.jsonl").unlink()
        with pytest.raises(FileVanished) as raised:
            await items_of(source, f"{tmp_path}/x.jsonl")
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), FileNotFoundError)


async def test_a_file_that_is_removed_after_it_was_read_ends(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(1))
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.01) as source:
        await source.partitions()
        async with aclosing(source.read(f"{tmp_path}/x.jsonl", None)) as blocks:
            await next_items(blocks)
            (tmp_path / "x.jsonl").unlink()
            assert [item async for block in blocks for item in listed(block)] == []


async def test_a_file_that_one_listing_missed_is_read_on(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "x.jsonl", tmp_path / ".x.jsonl"
    path.write_bytes(lines(1))
    async with opened(tmp_path / "*.jsonl", "json", bounded=False, poll_interval=0.001) as source:
        assert list(await source.partitions()) == [f"{tmp_path}/x.jsonl"]
        async with aclosing(source.read(f"{tmp_path}/x.jsonl", None)) as blocks:
            ((_, _, position),) = await next_items(blocks)
            path.rename(elsewhere)
            with pytest.raises(StopAsyncIteration):
                await next_items(blocks)
        with elsewhere.open("ab") as file:
            file.write(lines(2))
        elsewhere.rename(path)

        # A job reads a partition again once it has seen it gone.
        assert list(await source.partitions()) == []
        assert list(await source.partitions()) == [f"{tmp_path}/x.jsonl"]
        assert [value for value, _, _ in await first_items(source, f"{tmp_path}/x.jsonl", 1, position)] == [2]


async def test_what_a_listing_raises_reaches_who_waits(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines(1))
    async with opened(tmp_path / "*", "json", bounded=False, poll_interval=0.01) as source:
        await source.partitions()

        def fail():
            raise PermissionError("no more")

        async with aclosing(source.read(f"{tmp_path}/x.jsonl", None)) as blocks:
            await next_items(blocks)
            source._prepare()._glob().files = fail
            with pytest.raises(PermissionError, match="no more"):
                await next_items(blocks)


@pytest.mark.parametrize(
    ("format", "content", "position", "words"),
    [
        ("json", b"1\n{\n", 2, "does not end in its line"),
        ("json", b'1\n"\xff"\n', 2, "no UTF-8"),
        ("csv", b"a,b\n1,2\n3\n", 8, "1 field under 2 columns"),
        ("csv", b"a,b\n1,\xff\n", 4, "no UTF-8"),
        ("lines", b"a\n\xff\n", 2, "no UTF-8"),
        ("json", b"1\n" + b"[" * 100_000 + b"\n", 2, "no JSON"),
        ("json", b"1\n" + b"1" * 5000 + b"\n", 2, "no JSON"),
        ("json", b'1\n[{"a": 1, "a": 2}]\n', 2, "two values under one name"),
        ("json", b'1\n{"a": 1e400}\n', 2, "would become infinity"),
        ("csv", b"a,a\n1,2\n", 0, "a column twice"),
        ("csv", b"a,\xff\n1,2\n", 0, "no UTF-8"),
        ("parquet", b"PAR1", 0, "no Parquet file"),
        ("parquet", b"", 0, "no Parquet file"),
    ],
    ids=lambda value: None if isinstance(value, int | str) else str(value[:12]),
)
async def test_what_is_no_record_is_named(tmp_path: Path, format, content, position, words) -> None:
    (tmp_path / "x").write_bytes(content)
    async with opened(tmp_path / "x", format) as source:
        with pytest.raises((MalformedRecord, BrokenFile), match=words) as raised:
            await items_of(source, f"{tmp_path}/x")
    assert pickle.loads(pickle.dumps(raised.value)).position == position


async def test_what_is_named_gz_and_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(b"1\n2\n")
    async with opened(tmp_path / "x.gz", "json") as source:
        with pytest.raises(BrokenFile, match="no gzip file"):
            await items_of(source, f"{tmp_path}/x.gz")


@pytest.mark.parametrize(
    ("format", "content"),
    [("json", b"1\n" + b"2" * 200), ("json", b"1\n" + b"2" * 200 + b"\n"), ("csv", b'a\n"' + b"x\n" * 100)],
    ids=["no end", "long", "open quote"],
)
async def test_a_record_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format, content) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 16)
    (tmp_path / "x").write_bytes(content)
    async with opened(tmp_path / "x", format, max_record_bytes=100) as source:
        with pytest.raises(RecordTooLong) as raised:
            await items_of(source, f"{tmp_path}/x")
    assert (raised.value.position, raised.value.limit) == (2, 100)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"], ids=["nothing", "byte order mark"])
@pytest.mark.parametrize("format", ["json", "csv", "lines"])
async def test_an_empty_file_has_no_records(tmp_path: Path, format: str, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    async with opened(tmp_path / "x", format) as source:
        assert await items_of(source, f"{tmp_path}/x") == []


@pytest.mark.parametrize("name", ["x.gz", "x.bz2", "x.zst"])
@pytest.mark.parametrize("has_member", [False, True])
async def test_an_empty_compressed_file_has_no_records(tmp_path: Path, name: str, has_member: bool) -> None:
    (tmp_path / name).write_bytes(compressed(name, b"") * has_member)
    async with opened(tmp_path / name, "lines") as source:
        assert await items_of(source, f"{tmp_path}/{name}") == []


async def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    async with opened(tmp_path / "x", "csv") as source:
        assert await values_of(source, f"{tmp_path}/x") == [{"a": "1", "b": "2"}]


async def test_files_of_other_storages_are_read() -> None:
    folder = fsspec.filesystem("memory")
    folder.pipe({"/file-source/in/a.jsonl": lines(1, 2), "/file-source/in/b/c.jsonl.gz": gzip.compress(lines(3))})
    try:
        async with opened("memory://file-source/in/**", "json") as source:
            names = list(await source.partitions())
            assert names == [f"memory:///file-source/in/{name}" for name in ("a.jsonl", "b/c.jsonl.gz")]
            assert [await values_of(source, name) for name in names] == [[1, 2], [3]]
    finally:
        folder.rm("/file-source", recursive=True)


async def test_a_source_may_be_opened_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(lines(1))
    source = FileSource(str(tmp_path / "x"), "json")
    for _ in range(2):
        await source.open()
        assert await values_of(source, f"{tmp_path}/x") == [1]
        await source.close()


@pytest.mark.parametrize(
    "wrong",
    [{"format": "xml"}, {"poll_interval": 0}, {"max_record_bytes": 0}],
    ids=["format", "interval", "limit"],
)
def test_arguments_that_can_never_work_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FileSource(**({"glob": "x", "format": "json"} | wrong))


@pytest.mark.parametrize("position", [-1, "7", 1.5])
async def test_a_position_that_is_none_is_refused(position) -> None:
    with pytest.raises(ConfigError, match="position"):
        FileSource("x", "json").read("x", position)


async def test_nanoseconds_in_parquet_come_as_types_of_python(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    parquet.write_table(pa.table({"at": pa.array([moment], pa.timestamp("ns", "UTC"))}), tmp_path / "x.parquet")

    async with opened(tmp_path / "*.parquet", "parquet", timestamp="at") as source:
        [(row, timestamp, _)] = await items_of(source, f"{tmp_path}/x.parquet")
    assert type(row["at"]) is datetime
    assert (row["at"], timestamp) == (moment, moment.timestamp() * 1000)


@pytest.mark.parametrize(("bounded", "outcome"), [(True, "nothing is read"), (False, "waits for files")])
async def test_a_pattern_that_matches_nothing_is_warned_of_once(
    bounded: bool, outcome: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "*.jsonl", "json", bounded=bounded) as source:
        for _ in range(2):
            assert await source.partitions() == []
    [message] = [record.getMessage() for record in records_in(caplog)]
    assert f"{tmp_path}/*.jsonl" in message
    assert outcome in message


async def test_files_that_go_later_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    async with opened(path, "json") as source:
        assert await source.partitions() == [f"{tmp_path}/x.jsonl"]
        path.unlink()
        assert await source.partitions() == []
    assert records_in(caplog) == []


@pytest.mark.parametrize("glob", [["a.csv"], None, 5, "", "in/**.csv", "memory://in/a**"])
def test_a_pattern_is_text_or_a_path(glob: object) -> None:
    with pytest.raises(ConfigError, match="glob="):
        FileSource(glob, "csv")


def compressed(name: str, data: bytes) -> bytes:
    """Compress in two members, one after the other."""
    half = len(data) // 2
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda part: pa.compress(part, "zstd", asbytes=True)}
    return b"".join(compress[name.lower().rpartition(".")[2]](part) for part in (data[:half], data[half:]))


COMPRESSED = ["x.GZ", "x.Bz2", "x.zst", "x.gz", "x.bz2", "x.ZST"]


@pytest.mark.parametrize("name", first_are_quick(3, COMPRESSED))
async def test_compressed_files_are_told_by_their_names_in_any_case(tmp_path: Path, name: str) -> None:
    content = lines(*range(50_000))
    (tmp_path / name).write_bytes(compressed(name, content))
    async with opened(tmp_path / "*", "json") as source:
        items = await items_of(source, f"{tmp_path}/{name}")
        assert [value for value, _, _ in items] == list(range(50_000))
        assert items[-1][2] == len(content)
        for done in (1, 49_999, 50_000):
            assert await items_of(source, f"{tmp_path}/{name}", items[done - 1][2]) == items[done:]


@pytest.mark.parametrize(("name", "damage"), few_are_quick(itertools.product(COMPRESSED[:3], ["cut", "changed"])))
async def test_of_a_broken_file_all_is_read_that_can_be(tmp_path: Path, name: str, damage: str) -> None:
    data = bytearray(compressed(name, lines(*(f"{n} {n * 7919 % 10007}" for n in range(50_000)))))
    if damage == "cut":
        del data[-100:]
    else:
        middle = len(data) * 3 // 4
        data[middle : middle + 50] = bytes(50)
    (tmp_path / name).write_bytes(data)
    async with opened(tmp_path / "*", "json", on_error="skip") as source:
        items = await everything_of(source, f"{tmp_path}/{name}")
    *others, bad = items
    assert sum(not isinstance(item, Undecodable) for item in others) > 20_000
    assert isinstance(bad.error, BrokenFile)
    assert bad.position == (others[-1].position if isinstance(others[-1], Undecodable) else others[-1][2])


BEHIND = {
    "garbage": lambda name: b"no member",
    "zeros and garbage": lambda name: bytes(600) + b"no member",
    "half of a member": lambda name: compressed(name, b"4\n5\n")[:-3],
    "the head of a member and garbage": lambda name: compressed(name, b"4\n5\n")[:4] + b"no member" * 9,
}
"""What may stand behind the members of a compressed file."""


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", COMPRESSED[::2])
@pytest.mark.parametrize("format", ["csv", "lines"])
async def test_of_a_small_broken_file_all_is_read_that_can_be(
    tmp_path: Path, format: str, name: str, behind: str
) -> None:
    (tmp_path / name).write_bytes(compressed(name, b"a\n1\n2\n3\n") + BEHIND[behind](name))
    async with opened(tmp_path / "*", format, on_error="skip") as source:
        items = await everything_of(source, f"{tmp_path}/{name}")
    good = [item[2] for item in items if not isinstance(item, Undecodable)]
    assert good == [2, 4, 6, 8, 10, 12][format == "csv" :][: len(good)]
    assert good[-1] >= 8
    assert sum(isinstance(item, Undecodable) for item in items) == 1
    assert isinstance(items[-1].error, BrokenFile)
    assert name in str(items[-1].error)


@pytest.mark.parametrize("name", ["x.gz", "x.bz2"])
async def test_zeros_behind_a_compressed_file_are_padding(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(compressed(name, b"1\n2\n") + bytes(600))
    async with opened(tmp_path / "*", "lines") as source:
        assert [item[0] for item in await items_of(source, f"{tmp_path}/{name}")] == ["1", "2"]


def odd_rows() -> pa.Table:
    """Rows of which some have values that Python has not."""
    days = pa.array([0, 3_000_000, 1, 2], pa.int32()).cast(pa.date32())
    texts = pa.array([b"a", b"b", b"\xff", b"d"], pa.binary()).view(pa.string())
    moments = pa.array([0, 1, 2, 1001], pa.int64()).cast(pa.timestamp("ns"))
    return pa.table({"n": [0, 1, 2, 3], "day": days, "text": texts, "at": moments})


async def test_a_row_of_parquet_that_python_cannot_hold_costs_itself_only(tmp_path: Path) -> None:
    parquet.write_table(pa.concat_tables([odd_rows()] * 600), tmp_path / "x.parquet")
    async with opened(tmp_path / "*", "parquet", on_error="skip") as source:
        items = await everything_of(source, f"{tmp_path}/x.parquet")
        assert [isinstance(item, Undecodable) for item in items[:8]] == [False, True, True, True] * 2
        reasons = [item.error.reason for item in items[1:4]]
        assert [name in reason for name, reason in zip(("'day'", "'text'", "'at'"), reasons, strict=True)] == [True] * 3
        assert items[2].raw["text"] == b"\xff"
        assert items[1].raw["day"] == 3_000_000
        assert [item.position for item in items[1:4]] == [2, 3, 4]


async def test_of_large_rows_in_parquet_few_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, block = list[int](), parquet_module._block

    def noted(batch: pa.RecordBatch, *place: Any) -> Any:
        read.append(batch.num_rows)
        return block(batch, *place)

    monkeypatch.setattr(parquet_module, "BYTES_AT_ONCE", 10_000)
    monkeypatch.setattr(parquet_module, "_block", noted)
    images = [bytes([number]) * 1000 for number in range(100)]
    parquet.write_table(pa.table({"image": images}), tmp_path / "x.parquet", use_dictionary=False)

    async with opened(tmp_path / "*.parquet", "parquet") as source:
        items = await items_of(source, f"{tmp_path}/x.parquet")

    assert [value["image"] for value, _, _ in items] == images
    assert max(read) <= 10


async def test_a_time_zone_of_parquet_that_is_not_known_here_is_named(tmp_path: Path) -> None:
    moments = pa.array([7, None], pa.timestamp("us", "Mars/Base"))
    parquet.write_table(pa.table({"at": moments}), tmp_path / "x.parquet")
    async with opened(tmp_path / "*", "parquet", on_error="skip") as source:
        items = await everything_of(source, f"{tmp_path}/x.parquet")
        assert "'at'" in items[0].error.reason
        assert "Mars/Base" in items[0].error.reason
        assert items[0].raw == {"at": 7}


TIMES = [datetime(year, 1, 2, 3, 4, 5, 123456) for year in (1971, 2024, 2200)]


def with_times(path: Path, *, by_spark: bool) -> list[dict[str, Any]]:
    """Write times as Spark does by default: INT96, and no schema of Arrow in the file."""
    time = pa.timestamp("us")
    kinds = {"at": time, "all": pa.list_(time), "map": pa.map_(pa.string(), time), "ntz": time, "n": pa.int64()}
    kinds["row"] = pa.struct([("n", pa.int64()), ("at", time), ("list", pa.list_(pa.struct([("at", time)])))])
    rows = [
        {"at": at, "all": [at, None], "map": {"a": at}, "n": n, "row": {"n": n, "at": at, "list": [{"at": at}]}}
        for n, at in enumerate(TIMES)
    ]
    table = pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
    with parquet.ParquetWriter(path, table.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"org.apache.spark.version": "4.1.0"} if by_spark else {"writer": "another"})
    return rows


async def test_times_that_spark_has_written_are_instants(tmp_path: Path) -> None:
    rows = with_times(path := tmp_path / "times.parquet", by_spark=True)

    def zoned(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC)
        if isinstance(value, list):
            return [zoned(one) for one in value]
        return {name: zoned(one) for name, one in value.items()} if isinstance(value, dict) else value

    async with opened(path, format="parquet", timestamp="at") as source:
        items = await items_of(source, str(path))
    assert [value for value, _, _ in items] == [zoned(row) | {"ntz": None} for row in rows]
    assert [timestamp for _, timestamp, _ in items] == [
        (at - datetime(1970, 1, 1)) // timedelta(milliseconds=1) for at in TIMES
    ]


async def test_times_in_the_same_form_of_another_writer_have_no_zone(tmp_path: Path) -> None:
    rows = with_times(path := tmp_path / "times.parquet", by_spark=False)
    async with opened(path, format="parquet") as source:
        assert await values_of(source, str(path)) == [row | {"ntz": None} for row in rows]


async def test_csv_may_have_another_delimiter_and_no_header(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f'{name};"1;2"\n')
    async with opened(tmp_path / "*.csv", "csv", delimiter=";", columns=["name", "number"]) as source:
        found = [await values_of(source, partition) for partition in sorted(await source.partitions())]
    assert found == [[{"name": name, "number": "1;2"}] for name in ("a", "b")]


@pytest.mark.parametrize(
    ("format", "options", "reason"),
    [
        ("csv", {"delimiter": ";;"}, "one character"),
        ("csv", {"delimiter": '"'}, "neither a quote"),
        ("csv", {"delimiter": None}, "one character"),
        ("csv", {"delimiter": "\ud83d"}, "one character"),
        ("json", {"delimiter": ";"}, "only CSV"),
        ("lines", {"columns": ["a"]}, "only CSV"),
        ("csv", {"columns": []}, "all columns"),
        ("csv", {"columns": "ab"}, "all columns"),
        ("csv", {"columns": [1]}, "all columns"),
        ("csv", {"columns": ["a", "a"]}, "named twice"),
    ],
)
def test_what_says_how_to_read_csv_is_checked(format: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        FileSource("*", format, **options)
