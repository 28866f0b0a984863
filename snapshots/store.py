"""The snapshots of one operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.ranges import default_max_parallelism
from keygroups.ttl import wall_time
from snapshots.bootstrap import bootstrap, copy_snapshot
from snapshots.claim import Claim, take_over
from snapshots.commit import next_manifest, put_manifest
from snapshots.compaction import compact
from snapshots.edit import Editor
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder, attempts, check_uri, open_folder
from snapshots.observing import observed_rescale
from snapshots.pending import PendingSnapshot
from snapshots.retention import KEEP_LAST, MIN_AGE_SECONDS, GarbageReport, Pins, collect_garbage
from snapshots.rewrite import Engine, Progress, Target, engine_named, rewritten_manifest
from snapshots.rows import Rows
from snapshots.snapshot import Snapshot
from snapshots.subtask import SubtaskSnapshot
from snapshots.verify import VerifyReport, verify_version
from snapshots.versions import committed_versions, load_manifest, newest_version

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
        self.operator_id: str = folder.root.rpartition("/")[2]

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
        return take_over(self._folder, self.operator_id, self.latest, parallelism, max_parallelism, hash)

    def versions(self) -> list[int]:
        """Return the committed versions, ascending."""
        return committed_versions(self._folder)

    def newest_version(self) -> int:
        """Return the newest version, 0 if there is none; its manifest is not read, nor are all of them listed."""
        return newest_version(self._folder) or 0

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot, or None if there is none yet."""
        for _ in attempts():
            version = newest_version(self._folder)
            if version is None:
                return None
            try:
                return self.load(version)
            except SnapshotNotFound as error:
                expired = error  # since others committed, and collected garbage
        raise expired

    def _existing(self) -> Snapshot:
        latest = self.latest()
        if latest is None:
            raise SnapshotNotFound(self.uri)
        return latest

    def load(self, version: int) -> Snapshot:
        """Return a snapshot by version.

        Raises
        ------
        SnapshotNotFound
            There is no such version.
        SnapshotCorrupted
            Its manifest is damaged.
        """
        return Snapshot(self._folder, load_manifest(self._folder, version))

    def repartition(
        self,
        parallelism: int,
        *,
        max_parallelism: int | None = None,
        hash: str | None = None,
        rewrite: bool = False,
        engine: Engine = "local",
        spark: Any = None,
        progress: Progress | None = None,
    ) -> Snapshot:
        """Change the parallelism with which the newest snapshot is restored.

        That is one manifest over the same files. With `rewrite`, every row of keyed state and every in-flight element
        is written again, to the key group that another max parallelism or hash gives its key. The old version stays as
        it is until it is collected. A rewrite that was killed is begun again; what it leaves is garbage.

        Parameters
        ----------
        parallelism : int
            At most the max parallelism.
        max_parallelism : int, optional
            How many key groups there are to be; another number than now takes a rewrite.
        hash : {"xxhash64", "flink"}, optional
            From key to key group; another one than now takes a rewrite.
        rewrite : bool
            Whether to write everything again.
        engine : {"local", "spark"}
            Rewrite in this process, in bounded memory and with the local disk's help, or as a Spark job.
        spark : SparkSession, optional
            Runs the job.
        progress : callable, optional
            Is told, by the local engine, how many bytes are done, and of how many.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        ConfigError
            The parallelism is not between 1 and the max parallelism, or what is asked for takes a rewrite.
        UnsupportedKey
            The new hash is not defined for a key; nothing was committed.
        SnapshotCorrupted
            A file is damaged; nothing was committed.
        CommitConflict
            Another writer committed meanwhile.

        Examples
        --------
        >>> store.repartition(8)  # doctest: +SKIP
        >>> store.repartition(500, max_parallelism=4096, rewrite=True)  # doctest: +SKIP
        """
        with observed_rescale(self.operator_id) as tell:
            parent, run = self._existing().manifest, engine_named(engine, spark, progress)
            target = Target.of(parent, parallelism, max_parallelism, hash)
            if rewrite:
                manifest = rewritten_manifest(self._folder, parent, target, run)
            else:
                target.check_is_kept(parent)
                manifest = next_manifest(parent, "repartition", parallelism=parallelism)
            put_manifest(self._folder, manifest)
            tell(parent, Snapshot(self._folder, manifest))
        return Snapshot(self._folder, manifest)

    def bootstrap(
        self,
        states: Mapping[StateDescriptor, Rows] | Iterable[tuple[StateDescriptor, Rows]],
        *,
        parallelism: int,
        max_parallelism: int | None = None,
        hash: str = "xxhash64",
        source_position: dict[str, Any] | None = None,
    ) -> Snapshot:
        """Write a first snapshot from rows, in bounded memory: state that an operator is to start with.

        Rows are (key, value) pairs: the value of a list state is a list, of a map state a dict, of a reducing one what
        it is so far, of an aggregating one the accumulator. Or they are Arrow data with the columns `key`, `value` and
        `position` (list) or `map_key` (map), as `Snapshot.to_arrow` returns them; a struct as key is several columns.

        Parameters
        ----------
        states : mapping or iterable of pairs
            Rows by the declaration of their state.
        parallelism : int
            With which it is restored unless told otherwise.
        max_parallelism : int, optional
            The number of key groups; chosen for the parallelism if not given.
        hash : {"xxhash64", "flink"}
            From key to key group.
        source_position : dict, optional
            Where the source stands, as JSON.

        Raises
        ------
        SnapshotExists
            There is a snapshot already.
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            A row does not fit its state; nothing was committed.

        Examples
        --------
        >>> from keygroups import ValueState
        >>> store = SnapshotStore("memory://bootstrap", "enrich")
        >>> store.bootstrap({ValueState("visits"): [("ann", 2), ("bob", 1)]}, parallelism=2).version
        1
        """
        key_groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
        pairs = states.items() if isinstance(states, Mapping) else states
        return bootstrap(self._folder, self.operator_id, pairs, parallelism, key_groups, hash, source_position)

    def edit(self) -> Editor:
        """Begin to change the states of the newest snapshot by hand.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.

        """
        return Editor(self._folder, self._existing().manifest)

    def copy_to(self, other: SnapshotStore, version: int | None = None) -> Snapshot:
        """Copy a snapshot, the newest unless told otherwise, into the empty store of another operator.

        So an operator is renamed or moved, its in-flight elements and source position with it; nothing is removed here.

        Raises
        ------
        SnapshotNotFound, SnapshotCorrupted
            There is no such version, or a file of it is damaged.
        SnapshotExists
            The other store is not empty.
        """
        return copy_snapshot(self._existing() if version is None else self.load(version), other._folder)

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
        return compact(self._folder, self._existing(), wall_time())

    def verify(self, version: int | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Read every file of a snapshot, the newest unless told otherwise, and compare it with the manifest.

        Parameters
        ----------
        version : int, optional
            The version.
        progress : callable, optional
            Is told how many bytes are done, and of how many.

        Raises
        ------
        SnapshotNotFound
            There is no such version.
        """
        return verify_version(self._folder, version, progress)

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
            How many of the newest versions remain; one that an earlier collection left for its pin only is not counted.
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
