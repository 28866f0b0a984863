"""Finds the files that hold a key group: one base, and the deltas that were written on top of it.

For each state and key group, a manifest names exactly one base file and the deltas of higher versions; the newest one
takes precedence. Every manifest is complete: for each range, it no longer names files that a newer file has replaced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from keygroups.ranges import KeyGroupRange
from snapshots.format.manifest import DataFile


def carry_over(old: Iterable[DataFile], new: Iterable[DataFile]) -> Iterator[DataFile]:
    """Return the files of a parent's keyed state that are still valid beside new files of the same states.

    A new base replaces every file within its range; a folding delta replaces the deltas there.
    """
    by_state: dict[str | None, list[DataFile]] = {}
    for file in sorted(new, key=lambda file: file.key_groups.start):
        by_state.setdefault(file.state, []).append(file)
    for file in old:
        parts = [file]
        for newer in _overlapping(by_state.get(file.state, ()), file.key_groups):
            if newer.kind == "keyed" or (newer.folds and file.kind == "delta"):
                parts = [rest for part in parts for rest in _outside(part, newer.key_groups)]
        yield from parts


def layers_of(files: Iterable[DataFile], key_group: int) -> list[DataFile]:
    """Return the files of one state that hold a key group, the base first.

    Raises
    ------
    ValueError
        There is no base below all deltas, or several.
    """
    found = sorted((file for file in files if key_group in file.key_groups), key=lambda file: file.version)
    kinds = [file.kind for file in found]
    if kinds != ["keyed"] + ["delta"] * (len(found) - 1) or len({file.version for file in found}) != len(found):
        layers = [f"{file.kind} of version {file.version}" for file in found]
        raise ValueError(f"key group {key_group} is in {layers}, but it takes one keyed file and deltas after it")
    return found


def spans(files: Iterable[DataFile], wanted: KeyGroupRange) -> Iterator[tuple[KeyGroupRange, list[DataFile]]]:
    """Split a range into runs of key groups with the same files; returns each run with its files, the base first.

    Raises
    ------
    ValueError
        A key group has no base below all deltas, or several.
    """
    overlapping = [file for file in files if file.key_groups.intersection(wanted) is not None]
    starts = {wanted.start}
    for file in overlapping:
        starts |= {file.key_groups.start, file.key_groups.end + 1}
    bounds = [*sorted(start for start in starts if start in wanted), wanted.end + 1]
    for start, after in pairwise(bounds):
        yield KeyGroupRange(start, after - 1), layers_of(overlapping, start)


def share_of(file: DataFile, key_groups: KeyGroupRange) -> float:
    """Return the estimated fraction of a file in a range; assumes that all its key groups have the same size."""
    common = file.key_groups.intersection(key_groups)
    return 0.0 if common is None else len(common) / len(file.file_key_groups)


def _overlapping(ordered: Sequence[DataFile], key_groups: KeyGroupRange) -> Iterator[DataFile]:
    """Return the overlapping files among sorted, disjoint files."""
    first = bisect_left(ordered, key_groups.start, key=lambda file: file.key_groups.end)
    for file in islice(ordered, first, None):
        if file.key_groups.start > key_groups.end:
            return
        yield file


def _outside(file: DataFile, taken: KeyGroupRange) -> Iterator[DataFile]:
    held = file.key_groups
    if held.intersection(taken) is None:
        yield file
        return
    if held.start < taken.start:
        yield replace(file, key_groups=KeyGroupRange(held.start, taken.start - 1))
    if taken.end < held.end:
        yield replace(file, key_groups=KeyGroupRange(taken.end + 1, held.end))
