"""An operator whose state of every kind is changed at random."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from immutables import Map

from keygroups import KeyGroupRange, key_group_of, range_of
from keygroups.state import MISSING, MemoryBackend, SharedList, identity_of
from snapshots import Snapshot, SnapshotStore
from tests.snapshot_kit import COUNT, PROFILE, G, part
from tests.snapshots.plain_states import CLICKS, PRICES

STATES = (COUNT, PROFILE, CLICKS, PRICES)
EVERYTHING = KeyGroupRange(0, G - 1)
NAN = float("nan")


class Operator:
    """Two subtasks whose state is changed at random, and what it should be."""

    def __init__(self, store: SnapshotStore, seed: int) -> None:
        self.store = store
        self.draw = random.Random(seed)
        self.backends = [MemoryBackend(STATES, range_of(index, 2, G)) for index in range(2)]

    def change(self, count: int) -> None:
        for number in range(count):
            key: Any = self.draw.choice([f"key {self.draw.randrange(40)}", self.draw.randrange(40), (number % 5, "a")])
            key_group, identity = key_group_of(key, G), identity_of(key)
            tables = self.backends[key_group * 2 // G].tables
            gone = self.draw.random() < 0.2
            tables["count"].put(key_group, identity, MISSING if gone else self.draw.randrange(100))
            tables["profile"].put(key_group, identity, MISSING if gone else {"seen": (number, None)})
            clicks = SharedList(
                [] if gone else ["x" * self.draw.randrange(9) for _ in range(self.draw.randrange(1, 5))]
            )
            tables["clicks"].put_entries(key_group, identity, clicks, range(len(clicks)), replaced=True)
            prices: Map[Any, float] = Map() if gone else Map({name: self.draw.random() for name in ("a", 1, 1.5)})
            tables["prices"].put_entries(key_group, identity, prices, list(prices), replaced=True)

    def cut(self) -> Snapshot:
        return self.store.write([part(backend, index, 2) for index, backend in enumerate(self.backends)])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)
