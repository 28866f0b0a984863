from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import os
import pickle
import random
import subprocess
import sys
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import KeyGroupsError, UnstorableValue, codec
from keygroups.codec import NESTED_EXTENSIONS_MAX, UnreadableValue, pack, pack_all, unpack, unpack_all
from keygroups.state.storable import StorableCheck

TWO_HOURS = dt.timezone(dt.timedelta(hours=2))

# The bytes are part of the snapshot format: what stands here is read by every later release.
FROZEN = [
    (None, "c0"),
    (True, "c3"),
    (-1, "ff"),
    (1.5, "cb3ff8000000000000"),
    ("ä", "a2c3a4"),
    (b"\x00", "c40100"),
    ([1, [2]], "92019102"),
    ({"a": 1, 2: None}, "82a1610102c0"),
    (2**64 - 1, "cfffffffffffffffff"),
    (2**64, "c70b01c409010000000000000000"),
    (-(2**63) - 1, "c70b01c409ff7fffffffffffffff"),
    ((), "d40290"),
    ((1, "a"), "d6029201a161"),
    ({7}, "d5039107"),
    (frozenset({7}), "d5049107"),
    (decimal.Decimal("1.50"), "c70505a4312e3530"),
    (uuid.UUID(int=1), "c71206c41000000000000000000000000000000001"),
    (dt.datetime(2026, 1, 2, 3, 4, 5, 6), "c71b07ba323032362d30312d30325430333a30343a30352e303030303036"),
    (
        dt.datetime(2026, 1, 2, 3, 4, tzinfo=TWO_HOURS),
        "c71a07b9323032362d30312d30325430333a30343a30302b30323a3030",
    ),
    (dt.date(2026, 1, 2), "c70b08aa323032362d30312d3032"),
    (dt.time(3, 4, 5), "c70909a830333a30343a3035"),
    (dt.timedelta(days=-1, microseconds=1), "d60a93ff0001"),
    (
        dt.datetime(2026, 1, 2, 3, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        "c7240793b3323032362d30312d30325430333a30303a303000ad4575726f70652f4265726c696e",
    ),
    (bytearray(b"\x00"), "c7030cc40100"),
    (np.int8(7), "d70d92a37c6931c40107"),
]


class Colour(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


class Stamp(dt.datetime):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, _moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)


@pytest.mark.parametrize(("value", "frozen"), FROZEN, ids=lambda value: None if isinstance(value, str) else repr(value))
def test_the_bytes_of_each_type_are_fixed(value: object, frozen: str) -> None:
    assert pack(value, "a test").hex() == frozen
    assert unpack(bytes.fromhex(frozen)) == value
    assert type(unpack(bytes.fromhex(frozen))) is type(value)


@pytest.mark.parametrize(
    "scalar",
    [
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.float16(1.5),
        np.float64(0.1),
        np.float64(-0.0),
        np.bool_(True),
        np.str_("ä\0"),
        np.str_(""),
        np.bytes_(b"a\0"),
        np.datetime64("2026-01-02"),
        np.datetime64("2026-01-02T03:04:05.000006"),
        np.datetime64("2026-01-02", "ns"),
        np.timedelta64(5, "s"),
        np.timedelta64(1, "ns"),
    ],
    ids=repr,
)
def test_a_numpy_scalar_stays_one(scalar: np.generic) -> None:
    for value in (scalar, [scalar], (scalar,), {scalar}, {scalar: scalar}):
        found = unpack(pack(value, "a test"))
        assert repr(found) == repr(value)
    assert type(unpack(pack(scalar, "a test"))) is type(scalar)


@pytest.mark.parametrize(
    "value",
    [
        *(bytearray(b"a"), [bytearray(b"")], {"a": [{"b": bytearray(b"a")}], "c": b"a"}, (bytearray(b"a"), b"a")),
        [0.5, bytearray(b"1234567")],  # as long as two floats
        [0.5, np.float64(1.5), bytearray(b"ab"), 2.5],  # NumPy adds them up
    ],
)
def test_a_bytearray_stays_one(value: object) -> None:
    assert repr(unpack(pack(value, "a test"))) == repr(value)


def test_a_bytearray_that_is_deep_inside_is_looked_for_once_at_each_level() -> None:
    value: Any = bytearray(b"a")
    for _ in range(60):  # with two looks at each level it would take for ever
        value = [{1: [value, 1]}]

    assert repr(unpack(pack(value, "a test"))) == repr(value)


@pytest.mark.parametrize(
    "rest",
    [[], [1] * 40, [2.5, "a"] * 40, ["a" * 9] * 40, [b"a" * 9] * 40, [{"n": b"a" * 9}] * 40],
    ids=["alone", "numbers", "mixed", "texts", "bytes", "rows"],
)
def test_a_bytearray_among_others_stays_one_and_the_list_is_not_changed(rest: list[Any]) -> None:
    mutable = bytearray(b"a")
    value = [*rest, mutable, [mutable, {"b": mutable}], *rest]

    assert repr(unpack(pack(value, "a test"))) == repr(value)
    assert value[len(rest)] is mutable


@pytest.mark.parametrize("hidden", [{"n": bytearray(b"a")}, {"n": [bytearray(b"a")]}], ids=["value", "inside"])
def test_a_bytearray_in_one_of_many_rows_stays_one(hidden: dict[str, Any]) -> None:
    value = [{"n": b"a"}] * 40 + [hidden]

    assert repr(unpack(pack(value, "a test"))) == repr(value)


def test_a_view_of_memory_as_a_key_in_one_of_many_rows_is_refused() -> None:
    with pytest.raises(UnstorableValue):
        pack([{"n": b"a"}] * 40 + [{memoryview(b"a"): 1}], "a test")


ZONES = [
    zoneinfo.ZoneInfo("Europe/Berlin"),
    zoneinfo.ZoneInfo("UTC"),
    dt.UTC,
    dt.timezone(dt.timedelta(hours=2), "CEST"),
    dt.timezone(dt.timedelta(microseconds=5)),
    None,
]


@pytest.mark.parametrize("zone", ZONES, ids=repr)
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_keeps_its_zone_and_its_fold(zone: dt.tzinfo | None, fold: int) -> None:
    twice = dt.datetime(2026, 10, 25, 2, 30, 0, 7, tzinfo=zone, fold=fold)
    for moment in (twice, twice.timetz()):
        found = unpack(pack([moment], "a test"))[0]
        assert (repr(found), found.tzname()) == (repr(moment), moment.tzname())
        assert type(found.tzinfo) is type(zone)


def test_an_integer_may_have_more_digits_than_python_prints() -> None:
    for value in (10**5000, -(10**5000)):
        assert unpack(pack({value: (value,)}, "a test")) == {value: (value,)}


def nested(depth: int, kind: type = list) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = kind((value,))
    return value


def endless() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        (object, "type"),
        (print, "builtin_function_or_method"),
        (1j, "complex"),
        (range(3), "range"),
        (Colour.RED, "Colour"),
        (Point(1), "Point"),
        (Text("a"), "Text"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (collections.Counter("a"), "Counter"),
        (np.array([1]), "ndarray"),
        pytest.param(np.array(1), "ndarray", id="array of no dimension"),
        (np.complex64(1j), "complex"),
        (np.longdouble(1), "longdouble"),
        (memoryview(b"a"), "memoryview"),
        (msgpack.ExtType(5, b"\xa11"), "ExtType"),
        (Stamp(2026, 1, 2), "Stamp"),
        (collections.defaultdict(int, a=1), "defaultdict"),
        (dt.datetime(2026, 1, 1, tzinfo=Zone()), f"time zone is a {__name__}.Zone"),
        (dt.UTC, "timezone"),
        ("\ud800", "surrogates not allowed"),
        (endless(), "recursion"),
        (nested(10_000, tuple), "64 extensions"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unstorable_value_names_its_place_however_deep_it_is(value: object, named: str) -> None:
    for holder in (value, [1, {"a": (value,)}], ({"b": [value]},)):
        with pytest.raises(UnstorableValue) as refused:
            pack(holder, "state 'profile' of key 7")
        assert refused.value.where == "state 'profile' of key 7"
        assert "state 'profile' of key 7 holds a value of type " in str(refused.value)
        assert named in refused.value.type_name


def test_a_value_whose_class_extends_a_storable_one_is_told_apart_from_it() -> None:
    class UUID(uuid.UUID):  # as drivers of databases return
        pass

    with pytest.raises(UnstorableValue, match=r"of type tests\..*UUID, a subclass of UUID, which cannot be stored"):
        pack(UUID(int=1), "place")


def test_an_unstorable_key_of_a_dict_is_found_too() -> None:
    with pytest.raises(UnstorableValue, match="place holds a value of type complex"):
        pack({1j: 1}, "place")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\xa1\xff",
        b"\x81\x90\x01",
        b"\x91" * 5000,
        msgpack.packb(msgpack.ExtType(11, b"\x01")),
        msgpack.packb(msgpack.ExtType(127, b"")),
        b"\xd4\x80\x00",
        b"\xd4\xfe\x00",
        msgpack.packb([{"a": msgpack.ExtType(99, b"\x01")}]),
        msgpack.packb(msgpack.ExtType(2, msgpack.packb(msgpack.ExtType(99, b"")))),
        *(msgpack.packb(msgpack.ExtType(number, b"\xc1")) for number in range(1, 11)),
        *(msgpack.packb(msgpack.ExtType(number, msgpack.packb([["?"]]))) for number in (1, 3, 4, 5, 6, 7, 8, 9, 10)),
        msgpack.packb(msgpack.ExtType(5, msgpack.packb("abc"))),
        msgpack.packb(msgpack.ExtType(6, msgpack.packb("0123456789abcdef"))),
        msgpack.packb(msgpack.ExtType(7, msgpack.packb("2026-13-01"))),
        msgpack.packb(msgpack.ExtType(10, msgpack.packb([10**12, 0, 0]))),
        msgpack.packb(msgpack.ExtType(10, msgpack.packb([0, 0, 0, 0, 0, 0, 0, 0]))),
    ],
    ids=lambda data: data.hex()[:24] or "nothing",
)
def test_bytes_that_are_no_value_of_this_release_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableValue) as refused:
        unpack(data)
    assert refused.value.reason


