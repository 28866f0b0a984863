"""The type of a file's key column when not all keys were looked at before its first rows were encoded."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keygroups import MapState, UnstorableValue, ValueState, key_group_of
from keygroups.state import MemoryBackend, Transaction, identity_of
from snapshots.commit import part_writer
from snapshots.format import files
from snapshots.format.columns import is_packed
from snapshots.format.parquet import ParquetReader
from tests.snapshot_kit import COUNT, G, content_of, new_store, part, parts

ANY_MAP = MapState("anything")


@pytest.fixture(autouse=True, params=[1, files.FILE_BYTES], ids=["many files", "one file"])
def file_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(part_writer, "KEYS_LOOKED_AT", 1)
    monkeypatch.setattr(files, "FILE_BYTES", request.param)
    # In one file, all rows still wait for their row group when another type turns up.
    monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1 if request.param == 1 else files.ROW_GROUP_ROWS_MIN)
    found: int = request.param
    return found


def types_by_first_key_group(snapshot: Any, state: str, column: str = "key") -> list[pa.DataType | None]:
    written = sorted(snapshot.manifest.files_of("keyed", state=state), key=lambda file: file.key_groups.start)
    fields = [ParquetReader(snapshot.folder, file).schema.field(column) for file in written]
    return [None if is_packed(field) else field.type for field in fields]


@pytest.mark.parametrize(
    ("many", "other"),
    [
        ([*range(200)], "text"),
        ([*range(2, 202)], True),
        ([*range(200)], 1000.0),
        ([number / 2 for number in range(200)], 1000),
        ([f"key {number}" for number in range(200)], b"bytes"),
        ([f"key {number}".encode() for number in range(200)], "text"),
    ],
    ids=["int and str", "int and bool", "int and float", "float and int", "str and bytes", "bytes and str"],
)
def test_one_key_of_another_type_comes_back_as_what_it_was(many: list[Any], other: Any, file_bytes: int) -> None:
    expected = {identity_of(key): number for number, key in enumerate([*many, other])}
    snapshot = new_store().write(parts({"count": {key: n for n, key in enumerate([*many, other])}}, [COUNT], 1))
    found: dict[Any, object] = {}
    for group in snapshot.restore(0).states([COUNT])["count"].values():
        found |= group.load()

    assert found == expected
    types = types_by_first_key_group(snapshot, "count")
    assert types[-1] is None
    if file_bytes > 1:
        assert types == [None]
    else:
        # What was complete before stays as it is.
        changed = types.index(None)
        assert set(types[changed:]) == {None}
        assert len(set(types[:changed])) <= 1
    assert snapshot.to_arrow("count").num_rows == len(expected)


def test_keys_of_one_type_keep_it_whatever_was_looked_at() -> None:
    snapshot = new_store().write(parts({"count": {n: n for n in range(200)}}, [COUNT], 1))

    assert set(types_by_first_key_group(snapshot, "count")) == {pa.int64()}


def test_a_map_key_of_another_type() -> None:
    backend = MemoryBackend([ANY_MAP], parts({}, [COUNT], 1)[0].key_groups)
    for number in range(100):
        transaction = Transaction(backend, f"key {number}", key_group_of(f"key {number}", G))
        transaction.state(ANY_MAP).put_all([(number, 1), ("text" if number == 77 else -number, 2)])
        transaction.commit()
    snapshot = new_store().write([part(backend, 0, 1)])
    rows = snapshot.to_arrow("anything").num_rows

    assert rows == 199
    assert types_by_first_key_group(snapshot, "anything", "map_key")[-1] is None
    assert set(types_by_first_key_group(snapshot, "anything")) == {pa.string()}


def test_a_key_that_cannot_be_stored_is_refused() -> None:
    state = ValueState("count", pa.int64())
    backend = MemoryBackend([state], parts({}, [COUNT], 1)[0].key_groups)
    backend.tables["count"].put(0, "fits", 1)
    backend.tables["count"].put(1, "\ud800", 1)
    store = new_store()
    with pytest.raises(UnstorableValue, match="a key of state .count. holds a value of type str"):
        store.write([part(backend, 0, 1)])
    assert store.versions() == []


def test_content_comes_back_at_any_parallelism() -> None:
    content = {"count": {**{n: n for n in range(50)}, "a": 1}}
    snapshot = new_store().write(parts(content, [COUNT], 3))

    assert content_of(snapshot, 5, [COUNT]) == content
