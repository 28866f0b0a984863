"""Reads lists of files: each once for all manifests of this process that name it, because it never changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from weakref import WeakValueDictionary

from snapshots.daemon_threads import DaemonPool
from snapshots.errors import SnapshotCorrupted
from snapshots.filesystem import Folder
from snapshots.format.manifest import FileList, ListInfo
from snapshots.format.manifest_head import list_from_bytes
from snapshots.format.parquet import damage_named

REQUESTS_AT_ONCE = 16

_alive = WeakValueDictionary[ListInfo, FileList]()
"""The lists of the manifests that this process holds: it keeps no list that none of them names."""


def remember(read: FileList) -> None:
    """Keep a list for other manifests that name it, as long as one of this process does."""
    _alive[read.info] = read


def held_lists(infos: Iterable[ListInfo]) -> dict[ListInfo, FileList]:
    """Return the lists among some that a manifest of this process holds."""
    held = ((info, _alive.get(info)) for info in infos)
    return {info: found for info, found in held if found is not None}


def read_lists(folder: Folder, infos: Sequence[ListInfo]) -> tuple[FileList, ...]:
    """Return some lists, and read those that no manifest of this process holds.

    Raises
    ------
    SnapshotCorrupted
        A list is missing or damaged.
    """
    found = held_lists(infos)
    missing = [info for info in infos if info not in found]
    if missing:
        with DaemonPool(min(len(missing), REQUESTS_AT_ONCE), "keygroups lists") as pool:
            found |= zip(missing, pool.map(lambda info: read_list(folder, info), missing), strict=True)
    return tuple(found[info] for info in infos)


def read_list(folder: Folder, info: ListInfo) -> FileList:
    """Read and check one list, whether this process has it or not.

    Raises
    ------
    SnapshotCorrupted
        It is missing or damaged.
    """
    path = folder.path(info.path)
    with damage_named(path, info.key_groups):
        data = folder.read(info.path, 0, info.bytes + 1)
    if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
        raise SnapshotCorrupted(path, "its content is not what was written", info.key_groups)
    try:
        read = list_from_bytes(data, info, path)
    except SnapshotCorrupted as error:
        raise SnapshotCorrupted(path, error.damage, info.key_groups) from error
    remember(read)
    return read
