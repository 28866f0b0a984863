"""Copies rows into a table of PostgreSQL, and finds the rows that the table refuses."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from async_op.connectors.errors import UnwritableValue
from keygroups.errors import SHOW_VALUES
from keygroups.representation import class_in_message
from keygroups.values.scalars import Refusal, kind_of, without_numpy
from keygroups.values.texts import json_of

if TYPE_CHECKING:
    from psycopg import Connection, Error
    from psycopg.sql import Identifier

ROWS_AT_ONCE = 1024
"""How many rows of a refused epoch are in memory while the refused ones among them are looked for."""
_OF_SERVERS = ("08", "25", "40", "53", "55", "57", "58", "F0", "XX001", "XX002")
"""What stops a server in the middle of a row that is not to blame, such as a deadlock, a full disk or a shutdown."""
_OF_STATEMENTS = ("0A", "28", "3D", "3F", "42", "XX")
"""What is wrong with the table or the rights, unless it is raised for one row, as by a trigger."""
_VIOLATIONS = {"23503": "foreign key", "23505": "unique", "23514": "check", "23P01": "exclusion"}

_TYPE = re.compile(r"(?P<name>[^(\[]+)(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\)(?P<rest> [^(\[]+)?)?(?:\[\])*")
"""A type as PostgreSQL's `format_type` writes it, such as `timestamp(3) without time zone` or `numeric(10,2)[]`."""

_Fit = Callable[[Any], Any]

