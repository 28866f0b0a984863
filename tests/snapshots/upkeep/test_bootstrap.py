"""The bootstrap: pairs and Arrow tables become a first snapshot, or are refused."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import ConfigError, ListState, MapState, NullKey, UnsupportedKey, ValueState, range_of
from keygroups.errors import UnstorableValue
from keygroups.state import identity_of, original_of
from snapshots import DuplicateKey, SnapshotExists
from snapshots.format import files
from snapshots.upkeep import buckets
from snapshots.upkeep import user_rows as rows
from tests.backends import contents
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, words
from tests.snapshots.plain_states import CLICKS, MEAN, PRICES, TOTAL, plain, plain_content

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
            for values in contents(groups).values():
                found[name] |= {identity: plain(value) for identity, value in values.items()}
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
MOMENTS = ValueState("moments", pa.timestamp("us"))
POINTS = ValueState("points", pa.struct({"x": pa.int64()}))


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
        (NUMBERS, arrow(key=["b", "a"], value=[1, 2**40]), UnstorableValue, "key 'a'.*column 'value'"),
        (MOMENTS, arrow(key=["a"], value=pa.array([1], pa.timestamp("ns"))), UnstorableValue, "column 'value'"),
        (POINTS, arrow(key=["a"], value=[{"x": 1, "y": 2}]), ConfigError, "cast them before"),
        (COUNT, arrow(key=pa.array([1, 2**63], pa.uint64()), value=[1, 2]), UnstorableValue, "column 'key'"),
        (COUNT, arrow(key=pa.array([1], pa.timestamp("ns")), value=[1]), ConfigError, "nanoseconds"),
        (CLICKS, arrow(key=["a"], position=[0.5], value=["x"]), ConfigError, "'position'"),
        (CLICKS, arrow(key=["a"], position=pa.nulls(1, pa.int64()), value=["x"]), ConfigError, "has a position"),
        (NUMBERS, [("a", 2**40)], UnstorableValue, "key 'a'"),
        (CLICKS, [("a", "text")], UnstorableValue, "instead of a list"),
        (PRICES, [("a", 1)], UnstorableValue, "instead of a map"),
        (COUNT, arrow(key=["a", None], value=[1, 2]), NullKey, "key of state 'count'"),
        (COUNT, [(None, 1)], NullKey, "null key"),
        (COUNT, [({"a"}, 1)], UnsupportedKey, "set"),
        (COUNT, [("a", 1), ("a", 1, 2)], ConfigError, "rows='<tuple>'.* item 2 is no pair"),
        (COUNT, ["ab", "cd"], ConfigError, "rows='<str>'.* item 1 is no pair"),
        (COUNT, [b"ab"], ConfigError, "item 1 is no pair"),
        (COUNT, [1, 2], ConfigError, "item 1 is no pair"),
        (COUNT, "ab", ConfigError, "pass a list"),
        (COUNT, None, ConfigError, "pass a list"),
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


def test_rows_may_be_a_dict() -> None:
    counts = {"ab": 1, ("b", 2): 2, 3: 3}

    snapshot = new_store().bootstrap({COUNT: counts}, parallelism=2, max_parallelism=G)

    assert plain_content(snapshot, COUNT) == counts


@pytest.mark.parametrize("states", [COUNT, [COUNT], "ab", {"ab"}], ids=repr)
def test_states_without_rows_are_refused(states: Any) -> None:
    with pytest.raises(ConfigError, match="states="):
        new_store().bootstrap(states, parallelism=1)


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


def test_ranges_of_a_bootstrapped_snapshot_are_those_of_its_parallelism() -> None:
    snapshot = new_store().bootstrap({COUNT: []}, parallelism=3, max_parallelism=G)

    assert [channel.key_groups for channel in snapshot.manifest.channels] == [range_of(n, 3, G) for n in range(3)]
    assert content_of(snapshot, descriptors=[COUNT]) == {"count": {}}
