"""A key group says the same of itself wherever its rows are: in one dict, in two, on disk, or in files."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from keygroups import KeyGroupRange, ListState, MapState, StateDescriptor, ValueState
from keygroups.state import MISSING, KeyedStateBackend, KeyGroupContent, MemoryBackend, SharedList
from tests.backends import ON_DISK
from tests.snapshot_kit import new_store, part

OWNED = KeyGroupRange(0, 15)
VALUE = ValueState("value")
LIST = ListState("list")
MAP = MapState("map")
EXPECTED: dict[str, Any] = {
    "value": {("a", None, 1), ("b", None, 2), ("c", None, 3)},
    "list": {("a", 0, 1), ("a", 1, 2), ("b", 0, 3)},
    "map": {("a", "x", 1), ("a", "y", 2), ("b", "x", 3)},
}
SHAPES = ("one dict", "two dicts", "on disk", "in files")


def fill(backend: KeyedStateBackend) -> None:
    tables: Any = backend.tables
    for number, key in enumerate("abc", start=1):
        tables["value"].put(0, key, number)
    for key, values in {"a": [1, 2], "b": [3]}.items():
        tables["list"].put_entries(0, key, SharedList(values), range(len(values)), replaced=True)
    for key, entries in {"a": {"x": 1, "y": 2}, "b": {"x": 3}}.items():
        tables["map"].put_entries(0, key, entries, list(entries), replaced=True)


@pytest.fixture(params=SHAPES)
def groups(request: pytest.FixtureRequest) -> Iterator[dict[str, KeyGroupContent]]:
    """Return a key group of each state, in one of the shapes."""
    states: tuple[StateDescriptor, ...] = (VALUE, LIST, MAP)
    backend = ON_DISK.open(states, OWNED) if request.param == "on disk" else MemoryBackend(states, OWNED)
    if request.param == "two dicts":
        tables: Any = backend.tables
        tables["value"].put(0, "gone", 1)
        tables["value"].put(0, "b", 0)
        tables["list"].put_entries(0, "a", SharedList([7]), [0], replaced=True)
        tables["map"].put_entries(0, "b", {"z": 7}, ["z"], replaced=True)
        earlier = backend.cut()
        fill(backend)
        tables["value"].put(0, "gone", MISSING)
        assert earlier
    else:
        fill(backend)
    if request.param == "in files":
        share = new_store().write([part(backend, 0, 1)]).restore(0)
        yield {name: found[0] for name, found in share.states(states).items()}
    else:
        yield {cut.descriptor.name: cut.groups[0] for cut in backend.cut()}
    backend.close()


@pytest.mark.parametrize("state", EXPECTED)
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_its_rows_come_at_most_so_many_at_a_time(groups: dict[str, KeyGroupContent], state: str, at_once: int) -> None:
    take, found = groups[state].rows(), list[tuple[Hashable, ...]]()
    while (rows := take(at_once)).keys:
        assert len(rows.keys) <= at_once
        found += zip(rows.keys, rows.entries or [None] * len(rows.keys), rows.values, strict=True)

    assert len(found) == 3
    assert set(found) == EXPECTED[state]
    assert not take(at_once).keys


@pytest.mark.parametrize("state", EXPECTED)
def test_what_is_loaded_is_a_dict_of_its_own_by_key(groups: dict[str, KeyGroupContent], state: str) -> None:
    loaded = groups[state].load()
    assert {key for key, *_ in EXPECTED[state]} == set(loaded)
    loaded.clear()

    assert len(groups[state].load()) > 0


def test_it_knows_the_types_of_its_keys(groups: dict[str, KeyGroupContent]) -> None:
    assert set(groups["value"].kinds("key")) == set(groups["map"].kinds("map_key")) == {str}


def test_only_what_is_in_memory_is_given_out_at_once(
    groups: dict[str, KeyGroupContent], request: pytest.FixtureRequest
) -> None:
    in_memory = groups["value"].in_memory()
    is_there = "dict" in request.node.callspec.params["groups"]
    assert in_memory == ({"a": 1, "b": 2, "c": 3} if is_there else None)


def test_only_files_have_rows_that_are_encoded_already(
    groups: dict[str, KeyGroupContent], request: pytest.FixtureRequest
) -> None:
    is_stored = request.node.callspec.params["groups"] == "in files"
    assert [isinstance(group.stored(), pa.Table) for group in groups.values()] == [is_stored] * 3