_SAME: dict[str, pa.DataType] = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "text": pa.string(),
}


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the table does not take.

    Attributes
    ----------
    index : int or None
        Which row; None if PostgreSQL does not say which.
    column : str or None
        Its column, where PostgreSQL blames one.
    reason : str
        Why, without a value.
    """

    index: int | None
    column: str | None
    reason: str

    def error(self, row: object, table: str, index: int | None) -> UnwritableValue:
        """Return the error for a row of an epoch."""
        return UnwritableValue(row, self.reason, target=table, column=self.column, index=index)


class Copying:
    """Copies rows into one table, in the transaction of a connection.

    Parameters
    ----------
    connection : psycopg.Connection
        The connection.
    table : psycopg.sql.Identifier
        The table.
    types : mapping of str to str
        The type of each column of the table.
    names : sequence of str
        The columns that are copied; the others get their default.
    """

    def __init__(
        self, connection: Connection, table: Identifier, types: Mapping[str, str], names: Sequence[str]
    ) -> None:
        from psycopg import sql

        self._connection = connection
        self._relation = table._obj[-1]
        self._types = types
        self._names = names
        self._fits = [fit_of(types[name]) for name in names]
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        self._statement = sql.SQL("copy {} ({}) from stdin").format(table, columns)

    def copy(self, rows: Iterable[Mapping[str, Any]]) -> RefusedRow | None:
        """Copy rows; where one is refused, return that, and the transaction (or its savepoint) must be rolled back."""
        import psycopg

        index, row = 0, None
        try:
            with self._connection.cursor() as cursor, cursor.copy(self._statement) as copy:
                for index, row in enumerate(rows):  # noqa: B007 - for the error
                    copy.write_row(self._fields(row))
            # Deferred constraints would be checked by the commit, where no row can be blamed any more.
            self._connection.execute("set constraints all immediate")
        except psycopg.Error as error:
            if error.sqlstate is None and row is not None and not isinstance(error, psycopg.OperationalError):
                return self._refused_here(index, row, error)
            refusal = self._refused_there(error, last=index)
            if not _blames_row(str(error.sqlstate), has_index=refusal.index is not None):
                raise
            return refusal
        except UnwritableValue as error:
            return RefusedRow(index, error.column, error.reason)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            if row is None:
                raise
            return self._refused_here(index, row, error)
        return None

    def refusals(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any], RefusedRow]]:
        """Copy all rows that the table takes, and yield the others with their index; what was copied stays copied."""
        numbered = iter(rows)
        for start in itertools.count(0, ROWS_AT_ONCE):
            chunk = list(itertools.islice(numbered, ROWS_AT_ONCE))
            if not chunk:
                return
            for index, refusal in self._refusals_in(chunk):
                yield start + index, chunk[index], refusal

    def _refusals_in(self, chunk: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, RefusedRow]]:
        # In order: of two rows with the same key, the later one is to be refused.
        parts = [(0, len(chunk))]
        while parts:
            first, end = parts.pop()
            refusal = self._tried(chunk[first:end]) if first < end else None
            if refusal is None:
                continue
            if refusal.index is None and end - first > 1:
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
            elif (refusal.index or 0) > 0:
                blamed = first + (refusal.index or 0)
                parts += [(blamed, end), (first, blamed)]
            else:
                yield first, refusal
                parts.append((first + 1, end))

    def _tried(self, rows: Sequence[Mapping[str, Any]]) -> RefusedRow | None:
        import psycopg

        refusal = None
        with self._connection.transaction() as savepoint:
            refusal = self.copy(rows)
            if refusal is not None:
                raise psycopg.Rollback(savepoint)
        return refusal

    def _fields(self, row: Mapping[str, Any]) -> list[Any]:
        fields = []
        for name, fit in zip(self._names, self._fits, strict=True):
            field = row.get(name)
            try:
                fields.append(None if field is None else fit(field))
            except Refusal as refusal:
                raise UnwritableValue(row, refusal.reason, column=name + refusal.path) from None
        return fields

    def _refused_here(self, index: int, row: Mapping[str, Any], error: Exception) -> RefusedRow:
        """Return the refusal of a row that the client cannot send: look for the column."""
        from psycopg.adapt import PyFormat, Transformer

        transformer = Transformer(self._connection)
        for name, field in zip(self._names, self._fields(row), strict=True):
            try:
                if field is not None:
                    transformer.get_dumper(field, PyFormat.TEXT).dump(field)
            except Exception as again:  # noqa: BLE001 - whatever it is, it is this column's
                return RefusedRow(index, name, _reason_here(again, row[name]))
        return RefusedRow(index, None, _reason_here(error, row))

    def _refused_there(self, error: Error, last: int) -> RefusedRow:
        """Return the refusal of a row by the server, from the parts of its error that quote no value."""
        context = error.diag.context or ""
        found = re.search(
            rf"^COPY {re.escape(self._relation)}, \D+?(\d+)(?:, \S+ (.+?))?(?:: |$)", context, re.MULTILINE
        )
        index = None if found is None else int(found[1]) - 1
        # Rows are inserted together, so a row that is too big is noticed after later lines were read.
        if index is not None and (index > last or str(error.sqlstate).startswith("54")):
            index = None
        column = error.diag.column_name or (found and found[2])
        if column not in self._types:
            column = None
        return RefusedRow(index, column, self._reason_there(error, column))

    def _reason_there(self, error: Error, column: str | None) -> str:
        state, constraint = str(error.sqlstate), error.diag.constraint_name
        named = f"{type(error).__name__}, SQLSTATE {state}"
        if state == "23502":
            reason = f"it is null, and the column is not null ({named})"
        elif state in _VIOLATIONS:
            # A row that no partition takes violates a check without a name.
            of_name = "" if constraint is None else f" {constraint!r}"
            reason = f"it violates the {_VIOLATIONS[state]} constraint{of_name} ({named})"
        elif state.startswith("P0"):
            reason = f"a trigger refuses it ({named})"
        else:
            kind = "" if column is None else f" as {self._types[column]}"
            reason = f"PostgreSQL does not take it{kind} ({named})"
        if os.environ.get(SHOW_VALUES, "0") == "0":
            return reason
        return ": ".join(filter(None, [reason, error.diag.message_primary, error.diag.message_detail]))


def _blames_row(state: str, *, has_index: bool) -> bool:
    """Return whether an error with this SQLSTATE is of one row: nearly all are, as triggers raise what they want."""
    return not state.startswith(_OF_SERVERS if has_index else _OF_SERVERS + _OF_STATEMENTS)


def _reason_here(error: Exception, field: object) -> str:
    """Return why the client cannot send a field; the messages of these errors name types, and of Unicode a value."""
    if isinstance(error, UnicodeError):
        return "it has text that UTF-8 cannot encode"
    if isinstance(error, TypeError | RecursionError):
        return f"it is no JSON: {error}"
    return str(error) if "adapt" not in str(error) else f"a {type(field).__name__} has no type in PostgreSQL"


@lru_cache(maxsize=1024)
def fit_of(column_type: str) -> _Fit:
    """Return the function that returns a value, which is not None, for a column, or raises `Refusal`.

    Types that have no counterpart in Python, such as `inet` or an enum, take what the driver takes.

    Parameters
    ----------
    column_type : str
        The type of the column, as `format_type` writes it, with its modifiers.
    """
    found = _TYPE.fullmatch(column_type)
    if found is None:
        return _as_it_is
    name = found["name"] + (found["rest"] or "")
    sizes = [int(size) for size in (found["first"], found["second"]) if size is not None]
    one = _fit_of_one(name, sizes)
    return _list_of(one) if column_type.endswith("[]") else one


def _fit_of_one(name: str, sizes: list[int]) -> _Fit:
    if name in _SAME:
        return kind_of(_SAME[name]).one
    match name:
        case "character varying" | "character":
            return _text(name, sizes)
        case "numeric":
            return _numeric(sizes)
        case "timestamp without time zone":
            return _rounded(kind_of(pa.timestamp("us")).one, sizes)
        case "timestamp with time zone":
            return _rounded(kind_of(pa.timestamp("us", "UTC")).one, sizes)
        case "time without time zone":
            return _rounded(kind_of(pa.time64("us")).one, sizes)
        case "time with time zone":
            return _rounded(_time_with_zone, sizes)
        case "name":
            return _text(name, [], bytes_max=63)
        case '"char"':
            return _text(name, [], bytes_max=1)
        case "oid":
            return kind_of(pa.uint32()).one
        case "money":
            return _numeric([17, 2])
        case "uuid":
            return _uuid
        case "json" | "jsonb":
            return _json
    if name.partition(" ")[0] == "interval":
        return _interval(name, sizes)
    return _as_it_is


def _text(name: str, sizes: list[int], bytes_max: int | None = None) -> _Fit:
    one = kind_of(pa.string()).one

    def fit(value: Any) -> Any:
        text = one(value)
        # PostgreSQL cuts spaces off that are too many, and fills `character` with spaces.
        if sizes and (len(text) > sizes[0] or (name == "character" and len(text) < sizes[0])):
            raise Refusal(f"its length does not fit {name}({sizes[0]})")
        if bytes_max is not None and len(text.encode()) > bytes_max:
            raise Refusal(f"it has more than the {bytes_max} bytes of {name}")
        return text

    return fit


def _numeric(sizes: list[int]) -> _Fit:
    if sizes:
        precision, scale = [*sizes, 0][:2]
        if precision <= 76 and 0 <= scale <= precision:
            return kind_of(pa.decimal256(precision, scale)).one

    def fit(value: Any) -> Any:
        value = without_numpy(value)
        if type(value) is int:
            return value
        if type(value) is not Decimal:
            raise Refusal(f"it is a {class_in_message(type(value))}, not numeric; pass a Decimal")
        if not value.is_finite() or (not value and value.is_signed()):
            raise Refusal("it is infinity, no number or a negative zero")
        if sizes and value != round(value, [*sizes, 0][1]):
            raise Refusal("it has more digits after the point than the column")
        return value

    return fit


def _rounded(one: _Fit, sizes: list[int]) -> _Fit:
    step = 10 ** (6 - sizes[0]) if sizes else 1

    def fit(value: Any) -> Any:
        moment = one(value)
        if moment.microsecond % step:
            raise Refusal(f"its fraction of a second has more than the {sizes[0]} digits of the column")
        return moment

    return fit if step > 1 else one


def _interval(name: str, sizes: list[int]) -> _Fit:
    """Return the function for a column that keeps all of an interval, or only some of its fields, such as hours."""
    one, last = kind_of(pa.duration("us")).one, name.split()[-1]
    finest = _FIELDS.get(last, dt.timedelta(microseconds=10 ** (6 - (sizes[0] if sizes else 6))))

    def fit(value: Any) -> Any:
        length = one(value)
        if finest is None or length % finest:
            raise Refusal(f"{name} would cut it")
        return length

    return fit


_FIELDS = {
    "year": None,
    "month": None,  # has no fixed length, so a timedelta has none of them
    "day": dt.timedelta(days=1),
    "hour": dt.timedelta(hours=1),
    "minute": dt.timedelta(minutes=1),
}
"""The finest field of an interval, by the last word of its type."""


def _time_with_zone(value: Any) -> dt.time:
    if type(value) is not dt.time or value.utcoffset() is None or value.fold:
        raise Refusal(f"it is a {class_in_message(type(value))} without an offset, or no time")
    return value


def _uuid(value: Any) -> uuid.UUID:
    if type(value) is not uuid.UUID:
        raise Refusal(f"it is a {class_in_message(type(value))}, not uuid; pass a uuid.UUID")
    return value


def _json(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    text = json_of(value, is_exact=True)
    if re.search(r"-0(\.0+)?(?![.\d])", text):
        _refuse_negative_zero(value)
    return Jsonb(value, dumps=lambda _value: text)


def _refuse_negative_zero(value: Any) -> None:
    """Raise for a negative zero, because jsonb loses its sign."""
    if type(value) is float and not value and str(value) == "-0.0":
        raise Refusal("the sign of its zero would be lost in jsonb")
    for item in value.values() if type(value) is dict else value if type(value) is list else ():
        _refuse_negative_zero(item)


def _list_of(one: _Fit) -> _Fit:
    def fit(value: Any) -> Any:
        if type(value) is not list:
            raise Refusal(f"it is a {class_in_message(type(value))}, not an array; pass a list")
        fitted = []
        for at, item in enumerate(value):
            if item == [] and type(item) is list:
                raise Refusal("an empty array inside of an array would be lost: PostgreSQL has no such array")
            try:
                fitted.append(None if item is None else fit(item) if type(item) is list else one(item))
            except Refusal as refusal:
                raise refusal.inside(f"[{at}]") from None
        return fitted

    return fit


def _as_it_is(value: Any) -> Any:
    if isinstance(value, tuple):
        # The driver writes it as a row, and PostgreSQL casts each field: a datetime would be cut to a date.
        raise Refusal("it is a tuple, whose fields a composite type would cast; pass text, such as '(1,2024-12-31)'")
    return value
