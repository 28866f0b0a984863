"""Outputs of a function, which are dicts, tuples or record batches, as Arrow batches of one schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from async_op.spark.errors import OutputMismatch

DEAD_LETTER = "dead_letter"
"""The name of the column that tells why a row has no outputs."""

_Test = Callable[[Any], bool] | bool

_PLAIN_TYPES: list[tuple[Callable[[pa.DataType], bool], type, _Test]] = [
    (types.is_float64, float, True),
    (types.is_float64, int, range(-(2**53), 2**53 + 1).__contains__),
    (types.is_boolean, bool, True),
    (types.is_binary, bytes, True),
    # Other text may hold half a surrogate pair, which Arrow refuses.
    (types.is_string, str, str.isascii),
]
"""Column types with a quick check: for each, a Python type that fits, and which of its values fit."""

_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class OutputWriter:
    """Makes record batches of one schema from what a function returns.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches. If its last column is `DEAD_LETTER`, that column is not the function's own: it is
        null unless an output is a dict with this key.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = tuple(schema.names)
        self._known = frozenset(schema.names)
        self._fields = list(schema)
        self._letters = self._fields.pop() if self._names[-1:] == (DEAD_LETTER,) else None
        self._tests = [_tests_of(field) for field in self._fields]

    def batch_of(self, outputs: Sequence[Any]) -> pa.RecordBatch:
        """Return dicts and tuples as one batch.

        Raises
        ------
        OutputMismatch
            An output does not have the columns of the schema, or a value does not have the type of its column.
        """
        columns = self._columns(outputs)
        arrays = [_array(column, field, outputs) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check(self, output: Any) -> None:
        """Refuse an output that does not fit the schema; takes less than a microsecond if all types are plain.

        Raises
        ------
        OutputMismatch
            It does not have the columns of the schema, or a value does not have the type of its column.
        """
        for value, tests, field in zip(self._own_row(output), self._tests, self._fields, strict=False):
            test = tests.get(type(value), False)
            if test is not True and not (test and test(value)):
                _check_value(output, value, field)

    def fit(self, output: Any) -> pa.RecordBatch:
        """Return a record batch with its columns in the schema's order.

        Raises
        ------
        OutputMismatch
            It is not a record batch, or has other columns or types.
        """
        if not isinstance(output, pa.RecordBatch):
            raise OutputMismatch(output, None, f"it is a {type(output).__name__}, not a RecordBatch")
        names = output.schema.names
        arrays = [_column(output, field) for field in self._fields]
        if len(names) != len(arrays):
            raise OutputMismatch(output, None, f"its columns are {', '.join(names)}")
        if self._letters is not None:
            arrays.append(pa.nulls(output.num_rows, self._letters.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns(self, outputs: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the values of each column; fast if all outputs are tuples or all are dicts."""
        kinds = set(map(type, outputs))
        if kinds == {tuple} and set(map(len, outputs)) == {len(self._fields)}:
            columns: list[Sequence[Any]] = list(zip(*outputs, strict=True))
            return columns if self._letters is None else [*columns, [None] * len(outputs)]
        if kinds == {dict} and set().union(*outputs) <= set(self._names):
            return [[output.get(name) for output in outputs] for name in self._names]
        rows = [self._row(output) for output in outputs]
        return list(zip(*rows, strict=True)) if rows else [()] * len(self._names)

    def _own_row(self, output: Any) -> Iterable[Any]:
        """Return the values for the function's own columns."""
        if type(output) is tuple and len(output) == len(self._fields):
            return output
        if type(output) is dict and output.keys() <= self._known:
            return map(output.get, self._names)
        return self._row(output)

    def _row(self, output: Any) -> tuple[Any, ...]:
        if isinstance(output, Mapping):
            unknown = output.keys() - set(self._names)
            if unknown:
                raise OutputMismatch(output, str(min(unknown)), "there is no such column")
            return tuple(output.get(name) for name in self._names)
        if not isinstance(output, tuple):
            raise OutputMismatch(output, None, f"it is a {type(output).__name__}")
        if len(output) != len(self._fields):
            raise OutputMismatch(output, None, f"{len(output)} values for {len(self._fields)} columns")
        return output if self._letters is None else (*output, None)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    found = batch.schema.get_all_field_indices(field.name)
    if len(found) != 1:
        raise OutputMismatch(batch, field.name, f"the batch has {len(found)} such columns")
    column = batch.column(found[0])
    if column.type != field.type:
        raise OutputMismatch(batch, field.name, f"its type is {column.type}, not {field.type}")
    if column.null_count and not field.nullable:
        raise OutputMismatch(batch, field.name, "null in a column that is not nullable")
    return column


def _array(values: Sequence[Any], field: pa.Field, outputs: Sequence[Any]) -> pa.Array:
    try:
        array = pa.array(values, field.type)
    except _CONVERSION_ERRORS:
        for output, value in zip(outputs, values, strict=True):
            _check_value(output, value, field)
        raise
    if array.null_count and not field.nullable:
        first = array.is_null().index(True).as_py()
        raise OutputMismatch(outputs[first], field.name, "null in a column that is not nullable")
    return array


def _tests_of(field: pa.Field) -> dict[type, _Test]:
    """Return, by Python type, which values certainly fit a column: all, or those that pass a test."""
    tests: dict[type, _Test] = {type(None): True} if field.nullable else {}
    tests |= {kind: test for is_type, kind, test in _PLAIN_TYPES if is_type(field.type)}
    if types.is_signed_integer(field.type):
        limit = 2 ** (field.type.bit_width - 1)
        tests[int] = range(-limit, limit).__contains__
    return tests


def _check_value(output: Any, value: Any, field: pa.Field) -> None:
    if value is None and not field.nullable:
        raise OutputMismatch(output, field.name, "null in a column that is not nullable")
    try:
        pa.array([value], field.type)
    except _CONVERSION_ERRORS as error:
        reason = f"its value is of type {type(value).__name__}, not {field.type}: {error}"
        raise OutputMismatch(output, field.name, reason) from error
