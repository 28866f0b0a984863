from __future__ import annotations

import datetime as dt
import enum
import json
import math
from collections import namedtuple
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from xxhash import xxh64_intdigest

from keygroups import ConfigError, NullKey, UnsupportedKey, key_group_of, key_groups_of, key_hasher
from keygroups.state import identity_of

GROUPS = 1000
VECTORS = [
    json.loads(line) for line in (Path(__file__).parent / "vectors" / "flink_key_groups.jsonl").read_text().splitlines()
]
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1)

Pair = namedtuple("Pair", ["user", "item"])


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 7


# What Spark 4.3 answers for xxhash64(key), with integers cast to bigint and floats to double.
SPARK: list[tuple[Any, int]] = [
    (0, -5252525462095825812),
    (1, -7001672635703045582),
    (-1, 3858142552250413010),
    (2**63 - 1, -3246596055638297850),
    (-(2**63), -8619748838626508300),
    (0.0, -5252525462095825812),
    (-0.0, -5252525462095825812),
    (1.5, 7738255526519901366),
    (math.nan, -3127944061524951246),
    (-math.inf, 5326262080505358431),
    ("", -7444071767201028348),
    ("user-42", -7161311977867824759),
    ("grüße", 2849248189946776049),
    ("x" * 31, -1716462135722163746),
    ("x" * 32, 1299777543150008824),
    (b"\x00\xff", 879945414100663330),
    (True, -6698625589789238999),
    (False, 3614696996920510707),
    (dt.date(2024, 2, 29), 4183429117450946631),
    (dt.date(1969, 12, 31), 2017008487422258757),
    (NOON, 2226094536970608578),
    (NOON.replace(tzinfo=dt.UTC), 2226094536970608578),
    (NOON.replace(year=1900, month=1, day=1), 4885894067689430632),
    (Decimal("1.50"), -6873856301616164681),
    (Decimal("123456789012345678901.50"), -8478501176863262995),
    (Decimal(2**63), 2657851292443253618),
    (("user", 42), -410019008987996205),
    ((1, 2.5, True, dt.date(2024, 2, 29), b""), -3813476497385841153),
]


@pytest.mark.parametrize(("key", "expected"), SPARK, ids=repr)
def test_a_key_hashes_as_in_spark(key: object, expected: int) -> None:
    assert key_hasher()(key) == expected
    assert key_group_of(key, GROUPS) == expected % GROUPS
    assert key_groups_of([key], GROUPS).tolist() == [expected % GROUPS]


def test_an_aware_datetime_is_an_instant_and_a_naive_one_is_in_utc() -> None:
    hash_key = key_hasher()
    east = dt.timezone(dt.timedelta(hours=2))

    assert hash_key(NOON) == hash_key(NOON.replace(tzinfo=dt.UTC)) == hash_key(NOON.replace(hour=14, tzinfo=east))


@pytest.mark.parametrize("kind", ["int", "long", "string", "double"])
def test_a_key_is_assigned_as_by_flink(kind: str) -> None:
    scalar = np.int32 if kind == "int" else lambda key: key
    arrow = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}[kind]
    vectors = [vector for vector in VECTORS if vector["type"] == kind]
    assert len(vectors) == 500

    for vector in vectors:
        key, max_parallelism, expected = vector["key"], vector["max_parallelism"], vector["key_group"]
        assert key_group_of(scalar(key), max_parallelism, "flink") == expected
        assert key_groups_of(pa.array([key], arrow), max_parallelism, "flink").tolist() == [expected]


@pytest.mark.parametrize(
    ("code", "mixed"),
    [
        (0, 593689054),
        (1, 68075478),
        (-1, 1982413648),
        (2147483647, 1653689534),
        (-2147483648, 1718298732),
        # Mixes to the smallest integer, which has no absolute value.
        (-2089875627, 0),
    ],
)
def test_flink_mixes_hash_codes_in_this_way(code: int, mixed: int) -> None:
    assert key_hasher("flink")(np.int32(code)) == mixed
    assert key_groups_of(pa.array([code], pa.int32()), GROUPS, "flink").tolist() == [mixed % GROUPS]


