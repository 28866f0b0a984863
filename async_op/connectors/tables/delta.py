"""Delta Lake tables as sinks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from async_op.connectors.arrow_output import check_schema
from async_op.connectors.epoch_rows import Check, SinkRows
from async_op.connectors.errors import (
    ConnectorNotInstalled,
    SinkContended,
    TargetMissing,
    TargetReplaced,
    TargetTaken,
    UnwritableValue,
)
from async_op.connectors.retrying import is_transient_of_library
from async_op.connectors.sink import SINK_RETRY, Sink
from async_op.connectors.tables.partitions import partition_check
from async_op.connectors.tables.table_sink import ATTEMPTS_MAX, TableSink
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.values import Misfit
from snapshots.filesystem import options_of, redacted
from snapshots.temporary_files import temporary_directory

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


_MISREAD = re.compile(r"[%\[\]\\^|\x00-\x1f\x7f]")
"""Characters of paths with which deltalake 1.6 panics, or writes to one folder and reads from another."""

_SMALL, _LARGE = 1e-200, 1e200
"""Where all digits of a float, which deltalake writes without an exponent, fit into the name of a folder."""

_VIOLATION = "Invalid data found"
"""How deltalake begins its text about rows that violate a constraint; errors of storage have the same class."""

_CONSTRAINT = "delta.constraints."
_INVARIANTS = "delta.invariants"
_GENERATED = "delta.generationExpression"


class DeltaSink(TableSink):
    r"""Appends each epoch to a Delta Lake table, once. It needs the extra ``delta``, and no Java.

    The number of the epoch is an *application transaction* in the commit that adds its rows, so readers see both or
    neither, and of several writers of one epoch one gets through.

    Parameters
    ----------
    table : str
        The path or URI of the table, without control characters and ``% [ ] \ ^ |``, which deltalake misreads. A table
        that does not exist is made, with the columns of the first epoch or of `schema`.
    name : str
        The job's id: the table keeps the newest epoch under this name. A job that starts over needs another.
    schema : pyarrow.Schema, optional
        The columns of a table that is made. Without it, every column needs a value in the first epoch.
    storage_options : dict, optional
        Passed to deltalake.

    Notes
    -----
    On Spark with Delta's own jar, ``batch_df.write.format("delta").option("txnAppId", name).option("txnVersion",
    epoch)`` writes from the executors and gives the same guarantee. `DeltaSink` needs no jar, and writes from the
    driver in batches.

    Examples
    --------
    >>> sink = DeltaSink("s3://lake/orders", "orders-job")
    """

    def __init__(
        self,
        table: str,
        name: str,
        *,
        schema: pa.Schema | None = None,
        storage_options: dict[str, str] | None = None,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: Sink[Any] | None = None,
    ) -> None:
        super().__init__(table, name, on_error=on_error, retry=retry, dead_letters=dead_letters)
        path = self._table if "://" in self._table else str(Path(self._table).absolute())
        if (misread := _MISREAD.search(path)) is not None:
            reason = f"deltalake finds no table in a folder with {misread.group()!r} in its path: choose another one"
            raise ConfigError("table", redacted(self._table), reason)
        check_schema(schema)
        self._schema = schema
        self._storage_options = options_of(storage_options)
        for option, value in self._storage_options.items():
            if not isinstance(value, str):
                reason = f"the option {option!r} is no text: deltalake has other options than fsspec, and all are text"
                raise ConfigError("storage_options", sorted(self._storage_options), reason)

    _libraries = ("deltalake", "_internal")  # the second is the module of its errors

    def is_transient(self, error: Exception) -> bool:
        """Return whether the storage may be back soon, or other writers be fewer."""
        return isinstance(error, SinkContended) or is_transient_of_library(error)

    def _columns_of_table(self, schema: pa.Schema) -> list[str]:
        _check_installed()
        return [field.name for field in self._open(lambda: schema).schema().fields]

    def _append_unless_there(self, rows: SinkRows, epoch: int) -> int | None:
        _check_installed()
        from deltalake.exceptions import CommitFailedError

        for _ in range(ATTEMPTS_MAX):
            table = self._open(lambda: self._made(rows.schema()))
            newest = self._newest_in(table)
            if newest is not None and newest >= epoch:
                return newest
            self.note_tried(epoch)
            try:
                self._append(table, rows, epoch)
            except CommitFailedError as error:
                if not _has_moved(table):
                    raise  # the table has a feature that deltalake lacks, for instance
                failure = error
                continue
            except Exception as error:
                if not _is_of_deltalake(error):
                    raise
                raise rows.failure or next(iter(self._refused_rows(table, rows)), error) from None
            return None
        raise SinkContended(redacted(self._table), ATTEMPTS_MAX) from failure

    def _newest_epoch(self) -> int | None:
        _check_installed()
        table = self._existing()
        return None if table is None else self._newest_in(table)

    def _newest_in(self, table: DeltaTable) -> int | None:
        newest: int | None = table.transaction_version(self.name)
        if newest is None:
            if self.was_written:
                raise TargetReplaced(redacted(self._table), self.name)
            return None
        if self.lineage and table.transaction_version(self._lineage_note) is None:
            raise TargetTaken(redacted(self._table), self.name)
        advice = f"restore the table as it was at epoch {self.newest_known}, with its transaction {self.name!r}"
        self.check_ahead(redacted(self._table), newest, advice)
        self.check_behind(redacted(self._table), newest)
        return newest

    def _refused_by_table(self, rows: SinkRows) -> list[UnwritableValue]:
        _check_installed()
        return self._refused_rows(self._open(lambda: self._made(rows.schema())), rows)

    def _refused_rows(self, table: DeltaTable, rows: SinkRows) -> list[UnwritableValue]:
        with _constraint_check(table) as check_constraints:
            return rows.refused(_columns_for(rows, table), self._check_of(table), check_constraints)

    def _check_of(self, table: DeltaTable) -> Check:
        return partition_check(table.metadata().partition_columns, _reason_against)

    @property
    def _lineage_note(self) -> str:
        return f"{self.name} {self.lineage}"

    def _append(self, table: DeltaTable, rows: SinkRows, epoch: int) -> None:
        from deltalake import Transaction, write_deltalake

        reader = rows.reader(_columns_for(rows, table), self._check_of(table))
        notes = [Transaction(self.name, epoch)]
        if self.lineage:
            notes.append(Transaction(self._lineage_note, epoch))
        summary = {"keygroups.job": self.name, "keygroups.epoch": str(epoch)}
        noted = _properties(app_transactions=notes, custom_metadata=summary)
        write_deltalake(table, reader, mode="append", commit_properties=noted)

    def _existing(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._table, storage_options=self._storage_options)
        except TableNotFoundError:
            if self.was_written:
                raise TargetMissing(redacted(self._table), was_there=True) from None
            return None

    def _open(self, columns: Callable[[], pa.Schema]) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, DeltaError

        if (table := self._existing()) is not None:
            return table
        schema = columns() if self._schema is None else self._made(self._schema)
        try:
            # Another attempt would replace the description that another writer has put there by then.
            return DeltaTable.create(
                self._table, schema, storage_options=self._storage_options, commit_properties=_properties()
            )
        except (CommitFailedError, DeltaError):
            # If it was not another writer who made it, this fails in the same way.
            return DeltaTable(self._table, storage_options=self._storage_options)


def _has_moved(table: DeltaTable) -> bool:
    """Return whether another writer has committed since a table was opened."""
    version = table.version()
    table.update_incremental()
    return table.version() != version


def _columns_for(rows: SinkRows, table: DeltaTable) -> pa.Schema:
    """Return the columns to write: deltalake computes a generated one, unless it is there, if only with nulls."""
    schema = pa.schema(table.schema().to_arrow())
    generated = _with_metadata(table, _GENERATED)
    if not generated:
        return schema
    computed = generated.keys() - set(rows.names())
    return pa.schema([field for field in schema if field.name not in computed])


def _with_metadata(table: DeltaTable, key: str) -> dict[str, Any]:
    """Return what some columns of a table have under a key of their metadata, by the names of the columns."""
    return {field.name: field.metadata[key] for field in table.schema().fields if key in field.metadata}


def _reason_against(value: Any) -> str | None:
    """Return why a partition column does not keep a value: by Delta's protocol, or because of deltalake 1.6."""
    match value:
        case "" | "__HIVE_DEFAULT_PARTITION__":
            return "readers of Delta take it for null"
        case bytes():
            return "deltalake writes escaped text in place of bytes"
        case Decimal() if value < 0 and value % 1:
            return "deltalake writes a negative decimal in a form that no reader understands"
        case float() if abs(value) < inf and value and not _SMALL < abs(value) < _LARGE:
            return "deltalake writes more digits than the name of a folder has room for"
    return None


