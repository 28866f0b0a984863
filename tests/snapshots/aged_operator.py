"""An operator with versions of any age, and the files that they name."""

from __future__ import annotations

import os
from pathlib import Path

from snapshots import Snapshot, SnapshotStore
from snapshots.filesystem import Folder, open_folder
from tests.snapshot_kit import content_of, parts

DAY = 24 * 3600.0
OLD = 30 * DAY


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
