"""Outputs become as many batches as their texts need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from async_op.connectors import UnwritableValue
from async_op.connectors.arrow_output import batches_of
from keygroups.values import columns

SCHEMA = pa.schema([("text", pa.string())])


@pytest.fixture
def small_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a column have ten characters in place of 2 GiB: Arrow returns several arrays for what is more."""

    def array(values: list[Any], type_: pa.DataType) -> Any:
        made = pa.array(values, type_)
        return made if sum(map(len, values)) <= 10 else pa.chunked_array([made])

    monkeypatch.setattr(columns, "pa", SimpleNamespace(**vars(pa) | {"array": array}))


@pytest.mark.usefixtures("small_columns")
def test_texts_that_are_too_large_for_one_column_are_divided() -> None:
    rows = [{"text": text} for text in ("abc", "def", "ghi", "jkl", "0123456789")]
    batches = list(batches_of(rows, SCHEMA))
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    assert [batch.num_rows for batch in batches] == [2, 1, 1, 1]


@pytest.mark.usefixtures("small_columns")
def test_a_text_that_is_too_large_alone_is_the_one_that_is_named() -> None:
    rows = [{"text": text} for text in ("abc", "def", "0123456789a", "ghi")]
    with pytest.raises(UnwritableValue, match="too large for a column") as raised:
        list(batches_of(rows, SCHEMA))
    assert (raised.value.index, raised.value.column) == (2, "text")
