"""Errors of snapshots; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError
from keygroups.ranges import KeyGroupRange


class SnapshotNotFound(KeyGroupsError, FileNotFoundError):
    """There is no such snapshot.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int or None
        The requested version; None for the newest.
    nearby : tuple of str
        Nearby folders that have snapshots.
    """

    def __init__(self, uri: str, version: int | None = None, nearby: tuple[str, ...] = ()) -> None:
        self.uri = uri
        self.version = version
        self.nearby = nearby
        wanted = "no snapshot" if version is None else f"no snapshot of version {version}"
        around = f" and list its manifests; there are snapshots in {', '.join(nearby)}" if nearby else ""
        super().__init__(
            f"{wanted} in {uri}; check the URI (it names one operator's folder){around or ' and list its manifests'}"
        )


class SnapshotCorrupted(KeyGroupsError):
    """A file of a snapshot is missing or is not what its manifest says.

    Attributes
    ----------
    path : str
        The damaged file.
    key_groups : KeyGroupRange or None
        The key groups of the file; None for a manifest.
    damage : str
        What is wrong with it.
    """

    def __init__(self, path: str, damage: str, key_groups: KeyGroupRange | None = None) -> None:
        self.path = path
        self.damage = damage
        self.key_groups = key_groups
        held = "" if key_groups is None else f", which holds key groups {key_groups.start} to {key_groups.end},"
        super().__init__(
            f"{path}{held} is damaged: {damage}; run `keygroups verify` for the whole extent, "
            "then put the file back from a copy, or load an older version by its number"
        )


class ManifestMissing(SnapshotCorrupted):
    """A manifest that must have existed is missing, and no newer one has replaced it.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The newest version that is known to have existed.
    newest : int or None
        The newest version that still exists; None if there is none.
    """

    def __init__(self, uri: str, path: str, version: int, newest: int | None) -> None:
        self.uri = uri
        self.version = version
        self.newest = newest
        self.path = path
        self.damage = "it is missing"
        self.key_groups: KeyGroupRange | None = None
        left = "no other is there" if newest is None else f"version {newest} is the newest that is there"
        super(SnapshotCorrupted, self).__init__(
            f"{uri} had a snapshot of version {version}, whose manifest {path} is missing, and {left}: put it back "
            "from a copy of the folder; or, to give up what is missing and continue from what exists, run "
            f"`keygroups claim {uri} --accept-loss` (SnapshotStore.claim(accept_loss=True))"
        )


class IncompatibleSnapshot(KeyGroupsError, ValueError):
    """A snapshot does not fit its intended use.

    Attributes
    ----------
    what : str
        The property that differs, such as "max parallelism".
    expected, found : object
        What the reader needs, and what the snapshot has.
    """

    def __init__(self, what: str, expected: object, found: object, next_step: str) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        super().__init__(f"{what} of the snapshot is {found!r}, but {expected!r} is needed: {next_step}")


class FolderMoved(IncompatibleSnapshot):
    """A folder holds the snapshots of another operator: somebody moved or copied it by hand. Nothing is damaged.

    Attributes
    ----------
    uri : str
        The folder.
    operator_id : str
        The operator that the snapshots belong to.
    """

    def __init__(self, uri: str, operator_id: str) -> None:
        self.uri = uri
        self.operator_id = operator_id
        parent, _, name = uri.rpartition("/")
        original = f"{parent}/{operator_id}"
        super().__init__(
            "operator",
            name,
            operator_id,
            f"{uri} was moved or copied by hand; move it to {original}, where it can be used as it is, and for a "
            f"snapshot under the name {name!r} run `keygroups copy {original} {uri}`",
        )


class IncompleteSnapshot(KeyGroupsError, ValueError):
    """The parts given to a commit do not make a whole snapshot.

    Attributes
    ----------
    problem : str
        What is missing, duplicate or different.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; nothing was committed: commit exactly one part of every subtask of one run")


class DuplicateKey(KeyGroupsError, ValueError):
    """A key, or an entry of a key, occurs twice in the rows of a state.

    Attributes
    ----------
    state : str
        The state.
    key : object
        The key.
    entry : object
        In a list the position, in a map the map key; else None.
    """

    def __init__(self, state: str, key: object, entry: object = None) -> None:
        self.state = state
        self.key = key
        self.entry = entry
        what = f"key {key!r}" if entry is None else f"entry {entry!r} of key {key!r}"
        super().__init__(
            f"state {state!r} was given {what} twice; nothing was committed: keep one row for it, such as the newest"
        )


