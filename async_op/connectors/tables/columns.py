"""The columns of a table that is made for rows: types that Delta and Iceberg have, and that lose no value."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import types

from async_op.connectors.errors import UnsupportedColumn, UnwritableValue
from keygroups.values import Misfit, check_complete

_DIGITS_MAX = 38
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types that tables lack, and a type that has all of their values."""
_SAME = (
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_boolean,
    types.is_string,
    types.is_large_string,
    types.is_binary,
    types.is_large_binary,
    types.is_fixed_size_binary,
    types.is_date32,
)
_NUMBER_OR_TEXT = "tables have no such type: pass a number, such as microseconds as an integer, or text"


def table_schema(schema: pa.Schema, target: str, *, has_times: bool) -> pa.Schema:
    """Return the columns of a table that is made for rows: times with a zone are kept as UTC, the only one tables know.

    Types that a table lacks are widened where that keeps every value, and refused otherwise. Nothing is left to the
    package that writes the table: some of them store unsigned integers of 64 bits as signed ones, and cut nanoseconds.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns of the rows, or those that the user has declared.
    target : str
        The table, for messages.
    has_times : bool
        Whether the format has times of day.

    Raises
    ------
    UnsupportedColumn
        The table cannot have a column.
    UnwritableValue
        A column has no type, because it is null or empty in all rows.
    """
    for field in schema:
        try:
            check_complete(field.type, field.name)
        except Misfit as misfit:
            reason = misfit.place_and_reason
            raise UnwritableValue({field.name: None}, reason, target=target, column=field.name) from misfit
    typer = _Types(target, has_times)
    typer.check_names(schema, "")
    return pa.schema([field.with_type(typer.of(field.type, field.name)) for field in schema])


class _Types:
    def __init__(self, target: str, has_times: bool) -> None:
        self._target = target
        self._has_times = has_times

    def of(self, kind: pa.DataType, column: str) -> pa.DataType:
        """Return the type that a column gets."""
        if kind in _WIDER:
            return _WIDER[kind]
        if any(is_kind(kind) for is_kind in _SAME):
            return kind
        if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            return self.of(kind.value_type, column)
        if types.is_nested(kind) and not types.is_union(kind):
            return self._nested(kind, column)
        if types.is_timestamp(kind):
            self._check_unit(kind, column, "pass pyarrow.timestamp('us'); nanoseconds would be cut")
            return pa.timestamp("us", None if kind.tz is None else "UTC")
        if types.is_time(kind) and self._has_times:
            self._check_unit(kind, column, "pass pyarrow.time64('us'); nanoseconds would be cut")
            return pa.time64("us")
        if types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
            return pa.decimal128(kind.precision, kind.scale)
        raise UnsupportedColumn(self._target, column, str(kind), _advice(kind))

    def check_names(self, fields: Iterable[pa.Field], within: str) -> None:
        """Refuse columns without a name, and names that differ in case only: Delta does not tell them apart."""
        seen: set[str] = set()
        for field in fields:
            column = f"{within}{field.name}"
            if not field.name:
                raise UnsupportedColumn(self._target, column, str(field.type), "give it a name")
            if field.name.casefold() in seen:
                advice = "another column has this name in another case, and readers do not tell them apart: rename it"
                raise UnsupportedColumn(self._target, column, str(field.type), advice)
            seen.add(field.name.casefold())

    def _nested(self, kind: pa.DataType, column: str) -> pa.DataType:
        if types.is_struct(kind):
            self.check_names(kind, f"{column}.")
            return pa.struct([field.with_type(self.of(field.type, f"{column}.{field.name}")) for field in kind])
        if types.is_map(kind):
            return pa.map_(self.of(kind.key_type, f"{column}.key"), self.of(kind.item_type, f"{column}.value"))
        return pa.list_(kind.value_field.with_type(self.of(kind.value_type, f"{column}[]")))

    def _check_unit(self, kind: pa.DataType, column: str, advice: str) -> None:
        if kind.unit == "ns":
            raise UnsupportedColumn(self._target, column, str(kind), advice)


def _advice(kind: pa.DataType) -> str:
    if types.is_uint64(kind):
        return "half of its values are too large for tables: pass pyarrow.decimal128(20, 0)"
    if types.is_decimal(kind):
        return f"tables have decimals of at most {_DIGITS_MAX} digits: pass text"
    if types.is_date64(kind):
        return "pass pyarrow.date32()"
    return _NUMBER_OR_TEXT
