"""The Arrow table of a state: its columns, its types and what they refuse."""

from __future__ import annotations

import datetime as dt
import io
import zoneinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from keygroups import ConfigError, KeyGroupRange, UnstorableValue, ValueState, key_group_of
from keygroups.codec import unpack
from keygroups.state import MemoryBackend
from keygroups.values import Misfit, array_of, values_of
from keygroups.values.lossless_casts import cast
from tests.arrow import stores_lists_of_fixed_size
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, part, parts, restored, words


def arrow_of(keys: list[Any], values: list[Any], descriptor: ValueState = COUNT, parallelism: int = 2) -> pa.Table:
    content = {descriptor.name: dict(zip(keys, values, strict=True))}
    return new_store().write(parts(content, [descriptor], parallelism)).to_arrow(descriptor.name)


class TestToArrow:
    @pytest.mark.parametrize(
        ("keys", "kind"),
        [
            ([1, -(2**63), 2**63 - 1], pa.int64()),
            ([1.5, float("inf"), -2.0], pa.float64()),
            (["a", "", "ä"], pa.string()),
            ([b"a", b"", b"\xff"], pa.binary()),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else None,
    )
    @pytest.mark.parametrize("parallelism", [1, 2, G])
    def test_keys_of_one_kind_are_a_column_of_that_kind(
        self, keys: list[Any], kind: pa.DataType, parallelism: int
    ) -> None:
        table = arrow_of(keys, [1, 2, 3], parallelism=parallelism)

        assert table.schema.names == ["key_group", "key", "value"]
        assert table.schema.types == [pa.int32(), kind, pa.int64()]
        assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == dict(
            zip(keys, [1, 2, 3], strict=True)
        )
        assert table["key_group"].to_pylist() == [key_group_of(key, G) for key in table["key"].to_pylist()]

    @pytest.mark.parametrize(
        "keys",
        [
            [1, "a", b"b", 2.5],
            [True, False],
            [("user", 1), ("user", 2)],
            [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)],
            [2, "two", 4, "four", 8, "eight"],
        ],
        ids=["all kinds", "bool", "tuple", "date", "two kinds"],
    )
    @pytest.mark.parametrize("parallelism", [1, 2, G])
    def test_other_keys_are_msgpack_whatever_each_subtask_has(self, keys: list[Any], parallelism: int) -> None:
        """At a parallelism of G each file has keys of one kind, and together they have not."""
        values = list(range(len(keys)))
        table = arrow_of(keys, values, parallelism=parallelism)

        assert table.schema.field("key").type == pa.binary()
        found = {
            unpack(key): value for key, value in zip(*(table[n].to_pylist() for n in ("key", "value")), strict=True)
        }
        assert found == dict(zip(keys, values, strict=True))
        assert set(map(type, found)) == set(map(type, keys))

    def test_keys_come_back_with_their_types_after_another_snapshot(self) -> None:
        """The second snapshot adds keys of another kind to files that had one kind only."""
        store = new_store()
        first = store.write(parts({"count": {1: 1, 2: 2}, "profile": {}}))
        backends = [restored(first, subtask) for subtask in range(2)]
        for key in ("a", b"b"):
            group = key_group_of(key, G)
            backends[group * 2 // G].tables["count"].put(group, key, 3)
        second = store.write([part(backend, subtask, 2) for subtask, backend in enumerate(backends)])

        assert content_of(second)["count"] == {1: 1, 2: 2, "a": 3, b"b": 3}

    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            (pa.int8(), -1),
            (pa.uint64(), 2**64 - 1),
            (pa.float32(), 1.5),
            (pa.float64(), 0.1),
            (pa.bool_(), True),
            (pa.string(), "ä"),
            (pa.large_string(), "ä"),
            (pa.binary(), b"\x00"),
            (pa.binary(2), b"ab"),
            (pa.date32(), dt.date(2026, 1, 2)),
            (pa.date64(), dt.date(2026, 1, 2)),
            (pa.time32("s"), dt.time(1, 2, 3)),
            (pa.time64("us"), dt.time(1, 2, 3, 4)),
            (pa.timestamp("s"), dt.datetime(2026, 1, 2, 3, 4, 5)),
            (pa.timestamp("ms", "UTC"), dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC)),
            (pa.timestamp("us"), dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
            (pa.duration("s"), dt.timedelta(seconds=5)),
            (pa.decimal128(10, 2), Decimal("1.20")),
            (pa.list_(pa.timestamp("s")), [dt.datetime(2026, 1, 2), None]),
            pytest.param(pa.list_(pa.int64(), 2), [1, 2], marks=stores_lists_of_fixed_size),
            (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}),
            (pa.map_(pa.string(), pa.int64()), {"a": 1}),
            (pa.dictionary(pa.int32(), pa.string()), "a"),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else None,
    )
    def test_values_have_the_declared_type_here_and_in_later_snapshots(self, type_: pa.DataType, value: object) -> None:
        state = ValueState("typed", type_)
        content: dict[str, dict[Any, object]] = {"typed": {"a": value, "b": None}}
        store = new_store()
        snapshot = store.write(parts(content, [state]))
        for _ in range(2):
            table = snapshot.to_arrow("typed")
            assert table.schema.field("value").type == type_
            assert dict(zip(table["key"].to_pylist(), values_of(table["value"]), strict=True)) == content["typed"]
            assert content_of(snapshot, 3, [state]) == content
            assert store.verify().ok
            snapshot = store.write([part(restored(snapshot, n, 3, [state]), n, 3) for n in range(3)])

    def test_values_of_an_undeclared_type_are_msgpack_and_say_so(self) -> None:
        table = arrow_of(["a", "b"], [{"x": (1,)}, None], PROFILE)

        field = table.schema.field("value")
        assert (field.type, field.metadata) == (pa.binary(), {b"keygroups.encoding": b"msgpack"})
        assert {
            key: unpack(value) for key, value in zip(*(table[n].to_pylist() for n in ("key", "value")), strict=True)
        } == {
            "a": {"x": (1,)},
            "b": None,
        }

    @pytest.mark.parametrize(("descriptor", "type_"), [(COUNT, pa.int64()), (PROFILE, pa.binary())])
    def test_an_empty_state_has_its_columns_and_types(self, descriptor: ValueState, type_: pa.DataType) -> None:
        table = arrow_of([], [], descriptor)

        assert table.num_rows == 0
        assert table.schema.names == ["key_group", "key", "value"]
        assert table.schema.field("value").type == type_
        assert (table.schema.field("value").metadata or {}) == (
            {} if descriptor is COUNT else {b"keygroups.encoding": b"msgpack"}
        )

    def test_a_state_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(ConfigError, match=r"state_name='other'.*\['count', 'profile'\]"):
            new_store().write(parts({})).to_arrow("other")

    def test_rows_are_sorted_by_key_group_within_each_file(self) -> None:
        groups = arrow_of(words(200), list(range(200)), parallelism=3)["key_group"].to_pylist()

        assert groups == sorted(groups)

    @pytest.mark.parametrize(
        ("type_", "value", "type_name"),
        [
            (None, {"deep": [object()]}, "object"),
            (pa.int64(), "text", "str that does not fit int64"),
            (pa.int64(), 2**70, "int that does not fit int64"),
            (pa.int64(), True, "bool that does not fit int64"),
            (pa.int64(), 1.5, "float that does not fit int64"),
            (pa.int64(), Decimal("1.5"), "Decimal that does not fit int64"),
            (pa.float64(), 2**60 + 1, "int that does not fit double"),
            (pa.float32(), 1e300, "float that does not fit float"),
            (pa.string(), b"bytes", "bytes that does not fit string"),
            (pa.binary(), "text", "str that does not fit binary"),
            (pa.date32(), dt.datetime(2026, 1, 2, 3), "datetime that does not fit date32"),
            (pa.timestamp("ms"), dt.datetime(2026, 1, 2, 3, 4, 5, 6), r"datetime that does not fit timestamp[ms]"),
            (pa.timestamp("us"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), r"datetime that does not fit timestamp[us]"),
            (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2), "datetime that does not fit timestamp[us, tz=UTC]"),
            (pa.time32("s"), dt.time(1, 2, 3, 4), "time that does not fit time32"),
            (pa.duration("s"), dt.timedelta(microseconds=1), "timedelta that does not fit duration"),
            (pa.decimal128(10, 1), Decimal("1.25"), "Decimal that does not fit decimal128"),
            (pa.list_(pa.int64()), [1, 1.5], "list that does not fit list"),
            (pa.list_(pa.int64()), (1, 1.5), "tuple that does not fit list"),
            (pa.list_(pa.int64()), np.array([1.0, 2.5]), "ndarray that does not fit list"),
            (pa.list_(pa.float32()), np.array([1.0, 1e300]), "ndarray that does not fit list"),
            (pa.list_(pa.float32()), [1.0, 1e300], "list that does not fit list"),
            (pa.struct([("a", pa.int64())]), {"a": "x"}, "dict that does not fit struct"),
            (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}, "dict that does not fit struct"),
            (pa.struct([("a", pa.int64())]), {}, "dict that does not fit struct"),
            (pa.map_(pa.string(), pa.int64()), {"a": 1.5}, "dict that does not fit map"),
            (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)], "list that does not fit map"),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else repr(value)[:20],
    )
    def test_a_value_that_would_not_come_back_is_named_with_its_state_and_nothing_is_committed(
        self, type_: pa.DataType | None, value: object, type_name: str
    ) -> None:
        store = new_store()
        state = ValueState("profile", type_)
        content: dict[str, dict[Any, object]] = {"profile": {"good": None, "bad": value, "good too": None}}

        with pytest.raises(UnstorableValue) as refused:
            store.write(parts(content, [state]))
        assert refused.value.where == "state 'profile' of key 'bad'"
        assert refused.value.type_name.startswith(type_name)
        assert store.versions() == []

    @pytest.mark.parametrize(
        ("type_", "value", "found"),
        [
            (pa.float32(), 0.1, 0.10000000149011612),
            (pa.list_(pa.float32()), [0.1, None], [0.10000000149011612, None]),
            (pa.float64(), 7, 7.0),
            (pa.float64(), np.float64(0.1), 0.1),
            (pa.int64(), np.int32(7), 7),
            (pa.float64(), float("-inf"), float("-inf")),
            (pa.float32(), float("-inf"), float("-inf")),
            (pa.list_(pa.int64()), (1, None, 2), [1, None, 2]),
            (pa.list_(pa.float64()), np.array([1.0, 2.5]), [1.0, 2.5]),
            (pa.list_(pa.float32()), np.array([1.5, 0.1]), [1.5, 0.10000000149011612]),
            (pa.list_(pa.int64()), np.array([1.0, 2.0]), [1, 2]),
            pytest.param(
                pa.list_(pa.float32(), 2),
                np.array([1.5, 2.5], np.float32),
                [1.5, 2.5],
                marks=stores_lists_of_fixed_size,
            ),
            (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", 2)], {"a": 1, "b": 2}),
            (pa.struct([("a", pa.list_(pa.int8()))]), {"a": (1, 2)}, {"a": [1, 2]}),
        ],
        ids=lambda value: str(value) if isinstance(value, pa.DataType) else repr(value)[:20],
    )
    def test_what_the_declared_type_asks_for_is_no_loss(self, type_: pa.DataType, value: object, found: object) -> None:
        state = ValueState("profile", type_)
        snapshot = new_store().write(parts({"profile": {"a": value}}, [state]))

        assert content_of(snapshot, descriptors=[state]) == {"profile": {"a": found}}

    def test_not_a_number_is_a_number(self) -> None:
        state = ValueState("profile", pa.list_(pa.float64()))
        snapshot = new_store().write(parts({"profile": {"a": [float("nan"), 1.0]}}, [state]))
        (value,) = content_of(snapshot, descriptors=[state])["profile"].values()

        assert repr(value) == "[nan, 1.0]"

    @pytest.mark.parametrize("fold", [0, 1])
    def test_a_time_in_the_hour_that_a_clock_repeats_is_kept(self, fold: int) -> None:
        """Python says that it equals no time of another zone."""
        berlin = dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=fold)
        state = ValueState("profile", pa.timestamp("us", "UTC"))
        snapshot = new_store().write(parts({"profile": {"a": berlin}}, [state]))

        assert content_of(snapshot, descriptors=[state])["profile"] == {"a": berlin.astimezone(dt.UTC)}

    def test_an_unstorable_key_is_named_with_its_state(self) -> None:
        backend = MemoryBackend([COUNT], KeyGroupRange(0, G - 1))
        backend.tables["count"].put(3, frozenset({1j}), 1)

        with pytest.raises(UnstorableValue, match="a key of state 'count' holds a value of type complex"):
            new_store().write([part(backend, 0, 1)])


