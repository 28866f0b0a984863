"""The worker's side of a snapshot: one subtask's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from keygroups.ranges import KeyGroupRange
from snapshots.columns import keyed_schema, keyed_tables
from snapshots.filesystem import Folder
from snapshots.in_flight import IN_FLIGHT_SCHEMA, in_flight_table
from snapshots.manifest import DataFile, FileKind, StateInfo
from snapshots.parquet import encode
from snapshots.subtask import SubtaskSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskHandle:
    """What a worker reports to the coordinator: small, and all that the commit needs. Picklable."""

    subtask_index: int
    parallelism: int
    max_parallelism: int
    hash: str
    key_groups: KeyGroupRange
    states: tuple[StateInfo, ...]
    files: tuple[DataFile, ...]
    watermark: int | None
    in_flight_count: int


def write_subtask(
    folder: Folder, attempt_id: str, snapshot: SubtaskSnapshot, outputs: pa.Table | None = None
) -> SubtaskHandle:
    """Write one subtask's files under a name that no other attempt uses."""
    writer = _FileWriter(folder, f"data/{attempt_id}", snapshot)
    return SubtaskHandle(
        subtask_index=snapshot.subtask_index,
        parallelism=snapshot.parallelism,
        max_parallelism=snapshot.max_parallelism,
        hash=snapshot.hash,
        key_groups=snapshot.key_groups,
        states=tuple(
            _state_info(cut.descriptor.name, cut.descriptor.kind, cut.descriptor.type) for cut in snapshot.states
        ),
        files=tuple(writer.files(outputs)),
        watermark=snapshot.watermark,
        in_flight_count=len(snapshot.in_flight),
    )


@dataclass(frozen=True, slots=True)
class _FileWriter:
    folder: Folder
    prefix: str
    snapshot: SubtaskSnapshot

    def files(self, outputs: pa.Table | None) -> Iterator[DataFile]:
        """Write the files of every state, and those of the elements and the outputs if there are any."""
        owned = self.snapshot.key_groups
        span = f"{owned.start}-{owned.end}"
        for cut in self.snapshot.states:
            # Also without rows: the file says of which type the values would be.
            schema = keyed_schema(cut)
            name = f"keyed-{cut.descriptor.name}-{span}.parquet"
            yield self._write("keyed", cut.descriptor.name, name, schema, keyed_tables(cut, schema))
        if self.snapshot.in_flight:
            tables = _row_groups(in_flight_table(self.snapshot.in_flight))
            yield self._write("in_flight", None, f"in_flight-{span}.parquet", IN_FLIGHT_SCHEMA, tables)
        if outputs is not None and outputs.num_rows:
            name = f"output-{self.snapshot.subtask_index}.parquet"
            yield self._write("output", None, name, outputs.schema, iter([outputs]))

    def _write(
        self, kind: FileKind, state: str | None, name: str, schema: pa.Schema, tables: Iterator[pa.Table]
    ) -> DataFile:
        path = f"{self.prefix}/{name}"
        encoded = encode(schema, tables, path)
        self.folder.write(path, encoded.data)
        return DataFile(
            kind=kind,
            state=state,
            subtask=self.snapshot.subtask_index,
            key_groups=self.snapshot.key_groups,
            path=path,
            rows=encoded.rows,
            bytes=encoded.data.size,
            sha256=encoded.sha256,
            footer_bytes=encoded.footer_bytes,
            footer_sha256=encoded.footer_sha256,
        )


_IN_FLIGHT_ROW_GROUP_ROWS = 1024


def _row_groups(table: pa.Table) -> Iterator[pa.Table]:
    for offset in range(0, table.num_rows, _IN_FLIGHT_ROW_GROUP_ROWS):
        yield table.slice(offset, _IN_FLIGHT_ROW_GROUP_ROWS)


def _state_info(name: str, kind: str, type_: pa.DataType | None) -> StateInfo:
    return StateInfo(name, kind, None if type_ is None else str(type_))
