"""The evolution of a state's type: wider ones read what was written, others are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ValueState
from snapshots import IncompatibleSnapshot
from snapshots.format.schemas import state_info, widens
from tests.arrow import stores_lists_of_fixed_size
from tests.snapshot_kit import content_of, new_store, parts, restored
from tests.snapshots.increments import cut, put

pytestmark = pytest.mark.usefixtures("each_backend")


def evolved(old: pa.DataType, new: pa.DataType, value: Any) -> Any:
    store = new_store()
    snapshot = store.write(parts({"typed": {"a": value}}, [ValueState("typed", old)]))
    after = [ValueState("typed", new)]
    backends = [restored(snapshot, n, 2, after) for n in range(2)]
    put(backends, "b", None, "typed")
    second = store.write(cut(backends))
    assert second.to_arrow("typed").schema.field("value").type == new
    content = content_of(snapshot, descriptors=after)["typed"]
    assert content_of(second, descriptors=after)["typed"] == content | {"b": None}
    return content["a"]


class TestEvolution:
    @pytest.mark.parametrize(
        ("old", "new", "value", "found"),
        [
            (pa.int32(), pa.int64(), 7, 7),
            (pa.uint8(), pa.int16(), 255, 255),
            (pa.int32(), pa.float64(), 7, 7.0),
            (pa.float32(), pa.float64(), 1.5, 1.5),
            (pa.string(), pa.large_string(), "ä", "ä"),
            (pa.binary(), pa.large_binary(), b"a", b"a"),
            (pa.decimal128(5, 2), pa.decimal128(9, 3), Decimal("1.10"), Decimal("1.100")),
            (pa.time32("ms"), pa.time64("us"), dt.time(1, 2), dt.time(1, 2)),
            (pa.duration("s"), pa.duration("us"), dt.timedelta(1), dt.timedelta(1)),
            (pa.list_(pa.int32()), pa.large_list(pa.int64()), [1, None], [1, None]),
            (pa.large_list(pa.int32()), pa.large_list(pa.int64()), [1, None], [1, None]),
            pytest.param(
                pa.list_(pa.int32(), 2), pa.list_(pa.int64(), 2), [1, None], [1, None], marks=stores_lists_of_fixed_size
            ),
            (
                pa.struct([("a", pa.int32()), ("b", pa.string())]),
                pa.struct([("c", pa.string()), ("a", pa.int64())]),
                {"a": 1, "b": "x"},
                {"c": None, "a": 1},
            ),
            (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 1}),
        ],
        ids=str,
    )
    def test_a_wider_type_reads_what_was_written(
        self, old: pa.DataType, new: pa.DataType, value: object, found: object
    ) -> None:
        assert evolved(old, new, value) == found

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (pa.int64(), pa.int32()),
            (pa.int64(), pa.float64()),
            (pa.int32(), pa.uint64()),
            (pa.float64(), pa.float32()),
            (pa.string(), pa.binary()),
            (pa.struct([("a", pa.int32())]), pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int8(), False)])),
            (pa.large_string(), pa.string()),
            (pa.decimal128(5, 2), pa.decimal128(5, 3)),
            (pa.decimal128(5, 2), pa.decimal128(4, 2)),
            (pa.decimal128(5, 2), pa.float64()),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.timestamp("us"), pa.timestamp("ns")),
            (pa.time64("us"), pa.time32("ms")),
            (pa.date32(), pa.timestamp("us")),
            (pa.duration("us"), pa.int64()),
            (pa.large_list(pa.int64()), pa.list_(pa.int64())),
            pytest.param(pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 3), marks=stores_lists_of_fixed_size),
            pytest.param(pa.list_(pa.int64(), 2), pa.list_(pa.int64()), marks=stores_lists_of_fixed_size),
            (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
            (pa.int64(), None),
        ],
        ids=str,
    )
    def test_any_other_type_is_refused_with_both(self, old: pa.DataType, new: pa.DataType | None) -> None:
        assert not widens(old, new)
        snapshot = new_store().write(parts({}, [ValueState("typed", old)]))
        with pytest.raises(IncompatibleSnapshot, match="state 'typed'") as refused:
            snapshot.restore(0).states([ValueState("typed", new)])
        assert str(old) in str(refused.value)

    def test_fields_keep_their_ids_and_no_id_is_given_twice(self) -> None:
        def info(names: str, before: Any = None) -> Any:
            return state_info(ValueState("s", pa.struct([(name, pa.int64()) for name in names])), before)

        first = info("ab")
        second = info("bc", first)
        third = info("abc", second)
        assert [first.field_ids[f"value.{name}"] for name in "ab"] == [5, 6]
        assert [second.field_ids[f"value.{name}"] for name in "bc"] == [6, 7]
        assert [third.field_ids[f"value.{name}"] for name in "abc"] == [8, 6, 7]
        assert info("abc", third) is third
