"""Snapshots of keyed state and in-flight elements: the Parquet format, its commit protocol, restore and rescale."""

from __future__ import annotations

from snapshots.claim import Claim
from snapshots.edit import Editor
from snapshots.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    DuplicateKey,
    FilesystemNotInstalled,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    SnapshotCorrupted,
    SnapshotExists,
    SnapshotNotFound,
    StorageUnavailable,
    UnsafeFilesystem,
    UnsupportedFilesystem,
    WriterFenced,
)
from snapshots.pending import PendingSnapshot
from snapshots.restore import SubtaskRestore
from snapshots.retention import GarbageReport
from snapshots.snapshot import Snapshot
from snapshots.store import SnapshotStore
from snapshots.subtask import InFlightElement, OperatorStateCut, SubtaskSnapshot
from snapshots.verify import Problem, VerifyReport
from snapshots.writer import SubtaskHandle

__all__ = [
    "Claim",
    "CommitConflict",
    "CommitOutcomeUnknown",
    "DuplicateKey",
    "Editor",
    "FilesystemNotInstalled",
    "GarbageReport",
    "InFlightElement",
    "IncompatibleSnapshot",
    "IncompleteSnapshot",
    "OperatorStateCut",
    "PendingSnapshot",
    "Problem",
    "Snapshot",
    "SnapshotCorrupted",
    "SnapshotExists",
    "SnapshotNotFound",
    "SnapshotStore",
    "StorageUnavailable",
    "SubtaskHandle",
    "SubtaskRestore",
    "SubtaskSnapshot",
    "UnsafeFilesystem",
    "UnsupportedFilesystem",
    "VerifyReport",
    "WriterFenced",
]
