"""Which scalars a column holds unchanged: numbers, text, bytes, times and decimals."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from numbers import Rational
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import types

from keygroups.errors import KeyGroupsError
from keygroups.representation import class_in_message
from keygroups.values.zones import zone_of_session

_One = Callable[[Any], Any]
_Bulk = Callable[[Sequence[Any], set[type]], bool]

CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, KeyError, TypeError, ValueError)
"""What Arrow raises when it cannot convert a value."""

_EXACT_INTEGERS = 2**53
"""Up to here a float holds every integer."""

_INFINITE = {16: 65520.0, 32: 2.0**128 - 2.0**103}
"""From here on a float of so many bits is rounded to infinity: half a step beyond the largest."""

_STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""How many microseconds a unit has; nanoseconds hold whole microseconds."""

_zones = attrgetter("tzinfo")
_microseconds = attrgetter("microsecond")
_folds = attrgetter("fold")
_years = attrgetter("year")


class Misfit(KeyGroupsError, ValueError):
    """A column would change a value, or cannot hold it."""

    row: int
    """The index of the row among those that were passed."""
    column: str
    """The column, with the path to the value inside of it, such as ``address.zip`` or ``prices[2]``."""
    reason: str
    """Why the value does not fit. It never shows the value."""

    def _message(self) -> str:
        return f"row {self.row}, {self.place_and_reason}"

    @property
    def place_and_reason(self) -> str:
        """The column and the reason as one text, without the row."""
        return f"column {self.column!r}: {self.reason}" if self.column else self.reason


class TooLarge(Misfit):
    """Several values need more than the 2 GiB that an array of text or bytes has; fewer of them may fit."""


class Refusal(Exception):
    """A value does not fit; raised where neither its row nor its column is known yet."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason)

    def inside(self, step: str) -> Refusal:
        """Return the refusal as the container sees it."""
        return Refusal(self.reason, step + self.path)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a scalar type are fitted.

    Attributes
    ----------
    plain : frozenset of type
        Python types whose values Arrow converts exactly, or refuses.
    one : callable
        Returns any other value in Arrow's form, or raises `Refusal`.
    bulk : callable, optional
        Returns whether values, whose plain types it is told, need no closer look.
    """

    plain: frozenset[type]
    one: _One
    bulk: _Bulk | None = None


def kind_of(type_: pa.DataType, *, naive_is_local: bool = False, bytes_like: bool = False) -> Kind:
    """Return how the values of a type that is not nested are fitted.

    Parameters
    ----------
    type_ : pyarrow.DataType
        The type of the column.
    naive_is_local : bool
        Whether a naive datetime is a time in the column's zone.
    bytes_like : bool
        Whether a binary column takes bytearrays, too.
    """
    if types.is_timestamp(type_):
        return _timestamps(type_, naive_is_local=naive_is_local)
    if _is_binary(type_):
        return _binaries(type_, bytes_like=bytes_like)
    return next((make(type_) for is_type, make in _KINDS if is_type(type_)), _unusual(type_))


def without_numpy(value: Any) -> Any:
    """Return the Python value for which a scalar of NumPy or pandas stands; one that has none is returned as it is."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _python_time(value)
    if isinstance(value, np.generic):
        plain = value.item()
        return value if isinstance(plain, np.generic) else plain  # a longdouble gives another longdouble
    if type(value).__module__.startswith("pandas.") and not _is_nat(value) and not getattr(value, "nanosecond", 0):
        if isinstance(value, dt.datetime):
            return value.to_pydatetime()  # type: ignore[attr-defined]
        if isinstance(value, dt.timedelta) and not value.nanoseconds:  # type: ignore[attr-defined]
            return value.to_pytimedelta()  # type: ignore[attr-defined]
    return value


def items_of(array: np.ndarray) -> list[Any]:
    """Return what an array of NumPy holds; its `tolist` makes integers of times with nanoseconds."""
    if not array.ndim:
        raise Refusal("it is an array without dimensions, not a list")
    return array.tolist() if array.dtype.kind in "iufb" else list(array)


def _python_time(value: np.datetime64 | np.timedelta64) -> Any:
    """Return the date, time or interval that a scalar of NumPy is; one that no class of `datetime` has stays as it is.

    NumPy gives integers for these: years before 1 and after 9999, months without a year, intervals without a unit.
    """
    unit, _ = np.datetime_data(value.dtype)
    if np.isnat(value) or unit == "generic" or (isinstance(value, np.timedelta64) and unit in "YM"):
        return value
    coarse = value.astype(f"{value.dtype.kind}8[us]") if type(value.item()) is int else value
    is_exact = coarse == value and coarse.astype(value.dtype) == value and type(coarse.item()) is not int
    return coarse.item() if is_exact else value


def _is_nat(value: Any) -> bool:
    return isinstance(value, dt.date | dt.timedelta | np.generic) and bool(value != value)


def _has_nanoseconds(value: Any, *, is_aware: bool) -> bool:
    """Return whether a value of NumPy or pandas has nanoseconds, which no class of `datetime` has."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return not is_aware and not _is_nat(value) and type(value.item()) is int
    is_pandas = type(value).__module__.startswith("pandas.") and not _is_nat(value)
    return is_pandas and (getattr(value, "tzinfo", None) is not None) == is_aware


