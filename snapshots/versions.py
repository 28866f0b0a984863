"""Which versions exist: the newest without a listing of the history, and those that are gone for good.

Two small things help, beside the manifests themselves. ``latest`` is a hint, written after each commit and never
trusted: from it, one looks upwards. ``expired/<version>`` is the mark of retention: manifests up to it may be missing,
above it none was ever removed. It is created before anything is removed, so whoever finds a name free finds the mark,
on any storage that lists what is there, as S3, GCS, Azure and POSIX filesystems do.
"""

from __future__ import annotations

import logging
import re

from snapshots.errors import SnapshotCorrupted, SnapshotNotFound
from snapshots.filesystem import Folder
from snapshots.manifest import MANIFEST_BYTES_MAX, Manifest, manifest_name

HINT = "latest"
PROBES_MAX = 8
"""How far above the hint to look before the manifests are listed."""

_HINT_BYTES_MAX = 20
_MANIFEST = re.compile(r"manifests/(\d{20})\.json")
_MARK = re.compile(r"\d{20}")

_last_loaded: dict[str, Manifest] = {}
"""At most one, by the id of its snapshot."""

_log = logging.getLogger(__name__)


def committed_versions(folder: Folder) -> list[int]:
    """List the versions, ascending."""
    found = (version_of(f"manifests/{name}") for name in folder.names("manifests"))
    return [version for version in found if version is not None]


def version_of(name: str) -> int | None:
    """Return the version whose manifest has the name, or None if it is no manifest's."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


def read_manifest(folder: Folder, version: int) -> bytes:
    """Read a manifest as it is stored: never more of it than shows that it is too large.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    return folder.read(manifest_name(version), 0, MANIFEST_BYTES_MAX + 1)


def load_manifest(folder: Folder, version: int) -> Manifest:
    """Read and check the manifest of a version.

    Raises
    ------
    SnapshotNotFound
        There is no such version.
    SnapshotCorrupted
        It is damaged, or that of another version or operator.
    """
    try:
        data = read_manifest(folder, version)
    except FileNotFoundError:
        raise SnapshotNotFound(folder.uri, version) from None
    path = folder.path(manifest_name(version))
    manifest = Manifest.from_bytes(data, path)
    operator_id = folder.root.rpartition("/")[2]
    if (manifest.version, manifest.operator_id) != (version, operator_id):
        found = f"it says operator {manifest.operator_id!r}, version {manifest.version}"
        raise SnapshotCorrupted(path, f"{found}: the file was moved or renamed")
    return manifest


def load_committed(folder: Folder, version: int, snapshot_id: str) -> Manifest:
    """Read the manifest that another process had at hand; the last one is kept, because one process has many tasks.

    Raises
    ------
    SnapshotNotFound
        The version is not there any more, or not that snapshot.
    SnapshotCorrupted
        It is damaged.
    """
    manifest = _last_loaded.get(snapshot_id)
    if manifest is None:
        manifest = load_manifest(folder, version)
        if manifest.snapshot_id != snapshot_id:
            raise SnapshotNotFound(folder.uri, version)
        _last_loaded.clear()
        _last_loaded[snapshot_id] = manifest
    return manifest


def newest_version(folder: Folder) -> int | None:
    """Return the newest version, in a number of requests that does not grow with the history."""
    version = _from_hint(folder)
    return max(committed_versions(folder), default=None) if version is None else version


def note_newest(folder: Folder, version: int) -> None:
    """Leave the hint for others; without it they list."""
    try:
        folder.replace(HINT, b"%020d" % version)
    except OSError as error:
        _log.debug("the hint at version %d could not be written: %s", version, error)


def expired_version(folder: Folder) -> int:
    """Return the version up to which manifests may have been removed; 0 if none."""
    return max((int(name) for name in folder.names("expired") if _MARK.fullmatch(name)), default=0)


def mark_expired(folder: Folder, version: int) -> None:
    """Announce that manifests up to a version are going to be removed, those that are pinned excepted."""
    before = expired_version(folder)
    if version <= before:
        return
    try:
        folder.create(f"expired/{version:020d}", b"")
    except FileExistsError:
        _log.debug("version %d was marked by another one", version)
    if before:
        folder.delete([f"expired/{before:020d}"])


def _from_hint(folder: Folder) -> int | None:
    hint = _read_hint(folder)
    if hint is None or not folder.exists(manifest_name(hint)):
        return None
    for version in range(hint, hint + PROBES_MAX):
        if not folder.exists(manifest_name(version + 1)):
            # Asked last: had retention made the gap, the mark would have been there before.
            return version if version > expired_version(folder) else None
    return None


def _read_hint(folder: Folder) -> int | None:
    try:
        text = folder.read(HINT, 0, _HINT_BYTES_MAX + 1)
    except OSError:
        return None
    return int(text) if len(text) <= _HINT_BYTES_MAX and text.isdigit() and int(text) > 0 else None
