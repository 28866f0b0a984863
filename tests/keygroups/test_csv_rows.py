"""Rows of CSV come back as they were written."""

from __future__ import annotations

import csv
import io

from hypothesis import example, given
from hypothesis import strategies as st

from keygroups.csv_rows import CsvWriter

ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.text(st.sampled_from('a,"\r\n ')), min_size=width, max_size=width))
)


@example(rows=[["a\rb", "c"]])
@given(rows=ROWS)
def test_rows_come_back_whatever_line_ends_their_fields_have(rows: list[list[str]]) -> None:
    file = io.StringIO(newline="")
    CsvWriter(file).writerows(rows)
    file.seek(0)
    assert list(csv.reader(file)) == rows
