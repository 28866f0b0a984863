"""Commits the epochs of a job or a pipeline, in the order that ARCHITECTURE.md draws ("The order of a commit")."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from async_op.epochs.position import JobPosition, SourcePosition
from async_op.epochs.retention import GarbageCollector, Retention
from snapshots import Claim, PendingSnapshot, Snapshot, SnapshotStore, SubtaskHandle
from snapshots.folder_hints import newest_or_empty


class Coordinator:
    """The one who commits an operator's epochs, until another claims the operator.

    One thread at a time may call it, but any may call `check`. One epoch is under way at a time. `begin`, `commit` and
    `check` block.

    Parameters
    ----------
    store : SnapshotStore
        The snapshots of the operator or job.
    retention : Retention, optional
        Which old versions stay; all of them without it.

    Attributes
    ----------
    snapshot : Snapshot or None
        The newest snapshot: what was claimed, then what was committed.
    garbage : GarbageCollector or None
        Removes old versions beside the epochs.
    """

    def __init__(self, store: SnapshotStore, retention: Retention | None = None) -> None:
        self.store = store
        self.snapshot: Snapshot | None = None
        self.garbage = None if retention is None else GarbageCollector(retention)
        self._claim: Claim | None = None

    @property
    def version(self) -> int:
        """The version of the newest snapshot; 0 before the first."""
        return 0 if self.snapshot is None else self.snapshot.version

    def take_over(self) -> None:
        """Claim the operator, so that every other run of it is fenced.

        Without a snapshot there is nothing to take over: the run that commits the first version owns the operator.
        """
        if newest_or_empty(self.store.folder) is not None:
            self._claim = self.store.claim()
            self.snapshot = self._claim.snapshot

    def check(self) -> None:
        """Raise `WriterFenced` if another run has claimed the operator."""
        if self._claim is not None:
            self._claim.check()

    def begin(self) -> PendingSnapshot:
        """Begin a snapshot on top of the newest one; from now on no collection removes its files."""
        if self._claim is None:
            pending = PendingSnapshot.first(self.store.folder, self.store.operator_id)
        else:
            pending = self._claim.begin()
        if self.garbage is not None:
            self.garbage.epoch_begins(pending.attempts_prefix)
        return pending

    def commit(
        self,
        pending: PendingSnapshot,
        parts: Iterable[SubtaskHandle],
        position: SourcePosition | JobPosition,
        metrics: Mapping[str, float],
    ) -> Snapshot:
        """Commit the parts of all subtasks with the position of the source: then, and only then, the epoch exists."""
        snapshot = pending.commit(list(parts), source_position=position.to_json(), metrics=dict(metrics))
        self._claim = self._claim or Claim(snapshot)
        self.snapshot = snapshot
        return snapshot

    def ended(self) -> None:
        """Begin to collect garbage, if it is time, because the files of older versions are read no more; waits not."""
        if self.garbage is not None and self.version > 1:  # the first version replaces nothing
            self.garbage.epoch_ended(self.store.folder, time.monotonic())

    @property
    def failed_collections(self) -> int:
        """How many collections have failed since the last one that succeeded."""
        return 0 if self.garbage is None else self.garbage.failures

    def close(self) -> None:
        """Wait for the collection under way: the folder may be removed after the run, and must be unused then."""
        if self.garbage is not None:
            self.garbage.join()
