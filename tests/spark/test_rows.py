"""Rows and batches, without Spark: nothing is lost on the way, and what does not fit is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    CallbackFunction,
    DeadLetter,
    ElementFailed,
)
from async_op.calls.checked_outputs import with_checked_outputs
from async_op.connectors import arrow_input
from async_op.connectors.arrow_input import ROWS_AT_ONCE, rows_of, slices_of
from async_op.spark import OutputMismatch
from async_op.spark.rows.arrow_outputs import DEAD_LETTER, OutputWriter
from keygroups.values import ColumnEncoder, TooLarge
from tests.examples import scaled

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string()), pa.field("tags", pa.list_(pa.int32()))])
WITH_LETTERS = COLUMNS.append(pa.field(DEAD_LETTER, pa.struct([pa.field("value", pa.string())])))

_values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
)
_outputs = st.lists(st.tuples(_values, st.sampled_from(["tuple", "dict", "without nulls", "letter"])), max_size=20)


def _output(values: tuple[Any, ...], shape: str) -> Any:
    if shape == "tuple":
        return values
    if shape == "letter":
        return {DEAD_LETTER: {"value": str(values)}}
    row = dict(zip(COLUMNS.names, values, strict=True))
    return row if shape == "dict" else {name: value for name, value in row.items() if value is not None}


@given(_outputs, st.booleans())
def test_outputs_of_every_shape_become_rows(outputs: list[tuple[tuple[Any, ...], str]], letters: bool) -> None:
    writer = OutputWriter(WITH_LETTERS if letters else COLUMNS)
    kept = [(values, shape) for values, shape in outputs if letters or shape != "letter"]
    (batch,) = writer.batches_of([_output(values, shape) for values, shape in kept])
    assert batch.schema.equals(writer.schema)
    for row, (values, shape) in zip(rows_of(batch), kept, strict=True):
        letter = row.pop(DEAD_LETTER, None)
        assert (letter is not None) == (shape == "letter")
        assert tuple(row.values()) == ((None,) * 3 if shape == "letter" else values)


@given(st.lists(st.sampled_from([0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1]), max_size=4))
def test_slices_keep_every_row_in_its_place(sizes: list[int]) -> None:
    batches = [pa.RecordBatch.from_pydict({"n": pa.array(range(size), pa.int64())}) for size in sizes]
    parts = list(slices_of(batches))
    assert [row["n"] for part in parts for row in rows_of(part)] == [n for size in sizes for n in range(size)]
    assert all(0 < part.num_rows <= ROWS_AT_ONCE for part in parts)


def test_outputs_that_are_too_large_for_one_batch_become_several(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ColumnEncoder.array

    def array(encoder: ColumnEncoder, values: Sequence[Any]) -> pa.Array:
        if len(values) > 3:  # in place of 2 GiB
            raise TooLarge(0, "", "too large")
        return whole(encoder, values)

    monkeypatch.setattr(ColumnEncoder, "array", array)
    batches = OutputWriter(COLUMNS).batches_of([(number, "a", None) for number in range(10)])
    assert [row["id"] for batch in batches for row in rows_of(batch)] == [*range(10)]
    assert max(batch.num_rows for batch in batches) == 3


@given(st.lists(st.lists(st.binary(max_size=60), max_size=20), max_size=4))
def test_slices_of_large_rows_have_fewer_of_them(batches: list[list[bytes]]) -> None:
    given_batches = [pa.RecordBatch.from_pydict({"image": pa.array(images, pa.binary())}) for images in batches]
    with mock.patch.object(arrow_input, "BYTES_AT_ONCE", 100):
        parts = list(slices_of(given_batches))
    assert [row["image"] for part in parts for row in rows_of(part)] == [
        image for images in batches for image in images
    ]
    assert all(part.nbytes <= 100 or part.num_rows == 1 for part in parts)


@pytest.mark.parametrize(
    ("bad", "column", "reason"),
    [
        ((1, "a"), None, "2 values for 3 columns"),
        ((1, "a", [], None), None, "4 values for 3 columns"),
        ({"id": 1, "name": "a"}, "name", "no such column"),
        (("1", "a", []), "id", "type str, not int64"),
        ((2**63, "a", []), "id", "type int, not int64"),
        ((1, 5, []), "text", "type int, not string"),
        ((1, "a", [2**31]), "tags", "type list, not list<"),
        ([1, "a", []], None, "it is a list"),
        (None, None, "it is a NoneType"),
    ],
)
@pytest.mark.parametrize("others", [[], [(1, "a", None)], [{"id": 1}], [(1, "a", None), {"id": 1}]])
def test_the_output_that_does_not_fit_is_named_among_others(bad: Any, column: str, reason: str, others: Any) -> None:
    with pytest.raises(OutputMismatch, match=reason) as raised:
        OutputWriter(COLUMNS).batches_of([*others, bad, *others])
    assert raised.value.column == column
    assert raised.value.output[:5] in repr(bad)


_TYPES = [
    *(pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32()),
    *(pa.timestamp("us", "UTC"), pa.decimal128(5, 2), pa.list_(pa.int8()), pa.struct([("x", pa.int8())])),
]
_anything = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-(2**63) - 1, -(2**63), -129, -128, 0, 127, 128, 2**31, 2**53 + 1, 2**63 - 1, 2**63]),
    st.floats(),
    st.text(max_size=3) | st.just("\ud800"),
    st.binary(max_size=3),
    st.dates() | st.datetimes(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.lists(st.integers(-130, 130), max_size=2),
    st.just({"x": 1}) | st.just({"x": "a"}),
)


@settings(max_examples=scaled(3000))
@given(st.sampled_from(_TYPES), st.booleans(), _anything)
def test_a_row_is_refused_alone_if_it_would_be_among_others(type_: pa.DataType, nullable: bool, value: Any) -> None:
    writer = OutputWriter(pa.schema([pa.field("value", type_, nullable)]))

    def refused(run: Callable[[], object]) -> bool:
        try:
            run()
        except OutputMismatch:
            return True
        return False

    assert refused(lambda: writer.check((value,))) == refused(lambda: writer.batches_of([(value,)]))


BAD = 7


def _row(value: int) -> list[Any]:
    return [(value, "x" if value != BAD else 5, None)]


@dataclass(frozen=True)
class Coroutine(AsyncFunction):
    async def async_invoke(self, value: int, ctx: Any) -> Any:
        return (row for row in _row(value))


class Batch(AsyncBatchFunction):
    max_batch_size = 4

    async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
        return [_row(value) for value in values]


class Blocking(BlockingFunction):
    def invoke(self, value: int, ctx: Any) -> Any:
        return _row(value)


class Callback(CallbackFunction):
    def async_invoke(self, value: int, result_future: Any) -> None:
        result_future.complete(_row(value))


@pytest.mark.parametrize("function", [Coroutine(), Batch(), Blocking(), Callback()])
async def test_the_element_of_a_row_that_does_not_fit_is_named_and_the_others_continue(function: Any) -> None:
    outputs: list[Any] = []
    letters: list[DeadLetter] = []
    operator = AsyncWaitOperator(
        with_checked_outputs(function, OutputWriter(COLUMNS)),
        outputs.append,
        on_error="dead_letter",
        dead_letters=letters.append,
    )
    await operator.open()
    for value in range(12):
        await operator.process(value)
    await operator.finish()
    await operator.close()
    assert sorted(output.value for output in outputs) == [(value, "x", None) for value in range(12) if value != BAD]
    (letter,) = letters
    assert letter.value == BAD
    assert isinstance(letter.error, OutputMismatch)
    assert letter.error.column == "text"


async def test_a_fallback_that_does_not_fit_fails_its_element() -> None:
    class Never(AsyncFunction):
        async def async_invoke(self, value: int, ctx: Any) -> Any:
            await asyncio.Event().wait()

        async def timeout(self, value: int, ctx: Any) -> Any:
            return [("no number", "x", None)]

    operator = AsyncWaitOperator(with_checked_outputs(Never(), OutputWriter(COLUMNS)), lambda _: None, timeout=0.01)
    await operator.open()
    with pytest.raises(ElementFailed, match="element 3 .*column 'id'"):
        await operator.process(3)
        await operator.finish()
    await operator.close()
