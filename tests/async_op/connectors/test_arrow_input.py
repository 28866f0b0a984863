"""Data frames and tables as streams of rows, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from async_op import AsyncBatchFunction, AsyncDataStream, ElementFailed, ValueRefused
from async_op.connectors.arrow_input import ROWS_AT_ONCE
from async_op.dead_letters import row_of
from keygroups import ConfigError, codec
from keygroups.values import array_of
from tests.async_op.kit import Instant, reading_has_ended

TABLE = pa.table({"user": ["ann", "bob"], "n": pa.array([1, None], pa.int64())})
ROWS = [{"user": "ann", "n": 1}, {"user": "bob", "n": None}]


class OnlyArrow:
    """What has Arrow's stream interface and nothing else, as frames of other libraries."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


async def rows_of(stream: Any) -> list[Any]:
    return [output async for output in AsyncDataStream.ordered_wait(stream, Instant())]


STREAMS = [lambda: TABLE, lambda: TABLE.to_batches()[0], TABLE.to_reader, lambda: OnlyArrow(TABLE)]


@pytest.mark.parametrize("make", STREAMS, ids=["table", "batch", "reader", "anything"])
async def test_its_rows_are_the_elements(make: Callable[[], Any]) -> None:
    assert await rows_of(make()) == ROWS


async def test_the_rows_of_a_pandas_frame_are_the_elements() -> None:
    assert await rows_of(pd.DataFrame({"user": ["ann", "bob"], "n": [1, 2]})) == [
        {"user": "ann", "n": 1},
        {"user": "bob", "n": 2},
    ]


async def test_the_rows_of_a_duckdb_relation_are_the_elements() -> None:
    with duckdb.connect() as connection:
        assert await rows_of(connection.sql("select 1 as n, 'x' as word")) == [{"n": 1, "word": "x"}]


async def test_a_column_may_be_the_key() -> None:
    outputs = AsyncDataStream.key_ordered_wait(TABLE, lambda row, ctx: (ctx.key, row["n"]), key_by="user")

    assert sorted([output async for output in outputs], key=str) == [("ann", 1), ("bob", None)]


@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
async def test_large_batches_come_out_whole(rows: int) -> None:
    assert await rows_of(pa.table({"n": range(rows)})) == [{"n": n} for n in range(rows)]


async def test_batches_are_asked_for_one_by_one() -> None:
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            asked.append(number)
            yield pa.record_batch({"n": [number]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())
    outputs = AsyncDataStream.ordered_wait(reader, Instant(), capacity=5)
    assert asked == []
    assert await anext(outputs) == {"n": 0}

    assert len(asked) < 20
    await outputs.aclose()  # type: ignore[attr-defined]
    await reading_has_ended()


@pytest.mark.parametrize(
    ("stream", "instead"),
    [
        (pa.chunked_array([[1, 2]]), "pass a table with columns, or a list"),
        (pa.array([1, 2]), "pass a table with columns, or a list"),
        (pd.DataFrame([[1, 2]], columns=["n", "n"]), "pass a table with columns, or a list: Duplicate column names"),
        (OnlyArrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])), "give each column its own"),
    ],
    ids=["columns without names", "an array", "one name twice in pandas", "one name twice"],
)
def test_what_has_no_rows_with_names_is_refused(stream: Any, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        AsyncDataStream.ordered_wait(stream, Instant())


NOON = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
COARSE: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), NOON),
    (pa.timestamp("us"), pa.timestamp("ns"), NOON.replace(tzinfo=None)),
    (pa.duration("us"), pa.duration("ns"), timedelta(microseconds=7)),
    (pa.time64("us"), pa.time64("ns"), time(12, 0, 0, 5)),
]


def nested(kind: pa.DataType) -> list[tuple[pa.DataType, Callable[[Any], Any]]]:
    return [
        (kind, lambda value: value),
        (pa.struct([("at", kind)]), lambda value: {"at": value}),
        (pa.list_(kind), lambda value: [value, None]),
        (pa.large_list(pa.struct([("at", kind)])), lambda value: [{"at": value}]),
        (pa.list_(kind, 1), lambda value: [value]),
        (pa.map_(pa.string(), kind), lambda value: {"at": value}),
    ]


@pytest.mark.parametrize("depth", range(6))
@pytest.mark.parametrize(("coarse", "fine", "value"), COARSE, ids=["zoned", "local", "duration", "time"])
async def test_nanoseconds_come_as_types_of_python(
    coarse: pa.DataType, fine: pa.DataType, value: Any, depth: int
) -> None:
    kind, make = nested(coarse)[depth]
    column = array_of([make(value), None], kind).cast(nested(fine)[depth][0])

    [first, second] = await rows_of(pa.table({"at": column}))
    assert (first, second) == ({"at": make(value)}, {"at": None})
    assert codec.unpack(codec.pack(first, "a row")) == first


async def test_maps_are_dicts_and_one_with_a_key_twice_fails_its_row_alone() -> None:
    maps = pa.array([[("a", 1)], None, [("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int64()))

    letters: list[Any] = []
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    rows = AsyncDataStream.ordered_wait(pa.table({"of": maps}), Instant(), **options)
    assert [output async for output in rows] == [{"of": {"a": 1}}, {"of": None}, {"of": {}}]
    assert [type(letter.error) for letter in letters] == [ValueRefused]


async def test_the_times_of_a_pandas_frame_are_types_of_python() -> None:
    frame = pd.DataFrame({"at": pd.to_datetime(["2026-03-01T12:00:00", None])})

    rows = await rows_of(frame)
    assert rows == [{"at": datetime(2026, 3, 1, 12)}, {"at": None}]
    assert type(rows[0]["at"]) is datetime


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns")], ids=str)
async def test_nanoseconds_that_would_be_lost_are_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(ElementFailed, match=r"column 'at'.*round it"):
        await rows_of(pa.table({"at": pa.array([1001], kind)}))


NO_UTF_8 = pa.array([b"a", b"\xed\xa0\xbd", b"c"])
BAD_CELLS: list[tuple[str, pa.Array]] = [
    ("a date in the year 10000", pa.array([0, 2_932_897, 1], pa.date32())),
    ("a time in the year 10000", pa.array([0, 253_402_300_800_000_000, 1], pa.timestamp("us"))),
    ("nanoseconds", pa.array([0, 1, 1000], pa.timestamp("ns"))),
    ("text that is no UTF-8", pa.Array.from_buffers(pa.string(), 3, NO_UTF_8.buffers())),
]


@pytest.mark.parametrize(("cell", "column"), BAD_CELLS, ids=[name for name, _ in BAD_CELLS])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("key_by", [None, "n"])
async def test_a_row_that_python_cannot_read_is_the_fault_of_one_element(
    cell: str, column: pa.Array, batched: bool, key_by: str | None
) -> None:
    letters: list[Any] = []
    called: list[int] = []

    async def note(row: Any) -> int:
        called.append(row["n"])
        return int(row["n"])

    class NoteAll(AsyncBatchFunction):
        max_batch_size = 2

        async def async_invoke_batch(self, rows: Any, ctxs: Any) -> Any:
            return [[await note(row)] for row in rows]

    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "key_by": key_by}
    table = pa.table({"n": [0, 1, 2], "cell": column})
    stream = AsyncDataStream.ordered_wait(table, NoteAll() if batched else note, **options)
    assert [output async for output in stream] == [0, 2]
    assert sorted(called) == [0, 2]
    (letter,) = letters
    assert isinstance(letter.error, ValueRefused), cell
    assert (letter.attempts, row_of(letter)["value_encoding"]) == (0, "repr")
    assert "'n': '1'" in letter.value.text
