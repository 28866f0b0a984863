"""What is read of CSV is what Python's csv module reads, and every position is a place to go on from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from async_op.connectors import MalformedRecord, RecordTooLong, Undecodable
from async_op.connectors.files import text
from async_op.connectors.files.compression import content_of
from async_op.connectors.files.text import TextReader

BOM = "\ufeff"
CHARACTERS = st.sampled_from('ab",;\n\r \t\v\f\x1c\x85\u2028\u2029é\U0001f600\0' + "'\\")
TEXTS = st.text(CHARACTERS, max_size=12)


def read(
    data: bytes,
    format: str,
    position: int = 0,
    *,
    limit: int = 10_000,
    grows: bool = False,
    chunk: int = 2**18,
    **options: Any,
) -> list[Any]:
    reader = TextReader(content_of(io.BytesIO(data), "x"), "x", max_record_bytes=limit, grows=grows, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk)
        return [item for block in reader.blocks(format, position) for item in block]


def shown(items: list[Any]) -> list[Any]:
    """Return items in a form that can be compared: errors have no equality."""
    return [
        (item.raw, str(item.error), item.position) if isinstance(item, Undecodable) else (item[0], item[2])
        for item in items
    ]


def position_of(item: Any) -> int:
    return item.position if isinstance(item, Undecodable) else item[2]


def grown(data: bytes, format: str, chunk: int) -> list[Any]:
    """Read a file that gets its bytes one by one, as its reader does: anew from the last position."""
    found: list[Any] = []
    for size in range(len(data) + 1):
        found += read(data[:size], format, position_of(found[-1]) if found else 0, grows=True, chunk=chunk)
    return found


def by_csv(data: bytes, delimiter: str) -> list[list[str]]:
    lines = io.StringIO(data.decode("utf-8-sig"), newline="")
    return [row for row in csv.reader(lines, delimiter=delimiter) if row]


def expected(header: Sequence[str], rows: list[list[str]]) -> list[Any]:
    return [dict(zip(header, row, strict=True)) if len(row) == len(header) else len(row) for row in rows]


def found(items: list[Any]) -> list[Any]:
    return [int(item.error.reason.split()[0]) if isinstance(item, Undecodable) else item[0] for item in items]


@example(written="a\r\nx\ry", bom=False, chunk=1, delimiter=",", columns=None)
@example(written='a,b\n1,2"3\n4,5\n', bom=True, chunk=3, delimiter=",", columns=None)
@example(written='"1";2\n', bom=True, chunk=3, delimiter=";", columns=("a", "b"))
@given(
    written=TEXTS | st.lists(TEXTS, max_size=6).map("\n".join),
    bom=st.booleans(),
    chunk=st.integers(1, 9),
    delimiter=st.sampled_from(",;\té"),
    columns=st.none() | st.just(("a", "b")),
)
def test_any_text_is_read_as_the_csv_module_reads_it(
    written: str, bom: bool, chunk: int, delimiter: str, columns: tuple[str, ...] | None
) -> None:
    data = (BOM * bom + written).encode()
    rows = by_csv(data, delimiter)
    header = (rows.pop(0) if rows else []) if columns is None else columns
    if not header or len(set(header)) < len(header):
        return
    options: dict[str, Any] = {"chunk": chunk, "delimiter": delimiter, "columns": columns}
    items = read(data, "csv", **options)
    assert found(items) == expected(header, rows)
    for done, item in enumerate(items, 1):
        assert shown(read(data, "csv", position_of(item), **options)) == shown(items[done:])


ROWS = st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(TEXTS, min_size=width, max_size=width), max_size=6))


@given(
    rows=ROWS,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    chunk=st.integers(1, 9),
)
def test_rows_that_are_written_come_back_and_a_growing_file_gives_the_same(rows, quoting, end, chunk) -> None:
    width = len(rows[0]) if rows else 1
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=quoting, lineterminator="\r\n" if quoting == csv.QUOTE_MINIMAL else end)
    writer.writerows([[f"column {number}" for number in range(width)], *rows])
    data = written.getvalue().encode()
    items = read(data, "csv", chunk=chunk)
    assert [list(value.values()) for value, _, _ in items] == rows
    # One more byte says that a \r at the end is no half of \r\n.
    assert shown(grown(data + end.encode(), "csv", chunk)) == shown(items)


@given(lines=st.lists(TEXTS.filter(lambda line: "\n" not in line), max_size=6), chunk=st.integers(1, 9))
def test_lines_are_values_and_only_newlines_end_them(lines: list[str], chunk: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    items = read(data, "lines", chunk=chunk)
    assert [value for value, _, _ in items] == [line.removesuffix("\r") for line in lines]
    assert shown(grown(data, "lines", chunk)) == shown(items)
    for done, item in enumerate(items, 1):
        assert shown(read(data, "lines", position_of(item), chunk=chunk)) == shown(items[done:])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
LINES = st.one_of(
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode()),
    st.sampled_from([b"{", b'"\xff"', b'{"a":1,"a":2}', b"", b"  \r", b"x" * 60, b"[" * 50, b"\xef\xbb\xbf1"]),
)


@given(lines=st.lists(LINES, max_size=6), ends=st.booleans(), chunk=st.integers(1, 9))
def test_a_bad_line_of_json_costs_itself_only(lines: list[bytes], ends: bool, chunk: int) -> None:
    data = b"\n".join(lines) + b"\n" * ends
    items = read(data, "json", chunk=chunk)
    good = []
    for number, line in enumerate(lines):
        try:
            value = json.loads(line.decode("utf-8" if number else "utf-8-sig"))
        except ValueError:
            continue
        if line != b'{"a":1,"a":2}':
            good.append(value)
    assert [item[0] for item in items if not isinstance(item, Undecodable)] == good
    assert all(isinstance(item.error, MalformedRecord) for item in items if isinstance(item, Undecodable))
    assert shown(grown(data + b"\n", "json", chunk))[: len(items) - 1] == shown(items)[:-1]
    for done, item in enumerate(items, 1):
        assert shown(read(data, "json", position_of(item), chunk=chunk)) == shown(items[done:])


@given(data=st.lists(st.sampled_from([b"1", b"a", b"\n", b"\r"]), min_size=1, max_size=9), chunk=st.integers(1, 9))
@pytest.mark.parametrize("format", ["lines", "csv"])
def test_a_line_that_was_read_without_its_end_is_one_record_whatever_is_added(format, data, chunk) -> None:
    whole = b"h\n" + b"".join(data).replace(b"\r", b"" if format == "lines" else b"\r") + b"\n"
    records = [item[:1] for item in read(whole, format)]
    for size in range(3, len(whole)):
        first = read(whole[:size], format, chunk=chunk)
        rest = read(whole, format, position_of(first[-1]) if first else 0, chunk=chunk)
        given = [item[:1] for item in [*first, *rest] if not isinstance(item, Undecodable)]
        # Where the line went on, its record has its beginning only, and the rest of it is said to be none.
        assert len(given) == len(records)
        assert sum(one != other for one, other in zip(given, records, strict=True)) == len([*first, *rest]) - len(given)


@given(long=st.integers(41, 90), before=st.integers(0, 3), after=st.integers(0, 3), chunk=st.integers(1, 50))
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_row_that_is_too_long_costs_itself_only(end, long, before, after, chunk) -> None:
    data = end.join([b"a", *[b"1"] * before, b"x" * long, *[b"2"] * after, b""])
    items = read(data, "csv", limit=40, chunk=chunk)
    assert [type(item.error) if isinstance(item, Undecodable) else item[0]["a"] for item in items] == [
        *["1"] * before,
        RecordTooLong,
        *["2"] * after,
    ]
    for done, item in enumerate(items, 1):
        assert shown(read(data, "csv", position_of(item), limit=40, chunk=chunk)) == shown(items[done:])


@pytest.mark.parametrize("grows", [False, True])
def test_a_quote_that_is_never_closed_costs_its_line_only(grows: bool) -> None:
    data = b'a,b\n1,2\n"3,4\n' + b"5,6\n" * 20
    items = read(data, "csv", limit=40, grows=grows)
    assert [isinstance(item, Undecodable) for item in items[:3]] == [False, True, False]
    assert items[1].raw == b'"3,4\n'
    assert len(items) == 22


@pytest.mark.parametrize("size", [131_072, 131_073, 500_000])
def test_fields_are_as_long_as_records_may_be(size: int) -> None:
    before = csv.field_size_limit()
    data = b"a,b\n1,2\n" + b"x" * size + b",3\n4,5\n"
    items = read(data, "csv", limit=10**6)
    assert [value["a"] for value, _, _ in items] == ["1", "x" * size, "4"]
    assert items[-1][2] == len(data)
    assert csv.field_size_limit() == before


def test_a_stray_quote_inside_a_field_holds_up_nothing() -> None:
    items = read(b'name,inches\nscrew,5"\nnail,2"\n', "csv", grows=True)
    assert [value for value, _, _ in items] == [{"name": "screw", "inches": '5"'}, {"name": "nail", "inches": '2"'}]


def test_blank_values_of_one_column_are_values() -> None:
    assert [value["a"] for value, _, _ in read(b'a\n  \n""\n\n\t\n', "csv")] == ["  ", "", "\t"]
