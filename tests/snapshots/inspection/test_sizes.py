"""The sizes of key groups, keys and values, and elements in flight by their age."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import key_group_of
from snapshots import Snapshot, SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.format import files
from snapshots.inspection import in_flight_summary, key_group_sizes, largest_keys, sizes
from snapshots.inspection.sizes import row_bytes
from snapshots.testing.wrappers import CountingFolder
from tests.snapshot_kit import PROFILE, G, new_store, parts, record, watermark, words
from tests.snapshots.inspection.kit import EVERYTHING


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
