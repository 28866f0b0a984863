"""Apache Iceberg tables as sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from async_op.connectors.arrow_output import check_schema
from async_op.connectors.epoch_rows import Check, SinkRows
from async_op.connectors.errors import (
    ConnectorNotInstalled,
    SinkContended,
    SinkRefused,
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
from keygroups.arguments import check_settings
from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError
from keygroups.safe_text import described, text_of
from snapshots.filesystem import redacted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

_log = logging.getLogger(__package__)

_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}
"""What a new table has: otherwise a catalog keeps the metadata of each commit, which has all snapshots before it."""

_SNAPSHOTS_TOLD = 2000
"""Of so many snapshots of a table, and of each doubling, a warning says that they make epochs slower."""

_MANY_SNAPSHOTS = (
    "the table %s has %d snapshots, and each of them makes every epoch slower: let old ones expire, and choose a "
    "longer snapshot_interval"
)

_CHUNK_BYTES = 64 * 1024 * 1024
"""How much is in memory at a time; each chunk becomes a snapshot, and all of them one commit."""


_PASSING = {
    "AuthorizationExpiredError",  # each attempt opens the catalog, which asks for another token
    "OperationalError",
    "ServerError",  # of a status that says nothing else
    "WaitingForLockException",
}
"""Errors of pyiceberg's catalogs, and of the database of an SQL catalog, that may be over soon."""