def test_a_value_of_a_newer_release_is_named_by_its_extension() -> None:
    with pytest.raises(KeyGroupsError, match=r"extension 42 is unknown.*newer release"):
        unpack(msgpack.packb(msgpack.ExtType(42, b"\x01")))


def test_values_nest_as_deep_as_they_may() -> None:
    value = nested(NESTED_EXTENSIONS_MAX, tuple)

    assert unpack(pack(value, "a test")) == value


@pytest.mark.parametrize("is_pair", [False, True])
def test_the_quick_check_takes_no_tuples_that_nest_deeper_than_can_be_packed(is_pair: bool) -> None:
    check = StorableCheck("a test")
    for depth in range(NESTED_EXTENSIONS_MAX - 2, NESTED_EXTENSIONS_MAX + 4):
        value = ([], nested(depth, tuple)) if is_pair else nested(depth, tuple)
        try:
            is_packed = unpack(pack(value, "a test")) == value
        except UnstorableValue:
            is_packed = False
        assert (check.error_of(value) is None) == is_packed


@pytest.mark.parametrize(
    "value",
    [
        {"price": 19.99},
        (1, {"price": 19.99}),
        [{"a": (1.7, [-0.3])}],
        {"ą": "żółć"},
        (b"\xc4", None),
        {19.99: "ą"},
    ],
)
def test_the_quick_check_takes_what_only_looks_like_bytes(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = StorableCheck("a test")
    monkeypatch.delattr("keygroups.state.storable.pack")  # an exact check would take several times as long

    assert check.error_of(value) is None
    assert check.are_storable([value, value])


@pytest.mark.parametrize("hidden", [memoryview(b"x"), msgpack.ExtType(2, b"\x90")])
@pytest.mark.parametrize("place", ["alone", "list", "dict in tuple", "key"])
def test_the_quick_check_takes_nothing_that_msgpack_would_change(hidden: Any, place: str) -> None:
    value = {"alone": hidden, "list": [hidden], "dict in tuple": (1, {"a": hidden}), "key": {hidden: 1}}[place]
    check = StorableCheck("a test")

    assert isinstance(check.error_of(value), UnstorableValue)
    assert not check.are_storable([1, value])


@pytest.mark.parametrize("tag", [2, 3, 4])
def test_extensions_that_nest_deeper_are_refused(tag: int) -> None:
    data = msgpack.packb([])
    for _ in range(NESTED_EXTENSIONS_MAX + 2):
        data = msgpack.packb([msgpack.ExtType(tag, data)])
    with pytest.raises(UnreadableValue, match="64 extensions"):
        unpack(msgpack.packb(msgpack.ExtType(tag, data)))


@pytest.mark.parametrize("header", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
@pytest.mark.parametrize("count", [1, 500, 5_000])
def test_promises_of_more_than_there_is_are_refused(header: bytes, count: int) -> None:
    with pytest.raises(UnreadableValue):
        unpack(header * count)


def test_nothing_that_is_decoded_is_executed() -> None:
    """A pickle, the usual way to run code by loading data, is plain bytes here."""
    hostile = pickle.dumps(print)

    assert unpack(pack(hostile, "a test")) == hostile
    with pytest.raises(UnreadableValue):
        unpack(hostile)


def test_equal_sets_have_equal_bytes_in_every_process() -> None:
    text = "from keygroups.codec import pack; "
    text += "print(pack([set('keys'), frozenset([1, 'a', None, frozenset('xyz')]), {(1, 'b'), b'b', 2.5}], 'a test'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", text], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


@given(st.lists(st.integers(0, 8).map(lambda n: 8 * n)), st.randoms())
def test_the_order_in_which_a_set_was_filled_changes_nothing(items: list[int], luck: random.Random) -> None:
    shuffled = luck.sample(items, len(items))
    assert pack(set(items), "a test") == pack(set(shuffled), "a test")
    assert pack({(one,) for one in items}, "a test") == pack({(one,) for one in shuffled}, "a test")


@pytest.mark.parametrize("count", [0, 1, 2, 4, 10**9])
def test_packed_values_in_a_row_are_as_many_as_they_should_be(count: int) -> None:
    with pytest.raises(UnreadableValue):
        unpack_all(pack_all([1, "two", (3,)], "a test")[0], count)


@given(
    st.lists(st.integers(2**32, 2**63) | st.integers(-(2**63), -(2**31) - 1) | st.floats(allow_nan=False), min_size=20)
)
def test_a_bytearray_as_long_as_a_number_is_found_among_numbers(numbers: list[int | float]) -> None:
    hidden = [*numbers, bytearray(b"7 bytes")]  # with its head it has nine bytes, as each of the numbers
    found = unpack(pack(hidden, "a test"))
    assert found == hidden
    assert type(found[-1]) is bytearray
    assert unpack(pack(numbers, "a test")) == numbers


@pytest.mark.parametrize("pack_it", [pack, lambda value, where: pack_all([1, value], where)])
@pytest.mark.parametrize("value", ["x" * 70_000, b"x" * 70_000, ["x" * 70_000], (1, "x" * 70_000)], ids=type)
def test_a_value_that_no_array_can_hold_is_refused(value: Any, pack_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack_it(value, "an example")
    monkeypatch.setattr(codec, "VALUE_BYTES_MAX", 70_000)
    with pytest.raises(UnstorableValue, match=r"an example holds .*: it takes 70,0\d\d bytes, and a stored value has"):
        pack_it(value, "an example")
