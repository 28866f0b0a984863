"""Values and keys of every type come back from the disk as they are."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keygroups import UnstorableValue, ValueState
from keygroups.state import Expiring, MemoryBackend, Transaction
from tests.backends import contents
from tests.keygroups.state.disk.kit import LIST, MAP, OWNED, VALUE, opened
from tests.snapshot_kit import new_store, part

ZONE = dt.timezone(dt.timedelta(hours=2))
VALUES: list[tuple[pa.DataType | None, Any]] = [
    (None, None),
    (None, 2**70),
    (None, -0.0),
    (None, True),
    (None, "é\u0000"),
    (None, {"a": [1, (2, {3}), None], 4: b"\xc1"}),
    (None, Decimal("1.10")),
    (None, dt.datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=ZONE)),
    (None, dt.timedelta(days=-1, microseconds=1)),
    (None, uuid.UUID(int=7)),
    (None, Expiring([1, None], 1_700_000_000_000)),
    (None, Expiring(Expiring(None, 1), -5)),
    (pa.int64(), np.int64(7)),
    (pa.float32(), 0.5),
    (pa.decimal128(10, 2), Decimal("1.10")),
    (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    (pa.timestamp("ns"), np.datetime64("2026-01-01T00:00:00.000000001", "ns")),
    (pa.list_(pa.float64()), np.array([1.0, 2.5])),
    (pa.list_(pa.float64()), Expiring(np.array([1.0, 2.5]), 9)),
    (pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))]), {"x": None, "tags": ["a", None]}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1}),
    (pa.time64("us"), dt.time(1, 2, 3)),
    (pa.duration("us"), dt.timedelta(seconds=5)),
    (pa.date32(), dt.date(2026, 1, 1)),
    (pa.large_binary(), b""),
    (pa.dictionary(pa.int32(), pa.string()), "a"),
    (pa.dictionary(pa.int32(), pa.string()), np.str_("a")),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), np.array(["a", "b", "a"])),
]


KEYS: list[Any] = ["a", 1, 1.0, True, -0.0, 2**63 - 1, b"a", ("a", 1.0), dt.date(2026, 1, 1), "x" * 5000]


def plain(value: Any) -> Any:
    """Return what a column, or msgpack, makes of a value."""
    if isinstance(value, Expiring):
        return Expiring(plain(value.value), value.expires_at)
    if isinstance(value, np.datetime64):
        return pa.array([value])[0].as_py()
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


class TestValues:
    @pytest.mark.parametrize(("type_", "value"), VALUES)
    def test_they_come_back_as_they_are(self, directory: Path, type_: pa.DataType | None, value: Any) -> None:
        backend = opened(directory, ValueState("value", type_))
        table = backend.tables["value"]
        table.put(0, "a", value)
        for _ in range(2):
            found = table.get(0, "a")
            assert (type(found), found) == (type(plain(value)), plain(value))
            backend._store.flush()

    @pytest.mark.parametrize("key", KEYS, ids=repr)
    def test_keys_come_back_as_they_are(self, directory: Path, key: Any) -> None:
        backends = opened(directory, VALUE, LIST, MAP), MemoryBackend([VALUE, LIST, MAP], OWNED)
        for backend in backends:
            invocation = Transaction(backend, key, 0)
            invocation.state(VALUE).update(1)
            invocation.state(LIST).add(2)
            invocation.state(MAP).put(key, 3)
            invocation.commit()
        on_disk, in_memory = ([contents(cut.groups) for cut in backend.cut()] for backend in backends)

        assert on_disk == in_memory
        assert list(map(type, on_disk[0][0])) == list(map(type, in_memory[0][0]))

    def test_no_key_of_a_list_or_map_is_the_beginning_of_another(self, directory: Path) -> None:
        backend = opened(directory, LIST, MAP)
        keys: list[Any] = ["", "a", "aa", b"a", b"", 0, 1, 256]
        for key in keys:
            invocation = Transaction(backend, key, 0)
            invocation.state(LIST).add_all([key, key])
            invocation.state(MAP).put(key, key)
            invocation.commit()
        for key in keys:
            invocation = Transaction(backend, key, 0)
            assert invocation.state(LIST).get() == [key, key]
            assert invocation.state(MAP).items() == [(key, key)]

    def test_keys_have_the_column_of_what_is_there_not_of_what_was(self, directory: Path) -> None:
        backend = opened(directory)
        for key in ("a", 1):
            backend.tables["value"].put(0, key, 0)
        assert new_store().write([part(backend, 0, 1)]).to_arrow("value").schema.field("key").type == pa.binary()
        invocation = Transaction(backend, 1, 0)
        invocation.state(VALUE).clear()
        invocation.commit()

        assert new_store().write([part(backend, 0, 1)]).to_arrow("value").schema.field("key").type == pa.string()

    def test_a_stored_list_is_a_sequence_and_a_stored_map_a_mapping(self, directory: Path) -> None:
        backend = opened(directory, LIST, MAP)
        invocation = Transaction(backend, "a", 0)
        invocation.state(LIST).add_all([1, 2, 3])
        invocation.state(MAP).put("x", 1)
        invocation.commit()
        held: Any = backend.tables["list"].get(0, "a")
        entries: Any = backend.tables["map"].get(0, "a")

        assert (held[-1], held[1:], len(held)) == (3, [2, 3], 3)
        assert (dict(entries), entries["x"], len(entries)) == ({"x": 1}, 1, 1)
        for position in (3, -4):
            with pytest.raises(IndexError):
                held[position]
        with pytest.raises(KeyError):
            entries["y"]

    def test_the_changed_keys_of_a_cut_are_a_collection(self, directory: Path) -> None:
        backend = opened(directory)
        backend.cut()
        backend.tables["value"].put(0, "a", 1)
        (cut,) = backend.cut()
        changed: Any = cut.changed

        assert ("a" in changed[0], "b" in changed[0], len(changed[0])) == (True, False, 1)

    def test_a_value_that_nothing_can_hold_is_refused(self, directory: Path) -> None:
        backend = opened(directory)
        with pytest.raises(UnstorableValue, match="state 'value'"):
            backend.tables["value"].put(0, "a", object())
