"""Errors of snapshots, named after the situation; each says what to do next."""

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
        The version that was asked for; None for the newest.
    """

    def __init__(self, uri: str, version: int | None = None) -> None:
        self.uri = uri
        self.version = version
        wanted = "no snapshot" if version is None else f"no snapshot of version {version}"
        super().__init__(f"{wanted} in {uri}; check the URI (it names one operator's folder) and list its manifests")


class SnapshotCorrupted(KeyGroupsError):
    """A file of a snapshot is missing or is not what its manifest says.

    Attributes
    ----------
    path : str
        The file.
    key_groups : KeyGroupRange or None
        The key groups that it holds; None for a manifest.
    damage : str
        What was found.
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


class IncompatibleSnapshot(KeyGroupsError, ValueError):
    """A snapshot and what it should be used for do not fit.

    Attributes
    ----------
    what : str
        The property that differs, such as "max parallelism".
    expected, found : object
        What the reader needs and what the snapshot has.
    """

    def __init__(self, what: str, expected: object, found: object, next_step: str) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        super().__init__(f"{what} of the snapshot is {found!r}, but {expected!r} is needed: {next_step}")


class IncompleteSnapshot(KeyGroupsError, ValueError):
    """The parts given to a commit do not make a whole snapshot.

    Attributes
    ----------
    problem : str
        What is missing, doubled or different.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; nothing was committed: commit exactly one part of every subtask of one run")


class DuplicateKey(KeyGroupsError, ValueError):
    """A key, or an entry of a key, is twice in the rows of a state.

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
    """A first snapshot was to be written where there is one already.

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
            "change it with SnapshotStore.edit(), or take another operator id"
        )


class CommitConflict(KeyGroupsError):
    """Another writer committed the version first.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The version that both wanted.
    """

    def __init__(self, uri: str, version: int) -> None:
        self.uri = uri
        self.version = version
        super().__init__(
            f"version {version} of {uri} was committed by another writer; "
            "make sure that one coordinator runs per operator, then start again from the newest version"
        )


class CommitOutcomeUnknown(KeyGroupsError):
    """A commit was sent, but whether it took place could not be read back.

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
    """A newer owner took over, so this writer may not commit any more.

    Attributes
    ----------
    uri : str
        The operator's folder.
    version : int
        The version that this writer expected to write.
    newest : int
        The newest version found.
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
            f"snapshots on {protocol}:// are not supported, because no atomic way to create a file there is known; "
            "use a local or shared POSIX path (file://), s3://, gs://, abfs://, or memory:// in tests"
        )


class FilesystemNotInstalled(KeyGroupsError):
    """The package of a filesystem is missing.

    Attributes
    ----------
    protocol : str
        The protocol of the URI.
    extra : str
        The extra of this project that brings the package.
    """

    def __init__(self, protocol: str, extra: str) -> None:
        self.protocol = protocol
        self.extra = extra
        super().__init__(f"{protocol}:// needs a package that is not installed: pip install 'keygroups[{extra}]'")


class UnsafeFilesystem(KeyGroupsError):
    """The storage cannot create a file only if it is absent, so two writers could commit the same version.

    Attributes
    ----------
    uri : str
        The operator's folder.
    found : str
        What was found out.
    """

    def __init__(self, uri: str, found: str) -> None:
        self.uri = uri
        self.found = found
        super().__init__(
            f"snapshots cannot be committed safely to {uri}: {found}; nothing was committed: use a storage that heeds "
            "conditional writes (S3 of AWS, or a release of your object store with `If-None-Match: *`), "
            "or a POSIX filesystem with hard links"
        )


class StorageUnavailable(KeyGroupsError, OSError):
    """The storage did not answer, after all attempts of its client.

    Attributes
    ----------
    path : str
        What was asked for.
    reason : str
        What the client said.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the storage did not answer for {path} ({reason}); check network and credentials, try again")
