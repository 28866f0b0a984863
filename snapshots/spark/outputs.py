"""The outputs of a snapshot, read by Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from snapshots.filesystem import Folder
from snapshots.manifest import DataFile
from snapshots.parquet import ParquetReader
from snapshots.snapshot import Snapshot


def outputs_frame(spark: SparkSession, snapshot: Snapshot, schema: pa.Schema) -> DataFrame:
    """Return the outputs that a snapshot holds, as a lazy DataFrame with one partition per file.

    The files are read through fsspec, because Spark itself may not know the snapshot's filesystem.

    Parameters
    ----------
    spark : SparkSession
        Runs the reading.
    snapshot : Snapshot
        Whose outputs.
    schema : pyarrow.Schema
        Of the outputs.
    """
    files = snapshot.manifest.files_of("output")
    partitions = max(len(files), 1)
    reader = _OutputReader(snapshot.folder, files)
    return spark.range(0, len(files), 1, partitions).mapInArrow(reader, from_arrow_schema(schema))


@dataclass(frozen=True)
class _OutputReader:
    folder: Folder
    files: tuple[DataFile, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from ParquetReader(self.folder, self.files[number]).read_all().to_batches()
