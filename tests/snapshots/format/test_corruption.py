"""Damage to each kind of file: `verify` finds it and names it, and a reader gets the right content or an error."""

from __future__ import annotations

import dataclasses
import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keygroups import KeyGroupRange
from keygroups.codec import unpack
from snapshots import Problem, Snapshot, SnapshotCorrupted, SnapshotStore, StorageUnavailable
from snapshots.format.manifest import DataFile, manifest_name
from snapshots.format.manifest_head import Head
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.examples import scaled
from tests.quick import first_is_quick
from tests.snapshot_kit import new_store, part, parts, record, restored
from tests.snapshots.format.damage import KINDS, SEED, Damaged, check_refused, content, written

FLIPS_IN_PAGES = scaled(100)
FLIPS_IN_THE_FOOTER = scaled(40)


def check_found(damaged: Damaged) -> None:
    """`verify` names the one file, and nothing else."""
    report = damaged.store.verify()

    assert [(problem.path, problem.key_groups) for problem in report.problems] == [
        (damaged.path, damaged.file.key_groups)
    ]
    assert report.problems[0].what
    assert not report.ok


def check_never_garbage(damaged: Damaged) -> bool:
    """Return whether reading noticed; some bytes mean nothing to a reader, such as those of the magic."""
    try:
        found = content(damaged.snapshot, damaged.file)
    except SnapshotCorrupted as refused:
        assert (refused.path, refused.key_groups) == (damaged.path, damaged.file.key_groups)
        return True
    assert found == damaged.sound
    return False


def flips(data: bytes, offsets: range, count: int) -> Iterator[bytes]:
    choose = random.Random(SEED)
    for _ in range(count):
        changed = bytearray(data)
        changed[choose.choice(offsets)] ^= 1 << choose.randrange(8)
        yield bytes(changed)


@pytest.fixture(params=first_is_quick(KINDS))
def damaged(request: pytest.FixtureRequest) -> Damaged:
    return Damaged(request.param)


def test_a_sound_snapshot_has_no_problems(damaged: Damaged) -> None:
    report = damaged.store.verify()

    assert (report.problems, report.ok) == ((), True)
    assert report.files == len(damaged.snapshot.manifest.files) == 10
    assert report.bytes == damaged.snapshot.manifest.bytes_total > 0


def test_a_missing_file(damaged: Damaged) -> None:
    damaged.remove()

    check_found(damaged)
    check_refused(damaged)


