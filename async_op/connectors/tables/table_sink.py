"""What all tables as sinks have in common."""

from __future__ import annotations

import copy
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from pyarrow import types

from async_op.connectors.epoch_gaps import Repeats
from async_op.connectors.epoch_rows import OutputRows, SinkRows
from async_op.connectors.errors import SinkRefused, UnsupportedColumn, UnwritableValue
from async_op.connectors.sink import ShippedSink, Sink
from async_op.dead_letters import LETTER_SCHEMA, OnError
from async_op.retry import RetryPolicy
from keygroups.arguments import check_integer, check_location, check_text
from keygroups.errors import KeyGroupsError
from keygroups.representation import representation
from keygroups.safe_text import described
from keygroups.values import Misfit, check_complete
from snapshots.filesystem import client_errors, is_refusal, reason_of, redacted

ATTEMPTS_MAX = 20
"""How often an epoch is written when other writers of the table are faster; each time, one of them gets on."""

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
_T = TypeVar("_T")
_NUMBER_OR_TEXT = "tables have no such type: pass a number, such as microseconds as an integer, or text"


class TableSink(ShippedSink):
    """A table that takes each epoch once: as the sink of a job, or of a pipeline on Spark (``sink(batch_df, epoch)``).

    The transaction that appends an epoch's rows also notes its number under the job's name. An epoch whose number is
    there already is left out.
    """

    _schema: pa.Schema | None = None

    has_times = False
    """Whether tables that are made here have times of day."""

    _libraries: ClassVar[tuple[str, ...]] = ()
    """The packages that write the table, whose errors do not name it."""

    def __init__(
        self, table: str, name: str, *, on_error: OnError, retry: RetryPolicy | None, dead_letters: Sink[Any] | None
    ) -> None:
        super().__init__(on_error=on_error, retry=retry, dead_letters=dead_letters)
        table = check_location("table", table, reason="name a table")
        self.name = check_text("name", name, reason="pass the job's id, which names its epochs in the table")
        self._table = table
        self._repeats = Repeats(name)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out how many epochs were repeats, too."""
        return super().__getstate__() | {"_repeats": Repeats(self.name)}

    def __repr__(self) -> str:
        return representation(self, {"table": redacted(self._table), "name": self.name})

    @property
    def place_of_notes(self) -> tuple[str, ...]:
        """The table and the name."""
        return self._table, self.name

    def prepare(self, schema: pa.Schema) -> None:
        """Make the table if that is possible, and check it, so that a mistake is known before the first epoch.

        Parameters
        ----------
        schema : pyarrow.Schema
            The columns of the rows that will come.

        Raises
        ------
        ConnectorNotInstalled
            The package that writes the table is missing.
        SinkRefused
            The table cannot be opened or made.
        TargetMissing
            The table does not exist and is not made here, or had epochs of this job and was removed.
        UnsupportedColumn
            A table of this format cannot have a column.
        UnwritableValue
            The table does not have all columns.
        """
        have = self._asked(lambda: self._columns_of_table(self._made(schema)))
        if missing := [name for name in schema.names if name not in have]:
            table, row = redacted(self._table), dict.fromkeys(schema.names)
            raise UnwritableValue(row, f"there is no column {missing[0]!r}", target=table, column=missing[0])

    def _made(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a table that is made for rows with these."""
        return table_schema(schema, redacted(self._table), has_times=self.has_times)

    def for_dead_letters(self) -> TableSink:
        """Return a sink whose table has the columns of dead letters, unless a schema was passed."""
        if self._schema is not None:
            return self
        letters = copy.copy(self)
        letters._schema = LETTER_SCHEMA
        return letters

    async def write(self, values: Sequence[dict[str, Any]], epoch: int) -> None:
        """Append the rows of an epoch, unless the table has them."""
        await self._on_thread(lambda: self.write_rows(OutputRows(values), epoch))

    async def refused(self, values: Sequence[dict[str, Any]]) -> list[UnwritableValue]:
        """Return an error for every output that the table would refuse; nothing is written."""
        return await self._on_thread(lambda: self.refused_rows(OutputRows(values)))

    def check_target(self) -> None:
        """Raise an error if the table is not the one that this job has written to; blocks."""
        self._asked(self._newest_epoch)

    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        """Append the rows of an epoch, unless the table has them; blocks."""
        number = check_integer("epoch", epoch, 0, reason="epochs are numbered")
        newest = self._appended(rows, number)
        if newest is None or newest == number:
            self._repeats.forget()
        else:
            self._repeats.note(number, newest)
        self.was_written = True

    def _appended(self, rows: SinkRows, epoch: int) -> int | None:
        try:
            return self._asked(lambda: self._append_unless_there(rows, epoch))
        except UnwritableValue as error:
            if error.index is not None:
                raise
            found: Exception = error
        except UnsupportedColumn as error:
            if self.on_error == "fail":
                raise  # it names the type, and what to do
            found = error
        for first in self.refused_rows(rows):
            raise first
        raise found

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Return what a table answers; an error of the package that writes it gets the name of the table."""
        table = redacted(self._table)
        try:
            with client_errors(table):
                return ask()
        except KeyGroupsError:
            raise
        except Exception as error:
            if self.is_transient(error) or (reason := self._refusal(error)) is None:
                raise
            raise SinkRefused(table, reason) from None

    def _refusal(self, error: Exception) -> str | None:
        """Return why the table or its storage refuses writes; None for an error of anything else."""
        if isinstance(error, (PermissionError, FileNotFoundError)):
            # What `client_errors` raises names the table, which the message does, too.
            return error.strerror if error.filename == redacted(self._table) else reason_of(error)
        if type(error) is OSError and error.errno is None and is_refusal(error):
            return reason_of(error)
        # The other lines of its text quote rows.
        packages = {type(error).__module__.partition(".")[0]}
        if not isinstance(error, (OSError, MemoryError)):  # a full disk, say, is no property of the table
            packages.add(_raised_by(error))
        is_of_library = not packages.isdisjoint(self._libraries)
        return described(error).partition("\n")[0] if is_of_library else None

    @abstractmethod
    def _newest_epoch(self) -> int | None:
        """Return the newest epoch that the table has; None without a table. Raises what `check_target` does."""

    @abstractmethod
    def _append_unless_there(self, rows: SinkRows, epoch: int) -> int | None:
        """Append an epoch in one transaction; where there was this or a later one, return the newest instead."""

    def refused_rows(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that the table would refuse, or that keeps it from being made; blocks."""
        try:
            return self._asked(lambda: self._refused_by_table(rows))
        except UnwritableValue as error:
            return rows.refused_before(error)
        except UnsupportedColumn:
            if self._schema is not None:
                raise
            return [*rows.without_column(self._made)]

    @abstractmethod
    def _refused_by_table(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that the table would refuse; raises one if it cannot be made for the rows."""

    @abstractmethod
    def _columns_of_table(self, schema: pa.Schema) -> list[str]:
        """Return the names of the table's columns; a table that does not exist is made with the schema if possible."""


def _raised_by(error: Exception) -> str:
    """Return the package whose code has raised an error: pyiceberg raises a ValueError for a table of ORC files."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    name: str = frames[-1].f_globals.get("__name__", "") if frames else ""
    return name.partition(".")[0]


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
