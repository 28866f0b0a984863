from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from keygroups import (
    AggregatingState,
    ConfigError,
    ListState,
    MapState,
    NullKey,
    ReducingState,
    UnsupportedKey,
    ValueState,
    key_group_of,
    range_of,
)
from keygroups.errors import UnstorableValue
from keygroups.state import SharedList, identity_of, original_of
from snapshots import (
    CommitConflict,
    DuplicateKey,
    Snapshot,
    SnapshotCorrupted,
    SnapshotExists,
    SnapshotNotFound,
    SnapshotStore,
    WriterFenced,
    buckets,
    files,
    rows,
)
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, loaded, new_store, part, parts, record, restored, words

CLICKS, PRICES = ListState("clicks", pa.string()), MapState("prices", pa.float64())
TOTAL = ReducingState("total", lambda one, other: one + other, pa.int64())
MEAN = AggregatingState("mean", lambda: (0, 0), lambda a, v: (a[0] + v, a[1] + 1), lambda a: a[0] / a[1])


def plain_content(snapshot: Snapshot, descriptor: Any, parallelism: int | None = None) -> dict[Any, Any]:
    """What the subtasks of an operator restore of one state, as Python values by the identity of the key."""
    content: dict[Any, Any] = {}
    for subtask in range(parallelism or snapshot.parallelism):
        restore = snapshot.restore(subtask, parallelism)
        declared = [one for one in (COUNT, PROFILE, CLICKS, PRICES, TOTAL, MEAN) if one.name != descriptor.name]
        declared = [one for one in declared if one.name in snapshot.state_names]
        for key_group, group in restore.states([descriptor, *declared])[descriptor.name].items():
            for key, value in loaded(group).items():
                assert key_group == key_group_of(key, snapshot.max_parallelism, snapshot.manifest.hash)
                content[identity_of(key)] = plain(value)
    return content


def plain(value: Any) -> Any:
    match value:
        case SharedList():
            return list(value)
        case Map():
            return {original_of(key): item for key, item in value.items()}
        case _:
            return value


KEYS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
)


@given(st.dictionaries(KEYS.map(identity_of), st.integers(0, 9) | st.none()), st.sampled_from([1, 3, 16]))
def test_a_bootstrapped_state_is_restored_as_it_was_given(content: dict[Any, Any], parallelism: int) -> None:
    pairs = [(original_of(identity), value) for identity, value in content.items()]
    lists = [(key, [value, key]) for key, value in pairs]
    maps = [(key, {"value": value, 7.5: value, key: 0}) for key, value in pairs]
    store = new_store()

    snapshot = store.bootstrap(
        [(PROFILE, iter(pairs)), (ListState("lists"), lists), (MapState("maps"), maps)],
        parallelism=parallelism,
        max_parallelism=G,
    )

    assert store.verify().ok
    assert snapshot.manifest.operation == "bootstrap"
    found = {name: {} for name in snapshot.state_names}
    for subtask in range(parallelism):
        states = snapshot.restore(subtask).states([PROFILE, ListState("lists"), MapState("maps")])
        for name, groups in states.items():
            for group in groups.values():
                found[name] |= {identity_of(key): plain(value) for key, value in loaded(group).items()}
    assert found["profile"] == content
    assert {key: value[0] for key, value in found["lists"].items()} == content
    assert {key: value["value"] for key, value in found["maps"].items()} == content


def test_all_kinds_of_state_can_be_bootstrapped() -> None:
    snapshot = new_store().bootstrap(
        {
            COUNT: [("a", 1), ("b", None)],
            CLICKS: [("a", ["x", "y"]), ("b", [])],
            PRICES: [("a", {"p": 1.0, 2: 2.0})],
            TOTAL: [("a", 10)],
            MEAN: [("a", (3, 2))],
        },
        parallelism=2,
        max_parallelism=G,
        source_position={"batch_id": 4},
    )

    assert plain_content(snapshot, COUNT) == {"a": 1, "b": None}
    assert plain_content(snapshot, CLICKS) == {"a": ["x", "y"]}
    assert plain_content(snapshot, PRICES) == {"a": {"p": 1.0, 2: 2.0}}
    assert plain_content(snapshot, TOTAL) == {"a": 10}
    assert plain_content(snapshot, MEAN) == {"a": (3, 2)}
    assert snapshot.source_position == {"batch_id": 4}
    assert snapshot.restore(0).queue().elements == ()


