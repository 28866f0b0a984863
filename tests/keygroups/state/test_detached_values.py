"""What a caller changes without writing it has no effect: in no state, on no backend, in no cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keygroups import (
    AggregatingState,
    KeyGroupRange,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
    register_codec,
)
from keygroups.state import Transaction
from keygroups.state.detached import detached
from tests.backends import contents, new_backend

pytestmark = pytest.mark.usefixtures("each_backend")


class Basket:
    """A value of a user's own type that changes in place."""

    def __init__(self, fruits: list[str]) -> None:
        self.fruits = fruits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basket) and self.fruits == other.fruits

    __hash__ = None  # type: ignore[assignment]


register_codec("tests.basket", Basket, lambda basket: basket.fruits, Basket)

STRUCT = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])
VALUES: list[tuple[pa.DataType | None, Any, Callable[[Any], object]]] = [
    (None, ["a"], lambda value: value.append("leak")),
    (None, {"a": 1}, lambda value: value.update(leak=1)),
    (None, {1}, lambda value: value.add(2)),
    (None, [["a"]], lambda value: value[0].append("leak")),
    (None, (["a"],), lambda value: value[0].append("leak")),
    (None, {"a": {"b": [1]}}, lambda value: value["a"]["b"].append(2)),
    (None, Basket(["a"]), lambda value: value.fruits.append("leak")),
    (STRUCT, {"x": 1, "tags": ["a"]}, lambda value: value["tags"].append("leak")),
    (pa.list_(pa.int64()), [1], lambda value: value.append(2)),
    (None, bytearray(b"a"), lambda value: value.extend(b"leak")),
    (pa.list_(pa.float64()), np.array([1.0]), lambda value: value.__setitem__(0, 2.0)),
]
TTLS = pytest.mark.parametrize("ttl", [None, 1000.0])
ALL_VALUES = pytest.mark.parametrize(("type_", "value", "change"), VALUES, ids=lambda value: str(value)[:20])


def plain(value: Any) -> Any:
    """Return what can be compared with ==: backends give arrays and their lists."""
    return value.tolist() if isinstance(value, np.ndarray) else value


class Run:
    """One state, and what reads and writes it for any key."""

    def __init__(self, state: StateDescriptor) -> None:
        self.state = state
        self.backend = new_backend([state], KeyGroupRange(0, 3), wall_time=lambda: 0)

    def begin(self, key: str = "ann") -> Any:
        self.transaction = Transaction(self.backend, key, 0)
        return self.transaction.state(self.state)

    def commit(self) -> None:
        self.transaction.commit()

    def cut(self) -> Any:
        (cut,) = self.backend.cut()
        return cut

    def held(self, cut: Any) -> dict[int, dict[Any, Any]]:
        return contents(cut.groups)


@TTLS
def test_a_default_that_is_changed_is_still_the_default_of_all_keys(ttl: Any) -> None:
    run = Run(ValueState("list", default=[], ttl=ttl))
    for key in ("ann", "bob"):
        handle = run.begin(key)
        elements = handle.value()
        elements.append(key)
        assert handle.value() == []
        handle.update(elements)
        run.commit()

    assert [run.begin(key).value() for key in ("ann", "bob", "eve")] == [["ann"], ["bob"], []]


def test_a_default_that_stands_for_nothing_else_stays_the_same_object() -> None:
    nothing = object()
    assert Run(ValueState("value", default=nothing)).begin().value() is nothing


@TTLS
@ALL_VALUES
def test_a_value_is_what_was_written_whatever_becomes_of_the_objects(
    ttl: Any, type_: pa.DataType | None, value: Any, change: Callable[[Any], object]
) -> None:
    run, mine = Run(ValueState("value", type_, ttl=ttl)), copy.deepcopy(value)
    handle = run.begin()
    handle.update(mine)
    change(mine)
    change(handle.value())
    assert plain(handle.value()) == plain(value)
    run.commit()
    change(mine)
    cut = run.cut()
    before = copy.deepcopy(run.held(cut))
    change(run.begin().value())

    assert plain(run.begin().value()) == plain(value)
    assert run.held(cut) == before


@TTLS
@ALL_VALUES
def test_an_element_of_a_list_is_what_was_added_whatever_becomes_of_the_objects(
    ttl: Any, type_: pa.DataType | None, value: Any, change: Callable[[Any], object]
) -> None:
    run = Run(ListState("list", type_, ttl=ttl))
    mine = [copy.deepcopy(value) for _ in range(3)]
    handle = run.begin()
    handle.update(mine[:1])
    handle.add(mine[1])
    handle.add_all(mine[2:])
    for element in (*mine, *handle.get()):
        change(element)
    assert list(map(plain, handle.get())) == [plain(value)] * 3
    run.commit()
    for element in (*mine, *run.begin().get()):
        change(element)

    assert list(map(plain, run.begin().get())) == [plain(value)] * 3


@TTLS
@ALL_VALUES
def test_a_value_of_a_map_is_what_was_put_whatever_becomes_of_the_objects(
    ttl: Any, type_: pa.DataType | None, value: Any, change: Callable[[Any], object]
) -> None:
    run, mine = Run(MapState("map", type_ and pa.map_(pa.string(), type_), ttl=ttl)), copy.deepcopy(value)
    handle = run.begin()
    handle.put("a", mine)
    handle.put_all({"b": mine})
    for _ in range(2):
        for found in (mine, handle.get("a"), *handle.values(), *(item for _, item in handle.items())):
            change(found)
        assert plain(handle.get("a")) == plain(value)
        assert {key: plain(item) for key, item in handle.items()} == {"a": plain(value), "b": plain(value)}
        assert list(map(plain, handle.values())) == [plain(value)] * 2
        run.commit()
        handle = run.begin()


@TTLS
def test_a_reduced_value_is_shared_with_no_other_key(ttl: Any) -> None:
    def reduce(one: list[str], other: list[str]) -> list[str]:
        one.extend(other)
        return one

    run, first, second = Run(ReducingState("all", reduce, ttl=ttl)), ["a"], ["b"]
    handle = run.begin()
    for mine in (first, second):
        handle.add(mine)
        mine.append("leak")
        handle.get().append("leak")
    run.commit()
    run.begin().get().append("leak")

    assert run.begin().get() == ["a", "b"]


@TTLS
def test_an_accumulator_is_shared_with_no_other_key(ttl: Any) -> None:
    empty: list[Any] = []

    def add(accumulator: list[Any], value: Any) -> list[Any]:
        accumulator.append(value)
        return accumulator

    run, mine = Run(AggregatingState("all", lambda: empty, add, lambda held: held, ttl=ttl)), ["a"]
    for key in ("ann", "bob"):
        handle = run.begin(key)
        handle.add(mine)
        mine.append("leak")
        handle.get().append("leak")
        run.commit()
        mine.remove("leak")
    run.begin("ann").get()[0].append("leak")

    assert [run.begin(key).get() for key in ("ann", "bob", "eve")] == [[["a"]], [["a"]], None]
    assert empty == []


def test_what_cannot_be_changed_is_not_copied() -> None:
    for value in (1, "é", b"a", None, 1.5, ("a", 1), frozenset({"a", 1})):
        assert detached(value) is value
