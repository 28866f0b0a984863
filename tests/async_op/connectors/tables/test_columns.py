"""The columns of a table that is made: types that every format has, or an error that names the column."""

from __future__ import annotations

import itertools
import json
import pickle
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op.connectors import UnsupportedColumn, UnwritableValue
from async_op.connectors.epoch_rows import dicts_of
from async_op.connectors.tables.copying import fit_of
from async_op.connectors.tables.table_sink import table_schema
from tests.async_op.connectors.tables.targets import Delta, Iceberg, Target
from tests.async_op.job.kit import new_job, same
from tests.quick import few_are_quick, first_is_quick

KINDS = pytest.mark.parametrize("kind", [Delta, Iceberg])
WIDENED = {
    "uint8": (pa.uint8(), 255),
    "uint16": (pa.uint16(), 65_535),
    "uint32": (pa.uint32(), 2**32 - 1),
    "seconds": (pa.timestamp("s"), datetime(2026, 1, 2, 3)),
    "milliseconds": (pa.timestamp("ms"), datetime(2026, 1, 2, 3, 4, 5, 678_000)),
    "half": (pa.float16(), 1.5),
    "decimal256": (pa.decimal256(30, 2), Decimal("1.50")),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "a"),
    "view": (pa.string_view(), "a"),
    "list": (pa.large_list(pa.uint8()), [255]),
}
LACKING = {
    "uint64": pa.uint64(),
    "nanoseconds": pa.timestamp("ns"),
    "nanoseconds in UTC": pa.timestamp("ns", "UTC"),
    "duration": pa.duration("us"),
    "interval": pa.month_day_nano_interval(),
    "decimal": pa.decimal256(50, 2),
    "date64": pa.date64(),
    "time in nanoseconds": pa.time64("ns"),
    "union": pa.dense_union([pa.field("a", pa.int8())]),
}


@pytest.mark.parametrize(("kind", "name"), few_are_quick(itertools.product([Delta, Iceberg], WIDENED)))
async def test_a_type_that_tables_lack_is_widened_where_it_keeps_every_value(
    tmp_path: Path, kind: type[Target], name: str
) -> None:
    type_, value = WIDENED[name]
    target = kind(tmp_path)
    sink = target.sink()
    sink._schema = pa.schema([("v", type_)])
    await sink.write([{"v": value}], 1)
    await sink.close()
    assert target.rows() == [{"v": value}]


@pytest.mark.parametrize(("kind", "name"), few_are_quick(itertools.product([Delta, Iceberg], LACKING)))
@pytest.mark.parametrize("nested", first_is_quick([False, True]), ids=["", "nested"])
async def test_a_type_that_tables_lack_is_refused_with_the_column(
    tmp_path: Path, kind: type[Target], name: str, nested: bool
) -> None:
    target = kind(tmp_path)
    sink = target.sink()
    sink._schema = pa.schema([("n", pa.int64()), ("v", pa.list_(LACKING[name]) if nested else LACKING[name])])
    with pytest.raises(UnsupportedColumn) as raised:
        await sink.write([{"n": 1}], 1)
    await sink.close()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.column, error.type) == ("v[]" if nested else "v", str(LACKING[name]))
    assert "pass" in error.advice
    assert target.rows() == []


@KINDS
@pytest.mark.parametrize(
    ("row", "column"),
    [({"": 1}, ""), ({"a": 1, "A": 2}, "A"), ({"s": {"n": 1, "N": 2}}, "s.N"), ({"s": {"": 1}}, "s.")],
)
async def test_a_name_that_tables_cannot_have_is_refused(
    tmp_path: Path, kind: type[Target], row: dict[str, Any], column: str
) -> None:
    target = kind(tmp_path)
    sink = target.sink()
    with pytest.raises(UnsupportedColumn) as raised:
        await sink.write([row], 1)
    await sink.close()
    assert (raised.value.column, target.rows()) == (column, [])


@KINDS
async def test_a_row_alone_that_needs_a_column_which_tables_lack_is_left_out_if_on_error_says_so(
    tmp_path: Path, kind: type[Target]
) -> None:
    """No table has this type yet, so without it the others make one."""
    rows = [{"n": 1, "v": None}, {"n": 2, "v": None, "for": timedelta(1)}, {"n": 3, "v": "a"}, {"n": 4, "": 1}]
    target = kind(tmp_path)
    sink = target.sink()
    sink.on_error = "skip"
    job = new_job(rows, same, sink, snapshot_interval=600.0)
    await job.run()
    assert target.numbers() == [1, 3]
    assert job.progress().refused == 2


@KINDS
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (timedelta(1), UnsupportedColumn),
        (None, UnwritableValue),
        ([], UnwritableValue),
        ([None], UnwritableValue),
        ({}, UnwritableValue),
        ({"a": None}, UnwritableValue),
        (2**63, UnwritableValue),
        (Decimal("1" * 45), UnwritableValue),
    ],
    ids=repr,
)
async def test_a_value_that_fixes_no_column_of_a_first_epoch_is_refused_with_the_column(
    tmp_path: Path, kind: type[Target], value: Any, error: type[Exception]
) -> None:
    target = kind(tmp_path)
    sink = target.sink()
    with pytest.raises(error, match="'v"):
        await sink.write([{"n": 1, "v": value}], 1)
    await sink.close()
    assert target.rows() == []


@KINDS
async def test_a_first_epoch_leaves_room_for_later_ones(tmp_path: Path, kind: type[Target]) -> None:
    target = kind(tmp_path)
    sink = target.sink()
    await sink.write([{"price": Decimal("1.10"), "n": 1, "at": datetime(2026, 1, 2)}], 1)
    later = {"price": Decimal("1234567890.123456"), "n": 2**60, "at": datetime(2026, 1, 2, 3, 4, 5, 6)}
    await sink.write([later], 2)
    await sink.close()
    assert later in target.rows()


async def test_delta_has_no_times_of_day_and_iceberg_has(tmp_path: Path) -> None:
    row = {"at": time(1, 2, 3, 4)}
    with pytest.raises(UnsupportedColumn):
        await Delta(tmp_path).sink().write([row], 1)
    iceberg = Iceberg(tmp_path)
    sink = iceberg.sink()
    await sink.write([row], 1)
    await sink.close()
    assert iceberg.rows() == [row]


_SCALARS = [*LACKING.values(), *(type_ for type_, _ in WIDENED.values()), pa.int8(), pa.string(), pa.date32()]
TYPES = st.recursive(
    st.sampled_from(_SCALARS),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda one: pa.struct([("a", pa.int8()), ("b", one)])),
        inner.map(lambda one: pa.map_(pa.string(), one)),
    ),
    max_leaves=3,
)


@given(TYPES, st.booleans())
def test_the_columns_of_a_made_table_need_no_second_look(type_: pa.DataType, has_times: bool) -> None:
    schema = pa.schema([("v", type_)])
    try:
        made = table_schema(schema, "t", has_times=has_times)
    except UnsupportedColumn as error:
        assert error.column[0] == "v"
    else:
        assert table_schema(made, "t", has_times=has_times) == made


def test_a_map_of_spark_is_an_object_in_jsonb() -> None:
    numbers = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    (row, empty) = dicts_of(pa.record_batch([numbers], ["m"]))

    assert json.loads(fit_of("jsonb")(row["m"]).dumps(None)) == {"a": 1}
    assert empty == {"m": None}
