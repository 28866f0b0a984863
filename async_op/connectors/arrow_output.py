"""Outputs of a job as Arrow batches: written exactly, or refused with the output named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from async_op.connectors.errors import UnwritableValue
from keygroups.arguments import check_instance
from keygroups.values import Misfit, TooLarge, in_pieces, infer_schema, rows_to_batch
from keygroups.values import rows as rows_of_values
from keygroups.values.lossless_casts import cast_batch

ROWS_AT_ONCE = 8192
"""How many outputs become one batch."""

_T = TypeVar("_T")


def names_of(values: Sequence[Any]) -> list[str]:
    """Return the names of all fields, in the order in which they first appear; raises `UnwritableValue` without any."""
    return _named(values, lambda: rows_of_values.names_of(values))


def check_schema(schema: object) -> None:
    """Raise `ConfigError` unless the declared columns of a sink are a schema of Arrow, or None."""
    check_instance("schema", schema, (pa.Schema, type(None)), reason="pass a pyarrow.Schema, or None")


def schema_of(values: Sequence[Any], *, partial: bool = False) -> pa.Schema:
    """Return a schema in which all outputs fit, and later ones, too: see `keygroups.values.infer_schema`.

    Raises
    ------
    UnwritableValue
        An output is not a dict with text as keys, or its types differ from other outputs.
    """
    return _named(values, lambda: infer_schema(values, partial=partial))


def batches_of(values: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield outputs as batches of bounded size; a field that an output does not have is null.

    Raises
    ------
    UnwritableValue
        An output has a field that the schema does not have, or one that its type would change.
    """
    for start in range(0, len(values), ROWS_AT_ONCE):
        yield from in_pieces(values[start : start + ROWS_AT_ONCE], partial(_batch_of, schema), start)


def _batch_of(schema: pa.Schema, rows: Sequence[Any], start: int) -> pa.RecordBatch:
    return _named(rows, lambda: rows_to_batch(rows, schema), start)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, by name; a column that it does not have is null.

    Raises
    ------
    UnwritableValue
        It has a column that the schema does not have, or one whose values its type would change.
    """
    try:
        return cast_batch(batch, schema)
    except Misfit as misfit:
        raise UnwritableValue(batch, misfit.reason, column=misfit.column) from misfit


def _named(values: Sequence[Any], convert: Callable[[], _T], start: int = 0) -> _T:
    try:
        return convert()
    except TooLarge:
        raise
    except Misfit as misfit:
        value, index = values[misfit.row], start + misfit.row
        hint = "; a plain function yields several outputs one by one" if isinstance(value, list) else ""
        raise UnwritableValue(value, misfit.reason + hint, column=misfit.column or None, index=index) from misfit
