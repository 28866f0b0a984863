"""Runs over bounded DataFrames: their input is stored first, in chunks, and each chunk is the input of an epoch.

A drain at the end finishes what is in flight.
"""

from __future__ import annotations

import json
import logging
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from async_op.epochs.position import BEGINNING, SourcePosition
from async_op.spark.chain import PipelineChain, join_chain
from async_op.spark.epoch.delivery import Outlet, epoch_of
from async_op.spark.epoch.history import check_keys
from async_op.spark.epoch.inputs import Chunk
from async_op.spark.epoch.job_names import named_jobs
from async_op.spark.errors import UnfinishedRun
from async_op.spark.rows.routing import Routing
from async_op.spark.rows.schemas import arrow_schema
from async_op.spark.stage import Stage
from keygroups.errors import ConfigError
from keygroups.spark.partitions import map_in_arrow
from snapshots.commit.completeness import ATTEMPTS_PREFIX_CHARACTERS
from snapshots.filesystem import Folder
from snapshots.folder_hints import newest_or_empty
from snapshots.format.delivered import last_delivered
from snapshots.format.manifest import DataFile
from snapshots.inputs import StoredInput, begin_storing, load_input, put_input, remove_input, write_rows
from snapshots.spark.outputs import files_frame

_log = logging.getLogger(__package__)

CHUNK_ROWS = 100_000
"""How many rows a chunk has at most, by default: the outputs of an epoch are in memory until its end."""

_FILE_BYTES = 64 * 2**20
"""A task stores the rows that it has collected when they have this many bytes as Arrow data."""

_FILE_SCHEMA = "partition int, number int, file binary"


def run_bounded(
    frame: DataFrame,
    stages: Sequence[Stage],
    routings: Sequence[Routing],
    outlet: Outlet,
    *,
    run_id: str,
    chunk_rows: int | None,
) -> None:
    """Run a bounded DataFrame through a chain, from where an earlier call with this run id has stopped.

    Raises
    ------
    UnfinishedRun
        Another run has not finished, or the stored input of this one is lost.
    """
    first = stages[0]
    folder = first.store.folder
    stored = None
    if not _has_finished(first, run_id):
        _check(first, routings[0], run_id)
        join_chain(stages, routings, None)
        stored = stored_input(folder, frame, run_id, chunk_rows, _order(first))
    elif not _is_over(stages):
        join_chain(stages, routings, None)
    else:
        said = "run %r of %s has finished before, so its rows are not read: for other rows pass another run_id"
        _log.warning(said, run_id, first.store.uri)
        remove_input(folder, run_id)
        return
    _run(frame, PipelineChain.begin(frame.sparkSession, stages, routings, outlet, 0), folder, stored)
    remove_input(folder, run_id)


def _run(frame: DataFrame, chain: PipelineChain, folder: Folder, stored: StoredInput | None) -> None:
    """Run all chunks that are not in the state, and finish what is in flight; close the chain in any case."""
    spark, has_failed = frame.sparkSession, True
    try:
        chunks = 0 if stored is None else len(stored.chunks)
        for number in range(chunks):
            assert stored is not None, "it has chunks"
            chunk = Chunk(stored.run_id, stored.input_id, number, chunks)
            if not chunk.is_in(chain.first.position):
                rows = chunk_frame(spark, folder, stored, number)
                chain.first.run_input(rows, chunk)
        chain.drain(spark)
        has_failed = False
    finally:
        chain.close(spark, failed=has_failed)


def _has_finished(first: Stage, run_id: str) -> bool:
    return run_id in SourcePosition.of(newest_or_empty(first.store.folder)).finished_runs


def _is_over(stages: Sequence[Stage]) -> bool:
    """Tell whether nothing of a finished run is left to do: a query may be running by now, and is not disturbed."""
    if not SourcePosition.of(newest_or_empty(stages[0].store.folder)).is_in_run:
        return True  # a query has taken over what was left
    seen = None
    for stage in stages:
        latest = newest_or_empty(stage.store.folder)
        position = SourcePosition.of(latest)
        if latest is None or latest.in_flight_count or last_delivered(latest.folder) != epoch_of(latest):
            return False
        if seen is not None and position.upstream != seen:
            return False
        seen = position.ref
    return seen != BEGINNING


def _check(first: Stage, routing: Routing, run_id: str) -> None:
    latest = newest_or_empty(first.store.folder)
    check_keys(latest, routing)
    run = SourcePosition.of(latest).run
    if run is None:
        return
    stored = load_input(first.store.folder, run_id)
    if run.run_id != run_id or stored is None or stored.input_id != run.input_id:
        raise UnfinishedRun(first.store.uri, run.run_id, run.done, run.chunks)


def _order(first: Stage) -> list[str]:
    """Return the columns by which the input is divided into chunks: with event time the watermark follows the rows."""
    event_time = first.settings.event_time
    return list(dict.fromkeys([*([] if event_time is None else [event_time]), *first.order_by]))


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
