"""Ownership: a claim is a commit of its own, so that whoever owned the operator before loses the next version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from keygroups.errors import ConfigError
from keygroups.ranges import default_max_parallelism
from snapshots.commit import first_manifest, next_manifest, put_manifest
from snapshots.errors import CommitConflict, WriterFenced
from snapshots.filesystem import Folder, attempts
from snapshots.manifest import Manifest
from snapshots.pending import PendingSnapshot, check_fixed
from snapshots.snapshot import Snapshot
from snapshots.subtask import SubtaskSnapshot
from snapshots.versions import newest_version
from snapshots.writer import SubtaskHandle


class Claim:
    """The right to write an operator's snapshots, until somebody else claims it.

    Any thread of the coordinator may call any method; commits come one after the other. A claim stays in its process:
    workers get the `PendingSnapshot` that `begin` returns. After `CommitOutcomeUnknown`, make a new claim.

    It is made by `SnapshotStore.claim`, or from the snapshot that its owner has just committed. The storage decides, no
    clock does: a claim takes a version, and a writer that was paused before and wakes up later finds the version taken
    that it expected to write (a fencing token, after M. Kleppmann, "How to do distributed locking").

    Parameters
    ----------
    snapshot : Snapshot
        The owner's own last commit.

    Attributes
    ----------
    snapshot : Snapshot
        What the claim committed last; at first the claim itself, with the content that it found.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._folder = snapshot.folder
        self._lock = threading.Lock()
        self._fenced: WriterFenced | None = None
        self.snapshot = snapshot

    def check(self) -> None:
        """Ask the storage whether the claim still holds, before work that could not be committed.

        Raises
        ------
        WriterFenced
            Somebody else has committed since.
        """
        with self._lock:
            version = self.snapshot.version
            newest = newest_version(self._folder) or 0
            if newest > version:
                self._fenced = WriterFenced(self._folder.uri, version + 1, newest)
                raise self._fenced

    def begin(self) -> PendingSnapshot:
        """Begin a snapshot on top of the claim's own last commit, whatever else has been committed since.

        Raises
        ------
        WriterFenced
            The claim has lost a version before.
        """
        with self._lock:
            if self._fenced is not None:
                raise WriterFenced(self._fenced.uri, self._fenced.version, self._fenced.newest)
            manifest = self.snapshot.manifest
        return ClaimedSnapshot(self._folder, manifest.operator_id, manifest, self)

    def write(
        self, subtask_snapshots: Iterable[SubtaskSnapshot], *, source_position: dict[str, Any] | None = None
    ) -> Snapshot:
        """Write and commit the parts of all subtasks.

        Raises
        ------
        WriterFenced
            Somebody else committed since; nothing was committed.
        IncompleteSnapshot, CommitOutcomeUnknown, UnstorableValue
            As `SnapshotStore.write` does.
        """
        pending = self.begin()
        handles = [pending.write_subtask(snapshot) for snapshot in subtask_snapshots]
        return pending.commit(handles, source_position=source_position)

    def _commit(
        self,
        pending: PendingSnapshot,
        handles: Iterable[SubtaskHandle],
        source_position: dict[str, Any] | None,
        metrics: dict[str, int] | None,
    ) -> Snapshot:
        with self._lock:
            try:
                snapshot = PendingSnapshot.commit(pending, handles, source_position=source_position, metrics=metrics)
            except CommitConflict as conflict:
                newest = max(newest_version(self._folder) or 0, conflict.version)
                self._fenced = WriterFenced(conflict.uri, conflict.version, newest)
                raise self._fenced from conflict
            self.snapshot = snapshot
            return snapshot


@dataclass(frozen=True, slots=True)
class ClaimedSnapshot(PendingSnapshot):
    """A pending snapshot whose commit is the claim's; workers get a copy without the claim.

    Attributes
    ----------
    claim : Claim
        Which commits.
    """

    claim: Claim

    def commit(
        self,
        handles: Iterable[SubtaskHandle],
        *,
        source_position: dict[str, Any] | None = None,
        metrics: dict[str, int] | None = None,
    ) -> Snapshot:
        """Make the snapshot exist, if the claim still holds.

        Raises
        ------
        WriterFenced
            Somebody else committed since; nothing was committed.
        """
        return self.claim._commit(self, handles, source_position, metrics)


def take_over(
    folder: Folder,
    operator_id: str,
    latest: Callable[[], Snapshot | None],
    parallelism: int | None,
    max_parallelism: int | None,
    hash_: str | None,
) -> Claim:
    """Claim an operator, whoever else commits meanwhile; see `SnapshotStore.claim`."""
    for _ in attempts():
        newest = latest()
        try:
            if newest is not None:
                check_fixed(newest.manifest, max_parallelism, hash_)
                return commit_claim(folder, newest.manifest)
            if parallelism is None:
                raise ConfigError("parallelism", None, "there is no snapshot yet that says it: pass one")
            key_groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
            return commit_first_claim(folder, operator_id, parallelism, key_groups, hash_ or "xxhash64")
        except CommitConflict as conflict:
            lost = conflict
    raise lost


def commit_claim(folder: Folder, parent: Manifest) -> Claim:
    """Commit the content of a snapshot again, as its new owner.

    Raises
    ------
    CommitConflict
        It is not the newest any more.
    """
    return _committed(folder, next_manifest(parent, "claim"))


def commit_first_claim(folder: Folder, operator_id: str, parallelism: int, max_parallelism: int, hash_: str) -> Claim:
    """Commit an empty first version, as the owner of what comes.

    Raises
    ------
    ConfigError
        The parallelism or the hash cannot be.
    CommitConflict
        There is a snapshot already.
    """
    manifest = first_manifest(operator_id, parallelism, max_parallelism, hash_, "claim")
    return _committed(folder, manifest)


def _committed(folder: Folder, manifest: Manifest) -> Claim:
    put_manifest(folder, manifest)
    return Claim(Snapshot(folder, manifest))
