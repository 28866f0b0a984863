"""Continues state with another source than before, or starts empty in a folder that already had state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keygroups.ttl import wall_time
from snapshots.commit.creation import first_manifest, next_manifest, put_manifest
from snapshots.commit.pending import PendingSnapshot
from snapshots.format.manifest import Manifest
from snapshots.lineage import first_lineage
from snapshots.restore.snapshot import Snapshot
from snapshots.versions import mark_expired


def move_source(snapshot: Snapshot, source_position: dict[str, Any]) -> Snapshot:
    """Commit the content of the newest snapshot again, with another source position.

    Raises
    ------
    CommitConflict
        Another writer committed in the meantime.
    """
    manifest = next_manifest(snapshot.manifest, "claim", source_position=source_position)
    return Snapshot(snapshot.folder, put_manifest(snapshot.folder, manifest))


def begin_anew(
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
