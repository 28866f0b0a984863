"""The comparison of versions, and their history."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import ValueState
from keygroups.values import Misfit, array_of, values_of
from snapshots import IncompatibleSnapshot, Snapshot, SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.inspection import compare, history
from snapshots.inspection.difference import equal_rows
from snapshots.testing.wrappers import CountingFolder
from tests.doors.values import PLAIN, near
from tests.snapshot_kit import COUNT, PROFILE, G, new_store, parts, record, words
from tests.snapshots.inspection.kit import NAN


def test_history_says_what_each_version_added(versions: list[Snapshot]) -> None:
    store = SnapshotStore.on(versions[0].folder)
    store.pin(2)
    store.repartition(5)

    found = history(store)

    assert [(one.version, one.operation, one.pinned) for one in found] == [
        (4, "repartition", False),
        (3, "write", False),
        (2, "write", True),
        (1, "write", False),
    ]
    assert found[0].bytes_added == 0
    assert found[-1].bytes_added == found[-1].bytes == versions[0].manifest.bytes_total
    assert [one.version for one in history(store, 2)] == [4, 3]


def content_by_row(snapshot: Snapshot, name: str) -> dict[Any, Any]:
    table = snapshot.to_arrow(name)
    entry = next((column for column in ("position", "map_key") if column in table.schema.names), "key_group")
    index = zip(*(table.column(column).to_pylist() for column in ("key_group", "key", entry)), strict=True)
    return dict(zip(index, table.column("value").to_pylist(), strict=True))


def test_a_comparison_finds_what_two_dicts_find(versions: list[Snapshot]) -> None:
    for old, new in [(0, 1), (0, 2), (2, 0), (1, 1)]:
        found = compare(versions[old], versions[new], rows=10_000)
        named = Counter((row.state, row.change) for row in found.rows)
        for state in found.states:
            before, after = (content_by_row(versions[at], state.name) for at in (old, new))
            assert state.added == len(after.keys() - before.keys()) == named[state.name, "added"]
            assert state.removed == len(before.keys() - after.keys()) == named[state.name, "removed"]
            both = before.keys() & after.keys()
            assert state.changed == sum(before[one] != after[one] for one in both) == named[state.name, "changed"]
            assert state.compared + state.identical == G
        assert (old == new) == all(state.compared == 0 for state in found.states)


def test_key_groups_in_the_same_files_are_not_read() -> None:
    folder = CountingFolder(open_folder("memory://compared/enrich", None))
    store = SnapshotStore.on(folder)
    old = store.write(parts({"count": dict.fromkeys(words(300), 1)}))
    new = store.repartition(7)
    before = folder.bytes_read

    found = compare(old, new)

    assert folder.bytes_read == before
    assert [(state.compared, state.identical) for state in found.states] == [(0, G), (0, G)]


def test_a_state_that_only_one_version_has_is_all_added_or_removed() -> None:
    store = new_store()
    old = store.write(parts({"count": {"a": 1, "b": 2}}, [COUNT]))
    new = store.write(parts({"profile": {"a": 1}}, [PROFILE]))

    found = {state.name: state for state in compare(old, new).states}

    assert (found["count"].removed, found["count"].in_new) == (2, False)
    assert (found["profile"].added, found["profile"].in_old) == (1, False)


def test_a_widened_type_changes_nothing() -> None:
    store = new_store()
    old = store.write(parts({"n": {"a": 1, "b": 2}}, [ValueState("n", pa.int32())]))
    new = store.write(parts({"n": {"a": 1, "b": 3}}, [ValueState("n", pa.int64())]))

    (state,) = compare(old, new).states

    assert (state.added, state.removed, state.changed) == (0, 0, 1)


def test_a_value_of_another_kind_is_another_value() -> None:
    store = new_store()
    old = store.write(parts({"n": {"a": 1}}, [ValueState("n", pa.int32())]))
    new = store.write(parts({"n": {"a": "1"}}, [ValueState("n", pa.string())]))

    (state,) = compare(old, new).states

    assert (state.added, state.removed, state.changed) == (0, 0, 1)


def test_in_flight_records_are_followed_by_their_id() -> None:
    store = new_store()
    stays, returns, goes, comes = (record(name, n, channel=0) for n, name in enumerate("abcd"))
    old = store.write(parts({}, in_flight=[stays, returns, goes]))
    new = store.write(parts({}, in_flight=[stays, returns._replace(completed=True, outputs=(1,)), comes]))

    found = compare(old, new).in_flight

    assert (found.added, found.gone, found.still_pending, found.completed_since) == (1, 1, 1, 1)


def test_versions_with_other_key_groups_are_not_compared() -> None:
    store = new_store()
    old = store.write(parts({"count": {"a": 1}}))

    with pytest.raises(IncompatibleSnapshot, match="max_parallelism"):
        compare(old, store.repartition(2, max_parallelism=32, rewrite=True))


@pytest.mark.parametrize(
    ("type_", "old", "new", "expected"),
    [
        (pa.float64(), [1.0, NAN, None, NAN, None], [1.0, NAN, None, 1.0, 0.0], [True, True, True, False, False]),
        (pa.list_(pa.float64()), [[NAN], [1.0], None, []], [[NAN], [2.0], None, None], [True, False, True, False]),
        (pa.struct({"a": pa.int8()}), [{"a": 1}, {"a": None}], [{"a": 1}, {"a": 1}], [True, False]),
        (pa.decimal128(9, 2), [Decimal("1.50")], [Decimal("1.5")], [True]),
    ],
    ids=["floats", "lists", "structs", "decimals"],
)
def test_values_are_equal_if_they_are_stored_alike(
    type_: pa.DataType, old: list[Any], new: list[Any], expected: list[bool]
) -> None:
    columns_ = (pa.chunked_array([pa.array(values, type_)]) for values in (old, new))

    assert equal_rows(*columns_).tolist() == expected


@given(st.sampled_from(sorted(PLAIN, key=str)), st.data())
def test_rows_are_equal_if_their_values_have_one_text(type_: pa.DataType, data: st.DataObject) -> None:
    plain = PLAIN[type_]
    fitting = near(plain).map(lambda value: value if fits(type_, value) else plain[0])
    old = data.draw(st.lists(fitting, min_size=1, max_size=4), "old")
    new = [data.draw(st.just(value) | fitting, "new") for value in old]
    columns_ = [pa.chunked_array([array_of(values, type_)]) for values in (old, new)]

    texts = [[*map(repr, values_of(column))] for column in columns_]
    assert equal_rows(*columns_).tolist() == [one == other for one, other in zip(*texts, strict=True)]


def fits(type_: pa.DataType, value: Any) -> bool:
    try:
        array_of([value], type_)
    except Misfit:
        return False
    return True


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((pa.int64(), [2**53 + 1, 1, None]), (pa.float64(), [2.0**53, 1.0, None]), [False, True, True]),
        ((pa.float32(), [0.5, NAN]), (pa.int64(), [1, 0]), [False, False]),
        ((pa.decimal128(5, 2), [Decimal("1.50")]), (pa.float64(), [1.5]), [True]),
        ((pa.int64(), [1]), (pa.string(), ["1"]), [False]),
    ],
    ids=["integers beyond floats", "floats", "decimals", "text"],
)
def test_numbers_of_two_types_are_equal_by_their_value(old: Any, new: Any, expected: list[bool]) -> None:
    columns_ = (pa.chunked_array([pa.array(values, type_)]) for type_, values in (old, new))

    assert equal_rows(*columns_).tolist() == expected
