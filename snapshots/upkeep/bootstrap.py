"""Snapshots that no operator has cut: from rows, as a copy, empty in a folder that had state, with another source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from keygroups.arguments import pairs_in
from keygroups.codec import codecs_used
from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.ranges import default_max_parallelism
from keygroups.ttl import wall_time
from snapshots.commit.completeness import check_covered
from snapshots.commit.manifest_creation import first_manifest, next_manifest, put_manifest
from snapshots.commit.pending_snapshot import PendingSnapshot
from snapshots.errors import ManifestMissing, SnapshotCorrupted, SnapshotExists
from snapshots.filesystem import Folder
from snapshots.folder_hints import explain_empty
from snapshots.format.delivered import last_delivered, mark_delivered
from snapshots.format.manifest import DataFile, Manifest, StateInfo, features_of
from snapshots.format.parquet import damage_named
from snapshots.format.schemas import check_descriptor, state_info
from snapshots.format.sealing import check_json
from snapshots.lineage import adopt_lineage, first_lineage
from snapshots.restore.snapshot import Snapshot
from snapshots.upkeep.state_files import write_state
from snapshots.upkeep.user_rows import Rows, UserRowEncoding
from snapshots.versions import HINT, expired_version, mark_expired, newest_version


def bootstrap(
    folder: Folder,
    operator_id: str,
    states: Mapping[StateDescriptor, Rows] | Iterable[tuple[StateDescriptor, Rows]],
    parallelism: int,
    max_parallelism: int | None,
    hash_: str,
    source_position: dict[str, Any] | None,
) -> Snapshot:
    """Write and commit a first snapshot; see `SnapshotStore.bootstrap`."""
    check_json("source_position", source_position)
    _check_empty(folder)
    key_groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
    lineage = first_lineage(folder)
    manifest = first_manifest(operator_id, parallelism, key_groups, hash_, "bootstrap", lineage=lineage)
    infos: list[StateInfo] = []
    files: list[DataFile] = []
    for descriptor, rows in pairs_in("states", states):
        check_descriptor("states", descriptor)
        info = state_info(descriptor, None)
        if info.name in {one.name for one in infos}:
            raise ConfigError("states", info.name, "two states have this name; each needs its own")
        encoding = UserRowEncoding(info, key_groups, hash_)
        with codecs_used() as codecs:
            files += write_state(folder, manifest, info, encoding.tables(rows), is_first=True)
        infos.append(replace(info, codecs=tuple(sorted(codecs))))
    check_covered(files, [info.name for info in infos], key_groups)
    manifest = replace(
        manifest,
        states=tuple(infos),
        files=tuple(files),
        source_position=source_position,
        required_features=features_of(files, infos, manifest.channels),
    )
    return Snapshot(folder, put_manifest(folder, manifest))


def copy_snapshot(source: Snapshot, folder: Folder, *, keep_lineage: bool) -> Snapshot:
    """Copy a snapshot's files to the empty folder of another operator, and commit it there as the next version.

    The copy gets a lineage of its own, because it may run beside the original; a copy that takes the place of the
    original keeps that.

    Versions continue, because they define the order of files. Earlier versions are marked as expired, so that no other
    writer takes one of them. One file is in memory at a time.

    Raises
    ------
    SnapshotExists
        There is already a snapshot.
    SnapshotCorrupted
        A file is damaged.
    """
    _check_empty(folder, begun=source.version, name=source.manifest.operator_id)
    manifest = next_manifest(
        source.manifest,
        "copy",
        operator_id=folder.operator_id,
        lineage=source.manifest.lineage if keep_lineage else first_lineage(folder),
        # No run of the other operator continues here, so channels are others than in its lists.
        channels=tuple(replace(channel, cut_id=None) for channel in source.manifest.channels),
        file_lists=tuple(one for one in source.manifest.file_lists if not one.channels),
    )
    for one in manifest.objects:
        path = source.folder.path(one.path)
        with damage_named(path, one.key_groups):
            data = source.folder.read(one.path, 0, one.bytes + 1)
        if hashlib.sha256(data).hexdigest() != one.sha256:
            raise SnapshotCorrupted(path, "its content is not what was written", one.key_groups)
        folder.write(one.path, data)
    if delivered := last_delivered(source.folder):
        mark_delivered(folder, delivered)
    mark_expired(folder, source.version)
    copied = Snapshot(folder, put_manifest(folder, manifest))
    adopt_lineage(folder, manifest.lineage)
    return copied


def _check_empty(folder: Folder, begun: int | None = None, name: str | None = None) -> None:
    try:
        newest = newest_version(folder)
    except ManifestMissing:
        # A copy that was killed after setting its mark may be started again.
        if expired_version(folder) != begun or folder.exists(HINT):
            raise
        return
    if newest is not None:
        raise SnapshotExists(folder.uri, newest)
    explain_empty(folder, name)


def move_source(snapshot: Snapshot, source_position: dict[str, Any]) -> Snapshot:
    """Commit the content of the newest snapshot again, with another source position.

    Raises
    ------
    CommitConflict
        Another writer committed in the meantime.
    """
    manifest = next_manifest(snapshot.manifest, "claim", source_position=source_position)
    return Snapshot(snapshot.folder, put_manifest(snapshot.folder, manifest))


def start_empty(
    pending: PendingSnapshot, *, parallelism: int, max_parallelism: int, hash: str, source_position: dict[str, Any]
) -> Snapshot:
    """Commit an empty snapshot, whatever exists, with a version that no earlier snapshot had.

    Versions continue. If all snapshots are lost, the last version is unknown. Then the new version is the number of
    milliseconds since 1970, which versions that count from 1 cannot have reached.

    Parameters
    ----------
    pending : PendingSnapshot
        The result of `SnapshotStore.begin`.
    parallelism, max_parallelism : int
        The numbers of subtasks and of key groups of the empty snapshot.
    hash : {"xxhash64", "flink"}
        The hash that maps keys to key groups.
    source_position : dict
        The position up to which the source's data are not part of the state.

    Raises
    ------
    CommitConflict
        Another writer committed in the meantime.
    """
    parent = pending.parent
    empty = first_manifest(
        pending.operator_id,
        parallelism,
        max_parallelism,
        hash,
        "claim",
        source_position=source_position,
        lineage=(parent and parent.lineage) or first_lineage(pending.folder),
    )
    manifest = _in_place_of_lost(pending, empty) if parent is None else _after(parent, empty)
    return Snapshot(pending.folder, put_manifest(pending.folder, manifest))


def _after(parent: Manifest, empty: Manifest) -> Manifest:
    return replace(empty, version=parent.version + 1, parent_version=parent.version, parent_id=parent.snapshot_id)


def _in_place_of_lost(pending: PendingSnapshot, empty: Manifest) -> Manifest:
    version = wall_time()
    mark_expired(pending.folder, version - 1)  # so that no other writer takes a lower version
    return replace(empty, version=version)
