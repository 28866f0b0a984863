"""What `start`, `run` and `to_table` are called with: checks before anything is read, and tables as sinks."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, TypeVar

from pyspark.errors import IllegalArgumentException, PySparkTypeError, PySparkValueError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.connectors import DeltaSink, IcebergSink, KafkaSink, PostgresSink
from async_op.connectors.conformance import check_connector, check_sinks, letters_sink_of
from async_op.connectors.sink import ShippedSink
from async_op.connectors.tables.table_sink import TableSink
from async_op.spark.parquet_folder import ParquetFolder
from async_op.spark.rows.schemas import arrow_schema, check_input
from async_op.spark.stage import Stage
from keygroups.arguments import check_callable, check_choice, check_count, check_location
from keygroups.errors import ConfigError
from keygroups.spark.session import is_connect
from snapshots.format.sink_notes import SinkNotes
from snapshots.inputs import RUN_ID
from snapshots.spark.types import arrow_schema_of

_TRIGGERS = ("processingTime", "availableNow", "once")
"""The triggers with which Spark calls a function for each micro-batch."""

T = TypeVar("T")

TableFormat = Literal["delta", "iceberg", "parquet", "postgres"]

_OPTIONS: dict[str, tuple[str, ...]] = {
    "delta": ("name", "storage_options"),
    "iceberg": ("name", "catalog"),
    "parquet": (),  # which Spark writes, with its own settings
    "postgres": ("name", "url"),
}
_NEEDED = {
    "catalog": "pyiceberg's properties of the catalog, as in {'uri': 'https://…'}",
    "url": "the database, as in 'postgresql://host/name'",
}


def check_sink(sink: object, output_schema: StructType) -> None:
    """Raise `ConfigError` unless a sink can be called, and `UnwritableValue` if it cannot write the columns."""
    check_callable("sink", sink, 2, reason="it is called with the outputs of an epoch and its number")
    if isinstance(sink, ShippedSink):
        check_connector(sink)
        check_sinks(sink, None if sink.dead_letters is None else letters_sink_of(sink.dead_letters))
    if isinstance(sink, KafkaSink):
        sink.prepare(arrow_schema_of(output_schema, "UTC"))


def check_run(df: object, sink: object, output_schema: StructType, run_id: object, chunk_rows: object) -> None:
    """Check the arguments of `run`.

    Raises
    ------
    ConfigError
        An argument can never work.
    UnwritableValue
        The sink cannot write the columns.
    """
    check_input("df", df)
    assert isinstance(df, DataFrame), "it has just been checked"
    if df.isStreaming:
        raise ConfigError("df", df, "it is streaming: pass it to start(...)")
    check_sink(sink, output_schema)
    RUN_ID.check("run_id", run_id)
    if chunk_rows is not None:
        check_count("chunk_rows", chunk_rows, 1, reason="a chunk has at least one row")


def check_start(
    stream_df: object, sink: object, output_schema: StructType, checkpoint_location: object, trigger: object
) -> None:
    """Check the arguments of `start`.

    Raises
    ------
    ConfigError
        An argument can never work.
    UnwritableValue
        The sink cannot write the columns.
    """
    check_input("stream_df", stream_df)
    assert isinstance(stream_df, DataFrame), "it has just been checked"
    if not stream_df.isStreaming:
        raise ConfigError(
            "stream_df", stream_df, "it is not streaming: read it with spark.readStream, or pass it to run(...)"
        )
    check_sink(sink, output_schema)
    if not isinstance(checkpoint_location, str | PathLike) or not str(checkpoint_location):
        raise ConfigError("checkpoint_location", checkpoint_location, "name the folder of Spark's checkpoint")
    if trigger is not None:
        _check_trigger(stream_df, trigger)


def _check_trigger(stream_df: DataFrame, trigger: Any) -> None:
    if not isinstance(trigger, dict) or len(trigger) != 1 or next(iter(trigger)) not in _TRIGGERS:
        reason = f"pass one of {', '.join(_TRIGGERS)} with its value, as in {{'availableNow': True}}, or None"
        raise ConfigError("trigger", trigger, reason)
    try:
        stream_df.writeStream.trigger(**trigger)
    except (IllegalArgumentException, PySparkTypeError, PySparkValueError) as error:
        raise ConfigError("trigger", trigger, f"Spark refuses it: {error}") from None


def table_sink(
    stage: Stage,
    table: str | PathLike[str],
    format: TableFormat,
    options: dict[str, Any],
    delivery: dict[str, Any],
) -> TableSink | ParquetFolder:
    """Return the sink that writes the outputs of a stage into a table; with the arguments of `to_table`."""
    if format == "parquet" and (delivery["on_error"] != "fail" or delivery["dead_letters"] is not None):
        raise ConfigError("on_error", delivery["on_error"], "Spark writes Parquet, and refuses no row: leave it out")
    sink = _sink(table, format, options, delivery, stage.store.operator_id)
    if isinstance(sink, ParquetFolder):
        sink.prepare(stage.output_schema.names)
    return sink


def prepare_table(sink: TableSink | ParquetFolder, stream_df: DataFrame, stage: Stage) -> None:
    """Make the table if there is none, or check that it takes the outputs; over Spark Connect the server does it."""
    if isinstance(sink, TableSink) and not is_connect(stream_df):
        # A table that was removed must not be made again before the sink can tell.
        sink.was_written = SinkNotes(stage.store.folder).was_written("outputs", repr(sink))
        sink.prepare(arrow_schema(stream_df.sparkSession, stage.output_schema))


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
