"""Converts Spark schemas to Arrow schemas and back, in the same way with every release of PySpark."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

_TAKES_TIMEZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
"""False with PySpark 4.1, which shows timestamps in UTC."""


def arrow_schema_of(schema: StructType, timezone: str) -> pa.Schema:
    """Return the Arrow schema of Spark rows.

    Parameters
    ----------
    schema : StructType
        The schema of the rows.
    timezone : str
        The time zone in which timestamps are shown.
    """
    if _TAKES_TIMEZONE:
        return to_arrow_schema(schema, timezone=timezone)
    shown_in_utc = to_arrow_schema(schema)
    return pa.schema([field.with_type(_in_timezone(field.type, timezone)) for field in shown_in_utc])


def _in_timezone(type_: pa.DataType, timezone: str) -> pa.DataType:
    """Return a type of Arrow with all its timestamps, nested ones too, in a time zone."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_in_timezone(field.type, timezone))

    if types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, timezone)
    if types.is_list(type_):
        return pa.list_(inner(type_.value_field))
    if types.is_large_list(type_):
        return pa.large_list(inner(type_.value_field))
    if types.is_map(type_):
        return pa.map_(inner(type_.key_field), inner(type_.item_field))
    if types.is_struct(type_):
        return pa.struct([inner(type_.field(index)) for index in range(type_.num_fields)])
    return type_


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow data; a timestamp without a time zone stays without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