def test_what_to_arrow_returns_can_be_bootstrapped_with_other_key_groups() -> None:
    keys: list[Any] = ["a", 7, (1, "x"), 1.5, *words(50)]
    first = new_store().bootstrap(
        {PROFILE: [(key, {"n": n}) for n, key in enumerate(keys)], PRICES: [(key, {key: 1.0}) for key in keys]},
        parallelism=2,
        max_parallelism=G,
    )

    again = new_store().bootstrap(
        {state: first.to_reader(state.name) for state in (PROFILE, PRICES)}, parallelism=3, max_parallelism=64
    )

    for state in (PROFILE, PRICES):
        assert plain_content(again, state) == plain_content(first, state)


ARROW_KEYS = [
    (pa.array([1, 2], pa.int16()), [1, 2]),
    (pa.array([1, 2], pa.uint64()), [1, 2]),
    (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
    (pa.array([b"a", b"b"], pa.binary(1)), [b"a", b"b"]),
    (pa.array([-0.0, float("nan")], pa.float32()), [0.0, float("nan")]),
    (pa.array([True, False]), [True, False]),
    (pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2)]), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    (pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]), [(1, "x"), (2, "y")]),
]


# Flink's hash has no bytes and no dates.
HASHED = [("xxhash64", *case) for case in ARROW_KEYS]
HASHED += [("flink", *case) for case in ARROW_KEYS if not isinstance(case[1][0], bytes | dt.date)]


@pytest.mark.parametrize(("hash_name", "column", "keys"), HASHED, ids=lambda one: str(getattr(one, "type", one)))
def test_arrow_keys_are_found_under_the_python_keys_that_they_are(
    hash_name: str, column: pa.Array, keys: list[Any]
) -> None:
    table = pa.table({"key": column, "value": pa.array([1, 2], pa.int32())})

    snapshot = new_store().bootstrap({COUNT: table}, parallelism=2, max_parallelism=G, hash=hash_name)

    assert plain_content(snapshot, COUNT) == {identity_of(keys[0]): 1, identity_of(keys[1]): 2}


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pa.array([1, 2], pa.int8()), pa.int64()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string()),
        (pa.array([None, None]), pa.string()),
        (pa.array([["a"], []], pa.large_list(pa.large_string())), pa.list_(pa.string())),
        (pa.array([{"a": 1}, None], pa.struct({"a": pa.int8()})), pa.struct({"a": pa.int64()})),
    ],
    ids=str,
)
def test_arrow_values_are_cast_where_that_loses_nothing(given: pa.Array, declared: pa.DataType) -> None:
    table = pa.table({"key": ["a", "b"], "value": given})
    snapshot = new_store().bootstrap({ValueState("s", declared): table}, parallelism=1, max_parallelism=G)

    assert dict(zip(*(snapshot.to_arrow("s").column(n).to_pylist() for n in ("key", "value")), strict=True)) == {
        "a": given[0].as_py(),
        "b": given[1].as_py(),
    }


def arrow(**columns: Any) -> pa.Table:
    return pa.table(columns)


NUMBERS = ValueState("n", pa.int32())


