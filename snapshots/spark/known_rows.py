"""A DataFrame of rows that the driver has: Spark hears of it only when it has to do something with them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.types import StructType

from keygroups.values.casts import cast_table
from snapshots.spark.types import arrow_schema_of

_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


class KnownRows(DataFrame):
    """A DataFrame of a classic session. `toArrow`, `count` and `isEmpty` answer without a job, with what Spark would.

    Parameters
    ----------
    spark : SparkSession
        The session, which has a JVM.
    rows : pyarrow.Table
        The rows.
    schema : StructType
        Their schema in Spark.
    """

    def __new__(cls, *_: object) -> KnownRows:
        """Leave the rest to `__init__`, which Spark 4.1 would call here with arguments of its own."""
        return object.__new__(cls)

    def __init__(self, spark: SparkSession, rows: pa.Table, schema: StructType) -> None:
        super().__init__(None, spark)
        # The parent's attribute would hide the property.
        del self._jdf
        self._rows = rows
        self._known_schema = schema

    @cached_property
    def _jdf(self) -> Any:
        return self._session.createDataFrame(self._rows, self._known_schema)._jdf

    @cached_property
    def schema(self) -> StructType:
        """The schema."""
        return self._known_schema

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Return the rows."""
        if self._session.conf.get(_LARGE_TYPES, "false") == "true":
            return super().toArrow()
        return cast_table(self._rows, arrow_schema_of(self._known_schema, "UTC"))

    def count(self) -> int:
        """Return how many rows there are."""
        return int(self._rows.num_rows)

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        """Tell whether there are no rows."""
        return self.count() == 0
