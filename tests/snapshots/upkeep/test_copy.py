"""The copy: an operator goes on under another name."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import CommitConflict, SnapshotCorrupted, SnapshotExists, SnapshotStore
from tests.snapshot_kit import content_of, parts, record


def test_a_copy_continues_under_another_name(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "here", "enrich")
    for n in range(3):
        store.write(parts({"count": {"a": n}}, in_flight=[record("a", 0)]), source_position={"n": n})
    other = SnapshotStore(tmp_path / "there", "enrich_2")

    copied = store.copy_to(other)

    assert (copied.version, copied.manifest.operator_id) == (4, "enrich_2")
    assert copied.manifest.parent_id == store.load(3).manifest.snapshot_id
    assert content_of(copied) == content_of(store.load(3))
    assert (copied.in_flight_count, copied.source_position) == (1, {"n": 2})
    assert other.verify().ok
    assert other.write(parts({"count": {"a": 9}})).version == 5
    assert other.collect_garbage(keep_last=1, min_age=0, dry_run=False).expired == (4,)
    with pytest.raises(SnapshotExists):
        store.copy_to(other)


def test_no_writer_takes_a_version_below_a_copy(tmp_path: Path) -> None:
    store, other = SnapshotStore(tmp_path, "enrich"), SnapshotStore(tmp_path, "other")
    store.write(parts({"count": {"a": 1}}))
    paused = other.begin()
    handles = [paused.write_subtask(one) for one in parts({"count": {"a": 2}})]
    store.copy_to(other)

    with pytest.raises(CommitConflict):
        paused.commit(handles)

    assert other.versions() == [2]


def test_a_damaged_file_is_not_copied(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"count": {"a": 1}}))
    file = next(tmp_path.glob("enrich/data/*/keyed-count-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")

    with pytest.raises(SnapshotCorrupted, match="not what was written"):
        store.copy_to(SnapshotStore(tmp_path, "other"))
