"""Copies rows into a table of PostgreSQL, and finds the rows that the table refuses."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from async_op.connectors.errors import UnwritableValue
from async_op.connectors.tables.postgres_types import fit_of
from keygroups.errors import SHOW_VALUES
from keygroups.values.scalars import Refusal

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
