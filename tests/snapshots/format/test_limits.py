"""What storage says is bounded before memory is taken for it, and what workers get does not grow with the operator."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from keygroups import KeyGroupRange
from keygroups.errors import ConfigError
from snapshots import IncompleteSnapshot, SnapshotCorrupted, SnapshotNotFound, SnapshotStore, named_manifest, versions
from snapshots.commit import manifest_creation as commits
from snapshots.filesystem import open_folder
from snapshots.format import files
from snapshots.format import manifest as manifests
from snapshots.format import manifest_head as heads
from snapshots.format import parquet as parquets
from snapshots.format.files import FileLabel, FileWriter, KeyedWriter, target_file_bytes
from snapshots.format.manifest import manifest_name
from snapshots.format.parquet import ParquetEncoder, ParquetReader
from snapshots.format.sealing import check_json
from snapshots.testing import CountingFolder
from tests.snapshot_kit import new_store, parts, words

CONTENT = {"count": {key: len(key) for key in words(50)}, "profile": {}}


@pytest.fixture(autouse=True)
def nothing_loaded() -> None:
    named_manifest._last_loaded.clear()


class TestManifest:
    def test_of_one_that_is_too_large_no_more_is_read_than_shows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limit = 1000
        for module in (heads, versions):
            monkeypatch.setattr(module, "MANIFEST_BYTES_MAX", limit)
        folder = CountingFolder(open_folder("memory://too-large/enrich"))
        folder.write(manifest_name(1), b"x" * 100 * limit)
        store = SnapshotStore.on(folder)
        for read in (lambda: store.load(1), store.latest, lambda: store.collect_garbage(min_age=0)):
            folder.reset()
            with pytest.raises(SnapshotCorrupted, match="more than a manifest may have"):
                read()
            assert folder.bytes_read == limit + 1

    def test_one_that_could_not_be_read_is_not_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commits, "MANIFEST_BYTES_MAX", 1000)
        store = new_store()
        with pytest.raises(IncompleteSnapshot, match="at most can be read"):
            store.write(parts(CONTENT))
        assert store.versions() == []

    def test_items_of_operator_state_are_counted_before_they_are_assigned(self) -> None:
        file = new_store().write(parts(CONTENT)).manifest.files[0]
        dataclasses.replace(file, rows=manifests.OPERATOR_ITEMS_MAX + 1)
        with pytest.raises(ValueError, match="16777217 rows"):
            dataclasses.replace(file, kind="operator", rows=manifests.OPERATOR_ITEMS_MAX + 1)

    @pytest.mark.parametrize("value", [manifests.StateInfo, KeyGroupRange, KeyGroupRange(0, 1)])
    def test_a_dataclass_is_no_json(self, value: object) -> None:
        with pytest.raises(ConfigError, match="stored as JSON"):
            check_json("source_position", {"value": value})


class TestParquet:
    def reader(self, **changes: Any) -> ParquetReader:
        snapshot = new_store().write(parts(CONTENT))
        file = snapshot.manifest.files_of("keyed", state="count")[0]
        return ParquetReader(snapshot.folder, dataclasses.replace(file, **changes))

    def test_rows_that_the_manifest_does_not_promise(self) -> None:
        with pytest.raises(SnapshotCorrupted, match="rows instead of 1000000"):
            self.reader(rows=1_000_000).metadata()

    @pytest.mark.parametrize(("limit", "what"), [("ROW_GROUP_ROWS_MAX", "rows"), ("ROW_GROUP_BYTES_MAX", "bytes")])
    def test_a_row_group_larger_than_memory(self, limit: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reader = self.reader()
        monkeypatch.setattr(parquets, limit, 10)
        with pytest.raises(SnapshotCorrupted, match=f"a row group has .* {what}, at most 10"):
            reader.metadata()

    @pytest.mark.parametrize("offset", [-1, 2**60])
    def test_a_row_group_that_is_not_in_the_file(self, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
        reader = self.reader()
        found = reader._read_footer()
        chunk = SimpleNamespace(dictionary_page_offset=None, data_page_offset=4, total_compressed_size=offset)
        row_group = SimpleNamespace(num_rows=1, total_byte_size=1, num_columns=1, column=lambda _: chunk)
        hostile = SimpleNamespace(num_rows=found.num_rows, num_row_groups=1, row_group=lambda _: row_group)
        monkeypatch.setattr(parquets.pq, "read_metadata", lambda _: hostile)
        with pytest.raises(SnapshotCorrupted, match="a row group lies at"):
            reader.metadata()

    @pytest.mark.parametrize(
        "sizes",
        [[8] * 10_000, [*[1] * 1000, *[7_000] * 5, 20_000, *[1] * 1000], [20_000], []],
        ids=["small rows", "a few large ones", "a single one", "none"],
    )
    def test_a_large_table_is_divided(self, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquets, "_ROW_GROUP_BYTES", 10_000)
        values = [bytes(size) for size in sizes]
        schema = pa.schema([("value", pa.binary())])
        encoder = ParquetEncoder(schema)
        encoder.write(pa.table({"value": values}, schema=schema))
        encoded = encoder.finish({})
        file = pa.parquet.ParquetFile(pa.BufferReader(encoded.data))
        groups = [file.read_row_group(number) for number in range(file.metadata.num_row_groups)]
        assert [value for group in groups for value in group.column("value").to_pylist()] == values
        assert all(group.nbytes <= 10_000 or group.num_rows == 1 for group in groups)
        assert len(groups) < 20 + 2 * sum(sizes) // 10_000


class TestFileSizes:
    def test_a_small_state_has_small_files_and_a_large_one_few(self) -> None:
        def count(state_bytes: int) -> int:
            number = stored = 0
            while stored < state_bytes:
                stored += target_file_bytes(stored)
                number += 1
            return number

        assert target_file_bytes(0) == target_file_bytes(8 * files.FILE_BYTES) == files.FILE_BYTES
        assert target_file_bytes(10**12) == files.LARGE_FILE_BYTES
        assert [count(size) for size in (10**8, 10**9, 10**10, 10**11)] == [3, 20, 55, 391]

    def test_the_writer_goes_by_what_it_has_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "FILE_BYTES", 4_000)
        schema = pa.schema([("key_group", pa.int32()), ("value", pa.binary())])
        groups = 256
        with FileWriter(open_folder("memory://growing/enrich"), "attempt") as stored:
            label = FileLabel(kind="keyed", state="s", subtask=0, version=1)
            writer = KeyedWriter(stored, label, schema, KeyGroupRange(0, groups - 1))
            monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
            for key_group in range(groups):
                value = hashlib.shake_128(bytes([key_group])).digest(1000)
                writer.add(key_group, [pa.table([pa.array([key_group], pa.int32()), [value]], schema=schema)])
            writer.finish()
            sizes = [file.bytes for file in stored.stored()]
        assert sizes[-2] > 3 * sizes[0]
        assert len(sizes) < 32


class TestPickles:
    def pickled(self, parallelism: int, of: Callable[[SnapshotStore], object]) -> int:
        store = SnapshotStore("memory://pickles", f"operator-{parallelism:03}")
        store.write(parts(CONTENT, parallelism=parallelism))
        return len(pickle.dumps(of(store)))

    @pytest.mark.parametrize("of", [SnapshotStore.begin, SnapshotStore.latest, lambda store: store.claim().begin()])
    def test_what_a_worker_gets_does_not_grow_with_the_parallelism(self, of: Callable[[SnapshotStore], object]) -> None:
        assert self.pickled(2, of) == self.pickled(16, of) < 1000

    def test_the_parent_of_a_copy_is_the_one_that_was_pickled(self) -> None:
        store = new_store()
        first = store.write(parts(CONTENT))
        begun, copied = pickle.dumps(store.begin()), pickle.dumps(first)
        store.write(parts({"count": {}, "profile": {}}))
        assert pickle.loads(begun).parent == first.manifest
        assert pickle.loads(copied).manifest == first.manifest

    def test_a_copy_of_a_snapshot_that_is_gone(self) -> None:
        store = new_store()
        copied = pickle.dumps(store.write(parts(CONTENT)))
        store.write(parts(CONTENT))
        store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
        with pytest.raises(SnapshotNotFound):
            pickle.loads(copied)

    def test_a_process_reads_a_manifest_once(self) -> None:
        folder = CountingFolder(open_folder("memory://once/enrich"))
        store = SnapshotStore.on(folder)
        snapshot = store.write(parts(CONTENT))
        folder.reset()
        for _ in range(3):
            named_manifest.load_committed(folder, snapshot.version, snapshot.manifest.snapshot_id)
        assert folder.operations == {"read": 1}
        with pytest.raises(SnapshotNotFound) as missing:
            named_manifest.load_committed(folder, snapshot.version, "another")
        assert (missing.value.uri, missing.value.version) == (folder.uri, snapshot.version)
