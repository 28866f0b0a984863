"""The commit: one of several writers wins, and what is not whole commits nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from keygroups import ConfigError, KeyGroupRange
from snapshots import CommitConflict, IncompatibleSnapshot, IncompleteSnapshot, Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.commit.part_writer import SubtaskHandle
from snapshots.filesystem import Folder, MemoryFolder
from tests.snapshot_kit import G, content_of, new_store, parts, record
from tests.snapshots.snapshot_content import CONTENT


class TestCommit:
    def test_the_second_of_two_writers_meets_a_conflict_and_has_written_nothing_visible(
        self, store: SnapshotStore
    ) -> None:
        one, two = store.begin(), store.begin()
        handles = [two.write_subtask(made) for made in parts({"count": {"a": 2}})]
        one.commit([one.write_subtask(made) for made in parts({"count": {"a": 1}})])

        with pytest.raises(CommitConflict) as conflict:
            two.commit(handles)
        assert (conflict.value.uri, conflict.value.version) == (store.uri, 1)
        assert store.versions() == [1]
        assert content_of(store.load(1))["count"] == {"a": 1}

    def test_one_of_many_racing_writers_wins(self, store: SnapshotStore) -> None:
        start = threading.Barrier(8)

        def race(number: int) -> Snapshot | CommitConflict:
            pending = store.begin()
            handles = [pending.write_subtask(made) for made in parts({"count": {"a": number}})]
            start.wait()
            try:
                return pending.commit(handles)
            except CommitConflict as conflict:
                return conflict

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(race, range(8)))

        (won,) = (outcome for outcome in outcomes if isinstance(outcome, Snapshot))
        assert store.load(1).manifest == won.manifest
        assert store.versions() == [1]

    def test_a_repartition_that_is_overtaken_meets_a_conflict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = new_store()
        store.write(parts({"count": {"a": 1}}))
        create = MemoryFolder.create

        def overtaken(folder: MemoryFolder, name: str, data: bytes) -> None:
            monkeypatch.setattr(MemoryFolder, "create", create)
            store.write(parts({"count": {"a": 2}}))
            create(folder, name, data)

        monkeypatch.setattr(MemoryFolder, "create", overtaken)
        with pytest.raises(CommitConflict, match="version 2"):
            store.repartition(1)
        assert content_of(store.load(2))["count"] == {"a": 2}

    def test_of_several_attempts_of_a_subtask_one_counts(self) -> None:
        """Spark may run a task twice; both attempts report."""
        store = new_store()
        pending = store.begin()
        first, second = parts({"count": {"a": 1, "b": 2, "c": 3}})
        handles = [pending.write_subtask(made) for made in (second, first, second, first, first)]
        snapshot = pending.commit(handles)

        assert content_of(snapshot)["count"] == {"a": 1, "b": 2, "c": 3}
        assert len({file.path for handle in handles for file in handle.files}) == 10
        assert len(snapshot.manifest.files) == 4
        assert store.verify().ok

    @pytest.mark.parametrize(
        ("chosen", "problem"),
        [
            ([], "no subtask wrote its part"),
            ([0, 1], r"subtasks \[2\] wrote nothing"),
            ([2, 2, 2], r"subtasks \[0, 1\] wrote nothing"),
        ],
    )
    def test_a_commit_without_all_subtasks_commits_nothing(self, chosen: list[int], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts(CONTENT, parallelism=3)]

        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit([handles[index] for index in chosen])
        assert store.versions() == []

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"parallelism": 4}, "differ in parallelism"),
            ({"max_parallelism": 2 * G}, "differ in max_parallelism"),
            ({"hash": "flink"}, "differ in hash"),
            ({"states": ()}, "differ in states"),
            ({"key_groups": KeyGroupRange(0, G - 1)}, "key groups of another"),
        ],
        ids=lambda value: None if isinstance(value, dict) else value,
    )
    def test_parts_that_are_not_of_one_run_commit_nothing(self, change: dict[str, Any], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        first, second = [pending.write_subtask(made) for made in parts(CONTENT)]

        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit([first, dataclasses.replace(second, **change)])
        assert store.versions() == []

    @pytest.mark.parametrize(("name", "value"), [("max_parallelism", 2 * G), ("hash", "flink")])
    def test_what_is_fixed_stays_as_in_the_parent(self, name: str, value: object) -> None:
        store = new_store()
        store.write([SubtaskSnapshot(subtask_index=0, parallelism=1, max_parallelism=G, hash="xxhash64")])
        changed = SubtaskSnapshot(
            **({"subtask_index": 0, "parallelism": 1, "max_parallelism": G, "hash": "xxhash64"} | {name: value})  # type: ignore[arg-type]
        )

        with pytest.raises(IncompatibleSnapshot, match="fixed once a snapshot exists"):
            store.write([changed])
        assert store.versions() == [1]

    @pytest.mark.parametrize("parallelism", [0, -1, G + 1])
    def test_an_impossible_repartition_commits_nothing(self, parallelism: int) -> None:
        store = new_store()
        store.write(parts({}))

        with pytest.raises(ConfigError, match=f"parallelism={parallelism}"):
            store.repartition(parallelism)
        assert store.versions() == [1]

    @pytest.mark.parametrize("source_position", [{0: 1}, {"at": dt.date(2026, 1, 1)}, {"range": (1, 2)}])
    def test_a_source_position_that_would_come_back_changed_is_refused(self, source_position: dict[Any, Any]) -> None:
        store = new_store()

        with pytest.raises(ConfigError, match="source_position"):
            store.write(parts({}), source_position=source_position)
        assert store.versions() == []


class TestReports:
    """What workers report is looked at before it is committed."""

    def refused(self, change: Callable[[Folder, list[SubtaskHandle]], list[SubtaskHandle]], problem: str) -> None:
        store = new_store()
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts(CONTENT, in_flight=[record("a", 0)])]
        with pytest.raises(IncompleteSnapshot, match=problem):
            pending.commit(change(pending.folder, handles))
        assert store.versions() == []

    def test_files_that_only_the_worker_sees(self) -> None:
        def lose(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            folder.delete([handles[1].files[0].path])
            return handles

        self.refused(lose, "subtask 1 wrote .* finds nothing: all workers must reach the same storage")

    def test_files_of_another_size(self) -> None:
        def truncate(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            path = handles[0].files[1].path
            folder.replace(path, folder.read(path)[:-1])
            return handles

        self.refused(truncate, "subtask 0 wrote .* finds [0-9]+ bytes")

    def test_elements_that_were_not_written(self) -> None:
        def forget(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handle, in_flight_count=handle.in_flight_count + 1) for handle in handles]

        self.refused(forget, r"subtask 0 had \d elements in flight and wrote \d")

    def test_a_file_that_is_named_twice(self) -> None:
        def double(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handle, files=handle.files + handle.files[:1]) for handle in handles]

        self.refused(double, "name the same file")

    def test_a_file_of_other_key_groups(self) -> None:
        def move(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            return [dataclasses.replace(handles[0], files=handles[1].files), handles[1]]

        def swap(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            first, second = ([file for file in handle.files if file.kind == "keyed"] for handle in handles)
            others = [[file for file in handle.files if file.kind != "keyed"] for handle in handles]
            return [
                dataclasses.replace(handles[0], files=(*second, *others[0])),
                dataclasses.replace(handles[1], files=(*first, *others[1])),
            ]

        self.refused(move, "name the same file")
        self.refused(swap, "key groups of another")

    def test_key_groups_without_a_base_file(self) -> None:
        def narrow(folder: Folder, handles: list[SubtaskHandle]) -> list[SubtaskHandle]:
            files = tuple(dataclasses.replace(file, key_groups=KeyGroupRange(0, 1)) for file in handles[0].files)
            return [dataclasses.replace(handles[0], files=files), handles[1]]

        self.refused(narrow, "do not hold each key group exactly once")