def test_flink_takes_what_java_takes() -> None:
    hash_key = key_hasher("flink")
    integer = np.int32

    assert hash_key(True) == hash_key(integer(1231))
    assert hash_key(False) == hash_key(integer(1237))
    assert hash_key("hello") == hash_key(integer(99162322))
    assert hash_key("\U0001f389") == hash_key(integer(0xD83C * 31 + 0xDF89))
    assert hash_key(0.0) == hash_key(integer(0))
    assert hash_key(math.nan) == hash_key(-math.nan) == hash_key(integer(0x7FF80000))
    assert hash_key(("a", "b")) == hash_key(integer(97 * 31 + 98))


@pytest.mark.parametrize("hash_name", ["xxhash64", "flink"])
def test_what_is_one_key_has_one_hash(hash_name: str) -> None:
    """The state of a key is found by its identity, in the key group of its hash."""
    for one, other in ((0.0, -0.0), (math.nan, -math.nan), ((0.0, "a"), (-0.0, "a"))):
        assert identity_of(one) == identity_of(other)
        assert key_hasher(hash_name)(one) == key_hasher(hash_name)(other)
    zeros = pa.array([0.0, -0.0])
    assert len(set(key_groups_of(zeros, GROUPS, hash_name).tolist())) == 1
    assert key_groups_of(zeros, GROUPS, hash_name)[0] == key_group_of(0.0, GROUPS, hash_name)


@pytest.mark.parametrize("hash_name", ["xxhash64", "flink"])
def test_a_scalar_of_numpy_or_pandas_and_a_subclass_count_as_their_python_value(hash_name: str) -> None:
    hash_key = key_hasher(hash_name)

    assert hash_key(np.int64(-7)) == hash_key(-7)
    assert hash_key(np.uint8(7)) == hash_key(7)
    assert hash_key(np.float64(1.5)) == hash_key(1.5)
    assert hash_key(np.bool_(True)) == hash_key(True)
    assert hash_key(np.str_("a")) == hash_key("a")
    assert hash_key(Colour.RED) == hash_key("red")
    assert hash_key(Level.HIGH) == hash_key(7)
    assert hash_key(Pair("u", 1)) == hash_key(["u", 1]) == hash_key(("u", 1))


def test_times_of_numpy_and_pandas_count_as_their_python_value() -> None:
    hash_key = key_hasher()

    for unit in ("us", "ns"):
        assert hash_key(np.datetime64(NOON, unit)) == hash_key(NOON)
    assert hash_key(pd.Timestamp(NOON)) == hash_key(NOON)
    assert hash_key(np.datetime64("2024-02-29")) == hash_key(dt.date(2024, 2, 29))
    assert hash_key(np.float32(0.1)) == hash_key(float(np.float32(0.1)))


@pytest.mark.parametrize("hash_name", ["xxhash64", "flink"])
@pytest.mark.parametrize(
    "key", [np.datetime64(1, "ns"), pd.Timestamp(1), ("a", np.datetime64(1001, "ns")), np.longdouble("0.1")], ids=repr
)
def test_a_key_that_python_has_no_equal_of_is_refused(key: object, hash_name: str) -> None:
    with pytest.raises(UnsupportedKey):
        key_group_of(key, GROUPS, hash_name)


def test_a_column_with_nanoseconds_is_refused_as_its_values_are() -> None:
    with pytest.raises(UnsupportedKey, match="nanoseconds"):
        key_groups_of(pa.array([0, 1], pa.timestamp("ns")), GROUPS)


@pytest.mark.parametrize("null", [None, (1, None), pd.NaT, pd.NA, np.datetime64("NaT", "s")], ids=repr)
@pytest.mark.parametrize("hash_name", ["xxhash64", "flink"])
def test_a_null_key_is_refused(null: object, hash_name: str) -> None:
    with pytest.raises(NullKey, match="null key in the element"):
        key_group_of(null, GROUPS, hash_name)
    with pytest.raises(NullKey, match="null key in the element"):
        key_groups_of([1, null], GROUPS, hash_name)