def test_a_truncated_file(damaged: Damaged) -> None:
    size = len(damaged.data)
    for length in {0, 1, 4, 8, size // 2, size - damaged.file.footer_bytes, size - 8, size - 4, size - 1}:
        damaged.put(damaged.data[:length])

        check_found(damaged)
        check_refused(damaged)


def test_a_file_that_lost_its_beginning(damaged: Damaged) -> None:
    for length in (1, 4, len(damaged.data) // 2):
        damaged.put(damaged.data[length:])

        check_found(damaged)
        check_refused(damaged)


def test_an_appended_byte(damaged: Damaged) -> None:
    """Only `verify` reads that far: what a reader needs is where it was."""
    for extra in (b"\x00", b"\n", b"PAR1", damaged.data):
        damaged.put(damaged.data + extra)

        check_found(damaged)
        check_never_garbage(damaged)


def test_a_flipped_bit_in_the_footer(damaged: Damaged) -> None:
    for changed in flips(damaged.data, damaged.footer, FLIPS_IN_THE_FOOTER):
        damaged.put(changed)

        check_found(damaged)
        check_refused(damaged)


def test_a_flipped_bit_in_the_pages(damaged: Damaged) -> None:
    noticed = 0
    for changed in flips(damaged.data, damaged.pages, FLIPS_IN_PAGES):
        damaged.put(changed)

        check_found(damaged)
        noticed += check_never_garbage(damaged)
    assert noticed > FLIPS_IN_PAGES / 2


def test_a_flipped_bit_in_the_content_of_a_page_is_noticed_by_every_reader(damaged: Damaged) -> None:
    """The last byte of a column chunk is content of its last page, never its header."""
    metadata = pq.read_metadata(pa.BufferReader(damaged.data))
    for number in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(number).column(column)
            end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
            changed = bytearray(damaged.data)
            changed[end - 1] ^= 1
            damaged.put(bytes(changed))

            check_refused(damaged)


def test_garbage_of_the_same_size(damaged: Damaged) -> None:
    for garbage in (bytes(len(damaged.data)), random.Random(SEED).randbytes(len(damaged.data))):
        damaged.put(garbage)

        check_found(damaged)
        check_refused(damaged)


def test_a_run_of_zeros(damaged: Damaged) -> None:
    """A page of the disk that was never written."""
    for start in range(0, len(damaged.data), 512):
        changed = bytearray(damaged.data)
        changed[start : start + 512] = bytes(len(changed[start : start + 512]))
        damaged.put(bytes(changed))

        check_found(damaged)
        check_never_garbage(damaged)


def test_another_file_in_its_place(damaged: Damaged) -> None:
    for other in damaged.snapshot.manifest.files:
        if other != damaged.file:
            damaged.put(damaged.read_bytes(other.path))

            check_found(damaged)
            check_refused(damaged)


def test_the_same_file_of_another_snapshot_in_its_place(damaged: Damaged) -> None:
    """With the same keys, sizes and bounds: all that differs is which key has which value."""
    other = written(damaged.store, shift=1)
    twin = next(
        file
        for file in other.manifest.files
        if (file.kind, file.state, file.subtask) == (damaged.file.kind, damaged.file.state, damaged.file.subtask)
    )
    damaged.put(damaged.read_bytes(twin.path))

    assert len(damaged.store.verify(2).problems) == 1
    check_refused(damaged)


def test_two_swapped_files_are_both_named() -> None:
    damaged = Damaged("count")
    one, two = damaged.snapshot.manifest.files_of("keyed", state="count")
    folder = damaged.snapshot.folder
    data = [folder.read(file.path) for file in (one, two)]
    for file, other in zip((one, two), reversed(data), strict=True):
        folder.filesystem.pipe_file(folder.path(file.path), other)

    assert [(problem.path, problem.key_groups) for problem in damaged.store.verify().problems] == [
        (folder.path(file.path), file.key_groups) for file in (one, two)
    ]
    check_refused(damaged)


def test_damage_of_one_file_leaves_the_others_readable() -> None:
    damaged = Damaged("count")
    damaged.remove()

    assert content_of_state(damaged.snapshot, "profile", 0)
    assert content_of_state(damaged.snapshot, "count", 1)
    with pytest.raises(SnapshotCorrupted):
        content_of_state(damaged.snapshot, "count", 0)


def content_of_state(snapshot: Snapshot, state: str, subtask: int) -> dict[Any, object]:
    table = restored(snapshot, subtask).cut()
    (cut,) = (cut for cut in table if cut.descriptor.name == state)
    loaded: dict[Any, object] = {}
    for group in cut.groups.values():
        loaded |= group.load()
    return loaded


def test_a_snapshot_on_damaged_state_is_not_written() -> None:
    """What was never touched is read for a whole snapshot, which must not become a snapshot without it."""
    damaged = Damaged("count")
    backends = [restored(damaged.snapshot, subtask) for subtask in range(2)]
    elsewhere = new_store()
    damaged.put(damaged.data[: len(damaged.data) // 2])

    with pytest.raises(SnapshotCorrupted, match=damaged.file.path):
        elsewhere.write([part(backend, subtask, 2) for subtask, backend in enumerate(backends)])
    assert elsewhere.versions() == []


@pytest.mark.parametrize("kind", ["count", "delta"])
def test_a_snapshot_on_damaged_state_is_not_compacted(kind: str) -> None:
    damaged = Damaged(kind)
    damaged.put(damaged.data[: len(damaged.data) // 2])

    with pytest.raises(SnapshotCorrupted, match=damaged.file.path):
        damaged.store.compact()
    assert damaged.store.versions() == [1, 2]


@pytest.mark.parametrize("kind", ["count", "profile", "in_flight"])
def test_a_file_whose_rows_are_not_of_its_range_is_found(kind: str) -> None:
    """As a writer with a mistake would leave it: every digest matches."""
    damaged = Damaged(kind)
    shifted = KeyGroupRange(damaged.file.key_groups.start + 8, damaged.file.key_groups.end + 8)
    manifest = damaged.snapshot.manifest
    moved = dataclasses.replace(damaged.file, key_groups=shifted, file_key_groups=shifted)
    wrong = dataclasses.replace(
        manifest, version=3, files=tuple(moved if file == damaged.file else file for file in manifest.files)
    )
    damaged.snapshot.folder.create(manifest_name(3), Head(wrong).to_bytes())

    problem = damaged.store.verify(3).problems[0]
    assert problem == Problem(damaged.path, shifted, "it has rows of key groups outside of its range")


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_value_of_a_newer_release_in_a_sound_file_is_named_with_its_file(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = b"\xd4\x2a\x00"
    with pytest.raises(ValueError, match="extension 42"):
        unpack(foreign)
    with monkeypatch.context() as newer:
        newer.setattr("snapshots.format.columns.pack", lambda value, where: foreign)
        newer.setattr("snapshots.format.in_flight_columns.pack", lambda value, where: foreign)
        store = new_store()
        state: dict[str, dict[Any, object]] = {"profile": {("a", 1) if column == "key" else "a": 1}}
        snapshot = store.write(
            parts(state, parallelism=1, in_flight=[record("a", 0, 0, value=("a tuple is msgpack",))])
        )
    assert store.verify().ok

    (keyed,), (in_flight,) = (
        snapshot.manifest.files_of("keyed", state="profile"),
        snapshot.manifest.files_of("in_flight"),
    )
    reads: list[tuple[DataFile, Callable[[], object]]] = [
        (keyed, lambda: content_of_state(snapshot, "profile", 0)),
        (in_flight, snapshot.restore(0).queue),
    ]
    for file, read in reads:
        with pytest.raises(SnapshotCorrupted, match="extension 42 is unknown") as refused:
            read()
        assert (refused.value.path, refused.value.key_groups) == (snapshot.folder.path(file.path), file.key_groups)


@pytest.mark.parametrize(
    ("answer", "as_it_is"),
    [
        (ConnectionResetError(104, "reset by peer"), True),
        (TimeoutError("no answer"), True),
        (StorageUnavailable("bucket/a", "503"), True),
        (OSError(errno.EBUSY, "reduce your request rate"), True),
        (PermissionError(13, "not allowed"), True),
        (OSError(errno.EIO, "a bad sector"), False),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "errno", "")),
)
def test_a_storage_that_does_not_answer_is_not_damage(damaged: Damaged, answer: OSError, as_it_is: bool) -> None:
    class Silent(FolderWrapper):
        def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
            if name == damaged.file.path:
                raise answer
            return run()

    snapshot = dataclasses.replace(damaged.snapshot, folder=Silent(damaged.snapshot.folder))
    if as_it_is:
        with pytest.raises(type(answer)) as raised:
            content(snapshot, damaged.file)
        assert raised.value is answer
        with pytest.raises(type(answer)):
            SnapshotStore.on(snapshot.folder).verify()
    else:
        with pytest.raises(SnapshotCorrupted, match="bad sector"):
            content(snapshot, damaged.file)
