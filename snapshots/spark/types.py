"""Converts Spark schemas to Arrow schemas and back, in the same way with every release of PySpark."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

_TAKES_TIMEZONE = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema_of(schema: StructType, timezone: str) -> pa.Schema:
    """Return the Arrow schema of Spark rows.

    Parameters
    ----------
    schema : StructType
        The schema of the rows.
    timezone : str
        The time zone in which timestamps are shown; older releases of PySpark (4.1) show them in UTC.
    """
    return to_arrow_schema(schema, timezone=timezone) if _TAKES_TIMEZONE else to_arrow_schema(schema)


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow data; a timestamp without a time zone stays without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
