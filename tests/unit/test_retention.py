"""What garbage collection removes, what it never does, and what it asks of the storage."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ConfigError
from snapshots import CommitConflict, Snapshot, SnapshotCorrupted, SnapshotNotFound, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from snapshots.manifest import manifest_name
from snapshots.testing import CountingFolder, FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.snapshot_kit import content_of, parts

DAY = 24 * 3600.0
OLD = 30 * DAY


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path, "enrich")


def write(store: SnapshotStore, number: int) -> Snapshot:
    return store.write(parts({"count": {"a": number, "b": -number}}), source_position={"batch": number})


def written(store: SnapshotStore, versions: int) -> SnapshotStore:
    for number in range(len(store.versions()) + 1, versions + 1):
        write(store, number)
    return store


def age(store: SnapshotStore, seconds: float = OLD, below: str = "") -> None:
    """Make every file older, as the storage sees it."""
    for path in Path(folder_of(store).root, below).rglob("*"):
        if path.is_file():
            modified = path.stat().st_mtime - seconds
            os.utime(path, (modified, modified))


def folder_of(store: SnapshotStore) -> Folder:
    return open_folder(store.uri)


def data_files(store: SnapshotStore) -> set[str]:
    return {file.name for file in folder_of(store).files("data")}


def named(store: SnapshotStore) -> set[str]:
    return {file.path for version in store.versions() for file in store.load(version).manifest.files}


def check_whole(store: SnapshotStore) -> None:
    """Whatever is listed can be read, and has the content that it was written with."""
    for version in store.versions():
        snapshot = store.load(version)
        assert store.verify(version).ok
        batch = (snapshot.source_position or {"batch": version})["batch"]
        assert content_of(snapshot)["count"] == {"a": batch, "b": -batch}


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
        left = ["data/crashed/keyed-count-0-7.parquet", "manifests/.5f0e.tmp", "probe/17", ".77.tmp", "data/a/.1.tmp"]
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


class TestPins:
    def test_what_is_pinned_stays_until_it_is_not(self, store: SnapshotStore) -> None:
        written(store, 6)
        age(store)
        store.pin(2)
        store.pin(2)
        store.pin(6)
        assert store.pinned() == [2, 6]
        report = store.collect_garbage(keep_last=1, dry_run=False)

        assert (report.retained, report.pinned, report.expired) == ((2, 6), (2, 6), (1, 3, 4, 5))
        assert store.versions() == [2, 6]
        latest = store.latest()
        assert latest is not None
        assert latest.version == 6
        check_whole(store)
        assert store.write(parts({"count": {"a": 7, "b": -7}})).version == 7

        for version in (2, 2, 6):
            store.unpin(version)
        age(store)
        store.collect_garbage(keep_last=1, dry_run=False)
        assert store.versions() == [7]
        check_whole(store)

    def test_only_what_is_there_can_be_pinned(self, store: SnapshotStore) -> None:
        written(store, 5)
        store.collect_garbage(keep_last=2, dry_run=False)
        for version in (3, 6, 1):
            with pytest.raises(SnapshotNotFound):
                store.pin(version)
        assert store.pinned() == []

    def test_whoever_pins_beside_a_collection_is_refused_or_safe(self, tmp_path: Path) -> None:
        """At every step of the collection."""
        outcomes = Counter[bool]()
        for step in range(40):
            store = written(SnapshotStore(tmp_path / str(step), "enrich"), 4)
            age(store)
            pin = Pinning(folder_of(store), store, step)
            SnapshotStore.on(pin).collect_garbage(keep_last=1, dry_run=False)
            if pin.outcome is None:
                continue
            outcomes[pin.outcome] += 1
            assert (2 in store.versions()) is (pin.outcome or (2 in store.versions() and store.pinned() == []))
            if pin.outcome:
                assert store.pinned() == [2]
                assert store.verify(2).ok
            check_whole(store)
        assert min(outcomes[True], outcomes[False]) > 0


class Pinning(FolderWrapper):
    """A folder in which, before one operation, somebody else pins version 2."""

    def __init__(self, inner: Folder, store: SnapshotStore, step: int) -> None:
        super().__init__(inner)
        self.store = store
        self.step = step
        self.outcome: bool | None = None

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        self.step -= 1
        if self.step == 0:
            try:
                self.store.pin(2)
            except SnapshotNotFound:
                self.outcome = False
            else:
                self.outcome = True
        return run()


class TestFencing:
    def test_a_writer_that_slept_while_its_version_expired_is_fenced(self, store: SnapshotStore) -> None:
        """The name that it wants is free again."""
        written(store, 2)
        zombie = store.begin()
        handles = [zombie.write_subtask(made) for made in parts({"count": {"a": 3, "b": -3}})]
        written(store, 9)
        store.pin(2)
        store.collect_garbage(keep_last=2, dry_run=False)
        assert store.versions() == [2, 8, 9]

        with pytest.raises(CommitConflict):
            zombie.commit(handles)
        assert store.versions() == [2, 8, 9]
        latest = store.latest()
        assert latest is not None
        assert latest.version == 9

    def test_a_first_writer_that_slept_is_fenced(self, store: SnapshotStore) -> None:
        zombie = store.begin()
        handles = [zombie.write_subtask(made) for made in parts({})]
        written(store, 4)
        store.collect_garbage(keep_last=1, dry_run=False)

        with pytest.raises(CommitConflict):
            zombie.commit(handles)
        assert store.versions() == [4]


class TestBesideOthers:
    def test_a_reader_of_what_stays_and_a_writer_go_on(self, store: SnapshotStore) -> None:
        """With a grace period that is shorter than anything: only files without any version are in danger."""
        written(store, 3)
        over = threading.Event()

        def collect() -> int:
            runs = 0
            while not over.is_set():
                store.collect_garbage(keep_last=2, min_age=60.0, dry_run=False)
                runs += 1
            return runs

        with ThreadPoolExecutor(3) as pool:
            collecting = [pool.submit(collect) for _ in range(2)]
            try:
                for number in range(4, 40):
                    snapshot = write(store, number)
                    age(store, 3600.0, "data/" + Path(snapshot.manifest.files[0].path).parts[1])
                    assert content_of(snapshot)["count"] == {"a": number, "b": -number}
            finally:
                over.set()
            assert min(future.result() for future in collecting) > 0
        store.collect_garbage(keep_last=2, min_age=60.0, dry_run=False)
        assert store.versions() == [38, 39]
        check_whole(store)

    def test_two_collections_that_keep_differently_do_not_remove_what_the_newest_needs(
        self, store: SnapshotStore
    ) -> None:
        """The second one reads its plan, then the first one removes the versions that it planned to keep."""
        written(store, 4)
        age(store)
        folder = folder_of(store)
        other = Meanwhile(folder, lambda: (store.repartition(1), store.collect_garbage(keep_last=1, dry_run=False)))
        report = SnapshotStore.on(other).collect_garbage(keep_last=2, dry_run=False)

        assert report.newest == 5
        assert store.versions() == [5]
        check_whole(store)


class Meanwhile(FolderWrapper):
    """A folder in which something happens before the first manifest is read."""

    def __init__(self, inner: Folder, happen: Callable[[], object]) -> None:
        super().__init__(inner)
        self.happen: Callable[[], object] | None = happen

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        if operation == "read" and name.startswith("manifests/") and self.happen is not None:
            happen, self.happen = self.happen, None
            happen()
        return run()


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


class Stubborn(FolderWrapper):
    """Deletes nothing but trials, and says nothing: as a bucket whose policy forbids it, by way of s3fs."""

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        return None if operation == "delete" and not name.startswith("probe/") else run()


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_of_events_whatever_is_listed_is_whole(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    store = written(SnapshotStore(tmp_path, "enrich"), 1)
    pinned: set[int] = set()
    for _ in range(40):
        newest = store.versions()[-1]
        match choose.randrange(6):
            case 0 | 1:
                write(store, newest + 1)
            case 2:
                store.repartition(choose.randrange(1, 9))
            case 3:
                version = choose.randrange(1, newest + 1)
                try:
                    store.pin(version)
                    pinned.add(version)
                except SnapshotNotFound:
                    assert version not in store.versions() or version <= newest
            case 4 if pinned:
                version = choose.choice(sorted(pinned))
                store.unpin(version)
                pinned.remove(version)
            case _:
                age(store, choose.choice([0.0, 2 * DAY]))
                store.collect_garbage(keep_last=choose.randrange(1, 4), dry_run=False)
                assert data_files(store) >= named(store)
        assert pinned <= set(store.versions())
        latest = store.latest()
        assert latest is not None
        assert latest.version == store.versions()[-1] >= newest
        assert store.pinned() == sorted(pinned)
    check_whole(store)
