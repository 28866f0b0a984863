"""Rows that failed for good, as a column beside the outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from async_op.connectors.arrow_input import readable_rows_of
from async_op.dead_letters import LETTER_SCHEMA, DeadLetter, InPlace, OnError, check_on_error, row_of
from async_op.spark.rows.arrow_outputs import DEAD_LETTER, OutputWriter
from async_op.spark.rows.schemas import check_columns, check_input, check_names
from keygroups.errors import ConfigError

DeadLetters = Literal["column"]

_TYPES: dict[pa.DataType, DataType] = {pa.string(): StringType(), pa.int64(): LongType(), pa.int32(): IntegerType()}

_LETTER = StructType([StructField(one.name, _TYPES[one.type]) for one in LETTER_SCHEMA if one.name != "step"])


def split_dead_letters(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the outputs, without the column `dead_letter`, and the dead letters, with its fields as columns.

    Both are filters of the same DataFrame, and Spark computes each of them from the start. So all calls are made twice,
    unless `frame` is cached or read back from storage. In a streaming query, split the batches of `foreachBatch`.

    Parameters
    ----------
    frame : DataFrame
        A DataFrame that was made with `dead_letters="column"`.

    Raises
    ------
    ConfigError
        It is no DataFrame, or has no column `dead_letter`.

    Examples
    --------
    >>> enriched = AsyncDataStream.unordered_wait(  # doctest: +SKIP
    ...     rows, Enrich(), output_schema="id bigint, price double", on_error="dead_letter", dead_letters="column")
    >>> outputs, letters = split_dead_letters(enriched.persist())  # doctest: +SKIP
    """
    check_input("frame", frame)
    check_columns(frame.schema, "frame", DEAD_LETTER)
    letter = F.col(DEAD_LETTER)
    return frame.where(letter.isNull()).drop(DEAD_LETTER), frame.where(letter.isNotNull()).select(f"{DEAD_LETTER}.*")


def schema_with_letters(schema: StructType, on_error: OnError, dead_letters: DeadLetters | None) -> StructType:
    """Return the schema of the outputs, with a column for dead letters if they are asked for.

    Raises
    ------
    ConfigError
        The arguments contradict each other, or `schema` has a column of that name already.
    """
    check_on_error(on_error)
    if (on_error == "dead_letter") != (dead_letters is not None) or dead_letters not in (None, "column"):
        raise ConfigError("dead_letters", dead_letters, "pass 'column' with on_error='dead_letter', and only then")
    if DEAD_LETTER in schema.names:
        raise ConfigError(
            "output_schema", schema.simpleString(), f"{DEAD_LETTER!r} is the name of the column of dead letters"
        )
    if dead_letters is None:
        return schema
    # A row has either outputs or a dead letter, so every column may be null.
    outputs = [StructField(field.name, field.dataType, True, field.metadata) for field in schema]
    with_letters = StructType([*outputs, StructField(DEAD_LETTER, _LETTER)])
    check_names(with_letters)
    return with_letters


def rows_in_place() -> InPlace:
    """Return what turns a failed row into one output row with only its dead letter."""
    return InPlace(lambda letter: [{DEAD_LETTER: _row_of(letter)}])


def batches_in_place(writer: OutputWriter) -> InPlace:
    """Return what turns a failed record batch into a batch with a dead letter for each row."""

    def convert(letter: DeadLetter) -> list[pa.RecordBatch]:
        rows = readable_rows_of(letter.value)
        return writer.batches_of([{DEAD_LETTER: _row_of(replace(letter, value=row))} for row in rows])

    return InPlace(convert)


def _row_of(letter: DeadLetter) -> dict[str, Any]:
    row = row_of(letter)
    del row["step"]
    return row