NULLS = {
    "column": (pa.array([1, None]), "row 1 of the keys"),
    "column of nulls": (pa.nulls(1), "row 0 of the keys"),
    "index of a dictionary": (pa.array(["a", None]).dictionary_encode(), "row 1 of the keys"),
    "dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), "row 1 of the keys"),
    "struct": (pa.array([{"a": 1}, None]), "row 1 of the keys"),
    "field of a struct": (pa.array([{"a": 1, "b": 2}, {"a": 1, "b": None}]), "row 1 of key column 'b'"),
    "floats of pandas": (pd.Series([1.0, math.nan]), "row 1 of the keys"),
    "nullable integers of pandas": (pd.Series([1, None], dtype="Int64"), "row 1 of the keys"),
    "objects of pandas": (pd.Series(["a", None]), "row 1 of the keys"),
    "days of numpy": (np.array(["2024-01-01", "NaT"], "datetime64[D]"), "row 1 of the keys"),
}


@pytest.mark.parametrize(("nulls", "where"), NULLS.values(), ids=NULLS)
def test_a_null_among_many_is_refused_by_its_row(nulls: Any, where: str) -> None:
    with pytest.raises(NullKey) as refusal:
        key_groups_of(nulls, GROUPS)
    assert refusal.value.where == where


UNSUPPORTED = [(2**63, "int above 64 bits"), (-(2**63) - 1, "int above 64 bits"), (1j, "complex"), ({1}, "set")]


@pytest.mark.parametrize(
    ("hash_name", "key", "type_name"),
    [
        *[(hash_name, key, name) for hash_name in ("xxhash64", "flink") for key, name in UNSUPPORTED],
        ("xxhash64", "\ud800", "str with a lone surrogate"),
        ("xxhash64", ("a", "\ud800"), "str with a lone surrogate"),
        ("xxhash64", Decimal("NaN"), "infinite Decimal or NaN"),
        ("xxhash64", ("a", Decimal("-Infinity")), "infinite Decimal or NaN"),
        ("xxhash64", Decimal(10**38), "Decimal above 38 digits"),
        ("xxhash64", Decimal("1E+999999999"), "Decimal above 38 digits"),
        ("xxhash64", (), "empty tuple"),
        ("xxhash64", ((1, 2), 3), "tuple"),
        ("xxhash64", np.longdouble(1), "longdouble"),
        ("flink", b"a", "bytes"),
        ("flink", NOON, "datetime"),
        ("flink", np.float32(1), "float32"),
        ("flink", (), "tuple of 0"),
        ("flink", (1,) * 26, "tuple of 26"),
    ],
)
def test_a_key_without_a_stable_hash_is_refused(hash_name: str, key: object, type_name: str) -> None:
    with pytest.raises(UnsupportedKey) as refusal:
        key_group_of(key, GROUPS, hash_name)
    assert refusal.value.type_name == type_name
    assert refusal.value.hash_name == hash_name
    with pytest.raises(UnsupportedKey, match=f"have no {hash_name} hash"):
        key_groups_of([key, key], GROUPS, hash_name)


@pytest.mark.parametrize(
    ("hash_name", "keys", "type_name"),
    [
        ("xxhash64", np.array([2**63], np.uint64), "int above 64 bits"),
        ("xxhash64", np.array([1j]), "ndarray of complex128"),
        ("xxhash64", pa.array([[1]]), "list<item: int64>"),
        ("xxhash64", pa.array([Decimal(10**38)]), "Decimal above 38 digits"),
        ("xxhash64", pa.array([{}]), "struct without fields"),
        ("xxhash64", pa.array([1], pa.time32("s")), "time32[s]"),
        ("flink", pa.array([b"a"]), "binary"),
        ("flink", pa.array([1.0], pa.float32()), "float"),
    ],
)
def test_many_keys_without_a_stable_hash_are_refused(hash_name: str, keys: Any, type_name: str) -> None:
    with pytest.raises(UnsupportedKey) as refusal:
        key_groups_of(keys, GROUPS, hash_name)
    assert refusal.value.type_name == type_name


