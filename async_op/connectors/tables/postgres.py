"""PostgreSQL tables as sinks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from async_op.connectors.epoch_rows import SinkRows
from async_op.connectors.errors import (
    ConnectorNotInstalled,
    SinkRefused,
    TargetMissing,
    TargetReplaced,
    TargetTaken,
    UnwritableValue,
)
from async_op.connectors.retrying import is_transient_of_library
from async_op.connectors.sink import SINK_RETRY, Sink
from async_op.connectors.tables.copying import Copying
from async_op.connectors.tables.table_sink import TableSink
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import Connection
    from psycopg.sql import Identifier

_WRONG = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist")
"""What a server says to a connection that it will refuse again; such errors have no SQLSTATE here."""
_CONNECT_SECONDS_MAX = 30
_STATEMENT_SECONDS_MAX = 300
"""How long one statement may take, among them the copying of an epoch's rows and the wait for another writer's."""


class PostgresSink(TableSink):
    """Appends each epoch to a PostgreSQL table, once. It needs the extra ``postgres``.

    Rows come by ``COPY``, in one transaction with the number of the epoch, which is kept with the table's oid in the
    table ``keygroups_epochs`` of the same database. That row is locked meanwhile, so several writers of one job take
    turns. A table that was dropped and created again is `TargetReplaced`.

    Parameters
    ----------
    url : str
        The database, as libpq takes it. It is never shown. Connecting may take 30 seconds and a statement 5 minutes,
        unless it has a ``connect_timeout`` or ``options`` (``-c statement_timeout=…``).
    table : str
        The table, with its schema if needed (``"sales.orders"``). It must exist; columns that outputs do not have get
        their default.
    name : str
        The job's id: the database keeps the newest epoch under this name. A job that starts over needs another.

    Examples
    --------
    >>> sink = PostgresSink("postgresql://db.example/sales", "orders", "orders-job")
    """

    def __init__(
        self,
        url: str,
        table: str,
        name: str,
        *,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: Sink[Any] | None = None,
    ) -> None:
        super().__init__(table, name, on_error=on_error, retry=retry, dead_letters=dead_letters)
        if not isinstance(url, str):
            raise ConfigError("url", type(url).__name__, "pass the address of the server as text")
        self._url = url

    @property
    def place_of_notes(self) -> tuple[str, ...]:
        """The database and the name: all tables of a database share the notes."""
        return self._url, self.name

    def is_transient(self, error: Exception) -> bool:
        """Return whether the server or the way to it may be back soon: not for passwords, names and rights."""
        if is_transient_of_library(error):
            return True
        if type(error).__module__.partition(".")[0] != "psycopg":
            return False  # and perhaps the package is missing
        import psycopg

        return isinstance(error, psycopg.OperationalError)

    def _made(self, schema: pa.Schema) -> pa.Schema:
        return schema  # no table is made here

    def _columns_of_table(self, schema: pa.Schema) -> list[str]:
        with self._connection() as connection:
            return list(self._columns(connection, self._identifier()))

    def _append_unless_there(self, rows: SinkRows, epoch: int) -> int | None:
        with self._told(), self._connection() as connection:
            newest = self._begin(connection)
            if newest >= epoch:
                return newest
            self.note_tried(epoch)
            refusal = self._copying(connection, rows).copy(rows.dicts())
            if refusal is None:
                note = "update keygroups_epochs set epoch = %s, target = to_regclass(%s) where job = %s"
                connection.execute(note, (epoch, self._identifier().as_string(connection), self.name))
                return None
            connection.rollback()
            if refusal.index is not None:
                raise refusal.error(rows.at(refusal.index), self._table, refusal.index)
            for index, row, found in self._refusals(connection, rows):
                raise found.error(row, self._table, index)
            raise refusal.error(rows.names(), self._table, None)

    def _newest_epoch(self) -> int | None:
        with self._told(), self._connection() as connection:
            newest = self._begin(connection, keeps_table=False)
            self._columns(connection, self._identifier())
            connection.rollback()
            return newest

    def _refused_by_table(self, rows: SinkRows) -> list[UnwritableValue]:
        with self._told(), self._connection() as connection:
            found = [refusal.error(row, self._table, index) for index, row, refusal in self._refusals(connection, rows)]
            connection.rollback()
            return found

    def _refusals(self, connection: Connection, rows: SinkRows) -> Iterator[Any]:
        """Yield what the table refuses, in a transaction that copies the rest and must be rolled back."""
        self._begin(connection)
        return self._copying(connection, rows).refusals(rows.dicts())

    def _begin(self, connection: Connection, *, keeps_table: bool = True) -> int:
        """Begin the transaction of an epoch, or of a look; returns the newest epoch that the database has."""
        self._bound_statements(connection)
        _make_epochs(connection)
        if keeps_table:
            connection.commit()  # others need not wait for the rows of this epoch
        self._bound_statements(connection)
        return self._lock(connection)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Name the table in errors of the server that are no row's fault, and that waiting does not mend."""
        try:
            yield
        except ConnectorNotInstalled:
            raise
        except Exception as error:
            import psycopg

            if not isinstance(error, psycopg.DatabaseError):
                raise
            said = error.diag.message_primary or str(error).partition("\n")[0]
            if isinstance(error, psycopg.OperationalError) and not any(text in said for text in _WRONG):
                error.args = (said,)  # its other lines quote the row that was copied
                raise
            # Without the cause: its text quotes values in DETAIL and CONTEXT.
            raise SinkRefused(self._table, f"{said} ({type(error).__name__}, SQLSTATE {error.sqlstate})") from None

    def _connection(self) -> Connection:
        try:
            import psycopg
        except ImportError as error:
            raise ConnectorNotInstalled("psycopg", "postgres") from error

        own = psycopg.conninfo.conninfo_to_dict(self._url)
        seconds = own.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT") or _CONNECT_SECONDS_MAX
        connection = psycopg.connect(self._url, application_name="keygroups", connect_timeout=seconds)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _bound_statements(self, connection: Connection) -> None:
        """Bound the statements of this transaction, unless the user has: poolers refuse limits connections bring."""
        from psycopg.conninfo import conninfo_to_dict

        options = conninfo_to_dict(self._url).get("options") or os.environ.get("PGOPTIONS")
        if "statement_timeout" not in str(options):
            bound = "select set_config('statement_timeout', %s, true) where current_setting('statement_timeout') = '0'"
            connection.execute(bound, (f"{_STATEMENT_SECONDS_MAX}s",))

    def _lock(self, connection: Connection) -> int:
        """Return the newest epoch; no other job can record the next one until the transaction ends."""
        note = "insert into keygroups_epochs (job, epoch, lineage) values (%s, -1, %s) on conflict (job) do nothing"
        connection.execute(note, (self.name, self.lineage))
        look = "select epoch, target = to_regclass(%s), lineage from keygroups_epochs where job = %s for update"
        found = connection.execute(look, (self._identifier().as_string(connection), self.name)).fetchone()
        assert found is not None, "inserted above"
        newest, is_same, lineage = found
        if self.lineage and lineage and lineage != self.lineage:
            raise TargetTaken(f"{self._table} (keygroups_epochs)", self.name)
        if self.was_written and newest < 0:
            raise TargetReplaced(f"{self._table} (keygroups_epochs)", self.name)
        if is_same is False:  # null without a table, which is looked for next
            raise TargetReplaced(self._table, self.name)
        advice = f"delete the rows of later epochs, and set its epoch in keygroups_epochs to {self.newest_known}"
        self.check_ahead(self._table, int(newest), advice)
        self.check_behind(self._table, int(newest))
        return int(newest)

    def _copying(self, connection: Connection, rows: SinkRows) -> Copying:
        table = self._identifier()
        types = self._columns(connection, table)
        names = rows.names()
        if unknown := [name for name in names if name not in types]:
            raise rows.unknown(unknown[0], self._table)
        return Copying(connection, table, types, names)

    def _identifier(self) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(*self._table.split("."))

    def _columns(self, connection: Connection, table: Identifier) -> dict[str, str]:
        # A domain holds what its base type holds, which rounds and cuts as in any other column.
        look = (
            "with recursive bases (name, kind, modifier, ending) as ("
            " select attname, atttypid, atttypmod, '' from pg_attribute"
            " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
            " union all"
            " select name, case typtype when 'd' then typbasetype else typelem end,"
            " case typtype when 'd' then typtypmod else modifier end,"
            " case typtype when 'd' then ending else ending || '[]' end"
            " from bases join pg_type on oid = kind where typtype = 'd' or (typcategory = 'A' and typarray = 0)"
            ") select name, format_type(kind, modifier) || ending"
            " from bases join pg_type on oid = kind where typtype <> 'd' and not (typcategory = 'A' and typarray = 0)"
        )
        found = connection.execute(look, (table.as_string(connection),)).fetchall()
        if not found:
            raise TargetMissing(self._table, was_there=self.was_written)
        return dict(found)


def _make_epochs(connection: Connection) -> None:
    """Make the table of epochs, if there is none, in the transaction that is under way."""
    from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

    # Who may only write must not be asked for the right to create.
    if connection.execute("select to_regclass('keygroups_epochs')").fetchone() == (None,):
        try:
            # A regclass is the table's oid, which tells a table from a later one of its name. A dump writes it as a
            # name, so that it is right after a restore.
            connection.execute(
                "create table if not exists keygroups_epochs "
                "(job text primary key, epoch bigint not null, target regclass, lineage text)"
            )
        except (DuplicateObject, DuplicateTable, UniqueViolation):  # made by another writer at the same time
            connection.rollback()
