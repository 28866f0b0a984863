"""Ownership: a claim is a commit itself, so the previous owner loses the next version."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.ranges import default_max_parallelism
from keygroups.representation import representation
from snapshots.commit.completeness import check_fixed
from snapshots.commit.manifest_creation import first_manifest, next_manifest, put_manifest
from snapshots.commit.part_writer import SubtaskHandle
from snapshots.commit.pending_snapshot import PendingSnapshot, write_and_commit
from snapshots.errors import CommitConflict, ManifestMissing, WriterFenced
from snapshots.filesystem import Folder, attempts
from snapshots.folder_hints import newest_or_empty
from snapshots.format.manifest import Manifest
from snapshots.format.subtask import SubtaskSnapshot
from snapshots.lineage import first_lineage
from snapshots.restore.snapshot import Snapshot
from snapshots.versions import load_head, load_manifest, mark_expired, newest_version


class Claim:
    """The right to write an operator's snapshots until another writer claims it.

    Any thread of the coordinator may call any method; commits are serialized. A claim stays in its process: workers get
    the `PendingSnapshot` that `begin` returns. After `CommitOutcomeUnknown`, make a new claim.

    Make one with `SnapshotStore.claim`, or from the snapshot that its owner has just committed. The storage decides
    about ownership, not a clock: a claim takes a version. A writer that was paused and resumes later finds that the
    version it expected to write is taken (a fencing token, after M. Kleppmann, "How to do distributed locking").

    Parameters
    ----------
    snapshot : Snapshot
        The owner's last commit.

    Attributes
    ----------
    snapshot : Snapshot
        The last commit of this claim; at first the claim itself, with the content that it found.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._folder = snapshot.folder
        self._lock = threading.Lock()
        self._fenced: WriterFenced | None = None
        self.snapshot: Snapshot = snapshot

    def __repr__(self) -> str:
        return representation(self, {"version": self.snapshot.version, "uri": self._folder.uri})

    def check(self) -> None:
        """Ask the storage whether the claim still holds; call it before work that could otherwise not be committed.

        Raises
        ------
        WriterFenced
            Another writer has committed since then.
        """
        with self._lock:
            version = self.snapshot.version
            newest = newest_version(self._folder) or 0
            if newest > version:
                self._fenced = _fenced(self._folder, version + 1, newest)
                raise self._fenced

    def begin(self) -> PendingSnapshot:
        """Begin a snapshot on top of the claim's last commit, even if others have committed since then.

        Raises
        ------
        WriterFenced
            The claim has already lost a version to another writer.
        """
        with self._lock:
            if self._fenced is not None:
                fenced = self._fenced
                raise WriterFenced(fenced.uri, fenced.version, fenced.newest, fenced.committed)
            manifest = self.snapshot.manifest
        return ClaimedSnapshot(self._folder, manifest.operator_id, manifest, self)

    def write(
        self,
        subtask_snapshots: Iterable[SubtaskSnapshot] | Mapping[str, Iterable[SubtaskSnapshot]],
        *,
        source_position: dict[str, Any] | None = None,
    ) -> Snapshot:
        """Write and commit the parts of all subtasks; for a job, a dict of the parts of each step by its name.

        Raises
        ------
        WriterFenced
            Another writer has committed since then; nothing was committed.
        IncompleteSnapshot, CommitOutcomeUnknown, UnstorableValue
            As `SnapshotStore.write` does.
        """
        return write_and_commit(self.begin(), subtask_snapshots, source_position)

    def _commit(
        self,
        pending: PendingSnapshot,
        handles: Iterable[SubtaskHandle],
        source_position: dict[str, Any] | None,
        metrics: dict[str, float] | None,
    ) -> Snapshot:
        with self._lock:
            try:
                snapshot = PendingSnapshot.commit(pending, handles, source_position=source_position, metrics=metrics)
            except CommitConflict as conflict:
                newest = max(newest_version(self._folder) or 0, conflict.version)
                self._fenced = _fenced(self._folder, conflict.version, newest)
                raise self._fenced from conflict
            self.snapshot = snapshot
            return snapshot


def _fenced(folder: Folder, version: int, newest: int) -> WriterFenced:
    """Return the error of a writer that has lost a version; it says who has won, if the storage tells."""
    committed = ""
    with suppress(OSError, KeyGroupsError):
        manifest = load_head(folder, newest).manifest
        process = manifest.written_by.get("process", "an unknown process")
        committed = f"{manifest.operation} by {process} at {manifest.created_at}"
    return WriterFenced(folder.uri, version, newest, committed)


@dataclass(frozen=True, slots=True)
class ClaimedSnapshot(PendingSnapshot):
    """A pending snapshot that its claim commits; workers get a copy without the claim.

    Attributes
    ----------
    claim : Claim
        The claim that commits.
    """

    claim: Claim

    def commit(
        self,
        handles: Iterable[SubtaskHandle],
        *,
        source_position: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> Snapshot:
        """Commit the snapshot if the claim still holds.

        Raises
        ------
        WriterFenced
            Another writer has committed since then; nothing was committed.
        """
        return self.claim._commit(self, handles, source_position, metrics)


def take_over(
    folder: Folder,
    parallelism: int | None,
    max_parallelism: int | None,
    hash_: str | None,
    *,
    accept_loss: bool,
) -> Claim:
    """Claim an operator, even if others commit at the same time; see `SnapshotStore.claim`."""
    for _ in attempts():
        newest, given_up = _what_is_there(folder, accept_loss=accept_loss)
        if newest is not None:
            check_fixed(newest, max_parallelism, hash_)
            claimed = next_manifest(newest, "claim", lineage=newest.lineage or first_lineage(folder))
        elif parallelism is None:
            raise ConfigError("parallelism", None, "there is no snapshot yet to take it from: pass one")
        else:
            key_groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
            lineage, named = first_lineage(folder), "xxhash64" if hash_ is None else hash_
            claimed = first_manifest(folder.operator_id, parallelism, key_groups, named, "claim", lineage=lineage)
        try:
            return _committed(folder, _after(folder, claimed, given_up))
        except CommitConflict as conflict:
            lost = conflict
    raise lost


def _what_is_there(folder: Folder, *, accept_loss: bool) -> tuple[Manifest | None, int]:
    """Return the newest manifest, and the highest version of the missing manifests that are given up, or 0."""
    try:
        newest = newest_or_empty(folder)
    except ManifestMissing as missing:
        if not accept_loss:
            raise
        return None if missing.newest is None else load_manifest(folder, missing.newest), missing.version
    return None if newest is None else newest.manifest, 0


def _after(folder: Folder, claimed: Manifest, given_up: int) -> Manifest:
    """Continue the versions after those that were given up, so that no holder of one of them can continue from it."""
    if not given_up:
        return claimed
    mark_expired(folder, given_up)
    return replace(claimed, version=given_up + 1)


def _committed(folder: Folder, manifest: Manifest) -> Claim:
    return Claim(Snapshot(folder, put_manifest(folder, manifest)))