@pytest.mark.parametrize("key_type", [pa.float64(), pa.struct({"n": pa.int64()}), pa.list_(pa.int64())], ids=str)
def test_keys_of_a_large_map_are_compared_in_linear_time(key_type: pa.DataType) -> None:
    make = {"double": float, "list<item: int64>": lambda n: [n]}.get(str(key_type), lambda n: {"n": n})
    pairs = [(make(n), n) for n in range(20_000)]

    assert len(array_of([pairs], pa.map_(key_type, pa.int64()))[0]) == len(pairs)
    with pytest.raises(Misfit, match="a key twice"):
        array_of([[*pairs, pairs[0]]], pa.map_(key_type, pa.int64()))


@pytest.mark.parametrize("row", [0, 1, 4, 6])
def test_the_first_row_that_a_cast_refuses_is_named(row: int) -> None:
    numbers = [1] * 7
    numbers[row] = numbers[-1] = 2**40

    with pytest.raises(Misfit) as caught:
        cast(pa.array(numbers), pa.int32(), "n")

    assert (caught.value.row, caught.value.column) == (row, "n")


def parquet_has(type_: pa.DataType) -> bool:
    """Return whether a column comes back from a Parquet file with its type."""
    content = io.BytesIO()
    try:
        table = pa.table({"value": pa.nulls(1, type_)})
        parquet.write_table(table, content)
        parquet.ParquetFile(content).read().cast(table.schema)
    except (pa.ArrowException, OSError):
        return False
    return True


