"""Manifests that another process named: a worker reads the head, and only the lists with its own key groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from keygroups.ranges import KeyGroupRange
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.format.file_lists import held_lists
from snapshots.format.manifest import FileList, ListInfo, Manifest
from snapshots.format.manifest_head import Head
from snapshots.versions import load_head, with_lists


class NamedManifest:
    """A committed manifest whose lists are read when they are needed. Any thread may call any method.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    head : Head
        The head of the manifest.
    """

    def __init__(self, folder: Folder, head: Head) -> None:
        self._folder = folder
        self._head = head
        # What the manifest before had read and this one names, too, is not read again.
        self._lists: dict[ListInfo, FileList] = held_lists(head.lists)
        self._complete: Manifest | None = None

    @property
    def head(self) -> Manifest:
        """The manifest without the files and channels of its lists."""
        return self._head.manifest

    def complete(self) -> Manifest:
        """Return the whole manifest; this reads all lists."""
        if self._complete is None:
            self._complete = self._with(self._head.lists)
        return self._complete

    def within(self, key_groups: KeyGroupRange) -> Manifest:
        """Return what the manifest says to a subtask that owns some key groups; this reads the lists of these."""
        return self._with([info for info in self._head.lists if info.key_groups.intersection(key_groups) is not None])

    def _with(self, infos: Sequence[ListInfo]) -> Manifest:
        manifest = with_lists(self._folder, self._head, infos)
        self._lists |= {read.info: read for read in manifest.file_lists}
        return manifest


AnyManifest: TypeAlias = Manifest | NamedManifest
"""A manifest as a process has it: complete where it was committed or loaded, by its name where it was unpickled."""

_last_loaded: dict[str, NamedManifest] = {}
"""At most one manifest, by the id of its snapshot."""


def load_committed(folder: Folder, version: int, snapshot_id: str) -> NamedManifest:
    """Read a manifest that another process named; the last one is cached, because a process runs many tasks.

    Raises
    ------
    SnapshotNotFound
        The version does not exist any more, or it is another snapshot.
    SnapshotCorrupted
        The manifest is damaged.
    """
    manifest = _last_loaded.get(snapshot_id)
    if manifest is None:
        head = load_head(folder, version)
        if head.manifest.snapshot_id != snapshot_id:
            raise SnapshotNotFound(folder.uri, version)
        manifest = NamedManifest(folder, head)
        _last_loaded.clear()
        _last_loaded[snapshot_id] = manifest
    return manifest


def head_of(manifest: AnyManifest) -> Manifest:
    """Return a manifest that has all fields, but perhaps not all files and channels."""
    return manifest if isinstance(manifest, Manifest) else manifest.head


def complete(manifest: AnyManifest) -> Manifest:
    """Return a manifest with all files and channels."""
    return manifest if isinstance(manifest, Manifest) else manifest.complete()


def within(manifest: AnyManifest, key_groups: KeyGroupRange) -> Manifest:
    """Return a manifest with the files and channels that a subtask needs that owns some key groups."""
    return manifest if isinstance(manifest, Manifest) else manifest.within(key_groups)
