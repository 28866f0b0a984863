"""A pipeline whose outputs go into a table: the common case of `AsyncPipeline.start`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from typing import Any, Literal, TypeVar

from pyspark.sql import DataFrame

from async_op.connectors import DeltaSink, IcebergSink, PostgresSink
from async_op.connectors.sink import SINK_RETRY
from async_op.connectors.sink import Sink as AnySink
from async_op.connectors.tables.table_sink import TableSink
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from async_op.spark.connect.query import ConnectQuery
from async_op.spark.epoch.delivery import Sink
from async_op.spark.epoch.history import Adopt
from async_op.spark.query import PipelineQuery
from async_op.spark.rows.schemas import arrow_schema
from async_op.spark.stage import Stage
from async_op.spark.start_arguments import check_start
from keygroups.arguments import check_choice, check_location
from keygroups.errors import ConfigError
from keygroups.representation import representation
from keygroups.spark.session import is_connect
from snapshots.filesystem import redacted
from snapshots.format.sink_notes import SinkNotes

T = TypeVar("T")

TableFormat = Literal["delta", "iceberg", "parquet", "postgres"]

_OPTIONS: dict[str, tuple[str, ...]] = {
    "delta": ("name", "storage_options"),
    "iceberg": ("name", "catalog"),
    "parquet": (),  # which Spark writes, with its own settings
    "postgres": ("name", "url"),
}
_PARTITION = "epoch"
"""The column that readers of a folder of Parquet files take from the names of its folders."""
_NEEDED = {
    "catalog": "pyiceberg's properties of the catalog, as in {'uri': 'https://…'}",
    "url": "that of the database, as in 'postgresql://host/name'",
}


class IntoTables(ABC):
    """The part of a pipeline that writes into tables."""

    _stages: tuple[Stage, ...]

    @abstractmethod
    def start(
        self,
        stream_df: DataFrame,
        sink: Sink,
        *,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
        adopt: Adopt | None = None,
    ) -> PipelineQuery | ConnectQuery:
        """Start, or continue."""

    def to_table(
        self,
        stream_df: DataFrame,
        table: str | PathLike[str],
        *,
        format: TableFormat,
        checkpoint_location: str | PathLike[str],
        trigger: dict[str, Any] | None = None,
        adopt: Adopt | None = None,
        name: str | None = None,
        storage_options: dict[str, str] | None = None,
        catalog: dict[str, Any] | None = None,
        url: str | None = None,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: AnySink[Any] | None = None,
    ) -> PipelineQuery | ConnectQuery:
        """Start, or continue, and append the outputs to a table: each epoch once, through crashes and restarts.

        A Delta or Iceberg table that does not exist is made, with the columns of `output_schema`. A table of PostgreSQL
        must exist. Parquet files are written by the executors, into a folder ``epoch=…`` for each epoch, which is
        replaced if the epoch comes again. For the other formats rows come to the driver, batch by batch.

        Parameters
        ----------
        stream_df : DataFrame
            The streaming input.
        table : str or path
            The folder or URI of Parquet or Delta; the identifier for Iceberg (``"sales.orders"``); the table of
            PostgreSQL, with its schema if needed.
        format : {"delta", "iceberg", "parquet", "postgres"}
            What the table is; all but Parquet need the extra of that name.
        checkpoint_location, trigger, adopt
            As for `start`.
        name : str, optional
            The name under which the table keeps the newest epoch; by default the operator's id, for a chain that of its
            last operator. Pipelines with one id that write into one table need different names, and so does a pipeline
            whose snapshots and checkpoint were both removed. Not for Parquet.
        storage_options : dict, optional
            Passed to deltalake.
        catalog : dict, optional
            The properties of Iceberg's catalog, which it needs.
        url : str, optional
            The PostgreSQL database, which it needs. It is never shown.
        on_error : {"fail", "skip", "dead_letter"}
            What becomes of a row that the table refuses, such as one that violates a constraint: it fails the epoch, is
            left out, or goes to `dead_letters` with its epoch. Not for Parquet.
        retry : RetryPolicy, optional
            How often an epoch is written, and how long the query waits in between, if the table does not answer: by
            default 20 attempts, two minutes on average. None for one attempt. Parquet is written once; Spark repeats
            its tasks.
        dead_letters : Sink, optional
            Where the refused rows go, such as a `FileSink`.

        Raises
        ------
        ConfigError
            As for `start`; also an option that the format does not take, or one that it needs, or an output column
            called ``epoch`` for Parquet, whose folders have that name.
        ConnectorNotInstalled
            A package is missing. Over Spark Connect the server's packages count, and this comes with the first epoch;
            so do the next two.
        TargetMissing
            The database has no such table.
        UnwritableValue
            The table does not have all columns of `output_schema`.
        UnpicklableFunction, UnsupportedKey, UnrelatedHistories, IncompatibleSnapshot
            As for `start`.

        Examples
        --------
        >>> query = pipeline.to_table(  # doctest: +SKIP
        ...     events, "s3://lake/visits", format="delta", checkpoint_location="/data/checkpoint")
        """
        options = {"name": name, "storage_options": storage_options, "catalog": catalog, "url": url}
        if format == "parquet" and (on_error != "fail" or dead_letters is not None):
            raise ConfigError("on_error", on_error, "Spark writes Parquet, and refuses no row: leave it out")
        last = self._stages[-1]
        delivery = {"on_error": on_error, "retry": retry, "dead_letters": dead_letters}
        sink = _sink(table, format, options, delivery, last.store.operator_id)
        if isinstance(sink, ParquetFolder):
            sink.prepare(last.output_schema.names)
        check_start(stream_df, sink, last.output_schema, checkpoint_location, trigger)
        if isinstance(sink, TableSink) and not is_connect(stream_df):
            # A table that was removed must not be made again before the sink can tell.
            sink.was_written = SinkNotes(last.store.folder).was_written("outputs", repr(sink))
            sink.prepare(arrow_schema(stream_df.sparkSession, last.output_schema))
        return self.start(stream_df, sink, checkpoint_location=checkpoint_location, trigger=trigger, adopt=adopt)


class ParquetFolder:
    """A folder of Parquet files with a folder for each epoch, which Spark's executors write and replace."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return representation(self, {"folder": redacted(self._folder)})

    def prepare(self, names: list[str]) -> None:
        """Raise `ConfigError` if a column has the name of the folders: it would be lost when the table is read.

        Spark and most readers compare names without their case.
        """
        for name in names:
            if name.casefold() == _PARTITION:
                reason = f"folders of epochs have this name, and readers would take it from them: rename {name!r}"
                raise ConfigError("output_schema", names, reason)

    def __call__(self, batch_df: DataFrame, epoch: int) -> None:
        """Write the folder of an epoch, or replace it."""
        batch_df.write.mode("overwrite").parquet(f"{self._folder}/{_PARTITION}={epoch}")


