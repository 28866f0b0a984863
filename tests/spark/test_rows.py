"""Rows and batches, without Spark: nothing is lost on the way, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.spark import OutputMismatch
from async_op.spark.rows import DEAD_LETTER, ROWS_AT_ONCE, OutputWriter, rows_of, slices_of

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
    batch = writer.batch_of([_output(values, shape) for values, shape in kept])
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
        OutputWriter(COLUMNS).batch_of([*others, bad, *others])
    assert raised.value.column == column
    assert raised.value.output[:5] in repr(bad)
