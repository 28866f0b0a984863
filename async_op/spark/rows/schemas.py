"""The schema of outputs, for Spark and for Arrow, and checks of columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.errors import ParseException, PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType, TimestampType

from keygroups.arguments import hidden
from keygroups.errors import ConfigError
from keygroups.spark.session import is_connect, setting
from snapshots.spark.types import arrow_schema_of

_DELAY = "spark.watermarkDelayMs"
"""What `withWatermark` adds to the metadata of its column."""


def parse_schema(schema: StructType | str | None) -> StructType:
    """Return a schema that was passed as such or as a DDL string; raises `ConfigError` for anything else."""
    try:
        # Encoded first: Java gets no text that UTF-8 cannot hold.
        parsed = StructType.fromDDL(schema.encode().decode()) if isinstance(schema, str) else schema
    except (ParseException, UnicodeEncodeError) as error:
        told, _, _ = str(error).strip().partition("\n")
        raise ConfigError("output_schema", schema, f"Spark refuses it: {told}") from error
    if not isinstance(parsed, StructType) or not parsed.names:
        raise ConfigError("output_schema", schema, "name the columns that come out, as in 'id bigint, city string'")
    check_names(parsed)
    _check_types("output_schema", parsed, "no function can return that: name another type, such as string")
    return parsed


def check_input(name: str, frame: object) -> None:
    """Raise `ConfigError` unless the input is a DataFrame."""
    if not isinstance(frame, DataFrame):
        reason = "pass a DataFrame of Spark, such as spark.createDataFrame(rows)"
        raise ConfigError(name, hidden(frame), reason)


def check_input_columns(schema: StructType) -> None:
    """Raise `ConfigError` unless an input has columns that Python can get, and each has a name of its own.

    Spark gives Python no rows without columns, so the function would be called for none of them. Of two fields of a
    struct that have one name, a dict keeps the last.
    """
    if not schema.names:
        raise ConfigError("input", schema.names, "its rows have no columns: select those that the function needs")
    found = _repeated(schema.names, _as_spark_compares()) or _twice(schema, str)
    if found is not None:
        raise ConfigError("input", schema.names, f"it has {found!r} twice: give each column a name of its own")
    _check_types("input", schema, "no function can get that: cast the column to another type, such as string")


def _check_types(argument: str, schema: StructType, instead: str) -> None:
    for field in schema:
        try:
            arrow_schema_of(StructType([field]), "UTC")
        except (PySparkException, ValueError) as error:  # Arrow refuses the elements of `array()`
            raise ConfigError(
                argument, f"{field.name} {field.dataType.simpleString()}", f"{instead} ({error})"
            ) from error


def check_names(schema: StructType) -> None:
    """Raise `ConfigError` if two columns, or two fields of a struct, have names that are one name for Spark."""
    found = _twice(schema, _as_spark_compares())
    if found is not None:
        reason = f"it has {found!r} twice, and Spark would write neither: give each column a name of its own"
        raise ConfigError("output_schema", schema.simpleString(), reason)


def _as_spark_compares() -> Callable[[str], str]:
    try:
        is_sensitive = setting(SparkSession.active(), "spark.sql.caseSensitive", "false").lower() == "true"
    except PySparkRuntimeError:  # there is no session yet
        is_sensitive = False
    return str if is_sensitive else str.lower


def _twice(kind: DataType, folded: Callable[[str], str]) -> str | None:
    """Return the name that a struct, in a type, has twice; None if there is none."""
    if isinstance(kind, ArrayType):
        return _twice(kind.elementType, folded)
    if isinstance(kind, MapType):
        return _twice(kind.keyType, folded) or _twice(kind.valueType, folded)
    if not isinstance(kind, StructType):
        return None
    return _repeated(kind.names, folded) or next(filter(None, (_twice(field.dataType, folded) for field in kind)), None)


def _repeated(names: list[str], folded: Callable[[str], str]) -> str | None:
    before = [folded(name) for name in names]
    return next((name for place, name in enumerate(names) if folded(name) in before[:place]), None)


def arrow_schema(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark accepts rows; timestamps are in the session's time zone."""
    return arrow_schema_of(schema, str(spark.conf.get("spark.sql.session.timeZone")))


def check_event_time(schema: StructType, column: str | None) -> None:
    """Raise `ConfigError` unless a column of timestamps has this name."""
    check_columns(schema, "event_time", column)
    if column is not None and not isinstance(kind := schema[column].dataType, TimestampType | TimestampNTZType):
        raise ConfigError("event_time", column, f"it is a {kind.simpleString()}: cast it to timestamp")


def check_columns(schema: StructType, argument: str, columns: str | list[str] | None) -> None:
    """Raise `ConfigError` unless the schema has the columns."""
    for column in [columns] if isinstance(columns, str) else columns or []:
        if column not in schema.names:
            raise ConfigError(argument, column, f"the columns are {schema.names}")


def watermark_delay_of(frame: DataFrame, event_time: str) -> int:
    """Return the delay, in milliseconds, that a DataFrame's `withWatermark` gave a column.

    Raises
    ------
    ConfigError
        The column does not exist or has no watermark.
    """
    check_columns(frame.schema, "event_time", event_time)
    delay = frame.schema[event_time].metadata.get(_DELAY)
    if delay is None:
        reason = f'it has no watermark: add .withWatermark("{event_time}", "10 seconds") to the input'
        raise ConfigError("event_time", event_time, reason)
    return int(delay)


_NAMES = "uuid|rand|randn|random|randstr|uniform|shuffle|monotonically_increasing_id"

_VOLATILE = re.compile(rf'function_name: "({_NAMES})"|\b({_NAMES})\s*\(', re.IGNORECASE)
"""How a function that returns something else at each reading stands in the plan of a client of Spark Connect."""


def is_repeatable(frame: DataFrame) -> bool:
    """Tell whether Spark gets the same rows when it reads an input again; `uuid()` and `rand()` make other ones.

    A client of Spark Connect has no analyzed plan: there, only Spark's own functions are found, by their names.
    """
    plan: Any = frame
    if is_connect(frame):
        return _VOLATILE.search(str(plan._plan.to_proto(plan.sparkSession.client))) is None
    return bool(plan._jdf.queryExecution().analyzed().deterministic())
