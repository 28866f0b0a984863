"""The contract on the filesystems that are supported, and the refusal of all others."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from snapshots import SnapshotStore, UnsupportedFilesystem
from snapshots.filesystem import Folder, LocalFolder, MemoryFolder, open_folder
from tests.contract.folder_contract import FolderContract


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


class TestMemoryFolder(FolderContract):
    @pytest.fixture
    def folder(self) -> Folder:
        return open_folder(f"memory://{uuid.uuid4().hex}")

    def test_it_is_chosen_by_the_protocol(self, folder: Folder) -> None:
        assert isinstance(folder, MemoryFolder)


@pytest.mark.parametrize(
    ("uri", "protocol"),
    [
        ("s3://bucket/snapshots", "s3"),
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
