"""`SnapshotStore`: the snapshots of one operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from keygroups.arguments import Duration, check_count, check_flag, check_instance
from keygroups.descriptors import StateDescriptor
from keygroups.names import OPERATOR_ID
from keygroups.ttl import wall_time
from snapshots.commit.claim import Claim, take_over
from snapshots.commit.pending_snapshot import PendingSnapshot, write_and_commit
from snapshots.filesystem import Folder, divided, open_folder, uri_text
from snapshots.folder_hints import newest_or_empty, not_found, warn_of_others
from snapshots.format.subtask import SubtaskSnapshot
from snapshots.observing import observed_rescale
from snapshots.progress import Progress
from snapshots.restore.snapshot import Snapshot, newest_snapshot
from snapshots.upkeep.bootstrap import bootstrap, copy_snapshot
from snapshots.upkeep.compaction import compact
from snapshots.upkeep.edit import Editor
from snapshots.upkeep.retention import KEEP_LAST, MIN_AGE_SECONDS, GarbageReport, Pins, collect_garbage
from snapshots.upkeep.rewrite import repartition
from snapshots.upkeep.rewrite_engines import Engine, engine_named
from snapshots.upkeep.user_rows import Rows
from snapshots.upkeep.verify import VerifyReport, verify_version
from snapshots.versions import check_version, committed_versions, load_requested, newest_version


class SnapshotStore:
    """The snapshots of one operator in one folder. Any thread may call any method; one coordinator commits.

    Parameters
    ----------
    uri : str or path
        An fsspec URI or a local path, in which the operator has its folder.
    operator_id : str
        The name of that folder: letters, digits, `_`, `.` and `-`.
    storage_options : dict, optional
        Passed to the fsspec filesystem.

    Raises
    ------
    ConfigError
        The operator id is not a valid folder name, or the URI is no text or path.
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
        OPERATOR_ID.check("operator_id", operator_id)
        # A root such as memory:// consists of nothing but slashes.
        scheme, separator, root = uri_text(uri).rpartition("://")
        self._use(open_folder(f"{scheme}{separator}{root.rstrip('/')}/{operator_id}", storage_options))

    @classmethod
    def at(cls, uri: str | PathLike[str], *, storage_options: dict[str, Any] | None = None) -> SnapshotStore:
        """Open the store in the operator's folder `uri`, as the command line does: `at("a/b")` is `("a", "b")`."""
        above, operator_id = divided(uri_text(uri))
        return cls(above, operator_id, storage_options=storage_options)

    @classmethod
    def on(cls, folder: Folder) -> SnapshotStore:
        """Open the store in an operator's `Folder`, for instance one that counts requests."""
        store = cls.__new__(cls)
        store._use(folder)
        return store

    def _use(self, folder: Folder) -> None:
        self.folder: Folder = folder
        self.operator_id: str = folder.operator_id

    def __repr__(self) -> str:
        return f"SnapshotStore.at({self.uri!r})"

    @property
    def uri(self) -> str:
        """The URI of the operator's folder."""
        return self.folder.uri

    def write(
        self,
        subtask_snapshots: Iterable[SubtaskSnapshot] | Mapping[str, Iterable[SubtaskSnapshot]],
        *,
        source_position: dict[str, Any] | None = None,
    ) -> Snapshot:
        """Write and commit the parts of all subtasks; for a job, a dict of the parts of each step by its name.

        Raises
        ------
        IncompleteSnapshot, CommitConflict, CommitOutcomeUnknown, UnstorableValue
            Nothing was committed, unless the outcome is unknown.
        """
        return write_and_commit(self.begin(), subtask_snapshots, source_position)

    def begin(self) -> PendingSnapshot:
        """Begin a snapshot on top of the newest one; workers write its parts, and `commit` makes it visible."""
        latest = newest_or_empty(self.folder)
        return PendingSnapshot(self.folder, self.operator_id, None if latest is None else latest.manifest)

    def claim(
        self,
        *,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        hash: str | None = None,
        accept_loss: bool = False,
    ) -> Claim:
        """Take over the operator: every other writer is fenced from now on.

        The claim is itself a commit, with the content of the newest snapshot. A writer that began earlier and was
        paused finds that the version it expected to write is taken.

        Parameters
        ----------
        parallelism : int, optional
            The parallelism of the empty first version; required if there is no snapshot yet.
        max_parallelism, hash : int and str, optional
            The number of key groups, and the hash that maps keys to them. If there is no snapshot yet, the defaults are
            a number derived from the parallelism, and "xxhash64".
        accept_loss : bool
            If the newest manifest is missing, give up its state and continue from the newest one that exists, or empty
            if there is none. Versions before the claim expire, so first pin those that you want to keep.

        Raises
        ------
        ConfigError
            There is no snapshot yet, and no parallelism is given.
        ManifestMissing
            A newer snapshot existed but its manifest is missing, and its loss is not accepted.
        IncompatibleSnapshot
            The newest snapshot has another max parallelism or hash.
        CommitConflict
            Others committed during every attempt.

        Examples
        --------
        >>> claim = SnapshotStore("memory://claims", "enrich").claim(parallelism=2)
        >>> claim.snapshot.version, claim.begin().version
        (1, 2)
        """
        check_flag("accept_loss", accept_loss)
        if parallelism is not None:
            check_count("parallelism", parallelism, 1, reason="a snapshot has at least one subtask")
        return take_over(self.folder, parallelism, max_parallelism, hash, accept_loss=accept_loss)

    def versions(self) -> list[int]:
        """Return the committed versions, ascending."""
        return committed_versions(self.folder)

    def newest_version(self) -> int:
        """Return the newest version, or 0 if there is none, without reading its manifest or listing all versions."""
        return newest_version(self.folder) or 0

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot, or None if there is none yet; warns of those in folders nearby, if there are any.

        Raises
        ------
        ConfigError
            There is none, and the store's `uri` is itself an operator's folder.
        ManifestMissing, SnapshotCorrupted
            A newer snapshot existed but its manifest is missing, or the manifest is damaged.
        """
        newest = newest_snapshot(self.folder)
        if newest is None:
            warn_of_others(self.folder)
        return newest

    def load(self, version: int | None = None) -> Snapshot:
        """Return the snapshot with a version; by default the newest.

        Raises
        ------
        SnapshotNotFound
            There is no such version, or no snapshot at all.
        SnapshotCorrupted
            The manifest is damaged.
        """
        if version is not None:
            return Snapshot(self.folder, load_requested(self.folder, version))
        newest = newest_snapshot(self.folder)
        if newest is None:
            raise not_found(self.folder)
        return newest

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
        """Commit a version of the newest snapshot that is restored with another parallelism.

        This writes one manifest over the same files. With `rewrite`, it rewrites every row of keyed state and every
        in-flight element, for the key groups of another max parallelism or hash. The old version stays until garbage
        collection removes it. A rewrite that was killed leaves only garbage; start it again.

        Parameters
        ----------
        parallelism : int
            The new parallelism, at most the max parallelism.
        max_parallelism : int, optional
            The new number of key groups; a change requires a rewrite.
        hash : {"xxhash64", "flink"}, optional
            The hash that maps keys to key groups; a change requires a rewrite.
        rewrite : bool
            Whether to rewrite everything.
        engine : {"local", "spark"}
            Rewrite in this process, in bounded memory and with temporary files, or as a Spark job.
        spark : SparkSession, optional
            The session that runs the job.
        progress : callable, optional
            Called by the local engine with the number of bytes done and the total number of bytes.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        ConfigError
            The parallelism is not between 1 and the max parallelism, or the change requires a rewrite.
        UnsupportedKey
            The new hash does not support a key; nothing was committed.
        SnapshotCorrupted
            A file is damaged; nothing was committed.
        CommitConflict
            Another writer committed in the meantime.

        Examples
        --------
        >>> store.repartition(500, max_parallelism=4096, rewrite=True)  # doctest: +SKIP
        """
        check_flag("rewrite", rewrite)
        with observed_rescale(self.operator_id) as tell:
            before, run = self.load(), engine_named(engine, spark, progress)
            after = repartition(before, parallelism, max_parallelism, hash, run if rewrite else None)
            tell(before.manifest, after.manifest)
        return after

    def bootstrap(
        self,
        states: Mapping[StateDescriptor, Rows] | Iterable[tuple[StateDescriptor, Rows]],
        *,
        parallelism: int,
        max_parallelism: int | None = None,
        hash: str = "xxhash64",
        source_position: dict[str, Any] | None = None,
    ) -> Snapshot:
        """Write a first snapshot from rows: the state with which an operator will start. Memory is bounded.

        Rows are (key, value) pairs, a dict, or Arrow data. The value is a list for a list state, a dict for a map
        state, and the accumulator for an aggregating state. Arrow data have the columns of `Snapshot.to_arrow`: `key`,
        `value`, and `position` (list) or `map_key` (map). A struct in `key` is a key of several columns.

        Parameters
        ----------
        states : mapping or iterable of pairs
            Rows by the declaration of their state.
        parallelism : int
            The default parallelism for a restore.
        max_parallelism : int, optional
            The number of key groups; by default derived from the parallelism.
        hash : {"xxhash64", "flink"}
            The hash that maps keys to key groups.
        source_position : dict, optional
            The position of the source, as JSON-compatible data.

        Raises
        ------
        SnapshotExists
            There is already a snapshot.
        ConfigError, NullKey, UnsupportedKey, UnstorableValue, DuplicateKey
            A row does not fit its state; nothing was committed.

        Examples
        --------
        >>> from keygroups import ValueState
        >>> store = SnapshotStore("memory://bootstrap", "enrich")
        >>> store.bootstrap({ValueState("visits"): [("ann", 2), ("bob", 1)]}, parallelism=2).version
        1
        """
        return bootstrap(self.folder, self.operator_id, states, parallelism, max_parallelism, hash, source_position)

    def edit(self) -> Editor:
        """Return an editor that changes the states of the newest snapshot by hand.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        """
        return Editor(self.folder, self.load().manifest)

    def copy_to(
        self, other: SnapshotStore | str | PathLike[str], version: int | None = None, *, keep_lineage: bool = False
    ) -> Snapshot:
        """Copy a snapshot, by default the newest, into the empty store of another operator, or to its URI.

        The copy has the in-flight elements and the source position; this store keeps everything.

        Parameters
        ----------
        other : SnapshotStore, str or path
            The other store, or its URI.
        version : int, optional
            The version.
        keep_lineage : bool
            Whether the copy makes its calls with the idempotency keys of the original. Pass True to rename or move an
            operator: a service then recognises calls that the original has made since the snapshot. By default the copy
            has keys of its own, so that both can run side by side, and the service answers both.

        Raises
        ------
        SnapshotNotFound, SnapshotCorrupted
            There is no such version, or one of its files is damaged.
        ConfigError, SnapshotExists
            The other is neither a store nor a URI, or it is not empty.
        """
        target = SnapshotStore.at(other) if isinstance(other, str | PathLike) else other
        check_instance("other", target, SnapshotStore, reason="pass another store, or the URI of its folder")
        check_flag("keep_lineage", keep_lineage)
        return copy_snapshot(self.load(version), target.folder, keep_lineage=keep_lineage)

    def compact(self) -> Snapshot:
        """Fold the deltas of the newest snapshot into its base files, and commit the result as the next version.

        The content stays the same, so writers can add deltas to it. If there is nothing to fold, this returns the
        newest snapshot itself.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot yet.
        SnapshotCorrupted
            A file is damaged; nothing was committed.
        CommitConflict
            Another writer committed in the meantime.
        """
        return compact(self.folder, self.load(), wall_time())

    def verify(self, version: int | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Read every file of a snapshot, by default the newest, and compare it with the manifest.

        Parameters
        ----------
        version : int, optional
            The version.
        progress : callable, optional
            Called with the number of bytes done and the total number of bytes.

        Raises
        ------
        SnapshotNotFound
            There is no such version.
        """
        return verify_version(self.folder, version, progress)

    def pin(self, version: int) -> None:
        """Protect a version from garbage collection until it is unpinned.

        Raises
        ------
        SnapshotNotFound
            There is no such version, or it is expiring.
        """
        Pins(self.folder).add(check_version(version))

    def unpin(self, version: int) -> None:
        """Allow garbage collection to remove a version again; has no effect if it is not pinned."""
        Pins(self.folder).remove(check_version(version))

    def pinned(self) -> list[int]:
        """Return the pinned versions, ascending."""
        return Pins(self.folder).versions()

    def collect_garbage(
        self, *, keep_last: int = KEEP_LAST, min_age: Duration = MIN_AGE_SECONDS, dry_run: bool = True
    ) -> GarbageReport:
        """Expire old versions, and remove the files that no remaining version names.

        It may run while others write or read a remaining version, and again after a crash. The newest version and
        pinned versions always remain. A restore or a reader of an older version is protected by a pin only: the files
        of an old version are old themselves, so they may go as soon as it expires, whatever `min_age` is.

        Parameters
        ----------
        keep_last : int
            How many of the newest versions to keep, not counting those that stayed before only for their pin.
        min_age : float or timedelta
            How many seconds to keep a file after it was written, even if no version names it, by the storage's clock.
            It must exceed the time from the first file of a commit to its manifest.
        dry_run : bool
            Only report what would be removed. This writes nothing, so ages are by this machine's clock.

        Raises
        ------
        ConfigError
            `keep_last` is no integer or less than one, or `min_age` is no duration.
        SnapshotNotFound
            There is no snapshot.
        SnapshotCorrupted, IncompatibleSnapshot
            A remaining version cannot be read, so its files are unknown; nothing was removed.
        """
        check_flag("dry_run", dry_run)
        return collect_garbage(self.folder, keep_last=keep_last, min_age=min_age, dry_run=dry_run)
