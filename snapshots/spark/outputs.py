"""The outputs of a snapshot, read by Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import ParquetReader
from snapshots.format.schema_text import decode_schema
from snapshots.restore.snapshot import Snapshot
from snapshots.spark.types import spark_schema_of


def outputs_frame(spark: SparkSession, snapshot: Snapshot, schema: pa.Schema) -> DataFrame:
    """Return the outputs in a snapshot as a lazy DataFrame with one partition per file.

    The files are read through fsspec, because Spark itself may not know the snapshot's filesystem.

    Parameters
    ----------
    spark : SparkSession
        The session that reads.
    snapshot : Snapshot
        The snapshot that holds the outputs.
    schema : pyarrow.Schema
        The schema of the outputs, for old snapshots that do not store it.
    """
    stored = snapshot.manifest.output_schema
    files = snapshot.manifest.files_of("output")
    partitions = max(len(files), 1)
    reader = _OutputReader(snapshot.folder, files)
    output_schema = schema if stored is None else decode_schema(stored)
    return spark.range(0, len(files), 1, partitions).mapInArrow(reader, spark_schema_of(output_schema))


@dataclass(frozen=True)
class _OutputReader:
    folder: Folder
    files: tuple[DataFile, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from ParquetReader(self.folder, self.files[number]).read_all().to_batches()
