"""The snapshots of one operator."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism
from snapshots.compaction import compacted_files
from snapshots.errors import SnapshotCorrupted, SnapshotNotFound
from snapshots.filesystem import open_folder
from snapshots.manifest import Manifest, features_of, library_versions, manifest_name
from snapshots.pending import PendingSnapshot, now_text, put_manifest
from snapshots.snapshot import Snapshot
from snapshots.subtask import SubtaskSnapshot
from snapshots.verify import Problem, VerifyReport, verify

_OPERATOR_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_MANIFEST = re.compile(r"(\d{20})\.json")


class SnapshotStore:
    """The snapshots of one operator, in one folder. Any thread may call any method; one coordinator commits.

    Parameters
    ----------
    uri : str or path
        An fsspec URI or a local path, under which the operator has its folder.
    operator_id : str
        Letters, digits, `_`, `.` and `-`; the name of that folder.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    ConfigError
        The operator id cannot be the name of a folder.
    UnsupportedFilesystem
        Snapshots cannot be committed safely there.

    Examples
    --------
    >>> store = SnapshotStore("memory://snapshots", "enrich")
    >>> store.latest() is None
    True
    """

    def __init__(
        self, uri: str | PathLike[str], operator_id: str, *, storage_options: dict[str, Any] | None = None
    ) -> None:
        if not _OPERATOR_ID.fullmatch(operator_id):
            raise ConfigError("operator_id", operator_id, "use letters, digits, '_', '.' and '-', 255 at most")
        self.operator_id = operator_id
        # Apart from its slashes, nothing may be left of a root such as memory://
        scheme, separator, root = str(uri).rpartition("://")
        self._folder = open_folder(f"{scheme}{separator}{root.rstrip('/')}/{operator_id}", storage_options)

    @classmethod
    def at(cls, uri: str | PathLike[str], *, storage_options: dict[str, Any] | None = None) -> SnapshotStore:
        """Open the store whose operator's folder is `uri`."""
        root, slash, operator_id = str(uri).rstrip("/").rpartition("/")
        return cls(f"{root}{slash}" or ".", operator_id, storage_options=storage_options)

    @property
    def uri(self) -> str:
        """The operator's folder."""
        return self._folder.uri

    def write(
        self, subtask_snapshots: Iterable[SubtaskSnapshot], *, source_position: dict[str, Any] | None = None
    ) -> Snapshot:
        """Write and commit the parts of all subtasks.

        Raises
        ------
        IncompleteSnapshot, CommitConflict, CommitOutcomeUnknown, UnstorableValue
            Nothing was committed, except where the outcome is unknown.
        """
        pending = self.begin()
        handles = [pending.write_subtask(snapshot) for snapshot in subtask_snapshots]
        return pending.commit(handles, source_position=source_position)

    def begin(self) -> PendingSnapshot:
        """Begin a snapshot on top of the newest one."""
        latest = self.latest()
        return PendingSnapshot(self._folder, self.operator_id, None if latest is None else latest.manifest)

    def versions(self) -> list[int]:
        """Return the committed versions, ascending."""
        matches = (_MANIFEST.fullmatch(name) for name in self._folder.names("manifests"))
        return [int(match[1]) for match in matches if match]

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot, or None if there is none yet."""
        versions = self.versions()
        return self.load(versions[-1]) if versions else None

    def load(self, version: int) -> Snapshot:
        """Return a snapshot by version.

        Raises
        ------
        SnapshotNotFound
            There is no such version.
        SnapshotCorrupted
            Its manifest is damaged.
        """
        name = manifest_name(version)
        try:
            data = self._folder.read(name)
        except FileNotFoundError:
            raise SnapshotNotFound(self.uri, version) from None
        manifest = Manifest.from_bytes(data, self._folder.path(name))
        if (manifest.version, manifest.operator_id) != (version, self.operator_id):
            found = f"it says operator {manifest.operator_id!r}, version {manifest.version}"
            raise SnapshotCorrupted(self._folder.path(name), f"{found}: the file was moved or renamed")
        return Snapshot(self._folder, manifest)

    def repartition(self, parallelism: int) -> Snapshot:
        """Change the parallelism with which the newest snapshot is restored: one manifest over the same files.

        Parameters
        ----------
        parallelism : int
            At most the snapshot's max parallelism.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        ConfigError
            The parallelism is not between 1 and the max parallelism.
        CommitConflict
            Another writer committed meanwhile.
        """
        latest = self.latest()
        if latest is None:
            raise SnapshotNotFound(self.uri)
        check_parallelism(parallelism, latest.max_parallelism)
        parent = latest.manifest
        manifest = replace(
            parent,
            version=parent.version + 1,
            snapshot_id=uuid.uuid4().hex,
            parent_version=parent.version,
            parent_id=parent.snapshot_id,
            created_at=now_text(),
            parallelism=parallelism,
            metrics={},
        )
        put_manifest(self._folder, manifest)
        return Snapshot(self._folder, manifest)

    def compact(self) -> Snapshot:
        """Fold the deltas of the newest snapshot into its base files, and commit the result as the next version.

        The content stays the same, so that writers continue with deltas on it. Returns the newest snapshot as it is if
        there is nothing to fold.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        SnapshotCorrupted
            A file is damaged; nothing was committed.
        CommitConflict
            Another writer committed meanwhile.
        """
        latest = self.latest()
        if latest is None:
            raise SnapshotNotFound(self.uri)
        parent = latest.manifest
        files = compacted_files(self._folder, parent)
        if files == parent.files:
            return latest
        manifest = replace(
            parent,
            version=parent.version + 1,
            snapshot_id=uuid.uuid4().hex,
            parent_version=parent.version,
            parent_id=parent.snapshot_id,
            created_at=now_text(),
            files=files,
            metrics={},
            required_features=features_of(files),
            written_by=library_versions(),
        )
        put_manifest(self._folder, manifest)
        return Snapshot(self._folder, manifest)

    def verify(self, version: int | None = None) -> VerifyReport:
        """Read every file of a snapshot, the newest unless told otherwise, and compare it with the manifest.

        Raises
        ------
        SnapshotNotFound
            There is no such version.
        """
        if version is None:
            version = max(self.versions(), default=None)
        if version is None:
            raise SnapshotNotFound(self.uri)
        try:
            snapshot = self.load(version)
        except SnapshotCorrupted as error:
            return VerifyReport(version, 0, 0, (Problem(error.path, error.key_groups, error.damage),))
        return verify(self._folder, snapshot.manifest)
