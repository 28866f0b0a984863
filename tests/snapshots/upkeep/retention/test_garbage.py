"""The garbage: what is removed, what stays, and what the storage is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ConfigError
from snapshots import SnapshotCorrupted, SnapshotNotFound, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from snapshots.filesystem.errors import StorageUnavailable
from snapshots.format.manifest import manifest_name
from snapshots.testing import CountingFolder, FolderWrapper
from snapshots.testing.wrappers import Operation
from snapshots.upkeep.retention import collect_garbage
from tests.snapshot_kit import parts
from tests.snapshots.aged_operator import DAY, age, check_whole, data_files, folder_of, named, written


class TestWhatGoes:
    def test_old_versions_go_with_the_files_that_only_they_name(self, store: SnapshotStore) -> None:
        written(store, 8)
        age(store)
        report = store.collect_garbage(keep_last=3, dry_run=False)

        assert (report.newest, report.retained, report.expired) == (8, (6, 7, 8), (1, 2, 3, 4, 5))
        assert len(report.files) == 5 * 4
        assert report.bytes > 0
        assert (report.young, report.undeleted, report.dry_run) == (0, (), False)
        assert store.versions() == [6, 7, 8]
        assert data_files(store) == named(store)
        assert len(list(Path(folder_of(store).root, "data").iterdir())) == 3 * 2
        check_whole(store)

    def test_a_dry_run_says_the_same_and_removes_nothing(self, store: SnapshotStore) -> None:
        written(store, 8)
        age(store)
        before = folder_of(store).files()
        dry = store.collect_garbage(keep_last=3)

        assert folder_of(store).files() == before
        assert dry.dry_run
        wet = store.collect_garbage(keep_last=3, dry_run=False)
        assert (dry.retained, dry.expired, dry.files, dry.bytes) == (wet.retained, wet.expired, wet.files, wet.bytes)

    def test_a_dry_run_needs_no_right_to_write_or_delete(self, store: SnapshotStore) -> None:
        written(store, 8)
        age(store)
        report = collect_garbage(ReadOnly(folder_of(store)), keep_last=3, min_age=DAY, dry_run=True)

        assert (report.expired, len(report.files)) == ((1, 2, 3, 4, 5), 5 * 4)

    def test_by_default_nothing_is_removed_and_ten_versions_stay(self, store: SnapshotStore) -> None:
        written(store, 12)
        age(store)

        report = store.collect_garbage()
        assert (report.dry_run, report.expired) == (True, (1, 2))
        assert len(store.versions()) == 12

    def test_files_that_versions_share_stay_as_long_as_one_of_them(self, store: SnapshotStore) -> None:
        written(store, 1)
        for parallelism in (3, 5, 4):
            store.repartition(parallelism)
        age(store)
        report = store.collect_garbage(keep_last=1, dry_run=False)

        assert (report.expired, report.files) == ((1, 2, 3), ())
        check_whole(store)

    def test_files_of_a_commit_under_way_are_too_young(self, store: SnapshotStore) -> None:
        written(store, 3)
        age(store)
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts({"count": {"a": 4, "b": -4}})]
        report = store.collect_garbage(keep_last=1, dry_run=False)
        assert (report.expired, len(report.files), report.young) == ((1, 2), 8, 4)

        pending.commit(handles)
        assert store.versions() == [3, 4]
        check_whole(store)

    def test_files_of_a_commit_that_is_known_to_be_under_way_stay_at_any_age(self, store: SnapshotStore) -> None:
        written(store, 3)
        pending = store.begin()
        handles = [pending.write_subtask(made) for made in parts({"count": {"a": 4, "b": -4}})]
        age(store)
        begun: list[str] = []
        folder = Announcing(folder_of(store), lambda: begun.append(f"data/{pending.attempts_prefix}"))
        report = collect_garbage(folder, keep_last=1, min_age=0, dry_run=False, under_way=begun)
        assert (len(report.files), report.young) == (8, 4)

        pending.commit(handles)
        check_whole(store)

    def test_new_files_of_a_query_survive_the_collection(self, store: SnapshotStore) -> None:
        written(store, 1)
        folder = folder_of(store)
        for name in ("queries/1/answer.json", "queries/2/answer.json"):
            folder.replace(name, b"old")
        age(store)
        listed = Announcing(folder, lambda: folder.replace("queries/2/answer.json", b"new"))
        report = SnapshotStore.on(listed).collect_garbage(min_age=3600.0, dry_run=False)

        assert report.files == ("queries/1/answer.json",)
        assert folder.read("queries/2/answer.json") == b"new"

    @pytest.mark.parametrize(("min_age", "goes"), [(DAY, False), (0.5 * DAY, False), (3000.0, True), (0.0, True)])
    def test_how_old_is_measured_by_the_clock_that_stamps_the_files(
        self, store: SnapshotStore, min_age: float, goes: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written(store, 2)
        age(store, 3600.0)
        monkeypatch.setattr("time.time", lambda: 10e9)

        report = store.collect_garbage(keep_last=1, min_age=min_age, dry_run=False)
        assert report.expired == (1,)
        assert (len(report.files), report.young) == ((4, 0) if goes else (0, 4))

    def test_what_crashes_left_goes_when_it_is_old(self, store: SnapshotStore) -> None:
        written(store, 1)
        folder = folder_of(store)
        left = [
            "data/crashed/keyed-count-0-7.parquet",
            "manifests/.5f0e.tmp",
            "probe/17",
            "queries/17/wishes.json",
            ".77.tmp",
            "data/a/.1.tmp",
        ]
        for name in left:
            folder.write(name, b"part")
        folder.write("notes/mine.txt", b"of a user")

        assert store.collect_garbage(dry_run=False).young == len(left)
        age(store)
        assert set(store.collect_garbage(dry_run=False).files) == set(left)
        assert folder.exists("notes/mine.txt")
        check_whole(store)

    def test_outputs_are_files_like_others(self, store: SnapshotStore) -> None:
        for _ in range(2):
            pending = store.begin()
            outputs = pa.table({"key": ["a"]})
            pending.commit([pending.write_subtask(made, outputs) for made in parts({})])
        age(store)
        report = store.collect_garbage(keep_last=1, dry_run=False)

        assert sum("output" in name for name in report.files) == 2
        assert store.verify().ok

    def test_a_second_run_has_nothing_to_do(self, store: SnapshotStore) -> None:
        written(store, 8)
        age(store)
        store.collect_garbage(keep_last=3, dry_run=False)

        again = store.collect_garbage(keep_last=3, dry_run=False)
        assert (again.expired, again.files, again.retained) == ((), (), (6, 7, 8))

    def test_a_listing_that_is_out_of_date_is_named(self, store: SnapshotStore) -> None:
        written(store, 2)
        with pytest.raises(StorageUnavailable, match="listing"):
            SnapshotStore.on(OutOfDate(folder_of(store))).collect_garbage(keep_last=1, dry_run=False)
        assert store.versions() == [1, 2]

    @pytest.mark.parametrize("keep_last", [0, -1])
    def test_the_newest_cannot_be_given_up(self, store: SnapshotStore, keep_last: int) -> None:
        written(store, 2)
        with pytest.raises(ConfigError, match="keep_last"):
            store.collect_garbage(keep_last=keep_last, dry_run=False)
        with pytest.raises(ConfigError, match="min_age"):
            store.collect_garbage(min_age=-1.0)
        assert store.versions() == [1, 2]

    def test_without_a_snapshot_there_is_nothing_to_tell_garbage_by(self, store: SnapshotStore) -> None:
        folder_of(store).write("data/a/1", b"1")
        with pytest.raises(SnapshotNotFound):
            store.collect_garbage(min_age=0, dry_run=False)
        assert data_files(store) == {"data/a/1"}

    def test_a_version_that_cannot_be_read_stops_it_before_anything_is_removed(self, store: SnapshotStore) -> None:
        written(store, 6)
        age(store)
        folder = folder_of(store)
        folder.replace(manifest_name(5), folder.read(manifest_name(5))[:-3])
        before = folder.files()

        with pytest.raises(SnapshotCorrupted):
            store.collect_garbage(keep_last=3, dry_run=False)
        assert folder.files() == before


class TestCost:
    def test_requests_grow_with_the_versions_that_stay_and_not_with_files(self, tmp_path: Path) -> None:
        costs = []
        for subtasks, versions in ((1, 6), (8, 6), (8, 30)):
            folder = CountingFolder(open_folder(str(tmp_path / f"{subtasks}-{versions}" / "enrich")))
            store = SnapshotStore.on(folder)
            for _ in range(versions):
                store.write(parts({}, parallelism=subtasks))
            age(store)
            folder.reset()
            report = store.collect_garbage(keep_last=3, dry_run=False)
            assert len(report.files) == 2 * subtasks * (versions - 3)
            costs.append(dict(folder.operations))

        assert costs[0] == costs[1] == costs[2]
        assert costs[0]["read"] == 1 + 3
        assert costs[0]["files"] == 3
        assert costs[0]["delete"] == 3

    def test_more_than_a_thousand_files_are_removed_in_batches(self, store: SnapshotStore) -> None:
        written(store, 1)
        folder = CountingFolder(folder_of(store))
        for number in range(2100):
            path = Path(folder.path(f"data/{number % 7}/{number}"))
            path.parent.mkdir(exist_ok=True)
            path.touch()
        report = SnapshotStore.on(folder).collect_garbage(min_age=0.0, dry_run=False)

        assert len(report.files) == 2100
        assert folder.operations["delete"] == 1 + 3
        assert data_files(store) == named(store)

    def test_what_the_storage_keeps_is_reported(self, store: SnapshotStore) -> None:
        written(store, 3)
        age(store)

        report = SnapshotStore.on(Stubborn(folder_of(store))).collect_garbage(keep_last=1, dry_run=False)
        assert set(report.undeleted) == {*report.files, manifest_name(1), manifest_name(2)}


class Announcing(FolderWrapper):
    """Tells when it has listed the files."""

    def __init__(self, inner: Folder, listed: Callable[[], object]) -> None:
        super().__init__(inner)
        self.listed = listed

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        result = run()
        if operation == "files":
            self.listed()
        return result


class OutOfDate(FolderWrapper):
    """Lists nothing of what was just written."""

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        return [] if operation == "files" and name == "probe" else run()


class Stubborn(FolderWrapper):
    """Deletes nothing but trials, and says nothing: as a bucket whose policy forbids it, by way of s3fs."""

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        return None if operation == "delete" and not name.startswith("probe/") else run()


class ReadOnly(FolderWrapper):
    """Refuses whatever changes the storage."""

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        assert operation in {"read", "open", "size", "exists", "names", "files"}, f"{operation} of {name}"
        return run()
