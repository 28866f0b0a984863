"""The stored input of bounded runs: what is created once, what collections keep, and what damage is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keygroups import ValueState
from snapshots import SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import FileInfo
from snapshots.inputs import (
    StoredInput,
    begin_storing,
    load_input,
    needed_inputs,
    put_input,
    remove_input,
    write_rows,
)
from tests.snapshot_kit import new_store, parts

COUNT = ValueState("count", pa.int64(), default=0)
PREFIX = "0123456789abcdef"
WEEK = 7 * 24 * 3600.0


def _store(store: SnapshotStore, run_id: str, input_id: str) -> StoredInput:
    begin_storing(store.folder, run_id, PREFIX)
    files = tuple(write_rows(store.folder, PREFIX + input_id, n, 0, pa.table({"id": [n]})) for n in range(3))
    return put_input(store.folder, StoredInput(run_id, input_id, "{}", (files[:2], files[2:])))


@pytest.fixture
def store() -> SnapshotStore:
    store = new_store()
    store.write(parts({"count": {"ann": 1}}, [COUNT], 1), source_position={"finished_runs": ["done"]})
    return store


def test_the_first_list_counts(store: SnapshotStore) -> None:
    assert load_input(store.folder, "r") is None
    first = _store(store, "r", "a")
    assert load_input(store.folder, "r") == first
    assert _store(store, "r", "b") == first
    assert store.folder.names("inputs") == ["r.json"], "marks are removed with the list's creation"


def test_collections_keep_what_a_run_may_still_need(store: SnapshotStore) -> None:
    needed = [file.path for chunk in _store(store, "r", "a").chunks for file in chunk]
    _store(store, "done", "b")
    begin_storing(store.folder, "next", "fedcba9876543210")
    write_rows(store.folder, "fedcba9876543210-c", 0, 0, pa.table({"id": [1]}))
    report = store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    assert sorted(name.split("/")[1] for name in report.files) == [f"{PREFIX}b"] * 3 + ["done.json"]
    assert all(store.folder.exists(name) for name in needed)
    remove_input(store.folder, "r")
    assert load_input(store.folder, "r") is None
    assert not any(store.folder.exists(name) for name in needed)


@pytest.mark.parametrize(("position", "is_needed"), [({}, False), ({"run": {"run_id": "r"}}, True)])
def test_after_a_week_only_the_run_under_way_is_needed(
    store: SnapshotStore, position: dict[str, object], is_needed: bool
) -> None:
    _store(store, "r", "a")
    listed = [FileInfo("inputs/r.json", 1, 0.0), FileInfo("inputs/r.fedcba9876543210", 0, 0.0)]
    assert needed_inputs(store.folder, listed, position, WEEK - 1)[0]
    names, prefixes = needed_inputs(store.folder, listed, position, WEEK)
    assert (bool(names), bool(prefixes)) == (is_needed, is_needed)


def test_a_damaged_list_is_an_error_for_runs_and_collections(store: SnapshotStore) -> None:
    _store(store, "r", "a")
    data = store.folder.read("inputs/r.json")
    store.folder.replace("inputs/r.json", data.replace(b'"chunks"', b'"chunkz"'))
    with pytest.raises(SnapshotCorrupted):
        load_input(store.folder, "r")
    with pytest.raises(SnapshotCorrupted):
        store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
