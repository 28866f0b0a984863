"""What the driver tells tasks about the newest snapshot, so that a task reads no manifest to run an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pickle import loads

from async_op.spark.task.pickling import pickled
from keygroups.ranges import range_of
from snapshots import Snapshot, SubtaskRestore


@dataclass(frozen=True, slots=True)
class Newest:
    """The snapshot that an epoch continues from.

    Attributes
    ----------
    manifest_id : str or None
        The id of its manifest; None before the first epoch.
    cuts : mapping of int to str
        The ids of the cuts that the manifest names, for subtasks with the same key groups as in this epoch.
    snapshot : bytes or None
        The snapshot, pickled: unpickling it reads the manifest.
    """

    manifest_id: str | None = None
    cuts: Mapping[int, str | None] = field(default_factory=dict)
    snapshot: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, snapshot: Snapshot | None, parallelism: int) -> Newest:
        """Return what the tasks of an epoch with this parallelism need to know."""
        if snapshot is None:
            return cls()
        manifest, is_same = snapshot.manifest, snapshot.parallelism == parallelism
        ranges = [range_of(index, parallelism, snapshot.max_parallelism) for index in range(parallelism)]
        cuts = {
            one.subtask: one.cut_id
            for one in manifest.channels
            # After a rescale by a commit of metadata, channels still belong to the earlier subtasks.
            if is_same and one.subtask < parallelism and one.key_groups == ranges[one.subtask]
        }
        return cls(manifest.snapshot_id, cuts, pickled(snapshot))

    def restore(self, subtask_index: int, parallelism: int) -> SubtaskRestore | None:
        """Return a subtask's share of the snapshot, from its manifest; None without a snapshot."""
        if self.snapshot is None:
            return None
        snapshot: Snapshot = loads(self.snapshot)  # noqa: S301 - pickled by the driver
        return snapshot.restore(subtask_index, parallelism)