class IcebergSink(TableSink):
    """Appends each epoch to an Apache Iceberg table, once. It needs the extra ``iceberg``.

    The commit that adds the rows sets the table's property ``keygroups.epoch.<name>``, so readers see both or neither,
    also after old snapshots have expired. The summaries of the snapshots name job and epoch, too.

    Parameters
    ----------
    table : str
        The table's identifier, such as ``"sales.orders"``. A table that does not exist is made, with the columns of
        the first epoch or of `schema`.
    name : str
        The job's id: the table keeps the newest epoch under this name. A job that starts over needs another.
    catalog : dict
        The catalog's properties, as for ``pyiceberg.catalog.load_catalog``, its ``name`` among them.
    schema : pyarrow.Schema, optional
        The columns of a table that is made. Without it, every column needs a value in the first epoch.

    Notes
    -----
    pyiceberg makes a commit that was overtaken again without asking. Two writers of one epoch would then append it
    twice, so a commit is made here at most once for each look at the table.

    Examples
    --------
    >>> sink = IcebergSink("sales.orders", "orders-job", catalog={"name": "lake", "uri": "https://catalog.example"})
    """

    def __init__(
        self,
        table: str,
        name: str,
        *,
        catalog: dict[str, Any],
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: Sink[Any] | None = None,
    ) -> None:
        super().__init__(table, name, on_error=on_error, retry=retry, dead_letters=dead_letters)
        if not self._table.rpartition(".")[0]:
            raise ConfigError("table", table, "name it with its namespace, as in 'sales.t'")
        self._catalog_properties = check_settings("catalog", catalog)
        self._catalog: Catalog | None = None
        check_schema(schema)
        self._schema = schema
        self._told_at = _SNAPSHOTS_TOLD

    has_times = True
    _libraries = ("pyiceberg", "pyarrow", "sqlalchemy")

    def is_transient(self, error: Exception) -> bool:
        """Return whether the catalog or the storage may be back soon, or other writers be fewer."""
        return isinstance(error, SinkContended) or is_transient_of_library(error) or type(error).__name__ in _PASSING

    def _columns_of_table(self, schema: pa.Schema) -> list[str]:
        with self._connected() as catalog:
            return [field.name for field in self._load(catalog, lambda: schema).schema().fields]

    def _append_unless_there(self, rows: SinkRows, epoch: int) -> int | None:
        with self._connected() as catalog:
            from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

            for _ in range(ATTEMPTS_MAX):
                table = self._load(catalog, lambda: self._made(rows.schema()))
                newest = self._newest_in(table)
                if newest is not None and newest >= epoch:
                    return newest
                self.note_tried(epoch)
                try:
                    self._append(table, rows, epoch)
                except (CommitFailedException, CommitStateUnknownException) as error:
                    failure = error
                    continue
                self._tell_of_snapshots(len(table.metadata.snapshots) + 1)
                return None
        raise SinkContended(redacted(self._table), ATTEMPTS_MAX) from failure

    def _tell_of_snapshots(self, count: int) -> None:
        """Warn of a table that has so many snapshots that each epoch takes long."""
        if count >= self._told_at:
            self._told_at = 2 * count
            _log.warning(_MANY_SNAPSHOTS, redacted(self._table), count)

    def _newest_epoch(self) -> int | None:
        with self._connected() as catalog:
            table = self._existing(catalog)
            return None if table is None else self._newest_in(table)

    def _newest_in(self, table: Table) -> int | None:
        noted = table.properties.get(self._property)
        if noted is None:
            if self.was_written:
                raise TargetReplaced(redacted(self._table), self.name)
            return None
        lineage = table.properties.get(self._lineage_property)
        if self.lineage and lineage and lineage != self.lineage:
            raise TargetTaken(redacted(self._table), self.name)
        advice = f"roll the table back to the snapshot of epoch {self.newest_known}, and set {self._property} to it"
        self.check_ahead(redacted(self._table), int(noted), advice)
        self.check_behind(redacted(self._table), int(noted))
        return int(noted)

    def _refused_by_table(self, rows: SinkRows) -> list[UnwritableValue]:
        with self._connected() as catalog:
            table = self._load(catalog, lambda: self._made(rows.schema()))
            return rows.refused(table.schema().as_arrow(), self._check_of(table))

    def _check_of(self, table: Table) -> Check:
        schema = table.schema()
        columns = [
            schema.find_column_name(field.source_id)
            for field in table.spec().fields
            if str(field.transform) == "identity"
        ]
        return partition_check([*filter(None, columns)], _reason_against)

    @property
    def _property(self) -> str:
        return f"keygroups.epoch.{self.name}"

    @property
    def _lineage_property(self) -> str:
        return f"keygroups.lineage.{self.name}"

    def _append(self, table: Table, rows: SinkRows, epoch: int) -> None:
        from pyiceberg.table.update import AssertTableUUID

        summary = {"keygroups.job": self.name, "keygroups.epoch": str(epoch)}
        transaction = _transaction(table)
        for chunk in _chunks(rows, table.schema().as_arrow(), self._check_of(table)):
            transaction.append(chunk, snapshot_properties=summary)
        transaction.set_properties({self._property: str(epoch), self._lineage_property: self.lineage})
        # `commit_transaction` would try again. The requirements say which snapshot the table must still have.
        requirements = (*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
        table._do_commit(transaction._updates, requirements)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is connected, too."""
        return super().__getstate__() | {"_catalog": None}

    def disconnect(self) -> None:
        """Close the catalog."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    @contextmanager
    def _connected(self) -> Iterator[Catalog]:
        """Open the catalog, and keep one that is asked by HTTP for the next epoch, unless something fails.

        Opening such a catalog takes up to three requests, two of them for a token. A database may have ended a
        connection that was idle between two epochs, so other catalogs are opened for each.
        """
        catalog = self._catalog = self._catalog or self._opened()
        is_kept = False
        try:
            yield catalog
            is_kept = _is_asked_by_http(catalog)
        except NotImplementedError as error:  # pyiceberg has catalogs, and versions of the format, that it only reads
            reason = text_of(error) or f"pyiceberg's {type(catalog).__name__} cannot do that"
            raise SinkRefused(redacted(self._table), reason) from error
        finally:
            if not is_kept:
                self.disconnect()

    def _opened(self) -> Catalog:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ConnectorNotInstalled("pyiceberg", "iceberg") from error

        properties = dict(self._catalog_properties)
        try:
            return load_catalog(properties.pop("name", None), **properties)
        except ValueError as error:
            raise ConfigError(
                "catalog", sorted(self._catalog_properties), f"pyiceberg cannot open it: {error}"
            ) from error

    def _existing(self, catalog: Catalog) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(self._table)
        except NoSuchTableError:
            if self.was_written:
                raise TargetMissing(redacted(self._table), was_there=True) from None
            return None

    def _load(self, catalog: Catalog, columns: Callable[[], pa.Schema]) -> Table:
        if (table := self._existing(catalog)) is not None:
            return table
        schema = columns() if self._schema is None else self._made(self._schema)
        namespace = self._table.rpartition(".")[0]
        if not catalog.namespace_exists(namespace):
            _make(lambda: catalog.create_namespace(namespace), lambda: catalog.namespace_exists(namespace))
        try:
            _make(
                lambda: catalog.create_table(self._table, schema, properties=_PROPERTIES),
                lambda: catalog.table_exists(self._table),
            )
        except ValueError as error:  # such as a catalog without a warehouse
            raise SinkRefused(redacted(self._table), described(error)) from error
        return catalog.load_table(self._table)


def _transaction(table: Table) -> Transaction:
    """Return a transaction that copies the metadata of its table once for each change, and not for each look at it.

    Pyiceberg looks about twenty times for each append, and the metadata has all snapshots of the table.
    """
    from pyiceberg.table import Transaction

    class Staged(Transaction):
        _newest: tuple[object, TableMetadata] | None = None

        @property
        def table_metadata(self) -> TableMetadata:
            if self._newest is None or self._newest[0] is not self._updates:
                self._newest = self._updates, super().table_metadata
            return self._newest[1]

    return Staged(table)


def _is_asked_by_http(catalog: Catalog) -> bool:
    from pyiceberg.catalog.rest import RestCatalog

    return isinstance(catalog, RestCatalog)


def _make(create: Callable[[], object], exists: Callable[[], bool]) -> None:
    """Create what another writer may create at the same time; each kind of catalog has another error for that."""
    try:
        create()
    except Exception:
        if not exists():
            raise


def _reason_against(value: Any) -> str | None:
    """Return why a partition column does not keep a value: pyiceberg 0.12 divides by zero for NaN."""
    return "pyiceberg cannot write a NaN there" if value != value else None


def _chunks(rows: SinkRows, schema: pa.Schema, check: Check) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    for batch in rows.checked(schema, check):
        batches.append(batch)
        if sum(one.nbytes for one in batches) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(batches)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches)
