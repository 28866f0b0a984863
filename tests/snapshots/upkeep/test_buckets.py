"""The buckets of a rewrite: every row comes back once, by whole key groups."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import KeyGroupRange
from snapshots.upkeep import buckets
from snapshots.upkeep.buckets import Buckets, by_key_group


@given(
    groups=st.lists(st.integers(0, 99), max_size=300),
    limits=st.tuples(st.integers(1, 2000), st.integers(1, 2000), st.integers(2, 9)),
)
def test_buckets_give_back_every_row_once_by_ascending_whole_key_groups(
    groups: list[int], limits: tuple[int, int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        for name, value in zip(("FLUSH_BYTES", "BUCKET_BYTES", "BUCKETS_MAX"), limits, strict=True):
            patch.setattr(buckets, name, value)
        with Buckets(Path(directory), KeyGroupRange(50, 149)) as made:
            for number, group in enumerate(groups):
                made.add(pa.table({"key_group": pa.array([group + 50], pa.int32()), "n": [number]}))
            taken = [(group, rows["n"].to_pylist()) for table in made.take() for group, rows in by_key_group(table)]
        assert list(Path(directory).iterdir()) == []
    expected = {group + 50: np.flatnonzero(np.array(groups) == group).tolist() for group in groups}
    assert [(group, sorted(rows)) for group, rows in taken] == sorted(expected.items())
