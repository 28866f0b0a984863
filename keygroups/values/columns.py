"""Converts Python values to Arrow arrays without loss, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import types

from keygroups.values.lossless_casts import coarse
from keygroups.values.scalars import CONVERSION_ERRORS, Misfit, Refusal, TooLarge
from keygroups.values.type_checks import EXACT, Rules, fitter_of
from keygroups.values.zones import has_zones_of_pytz, zone_of

_Value = TypeVar("_Value")
_Made = TypeVar("_Made")


class ColumnEncoder:
    """Encodes values as a column. Columns of plain values are converted as a whole. Any thread may call it.

    Parameters
    ----------
    type_ : pyarrow.DataType
        The type of the column.
    rules : Rules
        What the column accepts besides values of its own Python type.
    column : str
        The name of the column, for the error.
    """

    __slots__ = ("_column", "_fitter", "_type")

    def __init__(self, type_: pa.DataType, rules: Rules = EXACT, column: str = "") -> None:
        self._type = type_
        self._fitter = fitter_of(type_, rules)
        self._column = column

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return values as a column; None is null.

        Raises
        ------
        Misfit
            A value would change.
        TooLarge
            The values together need more than the 2 GiB that a column has.
        """
        try:
            array = pa.array(values if self._fitter.is_plain(values) else self._fitted(values), self._type)
        except CONVERSION_ERRORS:
            # Arrow's own message shows the value.
            raise self._first_misfit(values) from None
        if isinstance(array, pa.ChunkedArray):
            raise self._too_large(values)
        return array

    def _fitted(self, values: Sequence[Any]) -> list[Any]:
        one, fitted = self._fitter.one, []
        for row, value in enumerate(values):
            try:
                fitted.append(None if value is None else one(value))
            except Refusal as refusal:
                raise Misfit(row, self._column + refusal.path, refusal.reason) from None
        return fitted

    def _first_misfit(self, values: Sequence[Any]) -> Misfit:
        """Return why Arrow refused a column."""
        try:
            fitted = self._fitted(values)
        except Misfit as misfit:
            return misfit
        except CONVERSION_ERRORS:
            return Misfit(0, self._column, f"a value does not fit {self._type}")
        for row, value in enumerate(fitted):
            try:
                pa.array([value], self._type)
            except CONVERSION_ERRORS:
                reason = f"it is a {type(values[row]).__qualname__} that does not fit {self._type}"
                return Misfit(row, self._column, reason)
        return self._too_large(values)

    def _too_large(self, values: Sequence[Any]) -> Misfit:
        if len(values) == 1:
            return Misfit(0, self._column, f"it is too large for a column of {self._type}")
        return TooLarge(0, self._column, f"the values are too large for one column of {self._type}")


def in_pieces(
    values: Sequence[_Value], make: Callable[[Sequence[_Value], int], _Made], start: int = 0
) -> Iterator[_Made]:
    """Yield what is made of values: of all at once, or of halves of them, as long as they are too large for one array.

    Parameters
    ----------
    values : sequence
        The values.
    make : callable
        `make(values, start)` gets some of them, and the place of their first one; it may raise `TooLarge`.
    start : int
        The place of the first value.

    Examples
    --------
    >>> list(in_pieces([b"a", b"b"], lambda values, start: (start, array_of(values, pa.binary()).to_pylist())))
    [(0, [b'a', b'b'])]
    """
    try:
        made = make(values, start)
    except TooLarge:
        middle = len(values) // 2
        yield from in_pieces(values[:middle], make, start)
        yield from in_pieces(values[middle:], make, start + middle)
    else:
        yield made


def array_of(values: Sequence[Any], type_: pa.DataType, rules: Rules = EXACT, column: str = "") -> pa.Array:
    """Return values as a column, as `ColumnEncoder` does.

    Raises
    ------
    Misfit
        A value would change.

    Examples
    --------
    >>> array_of([1, None], pa.int64()).to_pylist()
    [1, None]
    """
    return ColumnEncoder(type_, rules, column).array(values)


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Decode a column: lists for lists, dicts for structs and maps, and pairs for maps whose keys are nested.

    Raises
    ------
    KeyError
        A map has a key twice.

    Examples
    --------
    >>> values_of(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
    [{'a': 1}]
    """
    array = coarse(array)
    inner = [*types_in(array.type)]
    if any(map(_is_made_otherwise, inner)):
        read = _reader_of(array.type)
        return [None if value is None else read(value) for value in array.to_pylist()]
    values: list[Any] = (
        array.to_pylist(maps_as_pydicts="strict") if any(map(types.is_map, inner)) else array.to_pylist()
    )
    return values


def _is_made_otherwise(type_: pa.DataType) -> bool:
    """Return whether Arrow itself makes other values of a type than we return, or loses some."""
    if types.is_map(type_):
        # Of a map inside a map, Arrow before 22 drops all but the last item of a key, although told to be strict.
        return types.is_nested(type_.key_type) or any(map(types.is_map, types_in(type_.item_type)))
    return _is_made_with_pytz(type_)


def _is_made_with_pytz(type_: pa.DataType) -> bool:
    return types.is_timestamp(type_) and type_.tz is not None and has_zones_of_pytz()


def types_in(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type, and all types inside of it."""
    yield type_
    for index in range(type_.num_fields):
        yield from types_in(type_.field(index).type)


def _reader_of(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes a value, which is not None, of what Arrow gives for it, where each map is a list of pairs."""
    if _is_made_with_pytz(type_):
        zone = zone_of(type_.tz)
        return lambda moment: moment.astimezone(zone)
    if not types.is_nested(type_):
        return _as_it_is
    if types.is_struct(type_):
        fields = {field.name: _reader_of(field.type) for field in type_}
        return lambda struct: {name: _read(fields[name], value) for name, value in struct.items()}
    if not types.is_map(type_):
        item = _reader_of(type_.value_type)
        return lambda items: [_read(item, value) for value in items]
    key, item = _reader_of(type_.key_type), _reader_of(type_.item_type)
    make = list if types.is_nested(type_.key_type) else _distinct
    return lambda pairs: make((key(one), _read(item, value)) for one, value in pairs)


def _read(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _as_it_is(value: Any) -> Any:
    return value


def _distinct(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError("a map has a key twice")
        found[key] = value
    return found
