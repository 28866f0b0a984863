"""A state of each kind, and what is restored of it as plain Python values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from immutables import Map

from keygroups import AggregatingState, ListState, MapState, ReducingState, key_group_of
from keygroups.state import SharedList, original_of
from snapshots import Snapshot
from tests.backends import contents
from tests.snapshot_kit import COUNT, PROFILE

CLICKS, PRICES = ListState("clicks", pa.string()), MapState("prices", pa.float64())
TOTAL = ReducingState("total", lambda one, other: one + other, pa.int64())
MEAN = AggregatingState("mean", lambda: (0, 0), lambda a, v: (a[0] + v, a[1] + 1), lambda a: a[0] / a[1])


def plain_content(snapshot: Snapshot, descriptor: Any, parallelism: int | None = None) -> dict[Any, Any]:
    """What the subtasks of an operator restore of one state, as Python values by the identity of the key."""
    content: dict[Any, Any] = {}
    for subtask in range(parallelism or snapshot.parallelism):
        restore = snapshot.restore(subtask, parallelism)
        declared = [one for one in (COUNT, PROFILE, CLICKS, PRICES, TOTAL, MEAN) if one.name != descriptor.name]
        declared = [one for one in declared if one.name in snapshot.state_names]
        for key_group, values in contents(restore.states([descriptor, *declared])[descriptor.name]).items():
            for identity, value in values.items():
                key = original_of(identity)
                assert key_group == key_group_of(key, snapshot.max_parallelism, snapshot.manifest.hash)
                content[identity] = plain(value)
    return content


def plain(value: Any) -> Any:
    match value:
        case SharedList():
            return list(value)
        case Map():
            return {original_of(key): item for key, item in value.items()}
        case _:
            return value
