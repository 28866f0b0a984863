"""The rewrite as a Spark job: each task reads a file, or writes a range of the new key groups."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from keygroups.context_managers import contextmanager
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.spark.partitions import map_in_arrow, run_in_partitions
from snapshots.errors import IncompleteSnapshot
from snapshots.format import compute as pc
from snapshots.format.files import FileWriter
from snapshots.format.manifest import DataFile
from snapshots.java import use_java
from snapshots.temporary_files import temporary_directory
from snapshots.upkeep.buckets import Buckets, key_groups_in
from snapshots.upkeep.rewrite import Rewrite

_BLOCK_SCHEMA = pa.schema([("subtask", pa.int32()), ("part", pa.int32()), ("rows", pa.binary())])
_BLOCK_COLUMNS = "subtask int, part int, rows binary"
_NOTHING = b""


def rewrite_with_spark(rewrite: Rewrite, spark: SparkSession) -> tuple[DataFile, ...]:
    """Rewrite everything on a cluster; the driver sees only the descriptions of the new files.

    Rows travel as Arrow data, many in one Spark row, so that every type is preserved. The number of writing tasks is
    the new parallelism.

    Parameters
    ----------
    rewrite : Rewrite
        What to rewrite.
    spark : SparkSession
        The session that runs the job.

    Raises
    ------
    IncompleteSnapshot
        The driver does not find files that the tasks wrote.
    """
    parallelism = rewrite.target.parallelism
    sources = _sources(rewrite)
    frame = spark.range(0, len(sources), 1, max(len(sources), 1))
    blocks = map_in_arrow(frame, _Reading(rewrite, sources), _BLOCK_COLUMNS)
    routed = blocks.repartitionById(parallelism, "subtask").sortWithinPartitions("part")
    rows = run_in_partitions(routed, parallelism, _Writing(rewrite), "file string")
    files = tuple(DataFile.from_fields(json.loads(row["file"])) for row in rows)
    for file in files:
        if rewrite.folder.size(file.path) != file.bytes:
            raise IncompleteSnapshot(f"{file.path} is not as large as it was written")
    return files


@dataclass(frozen=True, slots=True)
class _Source:
    """A file and the number of its part of the rewrite: a state, or, after all states, a channel, whose first it is."""

    part: int
    file: DataFile


def _sources(rewrite: Rewrite) -> tuple[_Source, ...]:
    keyed = [_Source(part, file) for part, state in enumerate(rewrite.states) for file in state.files]
    channels = [_Source(len(rewrite.states) + number, files[0]) for number, files in enumerate(rewrite.channels)]
    return (*keyed, *channels)


@dataclass(frozen=True)
class _Reading:
    """Reads the files with the given numbers, and splits their rows into blocks for the writing tasks."""

    rewrite: Rewrite
    sources: tuple[_Source, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._blocks(self.sources[number])

    def _blocks(self, source: _Source) -> Iterator[pa.RecordBatch]:
        states, target = self.rewrite.states, self.rewrite.target
        if source.part >= len(states):
            # A channel is little, so the writing task reads it itself.
            yield _block((source.part - len(states)) % target.parallelism, source.part, _NOTHING)
            return
        for table in states[source.part].rows(source.file):
            subtasks = key_groups_in(table) * target.parallelism // target.max_parallelism
            order = np.argsort(subtasks.astype(np.int16), kind="stable")
            ordered = pc.take(table, order)
            found, starts = np.unique(subtasks[order], return_index=True)
            ends = [*starts[1:].tolist(), len(order)]
            for subtask, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True):
                yield _block(subtask, source.part, _encoded(ordered.slice(start, end - start)))


@dataclass(frozen=True)
class _Writing:
    """Writes one range of the new key groups of every state, and the channels assigned to it."""

    rewrite: Rewrite

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        subtask = context.partitionId()
        target = self.rewrite.target
        owned = range_of(subtask, target.parallelism, target.max_parallelism)
        blocks = ((part, rows) for batch in batches for part, rows in _pairs(batch))
        parts = groupby(blocks, key=lambda block: block[0])
        with (
            temporary_directory("rewrite") as directory,
            FileWriter(self.rewrite.folder, uuid.uuid4().hex) as files,
        ):
            written = set()
            for part, found in parts:
                written.add(part)
                tables = (table for _, rows in found for table in _decoded(rows))
                self._write_part(part, tables, files, owned, subtask, directory / str(part))
            for part in set(range(len(self.rewrite.states))) - written:
                self._write_part(part, (), files, owned, subtask, directory / str(part))
            stored = files.stored()
        described = [json.dumps(dataclasses.asdict(file)) for file in stored]
        yield pa.RecordBatch.from_pydict({"file": pa.array(described, pa.string())})

    def _write_part(
        self,
        part: int,
        tables: Iterable[pa.Table],
        files: FileWriter,
        owned: KeyGroupRange,
        subtask: int,
        directory: Path,
    ) -> None:
        states = self.rewrite.states
        if part >= len(states):
            self.rewrite.write_channel(files, self.rewrite.channels[part - len(states)])
            return
        directory.mkdir()
        with Buckets(directory, owned) as buckets:
            for table in tables:
                buckets.add(table)
            states[part].write(files, buckets.take(), owned, subtask)


def _block(subtask: int, part: int, rows: bytes | pa.Buffer) -> pa.RecordBatch:
    payload = pa.array([memoryview(rows)], pa.binary())
    columns = [pa.array([subtask], pa.int32()), pa.array([part], pa.int32()), payload]
    return pa.RecordBatch.from_arrays(columns, schema=_BLOCK_SCHEMA)


def _pairs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Scalar]]:
    return zip(batch.column("part").to_pylist(), batch.column("rows"), strict=True)


def _encoded(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _decoded(rows: pa.Scalar) -> Iterator[pa.Table]:
    buffer = rows.as_buffer()
    if buffer.size:
        with pa.ipc.open_stream(buffer) as reader:
            yield reader.read_all()


@contextmanager
def session() -> Iterator[SparkSession]:
    """Yield a session on the master that the environment names, or on this machine, and stop it at the end.

    Raises
    ------
    JavaNotFound
        There is no Java that Spark can run on.
    """
    use_java()
    # Spark's default is the python3 on PATH, which may lack the packages of this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("keygroups").config("spark.ui.enabled", "false").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
