"""Where there are more key groups than keys, a snapshot costs what its rows cost: no table for each key group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keygroups import key_group_of, range_of
from keygroups.state import KeyedStateBackend
from snapshots import Snapshot, SnapshotStore
from snapshots.commit import part_writer
from snapshots.format.columns import RowEncoder
from snapshots.format.files import KeyedWriter
from snapshots.format.parquet import ParquetReader
from snapshots.inspection import difference
from snapshots.inspection.difference import compare
from snapshots.restore import reader
from snapshots.upkeep import compaction
from tests.backends import new_backend
from tests.snapshot_kit import COUNT, new_store, part, restored

pytestmark = pytest.mark.usefixtures("each_backend")

MANY = 2**12
KEYS = range(1000)
FEW = 20
"""More tables than any of these steps needs, and far fewer than there are key groups."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the tables that are encoded, merged, read and added to files."""
    found = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    counted(RowEncoder, "_table")
    counted(KeyedWriter, "add")
    counted(ParquetReader, "read")
    counted(part_writer, "merge")
    counted(compaction, "merge")
    counted(difference, "merge")
    counted(reader, "merge")
    return found


class Operator:
    """An operator of one subtask that counts keys; what it stores is compared with a dict."""

    def __init__(self) -> None:
        self.store: SnapshotStore = new_store()
        self.expected = dict.fromkeys(KEYS, 0)
        self.backend: KeyedStateBackend = new_backend([COUNT], range_of(0, 1, MANY))
        for key in KEYS:
            self.put(key, 0)

    def put(self, key: int, value: int) -> None:
        self.backend.tables["count"].put(key_group_of(key, MANY), key, value)
        self.expected[key] = value

    def write(self) -> Snapshot:
        snapshot = self.store.write([part(self.backend, 0, 1, max_parallelism=MANY)])
        self.check(snapshot)
        return snapshot

    def check(self, snapshot: Snapshot) -> None:
        rows = snapshot.to_arrow("count")
        assert dict(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)) == self.expected
        assert rows["key_group"].to_pylist() == sorted(key_group_of(key, MANY) for key in self.expected)


def test_a_whole_snapshot_encodes_small_key_groups_together(made: Counter[str]) -> None:
    Operator().write()

    assert 0 < made["_table"] < FEW
    assert 0 < made["add"] < FEW


def test_a_delta_that_folds_others_merges_small_key_groups_together(made: Counter[str]) -> None:
    operator = Operator()
    operator.write()
    for number in range(part_writer.DELTAS_MAX):
        operator.put(number, 1)
        operator.write()
    made.clear()
    operator.put(500, 1)
    (delta,) = operator.write().manifest.files_of("delta")

    assert (delta.rows, delta.folds) == (part_writer.DELTAS_MAX + 1, True)
    assert 0 < made["merge"] < FEW
    assert 0 < made["read"] < FEW


def test_compaction_merges_small_key_groups_together(made: Counter[str]) -> None:
    operator = Operator()
    operator.write()
    operator.put(7, 1)
    operator.write()
    made.clear()
    snapshot = operator.store.compact()

    operator.check(snapshot)
    assert not snapshot.manifest.files_of("delta")
    assert 0 < made["merge"] < FEW


def test_key_groups_that_were_restored_without_rows_are_not_written_one_by_one(made: Counter[str]) -> None:
    operator = Operator()
    operator.backend = restored(operator.write(), 0, descriptors=[COUNT])
    for key in KEYS[:600]:  # more than half, so the next snapshot is whole
        operator.put(key, 1)
    made.clear()
    snapshot = operator.write()

    assert not snapshot.manifest.files_of("delta")
    assert made["add"] < len(KEYS)


def test_two_versions_are_compared_by_few_merges(made: Counter[str]) -> None:
    operator = Operator()
    old = operator.write()
    operator.put(7, 1)
    operator.put(1001, 1)
    new = operator.write()
    made.clear()
    (found,) = compare(old, new, rows=2).states

    assert (found.added, found.changed, len(found.key_groups)) == (1, 1, 2)
    assert 0 < made["merge"] < FEW


def test_a_restore_merges_small_key_groups_together(made: Counter[str]) -> None:
    operator = Operator()
    operator.write()
    operator.put(7, 1)
    snapshot = operator.write()
    groups = snapshot.restore(0).states([COUNT])["count"]
    made.clear()
    first = key_group_of(500, MANY)
    loaded = [(key_group, groups[key_group].load()) for key_group in [first, *(set(groups) - {first})]]

    assert {key: value for _, group in loaded for key, value in group.items()} == operator.expected
    assert all(key_group_of(key, MANY) == key_group for key_group, group in loaded for key in group)
    assert 0 < made["merge"] < FEW
    assert 0 < made["read"] < FEW
