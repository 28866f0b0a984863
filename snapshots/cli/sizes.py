"""How much of a snapshot lies in a range of key groups, by its manifest alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keygroups.ranges import KeyGroupRange
from snapshots.layers import share_of
from snapshots.manifest import DataFile


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes of a range of key groups.

    Attributes
    ----------
    rows, bytes : int
        Their number.
    is_exact : bool
        False where a file reaches beyond the range, and is counted by its share of key groups, or where a delta may
        have rows for keys that its base has as well.
    """

    rows: int
    bytes: int
    is_exact: bool


def size_of(files: Iterable[DataFile], key_groups: KeyGroupRange) -> Size:
    """Add up what the files hold of a range.

    A file is taken to hold the same amount for each key group of its own range.

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
