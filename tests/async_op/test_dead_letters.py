"""Dead letters as rows: any value has one that can be stored, and comes back from it unless it cannot be stored."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from async_op import DeadLetter, LetterWithoutValue, letter_key, letter_value
from async_op.dead_letters import LETTER_SCHEMA, row_of
from keygroups.codec import register_codec
from keygroups.values import array_of

ANY_TEXT = st.text(st.characters(categories=["L", "N", "Cs", "Cc", "So"]), max_size=5)
BERLIN = ZoneInfo("Europe/Berlin")
OFFSETS = dt.timezone(dt.timedelta(hours=-5, seconds=1)), dt.timezone(dt.timedelta(0), "named")
ZONES = st.sampled_from([dt.UTC, BERLIN, *OFFSETS])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ANY_TEXT,
    st.binary(max_size=5),
    st.dates(),
    st.datetimes(timezones=st.none() | ZONES, allow_imaginary=False),
    st.times(timezones=st.none() | ZONES),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(ANY_TEXT, inner, max_size=3),
        st.dictionaries(st.integers() | st.binary(max_size=2) | st.tuples(st.integers()), inner, max_size=3),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=8,
)


def letter(value: Any, **fields: Any) -> DeadLetter:
    given_: dict[str, Any] = {"timestamp": 1, "key": None, "idempotency_key": "x/0@1", "attempts": 2}
    return DeadLetter(value=value, **(given_ | {"error": ValueError("no")} | fields))


def form(value: Any) -> Any:
    """Return what tells values apart that `==` does not: by their types, -0.0, and NaN from itself."""
    if isinstance(value, dict):
        return dict, [(form(key), form(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [form(item) for item in value]
    return type(value), sorted(value) if isinstance(value, frozenset) else value if type(value) is int else repr(value)


def check_storable(row: dict[str, Any]) -> None:
    """Every sink can hold the row: typed columns of Arrow, text of PostgreSQL, lines of JSON."""
    for field in LETTER_SCHEMA:
        array_of([row[field.name]], field.type)
        if isinstance(row[field.name], str):
            assert "\0" not in row[field.name]
    json.dumps(row, allow_nan=False, ensure_ascii=False).encode()


@given(VALUES)
@example({"$tuple": [1]})
@example({"$decimal": "x"})
@example([float("nan"), -0.0, 1e400])
@example(10**5000)
@example({"half": "\ud83d", "\ud83d": [b"\x00", b"\xff"]})
@example("a\0b")
@example(dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1))
def test_a_value_that_can_be_stored_comes_back_as_it_was(value: Any) -> None:
    row = row_of(letter(value), "pay")
    check_storable(row)
    assert form(letter_value(row)) == form(value)


class Color(enum.StrEnum):
    RED = "red"


class Sly:
    def __repr__(self) -> str:
        raise ValueError("\ud83d")


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


UNSTORABLE: list[Any] = [object(), Sly(), {"of": Color.RED}, [Sly()], endless(), deep(), {"f": open}, lambda: 1]


@pytest.mark.parametrize("number", range(len(UNSTORABLE)))
def test_a_value_that_cannot_be_stored_leaves_text_to_read(number: int) -> None:
    row = row_of(letter(UNSTORABLE[number], idempotency_key="x/0@7"))
    check_storable(row)
    assert row["value_encoding"] == "repr"
    assert len(row["value"]) < 200
    with pytest.raises(LetterWithoutValue, match="x/0@7"):
        letter_value(row)


class Mean(Exception):
    def __str__(self) -> str:
        raise KeyError("\ud83d")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("half \ud83d"), "half \\ud83d"),
        (Mean(), "(no message: str() of this Mean raised KeyError)"),
        (ValueError("\0"), "\\x00"),
        (ValueError("x" * 10**6), "x" * 16_384 + "… (1,000,000 characters)"),
    ],
    ids=["surrogate", "raises", "nul", "long"],
)
def test_an_error_of_any_text_is_stored(error: Exception, message: str) -> None:
    row = row_of(letter(1, error=error, idempotency_key="file-\udcff@3"))
    check_storable(row)
    assert (row["error_type"], row["error_message"]) == (type(error).__name__, message)


KEYS = [
    None,
    "a",
    7,
    b"\xff",
    b"a",
    ("a", 7),
    Decimal("1.50"),
    dt.date(2024, 2, 29),
    float("inf"),
    True,
    uuid.UUID(int=3),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_a_key_comes_back(key: Any) -> None:
    row = row_of(letter(1, key=key))
    check_storable(row)
    found = letter_key(row)
    assert found == key
    assert type(found) is type(key)


def test_values_with_a_codec_come_back() -> None:
    from fractions import Fraction

    register_codec("letters-fraction", Fraction, lambda f: (f.numerator, f.denominator), lambda p: Fraction(*p))
    assert letter_value(row_of(letter({"share": Fraction(1, 3)}))) == {"share": Fraction(1, 3)}


def test_what_json_holds_is_plain_json_and_text_is_text() -> None:
    assert row_of(letter({"id": 7, "æ": [None]}))["value"] == '{"id": 7, "æ": [null]}'
    assert row_of(letter(b'{"id": 7}'))["value"] == '{"id": 7}'
    found = [row_of(letter(value))["value_encoding"] for value in ({"id": 7}, b"7", b"\xff", {"b": b"7"}, object())]
    assert found == ["json", "text", "base64", "tagged json", "repr"]
