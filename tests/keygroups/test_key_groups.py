from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import (
    MAX_KEY_GROUPS,
    KeyGroupRange,
    default_max_parallelism,
    key_group_of,
    key_groups_of,
    key_hasher,
    plan_rescale,
    range_of,
    subtask_of,
)
from keygroups.operator_state import broadcast, split, union

small_or_any_groups = st.one_of(st.integers(1, 200), st.integers(1, MAX_KEY_GROUPS))


@st.composite
def parallelisms(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Return a max parallelism and so many parallelisms that fit it."""
    groups = draw(small_or_any_groups)
    fitting = st.integers(1, min(groups, 500)) | st.just(groups).filter(lambda parallelism: parallelism <= 500)
    return (groups, *[draw(fitting) for _ in range(count)])


@given(parallelisms(1))
def test_the_ranges_of_all_subtasks_are_contiguous_and_cover_every_key_group(sizes: tuple[int, int]) -> None:
    groups, parallelism = sizes
    owned = [range_of(subtask, parallelism, groups) for subtask in range(parallelism)]

    assert owned[0].start == 0
    assert owned[-1].end == groups - 1
    assert all(after.start == before.end + 1 for before, after in pairwise(owned))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@given(parallelisms(1), st.data())
def test_the_owner_of_a_key_group_is_the_subtask_whose_range_holds_it(
    sizes: tuple[int, int], data: st.DataObject
) -> None:
    groups, parallelism = sizes
    group = data.draw(st.integers(0, groups - 1))

    assert group in range_of(subtask_of(group, parallelism, groups), parallelism, groups)


@given(st.integers(1, MAX_KEY_GROUPS))
def test_the_default_leaves_room_for_half_as_many_subtasks_again(parallelism: int) -> None:
    groups = default_max_parallelism(parallelism)

    assert groups & (groups - 1) == 0
    assert 128 <= groups <= MAX_KEY_GROUPS
    assert groups >= min(parallelism + parallelism // 2, MAX_KEY_GROUPS)


@given(parallelisms(2))
def test_the_moves_of_a_rescale_hold_every_key_group_once_and_lead_to_its_owner(sizes: tuple[int, int, int]) -> None:
    groups, old, new = sizes
    plan = plan_rescale(old, new, groups)
    ends = [-1, *[move.key_groups.end for move in plan.moves]]

    assert [move.key_groups.start for move in plan.moves] == [end + 1 for end in ends[:-1]]
    assert ends[-1] == groups - 1
    assert len(plan.moves) < old + new
    moved = 0
    for move in plan.moves:
        for group in {move.key_groups.start, move.key_groups.end}:
            assert subtask_of(group, old, groups) == move.source_subtask
            assert subtask_of(group, new, groups) == move.target_subtask
        moved += len(move.key_groups) * (move.source_subtask != move.target_subtask)
    assert plan.moved_key_groups == moved


ranges = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda ends: KeyGroupRange(min(ends), max(ends)))


@given(ranges, ranges)
def test_the_intersection_holds_the_key_groups_of_both(one: KeyGroupRange, other: KeyGroupRange) -> None:
    common = one.intersection(other)
    assert set(one) & set(other) == (set() if common is None else set(common))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
instants = st.datetimes(timezones=st.just(dt.UTC))
around_64_bits = st.integers(-3, 3).flatmap(lambda off: st.sampled_from([off, 2**63 + off, off - 2**63, 2**71 + off]))


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**digits - 1
    unscaled = st.integers(-limit, limit) | around_64_bits.filter(lambda number: abs(number) <= limit)
    return unscaled.map(lambda number: Decimal(f"{number}E-{scale}"))


KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), texts),
    "large_string": (pa.large_string(), texts),
    "binary": (pa.binary(), st.binary(max_size=70)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "timestamp with zone": (pa.timestamp("us", "UTC"), instants),
    "decimal32": (pa.decimal32(9, 2), decimals(9, 2)),
    "decimal64": (pa.decimal64(18, 18), decimals(18, 18)),
    "decimal128": (pa.decimal128(38, 2), decimals(38, 2)),
    "decimal256": (pa.decimal256(76, 0), decimals(38, 0)),
}
XXHASH64 = sorted(KEYS)
FLINK = ["bool", "float64", "int64", "large_string", "string", "uint32", "uint64"]
CASES = [("xxhash64", name) for name in XXHASH64] + [("flink", name) for name in FLINK]


@pytest.mark.parametrize(("hash_name", "name"), CASES, ids=" of ".join)
@given(data=st.data(), groups=small_or_any_groups)
def test_many_keys_have_the_groups_that_each_has(data: st.DataObject, groups: int, hash_name: str, name: str) -> None:
    arrow_type, strategy = KEYS[name]
    keys = data.draw(st.lists(strategy, max_size=20))
    expected = [key_group_of(key, groups, hash_name) for key in keys]
    array = pa.array(keys, arrow_type)
    cut = data.draw(st.integers(0, len(keys)))

    assert key_groups_of(array, groups, hash_name).tolist() == expected
    assert key_groups_of(keys, groups, hash_name).tolist() == expected
    assert key_groups_of(array[cut:], groups, hash_name).tolist() == expected[cut:]
    assert key_groups_of(pa.chunked_array([array[:cut], array[cut:]]), groups, hash_name).tolist() == expected


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), small_or_any_groups)
def test_an_int32_of_numpy_or_arrow_is_an_integer_of_flink(keys: list[int], groups: int) -> None:
    integers = np.array(keys, np.int32)
    expected = [key_group_of(key, groups, "flink") for key in integers]

    assert key_groups_of(integers, groups, "flink").tolist() == expected
    assert key_groups_of(pa.array(keys, pa.int32()), groups, "flink").tolist() == expected


@pytest.mark.parametrize(("hash_name", "names"), [("xxhash64", XXHASH64), ("flink", FLINK)])
@given(data=st.data(), groups=small_or_any_groups)
def test_several_key_columns_have_the_groups_that_each_row_has(
    data: st.DataObject, groups: int, hash_name: str, names: list[str]
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*[KEYS[name][1] for name in chosen]), min_size=1, max_size=20))
    columns = [
        pa.array(list(column), KEYS[name][0]) for name, column in zip(chosen, zip(*rows, strict=True), strict=True)
    ]
    struct = pa.StructArray.from_arrays(columns, [f"c{index}" for index in range(len(chosen))])
    expected = [key_group_of(row, groups, hash_name) for row in rows]
    cut = data.draw(st.integers(0, len(rows)))

    assert key_groups_of(struct, groups, hash_name).tolist() == expected
    assert key_groups_of(rows, groups, hash_name).tolist() == expected
    assert key_groups_of(struct[cut:], groups, hash_name).tolist() == expected[cut:]


@given(st.one_of(*[strategy for _, strategy in KEYS.values()]), small_or_any_groups)
def test_one_key_column_is_the_key_itself(key: object, groups: int) -> None:
    assert key_group_of((key,), groups) == key_group_of(key, groups) == key_hasher()(key) % groups
    assert -(2**63) <= key_hasher()(key) < 2**63


@given(st.floats() | texts | st.booleans() | st.integers(-(2**63), 2**63 - 1))
def test_the_hash_of_flink_is_never_negative(key: object) -> None:
    assert 0 <= key_hasher("flink")(key) < 2**31


old_lists = st.lists(st.lists(st.integers(), max_size=9), min_size=1, max_size=9)


def _flat(lists: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


@given(st.lists(old_lists, max_size=9), st.integers(1, 9))
def test_split_keeps_every_item_once_and_spreads_them_evenly(states: list[list[list[int]]], parallelism: int) -> None:
    dealt = split({str(name): old for name, old in enumerate(states)}, parallelism)
    changed = [name for name, old in enumerate(states) if len(old) != parallelism]

    for name, old in enumerate(states):
        assert len(dealt[str(name)]) == parallelism
        assert sorted(_flat(dealt[str(name)])) == sorted(_flat(old))
        if name not in changed:
            assert dealt[str(name)] == old
    totals = [sum(len(dealt[str(name)][subtask]) for name in changed) for subtask in range(parallelism)]
    assert max(totals) - min(totals) <= 1


@given(old_lists, st.integers(1, 9))
def test_union_and_broadcast_give_every_subtask_its_copy(old: list[list[int]], parallelism: int) -> None:
    assert union(old, parallelism) == [_flat(old)] * parallelism
    assert broadcast(old, parallelism) == [old[subtask % len(old)] for subtask in range(parallelism)]
