"""Stores a bounded DataFrame in chunks, and reads them."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from async_op.spark.epoch.job_names import named_jobs
from async_op.spark.rows.schemas import arrow_schema
from keygroups.errors import ConfigError
from keygroups.spark.partitions import map_in_arrow
from snapshots.commit.completeness import ATTEMPTS_PREFIX_CHARACTERS
from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile
from snapshots.inputs import StoredInput, begin_storing, load_input, put_input, write_rows
from snapshots.spark.outputs import files_frame

CHUNK_ROWS = 100_000
"""How many rows a chunk has at most, by default: the outputs of an epoch are in memory until its end."""

_FILE_BYTES = 64 * 2**20
"""A task stores the rows that it has collected when they have this many bytes as Arrow data."""

_FILE_SCHEMA = "partition int, number int, file binary"


def stored_input(
    folder: Folder, frame: DataFrame, run_id: str, chunk_rows: int | None, order_by: Sequence[str]
) -> StoredInput:
    """Return the stored input of a run; what is not stored yet is stored now.

    Raises
    ------
    ConfigError
        An earlier call with this run id has stored rows with other columns.
    """
    schema = frame.schema.json()
    found = load_input(folder, run_id)
    if found is None:
        found = _store(folder, frame, run_id, chunk_rows or CHUNK_ROWS, order_by)
    if found.schema != schema:
        raise ConfigError("df", frame, f"run {run_id!r} has stored rows with other columns: pass another run_id")
    return found


def chunk_frame(spark: SparkSession, folder: Folder, stored: StoredInput, number: int) -> DataFrame:
    """Return the rows of a chunk."""
    schema = StructType.fromJson(json.loads(stored.schema))
    return files_frame(spark, folder, stored.chunks[number], schema, arrow_schema(spark, schema))


def _store(folder: Folder, frame: DataFrame, run_id: str, chunk_rows: int, order_by: Sequence[str]) -> StoredInput:
    input_id = uuid.uuid4().hex
    prefix = input_id[:ATTEMPTS_PREFIX_CHARACTERS]
    begin_storing(folder, run_id, prefix)
    ordered = frame.orderBy(*order_by) if order_by else frame
    with named_jobs(frame.sparkSession, folder.operator_id, 0, f"input of run {run_id}"):
        rows = map_in_arrow(ordered, _StoreTask(folder, prefix, chunk_rows), _FILE_SCHEMA).collect()
    files = [pickle.loads(row["file"]) for row in sorted(rows, key=lambda row: row[:2])]  # noqa: S301 - our own tasks'
    return put_input(folder, StoredInput(run_id, input_id, frame.schema.json(), _chunks(files, chunk_rows)))


def _chunks(files: Iterable[DataFile], chunk_rows: int) -> tuple[tuple[DataFile, ...], ...]:
    """Put files into chunks, in their order; there is at least one, which finishes the run even without rows."""
    chunks: list[list[DataFile]] = [[]]
    for file in files:
        if chunks[-1] and sum(one.rows for one in chunks[-1]) + file.rows > chunk_rows:
            chunks.append([])
        chunks[-1].append(file)
    return tuple(tuple(chunk) for chunk in chunks)


@dataclass(frozen=True)
class _StoreTask:
    """Stores the rows of a partition as files of at most `chunk_rows` rows, under names of its own."""

    folder: Folder
    prefix: str
    chunk_rows: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "this runs inside a Spark task"
        partition = context.partitionId()
        attempt_id = self.prefix + uuid.uuid4().hex[ATTEMPTS_PREFIX_CHARACTERS:]
        for number, rows in enumerate(_pieces(batches, self.chunk_rows)):
            file = write_rows(self.folder, attempt_id, number, partition, rows)
            columns = [pa.array([partition], pa.int32()), pa.array([number], pa.int32())]
            names = ["partition", "number", "file"]
            yield pa.RecordBatch.from_arrays([*columns, pa.array([pickle.dumps(file)], pa.binary())], names)


def _pieces(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """Cut and join batches to tables of at most `rows_max` rows, and of a bounded size."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows_max - sum(one.num_rows for one in parts))
            parts.append(part)
            start += part.num_rows
            if sum(one.num_rows for one in parts) == rows_max or sum(one.nbytes for one in parts) >= _FILE_BYTES:
                yield pa.Table.from_batches(parts)
                parts = []
    if parts:
        yield pa.Table.from_batches(parts)
