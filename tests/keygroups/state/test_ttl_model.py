"""State with a time to live against a model, over cuts, restores at other parallelisms and compactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keygroups import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    StateTtl,
    ValueState,
    key_group_of,
    range_of,
    subtask_of,
)
from keygroups.state import Transaction
from keygroups.ttl import TtlUpdate
from snapshots import SubtaskSnapshot
from tests.backends import new_backend
from tests.examples import scaled
from tests.snapshot_kit import G, new_store

pytestmark = pytest.mark.usefixtures("each_backend")

TTL_MS = 100


def declared(update: TtlUpdate) -> tuple[StateDescriptor, ...]:
    ttl = StateTtl(TTL_MS / 1000, update)
    return (
        ValueState("value", pa.int64(), default=-1, ttl=ttl),
        ListState("list", pa.int64(), ttl=ttl),
        MapState("map", ttl=ttl),
        ReducingState("reducing", int.__add__, pa.int64(), ttl=ttl),
        AggregatingState("aggregating", list, lambda all_, one: [*all_, one], sorted, ttl=ttl),
    )


class Subtasks:
    """The subtasks of an operator at any parallelism, with invocations that complete at once."""

    def __init__(self, states: tuple[StateDescriptor, ...]) -> None:
        self.states = states
        self.now = 1_000_000
        self.store = new_store()
        self.parallelism = 2
        self.backends = [new_backend(states, range_of(n, 2, G), wall_time=lambda: self.now) for n in range(2)]

    def invoke(self, key: str, work: Callable[[Transaction], Any]) -> Any:
        key_group = key_group_of(key, G)
        transaction = Transaction(self.backends[subtask_of(key_group, self.parallelism, G)], key, key_group)
        result = work(transaction)
        transaction.commit()
        return result

    def snapshot(self) -> None:
        parts = [
            SubtaskSnapshot(
                subtask_index=index,
                parallelism=self.parallelism,
                max_parallelism=G,
                hash="xxhash64",
                states=backend.cut(),
                wall_time=self.now,
            )
            for index, backend in enumerate(self.backends)
        ]
        # As little as this is, it is to be written as deltas.
        with mock.patch("snapshots.commit.part_writer.DELTA_SHARE_MAX", 100):
            self.store.write(parts)

    def restore(self, parallelism: int) -> None:
        snapshot = self.store.latest()
        assert snapshot is not None
        shares = [snapshot.restore(index, parallelism) for index in range(parallelism)]
        self.parallelism = parallelism
        self.backends = [
            new_backend(
                self.states,
                share.key_groups,
                share.states(self.states, self.now),
                share.snapshot_id,
                wall_time=lambda: self.now,
            )
            for share in shares
        ]

    def compact(self) -> None:
        with mock.patch("snapshots.store.wall_time", return_value=self.now):
            self.store.compact()


class Model:
    """What each key has, as Python's own lists and dicts, with the time at which each part of it expires."""

    def __init__(self, update: TtlUpdate) -> None:
        self.reads_extend = update == "read_and_write"
        self.now = 0
        self.held: dict[tuple[str, str], list[list[Any]]] = {}

    def living(self, state: str, key: str, read: bool = True) -> list[list[Any]]:
        parts = [part for part in self.held.get((state, key), []) if part[-1] > self.now]
        if read and self.reads_extend:
            for part in parts:
                part[-1] = self.now + TTL_MS
        self.held[state, key] = parts
        return parts

    def set(self, state: str, key: str, *parts: list[Any]) -> None:
        self.held[state, key] = [[*part, self.now + TTL_MS] for part in parts]


