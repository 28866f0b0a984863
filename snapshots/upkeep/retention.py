"""Retention: expires old versions, and removes files that no version needs.

Manifests are removed first and files afterwards, so a crash in between leaves files without a manifest and never the
reverse. A file is removed only if no remaining manifest names it *and* it is older than a grace period by the storage's
clock, because the files of a commit under way look like garbage. Every file of a manifest is either named by its parent
or written since. So a version that is committed meanwhile names no old file that the newest version does not name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from keygroups.arguments import Duration, check_duration, check_integer
from keygroups.representation import fields_repr, html_facts
from keygroups.ttl import wall_time
from snapshots.errors import SnapshotNotFound
from snapshots.filesystem import FileInfo, Folder, attempts
from snapshots.filesystem.errors import StorageUnavailable
from snapshots.folder_hints import not_found
from snapshots.format.manifest import is_version_name, manifest_name, version_name
from snapshots.inputs import needed_inputs
from snapshots.versions import expired_version, load_head, load_manifest, mark_expired, newest_version, version_of

KEEP_LAST = 10
MIN_AGE_SECONDS = 24 * 3600.0

_DELETED_AT_ONCE = 1000
_QUERIES = "queries/"


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """What a garbage collection removed, or would remove.

    Attributes
    ----------
    dry_run : bool
        Whether this was only a report, so that nothing was removed.
    newest : int
        The newest version.
    retained, pinned, expired : tuple of int
        The versions that stay, the pinned ones among them, and those that are removed.
    files : tuple of str
        The removed files, relative to the operator's folder.
    bytes : int
        The total size of these files.
    young : int
        How many files no version names, but are too young to be removed.
    undeleted : tuple of str
        Files that the storage still lists after they were deleted.
    """

    dry_run: bool
    newest: int
    retained: tuple[int, ...]
    pinned: tuple[int, ...]
    expired: tuple[int, ...]
    files: tuple[str, ...]
    bytes: int
    young: int
    undeleted: tuple[str, ...] = ()

    __repr__ = fields_repr

    def _repr_html_(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        facts = {"newest": self.newest, "stay": len(self.retained), "pinned": len(self.pinned), "young": self.young}
        goes = {"versions": len(self.expired), "files": len(self.files), "bytes": self.bytes}
        return html_facts(f"garbage {verb}", goes | facts)


class Pins:
    """The pinned versions, which retention keeps: one empty object each, under ``pins/``."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def versions(self) -> list[int]:
        """Return the pinned versions, ascending."""
        return sorted(int(name) for name in self._folder.names("pins") if is_version_name(name))

    def add(self, version: int) -> None:
        """Pin a version.

        Raises
        ------
        SnapshotNotFound
            There is no such version, or it is expiring.
        """
        is_new = True
        try:
            self._folder.create(_pin_name(version), b"")
        except FileExistsError:
            is_new = False
        # Checked after the pin exists: a collection reads the pins after it has set its mark.
        is_expiring = is_new and version <= expired_version(self._folder)
        if is_expiring or not self._folder.exists(manifest_name(version)):
            self.remove(version)
            raise SnapshotNotFound(self._folder.uri, version)

    def remove(self, version: int) -> None:
        """Unpin a version; has no effect if it is not pinned."""
        self._folder.delete([_pin_name(version)])


def collect_garbage(
    folder: Folder, *, keep_last: int, min_age: Duration, dry_run: bool, under_way: Iterable[str] = ()
) -> GarbageReport:
    """Expire versions, then remove files that no version names; see `SnapshotStore.collect_garbage`.

    `under_way` holds prefixes of the names of files that stay, whatever their age: of pending snapshots, and of queries
    that run. It is iterated after the files are listed, so other threads may add what they begin meanwhile.
    """
    keep_last, seconds = check_retention(keep_last, min_age)
    plan, listed, named = _plan_and_names(folder, keep_last)
    now = _estimated_now(listed) if dry_run else _storage_now(folder)
    of_inputs, storing = _inputs(folder, listed, plan.newest, now)
    named |= of_inputs
    garbage = [file for file in listed if _is_collectable(file.name) and file.name not in named]
    before = now - seconds
    # Read after the listing: every listed file belongs to a snapshot or a query that had begun before.
    begun = (*storing, *under_way)
    old = [file for file in garbage if file.modified <= before and not file.name.startswith(begun)]
    report = replace(
        plan,
        files=tuple(file.name for file in old),
        bytes=sum(file.bytes for file in old),
        young=len(garbage) - len(old),
    )
    return report if dry_run else _apply(folder, report, listed)


def check_retention(keep_last: int, min_age: Duration) -> tuple[int, float]:
    """Return the number of versions to keep, and the minimum age in seconds.

    Raises
    ------
    ConfigError
        The number is no integer or less than one, or the age is no duration or negative.
    """
    kept = check_integer("keep_last", keep_last, 1, reason="the newest version is never removed: keep at least 1")
    return kept, check_duration("min_age", min_age, reason="an age, zero or more")


