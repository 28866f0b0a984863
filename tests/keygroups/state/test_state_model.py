"""Keyed state of every kind beside plain Python objects: commits, failed attempts, cuts, snapshots and rescales.

Every backend is held to the same, also when each restore takes another one.
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keygroups import AggregatingState, ListState, MapState, ReducingState, StateDescriptor, ValueState, key_group_of
from keygroups.ranges import range_of, subtask_of
from keygroups.state import KeyedStateBackend, StateAccessOutsideInvocation, Transaction
from snapshots import SnapshotStore, SubtaskSnapshot
from snapshots.commit import part_writer
from snapshots.restore.share import SubtaskRestore
from tests.backends import BACKENDS, MakeBackend, alternating
from tests.examples import scaled
from tests.snapshot_kit import new_store

G = 4
POINT = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])

VALUE = ValueState("value", pa.int64(), default=0)
LIST = ListState("list", pa.int64())
POINTS = ListState("points", POINT)
ANY_LIST = ListState("any_list")
MAP = MapState("map", pa.map_(pa.string(), pa.float64()))
ANY_MAP = MapState("any_map")
SUM = ReducingState("sum", lambda a, b: a + b, pa.int64())
MEAN = AggregatingState("mean", lambda: [0, 0], lambda a, v: _added(a, v), lambda a: a[0] / a[1], pa.list_(pa.int64()))
STATES: tuple[StateDescriptor, ...] = (VALUE, LIST, POINTS, ANY_LIST, MAP, ANY_MAP, SUM, MEAN)


def _added(accumulator: list[int], value: int) -> list[int]:
    """Change the accumulator in place, as a function may."""
    accumulator[0] += value
    accumulator[1] += 1
    return accumulator


keys = st.sampled_from(["a", "b", 1, 1.0, ("a", 1)])
numbers = st.integers(-5, 5)
map_keys = st.sampled_from(["x", "y", "z"])
any_map_keys = st.sampled_from(["x", 1, 1.0, True, None, ("x", 2)])
points = st.fixed_dictionaries({"x": numbers, "tags": st.lists(st.sampled_from(["p", "q"]), max_size=2)})
anything = st.one_of(numbers, st.none(), st.text(max_size=2), st.tuples(numbers), st.lists(numbers, max_size=2))

writes = st.one_of(
    st.tuples(st.just("value"), st.just("update"), numbers),
    st.tuples(st.sampled_from([s.name for s in STATES]), st.just("clear"), st.none()),
    st.tuples(st.just("list"), st.just("add"), numbers),
    st.tuples(st.just("list"), st.just("update"), st.lists(numbers, max_size=4)),
    st.tuples(st.just("points"), st.just("add"), points),
    st.tuples(st.just("any_list"), st.just("add_all"), st.lists(anything, max_size=3)),
    st.tuples(st.just("map"), st.just("put"), st.tuples(map_keys, st.floats(-2, 2))),
    st.tuples(st.just("map"), st.just("remove"), map_keys),
    st.tuples(st.just("any_map"), st.just("put"), st.tuples(any_map_keys, anything)),
    st.tuples(st.just("any_map"), st.just("remove"), any_map_keys),
    st.tuples(st.sampled_from(["sum", "mean"]), st.just("add"), numbers),
)


def typed(key: Any) -> Any:
    """Return what tells keys apart as the state does."""
    return (type(key), key)


def write_model(model: dict[Any, Any], key: Any, name: str, method: str, argument: Any) -> None:
    """Do to plain objects what a handle does to the state."""
    place = (name, typed(key))
    match method:
        case "clear":
            model.pop(place, None)
        case "update":
            model[place] = argument
        case "add" if name in ("list", "points"):
            model[place] = [*model.get(place, []), argument]
        case "add" | "add_all" if name == "any_list":
            model[place] = [*model.get(place, []), *argument]
        case "put":
            model[place] = model.get(place, {}) | {typed(argument[0]): argument[1]}
        case "remove":
            model.setdefault(place, {}).pop(typed(argument), None)
        case "add":
            total, count = model.get(place, (0, 0))
            model[place] = (total + argument, count + 1)


def expected(model: dict[Any, Any], key: Any, name: str) -> Any:
    held = model.get((name, typed(key)))
    match name:
        case "value":
            return 0 if held is None else held
        case "list" | "points" | "any_list":
            return held or []
        case "map" | "any_map":
            return held or {}
        case "sum":
            return None if held is None else held[0]
    return None if held is None else held[0] / held[1]


def shown(transaction: Transaction, descriptor: StateDescriptor) -> Any:
    handle = transaction.state(descriptor)
    match descriptor.kind:
        case "value":
            return handle.value()
        case "map":
            assert handle.is_empty() == (not handle.keys())
            assert all(handle.contains(key) and handle.get(key) == value for key, value in handle.items())
            return {typed(key): value for key, value in handle.items()}
    return handle.get()


class StateMachine(RuleBasedStateMachine):
    """Subtasks whose invocations come one after the other."""

    make: MakeBackend

    def backend(self, index: int, parallelism: int, restore: SubtaskRestore | None) -> KeyedStateBackend:
        owned = range_of(index, parallelism, G)
        if restore is None:
            return type(self).make(STATES, owned)
        return type(self).make(STATES, owned, restore.states(STATES), restore.snapshot_id)

    def __init__(self) -> None:
        super().__init__()
        self.store: SnapshotStore = new_store()
        self.backends = [self.backend(n, 2, None) for n in range(2)]
        self.model: dict[Any, Any] = {}
        self.committed: dict[Any, Any] = {}
        self.used: set[Any] = set()
        self.frozen: tuple[list[SubtaskSnapshot], dict[Any, Any]] | None = None

    def transaction(self, key: Any) -> Transaction:
        group = key_group_of(key, G)
        return Transaction(self.backends[subtask_of(group, len(self.backends), G)], key, group)

    @rule(key=keys, plan=st.lists(writes, min_size=1, max_size=6), completes=st.booleans())
    def invoke(self, key: Any, plan: list[Any], completes: bool) -> None:
        """Write through one invocation, which reads what it wrote; its end decides what is left of that."""
        self.used.add(key)
        transaction, model = self.transaction(key), copy.deepcopy(self.model)
        handle: Any = None
        for name, method, argument in plan:
            handle = transaction.state(next(state for state in STATES if state.name == name))
            arguments = () if method == "clear" else argument if method == "put" else (argument,)
            getattr(handle, method)(*arguments)
            write_model(model, key, name, method, argument)
        for state in STATES:
            assert shown(transaction, state) == expected(model, key, state.name)
            assert shown(self.transaction(key), state) == expected(self.model, key, state.name)
        if completes:
            transaction.commit()
            self.model = model
        else:
            transaction.abandon()
        with pytest.raises(StateAccessOutsideInvocation):
            handle.clear()

    @rule()
    def cut(self) -> None:
        """Freeze a snapshot; it is written later, after more invocations."""
        self.frozen = (self.parts(), copy.deepcopy(self.model))

    @rule(delayed=st.booleans())
    def write(self, delayed: bool) -> None:
        parts, model = self.frozen if delayed and self.frozen else (self.parts(), copy.deepcopy(self.model))
        self.frozen = None
        if len(parts) == len(self.backends):
            self.store.write(parts)
            self.committed = model

    @rule(parallelism=st.integers(1, G), compacts=st.booleans())
    def restart(self, parallelism: int, compacts: bool) -> None:
        latest = self.store.latest()
        if latest is None:
            return
        if compacts:
            latest = self.store.compact()
        shares = [latest.restore(n, parallelism) for n in range(parallelism)]
        self.teardown()
        self.backends = [self.backend(n, parallelism, share) for n, share in enumerate(shares)]
        self.model, self.frozen = copy.deepcopy(self.committed), None
        self.check()

    def teardown(self) -> None:
        """Let go of what backends have on disk."""
        for backend in self.backends:
            backend.close()

    def parts(self) -> list[SubtaskSnapshot]:
        count = len(self.backends)
        return [
            SubtaskSnapshot(
                subtask_index=n, parallelism=count, max_parallelism=G, hash="xxhash64", states=backend.cut()
            )
            for n, backend in enumerate(self.backends)
        ]

    @invariant()
    def check(self) -> None:
        for key in self.used:
            for state in STATES:
                assert shown(self.transaction(key), state) == expected(self.model, key, state.name)


@pytest.mark.parametrize(("backend", "examples"), [("memory", 100), ("disk", 25), ("alternating", 25)])
def test_state_is_what_plain_objects_would_be(backend: str, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_writer, "DELTA_SHARE_MAX", 1000)
    monkeypatch.setattr(part_writer, "DELTAS_MAX", 2)
    machine = type("Machine", (StateMachine,), {"make": staticmethod(BACKENDS.get(backend, alternating()))})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=scaled(examples), stateful_step_count=25, deadline=None)
    )