def _sink(
    table: str | PathLike[str], format: TableFormat, options: dict[str, Any], delivery: dict[str, Any], operator_id: str
) -> TableSink | ParquetFolder:
    _check(table, format, options)
    name = operator_id if options["name"] is None else options["name"]
    match format:
        case "delta":
            return DeltaSink(str(table), name, storage_options=options["storage_options"], **delivery)
        case "iceberg":
            return IcebergSink(str(table), name, catalog=_needed("catalog", options, dict), **delivery)
        case "postgres":
            return PostgresSink(_needed("url", options, str), str(table), name, **delivery)
        case "parquet":
            return ParquetFolder(str(table))


def _check(table: object, format: str, options: dict[str, Any]) -> None:
    check_choice("format", format, tuple(_OPTIONS))
    check_location("table", table, reason="name the table")
    takes = _OPTIONS[format]
    for option, value in options.items():
        if value is not None and option not in takes:
            reason = f"format={format!r} takes {' and '.join(takes) or 'no options'}; leave it out"
            raise ConfigError(option, value if option == "name" else "…", reason)  # it may have secrets


def _needed(option: str, options: dict[str, Any], kind: type[T]) -> T:
    value = options[option]
    if isinstance(value, kind) and value:
        return value
    raise ConfigError(option, value, f"pass {_NEEDED[option]}")
