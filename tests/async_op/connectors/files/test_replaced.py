"""A file that was read in part and is replaced, renamed, copied, cut or compressed, while a job is down or runs."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import pickle
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import parquet

from async_op.connectors import FileReplaced, FileShrank, FileSource, InputReplaced
from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.listing import Glob
from async_op.testing import run
from tests.async_op.connectors.kit import cuts_of, everything_of, items_of, opened, values_of
from tests.async_op.job.kit import Epochs, new_job, running, same
from tests.quick import first_is_quick

_END = object()


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % number for number in numbers)


class Nights:
    """A job that is run now and then over the same snapshots."""

    def __init__(
        self, glob: Any, format: str = "json", *, of_job: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.sink = Epochs()
        self._arguments = (glob, format)
        self._of_job = of_job or {}
        self._options = options
        self._place = f"memory://{uuid.uuid4().hex}"

    def job(self, **options: Any) -> Any:
        glob, format = self._arguments
        source = FileSource(glob, format, **self._options | options)
        return new_job(source, same, self.sink, snapshots=self._place, **self._of_job)

    async def run(self, **options: Any) -> list[Any]:
        """Run once; returns the new values, in order."""
        before = len(self.sink.values)
        await self.job(**options).run()
        return sorted(value["n"] for value in self.sink.values[before:])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


async def test_a_file_that_grows_is_read_on(log: Any) -> None:
    nights = Nights(log)
    log.write_bytes(lines(1, 2))
    assert await nights.run() == [1, 2]
    assert await nights.run() == []
    with log.open("ab") as file:
        file.write(lines(3))
    assert await nights.run() == [3]


async def test_a_rewritten_file_is_an_error_that_names_both_ways_to_continue(log: Any) -> None:
    nights = Nights(log)
    log.write_bytes(lines(*range(100)))
    await nights.run()
    log.write_bytes(lines(*range(500, 650)))
    with pytest.raises(FileReplaced, match=r"restore it.*new name.*on_replaced='read'.*put_items.*new job") as raised:
        await nights.run()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.path, error.position) == (str(log), len(lines(*range(100))))
    assert isinstance(error, InputReplaced)
    log.write_bytes(lines(*range(101)))
    assert await nights.run() == [100]


async def test_the_new_content_may_be_read_under_ids_of_its_own(log: Any) -> None:
    async def id_of(value: Any, ctx: Any) -> Any:
        return {"n": ctx.idempotency_key}

    place, sink = f"memory://{uuid.uuid4().hex}", Epochs()
    for first in (0, 100, 200):
        log.write_bytes(lines(*range(first + 100, first + 105)))
        source = FileSource(log, "json", on_replaced="read")
        await new_job(source, id_of, sink, snapshots=place).run()
    assert len({value["n"] for value in sink.values}) == 15


async def test_a_file_of_the_same_length_and_time_is_looked_at(log: Any) -> None:
    nights = Nights(log)
    log.write_bytes(lines(1, 2))
    status = log.stat()
    await nights.run()
    log.write_bytes(lines(3, 4))
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    # The clock of a disk stands still for some milliseconds.
    while log.stat().st_ctime_ns == status.st_ctime_ns:
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FileReplaced):
        await nights.run()


@pytest.mark.parametrize(("format", "read", "added"), [("lines", "a\nb", "c\nd\n"), ("csv", "n\n1\n2", "3\n4\n")])
async def test_what_continues_the_last_line_of_a_file_is_no_record(
    log: Any, format: str, read: str, added: str
) -> None:
    log.write_text(read)
    async with opened(FileSource(log, format)) as source:
        (name,) = await source.partitions()
        position = (await items_of(source, name))[-1][2]
    with log.open("a") as file:
        file.write(added)
    async with opened(FileSource(log, format, on_error="skip")) as source:
        await source.partitions()
        continuation, record = await everything_of(source, name, position)
        assert continuation.raw == added[:2].encode()
        assert continuation.position == record[2] - 2
        assert f"position {len(read)}: it continues a line" in str(continuation.error)


async def test_a_shorter_file_is_named_as_such(log: Any) -> None:
    nights = Nights(log)
    log.write_bytes(lines(1, 2))
    await nights.run()
    log.write_bytes(lines(1))
    with pytest.raises(FileShrank):
        await nights.run()


async def test_wherever_a_snapshot_was_cut_other_content_is_refused(log: Any) -> None:
    content = lines(*range(30))
    log.write_bytes(content)
    async with opened(FileSource(log, "json")) as source:
        (name,) = await source.partitions()
        cuts = await cuts_of(source, name)
    assert len(cuts) >= 30
    log.write_bytes(lines(7) + content)
    for cut in cuts:
        async with opened(FileSource(log, "json")) as source:
            await source.restore({name: cut})
            await source.partitions()
            with pytest.raises(FileReplaced):
                await items_of(source, name, cut.position)


async def test_a_file_of_which_nothing_was_read_may_be_replaced(log: Any) -> None:
    log.write_bytes(lines(1))
    async with opened(FileSource(log, "json")) as source:
        (name,) = await source.partitions()
        (first, *_) = [piece async for piece in source.read(name, None)]
    assert (first.position, first.content is None) == (0, False)
    log.write_bytes(lines(2, 3))
    async with opened(FileSource(log, "json")) as source:
        await source.restore({name: first})
        await source.partitions()
        assert await values_of(source, name, 0) == [{"n": 2}, {"n": 3}]


async def test_a_change_far_from_the_beginning_is_noticed_where_reading_continues(log: Any) -> None:
    nights = Nights(log)
    content = lines(*range(100_000, 120_000))
    log.write_bytes(content)
    await nights.run()
    log.write_bytes(content[:-3] + b"5}\n" + lines(1))
    with pytest.raises(FileReplaced):
        await nights.run()


async def test_a_parquet_file_that_is_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    nights = Nights(path, "parquet")
    parquet.write_table(pa.table({"n": range(50)}), path)
    assert len(await nights.run()) == 50
    parquet.write_table(pa.table({"n": range(150)}), path)
    with pytest.raises(FileReplaced):
        await nights.run()


async def test_an_object_that_is_replaced_is_an_error() -> None:
    storage, folder = fsspec.filesystem("memory"), f"/replaced-{uuid.uuid4().hex}"
    nights = Nights(f"memory:/{folder}/*.jsonl")
    storage.pipe(f"{folder}/a.jsonl", lines(1, 2))
    assert await nights.run() == [1, 2]
    storage.pipe(f"{folder}/b.jsonl", lines(3))
    assert await nights.run() == [3]
    storage.pipe(f"{folder}/a.jsonl", lines(7, 8, 9))
    with pytest.raises(FileReplaced):
        await nights.run()


def rename(log: Any) -> None:
    for number in (2, 1):
        if (old := log.with_name(f"app.log.{number}")).exists():
            old.rename(log.with_name(f"app.log.{number + 1}"))
    log.rename(log.with_name("app.log.1"))
    log.touch()


def copy_and_truncate(log: Any) -> None:
    shutil.copyfile(log, log.with_name("app.log.1"))
    os.truncate(log, 0)


def compress(log: Any) -> None:
    rename(log)
    old = log.with_name("app.log.1")
    number = len(list(log.parent.glob("*.gz"))) + 1
    log.with_name(f"app.log.{number}.gz").write_bytes(gzip.compress(old.read_bytes()))
    old.unlink()


ROTATIONS: list[Callable[[Path], None]] = [rename, copy_and_truncate, compress]


def append(log: Path, *numbers: int) -> None:
    with log.open("ab") as file:
        file.write(lines(*numbers))


@pytest.mark.parametrize("rotate", ROTATIONS)
async def test_a_log_that_was_rotated_while_the_job_was_down_loses_nothing(log: Any, rotate: Any) -> None:
    nights = Nights(f"{log}*")
    log.write_bytes(lines(*range(100)))
    assert await nights.run() == list(range(100))
    append(log, *range(100, 200))
    rotate(log)
    append(log, *range(200, 250))
    assert await nights.run() == list(range(100, 250))
    append(log, *range(250, 600))
    assert await nights.run() == list(range(250, 600))
    if rotate is rename:
        rotate(log)
        append(log, 600)
        assert await nights.run() == [600]


def renamed(log: Path) -> Iterator[None]:
    yield log.rename(log.with_name("app.log.1")) and None
    yield log.touch()


def copied_and_cut(log: Path) -> Iterator[None]:
    yield shutil.copyfile(log, log.with_name("app.log.1")) and None
    yield os.truncate(log, 0)


def compressed(log: Path) -> Iterator[None]:
    yield from renamed(log)
    old, new = log.with_name("app.log.1"), log.with_name("app.log.1.gz")
    data = gzip.compress(old.read_bytes())
    yield new.write_bytes(data[:30]) and None
    yield new.write_bytes(data) and None
    yield old.unlink()


@pytest.mark.parametrize(
    ("rotated", "seed"), first_is_quick(itertools.product([renamed, copied_and_cut, compressed], range(100)))
)
def test_a_log_that_is_rotated_at_any_moment_of_a_job_loses_nothing(
    tmp_path: Path, rotated: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, draw = tmp_path / "app.log", random.Random(seed)
    log.write_bytes(lines(*range(10)))

    def written() -> Iterator[None]:
        yield append(log, *range(10, 20))
        yield from rotated(log)
        yield append(log, *range(20, 30))

    happens, busy = written(), draw.random()

    def at_a_moment(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*arguments: Any) -> Any:
            """Something may happen before a look at the disk and after it, several things at once, too."""
            while draw.random() < busy / 2 and next(happens, _END) is None:
                pass
            try:
                return look(*arguments)
            finally:
                while draw.random() < busy / 2 and next(happens, _END) is None:
                    pass

        return looked

    monkeypatch.setattr(Glob, "files", at_a_moment(Glob.files))
    monkeypatch.setattr(FileAccess, "open", at_a_moment(FileAccess.open))
    rarely = {"snapshot_interval": 0.7}  # it waits for minutes of the clock, in which nothing happens
    nights = Nights(f"{log}*", of_job=rarely, bounded=False, poll_interval=1.0, retry=None)

    async def days() -> None:
        async with running(nights.job()):
            await asyncio.sleep(draw.random() * 100)
            while await asyncio.to_thread(next, happens, _END) is None:
                await asyncio.sleep(draw.random() * 10)
            await asyncio.to_thread(append, log, *range(30, 60))
            await asyncio.sleep(300)
        await asyncio.to_thread(append, log, 60)
        async with running(nights.job()):
            await asyncio.sleep(300)

    run(days())
    assert sorted(value["n"] for value in nights.sink.values) == list(range(61))


async def test_a_report_that_says_the_same_as_one_that_was_removed_is_read(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "*.jsonl")
    for day in range(3):
        path = tmp_path / f"{day}.jsonl"
        path.write_bytes(lines(1))
        os.utime(path, (day, day))
        assert await nights.run() == [1]
        path.unlink()


async def test_a_copy_is_read_when_its_original_has_gone_on_without_it(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nights, copy = Nights(f"{log}*"), log.with_name("app.log.1")
    append(log, 1, 2)
    append(copy, 1)
    append(log.with_name("app.log2"), 1)
    assert await nights.run() == [1, 1, 2]
    assert f"{copy} is a copy of {log}" in caplog.text
    append(copy, 3)
    assert await nights.run() == [1, 3]


async def test_a_wider_glob_reads_nothing_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").write_bytes(lines(1, 2))
    nights = Nights(tmp_path / "a" / "x.jsonl")
    assert await nights.run() == [1, 2]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.jsonl").write_bytes(lines(3))
    for pattern in ("a/*", "*/x.jsonl", "**/*.jsonl"):
        nights._arguments = (f"{tmp_path}/{pattern}", "json")
        assert await nights.run() == ([] if pattern == "a/*" else [3])
        if pattern != "a/*":
            break
    nights._arguments = (f"{tmp_path}/**/*.jsonl", "json")
    assert await nights.run() == []


async def test_a_broken_file_is_one_bad_record_until_it_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(lines(*range(20_000)))
    path.write_bytes(whole[: len(whole) // 2])
    (tmp_path / "y.jsonl").write_bytes(lines(-1))
    nights = Nights(tmp_path / "*", on_error="skip")
    first = await nights.run()
    assert 0 < len(first) < 20_000
    assert await nights.run() == []
    path.write_bytes(whole)
    assert first + await nights.run() == [-1, *range(20_000)]


async def test_names_that_are_no_utf_8_are_read(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "*")
    name: Any = tmp_path / os.fsdecode(b"caf\xe9")
    append(name, 1)
    assert await nights.run() == [1]
    append(name, 2)
    assert await nights.run() == [2]


async def test_a_name_that_looks_like_the_escaped_one_of_another_file_is_a_file_of_its_own(tmp_path: Path) -> None:
    for number, name in enumerate([b"caf\xe9", rb"caf\xe9", rb"caf\\xe9"]):
        append(tmp_path / os.fsdecode(name), number)
    assert await Nights(tmp_path / "*").run() == [0, 1, 2]


@example(steps=["append", "compress", "append", "compress"])
@given(steps=st.lists(st.sampled_from(["append", "rename", "copy", "compress", "run", "replace"]), max_size=12))
async def test_whatever_happens_to_a_log_all_is_read_once_or_the_job_says_so(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("log") / "app.log"
    log.touch()
    nights, written, ways = Nights(f"{log}*"), 0, {"rename": rename, "copy": copy_and_truncate, "compress": compress}
    lost = False
    for step in [*steps, "run"]:
        if step == "append":
            append(log, *range(written, written + 7))
            written += 7
        elif step == "replace":
            lost |= bool(log.stat().st_size)
            log.write_bytes(lines(*range(written, written + 20)))
            written += 20
        elif step in ways and log.stat().st_size and not log.with_name("app.log.1").exists():
            ways[step](log)
        elif step == "run":
            try:
                await nights.run()
            except FileReplaced:
                assert lost
                return
    read = sorted(value["n"] for value in nights.sink.values)
    assert len(set(read)) == len(read)
    assert lost or read == list(range(written))