@pytest.mark.parametrize(
    ("state", "given", "error", "message"),
    [
        (COUNT, [("a", 1), ("b", 1), ("a", 2)], DuplicateKey, "key 'a' twice"),
        (COUNT, [(1.0, 1), (True, 1), (1, 1), (1.0, 1)], DuplicateKey, "key 1.0 twice"),
        (COUNT, [(float("nan"), 1), (float("nan"), 1)], DuplicateKey, "key nan twice"),
        (PRICES, arrow(key=["a", "a"], map_key=["p", "p"], value=[1.0, 2.0]), DuplicateKey, "entry 'p' of key 'a'"),
        (CLICKS, arrow(key=["a", "a"], position=[0, 0], value=["x", "y"]), DuplicateKey, "entry 0 of key 'a'"),
        (CLICKS, arrow(key=["a", "a"], position=[0, 2], value=["x", "y"]), ConfigError, "without a gap"),
        (CLICKS, arrow(key=["a", "a"], position=[-1, 1], value=["x", "y"]), ConfigError, "without a gap"),
        (CLICKS, arrow(key=["a"], value=["x"]), ConfigError, "position is not there"),
        (COUNT, arrow(key=["a"], value=[1.5]), ConfigError, "are int64"),
        (NUMBERS, arrow(key=["a"], value=[2**40]), ConfigError, "are int32"),
        (NUMBERS, [("a", 2**40)], UnstorableValue, "key 'a'"),
        (CLICKS, [("a", "text")], UnstorableValue, "instead of a list"),
        (PRICES, [("a", 1)], UnstorableValue, "instead of a map"),
        (COUNT, arrow(key=["a", None], value=[1, 2]), NullKey, "key of state 'count'"),
        (COUNT, [(None, 1)], NullKey, "null key"),
        (COUNT, [({"a"}, 1)], UnsupportedKey, "set"),
        (COUNT, [("a", 1, 2)], ConfigError, "pairs"),
        (PROFILE, [("a", object())], UnstorableValue, "object"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_committed(
    state: Any, given: Any, error: type[Exception], message: str
) -> None:
    store = new_store()

    with pytest.raises(error, match=message):
        store.bootstrap({state: given}, parallelism=2, max_parallelism=G)

    assert store.latest() is None


def test_a_second_bootstrap_is_refused() -> None:
    store = new_store()
    store.bootstrap({COUNT: [("a", 1)]}, parallelism=1)

    with pytest.raises(SnapshotExists) as caught:
        store.bootstrap({COUNT: [("a", 1)]}, parallelism=1)

    assert caught.value.version == 1


def test_two_states_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two states have this name"):
        new_store().bootstrap([(COUNT, []), (COUNT, [])], parallelism=1)


def test_many_rows_pass_through_buckets_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_ROWS", 50)
    monkeypatch.setattr(buckets, "FLUSH_BYTES", 2000)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 500)
    monkeypatch.setattr(files, "FILE_BYTES", 500)
    monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 50)
    draw = random.Random(1)
    # A thousand texts first, then numbers: the keys of one state are encoded in two ways before they are in one.
    pairs: list[tuple[Any, int]] = [*((word, 1) for word in words(1000)), *((n, 2) for n in range(500))]

    def shuffled() -> Iterator[tuple[Any, int]]:
        yield from draw.sample(pairs[:1000], 1000)
        yield from draw.sample(pairs[1000:], 500)

    store = new_store()
    snapshot = store.bootstrap({COUNT: shuffled()}, parallelism=4, max_parallelism=G)

    assert plain_content(snapshot, COUNT) == dict(pairs)
    assert len(snapshot.manifest.files) > 4
    assert store.verify().ok


def bootstrapped() -> tuple[SnapshotStore, Snapshot]:
    store = new_store()
    counts, profiles = [(word, n) for n, word in enumerate(words(30))], [("a", {"n": 1}), ((1, 2), None)]
    snapshot = store.bootstrap(
        {COUNT: counts, PROFILE: profiles, CLICKS: [("a", ["x", "y"])], PRICES: [("a", {"p": 1.0})]},
        parallelism=2,
        max_parallelism=G,
    )
    return store, snapshot


def doubled(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("value")
    return table.set_column(index, "value", pc.multiply(table.column("value"), 2))


def test_an_edit_is_a_commit_with_a_parent() -> None:
    store, before = bootstrapped()

    after = store.edit().transform("count", doubled).rename("prices", "costs").drop("profile").commit()

    assert (after.version, after.manifest.parent_id) == (2, before.manifest.snapshot_id)
    assert after.manifest.operation == "edit"
    assert after.state_names == ("count", "clicks", "costs")
    assert after.to_arrow("costs").equals(before.to_arrow("prices"))
    table = after.to_arrow("count")
    assert dict(zip(*(table.column(name).to_pylist() for name in ("key", "value")), strict=True)) == {
        word: 2 * n for n, word in enumerate(words(30))
    }
    assert store.verify().ok
    assert before.to_arrow("profile").num_rows == 2  # what was before is as it was


def test_a_rename_writes_no_file() -> None:
    store, before = bootstrapped()

    after = store.edit().rename("count", "number").commit()

    assert {file.path for file in after.manifest.files} == {file.path for file in before.manifest.files}
    assert plain_content(after, ValueState("number", pa.int64())) == plain_content(before, COUNT)


def test_states_can_swap_their_names() -> None:
    store, before = bootstrapped()

    after = store.edit().rename("count", "other").rename("profile", "count").rename("other", "profile").commit()

    assert after.to_arrow("profile").equals(before.to_arrow("count"))
    assert after.to_arrow("count").equals(before.to_arrow("profile"))


def test_a_state_is_put_in_the_place_of_another_or_added() -> None:
    store, before = bootstrapped()
    added = ListState("added")

    after = store.edit().put(COUNT, [("z", 1)]).put(added, [("a", [1, "two"])]).commit()

    rows_added = after.to_arrow("added")
    assert rows_added.column("position").to_pylist() == [0, 1]
    assert after.to_arrow("count").to_pydict()["key"] == ["z"]
    assert after.manifest.state("count") == before.manifest.state("count")
    assert "entries" in after.manifest.required_features


def test_items_are_mapped_in_python_whatever_the_kind() -> None:
    store, _ = bootstrapped()
    editor = store.edit()
    editor.map_items("profile", lambda key, value: [(key, (value, 1))] if key == "a" else [])
    editor.map_items("clicks", lambda key, value: [(key, [*value, "z"]), ("b", value)])
    editor.map_items("prices", lambda key, value: [(key, value | {"q": 2.0})])
    after = editor.commit()

    assert plain_content(after, PROFILE) == {"a": ({"n": 1}, 1)}
    assert plain_content(after, CLICKS) == {"a": ["x", "y", "z"], "b": ["x", "y"]}
    assert plain_content(after, PRICES) == {"a": {"p": 1.0, "q": 2.0}}


def test_a_transformed_key_moves_to_its_key_group() -> None:
    store, _ = bootstrapped()

    def renamed(table: pa.Table) -> pa.Table:
        return table.set_column(1, "key", pc.binary_join_element_wise(table.column("key"), "new", "-"))

    after = store.edit().transform("count", renamed).commit()

    assert plain_content(after, COUNT) == {f"{word}-new": n for n, word in enumerate(words(30))}


def test_a_state_may_change_its_type_and_its_kind() -> None:
    store, before = bootstrapped()
    number, listed = ValueState("count", pa.float64()), ListState("profile", pa.int64())

    after = (
        store.edit()
        .transform(number, lambda table: table.set_column(2, "value", table.column("value").cast(pa.float64())))
        .map_items(listed, lambda key, value: [(key, [1, 2])])
        .commit()
    )

    assert after.to_arrow("count").schema.field("value").type == pa.float64()
    assert after.to_arrow("profile").num_rows == 4
    ids = [state.field_ids for snapshot in (before, after) for state in [snapshot.manifest.state("profile")] if state]
    assert ids[1]["position"] not in ids[0].values()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda editor: editor.drop("absent"), "has the states"),
        (lambda editor: editor.rename("absent", "x"), "has the states"),
        (lambda editor: editor.rename("count", "profile"), "drop or rename it first"),
        (lambda editor: editor.rename("count", "a/b"), "letters, digits"),
        (lambda editor: editor.transform("absent", doubled), "has the states"),
        (lambda editor: editor.transform("count", lambda table: table.drop_columns("value")), "value is not there"),
    ],
    ids=["drop", "rename what", "rename to what", "rename to a path", "transform what", "transform to what"],
)
def test_an_edit_that_cannot_be_is_refused(edit: Any, message: str) -> None:
    store, _ = bootstrapped()

    with pytest.raises(ConfigError, match=message):
        edit(store.edit())

    assert store.versions() == [1]


