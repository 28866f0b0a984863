"""Snapshots of keyed state and in-flight elements: the Parquet format, its commit protocol, restore and rescale."""

from .commit.claim import Claim
from .commit.part_writer import SubtaskHandle
from .commit.pending_snapshot import PendingSnapshot
from .errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    DuplicateKey,
    EmptyBesideOthers,
    FolderMoved,
    IncompatibleSnapshot,
    IncompleteSnapshot,
    ManifestMissing,
    SnapshotCorrupted,
    SnapshotExists,
    SnapshotNotFound,
    UnequalCopies,
    WriterFenced,
    WrongStep,
)
from .filesystem.errors import (
    BucketMissing,
    FilesystemNotInstalled,
    NoTemporaryDirectory,
    PathObstructed,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
    TemporaryDiskFull,
    UnsafeFilesystem,
    UnsupportedFilesystem,
)
from .format.subtask import InFlightElement, OperatorStateCut, SubtaskSnapshot
from .restore.outputs import StoredOutputs
from .restore.share import SubtaskRestore
from .restore.snapshot import Snapshot
from .store import SnapshotStore
from .upkeep.edit import Editor
from .upkeep.retention import GarbageReport
from .upkeep.verify import Problem, VerifyReport

__all__ = [
    "BucketMissing",
    "Claim",
    "CommitConflict",
    "CommitOutcomeUnknown",
    "DuplicateKey",
    "Editor",
    "EmptyBesideOthers",
    "FilesystemNotInstalled",
    "FolderMoved",
    "GarbageReport",
    "InFlightElement",
    "IncompatibleSnapshot",
    "IncompleteSnapshot",
    "ManifestMissing",
    "NoTemporaryDirectory",
    "OperatorStateCut",
    "PathObstructed",
    "PendingSnapshot",
    "Problem",
    "Snapshot",
    "SnapshotCorrupted",
    "SnapshotExists",
    "SnapshotNotFound",
    "SnapshotStore",
    "StorageFull",
    "StorageRefused",
    "StorageUnavailable",
    "StoredOutputs",
    "SubtaskHandle",
    "SubtaskRestore",
    "SubtaskSnapshot",
    "TemporaryDiskFull",
    "UnequalCopies",
    "UnsafeFilesystem",
    "UnsupportedFilesystem",
    "VerifyReport",
    "WriterFenced",
    "WrongStep",
]
