"""The newest versions, followed while others commit and collect: what is read, and what is seen."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots import SnapshotCorrupted, SnapshotNotFound, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from snapshots.filesystem.errors import StorageRefused
from snapshots.format.manifest import manifest_name
from snapshots.inspection import RecentVersions
from snapshots.inspection.operators import VERSIONS_MAX
from snapshots.testing import FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.examples import scaled
from tests.snapshot_kit import parts
from tests.snapshots.epochs import commit_epoch

NOW = 1_800_000_000.0

_T = TypeVar("_T")


class WatchedFolder(FolderWrapper):
    """Notes each request, and calls back before each."""

    def __init__(self, inner: Folder) -> None:
        super().__init__(inner)
        self.before: Callable[[Operation, str], object] = lambda operation, name: None
        self.requests: list[tuple[Operation, str]] = []

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        self.requests.append((operation, name))
        self.before(operation, name)
        return run()

    def manifests_read(self) -> list[str]:
        return [name for operation, name in self.requests if operation == "read" and name.startswith("manifests/")]

    def costs(self) -> Counter[Operation]:
        return Counter(operation for operation, _ in self.requests)


@pytest.fixture
def folder() -> WatchedFolder:
    return watched_folder()


def watched_folder() -> WatchedFolder:
    return WatchedFolder(open_folder(f"memory://{uuid.uuid4().hex}/enrich"))


def writer_of(folder: WatchedFolder) -> SnapshotStore:
    """Return a store beside the one that is watched."""
    return SnapshotStore.on(folder.inner)


def seen(versions: RecentVersions) -> list[int]:
    return [commit.version for commit in versions.activity(NOW).recent]


def test_a_look_without_a_new_version_reads_no_manifest(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    writer.write(parts({"count": {"a": 1}}))
    versions = RecentVersions(SnapshotStore.on(folder))
    seen(versions)
    for _ in range(3):
        folder.requests.clear()
        assert seen(versions) == [1]
        assert folder.costs() == {"read": 1, "exists": 2, "names": 1}
        assert folder.manifests_read() == []


def test_each_new_version_is_read_once(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    for _ in range(3):
        writer.write(parts({"count": {"a": 1}}))
    versions = RecentVersions(SnapshotStore.on(folder))
    assert seen(versions) == [1, 2, 3]
    folder.requests.clear()

    commit_epoch(writer)
    writer.repartition(3)

    assert seen(versions) == [1, 2, 3, 4, 5]
    assert folder.manifests_read() == [manifest_name(5), manifest_name(4)]


def test_of_a_long_history_only_the_newest_are_read_and_none_is_listed(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    writer.write(parts({"count": {"a": 1}}))
    for number in range(VERSIONS_MAX + 8):
        writer.repartition(1 + number % 2)
    newest = writer.newest_version()
    versions = RecentVersions(SnapshotStore.on(folder))

    assert seen(versions) == list(range(newest - VERSIONS_MAX + 1, newest + 1))
    assert len(folder.manifests_read()) == VERSIONS_MAX
    assert [name for operation, name in folder.requests if operation in {"names", "files"}] == ["expired"]
    writer.repartition(5)
    assert seen(versions) == list(range(newest - VERSIONS_MAX + 2, newest + 2))


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_version_may_be_collected_while_it_is_read(folder: WatchedFolder, moment: int) -> None:
    writer = writer_of(folder)
    for _ in range(3):
        writer.write(parts({"count": {"a": 1}}))
    reads = 0

    def collect(operation: Operation, name: str) -> None:
        nonlocal reads
        if operation == "read" and name.startswith("manifests/"):
            if reads == moment:
                for _ in range(2):
                    commit_epoch(writer)
                writer.collect_garbage(keep_last=1, min_age=0, dry_run=False)
            reads += 1

    folder.before = collect
    versions = RecentVersions(SnapshotStore.on(folder))

    # The newest that was found is gone, or one of those before it.
    assert seen(versions) == {0: [5], 1: [3], 2: [2, 3]}[moment]
    folder.before = lambda operation, name: None
    assert seen(versions)[-1] == 5


def test_what_was_seen_stays_after_it_was_collected(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    for _ in range(3):
        writer.write(parts({"count": {"a": 1}}))
    versions = RecentVersions(SnapshotStore.on(folder))
    seen(versions)

    commit_epoch(writer)
    writer.collect_garbage(keep_last=1, min_age=0, dry_run=False)

    assert seen(versions) == [1, 2, 3, 4]


def empty(folder: Folder) -> None:
    folder.delete([file.name for file in folder.files()])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_folder_that_was_emptied_and_filled_again_has_a_new_history(folder: WatchedFolder, count: int) -> None:
    writer = writer_of(folder)
    for _ in range(3):
        writer.write(parts({"count": {"a": 1}}))
    versions = RecentVersions(SnapshotStore.on(folder))
    seen(versions)

    empty(folder.inner)
    for _ in range(count):
        commit_epoch(writer, rows=1)

    activity = versions.activity(NOW)
    assert [commit.version for commit in activity.recent] == list(range(1, count + 1))
    assert all(commit.count("rows") for commit in activity.recent)


def test_a_history_is_not_continued_with_that_of_others(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    for _ in range(3):
        writer.write(parts({"count": {"a": 1}}))

    def start_over(operation: Operation, name: str) -> None:
        if (operation, name) == ("read", manifest_name(2)):
            empty(folder.inner)
            for _ in range(3):
                commit_epoch(writer)

    folder.before = start_over

    assert seen(RecentVersions(SnapshotStore.on(folder))) == [3]


def test_a_folder_without_a_snapshot_is_not_found_now_and_later(folder: WatchedFolder) -> None:
    versions = RecentVersions(SnapshotStore.on(folder))
    with pytest.raises(SnapshotNotFound):
        versions.activity(NOW)

    writer_of(folder).write(parts({"count": {"a": 1}}))
    assert seen(versions) == [1]

    empty(folder.inner)
    with pytest.raises(SnapshotNotFound):
        versions.activity(NOW)


def test_it_writes_nothing(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    writer.write(parts({"count": {"a": 1}}))

    def refuse(operation: Operation, name: str) -> None:
        if operation in {"create", "write", "replace", "delete"}:
            raise StorageRefused(folder.uri, name, "read-only")

    folder.before = refuse

    assert seen(RecentVersions(SnapshotStore.on(folder))) == [1]


def test_a_damaged_manifest_is_an_error(folder: WatchedFolder) -> None:
    writer = writer_of(folder)
    for _ in range(2):
        writer.write(parts({"count": {"a": 1}}))
    folder.inner.replace(manifest_name(1), b"damaged")

    with pytest.raises(SnapshotCorrupted, match=manifest_name(1)):
        RecentVersions(SnapshotStore.on(folder)).activity(NOW)


STEPS = st.lists(st.sampled_from(["epoch", "epoch", "claim", "repartition", "collect", "look"]), max_size=12)


@settings(max_examples=scaled(60))
@given(STEPS)
def test_whatever_happens_the_newest_versions_are_seen_and_each_is_read_once(steps: list[str]) -> None:
    folder = watched_folder()
    writer = writer_of(folder)
    writer.write(parts({"count": {"a": 1}}))
    versions = RecentVersions(SnapshotStore.on(folder))
    doing: dict[str, Callable[[], Any]] = {
        "epoch": lambda: commit_epoch(writer, keys=1, rows=1),
        "claim": writer.claim,
        "repartition": lambda: writer.repartition(1 + writer.newest_version() % 3),
        "collect": lambda: writer.collect_garbage(keep_last=2, min_age=0, dry_run=False),
    }
    for step in (*steps, "look"):
        if step in doing:
            doing[step]()
            continue
        activity = versions.activity(NOW)
        found = [commit.version for commit in activity.recent]
        newest = writer.newest_version()
        assert found == list(range(newest - len(found) + 1, newest + 1))
        assert set(writer.versions()) <= set(found)
        assert activity.newest.version == newest
    assert max(Counter(folder.manifests_read()).values()) == 1