LEAVES = [
    *(pa.uint64(), pa.float16(), pa.bool_(), pa.large_string(), pa.string_view(), pa.binary(2), pa.uuid()),
    *(pa.date64(), pa.time32("s"), pa.duration("ns"), pa.timestamp("s"), pa.timestamp("us", "UTC")),
    *(pa.timestamp("us", "+05:00"), pa.decimal128(5, 2), pa.decimal256(40, 2)),
    *(pa.decimal128(5, -2), pa.binary(0), pa.struct([]), pa.month_day_nano_interval()),
    *(pa.run_end_encoded(pa.int32(), pa.string()), pa.dense_union([pa.field("a", pa.int64())])),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_binary())),
    *(pa.dictionary(pa.int32(), pa.int64()), pa.dictionary(pa.int32(), pa.string_view())),
]
ARROW_TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda item: pa.list_(item, 2)),
        st.builds(pa.map_, inner, inner),
        st.builds(lambda one, other: pa.struct([("a", one), ("b", other)]), inner, inner),
    ),
    max_leaves=3,
)


def is_taken(type_: pa.DataType) -> bool:
    """Return whether a state can be declared with a type."""
    try:
        ValueState("value", type_)
    except ConfigError as error:
        assert error.name == "type"
        return False
    return True


@pytest.mark.parametrize("type_", LEAVES, ids=str)
def test_a_state_is_declared_with_a_type_that_a_snapshot_can_hold(type_: pa.DataType) -> None:
    assert is_taken(type_) == parquet_has(type_)


