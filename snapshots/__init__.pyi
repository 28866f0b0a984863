"""Snapshots of keyed state and in-flight elements: the Parquet format, its commit protocol, restore and rescale."""

from .claim import Claim
from .edit import Editor
from .errors import (
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
from .pending import PendingSnapshot
from .restore import SubtaskRestore
from .retention import GarbageReport
from .snapshot import Snapshot
from .store import SnapshotStore
from .subtask import InFlightElement, OperatorStateCut, SubtaskSnapshot
from .verify import Problem, VerifyReport
from .writer import SubtaskHandle

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
