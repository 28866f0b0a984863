"""Which versions exist: the newest without a listing of the history, and those that are gone for good.

Two small things help, beside the manifests themselves. ``latest`` is a hint, written after each commit and never
trusted: from it, one looks upwards. ``expired/<version>`` is the mark of retention: manifests up to it may be missing,
above it none was ever removed. It is created before anything is removed, so whoever finds a name free finds the mark,
on any storage that lists what is there, as S3, GCS, Azure and POSIX filesystems do.
"""

from __future__ import annotations

import logging
import re

from snapshots.filesystem import Folder
from snapshots.manifest import manifest_name

HINT = "latest"
PROBES_MAX = 8
"""How far above the hint to look before the manifests are listed."""

_HINT_BYTES_MAX = 20
_MANIFEST = re.compile(r"manifests/(\d{20})\.json")
_MARK = re.compile(r"\d{20}")

_log = logging.getLogger(__name__)


def committed_versions(folder: Folder) -> list[int]:
    """List the versions, ascending."""
    found = (version_of(f"manifests/{name}") for name in folder.names("manifests"))
    return [version for version in found if version is not None]


def version_of(name: str) -> int | None:
    """Return the version whose manifest has the name, or None if it is no manifest's."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


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
