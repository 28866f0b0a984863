"""Reads an operator state as rows of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from keygroups.values.casts import cast_table
from snapshots.format.manifest import DataFile, OperatorStateInfo
from snapshots.restore.items import item_files, items_in
from snapshots.restore.snapshot import Snapshot


class OperatorStateReader(DataSourceReader):
    """Reads an operator state, with one task for each file.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot to read.
    state : OperatorStateInfo
        The state.
    schema : pyarrow.Schema
        The schema of the record batches that Spark expects.
    """

    def __init__(self, snapshot: Snapshot, state: OperatorStateInfo, schema: pa.Schema) -> None:
        self._folder = snapshot.folder
        self._files = item_files(snapshot.manifest, state)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the items of a partition."""
        file: DataFile | None = partition.value
        if file is not None:  # Spark treats an empty list of partitions as one without a value
            yield from cast_table(items_in(self._folder, file), self._schema).to_batches()
