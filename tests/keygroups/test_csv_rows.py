"""Rows of CSV come back as they were written."""

from __future__ import annotations

import csv
import io

from hypothesis import example, given
from hypothesis import strategies as st

from keygroups.values.texts import csv_line

ROWS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.text(st.sampled_from('a,;"\r\n \ufeff')), min_size=width, max_size=width))
)


@example(rows=[["a\rb", "c"]], delimiter=",")
@example(rows=[["\ufeffa", "c"]], delimiter=";")
@given(rows=ROWS, delimiter=st.sampled_from(",;\té"))
def test_rows_come_back_whatever_their_fields_hold(rows: list[list[str]], delimiter: str) -> None:
    data = "".join(csv_line(row, delimiter) for row in rows).encode()
    file = io.StringIO(data.decode("utf-8-sig"), newline="")
    assert list(csv.reader(file, delimiter=delimiter)) == rows


def test_none_and_empty_text_stay_apart_and_no_row_is_an_empty_line() -> None:
    assert csv_line(["a", None, ""]) == 'a,,""\n'
    assert csv_line([None]) == '""\n'
