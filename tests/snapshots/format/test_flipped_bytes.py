"""Every byte of a small file is changed in turn: a reader gives the right content, or says that the file is damaged."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from snapshots import SnapshotCorrupted
from snapshots.format.parquet import ROW_GROUP_DIGESTS, ParquetReader
from tests.quick import first_are_quick
from tests.snapshots.format.damage import KINDS, Damaged, check_refused

MAGIC_BYTES = 4


@pytest.mark.parametrize("kind", first_are_quick(2, KINDS))
def test_every_byte_counts_but_those_of_the_magic_that_nothing_reads(kind: str) -> None:
    damaged = Damaged(kind)
    sound = ParquetReader(damaged.snapshot.folder, damaged.file).read_all()
    unnoticed = []
    for at in range(len(damaged.data)):
        changed = bytearray(damaged.data)
        changed[at] ^= 1 << at % 8
        damaged.put(bytes(changed))
        try:
            found = ParquetReader(damaged.snapshot.folder, damaged.file).read_all()
        except SnapshotCorrupted as refused:
            assert (refused.path, refused.key_groups) == (damaged.path, damaged.file.key_groups)
        else:
            assert found.equals(sound)
            unnoticed.append(at)
    assert unnoticed == list(range(MAGIC_BYTES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_header_of_a_page_is_noticed_by_every_way_of_reading(kind: str) -> None:
    damaged = Damaged(kind)
    for at in range(MAGIC_BYTES, MAGIC_BYTES + 24):
        changed = bytearray(damaged.data)
        changed[at] ^= 1
        damaged.put(bytes(changed))
        check_refused(damaged)


def test_the_digests_are_in_the_footer_of_a_file_of_several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshots.format.files.ROW_GROUP_ROWS_MIN", 1)
    monkeypatch.setattr("snapshots.format.columns.PIECE_ROWS_MAX", 1)
    # As long as what is reserved for a digest, and in the statistics before it.
    monkeypatch.setattr("tests.snapshots.format.damage.words", lambda count: ["?" * 16 + f"{n}" for n in range(count)])
    damaged = Damaged("count")
    reader = ParquetReader(damaged.snapshot.folder, damaged.file)
    metadata = reader.metadata()

    assert metadata.num_row_groups > 1
    assert len(metadata.metadata[ROW_GROUP_DIGESTS]) == 16 * metadata.num_row_groups
    assert b"?" not in metadata.metadata[ROW_GROUP_DIGESTS]
    assert metadata.row_group(0).column(1).statistics.min.startswith("?" * 16)
    assert isinstance(metadata, pq.FileMetaData)
    assert damaged.store.verify().ok
