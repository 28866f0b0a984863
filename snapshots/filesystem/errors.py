"""Errors of storage; each says what to do next."""

from __future__ import annotations

from errno import EDQUOT, ENOSPC

from keygroups.errors import KeyGroupsError

NO_ROOM = frozenset({ENOSPC, EDQUOT})
"""The numbers of errors that mean a full disk, or a quota that is used up."""


class UnsupportedFilesystem(KeyGroupsError, ValueError):
    """Files cannot be written safely on this kind of filesystem."""

    is_permanent = True

    protocol: str
    """The protocol of the URI."""

    _template = (
        "{protocol}:// is not supported here, because no atomic way to create a file is known there; use a local or "
        "shared POSIX path (file://), s3://, gs://, abfs://, or memory:// in tests"
    )


class FilesystemNotInstalled(KeyGroupsError):
    """The package of a filesystem is missing."""

    is_permanent = True

    protocol: str
    """The protocol of the URI."""
    extra: str
    """The extra of this project that installs the package."""

    _template = "{protocol}:// needs a package that is not installed: pip install 'keygroups[{extra}]'"


class UnsafeFilesystem(KeyGroupsError):
    """The storage overwrites files instead of refusing to create them, so two writers could commit the same version."""

    is_permanent = True

    uri: str
    """The operator's folder."""
    found: str
    """What the trial showed."""

    _template = (
        "snapshots cannot be committed safely to {uri}: {found}; nothing was committed: use a storage with conditional "
        "writes (S3 of AWS, or a release of your object store with `If-None-Match: *`), or a POSIX filesystem with "
        "hard links"
    )


class StorageRefused(KeyGroupsError, PermissionError):
    """The storage does not let this process read or write, for instance because a folder is read-only."""

    uri: str
    """The operator's folder."""
    path: str
    """The requested path."""
    reason: str
    """The storage's own message."""

    def _message(self) -> str:
        name = self.uri.rpartition("/")[2]
        return (
            f"the storage refused access to {self.path} ({self.reason}): let this process read and write in "
            f"{self.uri}, or go on in a folder where it may: `keygroups copy {self.uri} FOLDER/{name}`; inspect, "
            "verify and export only read"
        )


class BucketMissing(KeyGroupsError, FileNotFoundError):
    """The bucket or container that should hold the snapshots does not exist."""

    uri: str
    """The operator's folder."""
    reason: str
    """The storage's own message."""

    _template = "nothing can be written to {uri} ({reason}): create the bucket, or correct the URI"


class StorageFull(KeyGroupsError, OSError):
    """The storage has no room left, or the user's quota is used up."""

    uri: str
    """The operator's folder."""
    path: str
    """The path that could not be written."""
    reason: str
    """The storage's own message."""
    errno: int | None = ENOSPC
    """The number of the error, also where a quota is used up."""

    _template = (
        "there is no room for {path} ({reason}); what is committed in {uri} is whole: free some space, for instance "
        "with `keygroups gc`, and start again"
    )


class TemporaryDiskFull(KeyGroupsError, OSError):
    """The local disk has no room for temporary files. What is committed is safe, because it is in the snapshots."""

    directory: str
    """The directory of temporary files."""
    reason: str
    """The system's own message."""
    errno: int | None = ENOSPC
    """The number of the error, also where a quota is used up."""

    _template = (
        "there is no room for temporary files in {directory} ({reason}): free some space, or name a directory on a "
        "larger disk in the environment variable TMPDIR, and start again; what is committed is whole"
    )


class NoTemporaryDirectory(KeyGroupsError, OSError):
    """No directory for temporary files can be written to, as in a container whose file system is read-only."""

    reason: str
    """Python's own message, with the directories that were tried."""

    _template = (
        "no temporary file can be made ({reason}): let this process write into one of them, or name another directory "
        "in the environment variable TMPDIR, and start again; what is committed is whole"
    )


class PathObstructed(KeyGroupsError, OSError):
    """There is a folder in the place of a file, or a file in the place of a folder."""

    path: str
    """The requested path."""
    reason: str
    """The storage's own message."""

    _template = (
        "something else is in the place of {path} ({reason}); look at it, move it away, and check the URI, which names "
        "a folder"
    )


class StorageUnavailable(KeyGroupsError, OSError):
    """The storage did not answer, or was too busy, after all attempts of its client."""

    path: str
    """The requested path."""
    reason: str
    """The client's own message."""

    _template = "the storage did not answer for {path} ({reason}); check network and credentials, and try again"
