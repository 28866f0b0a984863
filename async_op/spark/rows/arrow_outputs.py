"""Outputs of a function, which are dicts, tuples or record batches, as Arrow batches of one schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import types

from async_op.spark.errors import OutputMismatch
from keygroups.values import SPARK, ColumnEncoder, Misfit, TooLarge, in_pieces

DEAD_LETTER = "dead_letter"
"""The name of the column that tells why a row has no outputs."""

_INTEGER = "type({0}) is int and {1} <= {0} <= {2}"

_PLAIN_TYPES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (types.is_float64, f"type({{0}}) is float or {_INTEGER.format('{0}', -(2**53), 2**53)}"),
    (types.is_boolean, "type({0}) is bool"),
    (types.is_binary, "type({0}) is bytes"),
    # Other text may hold half a surrogate pair, which Arrow refuses.
    (types.is_string, "type({0}) is str and {0}.isascii()"),
    *(
        (getattr(types, f"is_int{bits}"), _INTEGER.format("{0}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for bits in (8, 16, 32, 64)
    ),
]
"""Column types with a quick check: for each, the expression that is true only for values that certainly fit."""


class OutputWriter:
    """Makes record batches of one schema from what a function returns.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches. If its last column is `DEAD_LETTER`, that column is not the function's own: it is
        null unless an output is a dict with this key.
    """

    certain: frozenset[type] = frozenset()

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = tuple(schema.names)
        self._known = frozenset(schema.names)
        self._fields = list(schema)
        self._letters = self._fields.pop() if self._names[-1:] == (DEAD_LETTER,) else None
        self._own_names = self._names[: len(self._fields)]
        self._encoders = [ColumnEncoder(field.type, SPARK, field.name) for field in schema]
        self._values_fit = _check_of(self._fields, self._encoders[: len(self._fields)])

    def __reduce__(self) -> tuple[type[OutputWriter], tuple[pa.Schema]]:
        return OutputWriter, (self.schema,)

    def batches_of(self, outputs: Sequence[Any]) -> list[pa.RecordBatch]:
        """Return dicts and tuples as one batch, or as several if they are too large for one.

        Raises
        ------
        OutputMismatch
            An output does not have the columns of the schema, or a value does not have the type of its column.
        """
        return [*in_pieces(outputs, lambda some, _: self._batch_of(some))]

    def _batch_of(self, outputs: Sequence[Any]) -> pa.RecordBatch:
        columns = self._columns(outputs)
        of_columns = zip(columns, self.schema, self._encoders, strict=True)
        arrays = [_array(column, field, encoder, outputs) for column, field, encoder in of_columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def check(self, output: Any) -> None:
        """Refuse an output that does not fit the schema.

        Raises
        ------
        OutputMismatch
            It does not have the columns of the schema, or a value does not have the type of its column.
        """
        if not self.fits(output):
            for value, field, encoder in zip(self._row(output), self._fields, self._encoders, strict=False):
                _array([value], field, encoder, [output])

    def fits(self, output: Any) -> bool:
        """Tell whether a dict or tuple certainly fits the schema; takes a fraction of a microsecond for plain types."""
        kind = type(output)
        if kind is tuple:
            return len(output) == len(self._fields) and self._values_fit(*output)
        return kind is dict and output.keys() <= self._known and self._values_fit(*map(output.get, self._own_names))

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


def _array(values: Sequence[Any], field: pa.Field, encoder: ColumnEncoder, outputs: Sequence[Any]) -> pa.Array:
    try:
        array = encoder.array(values)
    except TooLarge:
        raise
    except Misfit as misfit:
        found = f"its value is of type {type(values[misfit.row]).__name__}, not {field.type}"
        inside = misfit.column.removeprefix(field.name)
        reason = f"{found}: {inside and f'at {inside}, '}{misfit.reason}"
        raise OutputMismatch(outputs[misfit.row], field.name, reason) from misfit
    if array.null_count and not field.nullable:
        first = array.is_null().index(True).as_py()
        raise OutputMismatch(outputs[first], field.name, "null in a column that is not nullable")
    return array


def _check_of(fields: Sequence[pa.Field], encoders: Sequence[ColumnEncoder]) -> Callable[..., bool]:
    """Return the function that tells whether the values of a row, one argument each, certainly fit.

    It is made as one expression, because a loop over columns and their checks would take three times as long.
    """
    # No text from outside gets into the code: variables are numbered, and types are looked up in `_PLAIN_TYPES`.
    names = [f"v{number}" for number in range(len(fields))]
    tests = [_test_of(field, name) for field, name in zip(fields, names, strict=True)]
    of_fields = zip(names, fields, encoders, strict=True)
    converters = {f"{name}_fits": partial(_fits, field, encoder) for name, field, encoder in of_fields}
    source = f"lambda {', '.join(names)}: {' and '.join(tests) or True}"
    check: Callable[..., bool] = eval(source, converters)  # noqa: S307 - made of nothing but numbers and the text above
    return check


def _test_of(field: pa.Field, name: str) -> str:
    tests = [test.format(name) for is_type, test in _PLAIN_TYPES if is_type(field.type)]
    if field.nullable:
        tests.append(f"{name} is None")
    return f"({' or '.join([*tests, f'{name}_fits({name})'])})"


def _fits(field: pa.Field, encoder: ColumnEncoder, value: Any) -> bool:
    try:
        _array([value], field, encoder, [value])
    except OutputMismatch:
        return False
    return True
