"""The first snapshot of an operator from rows that were made elsewhere, and the copy of a snapshot for another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from keygroups.codec import codecs_used
from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from snapshots.commit import first_manifest, next_manifest, put_manifest
from snapshots.errors import SnapshotCorrupted, SnapshotExists
from snapshots.features import features_of
from snapshots.filesystem import Folder
from snapshots.manifest import DataFile, StateInfo, check_json
from snapshots.pending import check_covered
from snapshots.rows import RowEncoding, Rows
from snapshots.schemas import state_info
from snapshots.snapshot import Snapshot
from snapshots.state_files import write_state
from snapshots.versions import mark_expired, newest_version


def bootstrap(
    folder: Folder,
    operator_id: str,
    states: Iterable[tuple[StateDescriptor, Rows]],
    parallelism: int,
    max_parallelism: int,
    hash_: str,
    source_position: dict[str, Any] | None,
) -> Snapshot:
    """Write and commit a first snapshot; see `SnapshotStore.bootstrap`."""
    check_json("source_position", source_position)
    _check_empty(folder)
    manifest = first_manifest(operator_id, parallelism, max_parallelism, hash_, "bootstrap")
    infos: list[StateInfo] = []
    files: list[DataFile] = []
    for descriptor, rows in states:
        info = state_info(descriptor, None)
        if info.name in {one.name for one in infos}:
            raise ConfigError("states", info.name, "two states have this name; each needs one of its own")
        encoding = RowEncoding(info, max_parallelism, hash_)
        with codecs_used() as codecs:
            files += write_state(folder, manifest, info, encoding.tables(rows), is_first=True)
        infos.append(replace(info, codecs=tuple(sorted(codecs))))
    check_covered(files, [info.name for info in infos], max_parallelism)
    manifest = replace(
        manifest,
        states=tuple(infos),
        files=tuple(files),
        source_position=source_position,
        required_features=features_of(files, infos),
    )
    put_manifest(folder, manifest)
    return Snapshot(folder, manifest)


def copy_snapshot(source: Snapshot, folder: Folder) -> Snapshot:
    """Copy a snapshot's files to the empty folder of another operator, and commit it there as the version after.

    Versions go on, because files are ordered by theirs; those before are marked as expired, so that no other writer
    takes one of them. A file is in memory at a time.

    Raises
    ------
    SnapshotExists
        There is a snapshot already.
    SnapshotCorrupted
        A file is damaged.
    """
    _check_empty(folder)
    for file in source.manifest.whole_files:
        path = source.folder.path(file.path)
        try:
            data = source.folder.read(file.path, 0, file.bytes + 1)
        except FileNotFoundError as error:
            raise SnapshotCorrupted(path, "the file is missing", file.key_groups) from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise SnapshotCorrupted(path, "its content is not what was written", file.key_groups)
        folder.write(file.path, data)
    mark_expired(folder, source.version)
    manifest = next_manifest(
        source.manifest,
        "copy",
        operator_id=folder.root.rpartition("/")[2],
        # A run of the other operator does not go on here.
        channels=tuple(replace(channel, cut_id=None) for channel in source.manifest.channels),
    )
    put_manifest(folder, manifest)
    return Snapshot(folder, manifest)


def _check_empty(folder: Folder) -> None:
    newest = newest_version(folder)
    if newest is not None:
        raise SnapshotExists(folder.uri, newest)
