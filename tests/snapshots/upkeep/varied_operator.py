"""An operator with keys and values of many types, filled by a seed, and what is restored of it."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import defaultdict
from typing import Any

import pyarrow as pa

from keygroups import KeyGroupRange, ValueState, key_group_of, range_of
from keygroups.state import MISSING, MemoryBackend, identity_of, original_of
from snapshots import InFlightElement, OperatorStateCut, Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.format.parquet import ParquetReader
from snapshots.format.subtask import NO_KEY_GROUP
from tests.backends import contents

AMOUNT = ValueState("amount", pa.int64())
PROFILE = ValueState("profile")
NESTED = ValueState("nested", pa.struct([("when", pa.timestamp("s")), ("price", pa.decimal128(10, 2))]))
EMPTY = ValueState("empty", pa.string())
STATES = (AMOUNT, PROFILE, NESTED, EMPTY)
MIXED: list[Any] = ["text", 7, 7.0, True, ("user", 42), ""]


def key_of(draw: random.Random, number: int) -> Any:
    """Return a key that both hashes take, and that differs from every other."""
    kind = draw.randrange(4)
    if kind == 0 and number < len(MIXED):
        return MIXED[number]
    return [f"key {number}", number, (f"user {number}", number), number + 0.5][kind]


def value_of(state: ValueState, number: int) -> object:
    if state is AMOUNT:
        return number
    if state is PROFILE:
        return [None, {"n": number, "t": (number, "x")}, b"\x00" * (number % 50), {number}][number % 4]
    return {"when": dt.datetime(2026, 1, 1, second=number % 60), "price": decimal.Decimal(number) / 100}


class Operator:
    """An operator's backends and queues at one parallelism, changed and cut by a seed."""

    def __init__(self, draw: random.Random, parallelism: int, max_parallelism: int, hash_: str = "xxhash64") -> None:
        self.draw, self.parallelism, self.max_parallelism, self.hash = draw, parallelism, max_parallelism, hash_
        owned = [range_of(n, parallelism, max_parallelism) for n in range(parallelism)]
        self.backends = [MemoryBackend(STATES, range_) for range_ in owned]
        self.queues: list[list[InFlightElement]] = [[] for _ in owned]
        self.keys: list[Any] = []

    def change(self, count: int) -> None:
        self.keys += [key_of(self.draw, number) for number in range(len(self.keys), len(self.keys) + count // 2 + 1)]
        for number in range(count):
            key = self.draw.choice(self.keys)
            state = self.draw.choice((AMOUNT, PROFILE, NESTED))
            value = MISSING if self.draw.random() < 0.2 else value_of(state, number)
            group = key_group_of(key, self.max_parallelism, self.hash)
            backend = self.backends[group * self.parallelism // self.max_parallelism]
            backend.tables[state.name].put(group, identity_of(key), value)

    def fill(self, count: int) -> None:
        """Put elements in flight: records with and without keys, and watermarks that rise."""
        for number in range(count):
            key = self.draw.choice([*self.keys, None])
            group = NO_KEY_GROUP if key is None else key_group_of(key, self.max_parallelism, self.hash)
            channel = group * self.parallelism // self.max_parallelism if key is not None else number % self.parallelism
            queue = self.queues[channel]
            if self.draw.random() < 0.2:
                queue.append(InFlightElement(channel=channel, sequence=len(queue), is_watermark=True, timestamp=number))
                continue
            is_completed = self.draw.random() < 0.3
            queue.append(
                InFlightElement(
                    channel=channel,
                    sequence=len(queue),
                    key=key,
                    key_group=group,
                    value={"n": number},
                    element_id=f"e{number}",
                    timestamp=number,
                    attempt=self.draw.randrange(1, 4),
                    completed=is_completed,
                    outputs=(number,) if is_completed else None,
                )
            )

    def cut(self) -> list[SubtaskSnapshot]:
        return [
            SubtaskSnapshot(
                subtask_index=n,
                parallelism=self.parallelism,
                max_parallelism=self.max_parallelism,
                hash=self.hash,
                states=backend.cut(),
                in_flight=tuple(self.queues[n]),
                operator_states=(OperatorStateCut("offsets", "split", (f"partition {n}",)),),
                watermark=-1 - n,
            )
            for n, backend in enumerate(self.backends)
        ]


def content(snapshot: Snapshot, parallelism: int | None = None) -> dict[str, dict[Any, object]]:
    """Restore all subtasks; each key must be in the key group that the snapshot's hash gives it."""
    found: dict[str, dict[Any, object]] = {state.name: {} for state in STATES}
    for subtask in range(parallelism or snapshot.parallelism):
        restore = snapshot.restore(subtask, parallelism)
        for name, groups in restore.states(STATES).items():
            for group, values in contents(groups).items():
                for identity, value in values.items():
                    key = original_of(identity)
                    assert key_group_of(key, snapshot.max_parallelism, snapshot.manifest.hash) == group
                    assert found[name].setdefault(identity, value) is value
    return found


def elements(snapshot: Snapshot, parallelism: int | None = None) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the restored records of each key, in their order; those without a key as a set."""
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for subtask in range(parallelism or snapshot.parallelism):
        for element in snapshot.restore(subtask, parallelism).queue().elements:
            if element.is_watermark:
                continue
            said = (element.element_id, element.value["n"], element.attempt, element.completed, element.outputs)
            found[identity_of(element.key)].append(said)
            if element.key is not None:
                expected = key_group_of(element.key, snapshot.max_parallelism, snapshot.manifest.hash)
                assert element.key_group == expected
    found[None].sort()
    return dict(found)


def watermark(snapshot: Snapshot) -> int | None:
    """Return that of the whole: the lowest of all subtasks."""
    found = [snapshot.restore(n).queue().watermark for n in range(snapshot.parallelism)]
    return min((mark for mark in found if mark is not None), default=None)


def check_layout(store: SnapshotStore, snapshot: Snapshot) -> None:
    """Check that files cover each key group once, and rows lie in their files."""
    assert store.verify().ok
    whole = KeyGroupRange(0, snapshot.max_parallelism - 1)
    for name in snapshot.state_names:
        held = sorted((f.key_groups.start, f.key_groups.end) for f in snapshot.manifest.files_of("keyed", state=name))
        assert [end + 1 for _, end in held] == [*(start for start, _ in held[1:]), whole.end + 1]
        assert held[0][0] == 0
        snapshot.to_arrow(name)
    assert all(channel.key_groups == whole and channel.cut_id is None for channel in snapshot.manifest.channels)
    assert not snapshot.manifest.files_of("delta")
    owned = [range_of(n, snapshot.parallelism, snapshot.max_parallelism) for n in range(snapshot.parallelism)]
    for file in snapshot.manifest.files_of("in_flight"):
        assert file.key_groups in owned
        keyless = -1 in ParquetReader(snapshot.folder, file).read_all().column("key_group").to_pylist()
        assert not keyless or file.key_groups.start == 0


def operator(seed: int, parallelism: int = 3, max_parallelism: int = 128, hash_: str = "xxhash64") -> Operator:
    made = Operator(random.Random(seed), parallelism, max_parallelism, hash_)
    made.change(300)
    made.fill(60)
    return made
