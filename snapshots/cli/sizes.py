"""Estimates the size of a range of key groups from the manifest alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange
from snapshots.format.layers import share_of
from snapshots.format.manifest import DataFile


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes of a range of key groups.

    Attributes
    ----------
    rows, bytes : int
        The number of each.
    is_exact : bool
        False if a file extends beyond the range and is counted by its share of key groups, or if a delta may have rows
        for keys that its base also has.
    """

    rows: int
    bytes: int
    is_exact: bool


def size_of(files: Iterable[DataFile], key_groups: KeyGroupRange) -> Size:
    """Add up the parts of files in a range.

    A file is assumed to hold the same amount for each key group of its own range.

    Parameters
    ----------
    files : iterable of DataFile
        The files to count.
    key_groups : KeyGroupRange
        The range.
    """
    rows = size = 0.0
    is_exact = True
    for file in files:
        common = file.key_groups.intersection(key_groups)
        if common is None:
            continue
        share = share_of(file, key_groups)
        rows += file.rows * share
        size += file.bytes * share
        is_exact = is_exact and common == file.file_key_groups and file.kind != "delta"
    return Size(round(rows), round(size), is_exact)
