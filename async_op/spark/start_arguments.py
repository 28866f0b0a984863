"""Checks of what `AsyncPipeline.start` and `run` are called with, before anything is read or claimed."""

from __future__ import annotations

from os import PathLike
from typing import Any

from pyspark.errors import IllegalArgumentException, PySparkTypeError, PySparkValueError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from async_op.connectors import KafkaSink
from async_op.connectors.sink import ShippedSink
from keygroups.arguments import check_callable, check_integer
from keygroups.errors import ConfigError
from snapshots.inputs import RUN_ID
from snapshots.spark.types import arrow_schema_of

_TRIGGERS = ("processingTime", "availableNow", "once")
"""The triggers with which Spark calls a function for each micro-batch."""


def check_input(name: str, frame: object) -> None:
    """Raise `ConfigError` unless the input is a DataFrame."""
    if not isinstance(frame, DataFrame):
        raise ConfigError(name, frame, "pass a DataFrame")


def check_sink(sink: object, output_schema: StructType) -> None:
    """Raise `ConfigError` unless a sink can be called, and `UnwritableValue` if it cannot write the columns."""
    check_callable("sink", sink, reason="it is called with the outputs of an epoch and its number")
    if isinstance(sink, ShippedSink) and sink.on_error == "dead_letter" and sink.dead_letters is None:
        raise ConfigError("dead_letters", None, "the sink has on_error='dead_letter': pass it a sink for them")
    if isinstance(sink, ShippedSink):
        sink.check_apart(sink.dead_letters)
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
        check_integer("chunk_rows", chunk_rows, 1, reason="a chunk has at least one row")


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