def _nanoseconds_below_micro(value: Any) -> int:
    """Return the nanoseconds above the last full microsecond, which values of NumPy, pandas and some clients have."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return int(value.astype(np.int64)) % 1000 if np.datetime_data(value.dtype) == ("ns", 1) else 0
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


def _refuse(value: Any, type_: pa.DataType) -> NoReturn:
    if isinstance(value, bool) and (types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)):
        raise Refusal("a bool is not taken for a number; convert it, or declare it as boolean")
    if _is_nat(value) or type(value).__qualname__ == "NAType":
        raise Refusal("it is what NumPy or pandas has for a missing value; use None")
    has_unit = types.is_timestamp(type_) or types.is_duration(type_)
    if has_unit and type_.unit != "ns" and _nanoseconds_below_micro(value):
        raise Refusal(f"its nanoseconds would be cut off; round it, or declare nanoseconds instead of {type_}")
    name = class_in_message(type(value))
    if types.is_temporal(type_) and not isinstance(value, dt.date | dt.time | dt.timedelta | str | bytes):
        raise Refusal(f"it is no date, time or interval, but a {name}; use the module datetime")
    raise Refusal(f"it is a {name}, not {type_}")


def _integers(type_: pa.DataType) -> Kind:
    signed = types.is_signed_integer(type_)
    low = -(2 ** (type_.bit_width - 1)) if signed else 0
    high = 2 ** (type_.bit_width - signed) - 1

    def one(value: Any) -> int:
        value = without_numpy(value)
        if type(value) is not int:
            value = _whole(value) if _is_number(value) else _refuse(value, type_)
        if not low <= value <= high:
            raise Refusal(f"it is out of the range of {type_}, {low} to {high}")
        return value  # type: ignore[no-any-return]

    return Kind(frozenset({int}), one)


def _is_number(value: Any) -> bool:
    # NumPy counts its intervals among the integers.
    is_rational = isinstance(value, Rational) and not isinstance(value, int | np.timedelta64)
    return is_rational or type(value) in (float, Decimal)


def _whole(value: Any) -> int:
    # `math.isfinite` raises for a signaling NaN, and takes 1E+400 for infinite.
    if not (value.is_finite() if isinstance(value, Decimal) else isinstance(value, Rational) or math.isfinite(value)):
        raise Refusal("it is infinity or no number, which no integer is")
    if isinstance(value, Decimal) and value.adjusted() > 40:
        raise Refusal("it has more digits than an integer column")
    if int(value) != value:
        raise Refusal("its fraction would be cut off; round it, or declare a type with fractions")
    if not value and math.copysign(1, value) < 0:
        raise Refusal("the sign of its zero would be lost")
    return int(value)


def _floats(type_: pa.DataType) -> Kind:
    infinite = _INFINITE.get(type_.bit_width, math.inf)
    narrow: Callable[[float], Any] = {16: np.float16, 32: np.float32}.get(type_.bit_width, np.float64)

    def one(value: Any) -> float:
        value = without_numpy(value)
        kind = type(value)
        if kind is not float:
            if kind not in (int, Decimal):
                _refuse(value, type_)
            value = _equal_float(value)
            with np.errstate(over="ignore"):
                if float(narrow(value)) != value:  # NumPy would round the value, too, to compare them
                    raise Refusal("it would be rounded; pass a float, or declare a decimal")
        if infinite <= abs(value) < math.inf:
            raise Refusal("it would become infinite; declare it as double")
        return value  # type: ignore[no-any-return]

    def bulk(values: Sequence[Any], kinds: set[type]) -> bool:
        whole = [value for value in values if type(value) is int] if int in kinds else ()
        return not whole or (min(whole) >= -_EXACT_INTEGERS and max(whole) <= _EXACT_INTEGERS)

    def bulk_of_narrow(values: Sequence[Any], _kinds: set[type]) -> bool:
        # Without a call for each number, as embeddings are long: none is greater than all of them together.
        return math.hypot(*values) < infinite

    if type_.bit_width == 64:
        return Kind(frozenset({int, float}), one, bulk)
    return Kind(frozenset({float}), one, bulk_of_narrow)


def _equal_float(value: Any) -> float:
    try:
        number = float(value)
        if number == value:
            return number
    except (ArithmeticError, ValueError):
        pass
    raise Refusal("it would be rounded; pass a float, or declare a decimal")


def _booleans(type_: pa.DataType) -> Kind:
    def one(value: Any) -> bool:
        value = without_numpy(value)
        return value if type(value) is bool else _refuse(value, type_)

    return Kind(frozenset({bool}), one)


def _texts(type_: pa.DataType) -> Kind:
    def one(value: Any) -> str:
        value = without_numpy(value)
        if type(value) is not str:
            _refuse(value, type_)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refusal("it holds half of a surrogate pair, which no encoding of text has") from None
        return value

    return Kind(frozenset({str}), one)


def _binaries(type_: pa.DataType, *, bytes_like: bool) -> Kind:
    size = type_.byte_width if types.is_fixed_size_binary(type_) else None

    def one(value: Any) -> bytes:
        value = bytes(value) if bytes_like and isinstance(value, bytearray | memoryview) else without_numpy(value)
        if type(value) is not bytes:
            _refuse(value, type_)
        if size is not None and len(value) != size:
            raise Refusal(f"it has not the {size} bytes of the column")
        return value

    return Kind(frozenset({bytes}), one)


def _dates(type_: pa.DataType) -> Kind:
    def one(value: Any) -> dt.date:
        value = without_numpy(value)
        if isinstance(value, dt.datetime) and not _is_nat(value):
            raise Refusal("its time would be cut off; pass its date(), or declare it as timestamp")
        return value if type(value) is dt.date else _refuse(value, type_)

    return Kind(frozenset({dt.date}), one)


def _timestamps(type_: pa.TimestampType, *, naive_is_local: bool) -> Kind:
    step, zone = _STEPS[type_.unit], type_.tz

    def one(value: Any) -> dt.datetime:
        value = without_numpy(value)
        if type_.unit == "ns" and _has_nanoseconds(value, is_aware=zone is not None):
            return value  # type: ignore[no-any-return]
        if type(value) is not dt.datetime:
            _refuse(value, type_)
        if zone is not None:
            value = _aware(value, zone, naive_is_local=naive_is_local)
        elif value.tzinfo is not None:
            raise Refusal("it has a time zone; remove the time zone, or declare the column as timestamp with one")
        elif value.fold:
            raise Refusal("its fold would be lost; give it a time zone")
        return _coarse(value, step, type_)  # type: ignore[no-any-return]

    def bulk(values: Sequence[Any], _kinds: set[type]) -> bool:
        zones = [*map(_zones, values)]
        if zone is None:
            fits = zones.count(None) == len(zones) and not any(map(_folds, values))
        else:
            # At both ends of the calendar, another zone may be in another year, which Python lacks.
            years = [*map(_years, values)]
            fits = None not in zones and min(years) > dt.MINYEAR and max(years) < dt.MAXYEAR
        return fits and (step == 1 or not any(one % step for one in map(_microseconds, values)))

    return Kind(frozenset({dt.datetime}), one, bulk)


def _aware(value: dt.datetime, name: str, *, naive_is_local: bool) -> dt.datetime:
    if value.utcoffset() is None:
        if not naive_is_local:
            raise Refusal("it has no time zone, and the column has; add the zone in which it was meant")
        zone = zone_of_session(name)  # looked up for the first naive value only, because Java knows more of them
        if zone is None:
            raise Refusal(f"the session's time zone {name!r} is not known here; return timestamps with a time zone")
        value = value.replace(tzinfo=zone)
    try:
        value.astimezone(dt.UTC).astimezone(zone_of_session(name) or dt.UTC)
    except OverflowError:
        raise Refusal("in another time zone it is before year 1 or after year 9999") from None
    return value


def _coarse(value: Any, step: int, type_: pa.DataType) -> Any:
    if value.microsecond % step:
        raise Refusal(f"its fraction of a second would be cut off; declare microseconds instead of {type_}")
    if type_.bit_width == 64 and type_.unit == "ns":
        _check_range(value, type_)
    return value


def _check_range(value: Any, type_: pa.DataType) -> None:
    try:
        pa.scalar(value, type_)
    except CONVERSION_ERRORS:
        raise Refusal(f"it is out of the range of {type_}") from None


def _times(type_: pa.DataType) -> Kind:
    step = _STEPS[type_.unit]

    def one(value: Any) -> dt.time:
        if type(value) is not dt.time:
            _refuse(value, type_)
        if value.tzinfo is not None or value.fold:
            raise Refusal("its time zone or fold would be lost; remove it")
        return _coarse(value, step, type_)  # type: ignore[no-any-return]

    def bulk(values: Sequence[Any], _kinds: set[type]) -> bool:
        zones = [*map(_zones, values)]
        is_plain = zones.count(None) == len(zones) and not any(map(_folds, values))
        return is_plain and (step == 1 or not any(one % step for one in map(_microseconds, values)))

    return Kind(frozenset({dt.time}), one, bulk)


def _durations(type_: pa.DurationType) -> Kind:
    step = _STEPS[type_.unit]

    def one(value: Any) -> dt.timedelta:
        value = without_numpy(value)
        if type_.unit == "ns" and _has_nanoseconds(value, is_aware=False):
            return value  # type: ignore[no-any-return]
        if type(value) is not dt.timedelta:
            _refuse(value, type_)
        if value.microseconds % step:
            raise Refusal(f"its fraction of a second would be cut off; declare microseconds instead of {type_}")
        _check_range(value, type_)
        return value

    def bulk(values: Sequence[Any], _kinds: set[type]) -> bool:
        return step == 1 or not any(value.microseconds % step for value in values)

    return Kind(frozenset({dt.timedelta}), one, bulk)


def _decimals(type_: pa.DataType) -> Kind:
    unit, whole = Decimal(1).scaleb(-type_.scale), type_.precision - type_.scale
    exactly = Context(prec=200)

    def one(value: Any) -> Decimal:
        value = without_numpy(value)
        if type(value) is int:
            value = Decimal(value)
        if type(value) is not Decimal:
            _refuse(value, type_)
        if not value.is_finite():
            raise Refusal("it is infinity or no number, which a decimal column cannot hold")
        if not value:
            if value.is_signed():
                raise Refusal("the sign of its zero would be lost")
            return Decimal(0).quantize(unit, context=exactly)
        if value.adjusted() >= whole:
            raise Refusal(f"it has more than {whole} digits before the point, for which {type_} has no room")
        try:
            fitted = value.quantize(unit, context=exactly)
        except InvalidOperation:
            raise Refusal(f"it has more digits than {type_}") from None
        if fitted != value:
            raise Refusal(f"it has more than {type_.scale} digits after the point, for which {type_} has no room")
        return fitted

    def bulk(values: Sequence[Any], _kinds: set[type]) -> bool:
        return not any(value.is_signed() for value in values if not value and type(value) is Decimal)

    return Kind(frozenset({Decimal, int}), one, bulk)


def _nulls(type_: pa.DataType) -> Kind:
    return Kind(frozenset(), lambda value: _refuse(value, type_))


def _unusual(type_: pa.DataType) -> Kind:
    """Return the way for types that have no rule of their own: a value fits if it comes back the same."""

    def one(value: Any) -> Any:
        try:
            back = pa.array([value], type_).to_pylist()[0]
            is_same = type(back) is type(value) and bool(back == value)
        except CONVERSION_ERRORS:
            is_same = False
        return value if is_same else _refuse(value, type_)

    return Kind(frozenset(), one)


def _is_text(type_: pa.DataType) -> bool:
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def _is_binary(type_: pa.DataType) -> bool:
    is_sized = types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_)
    return bool(is_sized or types.is_fixed_size_binary(type_))


_KINDS: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Kind]]] = [
    (types.is_integer, _integers),
    (types.is_floating, _floats),
    (types.is_boolean, _booleans),
    (_is_text, _texts),
    (types.is_date, _dates),
    (types.is_time, _times),
    (types.is_duration, _durations),
    (types.is_decimal, _decimals),
    (types.is_null, _nulls),
]
