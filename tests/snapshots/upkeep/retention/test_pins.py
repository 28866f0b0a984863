"""The pin of a version, which keeps it from being collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshots import SnapshotNotFound, SnapshotStore
from snapshots.filesystem import Folder
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.snapshot_kit import parts
from tests.snapshots.aged_operator import age, check_whole, folder_of, written


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

    def test_a_pin_beside_a_collection_is_refused_or_safe(self, tmp_path: Path, pytestconfig: pytest.Config) -> None:
        """At every step of the collection; in a quick run, at each fourth."""
        outcomes = Counter[bool]()
        for step in range(0, 40, 4 if pytestconfig.getoption("quick") else 1):
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
