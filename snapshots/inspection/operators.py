"""The operators under a folder, and the versions of one: what each added, and the newest while others commit."""

from __future__ import annotations

from dataclasses import dataclass

from keygroups.errors import KeyGroupsError
from keygroups.representation import fields_repr, representation
from snapshots.daemon_threads import DaemonPool
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import Folder, attempts
from snapshots.filesystem.errors import PathObstructed
from snapshots.format.manifest import Manifest
from snapshots.inspection.activity import Activity, Commit
from snapshots.restore.snapshot import newest_snapshot
from snapshots.store import SnapshotStore

REQUESTS_AT_ONCE = 16

VERSIONS_MAX = 32
"""How many of the newest versions are read and kept."""


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """An operator and its newest version.

    Attributes
    ----------
    operator_id, uri : str
        The name of the folder, and its URI.
    newest : Manifest or None
        The newest version; None if it cannot be read.
    problem : KeyGroupsError or None
        Why it cannot be read.
    """

    operator_id: str
    uri: str
    newest: Manifest | None
    problem: KeyGroupsError | None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators under a folder.

    Attributes
    ----------
    uri : str
        The folder.
    found : tuple of OperatorSummary
        The operators, by name.
    folders : int
        How many names the folder has, however many of them were looked into.
    looked_into : int
        How many of them were.
    """

    uri: str
    found: tuple[OperatorSummary, ...]
    folders: int
    looked_into: int

    __repr__ = fields_repr


def operators_in(folder: Folder, limit: int) -> Operators:
    """Look into the folders in a folder, by name, for the newest snapshot of each: a few small requests for each.

    Parameters
    ----------
    folder : Folder
        The folder above the operators' own; an operator's own folder is listed alone.
    limit : int
        The most folders to look into.

    Raises
    ------
    OSError
        The storage does not answer, or does not let this process list the folder.
    """
    own = _summary_of(folder)
    if own is not None and not isinstance(own.problem, OSError):
        return Operators(folder.uri, (own,), 1, 1)
    names = [name for name in folder.names("") if not name.startswith(".")]
    looked_into = names[:limit]
    with DaemonPool(REQUESTS_AT_ONCE) as pool:
        found = pool.map(_summary_of, (folder.child(name) for name in looked_into))
        return Operators(folder.uri, tuple(one for one in found if one is not None), len(names), len(looked_into))


def _summary_of(folder: Folder) -> OperatorSummary | None:
    """Return what a folder holds; None if it is no operator's, or no folder."""
    try:
        newest = newest_snapshot(folder)
    except PathObstructed:
        return None
    except KeyGroupsError as error:
        return OperatorSummary(folder.operator_id, folder.uri, None, error)
    if newest is None:
        return None
    return OperatorSummary(folder.operator_id, folder.uri, newest.manifest, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSummary:
    """A summary of one version, from its manifest alone.

    Attributes
    ----------
    version : int
        The version.
    parent_version : int or None
        The version on which it is based.
    created_at, operation : str
        When and why it was committed.
    parallelism, max_parallelism : int
        The number of subtasks and of key groups.
    states, files, deltas, rows, bytes, in_flight : int
        The number of each; bytes are the sum over all files that the version names.
    bytes_added : int
        The bytes of the files that it added.
    pinned : bool
        Whether it is protected from retention.
    """

    version: int
    parent_version: int | None
    created_at: str
    operation: str
    parallelism: int
    max_parallelism: int
    states: int
    files: int
    deltas: int
    rows: int
    bytes: int
    bytes_added: int
    in_flight: int
    pinned: bool

    __repr__ = fields_repr

    @classmethod
    def of(cls, manifest: Manifest, *, pinned: bool) -> VersionSummary:
        """Summarize a manifest."""
        files = manifest.whole_files
        return cls(
            version=manifest.version,
            parent_version=manifest.parent_version,
            created_at=manifest.created_at,
            operation=manifest.operation,
            parallelism=manifest.parallelism,
            max_parallelism=manifest.max_parallelism,
            states=len(manifest.states),
            files=len(files),
            deltas=sum(file.kind == "delta" for file in files),
            rows=manifest.rows_total,
            bytes=manifest.bytes_total,
            bytes_added=sum(file.bytes for file in files if file.version == manifest.version),
            in_flight=manifest.in_flight_count,
            pinned=pinned,
        )


def history(store: SnapshotStore, limit: int = 20) -> list[VersionSummary]:
    """Return the newest versions, the newest first; this reads one manifest per version.

    Parameters
    ----------
    store : SnapshotStore
        The store of the operator.
    limit : int
        The most versions to return.

    Raises
    ------
    SnapshotCorrupted
        A manifest is damaged.
    """
    pinned = set(store.pinned())
    found = []
    for version in reversed(store.versions()[-limit:]):
        try:
            manifest = store.load(version).manifest
        except SnapshotNotFound:
            continue  # retention has removed it since the listing
        found.append(VersionSummary.of(manifest, pinned=version in pinned))
    return found


class RecentVersions:
    """Follows the newest versions of an operator and reads each manifest once. One thread at a time may use it.

    It only reads. A look without a new version asks for the newest version and reads no manifest.

    Parameters
    ----------
    store : SnapshotStore
        The store of the operator.

    Examples
    --------
    >>> store = SnapshotStore("memory://followed", "enrich")
    >>> _ = store.claim(parallelism=2)
    >>> RecentVersions(store).activity(now=0.0).newest.operation
    'claim'
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._newest: Manifest | None = None
        self._commits: list[Commit] = []

    def __repr__(self) -> str:
        return representation(self, {"store": self._store, "versions": len(self._commits)})

    def activity(self, now: float) -> Activity:
        """Read what is new, and return what the operator has been doing lately.

        Parameters
        ----------
        now : float
            The time in seconds since 1970.

        Raises
        ------
        SnapshotNotFound
            There is no snapshot, or none any more.
        SnapshotCorrupted
            A manifest is damaged or missing.
        """
        newest = self._read_newest()
        if newest is not self._newest:
            self._commits = self._up_to(newest)
            self._newest = newest
        return Activity.of(newest, self._commits, now)

    def _read_newest(self) -> Manifest:
        for _ in attempts():
            version = self._store.newest_version()
            if self._newest is not None and self._newest.version == version:
                return self._newest
            try:
                return self._store.load(version or None).manifest
            except SnapshotNotFound as error:
                if not version:
                    raise
                expired = error  # others have committed and collected garbage since
        raise expired

    def _up_to(self, newest: Manifest) -> list[Commit]:
        """Return the newest version and those before it, the newest first, as far as they are there.

        It goes from each version to its parent, so what is left of a folder that was emptied and filled again is
        forgotten, and no listing is needed.
        """
        known = {commit.snapshot_id: index for index, commit in enumerate(self._commits)}
        manifest, found = newest, [Commit.of(newest)]
        while len(found) < VERSIONS_MAX and manifest.parent_version is not None:
            if manifest.parent_id in known:
                found += self._commits[known[manifest.parent_id] :]
                break
            try:
                parent = self._store.load(manifest.parent_version).manifest
            except SnapshotNotFound:
                break  # retention has removed it
            if parent.snapshot_id != manifest.parent_id:
                break
            manifest = parent
            found.append(Commit.of(parent))
        return found[:VERSIONS_MAX]
