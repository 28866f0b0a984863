from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keygroups.codec import UnreadableValue, pack, unpack

# Whole seconds: Python itself forgets the fraction of an offset that has nothing else.
OFFSETS = st.integers(-23 * 3600, 23 * 3600).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
TIMES = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.dates(),
    st.times(),
    st.times(timezones=OFFSETS),
    st.times(timezones=st.timezones()),
    st.datetimes(timezones=st.timedeltas(-dt.timedelta(hours=23), dt.timedelta(hours=23)).map(dt.timezone)),
    st.timedeltas(),
)
HASHABLE_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63, 2**200) | st.integers(-(2**200), -(2**63)),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.text(),
    st.binary(),
    st.binary().map(np.bytes_),
    st.floats().map(np.float64),
    st.decimals(allow_nan=False),
    st.uuids(),
    TIMES,
)
LEAVES = (
    HASHABLE_LEAVES
    | st.binary().map(bytearray)
    | st.sampled_from([Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")])
)
KEYS = st.recursive(
    HASHABLE_LEAVES, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    ),
    max_leaves=12,
)


def shown(value: Any) -> object:
    """Return a form in which two values are equal only if they are of the same types all the way down."""
    kind = type(value).__name__
    match value:
        case list() | tuple():
            return kind, [shown(item) for item in value]
        case set() | frozenset():
            return kind, sorted((shown(item) for item in value), key=repr)
        case dict():
            return kind, [(shown(key), shown(item)) for key, item in value.items()]
        case float():
            return kind, "nan" if math.isnan(value) else value.hex()
        case dt.datetime() | dt.time():
            return kind, repr(value), value.tzname()
        case _:
            return kind, str(value)


@given(VALUES)
@example([(1,), [1], {1}, frozenset({1})])
@example({True: 1, "1": 2, (1,): 3})
@example(-0.0)
def test_every_value_comes_back_with_its_types(value: object) -> None:
    assert shown(unpack(pack(value, "a test"))) == shown(value)


@given(
    st.sampled_from([np.int8, np.int32, np.int64, np.uint16, np.uint64, np.float32, np.float64, np.bool_]),
    st.integers(0, 127),
)
def test_a_numpy_scalar_comes_back_as_it_is(kind: type[np.generic], value: int) -> None:
    scalar: Any = kind(value)

    assert repr(unpack(pack({"a": [scalar]}, "a test"))) == repr({"a": [scalar]})


@given(VALUES, st.data())
def test_truncated_bytes_are_refused(value: object, data: st.DataObject) -> None:
    packed = pack(value, "a test")
    cut = data.draw(st.integers(0, len(packed) - 1))

    with pytest.raises(UnreadableValue):
        unpack(packed[:cut])
    with pytest.raises(UnreadableValue):
        unpack(packed + b"\x00")


@given(VALUES, st.data())
def test_changed_bytes_are_another_value_or_refused_but_never_another_error(value: object, data: st.DataObject) -> None:
    packed = bytearray(pack(value, "a test"))
    for offset, mask in data.draw(
        st.lists(st.tuples(st.integers(0, len(packed) - 1), st.integers(1, 255)), min_size=1, max_size=3)
    ):
        packed[offset] ^= mask
    read(bytes(packed))


@given(st.binary())
def test_any_bytes_are_a_value_or_refused_but_never_another_error(data: bytes) -> None:
    read(data)


def read(data: bytes) -> None:
    try:
        unpack(data)
    except UnreadableValue as refused:
        assert refused.reason
