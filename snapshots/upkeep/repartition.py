"""Commits a snapshot with another parallelism and, with a rewrite, other key groups."""

from __future__ import annotations

from collections.abc import Callable

from snapshots.commit.creation import next_manifest, put_manifest
from snapshots.format.manifest import DataFile
from snapshots.restore.snapshot import Snapshot
from snapshots.upkeep.rewrite import Rewrite, Target, rewritten_manifest


def repartition(
    snapshot: Snapshot,
    parallelism: int,
    max_parallelism: int | None,
    hash_: str | None,
    rewrite: Callable[[Rewrite], tuple[DataFile, ...]] | None,
) -> Snapshot:
    """Do what `SnapshotStore.repartition` describes; without `rewrite`, commit a manifest over the same files.

    Raises
    ------
    ConfigError
        The parallelism does not fit, or the change requires a rewrite.
    """
    folder, parent = snapshot.folder, snapshot.manifest
    target = Target.of(parent, parallelism, max_parallelism, hash_)
    if rewrite is None:
        target.check_is_kept(parent)
        manifest = next_manifest(parent, "repartition", parallelism=parallelism)
    else:
        manifest = rewritten_manifest(folder, parent, target, rewrite)
    return Snapshot(folder, put_manifest(folder, manifest))
