"""Rows of CSV come back as they were written."""

from __future__ import annotations

import csv
import io

from hypothesis import example, given
from hypothesis import strategies as st

from keygroups.values.texts import csv_line

ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.text(st.sampled_from('a,"\r\n ')), min_size=width, max_size=width))
)


@example(rows=[["a\rb", "c"]])
@given(rows=ROWS)
def test_rows_come_back_whatever_line_ends_their_fields_have(rows: list[list[str]]) -> None:
    file = io.StringIO(newline="")
    file.writelines(map(csv_line, rows))
    file.seek(0)
    assert list(csv.reader(file)) == rows


def test_none_and_empty_text_stay_apart_and_no_row_is_an_empty_line() -> None:
    assert csv_line(["a", None, ""]) == 'a,,""\n'
    assert csv_line([None]) == '""\n'