@given(ARROW_TYPES)
def test_a_nested_type_of_a_state_is_one_that_a_snapshot_can_hold(type_: pa.DataType) -> None:
    assert parquet_has(type_) or not is_taken(type_)


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        (pa.struct([("a", pa.int64()), ("a", pa.int64())]), "two fields of a struct have one name"),
        (pa.timestamp("us", "Mars/Base"), "time zone 'Mars/Base' is not known here"),
    ],
    ids=["names", "zone"],
)
def test_a_type_whose_values_python_cannot_have_is_none_of_a_state(type_: pa.DataType, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ValueState("value", pa.list_(type_))


NESTED_KEYS = pa.map_(pa.list_(pa.int64()), pa.struct([("of", pa.map_(pa.string(), pa.int64()))]))


def test_a_map_is_a_dict_and_one_with_nested_keys_is_pairs() -> None:
    value = [([1], {"of": {"a": 1}}), ([], {"of": None}), ([2], None)]
    assert values_of(array_of([value, None, []], NESTED_KEYS)) == [value, None, []]
    with pytest.raises(Misfit, match="pass pairs"):
        array_of([{(1,): None}], NESTED_KEYS)


@pytest.mark.parametrize("keys", [pa.string(), pa.list_(pa.string())], ids=str)
def test_a_map_that_has_a_key_twice_is_no_dict(keys: pa.DataType) -> None:
    inner = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    one = pa.array([["x"]], pa.list_(pa.string())) if pa.types.is_list(keys) else pa.array(["x"])
    with pytest.raises(KeyError, match="twice|duplicate"):
        values_of(pa.MapArray.from_arrays([0, 1], one, inner))
