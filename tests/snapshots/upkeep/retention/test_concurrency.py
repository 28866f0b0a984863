"""Collections beside readers, writers and other collections: what is listed is whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from snapshots import CommitConflict, CommitOutcomeUnknown, SnapshotNotFound, SnapshotStore
from snapshots.filesystem import Folder
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.quick import first_is_quick
from tests.snapshot_kit import content_of, parts
from tests.snapshots.aged_operator import DAY, age, check_whole, data_files, folder_of, named, write, written


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

    def test_a_writer_that_slept_within_its_commit_is_fenced(self, store: SnapshotStore) -> None:
        """The name was free until it was looked at, and is free again when it is taken."""
        written(store, 2)

        def overtake() -> None:
            written(store, 4)
            store.collect_garbage(keep_last=1, dry_run=False)

        with pytest.raises(CommitConflict):
            write(SnapshotStore.on(Meanwhile(folder_of(store), overtake, before="create")), 3)
        assert store.versions() == [4]

    @pytest.mark.parametrize("is_reply_lost", [False, True])
    @pytest.mark.parametrize("is_pinned", [False, True])
    def test_a_version_that_expires_within_its_commit_is_committed(
        self, store: SnapshotStore, is_pinned: bool, is_reply_lost: bool
    ) -> None:
        """Others have continued from it, so its writer must not be told that it has no effect."""
        written(store, 2)

        def overtake() -> None:
            if is_pinned:
                store.pin(3)
            store.repartition(1)
            store.collect_garbage(keep_last=1, dry_run=False)
            if is_reply_lost:
                raise ConnectionResetError

        snapshot = write(SnapshotStore.on(Meanwhile(folder_of(store), overtake, after="create")), 3)
        latest = store.latest()
        assert latest is not None
        assert latest.manifest.parent_id == snapshot.manifest.snapshot_id
        assert content_of(latest)["count"] == {"a": 3, "b": -3}
        assert store.versions() == ([3, 4] if is_pinned or is_reply_lost else [4])

    def test_of_a_version_that_expires_with_its_successor_the_outcome_is_unknown(self, store: SnapshotStore) -> None:
        written(store, 2)

        def overtake() -> None:
            store.pin(3)
            for parallelism in (1, 2):
                store.repartition(parallelism)
            store.collect_garbage(keep_last=1, dry_run=False)

        with pytest.raises(CommitOutcomeUnknown):
            write(SnapshotStore.on(Meanwhile(folder_of(store), overtake, after="create")), 3)
        assert store.versions() == [3, 5]


class TestBesideOthers:
    @pytest.mark.thorough
    def test_a_reader_of_what_stays_and_a_writer_continue(self, store: SnapshotStore) -> None:
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
        other = Meanwhile(
            folder, lambda: (store.repartition(1), store.collect_garbage(keep_last=1, dry_run=False)), before="read"
        )
        report = SnapshotStore.on(other).collect_garbage(keep_last=2, dry_run=False)

        assert report.newest == 5
        assert store.versions() == [5]
        check_whole(store)


class Meanwhile(FolderWrapper):
    """A folder in which something happens once: before or after the first such operation on a manifest."""

    def __init__(
        self,
        inner: Folder,
        happen: Callable[[], object],
        *,
        before: Operation | None = None,
        after: Operation | None = None,
    ) -> None:
        super().__init__(inner)
        self.happen: Callable[[], object] | None = happen
        self.before, self.after = before, after

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], Any]) -> Any:
        is_manifest = name.startswith("manifests/")
        if is_manifest and operation == self.before:
            self._let_happen()
        result = run()
        if is_manifest and operation == self.after:
            self._let_happen()
        return result

    def _let_happen(self) -> None:
        if self.happen is not None:
            happen, self.happen = self.happen, None
            happen()


@pytest.mark.parametrize("seed", first_is_quick(range(8)))
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
