"""The snapshots of one operator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from typing import Any

from keygroups.errors import ConfigError
from keygroups.ranges import check_parallelism, default_max_parallelism
from snapshots.claim import Claim, commit_claim, commit_first_claim
from snapshots.commit import next_manifest, put_manifest
from snapshots.compaction import compacted_files
from snapshots.errors import CommitConflict, SnapshotCorrupted, SnapshotNotFound
from snapshots.filesystem import Folder, attempts, check_uri, open_folder
from snapshots.manifest import Manifest, features_of, manifest_name
from snapshots.pending import PendingSnapshot, check_fixed
from snapshots.retention import KEEP_LAST, MIN_AGE_SECONDS, GarbageReport, Pins, collect_garbage
from snapshots.snapshot import Snapshot
from snapshots.subtask import SubtaskSnapshot
from snapshots.verify import Problem, VerifyReport, verify
from snapshots.versions import committed_versions, newest_version

_OPERATOR_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


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
        # Apart from its slashes, nothing may be left of a root such as memory://
        scheme, separator, root = str(uri).rpartition("://")
        self._use(open_folder(f"{scheme}{separator}{root.rstrip('/')}/{operator_id}", storage_options))

    @classmethod
    def at(cls, uri: str | PathLike[str], *, storage_options: dict[str, Any] | None = None) -> SnapshotStore:
        """Open the store whose operator's folder is `uri`."""
        check_uri(str(uri))
        root, slash, operator_id = str(uri).rstrip("/").rpartition("/")
        return cls(f"{root}{slash}" or ".", operator_id, storage_options=storage_options)

    @classmethod
    def on(cls, folder: Folder) -> SnapshotStore:
        """Open the store whose operator's folder is `folder`, such as one that counts what is asked of it."""
        store = cls.__new__(cls)
        store._use(folder)
        return store

    def _use(self, folder: Folder) -> None:
        self._folder = folder
        self.operator_id = folder.root.rpartition("/")[2]

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

    def claim(
        self, *, parallelism: int | None = None, max_parallelism: int | None = None, hash: str | None = None
    ) -> Claim:
        """Take the operator over: every other writer is fenced from now on.

        The claim is a commit of its own, with the content of the newest snapshot. Whoever began before it, and was
        paused meanwhile, loses the version that it expected to write.

        Parameters
        ----------
        parallelism : int, optional
            Of the empty first version; needed only where there is no snapshot yet.
        max_parallelism : int, optional
            The number of key groups. Chosen for the parallelism where there is no snapshot yet and none is given.
        hash : str, optional
            What maps keys to key groups; "xxhash64" where there is no snapshot yet and none is given.

        Raises
        ------
        ConfigError
            There is no snapshot yet, and no parallelism is given.
        IncompatibleSnapshot
            The newest snapshot has another max parallelism or hash.
        CommitConflict
            Others committed all the while.

        Examples
        --------
        >>> claim = SnapshotStore("memory://claims", "enrich").claim(parallelism=2)
        >>> claim.snapshot.version, claim.begin().version
        (1, 2)
        """
        for _ in attempts():
            latest = self.latest()
            try:
                if latest is not None:
                    check_fixed(latest.manifest, max_parallelism, hash)
                    return commit_claim(self._folder, latest.manifest)
                if parallelism is None:
                    raise ConfigError("parallelism", None, "there is no snapshot yet that says it: pass one")
                key_groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
                return commit_first_claim(self._folder, self.operator_id, parallelism, key_groups, hash or "xxhash64")
            except CommitConflict as conflict:
                lost = conflict
        raise lost

    def versions(self) -> list[int]:
        """Return the committed versions, ascending."""
        return committed_versions(self._folder)

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot, or None if there is none yet."""
        version = newest_version(self._folder)
        return None if version is None else self.load(version)

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
        manifest = next_manifest(latest.manifest, "repartition", parallelism=parallelism)
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
        manifest = next_manifest(parent, "compact", files=files, required_features=features_of(files, parent.states))
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
            version = newest_version(self._folder)
        if version is None:
            raise SnapshotNotFound(self.uri)
        try:
            snapshot = self.load(version)
        except SnapshotCorrupted as error:
            return VerifyReport(version, 0, 0, (Problem(error.path, error.key_groups, error.damage),))
        return verify(self._folder, snapshot.manifest)

    def pin(self, version: int) -> None:
        """Keep a version from garbage collection, until it is unpinned.

        Raises
        ------
        SnapshotNotFound
            There is no such version, or it is expiring.
        """
        Pins(self._folder).add(version)

    def unpin(self, version: int) -> None:
        """Let garbage collection have a version again; one that is not pinned stays so."""
        Pins(self._folder).remove(version)

    def pinned(self) -> list[int]:
        """Return the pinned versions, ascending."""
        return Pins(self._folder).versions()

    def collect_garbage(
        self, *, keep_last: int = KEEP_LAST, min_age: float = MIN_AGE_SECONDS, dry_run: bool = True
    ) -> GarbageReport:
        """Expire old versions, and remove the files that no remaining version names.

        It may run beside a writer and beside readers of what remains, and again after a crash. The newest version and
        those that are pinned always remain.

        Parameters
        ----------
        keep_last : int
            How many of the newest versions remain.
        min_age : float
            Seconds that a file without a version is kept, by the storage's clock. It must exceed the time from the
            first file of a commit to its manifest, and that of a restore from a version that expires meanwhile.
        dry_run : bool
            Only report what would be removed.

        Returns
        -------
        GarbageReport
            What goes and what stays.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot.
        SnapshotCorrupted, IncompatibleSnapshot
            A version that remains cannot be read, so it is not known what it needs; nothing was removed.
        """
        return collect_garbage(self._folder, keep_last=keep_last, min_age=min_age, dry_run=dry_run)
