from __future__ import annotations

import csv
import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from keygroups import ConfigError, KeyGroupRange, ListState, MapState, ValueState, key_group_of, range_of
from keygroups.state import MISSING, MemoryBackend, SharedList, identity_of
from snapshots import IncompatibleSnapshot, Snapshot, SnapshotStore, columns, files, parquet
from snapshots.filesystem import open_folder
from snapshots.inspection import (
    compare,
    export,
    history,
    in_flight_summary,
    key_group_sizes,
    largest_keys,
    sizes,
)
from snapshots.inspection.equality import equal_rows
from snapshots.inspection.export import plain
from snapshots.inspection.largest import row_bytes
from snapshots.testing.wrappers import CountingFolder
from tests.snapshot_kit import COUNT, PROFILE, G, new_store, part, parts, record, watermark, words

CLICKS, PRICES = ListState("clicks", pa.string()), MapState("prices", pa.float64())
STATES = (COUNT, PROFILE, CLICKS, PRICES)
EVERYTHING = KeyGroupRange(0, G - 1)


class Operator:
    """Two subtasks whose state is changed at random, and what it should be."""

    def __init__(self, store: SnapshotStore, seed: int) -> None:
        self.store = store
        self.draw = random.Random(seed)
        self.backends = [MemoryBackend(STATES, range_of(index, 2, G)) for index in range(2)]

    def change(self, count: int) -> None:
        for number in range(count):
            key: Any = self.draw.choice([f"key {self.draw.randrange(40)}", self.draw.randrange(40), (number % 5, "a")])
            key_group, identity = key_group_of(key, G), identity_of(key)
            tables = self.backends[key_group * 2 // G].tables
            gone = self.draw.random() < 0.2
            tables["count"].put(key_group, identity, MISSING if gone else self.draw.randrange(100))
            tables["profile"].put(key_group, identity, MISSING if gone else {"seen": (number, None)})
            clicks = SharedList(
                [] if gone else ["x" * self.draw.randrange(9) for _ in range(self.draw.randrange(1, 5))]
            )
            tables["clicks"].put_entries(key_group, identity, clicks, range(len(clicks)), replaced=True)
            prices: Map[Any, float] = Map() if gone else Map({name: self.draw.random() for name in ("a", 1, 1.5)})
            tables["prices"].put_entries(key_group, identity, prices, list(prices), replaced=True)

    def cut(self) -> Snapshot:
        return self.store.write([part(backend, index, 2) for index, backend in enumerate(self.backends)])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files, row groups and pieces, however little there is."""
    monkeypatch.setattr(files, "FILE_BYTES", 1000)
    monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 8)
    monkeypatch.setattr(columns, "PIECE_ROWS_MAX", 3)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 100)


@pytest.fixture(params=range(4))
def versions(request: pytest.FixtureRequest) -> list[Snapshot]:
    """Three versions of four kinds of state; the later two have deltas."""
    operator = Operator(new_store(), request.param)
    made = []
    for count in (150, 12, 3):
        operator.change(count)
        made.append(operator.cut())
    return made


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def test_a_stream_has_the_rows_of_the_table(versions: list[Snapshot]) -> None:
    for snapshot in versions:
        for name in snapshot.state_names:
            stream, table = snapshot.to_reader(name), snapshot.to_arrow(name)
            assert stream.schema == table.schema
            streamed = stream.read_all()
            assert rows_of(streamed) == rows_of(table)
            assert streamed.column("key_group").to_pylist() == sorted(table.column("key_group").to_pylist())


def test_a_stream_of_some_key_groups_has_only_their_rows(versions: list[Snapshot]) -> None:
    snapshot = versions[-1]
    wanted = KeyGroupRange(3, 9)

    for name in snapshot.state_names:
        expected = [row for row in snapshot.to_arrow(name).to_pylist() if row["key_group"] in wanted]
        assert rows_of(snapshot.to_reader(name, wanted).read_all()) == sorted(expected, key=repr)


def test_a_state_that_is_not_there_is_named() -> None:
    snapshot = new_store().write(parts({"count": {"a": 1}}))

    with pytest.raises(ConfigError, match="state_name='absent'"):
        snapshot.to_reader("absent")


def test_sizes_are_those_of_the_rows(versions: list[Snapshot]) -> None:
    whole, with_deltas = versions[0], versions[-1]
    for name, measured in key_group_sizes(whole).items():
        groups = whole.to_arrow(name).column("key_group").to_numpy()
        assert measured.is_exact
        assert measured.rows.tolist() == np.bincount(groups, minlength=G).tolist()
        assert not measured.delta_rows.any()
    for name, measured in key_group_sizes(with_deltas).items():
        held = with_deltas.manifest.files_of("keyed", "delta", state=name)
        assert int((measured.rows + measured.delta_rows).sum()) == sum(file.rows for file in held)
        assert int(measured.bytes.sum()) == sum(file.bytes for file in held)
        assert measured.skew == pytest.approx(measured.bytes.max() * G / measured.bytes.sum())


def test_sizes_are_measured_without_reading_keys_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 64)
    folder = CountingFolder(open_folder("memory://counted/enrich", None))
    store = SnapshotStore.on(folder)
    snapshot = store.write(parts({"profile": dict.fromkeys(words(200), "x" * 10000)}, [PROFILE]))
    before = folder.bytes_read

    key_group_sizes(snapshot)

    read = folder.bytes_read - before
    footers = sum(file.footer_bytes for file in snapshot.manifest.files)
    assert footers < read < footers + 20_000
    assert snapshot.manifest.rows_total == 200


def test_too_many_shared_row_groups_are_taken_to_be_even(
    versions: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = key_group_sizes(versions[0])
    monkeypatch.setattr(sizes, "COLUMN_READS_MAX", 0)

    for name, measured in key_group_sizes(versions[0]).items():
        assert not measured.is_exact
        assert measured.rows.sum() == exact[name].rows.sum()
        assert measured.bytes.sum() == exact[name].bytes.sum()


def test_the_largest_key_group_is_found() -> None:
    key = words(1)[0]
    content = {word: "x" * (5000 if word == key else 5) for word in words(50)}
    measured = key_group_sizes(new_store().write(parts({"profile": content}, [PROFILE])))["profile"]

    # Of equal rows in one row group each has an equal share, so only a row group of its own stands out.
    assert sum(measured.within(EVERYTHING)[:2]) == 50
    assert set(measured.largest(G)) == {key_group_of(word, G) for word in content}


def test_the_largest_keys_are_those_with_the_most_bytes(versions: list[Snapshot]) -> None:
    snapshot = versions[-1]
    for name in snapshot.state_names:
        table = snapshot.to_arrow(name)
        expected, entries = Counter[Any](), Counter[Any]()
        bytes_ = row_bytes(table.column("key")) + row_bytes(table.column("value"))
        if "map_key" in table.schema.names:
            bytes_ = bytes_ + row_bytes(table.column("map_key"))
        for key, size in zip(table.column("key").to_pylist(), bytes_.tolist(), strict=True):
            expected[key] += size
            entries[key] += 1

        found = largest_keys(snapshot, name, 5)

        assert [one.bytes for one in found] == sorted(expected.values(), reverse=True)[:5]
        assert sorted(one.entries for one in largest_keys(snapshot, name, 1000)) == sorted(entries.values())
        assert all(one.key_group == key_group_of(one.key, G) for one in found)


def test_a_state_without_rows_has_no_largest_key() -> None:
    assert largest_keys(new_store().write(parts({})), "count") == []


SIZED: list[tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], int]]] = [
    (pa.int64(), st.integers(0, 9), lambda _: 8),
    (pa.bool_(), st.booleans(), lambda _: 1),
    (pa.string(), st.text(max_size=5), lambda value: len(value.encode())),
    (pa.list_(pa.int32()), st.lists(st.none() | st.just(7), max_size=3), lambda v: 4 * (len(v) - v.count(None))),
    (pa.list_(pa.int8(), 2), st.lists(st.just(1), min_size=2, max_size=2), lambda _: 2),
    (pa.map_(pa.string(), pa.int8()), st.dictionaries(st.text("ab"), st.just(1)), lambda v: len("".join(v)) + len(v)),
    (pa.struct({"a": pa.string()}), st.fixed_dictionaries({"a": st.text("ab")}), lambda v: len(v["a"])),
]


@given(st.sampled_from(SIZED), st.data())
def test_the_bytes_of_a_value_are_those_of_what_is_in_it(case: tuple[Any, Any, Any], data: st.DataObject) -> None:
    type_, values, size = case
    drawn = data.draw(st.lists(st.none() | values, max_size=6))
    start = data.draw(st.integers(0, len(drawn)))

    found = row_bytes(pa.array(drawn, type_).slice(start))

    assert found.tolist() == [0 if value is None else size(value) for value in drawn[start:]]


def test_elements_are_counted_by_attempt_and_age() -> None:
    now = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    ages = (0, 30_000, 30_000, 7_200_000)
    records = [record(f"k{n}", n, attempt=1 + n // 2, timestamp=now - age) for n, age in enumerate(ages)]
    done = record("done", 9, completed=True, outputs=(), timestamp=None)
    snapshot = new_store().write(parts({}, in_flight=[*records, done, watermark(5, 10)]))

    found = in_flight_summary(snapshot)

    assert (found.pending, found.completed, found.watermarks) == (4, 1, 1)
    assert found.by_attempt == {1: 2, 2: 2}
    assert {name: count for name, count in found.by_age.items() if count and name != "under 1 s"} == {
        "10 s to 1 min": 2,
        "1 h to 1 day": 1,
        "without a timestamp": 1,
    } or found.by_age["1 s to 10 s"] == 1  # on a machine that took a second for it
    assert found.count_in(EVERYTHING) == 5


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


NAN = float("nan")


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


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_an_export_for_programs_has_the_columns_of_the_state(
    versions: list[Snapshot], tmp_path: Path, ending: str
) -> None:
    snapshot, path = versions[-1], tmp_path / f"state.{ending}"
    for name in snapshot.state_names:
        told: list[tuple[int, int]] = []

        count = export(snapshot, name, path, progress=lambda done, total, told=told: told.append((done, total)))

        table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
        assert rows_of(table) == rows_of(snapshot.to_arrow(name))
        assert table.num_rows == count
        assert all(0 < done <= total for done, total in told)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_export_for_people_decodes_msgpack(versions: list[Snapshot], tmp_path: Path) -> None:
    snapshot = versions[-1]
    export(snapshot, "profile", tmp_path / "profile.jsonl")
    export(snapshot, "profile", tmp_path / "profile.csv")

    lines = [json.loads(line) for line in (tmp_path / "profile.jsonl").read_text().splitlines()]
    with (tmp_path / "profile.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(lines) == len(cells) == snapshot.to_arrow("profile").num_rows
    for line, cell in zip(lines, cells, strict=True):
        assert set(line) == {"key_group", "key", "value"}
        assert line["value"]["seen"][1] is None
        assert json.loads(cell["value"]) == line["value"]
        assert int(cell["key_group"]) == line["key_group"]


def test_in_flight_elements_are_exported_too(tmp_path: Path) -> None:
    snapshot = new_store().write(parts({}, in_flight=[record("a", 0), record(None, 1, channel=0), record("b", 2)]))

    assert export(snapshot, None, tmp_path / "all.jsonl") == 3
    assert export(snapshot, None, tmp_path / "keyed.jsonl", key_groups=EVERYTHING) == 2

    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert sorted(str(line["value"]["key"]) for line in lines) == ["None", "a", "b"]


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store", "enrich")
    snapshot = store.write(parts({"count": dict.fromkeys(words(300), 1)}))
    target = tmp_path / "state.csv"
    target.write_text("before")
    for file in (tmp_path / "store").glob("enrich/data/*/keyed-count-8-*.parquet"):
        file.write_bytes(b"damaged")

    with pytest.raises(Exception, match="damaged"):
        export(snapshot, "count", target)

    assert target.read_text() == "before"
    assert {file.name for file in tmp_path.iterdir()} == {"store", "state.csv"}


@pytest.mark.parametrize(("path", "message"), [("x.xlsx", "use one of .arrow, .csv"), ("gone/x.csv", "does not exist")])
def test_a_target_that_cannot_be_is_named(tmp_path: Path, path: str, message: str) -> None:
    snapshot = new_store().write(parts({"count": {"a": 1}}))

    with pytest.raises(ConfigError, match=message):
        export(snapshot, "count", tmp_path / path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None]}, {"a": [1, 2.5, None]}),
        ({1: "a"}, [[1, "a"]]),
        ((b"\x00", {3, 1}), ["AA==", [1, 3]]),
        ([NAN, float("-inf")], ["nan", "-inf"]),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00+00:00"),
        (dt.timedelta(hours=1), "1:00:00"),
        (Decimal("1.50"), "1.50"),
        (2**70, 2**70),
    ],
)
def test_every_value_has_a_form_in_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected
