"""Finds out which versions exist: the newest without listing the history, and those that have expired.

Two small files help, beside the manifests themselves. ``latest`` is a hint, written after each commit; a search starts
from it upwards. It may be behind, but never ahead. ``expired/<version>`` is the mark of retention: manifests up to it
may be missing, but none above it was ever removed. The mark is created before anything is removed. So a reader that
finds a removed name free also finds the mark, on any storage with fresh listings, such as S3, GCS, Azure and POSIX
filesystems. If the hint names a missing version above the mark, and no higher version exists, a manifest was lost, and
with it the newest state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from keygroups.arguments import check_integer
from snapshots.errors import FolderMoved, ManifestMissing, SnapshotCorrupted, SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.filesystem.errors import PathObstructed
from snapshots.format.file_lists import read_lists
from snapshots.format.manifest import (
    MANIFEST_BYTES_MAX,
    ListInfo,
    Manifest,
    is_version_name,
    manifest_name,
    version_name,
)
from snapshots.format.manifest_head import Head

HINT = "latest"
PROBES_MAX = 8
"""How many versions above the hint are probed before the manifests are listed."""

_HINT_BYTES_MAX = 20

_log = logging.getLogger(__name__)


def committed_versions(folder: Folder) -> list[int]:
    """List the versions, ascending."""
    found = (version_of(f"manifests/{name}") for name in folder.names("manifests"))
    return [version for version in found if version is not None]


def version_of(name: str) -> int | None:
    """Return the version of a manifest's name, or None if it is not the name of a manifest."""
    digits = name.removeprefix("manifests/").removesuffix(".json")
    return int(digits) if is_version_name(digits) and name == manifest_name(int(digits)) else None


def read_manifest(folder: Folder, version: int) -> bytes:
    """Read the stored bytes of a manifest, but no more than needed to see that it is too large.

    Raises
    ------
    FileNotFoundError
        There is no such manifest.
    """
    return folder.read(manifest_name(version), 0, MANIFEST_BYTES_MAX + 1)


def load_manifest(folder: Folder, version: int) -> Manifest:
    """Read and check the manifest of a version, with all its lists.

    Raises
    ------
    SnapshotNotFound
        There is no such version.
    SnapshotCorrupted
        The manifest or a list is damaged, or it belongs to another version.
    FolderMoved
        The manifest belongs to another operator.
    """
    head = load_head(folder, version)
    return with_lists(folder, head, head.lists)


def check_version(version: object) -> int:
    """Return a version that a user has named; raises `ConfigError` if it is no number."""
    return check_integer("version", version, 1, reason="store.versions() lists those that there are")


def load_requested(folder: Folder, version: int) -> Manifest:
    """Do the same for a named version; if it is not there, the error says why.

    Raises
    ------
    SnapshotNotFound
        There is no such version.
    SnapshotCorrupted
        The manifest or a list is damaged, or it belongs to another version.
    FolderMoved
        The manifest belongs to another operator.
    """
    version = check_version(version)
    try:
        return load_manifest(folder, version)
    except SnapshotNotFound as error:
        raise _not_found(folder, version) from error


def with_lists(folder: Folder, head: Head, infos: Sequence[ListInfo]) -> Manifest:
    """Return a manifest with some of its lists, or all of them.

    Raises
    ------
    SnapshotNotFound
        The version has expired meanwhile.
    SnapshotCorrupted
        A list is damaged.
    """
    if not infos:
        return head.manifest
    name = manifest_name(head.manifest.version)
    try:
        return head.with_lists(read_lists(folder, infos))
    except ValueError as error:
        raise SnapshotCorrupted(folder.path(name), f"a field is wrong: {error}") from error
    except SnapshotCorrupted as error:
        if not folder.exists(name):
            raise SnapshotNotFound(folder.uri, head.manifest.version) from error
        raise


def load_head(folder: Folder, version: int) -> Head:
    """Read and check the manifest of a version, without its lists.

    Raises
    ------
    SnapshotNotFound
        There is no such version.
    SnapshotCorrupted
        The manifest is damaged, or it belongs to another version.
    FolderMoved
        The manifest belongs to another operator.
    PathObstructed
        The folder is a file.
    """
    try:
        data = read_manifest(folder, version)
    except FileNotFoundError:
        raise SnapshotNotFound(folder.uri, version) from None
    except PathObstructed as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise  # something else than this operator's folder: no manifest is damaged
        raise SnapshotCorrupted(error.path, error.reason) from error
    path = folder.path(manifest_name(version))
    head = Head.from_bytes(data, path)
    if head.manifest.version != version:
        raise SnapshotCorrupted(path, f"it says version {head.manifest.version}: the file was moved or renamed")
    if head.manifest.operator_id != folder.operator_id:
        is_copy = _has_versions_beside(folder, head.manifest.operator_id)
        raise FolderMoved(folder.uri, head.manifest.operator_id, is_copy=is_copy)
    return head


