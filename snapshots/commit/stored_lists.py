"""Which lists store a new version: the parent's lists that still hold, and new ones for what has changed.

The files of keyed state wait in the manifest itself until they are too many. Then they are written as a run of lists,
in the order of their key groups, together with every run that is not much larger (the logarithmic method of Bentley and
Saxe). So a file is written again a few times only, however many there are, and a key group is in few lists. A list of
which a file was replaced is not changed: the next version no longer names it, and its other files wait like new ones.

Channels are new in every cut, and so are the files of their elements and outputs. They are listed channel by channel,
unless they hold operator state that every subtask gets: then every subtask needs all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from keygroups.ranges import KeyGroupRange
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder
from snapshots.format.file_lists import REQUESTS_AT_ONCE, remember
from snapshots.format.manifest import Channel, DataFile, FileList, ListInfo, Manifest
from snapshots.format.manifest_head import FILE_LISTS, list_to_bytes

INLINE_MAX = 512
"""So many files of keyed state, and so many channels and their files, are in the manifest itself: a small one has no
lists, and a worker reads no more that is not of its key groups."""

LIST_ENTRIES_MAX = 256
"""A list is cut at so many entries. With fewer, manifests name more lists; with more, workers read more of others."""

RUN_GROWTH = 2
"""A run of up to so many times the number of waiting files is written again with them."""


class _Entries(NamedTuple):
    files: tuple[DataFile, ...]
    channels: tuple[Channel, ...] = ()


def with_stored_lists(folder: Folder, manifest: Manifest, attempt_id: str) -> Manifest:
    """Write the lists that a manifest needs and its parent does not have.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    manifest : Manifest
        The manifest to commit; with its parent's lists.
    attempt_id : str
        The unique id of the attempt, which names the folder of the lists.

    Returns
    -------
    Manifest
        The same manifest with its own lists. Its files and channels are in the order in which a reader gets them.
    """
    # Entries are compared by identity: a version has the very objects of its parent, unless they were replaced, and
    # comparing all fields of a million files would take longer than the commit. The ids are unique because the manifest
    # and its lists hold all objects meanwhile. A caller that copies an entry loses no file: its list counts as
    # replaced, the copy waits like a new file, and is stored again.
    entries = {id(entry) for entry in (*manifest.files, *manifest.channels)}
    valid = [one for one in manifest.file_lists if all(id(entry) in entries for entry in one.entries)]
    kept, new = _of_state(manifest, [one for one in valid if not one.channels])
    kept_of_cut, new_of_cut = _of_cut(manifest, [one for one in valid if one.channels])
    written = _write(folder, attempt_id, [*new, *new_of_cut])
    return _in_order(manifest, (*kept, *written[: len(new)], *kept_of_cut, *written[len(new) :]))


def _of_state(manifest: Manifest, valid: list[FileList]) -> tuple[list[FileList], list[_Entries]]:
    """Return the lists to keep and those to write of the files of keyed state; all other files wait."""
    files = manifest.files_of("keyed", "delta")
    if len(files) <= INLINE_MAX:
        return [], []
    listed = {id(file) for one in valid for file in one.files}
    waiting = [file for file in files if id(file) not in listed]
    if len(waiting) <= INLINE_MAX:
        return valid, []
    kept = []
    for run in sorted(_runs(valid), key=_files_in):
        if _files_in(run) > RUN_GROWTH * len(waiting):
            kept.append(run)
        else:
            waiting += chain.from_iterable(one.files for one in run)
    waiting.sort(key=lambda file: (file.key_groups.start, file.key_groups.end))
    count = -(-len(waiting) // LIST_ENTRIES_MAX)
    bounds = [number * len(waiting) // count for number in range(count + 1)]
    new = [_Entries(tuple(waiting[start:end])) for start, end in pairwise(bounds)]
    return list(chain.from_iterable(kept)), new


def _runs(lists: Iterable[FileList]) -> list[list[FileList]]:
    """Divide lists into runs: the lists of one attempt are in one folder."""
    runs: dict[str, list[FileList]] = {}
    for one in lists:
        runs.setdefault(one.info.path.rpartition("/")[0], []).append(one)
    return list(runs.values())


def _files_in(run: Iterable[FileList]) -> int:
    return sum(len(one.files) for one in run)


def _of_cut(manifest: Manifest, valid: list[FileList]) -> tuple[list[FileList], list[_Entries]]:
    """Return the same of channels, and of the files of their elements and outputs."""
    files = manifest.files_of("in_flight", "output")
    count = len(files) + len(manifest.channels)
    is_dealt = any(channel.step is not None or channel.keyless for channel in manifest.channels)
    if is_dealt or manifest.operator_states or count <= INLINE_MAX:
        return [], []
    if sum(len(one.files) + len(one.channels) for one in valid) == count:
        return valid, []
    return [], list(_by_channel(manifest.channels, files))


def _by_channel(channels: Iterable[Channel], files: Iterable[DataFile]) -> Iterator[_Entries]:
    of_channel: dict[int, list[DataFile]] = {}
    for file in files:
        of_channel.setdefault(file.subtask, []).append(file)
    found = _Entries(())
    for channel in channels:
        found = _Entries((*found.files, *of_channel.pop(channel.subtask, ())), (*found.channels, channel))
        if len(found.files) + len(found.channels) >= LIST_ENTRIES_MAX:
            yield found
            found = _Entries(())
    if found.channels:
        yield found


def _write(folder: Folder, attempt_id: str, lists: Sequence[_Entries]) -> list[FileList]:
    def write(numbered: tuple[int, _Entries]) -> FileList:
        number, (files, channels) = numbered
        ranges = [*(file.key_groups for file in files), *(channel.key_groups for channel in channels)]
        held = KeyGroupRange(min(one.start for one in ranges), max(one.end for one in ranges))
        path = f"data/{attempt_id}/list-{number}-{held.start}-{held.end}.json"
        data = list_to_bytes(files, channels)
        folder.write(path, data)
        info = ListInfo(
            path=path,
            key_groups=held,
            files=len(files),
            channels=len(channels),
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        written = FileList(info, files, channels)
        remember(written)
        return written

    if not lists:
        return []
    with DaemonPool(min(len(lists), REQUESTS_AT_ONCE), "keygroups lists") as pool:
        return list(pool.map(write, enumerate(lists)))


def _in_order(manifest: Manifest, lists: tuple[FileList, ...]) -> Manifest:
    """Return a manifest with lists; their entries come first."""
    listed = {id(entry) for one in lists for entry in one.entries}
    files = (*(file for one in lists for file in one.files), *(f for f in manifest.files if id(f) not in listed))
    channels = (*(c for one in lists for c in one.channels), *(c for c in manifest.channels if id(c) not in listed))
    others = (feature for feature in manifest.required_features if feature != FILE_LISTS)
    features = tuple(sorted([*others, *([FILE_LISTS] if lists else [])]))
    return replace(manifest, files=files, channels=channels, required_features=features, file_lists=lists)
