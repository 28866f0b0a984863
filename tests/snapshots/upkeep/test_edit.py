"""The edit: states are transformed, renamed, put and dropped in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from keygroups import ConfigError, ListState, OperatorListState, OperatorMapState, ValueState, key_group_of
from snapshots import CommitConflict, DuplicateKey, Snapshot, SnapshotNotFound, SnapshotStore, WriterFenced
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, part, parts, record, restored, words
from tests.snapshots.plain_states import CLICKS, PRICES, plain_content


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
    def dearer(key: Any, value: Any) -> Iterator[Any]:
        yield key, value | {"q": 2.0}

    store, _ = bootstrapped()
    editor = store.edit()
    editor.map_items("profile", lambda key, value: [(key, (value, 1))] if key == "a" else [])
    editor.map_items("clicks", lambda key, value: [(key, [*value, "z"]), ("b", value)])
    editor.map_items("prices", dearer)
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
        (lambda editor: editor.transform("count", lambda _: None), "rows=None"),
        (lambda editor: editor.map_items("count", lambda *_: None), "function=None"),
        (lambda editor: editor.map_items("count", lambda key: {}), r"is defined with \(key\); it gets a key"),
        (lambda editor: editor.map_items("count", lambda *_: ("ab", "cd")), "function='<str>'.* item 1 is no pair"),
        (lambda editor: editor.put_items(OperatorListState("names"), "ab"), "items='<str>': pass a list"),
        (lambda editor: editor.put_items(OperatorListState("names"), {"ab": 1}), "items='<dict>': pass a list"),
        (lambda editor: editor.put_items(OperatorMapState("rules"), ["ab"]), "items='<str>'.* item 1 is no pair"),
    ],
    ids=[
        *("drop", "rename what", "rename to what", "rename to a path", "transform what", "transform to what"),
        *("transform to nothing", "map to nothing", "map keys", "map to one pair"),
        *("items of text", "items of a dict", "no entries"),
    ],
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


def test_deltas_of_a_renamed_state_continue() -> None:
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


def test_states_with_a_time_to_live_keep_it_in_an_edit() -> None:
    state = ValueState("session", pa.int64(), ttl=10.0)
    store = new_store()
    expires = pa.table({"key": ["a", "b"], "value": [1, 2], "expires_at": [2**50, None]})

    store.bootstrap({state: expires}, parallelism=1, max_parallelism=G)
    after = store.edit().transform("session", doubled).commit()

    rows_after = sorted(after.to_arrow("session").select(["key", "value", "expires_at"]).to_pylist(), key=str)
    # Without an expiry, a value has a whole time to live from the restore on.
    assert rows_after == [
        {"key": "a", "value": 2, "expires_at": 2**50},
        {"key": "b", "value": 4, "expires_at": None},
    ]
    assert "ttl" in after.manifest.required_features
    assert store.verify().ok
