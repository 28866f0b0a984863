"""Writes while a cut is held: nothing is copied, no cut changes, and what was written is folded in the end."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from keygroups import KeyGroupRange, ListState, ValueState
from keygroups.state import MISSING, KeyGroupContent, MemoryBackend, MemoryGroup, SharedList, StateCut
from keygroups.state.memory.layered import FOLDED_AT_ONCE

STATE = ValueState("count")
LIST = ListState("list")
OWNED = KeyGroupRange(0, 1)


def backend_of(content: dict[Hashable, object]) -> MemoryBackend:
    backend = MemoryBackend([STATE], OWNED)
    for key, value in content.items():
        backend.tables["count"].put(0, key, value)
    return backend


def held(cut: StateCut) -> dict[Hashable, object]:
    return cut.groups[0].load() if 0 in cut.groups else {}


def files_of(cut: StateCut) -> int:
    """Return which dict a cut has; it is the table's own if nothing is in layers."""
    return id(cut.groups[0].in_memory())


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
    place = files_of(cut)
    written = 5 * FOLDED_AT_ONCE
    for number in range(written):
        table.put(0, number, 1)
    table.put(0, 999, MISSING)
    for _ in range(written):
        table.get(0, 0)
    (second,) = backend.cut()
    assert files_of(second) != place, "nothing is folded while the first cut is held"
    del cut, second
    for _ in range(written // FOLDED_AT_ONCE + 1):
        assert table.get(0, 1) == 1
    (third,) = backend.cut()

    assert files_of(third) == place
    assert held(third) == {number: int(number < written) for number in range(999)}


def test_after_a_cut_that_is_gone_writes_go_where_they_went_before() -> None:
    backend = backend_of({"a": 1})
    (cut,) = backend.cut()
    place = files_of(cut)
    del cut
    backend.tables["count"].put(0, "a", 2)
    (second,) = backend.cut()

    assert files_of(second) == place
    assert held(second) == {"a": 2}


def the_group(group: KeyGroupContent) -> Callable[[], list[object]]:
    return lambda: list(group.load().values())


def its_rows(group: KeyGroupContent) -> Callable[[], list[object]]:
    take = group.rows()
    return lambda: take(10).values


def its_changed_rows(group: KeyGroupContent) -> Callable[[], list[object]]:
    take = group.rows(["a"])
    return lambda: take(10).values


@pytest.mark.parametrize("part", [the_group, its_rows, its_changed_rows])
def test_whoever_has_only_a_part_of_a_cut_sees_no_change_either(
    part: Callable[[KeyGroupContent], Callable[[], list[object]]],
) -> None:
    backend = backend_of({"a": 1})
    (cut,) = backend.cut()
    values = part(cut.groups[0])
    del cut
    backend.tables["count"].put(0, "a", 2)

    assert values() == [1]


def test_the_rows_of_lists_hold_a_cut_too() -> None:
    backend = MemoryBackend([LIST], OWNED)
    table = backend.tables["list"]
    table.put_entries(0, "a", SharedList([1]), [0], replaced=True)
    (cut,) = backend.cut()
    take = cut.groups[0].rows()
    del cut
    table.put_entries(0, "a", SharedList([2, 3]), [0, 1], replaced=True)

    assert take(10) == (["a"], [0], [1])


def test_a_cut_that_nobody_ends_costs_what_is_written_beside_it_and_no_copy_at_later_cuts() -> None:
    backend = backend_of(dict.fromkeys(range(100), 0))
    table = backend.tables["count"]
    (forgotten,) = backend.cut()
    table.put(0, 0, 1)
    layered = table._layered[0]
    for number in range(2, 20):
        (cut,) = backend.cut()
        assert held(cut)[0] == number - 1
        del cut
        table.put(0, 0, number)

    assert table._layered[0] is layered
    assert layered.frozen()[1] == {0: 19}
    assert held(forgotten) == dict.fromkeys(range(100), 0)


def groups_in_memory() -> list[MemoryGroup]:
    return [one for one in gc.get_objects() if type(one) is MemoryGroup]


def test_memory_does_not_grow_with_the_cuts_that_have_been_held() -> None:
    of_others = groups_in_memory()  # of this process
    backend = backend_of(dict.fromkeys(range(100), 0))
    table = backend.tables["count"]
    cuts = []
    for number in range(50):
        table.put(0, 0, number)
        cuts.append(backend.cut()[0])
    assert [held(cut)[0] for cut in cuts] == list(range(50))
    cuts.clear()
    table.put(0, 0, 50)
    backend.cut()
    gc.collect()

    assert [one for one in groups_in_memory() if not any(one is other for other in of_others)] == []
    assert len(backend._holds._holds) == 1


def test_what_is_restored_in_memory_is_never_changed() -> None:
    kept: dict[Hashable, object] = {"a": 1}
    backend = MemoryBackend([STATE], OWNED, {"count": {0: MemoryGroup(kept, "value")}}, since="id")
    table = backend.tables["count"]
    for number in range(5):
        table.put(0, "a", number)
        table.get(0, "a")
        backend.cut()

    assert (kept, table.get(0, "a")) == ({"a": 1}, 4)


@pytest.mark.parametrize(("keys", "is_whole"), [(300, True), (3000, False)])
def test_a_group_of_lists_that_has_mostly_changed_beside_a_held_cut_is_written_whole(keys: int, is_whole: bool) -> None:
    backend = MemoryBackend([LIST], OWNED)
    table = backend.tables["list"]
    for key in range(keys):
        table.put_entries(0, key, SharedList([0]), [0], replaced=True)
    (held_cut,) = backend.cut()
    for key in range(300):
        table.put_entries(0, key, SharedList(range(4)), range(4), replaced=True)
    (cut,) = backend.cut()

    assert cut.changed is not None
    assert (cut.changed[0] is None) == is_whole
    assert [len(group) for group in (held(held_cut), held(cut))] == [keys, keys]
    assert [list(held(one)[0]) for one in (held_cut, cut)] == [[0], [0, 1, 2, 3]]  # type: ignore[call-overload]


def test_the_changed_rows_of_a_layered_group_are_those_of_the_newer_dict() -> None:
    backend = backend_of({"a": 1, "b": 2, "c": 3})
    (held_cut,) = backend.cut()
    backend.tables["count"].put(0, "a", MISSING)
    backend.tables["count"].put(0, "b", 4)
    (cut,) = backend.cut()

    assert cut.groups[0].rows(["a", "b", "c"])(10).values == [MISSING, 4, 3]
    assert held(held_cut) == {"a": 1, "b": 2, "c": 3}


def test_a_group_that_has_lost_most_of_its_keys_is_written_whole() -> None:
    backend = backend_of(dict.fromkeys(range(3000), 0))
    backend.cut()
    for number in range(2000):
        backend.tables["count"].put(0, number, MISSING)
    (cut,) = backend.cut()

    assert cut.changed is not None
    assert cut.changed[0] is None


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
    group: Any = last.groups.get(0)
    assert (group is None) == (not model)
