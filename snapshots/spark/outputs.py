"""The outputs of a snapshot as a DataFrame: read by Spark, or of rows that the driver has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from keygroups.spark.partitions import map_in_arrow
from keygroups.spark.session import is_connect
from keygroups.values.lossless_casts import cast_table
from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile, decode_schema
from snapshots.format.parquet import ParquetReader
from snapshots.restore.snapshot import Snapshot
from snapshots.spark.types import arrow_schema_of, spark_schema_of

_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


class KnownRows(ClassicDataFrame):
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


def outputs_frame(
    spark: SparkSession, snapshot: Snapshot, schema: pa.Schema, known: Mapping[str, pa.Table] | None = None
) -> DataFrame:
    """Return the outputs in a snapshot as a DataFrame: lazy and with one partition per file, unless they are known.

    The files are read through fsspec, because Spark itself may not know the snapshot's filesystem.

    Parameters
    ----------
    spark : SparkSession
        The session that reads.
    snapshot : Snapshot
        The snapshot that holds the outputs.
    schema : pyarrow.Schema
        The schema of the outputs, for old snapshots that do not store it.
    known : mapping of str to pyarrow.Table, optional
        The rows of files by their paths, from who wrote them. If it has all files of the outputs, none is read.
    """
    stored = snapshot.manifest.output_schema
    output_schema = schema if stored is None else decode_schema(stored)
    files = snapshot.manifest.files_of("output")
    spark_schema = spark_schema_of(output_schema)
    known = known or {}
    if any(file.path not in known for file in files):
        return files_frame(spark, snapshot.folder, files, spark_schema)
    rows = pa.concat_tables([output_schema.empty_table(), *(known[file.path] for file in files)])
    # Of a table with two empty batches in a row, Spark reads nothing that is behind them.
    rows = pa.Table.from_batches((batch for batch in rows.to_batches() if batch.num_rows), output_schema)
    return spark.createDataFrame(rows, spark_schema) if is_connect(spark) else KnownRows(spark, rows, spark_schema)


def files_frame(
    spark: SparkSession,
    folder: Folder,
    files: tuple[DataFile, ...],
    spark_schema: StructType,
    schema: pa.Schema | None = None,
) -> DataFrame:
    """Return the rows of data files as a lazy DataFrame with one partition per file, cast to `schema` if given."""
    reader = _FileReader(folder, files, schema)
    return map_in_arrow(spark.range(0, len(files), 1, max(len(files), 1)), reader, spark_schema)


@dataclass(frozen=True)
class _FileReader:
    folder: Folder
    files: tuple[DataFile, ...]
    schema: pa.Schema | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = ParquetReader(self.folder, self.files[number]).read_all()
                yield from (rows if self.schema is None else cast_table(rows, self.schema)).to_batches()