def _plan_and_names(folder: Folder, keep_last: int) -> tuple[GarbageReport, list[FileInfo], set[str]]:
    for _ in attempts():
        listed = folder.files()
        plan = _plan(folder, listed, keep_last)
        try:
            return plan, listed, _named_files(folder, plan.retained)
        except SnapshotNotFound as error:
            gone = error  # removed by another collection, so the plan is out of date
    raise gone


def _plan(folder: Folder, listed: Sequence[FileInfo], keep_last: int) -> GarbageReport:
    # The mark is read first, so it is below the newest version that is read next, whatever others do meanwhile.
    expired = expired_version(folder)
    newest = newest_version(folder)
    if newest is None:
        raise not_found(folder)
    versions = sorted({version for version in map(version_of, (file.name for file in listed)) if version} | {newest})
    pinned = set(Pins(folder).versions()) & set(versions)
    kept = [version for version in versions if version > expired][-keep_last:]
    through = kept[0] - 1
    assert expired <= through < newest, "the newest version stays"
    return GarbageReport(
        dry_run=True,
        newest=newest,
        retained=tuple(sorted({*kept, *pinned})),
        pinned=tuple(sorted(pinned)),
        expired=tuple(version for version in versions if version <= through and version not in pinned),
        files=(),
        bytes=0,
        young=0,
    )


def _apply(folder: Folder, plan: GarbageReport, listed: Sequence[FileInfo]) -> GarbageReport:
    expired, files = plan.expired, plan.files
    if expired:
        mark_expired(folder, expired[-1])
        # This list contains every version that was successfully pinned before the mark.
        pinned_since = set(Pins(folder).versions()).intersection(expired)
        named = _named_files(folder, pinned_since)
        expired = tuple(version for version in expired if version not in pinned_since)
        files = tuple(name for name in files if name not in named)
        _delete(folder, [manifest_name(version) for version in expired])
    files = _without_rewritten(folder, files, listed)
    _delete(folder, files)
    # Not every client reports which files a store refused to delete.
    left = {file.name for file in folder.files()}
    gone = {*files, *(manifest_name(version) for version in expired)}
    return replace(plan, dry_run=False, expired=expired, files=files, undeleted=tuple(sorted(gone & left)))


def _without_rewritten(folder: Folder, names: Sequence[str], listed: Sequence[FileInfo]) -> tuple[str, ...]:
    """Leave out what was rewritten since it was listed: only queries write files over old ones."""
    if not any(name.startswith(_QUERIES) for name in names):
        return tuple(names)
    rewritten = {file.name for file in set(folder.files(_QUERIES)).difference(listed)}
    return tuple(name for name in names if name not in rewritten)


def _named_files(folder: Folder, versions: Iterable[int]) -> set[str]:
    """Return what some versions name; raises if a manifest or a list cannot be read, because its files are unknown.

    Raises
    ------
    SnapshotNotFound, SnapshotCorrupted, IncompatibleSnapshot, OSError
        The first one that cannot be read.
    """
    named: set[str] = set()
    for version in versions:
        # The manifest before is kept until then, so lists that both name are read once.
        manifest = load_manifest(folder, version)
        named.update(one.path for one in manifest.objects)
    return named


def _inputs(folder: Folder, listed: Sequence[FileInfo], newest: int, now: float) -> tuple[set[str], tuple[str, ...]]:
    """Return the files of inputs of runs that have not finished, by name and by prefix."""
    if not any(file.name.startswith("inputs/") for file in listed):
        return set(), ()
    position = load_head(folder, newest).manifest.source_position or {}
    return needed_inputs(folder, listed, position, now)


def _is_collectable(name: str) -> bool:
    """Return whether retention may remove this kind of file: data, inputs, and left-overs of queries and writes."""
    return name.startswith(("data/", "inputs/", "probe/", _QUERIES)) or name.endswith(".tmp")


def _storage_now(folder: Folder) -> float:
    """Return the time of the clock that stamps files, which may differ from this machine's.

    Raises
    ------
    StorageUnavailable
        The storage's listing is out of date.
    """
    name = f"probe/{uuid.uuid4().hex}"
    folder.write(name, b"")
    try:
        found = [file.modified for file in folder.files("probe") if file.name == name]
    finally:
        folder.delete([name])
    if not found:
        raise StorageUnavailable(folder.path(name), "its listing leaves out a file that was just written")
    return found[0]


def _estimated_now(listed: Iterable[FileInfo]) -> float:
    """Return about the time of the clock that stamps files, without a write: a dry run may have no right to write."""
    return max((wall_time() / 1000, *(file.modified for file in listed)))


def _delete(folder: Folder, names: Sequence[str]) -> None:
    for start in range(0, len(names), _DELETED_AT_ONCE):
        folder.delete(names[start : start + _DELETED_AT_ONCE])


def _pin_name(version: int) -> str:
    return f"pins/{version_name(version)}"
