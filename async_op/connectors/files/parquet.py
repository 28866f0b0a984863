"""Rows of Parquet files, from any row on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from async_op.arrow_stream import ROWS_AT_ONCE, rows_of
from async_op.connectors.errors import FileShrank, MalformedRecord
from async_op.connectors.files.text import Incomplete, Row


def parquet_blocks(file: BinaryIO, path: str, position: int, *, grows: bool) -> Iterator[list[Row]]:
    """Yield the rows from a position on, in blocks of bounded size; row groups before it are not read.

    Raises
    ------
    Incomplete
        The file has no footer, and may get one because it grows.
    MalformedRecord
        It is no Parquet file.
    FileShrank
        It has fewer rows than the position says.
    """
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file)
    except pa.ArrowInvalid as error:
        if grows:
            raise Incomplete from error
        raise MalformedRecord(path, position, f"no Parquet file: {error}") from error
    with opened:
        if opened.metadata.num_rows < position:
            raise FileShrank(path, position)
        yield from _rows_from(opened, position)


def _rows_from(opened: Any, position: int) -> Iterator[list[Row]]:
    first_row = 0
    for number in range(opened.metadata.num_row_groups):
        end = first_row + opened.metadata.row_group(number).num_rows
        if position < end:
            row = first_row
            for batch in opened.iter_batches(ROWS_AT_ONCE, row_groups=[number]):
                rest = batch.slice(max(position - row, 0))
                row += batch.num_rows
                if rest.num_rows:
                    yield list(zip(rows_of(rest), range(row - rest.num_rows + 1, row + 1), strict=True))
        first_row = end