def _has_versions_beside(folder: Folder, operator_id: str) -> bool:
    parent = folder.parent
    try:
        return parent is not None and bool(committed_versions(parent.child(operator_id)))
    except OSError:  # this process may have no rights outside of its folder
        return False


def newest_version(folder: Folder) -> int | None:
    """Return the newest version, with a number of requests that does not grow with the history.

    Raises
    ------
    ManifestMissing
        A newer version existed but its manifest is missing, and its loss has not been accepted.
    """
    hint = _read_hint(folder)
    version = None if hint is None else _from_hint(folder, hint)
    if version is None:
        version = max(committed_versions(folder), default=None)
        _check_nothing_is_missing(folder, hint or 0, version)
    return version


def note_newest(folder: Folder, version: int) -> None:
    """Write the hint for others; without it, they have to list the manifests."""
    try:
        folder.replace(HINT, b"%020d" % version)
    except OSError as error:
        _log.debug("the hint at version %d could not be written: %s", version, error)


def expired_version(folder: Folder) -> int:
    """Return the version up to which manifests may have been removed, or 0."""
    return max((int(name) for name in folder.names("expired") if is_version_name(name)), default=0)


def lost_versions(folder: Folder) -> list[range]:
    """Return the runs of versions below the newest that are not there although retention has not removed them.

    A copy by hand of data and manifests alone does not say what had expired. So without hint and mark nothing counts as
    lost, and without a mark nothing below the oldest version.
    """
    there = committed_versions(folder)
    # Read after the listing: what retention had removed by then is below the mark.
    expired = expired_version(folder)
    if not expired and _read_hint(folder) is None:
        return []
    kept = [*((expired,) if expired else ()), *(version for version in there if version > expired)]
    gaps = (range(before + 1, after) for before, after in pairwise(kept))
    # Asked by name, because the listing may be stale.
    return [gap for gap in gaps if gap and not folder.exists(manifest_name(gap[0]))]


def lost_text(gap: range) -> str:
    """Say that a run of versions is lost, and what to do."""
    versions = f"version {gap[0]} is" if len(gap) == 1 else f"versions {gap[0]} to {gap[-1]} are"
    return f"{versions} missing, although retention has not removed anything that new; put back what was there"


def _not_found(folder: Folder, version: int) -> SnapshotNotFound:
    """Return the error for a version without a manifest: it says whether it expired, was lost, or is yet to come."""
    newest = max(committed_versions(folder), default=0)
    known = max(newest, _read_hint(folder) or 0)
    if version > known:
        there = f"its newest is version {known}" if known else "it has no version"
        advice = f": {there}; see what there is: `keygroups inspect {folder.uri}`"
    elif any(version in gap for gap in lost_versions(folder)) or version > max(newest, expired_version(folder)):
        path = folder.path(manifest_name(version))
        advice = f": retention has not removed it, but {path} is missing; put it back from a copy, or load another"
    else:
        advice = None
    return SnapshotNotFound(folder.uri, version, advice=advice)


def mark_expired(folder: Folder, version: int) -> None:
    """Announce that manifests up to a version will be removed, except pinned ones."""
    before = expired_version(folder)
    if version <= before:
        return
    try:
        folder.create(f"expired/{version_name(version)}", b"")
    except FileExistsError:
        _log.debug("version %d was marked by another one", version)
    if before:
        folder.delete([f"expired/{version_name(before)}"])


def _check_nothing_is_missing(folder: Folder, hint: int, newest: int | None) -> None:
    """Check that no newer manifest is missing, by means of the hint and the mark."""
    if newest is not None and hint <= newest:
        return
    # Checked last and by name: others may have committed and collected since the listing, and it may be stale.
    expired = expired_version(folder)
    known = hint if hint > expired else expired + 1 if newest is None and expired else None
    if known is not None and not folder.exists(manifest_name(known)):
        raise ManifestMissing(folder.uri, folder.path(manifest_name(known)), known, newest)


def _from_hint(folder: Folder, hint: int) -> int | None:
    if not folder.exists(manifest_name(hint)):
        return None
    for version in range(hint, hint + PROBES_MAX):
        if not folder.exists(manifest_name(version + 1)):
            # Checked last: if retention had made the gap, the mark would exist by now.
            return version if version > expired_version(folder) else None
    return None


def _read_hint(folder: Folder) -> int | None:
    try:
        text = folder.read(HINT, 0, _HINT_BYTES_MAX + 1)
    except OSError:
        return None
    return int(text) if len(text) <= _HINT_BYTES_MAX and text.isdigit() and int(text) > 0 else None