def step(name: str, key: str, number: int, run: Subtasks, model: Model) -> None:
    """Do one thing to a state of the subtasks and of the model, and compare what both say."""
    states = {state.name: state for state in run.states}
    kind, action = name.split(" ")
    found = run.invoke(key, lambda transaction: ACTIONS[name](transaction.state(states[kind]), number))
    living = model.living(kind, key, read=action == "read" or name == "reducing add")
    if name == "map look":
        entry = next((part for part in living if part[0] == number % 5), None)
        assert found == (None if entry is None else entry[1], entry is not None)
        if entry is not None and model.reads_extend:
            entry[-1] = model.now + TTL_MS
    elif action == "read" and kind == "map":
        assert dict(found) == {entry: value for entry, value, _ in living}
    elif action == "read":
        values = [value for value, _ in living]
        nothing = {"value": -1}.get(kind)
        single = (sorted(values[0]) if kind == "aggregating" else values[0]) if values else nothing
        assert found == (values if kind == "list" else single)
    elif name == "list add":
        model.held[kind, key].append([number, model.now + TTL_MS])
    elif name == "list update":
        model.set(kind, key, [number], [number + 1])
    elif name == "map put":
        model.held[kind, key] = [part for part in living if part[0] != number % 5]
        model.held[kind, key].append([number % 5, number, model.now + TTL_MS])
    elif name == "map remove":
        model.held[kind, key] = [part for part in living if part[0] != number % 5]
    elif action == "add":
        before = living[0][0] if living else (0 if kind == "reducing" else [])
        model.set(kind, key, [before + (number if kind == "reducing" else [number])])
    elif name == "value update":
        model.set(kind, key, [number])
    else:
        assert action == "clear"
        model.held[kind, key] = []


ACTIONS: dict[str, Callable[[Any, int], Any]] = {
    "value read": lambda handle, _: handle.value(),
    "value update": lambda handle, number: handle.update(number),
    "value clear": lambda handle, _: handle.clear(),
    "list read": lambda handle, _: handle.get(),
    "list add": lambda handle, number: handle.add(number),
    "list update": lambda handle, number: handle.update([number, number + 1]),
    "list clear": lambda handle, _: handle.clear(),
    "map read": lambda handle, _: handle.items(),
    "map look": lambda handle, number: (handle.get(number % 5), handle.contains(number % 5)),
    "map put": lambda handle, number: handle.put(number % 5, number),
    "map remove": lambda handle, number: handle.remove(number % 5),
    "map clear": lambda handle, _: handle.clear(),
    "reducing read": lambda handle, _: handle.get(),
    "reducing add": lambda handle, number: handle.add(number),
    "aggregating read": lambda handle, _: handle.get(),
    "aggregating add": lambda handle, number: handle.add(number),
}

_STEPS = st.one_of(
    st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(["a", "b", "c"]), st.integers(0, 99)),
    st.tuples(st.just("advance"), st.just(""), st.sampled_from([1, 30, 60, 99, 100, 101, 250])),
    st.tuples(st.just("snapshot"), st.just(""), st.just(0)),
    st.tuples(st.just("restore"), st.just(""), st.sampled_from([1, 2, 3, 5])),
    st.tuples(st.just("compact"), st.just(""), st.just(0)),
)


GAPS = [
    ("list add", "a", 1),
    ("advance", "", 60),
    ("list update", "b", 1),
    ("list add", "a", 2),
    ("list add", "a", 3),
    ("advance", "", 50),
    ("restore", "", 1),
    ("list add", "a", 4),
    ("restore", "", 3),
    ("list add", "a", 5),
    ("compact", "", 0),
]
"""Elements that have expired are not stored, and those behind them are appended to by a delta."""

READS = [
    ("map look", "a", 1),
    ("map put", "a", 1),
    ("map put", "a", 2),
    ("advance", "", 60),
    ("map look", "a", 1),
    ("advance", "", 60),
    ("map read", "a", 0),
    ("snapshot", "", 0),
    ("advance", "", 60),
]
"""A read of one entry of a map extends the life of that entry only, if reads do."""


@pytest.mark.parametrize("update", ["write", "read_and_write"])
@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=GAPS)
@example(steps=READS)
@given(steps=st.lists(_STEPS, max_size=60))
def test_only_what_lives_is_ever_seen(update: TtlUpdate, steps: list[tuple[str, str, int]]) -> None:
    run, model = Subtasks(declared(update)), Model(update)
    for name, key, number in steps:
        model.now = run.now
        match name:
            case "advance":
                run.now += number
            case "snapshot":
                run.snapshot()
            case "restore":
                run.snapshot()
                run.restore(number)
            case "compact":
                run.snapshot()
                run.compact()
                run.restore(run.parallelism)
            case _:
                step(name, key, number, run, model)
    model.now = run.now
    for key in ("a", "b", "c"):
        for kind in ("value", "list", "map", "reducing", "aggregating"):
            step(f"{kind} read", key, 0, run, model)