STRINGS = ["", "a", "user-42", "grüße", "漢字", "🎉" * 9, "x" * 31, "x" * 32, "x" * 500]


CONTAINERS = {
    "string": pa.array(STRINGS),
    "large string": pa.array(STRINGS, pa.large_string()),
    "string view": pa.array(STRINGS, pa.string_view()),
    "dictionary": pa.array(STRINGS).dictionary_encode(),
    "slice": pa.array(["before", *STRINGS, "after"]).slice(1, len(STRINGS)),
    "chunked array": pa.chunked_array([STRINGS[:2], [], STRINGS[2:]]),
    "numpy": np.array(STRINGS),
    "numpy objects": np.array(STRINGS, object),
    "pandas objects": pd.Series(STRINGS),
    "pandas strings": pd.Series(STRINGS, dtype="string"),
    "pandas categories": pd.Series(STRINGS).astype("category"),
    "pandas index": pd.Index(STRINGS),
    "tuple": tuple(STRINGS),
}


@pytest.mark.parametrize("hash_name", ["xxhash64", "flink"])
@pytest.mark.parametrize("keys", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_of_the_same_keys_has_the_same_groups(keys: Any, hash_name: str) -> None:
    expected = [key_group_of(key, GROUPS, hash_name) for key in STRINGS]
    groups = key_groups_of(keys, GROUPS, hash_name)

    assert groups.tolist() == expected
    assert groups.dtype == np.int32


KEYS = {
    "fixed-size binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "int8": pa.array([1, -2], pa.int8()),
    "float16": pa.array([1.5, -0.0]).cast(pa.float16()),
    "float32": pa.array([1.5, -0.0], pa.float32()),
    "date": pa.array([1, -1], pa.date32()),
    **{f"timestamp in {unit}": pa.array([1000, 10**10, -1000], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "timestamp with a zone": pa.array([NOON], pa.timestamp("us", "Europe/Paris")),
    "list of several types": [1, "a", 2.5],
    "list of tuples of several widths": [(1, "a"), (2,)],
    "list of naive and aware datetimes": [NOON, NOON.replace(tzinfo=dt.UTC)],
    "list of dates": [dt.date(2024, 2, 29)],
    "list of bools": [True, False],
    "range": range(3),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_many_keys_have_the_groups_that_each_has(keys: Any) -> None:
    values = keys.to_pylist() if isinstance(keys, pa.Array) else keys
    assert key_groups_of(keys, GROUPS).tolist() == [key_group_of(key, GROUPS) for key in values]


def test_nan_is_a_key_where_it_does_not_mean_missing() -> None:
    expected = [key_group_of(math.nan, GROUPS)]

    assert key_groups_of(np.array([math.nan]), GROUPS).tolist() == expected
    assert key_groups_of(pa.array([-math.nan]), GROUPS).tolist() == expected


def test_nothing_has_no_groups() -> None:
    for nothing in ([], pa.array([]), pa.array([], pa.string()), pa.chunked_array([], pa.int64()), np.zeros(0)):
        assert key_groups_of(nothing, GROUPS).tolist() == []


def test_many_rows_are_hashed_in_their_order() -> None:
    texts = [f"key-{number}" for number in range(100_000)]
    # For a power of two the modulo of the signed and of the unsigned hash are the same.
    expected = [xxh64_intdigest(text.encode(), 42) % 1024 for text in texts]

    assert key_groups_of(pa.array(texts), 1024).tolist() == expected


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769, 1.5])
def test_an_impossible_max_parallelism_is_refused(max_parallelism: int) -> None:
    with pytest.raises(ConfigError, match="max_parallelism="):
        key_group_of(1, max_parallelism)
    with pytest.raises(ConfigError, match="max_parallelism="):
        key_groups_of([1], max_parallelism)


def test_an_unknown_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match="hash='md5': use one of: flink, xxhash64"):
        key_hasher("md5")
