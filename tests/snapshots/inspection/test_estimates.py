"""The size of a range of key groups, as far as the manifest tells it."""

from __future__ import annotations

import pytest

from keygroups.ranges import KeyGroupRange
from snapshots.format.manifest import DataFile
from snapshots.inspection import Size, size_of


def data_file(first: int, last: int, rows: int) -> DataFile:
    return DataFile(
        kind="keyed",
        state="delay",
        subtask=0,
        version=1,
        key_groups=KeyGroupRange(first, last),
        file_key_groups=KeyGroupRange(first, last),
        path=f"data/x/keyed-delay-{first}-{last}.parquet",
        rows=rows,
        bytes=rows * 10,
        sha256="",
        footer_bytes=0,
        footer_sha256="",
    )


@pytest.mark.parametrize(
    ("key_groups", "expected"),
    [
        (KeyGroupRange(0, 19), Size(300, 3000, is_exact=True)),
        (KeyGroupRange(0, 9), Size(100, 1000, is_exact=True)),
        (KeyGroupRange(5, 9), Size(50, 500, is_exact=False)),
        (KeyGroupRange(5, 14), Size(150, 1500, is_exact=False)),
        (KeyGroupRange(20, 29), Size(0, 0, is_exact=True)),
    ],
    ids=str,
)
def test_a_file_counts_by_its_share_of_key_groups(key_groups: KeyGroupRange, expected: Size) -> None:
    assert size_of([data_file(0, 9, 100), data_file(10, 19, 200)], key_groups) == expected
