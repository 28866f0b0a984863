"""The contract on the filesystems that are supported, and the refusal of all others."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots import SnapshotStore, UnsafeFilesystem, UnsupportedFilesystem
from snapshots.filesystem import Folder, LocalFolder, MemoryFolder, open_folder
from snapshots.testing import FolderWrapper
from snapshots.testing.contract import FolderContract


class TestLocalFolder(FolderContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return open_folder(str(tmp_path / "snapshots" / "enrich"))

    def test_a_path_and_its_uri_are_the_same(self, tmp_path: Path) -> None:
        open_folder(str(tmp_path)).create("manifests/1", b"1")

        assert isinstance(open_folder(tmp_path.as_uri()), LocalFolder)
        assert open_folder(tmp_path.as_uri()).read("manifests/1") == b"1"

    def test_a_written_file_never_replaces_another(self, folder: Folder) -> None:
        folder.write("data/a/1", b"1")

        with pytest.raises(FileExistsError):
            folder.write("data/a/1", b"2")

    def test_a_failing_write_leaves_nothing_behind(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.create("manifests/1", b"1")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            folder.create("manifests/2", b"2")
        assert folder.names("manifests") == ["1"]

    @pytest.mark.parametrize("make", ["create", "write"])
    def test_a_file_and_its_name_are_on_the_disk_before_anybody_is_told(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, make: str
    ) -> None:
        """A name is content of its directory: without a sync of that, a crash takes a manifest back."""
        synced: list[tuple[int, int]] = []
        sync = os.fsync

        def noted(descriptor: int) -> None:
            sync(descriptor)
            status = os.fstat(descriptor)
            synced.append((status.st_ino, len(os.listdir(descriptor)) if stat.S_ISDIR(status.st_mode) else -1))

        folder.create("manifests/1", b"1")
        directory = Path(folder.path("manifests"))
        monkeypatch.setattr(os, "fsync", noted)
        getattr(folder, make)("manifests/2", b"2")

        file = directory / "2"
        assert [inode for inode, _ in synced] == [file.stat().st_ino, directory.stat().st_ino]
        # It is there by then, whatever temporary name it had before.
        assert synced[-1][1] == 2

    def test_each_new_directory_is_on_the_disk_too(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        folder.create("manifests/1", b"1")

        directory = Path(folder.path("manifests"))
        for parent in (directory, directory.parent, directory.parent.parent):
            assert parent.stat().st_ino in synced

    @pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
    def test_a_filesystem_without_hard_links_is_refused_at_the_first_create(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        def link(source: Path, target: Path) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)
        with pytest.raises(UnsafeFilesystem, match="no hard links"):
            folder.create("manifests/1", b"1")
        assert folder.files() == []


class TestMemoryFolder(FolderContract):
    is_shared = False

    @pytest.fixture
    def folder(self) -> Folder:
        return open_folder(f"memory://{uuid.uuid4().hex}")

    def test_it_is_chosen_by_the_protocol(self, folder: Folder) -> None:
        assert isinstance(folder, MemoryFolder)


class TestWrappedFolder(FolderContract):
    """A wrapper is a folder, too."""

    rounds = 20

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return FolderWrapper(open_folder(str(tmp_path)))


@pytest.mark.parametrize(
    ("uri", "protocol"),
    [
        ("hdfs://host.invalid/snapshots", "hdfs"),
        ("ftp://host.invalid/snapshots", "ftp"),
        ("https://host.invalid/snapshots", "https"),
        ("simplecache::memory://snapshots", "simplecache"),
        ("no-such-protocol://snapshots", "no-such-protocol"),
    ],
)
def test_a_filesystem_without_an_atomic_create_is_refused_before_it_is_used(uri: str, protocol: str) -> None:
    with pytest.raises(UnsupportedFilesystem, match=f"{protocol}://") as refused:
        open_folder(uri)
    assert refused.value.protocol == protocol

    with pytest.raises(UnsupportedFilesystem):
        SnapshotStore(uri, "enrich")


def test_a_folder_that_does_not_say_how_to_create_refuses_to() -> None:
    plain = open_folder(f"memory://{uuid.uuid4().hex}")

    with pytest.raises(UnsupportedFilesystem):
        Folder(plain.filesystem, plain.root).create("manifests/1", b"1")


class Visited(dict[str, Any]):
    """What a filesystem in memory keeps. When it is gone through, another thread gets the chance to write."""

    def __init__(self, content: dict[str, Any], write: Callable[[], None]) -> None:
        super().__init__(content)
        self._write = write
        self.others: list[threading.Thread] = []

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.others.append(threading.Thread(target=self._write))
            self.others[-1].start()
            self.others[-1].join(0.05)  # one that has to wait comes later
            yield name


def test_folders_in_memory_are_listed_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(f"memory://{uuid.uuid4().hex}")
    folder.create("data/one", b"12")
    numbers = itertools.count()
    kept = {name: file for name, file in folder.filesystem.store.items() if folder.root in name}
    store = Visited(kept, lambda: folder.write(f"others/{next(numbers)}", b""))
    monkeypatch.setattr(type(folder.filesystem), "store", store)

    assert folder.names("data") == ["one"]
    assert ("data/one", 2) in [(file.name, file.bytes) for file in folder.files()]
    assert folder.sizes("data/o") == {"data/one": 2}
    for other in store.others:
        other.join()
    assert sum("/others/" in name for name in store.keys()) == len(store.others) > 0  # noqa: SIM118 - not a visit