@contextmanager
def _constraint_check(table: DeltaTable) -> Iterator[Check]:
    """Yield a check that raises `Misfit` for a batch with a row that violates a constraint of a table.

    Constraints are SQL expressions that deltalake evaluates while it writes. When one fails, deltalake says how many
    rows violate it, but not which. So the check writes to an empty copy of the table.
    """
    configured = table.metadata().configuration
    constraints = {
        name.removeprefix(_CONSTRAINT): rule for name, rule in configured.items() if name.startswith(_CONSTRAINT)
    }
    rules = [f"{name}: {rule}" for name, rule in constraints.items()]
    rules += [f"an invariant of {name}" for name in _with_metadata(table, _INVARIANTS)]
    rules += [f"{name} is generated as {rule}" for name, rule in _with_metadata(table, _GENERATED).items()]
    if not rules:
        yield lambda batch: None
        return
    with temporary_directory("delta") as folder:
        copy = _empty_copy(table, str(folder), constraints)
        yield lambda batch: _try(copy, batch, f"it violates a constraint of the table ({', '.join(rules)})")


def _empty_copy(table: DeltaTable, folder: str, constraints: dict[str, str]) -> DeltaTable:
    from deltalake import DeltaTable

    copy = DeltaTable.create(folder, table.schema())
    for name, rule in constraints.items():
        copy.alter.add_constraint({name: rule})
    return copy


def _try(copy: DeltaTable, batch: pa.RecordBatch, reason: str) -> None:
    from deltalake import write_deltalake

    try:
        write_deltalake(copy, pa.Table.from_batches([batch]), mode="overwrite")
    except Exception as error:
        # A full temporary disk must not count as a violation: `on_error="skip"` would leave out rows that are right.
        if not _is_of_deltalake(error) or (type(error) is not Exception and _VIOLATION not in str(error)):
            raise
        raise Misfit(0, "", reason) from None


def _is_of_deltalake(error: Exception) -> bool:
    """Return whether deltalake has raised an error, and not a row's check or the storage."""
    from deltalake.exceptions import DeltaError

    # A plain `Exception` is an expression of a constraint that cannot be evaluated: 'abc' as a number, for instance.
    return isinstance(error, DeltaError) or type(error) is Exception


def _check_installed() -> None:
    try:
        import deltalake  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ConnectorNotInstalled("deltalake", "delta") from error


def _properties(**properties: Any) -> CommitProperties:
    """Return what makes a commit fail when another writer was faster, so that the epoch is looked up again."""
    from deltalake import CommitProperties

    return CommitProperties(max_commit_retries=0, **properties)
