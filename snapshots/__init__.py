"""Snapshots of keyed state and in-flight elements: the Parquet format, its commit protocol, restore and rescale."""

from __future__ import annotations

from snapshots.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    SnapshotCorrupted,
    SnapshotNotFound,
    UnsupportedFilesystem,
    WriterFenced,
)
from snapshots.pending import PendingSnapshot
from snapshots.restore import SubtaskRestore
from snapshots.snapshot import Snapshot
from snapshots.store import SnapshotStore
from snapshots.subtask import InFlightElement, OperatorStateCut, SubtaskSnapshot
from snapshots.verify import Problem, VerifyReport
from snapshots.writer import SubtaskHandle

__all__ = [
    "CommitConflict",
    "CommitOutcomeUnknown",
    "InFlightElement",
    "IncompatibleSnapshot",
    "IncompleteSnapshot",
    "OperatorStateCut",
    "PendingSnapshot",
    "Problem",
    "Snapshot",
    "SnapshotCorrupted",
    "SnapshotNotFound",
    "SnapshotStore",
    "SubtaskHandle",
    "SubtaskRestore",
    "SubtaskSnapshot",
    "UnsupportedFilesystem",
    "VerifyReport",
    "WriterFenced",
]
