"""Writes while a cut is held: nothing is copied, no cut changes, and what was written is folded in the end."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import pytest

from keygroups import KeyGroupRange, ValueState
from keygroups.state import MISSING, LayeredGroup, MemoryBackend, StateCut
from keygroups.state.layered import FOLDED_AT_ONCE

STATE = ValueState("count")
OWNED = KeyGroupRange(0, 1)


def backend_of(content: dict[Hashable, object]) -> MemoryBackend:
    backend = MemoryBackend([STATE], OWNED)
    for key, value in content.items():
        backend.tables["count"].put(0, key, value)
    return backend


def held(cut: StateCut) -> dict[Hashable, object]:
    group: Any = cut.groups.get(0, {})
    return group if isinstance(group, dict) else group.load()  # type: ignore[no-any-return]


def test_a_write_while_a_cut_is_held_leaves_its_dict_to_the_cut() -> None:
    backend = backend_of(dict.fromkeys(range(1000), 0))
    table = backend.tables["count"]
    (cut,) = backend.cut()
    for number in range(10):
        table.put(0, number, 1)
    table.put(0, 10, MISSING)

    assert held(cut) == dict.fromkeys(range(1000), 0)
    assert [table.get(0, number) for number in (0, 9, 10, 11)] == [1, 1, MISSING, 0]


def test_without_the_cut_a_few_accesses_fold_what_was_written_into_the_same_dict() -> None:
    backend = backend_of(dict.fromkeys(range(1000), 0))
    table = backend.tables["count"]
    (cut,) = backend.cut()
    place = id(cut.groups[0])
    written = 5 * FOLDED_AT_ONCE
    for number in range(written):
        table.put(0, number, 1)
    table.put(0, 999, MISSING)
    for _ in range(written):
        table.get(0, 0)
    (second,) = backend.cut()
    assert isinstance(second.groups[0], LayeredGroup), "nothing is folded while the first cut is held"
    del cut, second
    for _ in range(written // FOLDED_AT_ONCE + 1):
        assert table.get(0, 1) == 1
    (third,) = backend.cut()

    assert id(third.groups[0]) == place
    assert held(third) == {number: int(number < written) for number in range(999)}


def test_after_a_cut_that_is_gone_writes_go_where_they_went_before() -> None:
    backend = backend_of({"a": 1})
    (cut,) = backend.cut()
    place = id(cut.groups[0])
    del cut
    backend.tables["count"].put(0, "a", 2)
    (second,) = backend.cut()

    assert id(second.groups[0]) == place
    assert held(second) == {"a": 2}


def test_whoever_holds_only_a_group_of_a_cut_sees_no_change_either() -> None:
    backend = backend_of({"a": 1})
    (cut,) = backend.cut()
    values = iter(held(cut).values())
    del cut
    backend.tables["count"].put(0, "a", 2)

    assert list(values) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_cuts_and_the_table_are_what_plain_dicts_would_be(seed: int) -> None:
    draw = random.Random(seed)
    backend = backend_of({})
    table, model = backend.tables["count"], dict[Hashable, object]()
    cuts: list[tuple[StateCut, dict[Hashable, object]]] = []
    for step in range(2000):
        key = draw.randrange(60)
        match draw.choices(("put", "remove", "get", "cut", "drop"), (40, 15, 40, 2, 3))[0]:
            case "put":
                table.put(0, key, step)
                model[key] = step
            case "remove":
                table.put(0, key, MISSING)
                model.pop(key, None)
            case "get":
                assert table.get(0, key) == model.get(key, MISSING)
            case "cut":
                cuts.append((backend.cut()[0], model.copy()))
            case "drop" if cuts:
                cuts.pop(draw.randrange(len(cuts)))
        for cut, expected in cuts if step % 50 == 0 else ():
            assert held(cut) == expected
    (last,) = backend.cut()
    assert held(last) == model
    group: Any = last.groups.get(0, {})
    assert len(group) == len(model)
