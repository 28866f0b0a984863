"""The row groups of a file: a restore reads those of its range only."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keygroups import range_of
from snapshots import Snapshot, SnapshotCorrupted
from snapshots.format import files
from tests.snapshot_kit import COUNT, PROFILE, G, new_store, parts
from tests.snapshots.snapshot_content import CONTENT


class TestRowGroups:
    def test_a_restore_reads_only_the_row_groups_of_its_range(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rest may even be damaged."""
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        monkeypatch.setattr("snapshots.format.columns.PIECE_ROWS_MAX", 1)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        whole = snapshot.folder.read(file.path)
        read = [load_all(snapshot, subtask) for subtask in range(4)]
        starts = first_bytes_of_key_groups(snapshot, whole)
        for subtask in range(4):
            own = range_of(subtask, 4, G)
            damaged = bytearray(whole)
            for key_group, (start, end) in starts.items():
                if key_group not in own:
                    damaged[start:end] = bytes(end - start)
            snapshot.folder.filesystem.pipe_file(snapshot.folder.path(file.path), bytes(damaged))

            assert load_all(snapshot, subtask) == read[subtask]
            with pytest.raises(SnapshotCorrupted):
                load_all(snapshot, (subtask + 1) % 4)

    def test_small_key_groups_share_a_row_group(self) -> None:
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        assert len(set(first_bytes_of_key_groups(snapshot).values())) == 1


def load_all(snapshot: Snapshot, subtask: int) -> dict[Any, object]:
    groups = snapshot.restore(subtask, 4).states([COUNT, PROFILE])["count"]
    return {key: value for group in groups.values() for key, value in group.load().items()}


def first_bytes_of_key_groups(snapshot: Snapshot, data: bytes | None = None) -> dict[int, tuple[int, int]]:
    """Return where the row group of each key group begins and ends."""
    (file,) = snapshot.manifest.files_of("keyed", state="count")
    metadata = pq.read_metadata(pa.BufferReader(data or snapshot.folder.read(file.path)))
    spans: dict[int, tuple[int, int]] = {}
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        statistics = row_group.column(0).statistics
        chunks = [row_group.column(column) for column in range(row_group.num_columns)]
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
        end = start + sum(chunk.total_compressed_size for chunk in chunks)
        spans |= dict.fromkeys(range(statistics.min, statistics.max + 1), (start, end))
    return spans