class SnapshotExists(KeyGroupsError, FileExistsError):
    """A first snapshot cannot be written, because there is one already.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The newest version there.
    """

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self.version = version
        super().__init__(
            f"{uri} already has snapshots, the newest of version {version}; nothing was written: "
            "change it with SnapshotStore.edit(), or choose another operator id"
        )


class CommitConflict(KeyGroupsError):
    """Another writer committed the version first.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The version that both writers wanted.
    """

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self.version = version
        super().__init__(
            f"version {version} of {uri} was committed by another writer; "
            "make sure that one coordinator runs per operator, then start again from the newest version"
        )


class CommitOutcomeUnknown(KeyGroupsError):
    """A commit was sent, but the storage failed before its outcome could be read back.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The version whose outcome is unknown.
    """

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self.version = version
        super().__init__(
            f"it is unknown whether version {version} of {uri} was committed; delete nothing, "
            "and load the newest version once the storage answers again"
        )


class WriterFenced(KeyGroupsError):
    """A newer owner has taken over, so this writer must not commit any more.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The version that this writer expected to write.
    newest : int
        The newest version in the storage.
    """

    def __init__(self, uri: str, version: int, newest: int) -> None:
        self.uri = uri
        self.version = version
        self.newest = newest
        super().__init__(
            f"{uri} is already at version {newest}, so this writer, which would write version {version}, is stale; "
            "stop it: another coordinator owns the operator"
        )


class UnsupportedFilesystem(KeyGroupsError, ValueError):
    """Snapshots cannot be committed safely on this kind of filesystem.

    Attributes
    ----------
    protocol : str
        The protocol of the URI.
    """

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        super().__init__(
            f"snapshots on {protocol}:// are not supported, because no atomic way to create a file is known there; "
            "use a local or shared POSIX path (file://), s3://, gs://, abfs://, or memory:// in tests"
        )


class FilesystemNotInstalled(KeyGroupsError):
    """The package of a filesystem is missing.

    Attributes
    ----------
    protocol : str
        The protocol of the URI.
    extra : str
        The extra of this project that installs the package.
    """

    def __init__(self, protocol: str, extra: str) -> None:
        self.protocol = protocol
        self.extra = extra
        super().__init__(f"{protocol}:// needs a package that is not installed: pip install 'keygroups[{extra}]'")


class UnsafeFilesystem(KeyGroupsError):
    """The storage overwrites files instead of refusing to create them, so two writers could commit the same version.

    Attributes
    ----------
    uri : str
        The operator's folder.
    found : str
        What the trial showed.
    """

    def __init__(self, uri: str, found: str) -> None:
        self.uri = uri
        self.found = found
        super().__init__(
            f"snapshots cannot be committed safely to {uri}: {found}; nothing was committed: use a storage with "
            "conditional writes (S3 of AWS, or a release of your object store with `If-None-Match: *`), "
            "or a POSIX filesystem with hard links"
        )


class StorageRefused(KeyGroupsError, PermissionError):
    """The storage does not let this process read or write, for instance because a folder is read-only.

    Attributes
    ----------
    uri : str
        The operator's folder.
    path : str
        The requested path.
    reason : str
        The storage's own message.
    """

    def __init__(self, uri: str, path: str, reason: str) -> None:
        self.uri = uri
        self.path = path
        self.reason = reason
        super().__init__(
            f"the storage refused access to {path} ({reason}): let this process read and write in {uri}, "
            "or keep snapshots in a folder where it may"
        )


class PathObstructed(KeyGroupsError, OSError):
    """There is a folder in the place of a file, or a file in the place of a folder.

    Attributes
    ----------
    path : str
        The requested path.
    reason : str
        The storage's own message.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"something else is in the place of {path} ({reason}); look at it, move it away, and check the URI, "
            "which names a folder"
        )


class StorageUnavailable(KeyGroupsError, OSError):
    """The storage did not answer, after all attempts of its client.

    Attributes
    ----------
    path : str
        The requested path.
    reason : str
        The client's own message.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"the storage did not answer for {path} ({reason}); check network and credentials, and try again"
        )