def test_an_edit_that_makes_a_key_twice_is_refused() -> None:
    store, _ = bootstrapped()

    with pytest.raises(DuplicateKey, match="key 'same' twice"):
        store.edit().map_items("count", lambda _, value: [("same", value)])


def test_there_must_be_a_snapshot_to_edit() -> None:
    with pytest.raises(SnapshotNotFound):
        new_store().edit()


def test_an_edit_loses_against_a_commit_in_between() -> None:
    store, _ = bootstrapped()
    editor = store.edit().drop("profile")
    store.repartition(3)

    with pytest.raises(CommitConflict):
        editor.commit()


def test_a_claimed_writer_is_fenced_by_an_edit() -> None:
    store = new_store()
    store.write(parts({"count": {"a": 1}}))
    claim = store.claim()
    store.edit().drop("profile").commit()

    with pytest.raises(WriterFenced):
        claim.write(parts({"count": {"a": 2}}))


def test_an_edit_folds_deltas_and_operators_write_deltas_on_it() -> None:
    store = new_store()
    first = store.write(parts({"count": dict.fromkeys(words(100), 1)}, in_flight=[record("a", 0)]))
    backends = [restored(first, index) for index in range(2)]
    backends[key_group_of("key 1", G) * 2 // G].tables["count"].put(key_group_of("key 1", G), "key 1", 5)
    with_delta = store.write([part(backend, index, 2) for index, backend in enumerate(backends)])
    assert with_delta.manifest.files_of("delta")

    edited = store.edit().transform("count", doubled).commit()
    assert not edited.manifest.files_of("delta", state="count")
    # What runs on writes its own state whole, because it is relative to what is no more ...
    ran_on = store.write([part(backend, index, 2) for index, backend in enumerate(backends)])
    assert not ran_on.manifest.files_of("delta", state="count")
    # ... and what restores the edit writes deltas on it.
    edited = store.edit().transform("count", doubled).commit()
    backends = [restored(edited, index) for index in range(2)]
    backends[key_group_of("key 2", G) * 2 // G].tables["count"].put(key_group_of("key 2", G), "key 2", 7)
    after = store.write([part(backend, index, 2) for index, backend in enumerate(backends)])
    assert after.manifest.files_of("delta", state="count")
    assert content_of(after)["count"] == dict.fromkeys(words(100), 2) | {"key 1": 10, "key 2": 7}
    assert store.verify().ok


def test_deltas_of_a_renamed_state_go_on() -> None:
    store = new_store()
    first = store.write(parts({"count": dict.fromkeys(words(100), 1)}, [COUNT]))
    other = ValueState("other", pa.int64())
    renamed = store.edit().rename("count", "other").commit()
    assert renamed.parallelism == first.parallelism
    backends = [restored(renamed, index, descriptors=[other]) for index in range(2)]
    backends[key_group_of("key 2", G) * 2 // G].tables["other"].put(key_group_of("key 2", G), "key 2", 7)

    after = store.write([part(backend, index, 2) for index, backend in enumerate(backends)])

    assert after.manifest.files_of("delta", state="other")
    assert content_of(after, descriptors=[other])["other"] == dict.fromkeys(words(100), 1) | {"key 2": 7}
    assert store.compact().manifest.files_of("delta") == ()
    assert store.verify().ok


def test_a_copy_goes_on_under_another_name(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "here", "enrich")
    for n in range(3):
        store.write(parts({"count": {"a": n}}, in_flight=[record("a", 0)]), source_position={"n": n})
    other = SnapshotStore(tmp_path / "there", "enrich_2")

    copied = store.copy_to(other)

    assert (copied.version, copied.manifest.operator_id) == (4, "enrich_2")
    assert copied.manifest.parent_id == store.load(3).manifest.snapshot_id
    assert content_of(copied) == content_of(store.load(3))
    assert (copied.in_flight_count, copied.source_position) == (1, {"n": 2})
    assert other.verify().ok
    assert other.write(parts({"count": {"a": 9}})).version == 5
    assert other.collect_garbage(keep_last=1, min_age=0, dry_run=False).expired == (4,)
    with pytest.raises(SnapshotExists):
        store.copy_to(other)


def test_nobody_takes_a_version_below_a_copy(tmp_path: Path) -> None:
    store, other = SnapshotStore(tmp_path, "enrich"), SnapshotStore(tmp_path, "other")
    store.write(parts({"count": {"a": 1}}))
    paused = other.begin()
    handles = [paused.write_subtask(one) for one in parts({"count": {"a": 2}})]
    store.copy_to(other)

    with pytest.raises(CommitConflict):
        paused.commit(handles)

    assert other.versions() == [2]


def test_a_damaged_file_is_not_copied(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(parts({"count": {"a": 1}}))
    file = next(tmp_path.glob("enrich/data/*/keyed-count-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")

    with pytest.raises(SnapshotCorrupted, match="not what was written"):
        store.copy_to(SnapshotStore(tmp_path, "other"))


def test_ranges_of_a_bootstrapped_snapshot_are_those_of_its_parallelism() -> None:
    snapshot = new_store().bootstrap({COUNT: []}, parallelism=3, max_parallelism=G)

    assert [channel.key_groups for channel in snapshot.manifest.channels] == [range_of(n, 3, G) for n in range(3)]
    assert content_of(snapshot, descriptors=[COUNT]) == {"count": {}}
