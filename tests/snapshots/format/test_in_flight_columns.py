"""Elements in flight as columns: nothing of them changes, and whoever reads the file reads their fields."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keygroups.state.timers import Timer
from snapshots import InFlightElement
from snapshots.format.columns import is_packed
from snapshots.format.in_flight_columns import common_schema, in_common_schema, in_flight_elements, in_flight_table
from snapshots.format.subtask import UNKNOWN_TYPES, ElementTypes, RefusedValue
from tests.doors.values import SCALARS, VALUES

ROW = pa.struct([("a", pa.int64()), ("b", pa.string())])
KNOWN = ElementTypes(value=ROW, key=pa.struct([("id", pa.int64()), ("region", pa.string())]), output=ROW)

ROWS = st.fixed_dictionaries({"a": st.one_of(st.none(), st.integers(-9, 9)), "b": st.text(max_size=2)})
ANY = st.one_of(ROWS, VALUES)
RECORDS = st.builds(
    lambda value, key, outputs: InFlightElement(
        0, 0, value=value, key=key, completed=outputs is not None, outputs=outputs, key_group=0 if key else -1
    ),
    st.one_of(ANY, st.builds(RefusedValue, st.just("text"), st.just("reason"))),
    st.one_of(st.none(), st.tuples(st.integers(1, 5), st.sampled_from(["eu", "us"])), st.integers(1, 5)),
    st.one_of(st.none(), st.lists(ANY, max_size=2).map(tuple)),
)
OTHERS = st.sampled_from(
    [
        InFlightElement(0, 0, is_watermark=True, timestamp=7),
        InFlightElement(0, 0, value=Timer(5, True), timestamp=5, key="a", key_group=1),
        InFlightElement(0, 0, value=Timer(6, False), key="a", key_group=1),
    ]
)
QUEUES = st.lists(st.one_of(RECORDS, OTHERS), max_size=6).map(
    lambda elements: [element._replace(sequence=number) for number, element in enumerate(elements)]
)


def in_order(elements: list[InFlightElement]) -> list[str]:
    return [repr(element) for element in sorted(elements, key=lambda element: (element.key_group, element.sequence))]


def rows(*values: Any) -> list[InFlightElement]:
    return [InFlightElement(0, number, value=value) for number, value in enumerate(values)]


@pytest.mark.parametrize("known", [UNKNOWN_TYPES, KNOWN], ids=["inferred", "declared"])
@given(queue=QUEUES)
@example(queue=rows({"a": 1, "b": "x"}, {"a": 1}, {"a": 1, "b": None}, {"b": "x", "a": 1}, {"a": 1.0, "b": "x"}, None))
@example(queue=rows((1, 2), [1, 2], bytearray(b"a"), 2**70, True))
def test_elements_come_back_as_they_were(known: ElementTypes, queue: list[InFlightElement]) -> None:
    back = in_flight_elements(in_flight_table(queue, known))
    refused = [element for element, other in zip(in_order(queue), in_order(back), strict=True) if element != other]
    # msgpack has no form for some of the values, and then their elements say so.
    assert not refused or any(isinstance(element.value, RefusedValue) for element in back)
    assert len(refused) <= sum(isinstance(element.value, RefusedValue) for element in back)


@given(st.lists(SCALARS, min_size=1, max_size=4))
def test_values_of_one_type_are_a_column_whatever_else_is_in_the_queue(values: list[Any]) -> None:
    queue = [*rows(*({"a": 1, "b": "x"},) * 3), InFlightElement(0, 3, is_watermark=True, timestamp=1)]
    table = in_flight_table([*queue, InFlightElement(0, 4, value=RefusedValue("x", "y"))], UNKNOWN_TYPES)
    assert table.schema.field("value").type == ROW
    declared = in_flight_table([*queue, *rows(*values)], ElementTypes(value=ROW))
    assert declared.schema.field("value").type == ROW


def test_keys_of_several_columns_are_structs_and_come_back_as_tuples() -> None:
    queue = [InFlightElement(0, 0, value="a", key=(1, "eu"), key_group=3)]
    inferred, declared = in_flight_table(queue, UNKNOWN_TYPES), in_flight_table(queue, KNOWN)
    assert inferred.column("key").to_pylist() == [{"_1": 1, "_2": "eu"}]
    assert declared.column("key").to_pylist() == [{"id": 1, "region": "eu"}]
    assert in_flight_elements(inferred) == in_flight_elements(declared) == queue


def test_files_whose_types_differ_are_read_together_as_msgpack_and_others_as_columns() -> None:
    tables = [in_flight_table(rows(*values), UNKNOWN_TYPES) for values in ([{"n": 1}], [{"n": "a"}], [None])]
    schema = common_schema(table.schema for table in tables)
    joined = pa.concat_tables([in_common_schema(table, schema) for table in tables])
    assert is_packed(schema.field("value"))
    assert [element.value for element in in_flight_elements(joined)] == [{"n": 1}, {"n": "a"}, None]
    alike = common_schema(in_flight_table(rows(value), UNKNOWN_TYPES).schema for value in ({"n": None}, {"n": 1}, None))
    assert alike.field("value").type == pa.struct([("n", pa.int64())])
    assert in_common_schema(tables[2], alike).column("value").to_pylist() == [None]


def test_a_watermark_stands_beside_rows_whose_columns_may_not_be_null() -> None:
    strict = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.list_(ROW), nullable=False)])
    queue = [*rows({"a": 1, "b": []}), InFlightElement(0, 1, is_watermark=True, timestamp=7)]
    stored = io.BytesIO()
    pq.write_table(in_flight_table(queue, ElementTypes(value=strict, key=strict, output=strict)), stored)

    assert in_flight_elements(pq.read_table(stored)) == queue
